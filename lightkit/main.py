"""The entry point: words, the command that they name, and the exit code of each exception.

It imports next to nothing: a command's own module is imported once the command is known.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence

from lightkit.cli.command_line import Command, Invocation
from lightkit.cli.command_table import COMMANDS, WITH_MODEL, parse
from lightkit.cli.console import (
    FULL_TRACEBACK,
    discard_output,
    flush_or_discard,
    guard_standard_output,
    print_error,
)
from lightkit.cli.heap import end_quickly
from lightkit.errors import (
    PIPE_CLOSED,
    Interrupted,
    LightkitError,
    OutputLost,
    explain_full_disk,
    format_interruption,
)
from lightkit.runs.signals import SignalWatch
from lightkit.version import __version__

__all__ = ["COMMANDS", "main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        argv: Words after the program's name; those of this process if None.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is None:
        guard_standard_output()
    watch = SignalWatch(to_the_end=argv is None)
    watch.deferred = True  # until it can be reported
    with watch:
        try:
            try:
                watch.stop_deferring()
                code = _dispatch(words, watch)
            finally:
                watch.deferred = True  # the work is done, and its end is still to be printed
            print(end="", flush=True)  # here, where a reader that has left is no news
            watch.code = code
        except Interrupted as interruption:
            watch.code = _report_interruption(interruption)
        except BrokenPipeError:  # the reader of a pipe has left, as `| head` does
            discard_output(sys.stdout)
            watch.code = PIPE_CLOSED
        except Exception as error:
            if watch.received is not None and watch.explains(error):
                watch.code = _report_interruption(Interrupted(watch.received))
            elif isinstance(error, LightkitError):
                watch.code = _report_error(error)
            else:
                raise
        finally:  # a reader may have left while an error was on its way
            flush_or_discard(sys.stdout)
            flush_or_discard(sys.stderr)
    if argv is None:
        end_quickly(watch.code)
    return watch.code


def _report_interruption(interruption: Interrupted) -> int:
    print_error(format_interruption(interruption))
    return interruption.exit_code


def _report_error(error: LightkitError) -> int:
    flush_or_discard(sys.stdout)  # above the error, where both go to one place
    if isinstance(error, OutputLost):
        discard_output(sys.stdout)
    print_error(f"error: {error}")
    return error.exit_code


def _dispatch(words: list[str], watch: SignalWatch) -> int:
    """Parse the words and run the command; help and version need no module of a command.

    Raises:
        ConfigError: If a word is wrong, and the command takes no config.
        LightkitError: If the disk is full.
    """
    invocation = parse(words)
    if invocation.has("traceback"):
        os.environ[FULL_TRACEBACK] = "1"
    if invocation.has("version"):
        print(f"lightkit {__version__}")
        return 0
    if not invocation.command:
        return _print_general_help(is_asked=bool(words))

    sys.path.insert(0, str(os.getcwd()))  # noqa: PTH109 (a class_path of the user's own module is found here)
    has_model = invocation.command in WITH_MODEL
    if has_model and invocation.topics == ("all",):  # the help of LightningCLI itself
        invocation = invocation._replace(topics=None, passthrough=("--help",))
    if invocation.topics is not None:
        print(_format_help(invocation), end="")
        return 0

    # A command without a config has no other errors to be reported together with those of its
    # words.
    command = COMMANDS[invocation.command]
    if not command.takes_config:
        invocation.raise_errors()
    run = _import_function(command)
    with explain_full_disk():
        return int(run(invocation, watch) if has_model else run(invocation))


def _print_general_help(*, is_asked: bool) -> int:
    from lightkit.cli.help import format_general_help  # here: other commands need none of its words

    print(format_general_help(), end="", file=sys.stdout if is_asked else sys.stderr)
    return 0 if is_asked else 2


def _format_help(invocation: Invocation) -> str:
    if invocation.command in WITH_MODEL and invocation.topics:
        # here, because it loads what reads configs
        from lightkit.cli.help_topics import format_topic

        return format_topic(invocation.command, invocation.topics)
    from lightkit.cli.help import format_command_help  # here: other commands need none of its words

    return format_command_help(COMMANDS[invocation.command])


def _import_function(command: Command) -> Callable[..., int]:
    name = command.name.replace("-", "_")
    module = importlib.import_module(command.module or f"lightkit.commands.{name}")
    function: Callable[..., int] = getattr(module, command.function or name)
    return function
