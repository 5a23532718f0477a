"""The entry point: find the subcommand, run it, turn what it raises into words and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from lightkit import __version__
from lightkit.cli import stages
from lightkit.cli.devices import devices
from lightkit.cli.joining import told_interruption
from lightkit.cli.session import OPTIONS
from lightkit.cli.submit import submit_fit
from lightkit.config import near
from lightkit.errors import ConfigError, Interrupted, LightkitError
from lightkit.runs.signals import SignalWatch

__all__ = ["main"]

COMMANDS = {
    "fit": "train a model, or resume the run that was interrupted",
    "validate": "score a run's best checkpoint on the validation split",
    "test": "score a run's best checkpoint on the test split",
    "predict": "write a run's predictions for the test split",
    "fetch": "download the data that a config names",
    "devices": "print what this machine has to train on",
    "submit": "put a fit into the queue of a Slurm cluster",
}

HELP = """\
usage: lightkit COMMAND [-c FILE]... [--key=value]... [key=value]...

Train PyTorch Lightning models from layered YAML files.

commands:
{commands}

  -c FILE            a layer of the config; later ones win over earlier ones
  --key=value        one value, such as --trainer.max_epochs=3; wins over all files
  --run RUN          validate, test, predict: a run folder, or latest; needs no -c
  --quiet            print warnings and errors only
  --output json      print the run's events, one JSON object a line
  --print_config     print the resolved config and stop
  --version          print the version and stop
  --help             print this, or after a command all of its keys

lightkit fit -c configs/flowers.yaml
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        argv: Words after the program's name; those of this process if None.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    with SignalWatch() as watch:
        try:
            return _dispatch(words, watch)
        except LightkitError as error:
            print(f"error: {error}", file=sys.stderr)
            return error.exit_code
        except Interrupted as interruption:
            print(told_interruption(interruption), file=sys.stderr)
            return interruption.exit_code
        except BrokenPipeError:  # the reader of a pipe has left, as `| head` does
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 128 + 13


def _dispatch(words: list[str], watch: SignalWatch) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        text = HELP.format(commands="\n".join(f"  {name:10}{text}" for name, text in COMMANDS.items()))
        print(text, end="", file=sys.stdout if words else sys.stderr)
        return 0 if words else 2
    if words[0] in ("-V", "--version"):
        print(f"lightkit {__version__}")
        return 0
    command, rest = _command_of(words)
    sys.path.insert(0, str(os.getcwd()))  # noqa: PTH109 (a class_path of the user's own module is found here)
    if command == "fetch":
        return stages.fetch(rest)
    if command == "devices":
        return devices(rest)
    if command == "submit":
        return submit_fit(rest)
    return stages.run(command, rest, watch)


def _command_of(words: list[str]) -> tuple[str, list[str]]:
    """Split off the command; `-c FILE` before it means the same as after it."""
    before: list[str] = []
    at = 0
    while at < len(words) and words[at].startswith("-"):
        takes_value = words[at] in ("-c", "--config") or OPTIONS.get(words[at].removeprefix("--")) == "value"
        before += words[at : at + 1 + takes_value]
        at += 1 + takes_value
    if at >= len(words):
        raise ConfigError(f"No command among {' '.join(words)!r}. Commands: {', '.join(COMMANDS)}.")
    if words[at] not in COMMANDS:
        known = ", ".join(COMMANDS)
        raise ConfigError(f"{words[at]!r} is not a command{near(words[at], COMMANDS)}\nCommands: {known}.")
    return words[at], [*before, *words[at + 1 :]]
