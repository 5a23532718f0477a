"""What the command lines of the benches share: options, errors in words, and where results go."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benches.contest import BenchError
from benches.environment import described, load_average
from benches.output import shown
from benches.table import text_of

__all__ = ["command_line", "concluded", "parsed", "recorded"]


def command_line(name: str, says: str | None, *, repeat: int) -> argparse.ArgumentParser:
    """Give a parser with the options that each bench has.

    Args:
        name: Of the bench.
        says: The module's docstring, whose first line is shown.
        repeat: Rounds, unless said otherwise.
    """
    says = (says or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog=f"scripts/bench {name}", description=says, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON into this file too")
    parser.add_argument("--repeat", type=int, default=repeat, help=f"rounds that count (default: {repeat})")
    parser.add_argument("--seed", type=int, default=0, help="of weights, data and the order of turns (default: 0)")
    parser.add_argument("--quick", action="store_true", help="one round, as little as shows that everything runs")
    return parser


def parsed(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """Read the words; with mistakes, tell them and end with code 2."""
    options = parser.parse_args(words)
    if options.repeat < 1:
        parser.error(f"--repeat: expected 1 or more, got {options.repeat}")
    if options.quick:
        options.repeat = 1
    if options.out is not None and not options.out.absolute().parent.is_dir():
        parser.error(f"--out: {options.out.parent} is no folder")
    return options


def concluded(
    name: str, options: argparse.Namespace, measured: Callable[[], Mapping[str, Any]], *, threads: int | None
) -> int:
    """Measure, print a table or JSON, and return the exit code: 0, also where a reach is missed; see `shown` too.

    Args:
        name: Of the bench.
        options: What `parsed` gave.
        measured: Gives ``comparisons`` (what `contest.comparison` gave, each), and any of ``rounds`` (all numbers),
            ``settings`` and ``notes`` (lines in words).
        threads: Intra-op threads of each contestant; None where it is not the same for all.
    """
    before, start = load_average(), time.monotonic()
    try:
        found = {"bench": name, **measured()}
    except BenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; nothing was measured to its end", file=sys.stderr)
        return 130
    found["settings"] = {"seed": options.seed, **found.get("settings", {})}
    found = recorded(found, options, threads=threads, load_before=before, start=start)
    return shown(json.dumps(found, indent=2) if options.json else text_of(found))


def recorded(
    found: Mapping[str, Any],
    options: argparse.Namespace,
    *,
    threads: int | None,
    load_before: list[float],
    start: float,
) -> dict[str, Any]:
    """Add how it was measured to what was found, and write it into `--out`.

    Args:
        found: ``bench``, ``comparisons`` and what else a bench gives.
        options: With ``repeat``, ``quick`` and ``out``.
        threads: As of `concluded`.
        load_before: What `load_average` gave before measuring.
        start: What `time.monotonic` gave then.

    Returns:
        All of it, with ``settings``, ``environment`` and ``seconds`` that it took.
    """
    settings = {"repeat": options.repeat, "quick": options.quick, **found.get("settings", {})}
    record = {**found, "settings": settings, "seconds": round(time.monotonic() - start, 1)}
    record["environment"] = described(threads=threads, load_before=load_before)
    if options.out is not None:
        options.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return record
