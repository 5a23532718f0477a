"""Seconds from the start of a process to the end of its first optimizer step.

Of lightkit and of a hand-written script.

Both train ResNet-18 on the same photos, with the same batch, size, threads and loading processes.
lightkit does what it does by default on the way: it reads the config, makes the run's folder,
writes the manifest and looks at each photo (once, and keeps what it found). The target is that of a
training from the second run on, which knows the photos; one that has never seen them has a row of
its own, as has one that validates two batches before it begins, as Lightning does unless
`trainer.num_sanity_val_steps` is 0 as in configs/base.yaml. Rows without a target are only
reported.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from benches.command_line import create_parser, parse_options, run_bench
from benches.environment import build_environment
from benches.gated_training import LIGHTKIT
from benches.photo_data import find_photos
from benches.rounds import BenchError, compare, run_rounds

SCRIPT, IMPORTS = "hand-written script", "imports of torch, torchvision, Lightning"
CHECKED, FIRST_TIME = f"{LIGHTKIT} with a sanity check", f"{LIGHTKIT}, photos never seen"
TARGET = 1.25
LIMIT_S = 180.0


def run(words: Sequence[str]) -> int:
    """Measure, print a table or JSON, and return the exit code.

    Args:
        words: See `--help`.
    """
    parser = create_parser("first_step", __doc__, repeat=3)
    parser.add_argument("--photos", type=Path, metavar="FOLDER", help="one folder a class")
    parser.add_argument(
        "--workers", type=int, default=0, help="loading processes of all (default: 0)"
    )
    parser.add_argument("--threads", type=int, default=2, help="intra-op threads (default: 2)")
    options = parse_options(parser, words)
    options.photos = find_photos(parser, options.photos)
    return run_bench("first_step", options, lambda: measure(options), threads=options.threads)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Start each contestant in turn.

    Args:
        options: The command line.

    Returns:
        Comparisons, and all rounds in seconds.
    """
    with tempfile.TemporaryDirectory(prefix="lightkit-bench-") as root:
        start = Start(Path(root), options)
        contestants: dict[str, Callable[[int], float]] = {
            SCRIPT: start.run_script,
            LIGHTKIT: start.run_lightkit,
        }
        if not options.quick:
            contestants |= {
                IMPORTS: start.time_imports,
                CHECKED: start.run_with_sanity_check,
                FIRST_TIME: start.run_first_time,
            }
        # so that what it keeps of the photos is there, as from the second run on
        start.run_lightkit(options.seed)
        rounds = run_rounds(contestants, repeat=options.repeat, seed=options.seed)
    return {
        "comparisons": list_comparisons(rounds),
        "rounds": rounds,
        "settings": {"workers": options.workers},
    }


def list_comparisons(rounds: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """Compare what was measured.

    Args:
        rounds: Seconds by contestant, round by round.
    """
    title = "to the first optimizer step, ResNet-18"
    known = f"{title}, from the second run on (photos known)"
    lines = [compare(known, rounds, of=LIGHTKIT, to=SCRIPT, unit="s", at_most=TARGET)]
    if FIRST_TIME in rounds:
        lines.append(compare(f"{title}, the first run", rounds, of=FIRST_TIME, to=SCRIPT, unit="s"))
    others = [name for name in rounds if name not in (LIGHTKIT, SCRIPT, FIRST_TIME)]
    return lines + [compare(known, rounds, of=LIGHTKIT, to=name, unit="s") for name in others]


class Start:
    """Starts the contestants.

    Args:
        root: Folder that is theirs.
        options: The command line.
    """

    def __init__(self, root: Path, options: argparse.Namespace) -> None:
        self._root, self._options, self._count = root, options, 0

    def run_script(self, seed: int) -> float:
        """Return the seconds of the hand-written script."""
        counts = {
            "--workers": self._options.workers,
            "--threads": self._options.threads,
            "--seed": seed,
        }
        words = [str(word) for pair in counts.items() for word in pair]
        return self._time_first_step(
            ["-m", "benches.first_step_loop", str(self._options.photos), *words]
        )

    def run_lightkit(self, seed: int) -> float:
        """Return those of lightkit, which has seen the photos before."""
        return self._time_first_step(["-m", "lightkit", "fit", "-c", self._write_config(seed)])

    def run_with_sanity_check(self, seed: int) -> float:
        """Return those of lightkit that validates two batches before."""
        return self._time_first_step(
            ["-m", "lightkit", "fit", "-c", self._write_config(seed, num_sanity_val_steps=2)]
        )

    def run_first_time(self, seed: int) -> float:
        """Return those of lightkit on photos that it has never seen."""
        with tempfile.TemporaryDirectory(dir=self._root) as cache:
            return self._time_first_step(
                ["-m", "lightkit", "fit", "-c", self._write_config(seed)], cache=cache
            )

    def time_imports(self, _: int) -> float:
        """Return those of the imports that Lightning and torchvision are."""
        start = time.monotonic()
        names = "torch, torchvision, pytorch_lightning, torchmetrics"
        environment = build_environment(self._options.threads)
        subprocess.run(
            [sys.executable, "-c", f"import {names}"],
            env=environment,
            check=True,
            capture_output=True,
        )
        return time.monotonic() - start

    def _write_config(self, seed: int, **trainer: Any) -> str:
        data = {"root": str(self._options.photos), "batch_size": 32, "image_size": 224}
        sections: Mapping[str, Any] = {
            "seed_everything": seed,
            "model": {"class_path": "ImageClassifier", "init_args": {"backbone": "resnet18"}},
            "data": {
                "class_path": "ImageFolder",
                "init_args": {**data, "num_workers": self._options.workers},
            },
            "optimizer": {
                "class_path": "benches.first_step_loop.TimedSGD",
                "init_args": {"lr": 0.01},
            },
            "trainer": {
                "max_epochs": 1,
                "accelerator": "cpu",
                "num_sanity_val_steps": 0,
                **trainer,
            },
            "run": {"resume": "never"},
        }
        file = self._root / f"bench{len(trainer)}.yaml"
        file.write_text(yaml.safe_dump(sections), encoding="utf-8")
        return str(file)

    def _time_first_step(self, words: Sequence[str], *, cache: str | None = None) -> float:
        """Start a program and end it after its first step."""
        self._count += 1
        moment = self._root / f"moment-{self._count}"
        own = {"BENCH_MOMENT": str(moment), "XDG_CACHE_HOME": cache or str(self._root / "cache")}
        with tempfile.TemporaryFile() as output:
            start = time.monotonic()
            process = subprocess.Popen(
                [sys.executable, *words], cwd=self._root,
                env={**build_environment(self._options.threads), **own}, stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
            try:
                while not moment.exists():
                    if process.poll() is not None or time.monotonic() - start > LIMIT_S:
                        output.seek(0)
                        said = output.read().decode(errors="replace").strip()[-3000:]
                        raise BenchError(
                            f"{' '.join(words[:3])} made no step ({process.poll()}):\n{said}"
                        )
                    time.sleep(0.02)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return float(moment.read_text(encoding="ascii")) - start
