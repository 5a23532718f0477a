"""How long the front door takes: help, configs with mistakes and `--print_config`, beside a plain LightningCLI.

Both do the same in turn, so that what else the machine does falls on both alike. Times are of whole processes, on the
CPU, with one thread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benches.command import recorded
from benches.contest import BenchError, comparison
from benches.environment import alone, load_average
from benches.output import shown

__all__ = ["ROWS", "BenchError", "compared", "measure", "report", "run"]

PLAIN = """\
from pytorch_lightning.cli import LightningCLI

LightningCLI()
"""
CLASSES = """\
model: lightkit.models.Regressor
data: lightkit.data.Temperatures
"""
GOOD = f"{CLASSES}trainer: {{max_epochs: 3, accelerator: cpu}}\n"
BAD = f"{CLASSES}trainr: {{max_epochs: 3}}\n"
OWN_CLASS = """\
from lightkit.models import Regressor

class Net(Regressor):
    def __init__(self, hidden: int = 4) -> None:
        super().__init__(hidden=hidden)
"""
OWN = "model: {class_path: own_class.Net, init_args: {hiden: 3}}\ndata: lightkit.data.Temperatures\n"
FILES = {"plain.py": PLAIN, "good.yaml": GOOD, "bad.yaml": BAD, "own_class.py": OWN_CLASS, "own.yaml": OWN}
TIMEOUT_S = 120.0
IMPORTS = "import torch, pytorch_lightning, jsonargparse, lightkit.models, lightkit.data"


@dataclass(frozen=True)
class Row:
    """One thing that both do.

    Args:
        name: What it is.
        own: Words after `lightkit`.
        plain: Words after the script that calls LightningCLI.
        code: Exit code of both.
        reach_s: Seconds to reach; None where it is a ratio to the imports, or nothing.
        reach_of_imports: Ratio to the imports to reach; None where it is seconds, or nothing.
    """

    name: str
    own: tuple[str, ...]
    plain: tuple[str, ...]
    code: int = 0
    reach_s: float | None = None
    reach_of_imports: float | None = None


ROWS = (
    Row("lightkit --help", ("--help",), ("--help",), reach_s=0.10),
    Row("lightkit fit --help", ("fit", "--help"), ("fit", "--help"), reach_s=0.30),
    Row("lightkit check -c BAD", ("check", "-c", "bad.yaml"), ("fit", "-c", "bad.yaml"), code=2, reach_s=0.30),
    # A class that no catalogue knows has to be imported, and torch with it, before its mistakes can be told.
    Row("lightkit check -c OWN (own class)", ("check", "-c", "own.yaml"), ("fit", "-c", "own.yaml"), code=2),
    Row(
        "lightkit fit --print_config -c GOOD",
        ("fit", "--print_config", "-c", "good.yaml"),
        ("fit", "-c", "good.yaml", "--print_config"),
        reach_of_imports=1.1,
    ),
)


def run(words: Sequence[str]) -> int:
    """Measure, print a table or JSON, and return the exit code.

    Args:
        words: See `--help`.
    """
    says = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="scripts/bench startup", description=says, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON into this file too")
    parser.add_argument("--quick", action="store_true", help="each command once, to see that all runs")
    parser.add_argument("--repeat", type=int, default=10, help="how often each command runs (default: 10)")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_S, help="seconds for each command (default: 120)")
    options = parser.parse_args(words)
    if options.repeat < 1:
        parser.error(f"--repeat: expected 1 or more, got {options.repeat}")
    if not options.timeout > 0:
        parser.error(f"--timeout: expected more than 0 seconds, got {options.timeout:g}")
    if options.out is not None and not options.out.absolute().parent.is_dir():
        parser.error(f"--out: {options.out.parent} is no folder")
    options.repeat = 1 if options.quick else options.repeat
    before, start = load_average(), time.monotonic()
    try:
        seconds = measure(options.repeat, timeout_s=options.timeout)
    except BenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; nothing was measured to its end", file=sys.stderr)
        return 130
    found = {"bench": "startup", **report(seconds), "comparisons": compared(seconds), "rounds": seconds}
    found = recorded(found, options, threads=1, load_before=before, start=start)
    return shown(json.dumps(found, indent=2) if options.json else _table(found, options.repeat))


def measure(repeat: int, rows: Sequence[Row] = ROWS, *, timeout_s: float = TIMEOUT_S) -> dict[str, list[float]]:
    """Give the seconds of each command, in turn with all the others; say on standard error how far it is.

    Args:
        repeat: How often each runs, after a first time that fills the file system's cache and is not counted.
        rows: What runs.
        timeout_s: Seconds that each may take.

    Raises:
        BenchError: If a command ends with another exit code than it should, or not in time.
    """
    commands: dict[str, tuple[tuple[str, ...], int]] = {"imports": ((sys.executable, "-c", IMPORTS), 0)}
    for row in rows:
        commands[f"own {row.name}"] = ((sys.executable, "-m", "lightkit", *row.own), row.code)
        commands[f"plain {row.name}"] = ((sys.executable, "plain.py", *row.plain), row.code)
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory() as folder:
        for name, text in FILES.items():
            Path(folder, name).write_text(text, encoding="utf-8")
        for turn in range(repeat + 1):
            start = time.perf_counter()
            for name, (command, code) in commands.items():
                taken = _seconds(command, folder, code, timeout_s=timeout_s)
                seconds[name] += [taken] if turn else []
            told = f"turn {turn} of {repeat}" if turn else f"a first turn, which does not count, before {repeat}"
            print(f"{told}: {len(commands)} commands in {time.perf_counter() - start:.1f} s", file=sys.stderr)
    return seconds


def _seconds(command: Sequence[str], folder: str, code: int, *, timeout_s: float = TIMEOUT_S) -> float:
    shown = " ".join(command)
    start = time.perf_counter()
    try:
        done = subprocess.run(
            command, cwd=folder, env=alone(), capture_output=True, text=True, check=False, timeout=timeout_s
        )
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"{shown} has not ended after {timeout_s:g} s; --timeout gives it more") from error
    taken = time.perf_counter() - start
    if done.returncode != code:
        says = done.stderr.strip()[-2000:]
        raise BenchError(f"{shown} ended with {done.returncode}, expected {code}:\n{says}")
    return taken


def report(seconds: dict[str, list[float]], rows: Sequence[Row] = ROWS) -> dict[str, Any]:
    """Give medians, spreads and ratios.

    Args:
        seconds: What `measure` gave.
        rows: What ran.
    """
    imports = statistics.median(seconds["imports"])
    found = []
    for row in rows:
        own, plain = (seconds[f"{which} {row.name}"] for which in ("own", "plain"))
        found.append(
            {
                "command": row.name,
                "lightkit_s": _spread(own),
                "lightning_cli_s": _spread(plain),
                "ratio": round(statistics.median(own) / statistics.median(plain), 3),
                "of_imports": round(statistics.median(own) / imports, 3),
                "reach_s": row.reach_s,
                "reach_of_imports": row.reach_of_imports,
            }
        )
    return {"imports_s": _spread(seconds["imports"]), "rows": found}


def compared(seconds: Mapping[str, Sequence[float]], rows: Sequence[Row] = ROWS) -> list[dict[str, Any]]:
    """Compare each row's two commands: lines of the table in docs/performance.md.

    Args:
        seconds: What `measure` gave.
        rows: What ran.
    """
    lines = []
    for row in rows:
        both = {"lightkit": seconds[f"own {row.name}"], "plain LightningCLI": seconds[f"plain {row.name}"]}
        what = f"`{row.name}`"
        lines.append(comparison(what, both, of="lightkit", to="plain LightningCLI", unit="s", at_most_s=row.reach_s))
        if row.reach_of_imports is not None:
            imports = {**both, "imports": seconds["imports"]}
            reach = row.reach_of_imports
            lines.append(comparison(what, imports, of="lightkit", to="imports", unit="s", at_most=reach))
    return lines


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    each = {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds)}
    return {name: round(value, 4) for name, value in each.items()}


def _table(found: dict[str, Any], repeat: int) -> str:
    lines = [
        f"seconds: median of {repeat} in turn (least to most); one thread, no GPU",
        f"{'':36}{'lightkit':>24}{'plain LightningCLI':>24}{'ratio':>8}{'reach':>16}",
    ]
    for row in found["rows"]:
        reach = f"{row['reach_s']:.2f} s" if row["reach_s"] else ""
        reach = f"{row['reach_of_imports']} x imports" if row["reach_of_imports"] else reach
        both = f"{_shown(row['lightkit_s']):>24}{_shown(row['lightning_cli_s']):>24}"
        lines.append(f"{row['command']:36}{both}{row['ratio']:>8.3f}{reach:>16}")
    last = found["rows"][-1]
    lines.append(f"{'importing what GOOD needs':36}{_shown(found['imports_s']):>24}")
    lines.append(f"--print_config takes {last['of_imports']:.2f} times as long as these imports.")
    lines.append("OWN has its mistake in a class of the user's own, which check imports to tell it, and torch with it.")
    return "\n".join(lines)


def _shown(spread: dict[str, float]) -> str:
    return f"{spread['median']:.2f} ({spread['min']:.2f} to {spread['max']:.2f})"
