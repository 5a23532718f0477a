"""Kill a training at random moments, say the same command again.

Compare what comes of it with one undisturbed.

    python scripts/faults.py                                # 30 kills of a job of 60 seconds
    python scripts/faults.py --kills 5 --seconds 10 --jobs 2
    python scripts/faults.py --seed 123456                  # the same moments once more

Each kill has a folder of its own: the command is started, killed with SIGKILL at a moment between
its start and its end (its process alone, or with all that it has started), and said again. Of the
second it is expected that it ends with 0, that no checkpoint was lost, that weights, optimizer and
metrics equal those of the job that nobody disturbed, bit for bit, and that the job is not left
locked. The exit code is 1 if any of that was not so.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from PIL import Image

from lightkit import runs

COMMAND = (sys.executable, "-m", "lightkit", "fit", "-c", "faults.yaml", "--quiet")
STEPS_AN_EPOCH = 5
EPOCHS = 8
BY_THE_CLOCK = ("epoch_seconds", "samples_per_s")
TIMEOUT_S = 900
SLOWLY = '''\
"""What makes a small training last."""

import time

from pytorch_lightning import Callback


class Slowly(Callback):
    """Lets each step last for some seconds."""

    def __init__(self, seconds: float):
        self.seconds = seconds

    def on_train_batch_start(self, trainer, module, batch, index):
        time.sleep(self.seconds)
'''


@dataclass(frozen=True)
class Kill:
    """One kill to come.

    Args:
        number: Counted from 1.
        moment: Part of the job's time after which it comes, from 0 to 1.
        of_group: Whether all that the command has started is killed with it.
    """

    number: int
    moment: float
    of_group: bool


@dataclass(frozen=True)
class Length:
    """How long the job takes that nobody disturbs.

    Args:
        start_s: Seconds until its first record.
        whole_s: Seconds until its end.
    """

    start_s: float
    whole_s: float


@dataclass(frozen=True)
class Outcome:
    """What came of a kill.

    Args:
        kill: The kill.
        moment: When it came, and what had been recorded last.
        broken: The promises that were broken, in words.
    """

    kill: Kill
    moment: str
    broken: list[str]


def prepare(place: Path, *, seconds: float) -> Path:
    """Write a job of about so many seconds into a folder of its own."""
    place.mkdir(parents=True)
    (place / "slowly.py").write_text(SLOWLY, encoding="utf-8")
    # five seconds or so are gone before the first step
    pause_s = max(0.0, seconds - 5) / (EPOCHS * STEPS_AN_EPOCH)
    job = {
        "seed_everything": 7,
        "model": {"class_path": "ImageClassifier", "init_args": {"learning_rate": 0.01}},
        "data": {
            "class_path": "ImageFolder",
            "init_args": {
                "root": "pictures",
                "image_size": 32,
                "batch_size": 8,
                "num_workers": 1,
                "color_jitter": 0.3,
            },
        },
        "optimizer": {"class_path": "AdamW", "init_args": {"lr": 0.01}},
        "callbacks": {
            "checkpoint": {"init_args": {"save_last_every_n_steps": 2}},
            "slowly": {"class_path": "slowly.Slowly", "init_args": {"seconds": round(pause_s, 4)}},
        },
        "trainer": {
            "accelerator": "cpu",
            "max_epochs": EPOCHS,
            "log_every_n_steps": 1,
            "logger": False,
        },
    }
    (place / "faults.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
    dice = np.random.default_rng(5)
    for index in range(60):
        path = place / "pictures" / ("reds", "blues")[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = dice.integers(0, 160, (40, 40, 3), dtype=np.uint8)
        pixels[8:32, 8:32, (0, 2)[index % 2]] += 40
        Image.fromarray(pixels).save(path)
    return place


def start(place: Path) -> subprocess.Popen[str]:
    """Start the command in a session of its own."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        COMMAND,
        cwd=place,
        env=environ,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(place: Path) -> str | None:
    """Say the command and wait for its end; give what is wrong with it, if anything is."""
    with start(place) as process:
        try:
            _, said = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return f"the same command has not ended within {TIMEOUT_S} s"
    return (
        None
        if process.returncode == 0
        else f"the same command ended with {process.returncode}: {said.strip()[-500:]}"
    )


def strike(kill: Kill, place: Path, length: Length) -> str:
    """Start the command and kill it at its moment; tell when, and what it had recorded last.

    Args:
        kill: The kill.
        place: Folder of the job.
        length: How long the job takes that nobody disturbs.
    """
    after_s = kill.moment * length.whole_s
    with start(place) as process:
        try:
            # counted from the first record on, for machines are not always equally busy
            if after_s > length.start_s:
                while process.poll() is None and not any(recorded(place)):
                    time.sleep(0.02)
                after_s -= length.start_s
            process.wait(timeout=after_s)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                (os.killpg if kill.of_group else os.kill)(process.pid, signal.SIGKILL)
            process.wait()
        process.stderr.close()  # type: ignore[union-attr]
    last = next(reversed([event["event"] for event in recorded(place)]), "nothing")
    whom = "the group" if kill.of_group else "the process"
    how = (
        f"killed {whom}"
        if process.returncode == -signal.SIGKILL
        else f"ended with {process.returncode} before it"
    )
    return f"at {kill.moment:6.1%} of the job: {how}; recorded last: {last}"


def recorded(place: Path) -> Iterator[dict[str, Any]]:
    """Give the events of all runs of a folder."""
    for run in reversed(runs.list_runs(place / "runs", "faults")):
        yield from runs.read_events(run.events_path)


def broken_promises(place: Path, whole: Path, *, saved: int | None) -> list[str]:
    """Compare what the second command left with the job that nobody disturbed.

    Args:
        place: Folder of the job that was killed.
        whole: Folder of the other one.
        saved: Steps in the newest checkpoint that the killed process had recorded; None where it
            had come to its end, so that the same command would begin another run.
    """
    run, other = (runs.find("faults", folder / "runs") for folder in (place, whole))
    broken = []
    if (runs.read_json(run.summary_path) or {}).get("status") != "done":
        broken.append("its summary does not say done")
    resumed = [event["step"] for event in recorded(place) if event["event"] == "resume"]
    if saved and max(resumed, default=0) < saved:
        broken.append(
            f"a checkpoint was lost: {saved} steps were saved, and it went on from"
            f" {max(resumed, default=0)}"
        )
    paths = (run.checkpoints / "last.ckpt", run.checkpoints / "best.ckpt")
    broken += [
        f"{path.name} is not whole" for path in paths if not path.is_file() or runs.find_fault(path)
    ]
    if not broken:
        broken += differences(run, other)
    if runs.lock_holder(place / "runs", "faults") is not None:
        broken.append("it is left locked")
    if left := [path.name for path in place.glob("runs/faults/**/.*") if saved is not None]:
        broken.append(f"something is left half written: {', '.join(left)}")
    return broken


def differences(run: runs.Run, other: runs.Run) -> list[str]:
    """List in what two trainings differ."""
    one, two = (
        torch.load(each.checkpoints / "last.ckpt", weights_only=True) for each in (run, other)
    )
    keys = ("epoch", "global_step", "state_dict", "optimizer_states")
    differing = [f"{key} differs" for key in keys if not equal(one[key], two[key])]
    return differing + (["metrics.csv differs"] if rows(run) != rows(other) else [])


def equal(one: Any, other: Any) -> bool:
    """Tell whether two nests of containers and tensors are the same, bit for bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(
            equal(value, other[key]) for key, value in one.items()
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def rows(run: runs.Run) -> list[dict[str, str]]:
    """Give metrics.csv without what depends on the clock."""
    with run.metrics_path.open(encoding="utf-8", newline="") as file:
        return [
            {name: value for name, value in row.items() if name not in BY_THE_CLOCK}
            for row in csv.DictReader(file)
        ]


def played(kill: Kill, whole: Path, *, seconds: float, length: Length) -> Outcome:
    """Kill, say the command again, and compare.

    Args:
        kill: The kill.
        whole: Folder of the job that nobody disturbed; the others are beside it.
        seconds: How long the job is to take.
        length: How long the other one took.
    """
    place = prepare(whole.with_name(f"killed-{kill.number}"), seconds=seconds)
    moment = strike(kill, place, length)
    before = list(recorded(place))
    saved = max((event["step"] for event in before if event["event"] == "checkpoint"), default=0)
    # the moment was after it: there is nothing to go on with
    if any(event["event"] == "end" for event in before):
        return Outcome(kill, moment, broken_promises(place, whole, saved=None))
    failed = finish(place)
    return Outcome(kill, moment, [failed] if failed else broken_promises(place, whole, saved=saved))


def main(words: list[str] | None = None) -> int:
    """Kill as often as asked, print a line a kill and the result.

    The exit code is 1 if a promise was broken.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=30, help="number of kills (30)")
    parser.add_argument(
        "--seed", type=int, default=None, help="of the moments; drawn and printed if not given"
    )
    parser.add_argument("--seconds", type=float, default=60, help="length of the job (60)")
    parser.add_argument("--jobs", type=int, default=1, help="kills under way at the same time (1)")
    parser.add_argument("--keep", type=Path, default=None, help="folder to work in and to keep")
    asked = parser.parse_args(words)
    seed = random.SystemRandom().randrange(10**6) if asked.seed is None else asked.seed
    dice = random.Random(seed)  # noqa: S311 (moments, no secrets)
    # One moment from each part of the job, so that none is left out: not a coin for each, but a
    # shuffled deck.
    parts = dice.sample(range(asked.kills), asked.kills)
    kills = [
        Kill(number, (part + dice.random()) / asked.kills, dice.random() < 0.5)
        for number, part in enumerate(parts, 1)
    ]
    folder = asked.keep or Path(tempfile.mkdtemp(prefix="lightkit-faults-"))
    try:
        return judge_kills(
            kills, folder / "whole", seed=seed, seconds=asked.seconds, jobs=asked.jobs
        )
    finally:
        if asked.keep is None:
            shutil.rmtree(folder, ignore_errors=True)


def judge_kills(kills: list[Kill], whole: Path, *, seed: int, seconds: float, jobs: int) -> int:
    """Play all kills, tell of each, and give the exit code."""
    print(f"seed {seed}", flush=True)
    prepare(whole, seconds=seconds)
    began_s, began = time.monotonic(), datetime.now(UTC)
    if failed := finish(whole):
        print(f"the job that nobody disturbed failed: {failed}")
        return 1
    first = datetime.fromisoformat(next(recorded(whole))["time"])
    length = Length((first - began).total_seconds(), time.monotonic() - began_s)
    print(
        f"undisturbed: {length.whole_s:.1f} s, of which {length.start_s:.1f} s to the first record",
        flush=True,
    )
    outcomes = []
    with ThreadPoolExecutor(jobs) as pool:
        for played_out in as_completed(
            [pool.submit(played, kill, whole, seconds=seconds, length=length) for kill in kills]
        ):
            outcomes.append(outcome := played_out.result())
            verdict = "; ".join(outcome.broken) or "the same command ended it, with equal weights"
            print(f"kill {outcome.kill.number:2} {outcome.moment}: {verdict}", flush=True)
    kept = sum(not outcome.broken for outcome in outcomes)
    result = {
        "kills": len(kills),
        "kept": kept,
        "seed": seed,
        "seconds": round(time.monotonic() - began_s),
    }
    print(json.dumps(result))
    return 0 if kept == len(kills) else 1


if __name__ == "__main__":
    sys.exit(main())
