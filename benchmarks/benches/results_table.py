"""Results as text, and as the table of docs/performance.md."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benches.catalog import BENCHES
from benches.rounds import BenchError

RESULTS = Path(__file__).with_name("results")
PAGE = Path(__file__).parents[2] / "docs" / "performance.md"
START, END = "<!-- bench -->", "<!-- /bench -->"
_PIPE_CLOSED = 128 + 13  # as shells report the end by SIGPIPE
_OUTPUT_LOST = 74  # as of lightkit
_SIGNS = {"at most": "≤ {:g}", "at least": "≥ {:g}", "at most s": "≤ {:g} s"}


def run(words: Sequence[str]) -> int:
    """Print or write the table of docs/performance.md from stored results; return the exit code.

    Args:
        words: See `--help`.

    Returns:
        0, or 2 where there are no results.
    """
    output = (run.__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(
        prog="benchmarks/bench table", description=output, allow_abbrev=False
    )
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="folder with NAME.json of each bench"
    )
    parser.add_argument(
        "--page", type=Path, default=PAGE, help="file that holds the table between two comments"
    )
    parser.add_argument(
        "--write", action="store_true", help="write it there instead of printing it"
    )
    options = parser.parse_args(words)
    try:
        made = format_markdown(read_results(options.results))
        if not options.write:
            return print_result(made)
        _write(made, options.page)
    except BenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Read the results of a folder, in the order of the benches.

    Raises:
        BenchError: If there are none, or a file holds something else.
    """
    if not folder.is_dir():
        raise BenchError(f"{folder} is no folder; --results names that of the benches' results")
    files = [file for name in BENCHES if (file := folder / f"{name}.json").is_file()]
    if not files:
        names = f"{next(iter(BENCHES))}.json"
        raise BenchError(
            f"{folder} holds no results, such as {names}; benchmarks/bench all --results {folder}"
            " stores them"
        )
    return [_read(file) for file in files]


def _read(file: Path) -> dict[str, Any]:
    try:
        result = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BenchError(f"{file}: no results of a bench: {error}") from error
    if not isinstance(result, dict) or not {"bench", "settings", "environment", "comparisons"} <= {
        *result
    }:
        raise BenchError(f"{file}: no results of a bench, as its --out writes them")
    return result


def _write(made: str, page: Path) -> None:
    if not page.is_file():
        raise BenchError(f"{page} is no file")
    text = page.read_text(encoding="utf-8")
    if START not in text or END not in text:
        raise BenchError(f"{page} has no lines {START} and {END} to write between")
    page.write_text(insert_table(text, made), encoding="utf-8")


def insert_table(text: str, made: str) -> str:
    """Put a table between the two comments of a text."""
    head, _, rest = text.partition(START)
    return f"{head}{START}\n{made}\n{END}{rest.partition(END)[2]}"


def format_markdown(results: Sequence[Mapping[str, Any]]) -> str:
    """Make the table: a line for each comparison, and a last one with machine and date.

    Args:
        results: What the benches wrote.
    """
    lines = [
        "| bench | what | lightkit | against | ratio | rounds | target | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        for row in result["comparisons"]:
            cells = (
                f"`{result['bench']}`",
                row["what"],
                *_format_sides(row),
                *_format_verdict(row, result),
            )
            lines.append("|" + "".join(f" {cell} |" if cell else " |" for cell in cells))
    return "\n".join([*lines, "", *_list_conditions(results)])


def format_text(result: Mapping[str, Any]) -> str:
    """Show a bench's results on a screen.

    Args:
        result: What the bench wrote.
    """
    cells = [("what", "measured", "against", "ratio (least to most)", "rounds", "target", "")]
    cells += [
        (row["what"], *_format_sides(row, names=True), *_format_verdict(row, result))
        for row in result["comparisons"]
    ]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]
    where = result["environment"]
    lines += [
        "",
        *result.get("notes", ()),
        "",
        f"{format_conditions(result)}; load {where['load_before'][0]:g} before",
    ]
    return "\n".join(lines)


def format_conditions(result: Mapping[str, Any]) -> str:
    """Say in a line where, when and on which commit results were taken."""
    where = result["environment"]
    threads = (
        f", {where['threads']} thread{'s' if where['threads'] > 1 else ''}"
        if where["threads"]
        else ""
    )
    commit = f"{where['commit']}{' with changes' if where['dirty'] else ''}"
    versions = ", ".join(
        f"{name} {where['versions'][name]}" for name in ("torch", "pytorch-lightning")
    )
    machine = f"{where['cpu']}, {where['cores']['usable']} cores{threads}"
    repeat = result["settings"]["repeat"]
    rounds = "a single round" if repeat == 1 else f"medians of {repeat} rounds"
    quick = (
        ", as small as --quick has it, which tells nothing of speed"
        if result["settings"].get("quick")
        else ""
    )
    return f"{rounds}{quick}; {machine}; {versions}; {commit}; {where['date'][:10]}"


def format_target(row: Mapping[str, Any]) -> str:
    """Format the target of a ratio."""
    return " ".join(_SIGNS[kind].format(limit) for kind, limit in (row["target"] or {}).items())


def _format_verdict(row: Mapping[str, Any], result: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Return ratio, rounds, target, and the verdict.

    ``undecided`` where some rounds reach it and some do not.

    A single round has no spread, so its verdict ends in "once".
    """
    if "unmeasured" in row:
        return "", "0", format_target(row), f"not measured: {row['unmeasured']}"
    verdict = {True: "reached", False: "missed", None: "undecided" if row["target"] else ""}[
        row["reached"]
    ]
    rounds = row.get("rounds", result["settings"]["repeat"])
    if rounds == 1 and verdict:
        verdict += ", once"
    if result["settings"].get("quick"):
        verdict = ""  # as small as that, nothing is reached or missed
    return _format_ratio(row["ratio"]), str(rounds), format_target(row), verdict


def _format_sides(row: Mapping[str, Any], *, names: bool = False) -> tuple[str, str]:
    if "unmeasured" in row:
        return row["of"], row["to"]
    of, to = (
        _format_value(row["values"][row[side]]["median"], row["unit"]) for side in ("of", "to")
    )
    return f"{row['of']} {of}" if names or row["of"] != "lightkit" else of, f"{row['to']} {to}"


def _format_ratio(ratio: Mapping[str, float]) -> str:
    return f"{ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})"


def _format_value(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}" if value >= 1000 else f"{value:.3g} {unit}"


def _list_conditions(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Format the conditions once for all benches that share them."""
    lines: dict[str, list[str]] = {}
    for result in results:
        lines.setdefault(format_conditions(result), []).append(f"`{result['bench']}`")
    return [f"{', '.join(benches)}: {said}." for said, benches in lines.items()]


def print_result(text: str) -> int:
    """Print what was found and return the exit code.

    Returns:
        0; 141 where the reader has left, as ``| head -1`` does; 74 where standard output cannot be
        written, which is reported on standard error.
    """
    try:
        print(text, flush=True)
    except BrokenPipeError:
        code = _PIPE_CLOSED
    except OSError as error:
        print(f"error: standard output cannot be written: {error.strerror}", file=sys.stderr)
        code = _OUTPUT_LOST
    else:
        return 0
    # Python would write the rest at its end
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code
