"""Imports and computations of a fork server of trainings, once for all that it forks.

Nothing else imports this module.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module

from lightkit.cli.heap import freeze, freezing_imports

_LATER = ("omegaconf", "pandas", "pyarrow.parquet")
"""What Lightning imports to write a checkpoint, and pyarrow to write predictions."""

with freezing_imports():
    from lightkit.cli import class_descriptions, model_builder, stage_runner  # noqa: F401
    from lightkit.cli.lightning_cli import prepare_parser
    from lightkit.config.schema import load_schema
    from lightkit.hardware import describe_packages

    for name in _LATER:
        with suppress(ImportError):
            import_module(name)
    load_schema()
    describe_packages()
    prepare_parser("fit")

freeze()
