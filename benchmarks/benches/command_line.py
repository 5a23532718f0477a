"""What the command lines of the benches share: options, errors in words, and where results go."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benches.environment import describe_environment, read_load
from benches.results_table import format_text, print_result
from benches.rounds import BenchError


def create_parser(name: str, description: str | None, *, repeat: int) -> argparse.ArgumentParser:
    """Return a parser with the options that each bench has.

    Args:
        name: Of the bench.
        description: The module's docstring, whose first line is shown.
        repeat: Rounds, unless said otherwise.
    """
    description = (description or "").partition("\n")[0]
    parser = argparse.ArgumentParser(
        prog=f"benchmarks/bench {name}", description=description, allow_abbrev=False
    )
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write the JSON into this file too"
    )
    parser.add_argument(
        "--repeat", type=int, default=repeat, help=f"rounds that count (default: {repeat})"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of weights, data and the order of turns (default: 0)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="one round, as little as shows that everything runs"
    )
    return parser


def parse_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """Read the words; with mistakes, tell them and end with code 2."""
    options = parser.parse_args(words)
    if options.repeat < 1:
        parser.error(f"--repeat: expected 1 or more, got {options.repeat}")
    if options.quick:
        options.repeat = 1
    if options.out is not None and not options.out.absolute().parent.is_dir():
        parser.error(f"--out: {options.out.parent} is no folder")
    return options


def run_bench(
    name: str,
    options: argparse.Namespace,
    measure: Callable[[], Mapping[str, Any]],
    *,
    threads: int | None,
) -> int:
    """Measure, print a table or JSON, and return the exit code (0 where a target is missed).

    Args:
        name: Of the bench.
        options: What `parse_options` returned.
        measure: Returns ``comparisons`` (what `rounds.compare` returned, each), and any of
            ``rounds`` (all numbers), ``settings`` and ``notes`` (lines in words).
        threads: Intra-op threads of each contestant; None where it is not the same for all.
    """
    before, start = read_load(), time.monotonic()
    try:
        result = {"bench": name, **measure()}
    except BenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; nothing was measured to its end", file=sys.stderr)
        return 130
    settings = {
        "repeat": options.repeat,
        "quick": options.quick,
        "seed": options.seed,
        **result.get("settings", {}),
    }
    result |= {"settings": settings, "seconds": round(time.monotonic() - start, 1)}
    result["environment"] = describe_environment(threads=threads, load_before=before)
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return print_result(json.dumps(result, indent=2) if options.json else format_text(result))
