"""The context of a command whose config is checked completely; torch loads only where a mistake needs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from lightkit.cli.config_loader import STAGES, WITH_MODEL
from lightkit.cli.console import quiet_libraries
from lightkit.cli.context import RunContext, load_context
from lightkit.cli.validation import validate_signatures
from lightkit.errors import LightkitError
from lightkit.hardware import Machine
from lightkit.runs.signals import SignalWatch

__all__ = ["open_context", "open_run_context", "validate_with_imports"]


def open_context(
    command: str,
    words: Sequence[str],
    watch: SignalWatch,
    *,
    subcommands: Sequence[str] = STAGES,
    full: bool = False,
    machine: Machine | Literal["this"] | None = "this",
) -> RunContext:
    """Load the config of a command and raise every mistake in it.

    Args:
        command: `fit`, `validate`, `test`, `predict` or `export`.
        words: The command line after the command.
        watch: Handler of SIGINT and SIGTERM.
        subcommands: All commands whose blocks a file may have.
        full: Whether jsonargparse is asked for more mistakes also where the schema describes every class.
        machine: Machine whose hardware the config must fit; None to check against none.

    Raises:
        ConfigError: If anything in them is wrong.
        DataError: If data is missing and nothing else is wrong.
    """
    context = load_context(command, words, watch, subcommands=subcommands, full=full, machine=machine)
    if context.problems:
        validate_with_imports(context)
    context.raise_problems()
    return context


def open_run_context(words: Sequence[str], *, is_quiet: bool = False) -> RunContext:
    """Open a context on a finished run, for one process, wherever it was trained.

    Args:
        words: Command line, with ``--run`` or ``--ckpt_path``.
        is_quiet: Whether only warnings and errors are printed.

    Raises:
        ConfigError: If anything in it is wrong.
    """
    context = open_context("export", words, SignalWatch())
    context.rank_context = None
    context.mode = "quiet" if is_quiet else context.mode
    return context


def validate_with_imports(context: RunContext) -> None:
    """Import the classes that the config names and add their mistakes to `context.problems`."""
    # Late: it loads torch and Lightning, which takes seconds.
    from lightkit.cli.lightning_cli import Checked, LightkitCLI

    quiet_libraries()
    remaining = replace(context, resolved=validate_signatures(context.resolved, context.problems), only_checks=True)
    if context.command not in WITH_MODEL or context.resolved.values.get("model") is None:  # there is none to build
        return
    with context.stack:
        try:
            LightkitCLI(context=remaining)
        except Checked:
            return
        except LightkitError as error:
            context.problems.add(error)
