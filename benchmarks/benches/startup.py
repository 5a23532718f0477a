"""Seconds of help, configs with errors and `--print_config`, compared with a plain LightningCLI.

Both do the same in turn, so that what else the machine does falls on both alike. Times are of whole
processes, on the CPU, with one thread.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benches.command_line import create_parser, parse_options, run_bench
from benches.environment import build_environment
from benches.rounds import BenchError, compare, run_rounds

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
OWN = (
    "model: {class_path: own_class.Net, init_args: {hiden: 3}}\ndata: lightkit.data.Temperatures\n"
)
FILES = {
    "plain.py": PLAIN,
    "good.yaml": GOOD,
    "bad.yaml": BAD,
    "own_class.py": OWN_CLASS,
    "own.yaml": OWN,
}
TIMEOUT_S = 120.0
LIGHTKIT, PLAIN_CLI = "lightkit", "plain LightningCLI"
IMPORTS = "import torch, pytorch_lightning, jsonargparse, lightkit.models, lightkit.data"


@dataclass(frozen=True)
class Row:
    """One thing that both do.

    Args:
        name: What it is.
        own: Words after `lightkit`.
        plain: Words after the script that calls LightningCLI.
        code: Exit code of both.
        target_s: Seconds to reach; None where it is a ratio to the imports, or nothing.
        target_of_imports: Ratio to the imports to reach; None where it is seconds, or nothing.
    """

    name: str
    own: tuple[str, ...]
    plain: tuple[str, ...]
    code: int = 0
    target_s: float | None = None
    target_of_imports: float | None = None


ROWS = (
    Row("lightkit --help", ("--help",), ("--help",), target_s=0.10),
    Row("lightkit fit --help", ("fit", "--help"), ("fit", "--help"), target_s=0.30),
    Row(
        "lightkit check -c BAD",
        ("check", "-c", "bad.yaml"),
        ("fit", "-c", "bad.yaml"),
        code=2,
        target_s=0.30,
    ),
    # A class that no catalogue knows has to be imported, and torch with it, before its errors can
    # be found.
    Row(
        "lightkit check -c OWN (own class)",
        ("check", "-c", "own.yaml"),
        ("fit", "-c", "own.yaml"),
        code=2,
    ),
    Row(
        "lightkit fit --print_config -c GOOD",
        ("fit", "--print_config", "-c", "good.yaml"),
        ("fit", "-c", "good.yaml", "--print_config"),
        target_of_imports=1.1,
    ),
)


def run(words: Sequence[str]) -> int:
    """Measure, print a table or JSON, and return the exit code.

    Args:
        words: See `--help`.
    """
    parser = create_parser("startup", __doc__, repeat=10)
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT_S, help="seconds for each command (default: 120)"
    )
    options = parse_options(parser, words)
    return run_bench(
        "startup", options, lambda: measure(options.repeat, timeout_s=options.timeout), threads=1
    )


def measure(repeat: int, *, timeout_s: float) -> dict[str, Any]:
    """Run each command in turn with all the others.

    Args:
        repeat: How often each runs, after a first time that fills the file system's cache and is
            not counted.
        timeout_s: Seconds that each may take.

    Returns:
        Comparisons, and all rounds in seconds.

    Raises:
        BenchError: If a command ends with another exit code than it should, or not in time.
    """
    commands: dict[str, tuple[tuple[str, ...], int]] = {
        "imports": ((sys.executable, "-c", IMPORTS), 0)
    }
    for row in ROWS:
        commands[f"own {row.name}"] = ((sys.executable, "-m", "lightkit", *row.own), row.code)
        commands[f"plain {row.name}"] = ((sys.executable, "plain.py", *row.plain), row.code)
    with tempfile.TemporaryDirectory() as folder:
        for name, text in FILES.items():
            Path(folder, name).write_text(text, encoding="utf-8")
        contestants = {
            name: lambda _, command=command, code=code: _time_command(
                command, folder, code, timeout_s=timeout_s
            )
            for name, (command, code) in commands.items()
        }
        rounds = run_rounds(contestants, repeat=repeat, warm_up=1, title="startup")
    lines = []
    for row in ROWS:
        own, plain, title = f"own {row.name}", f"plain {row.name}", f"`{row.name}`"
        seconds = {LIGHTKIT: rounds[own], PLAIN_CLI: rounds[plain], "imports": rounds["imports"]}
        lines.append(
            compare(title, seconds, of=LIGHTKIT, to=PLAIN_CLI, unit="s", at_most_s=row.target_s)
        )
        if row.target_of_imports is not None:
            lines.append(
                compare(
                    title,
                    seconds,
                    of=LIGHTKIT,
                    to="imports",
                    unit="s",
                    at_most=row.target_of_imports,
                )
            )
    notes = [
        "OWN has its error in a class of the user's own, which check imports, and torch with it."
    ]
    return {"comparisons": lines, "rounds": rounds, "notes": notes}


def _time_command(command: Sequence[str], folder: str, code: int, *, timeout_s: float) -> float:
    text = " ".join(command)
    start = time.perf_counter()
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=build_environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired as error:
        raise BenchError(
            f"{text} has not ended after {timeout_s:g} s; --timeout gives it more"
        ) from error
    taken = time.perf_counter() - start
    if done.returncode != code:
        errors = done.stderr.strip()[-2000:]
        raise BenchError(f"{text} ended with {done.returncode}, expected {code}:\n{errors}")
    return taken
