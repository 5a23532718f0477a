"""Train PyTorch Lightning models from layered YAML files.

Importing this package loads neither torch nor Lightning. `fit` and `LightkitCLI` do, as do
`lightkit.models`, `lightkit.data`, `lightkit.loggers` and `lightkit.callbacks`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightkit.version import __version__

if TYPE_CHECKING:
    from lightkit.api import TrainingRun, fit, list_runs, load_config, load_run
    from lightkit.cli.lightning_cli import LightkitCLI
else:  # or every misspelt name would have a type

    def __getattr__(name: str) -> object:
        """Import a public name when it is asked for."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name == "LightkitCLI":
            from lightkit.cli.lightning_cli import LightkitCLI

            return LightkitCLI
        from lightkit import api

        return getattr(api, name)


__all__ = [
    "LightkitCLI",
    "TrainingRun",
    "__version__",
    "fit",
    "list_runs",
    "load_config",
    "load_run",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
