"""The folder of all runs for commands without a config.

`run.root` of the option and the variable, as in a config.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from lightkit.config.loader import resolve
from lightkit.config.origins import error_at
from lightkit.config.overrides import PREFIX, Flag, is_layer

_VARIABLES = (f"{PREFIX}RUN", f"{PREFIX}RUN__ROOT")
"""Variables that can set `run.root`; errors in others are those of commands with a config."""


def find_run_root(
    flags: Sequence[Flag] | str | None = None, *, environ: Mapping[str, str] | None = None
) -> Path:
    """Return the folder of all runs, as a config with only these flags and variables has it.

    Args:
        flags: Keys that the command line sets, of which `run.root` counts; or the value of its
            option `--root`.
        environ: Environment variables; those of this process if None.

    Raises:
        ConfigError: If the value cannot be read, or is no text.
    """
    if isinstance(flags, str):
        flags = [Flag("run.root", flags, f"--root={flags}")]
    named = [flag for flag in flags or () if flag.key == "run.root"]

    resolved = resolve(
        flags=named, environ=_drop_other_keys(os.environ if environ is None else environ)
    )
    root = resolved.section("run").get("root")
    if root is not None and not isinstance(root, str):
        raise error_at(
            f"run.root: expected the folder of all runs, got {root!r}",
            resolved.origin_of("run.root"),
        )
    return resolved.run_root


def _drop_other_keys(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those that set other keys.

    Interpolations may use all that set none.
    """
    return {
        name: value
        for name, value in environ.items()
        if not is_layer(name) or name.upper() in _VARIABLES
    }
