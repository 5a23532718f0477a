"""Imports and computations of a process that forks trainings, once for all that it forks.

Fork servers and the process that forks ranks import this module, and nothing else does.
"""

from __future__ import annotations

import platform
from contextlib import suppress
from importlib import import_module

from lightkit.cli.heap import freeze, freezing_imports

_LATER = (
    "fsspec.implementations.chained",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg",
    "matplotlib.ticker",
    "omegaconf",
    "pandas",
    "pyarrow.pandas_compat",
    "pyarrow.parquet",
    "torch.utils.serialization.config",
)
"""What Lightning imports to write a checkpoint, pyarrow to write predictions, a run for figures."""

with freezing_imports():
    from lightkit.callbacks import trial  # noqa: F401
    from lightkit.cli import class_descriptions, model_builder, stage_runner  # noqa: F401
    from lightkit.cli.lightning_cli import prepare_parser
    from lightkit.config.schema import load_schema
    from lightkit.hardware import describe_packages
    from lightkit.runs import summary  # noqa: F401

    for name in _LATER:
        with suppress(Exception):  # one that is broken concerns those alone who need it
            import_module(name)
    load_schema()
    describe_packages()
    platform.platform()  # it asks a program, and keeps the answer
    prepare_parser()

freeze()
