"""`lightkit reproduce`: a run trained again, and the two compared."""

from __future__ import annotations

import json

from lightkit.cli.command_line import Takes, parse_command_line
from lightkit.cli.reproducing import Order, order_of, trained_again
from lightkit.runs.signals import SignalWatch

__all__ = ["reproduce"]

_USAGE = "usage: lightkit reproduce RUN [--anyway] [--root DIR] [--json] [--quiet] [--trust]"
_HELP = f"""\
{_USAGE}

Train a run again, with its config and its seed, and compare the two: the metrics of each epoch, and the weights of
last.ckpt and best.ckpt, bit for bit. Before that, code (git commit, lightkit, Python files), packages, data and
hardware are compared with what the run has recorded; if any differs, nothing is trained and all that differs is listed.

  RUN          a run: its folder, its id, NAME, NAME/ID or latest
  --anyway     train all the same, with a warning
  --root DIR   folder of the runs; default: runs
  --json       print what was found as one JSON object
  --quiet      print nothing but warnings, errors and differences
  --trust      load checkpoints that hold more than tensors and plain values, and so may run code

The new run has a name of its own, NAME-reproduced, so that the job's newest run stays what it was. If this command is
interrupted, the same command goes on. LIGHTKIT_ variables do not count: the run's config holds what they said.
Exit code 0: equal; 1: it differs, or has crashed; 2: the run cannot be reproduced here, or wrong arguments; 3: only the
data differs, or is missing; 75: interrupted, the same command goes on.

lightkit reproduce flowers/latest
"""
_OWN: dict[str, Takes] = {
    "--anyway": "switch",
    "--json": "switch",
    "--quiet": "switch",
    "--root": "value",
    "--trust": "switch",
}


def reproduce(words: list[str]) -> int:
    """Train a run again, compare the two, and return the exit code.

    Args:
        words: The command line after the command.

    Raises:
        ConfigError: If the words are wrong, there is no such run, or it cannot be reproduced here.
        DataError: If only its data is not what it was.
    """
    if {"-h", "--help"} & {*words}:
        print(_HELP, end="")
        return 0
    line = parse_command_line("reproduce", words, usage=_USAGE, own=_OWN)
    said, place = line.options, line.get_positional("reproduce", "one run, such as latest", _USAGE)
    options = ["--quiet"] * bool({"--quiet", "--json"} & {*said}) + ["--trust"] * ("--trust" in said)
    with SignalWatch() as watch:
        order = order_of(place, said.get("--root", "runs"), watch, anyway="--anyway" in said, options=options)
        return _told(order, trained_again(order), is_json="--json" in said, is_quiet="--quiet" in said)


def _told(order: Order, code: int, *, is_json: bool, is_quiet: bool) -> int:
    if code != 0:
        return code
    from lightkit.cli.run_comparison import compared  # here: it loads torch

    found = compared(order.run, order.again, is_trusting="--trust" in order.options)
    if is_json:
        print(json.dumps(found.described(), indent=2))
    elif not (is_quiet and found.is_equal):
        print(found.text(), end="")
    return 0 if found.is_equal else 1
