"""A trial in a tenth of a second: a process that leaves a fit's run folder, without torch.

As a program it is ``lightkit`` whose trials are such processes, forks of the sweep's::

    python tests/sweep/stand_in.py sweep -c config.yaml

The loss of a trial depends on ``model.learning_rate``, ``model.hidden`` and the seed. A value of
``model.weight_decay`` above 1 says how it goes wrong: see `_WRONG`. The trial that the file `HELD`
names waits before its second epoch until that file is gone, or the trial is asked to end.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from lightkit import runs
from lightkit.errors import MAKE_ROOM
from lightkit.runs.trial import FACTS, VERDICT

EPOCHS = 4
HELD = "held.txt"
_WRONG = dict(
    enumerate(
        (
            *("crash", "nan", "killed once", "config", "hang", "data", "killed", "preempted once"),
            *("preempted", "killed before its first epoch", "killed with its sweep"),
            "full disk once",
        ),
        2,
    )
)


# -- the trial -------------------------------------------------------------------------------------


def _read_options(words: Sequence[str]) -> dict[str, str]:
    return dict(
        word.removeprefix("--").split("=", 1)
        for word in words
        if word.startswith("--") and "=" in word
    )


class _Training:
    def __init__(self, words: Sequence[str]) -> None:
        self.options = _read_options(words)
        layer = Path(words[max(at for at, word in enumerate(words) if word == "-c") + 1])
        self.params = yaml.safe_load(layer.read_text(encoding="utf-8")) or {}
        self.waits = "--trial-waits" in words
        self.wrong = _WRONG.get(self.params.get("model.weight_decay", 0), "")
        self.is_asked = False
        signal.signal(signal.SIGTERM, self._note)
        parent = os.getppid()
        self.parent = parent

    def is_orphan(self) -> bool:
        # 1: the parent was gone before this process looked for it
        return os.getppid() == 1 or os.getppid() != self.parent

    def _note(self, *_: object) -> None:
        self.is_asked = True

    def loss(self, epoch: int) -> float:
        rate = float(self.params.get("model.learning_rate", 0.01))
        hidden = float(self.params.get("model.hidden", 32))
        seed = float(self.options.get("seed_everything", 0))
        least = abs(math.log10(rate) + 2.5) + (hidden - 16) ** 2 / 1000 + 0.01 * math.sin(seed)
        return least + 1 / (epoch + 1)

    def run(self) -> int:
        resume = self.options["run.resume"]
        name = self.options["run.name"]
        root = self.options.get("run.root", "runs")
        run = runs.create(root, name) if resume == "never" else runs.open_run(resume)
        done = len(runs.read_json(run.folder / "state.json") or {})
        if resume == "never":
            trial = self.options["trial"]
            runs.write_json(
                run.manifest_path, {"subcommand": "fit", "fast_dev_run": False, "trial": trial}
            )
            runs.write_json(
                run.folder / FACTS, {"params": int(self.params.get("model.hidden", 32)) * 10}
            )
        with Path("trained.txt").open("a", encoding="utf-8") as file:
            file.write(f"{self.options['trial']} from {done}\n")
        marker = Path("killed.txt")
        if (
            self.wrong in ("killed before its first epoch", "killed with its sweep")
            and not marker.exists()
        ):
            marker.touch()
            if self.wrong == "killed with its sweep":
                os.kill(self.parent, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        return self.train(run, done)

    def train(self, run: runs.Run, done: int) -> int:
        events = runs.EventStream(run.events_path)
        summary = runs.new_summary(f"{run.name}/{run.id}")
        losses: dict[str, float] = dict(runs.read_json(run.folder / "state.json") or {})
        pace_s = float(os.environ.get("STAND_IN_S", "0"))
        for epoch in range(done, EPOCHS):
            if epoch == 1:
                self.hold()
                self.go_wrong(run)
            time.sleep(pace_s)
            losses[str(epoch)] = math.nan if self.wrong == "nan" else self.loss(epoch)
            events.write(
                "epoch",
                epoch=epoch,
                step=epoch,
                metrics={"val/loss": losses[str(epoch)]},
                seconds=0.0,
            )
            runs.write_json(run.folder / "state.json", losses)
            (run.checkpoints).mkdir(exist_ok=True)
            self.save(run)
            if self.is_stopped(run, epoch):
                break
            if self.is_asked or self.is_orphan():
                runs.write_summary(
                    run.summary_path, {**summary, "status": "preempted", "exit_code": 75}
                )
                print("error: interrupted")
                return 75
        finite = {int(epoch): value for epoch, value in losses.items() if value is not None}
        best = min(finite, key=lambda epoch: finite[epoch], default=None)
        value = None if best is None else finite[best]
        summary |= {"status": "done", "exit_code": 0, "modes": {"val/loss": "min"}}
        summary["best"] = {
            "monitor": "val/loss",
            "mode": "min",
            "value": value,
            "epoch": best,
            "step": best,
        }
        summary["metrics"] = {
            "best": {"val/loss": value, "val/mae": value},
            "last": {"val/loss": value},
        }
        runs.write_summary(run.summary_path, summary)
        return 0

    def save(self, run: runs.Run) -> None:
        path = run.checkpoints / "last.ckpt"
        path.write_bytes(b"weights")
        runs.sidecar(path).write_text(f"{runs.digest(path)}  {path.name}\n", encoding="utf-8")

    def is_stopped(self, run: runs.Run, epoch: int) -> bool:
        while True:
            verdict = runs.read_json(run.folder / VERDICT) or {}
            if verdict.get("stop") and verdict["epoch"] <= epoch:
                return True
            if (
                verdict.get("epoch", -1) >= epoch
                or not self.waits
                or self.is_asked
                or self.is_orphan()
            ):
                return False
            time.sleep(0.002)

    def hold(self) -> None:
        while not (self.is_asked or self.is_orphan()):
            try:
                held = Path(HELD).read_text(encoding="utf-8")
            except FileNotFoundError:
                return
            if held != self.options["trial"]:
                return
            time.sleep(0.02)

    def go_wrong(self, run: runs.Run) -> None:
        if self.wrong == "crash":
            print("error: ValueError: batches are out of stock")
            sys.exit(1)
        marker = run.folder / "killed"
        if self.wrong == "full disk once" and not marker.exists():
            marker.touch()
            print(f"error: No space left on device: last.ckpt cannot be written. {MAKE_ROOM}.")
            sys.exit(1)
        if self.wrong in ("config", "data"):
            print(f"error: the {self.wrong} is wrong")
            sys.exit(2 if self.wrong == "config" else 3)
        if self.wrong == "hang":
            print("error: nothing was finished for 60 s")
            sys.exit(70)
        if self.wrong == "preempted" or (self.wrong == "preempted once" and not marker.exists()):
            marker.touch()
            print("error: the tracker is away")
            sys.exit(75)
        if self.wrong == "killed" or (self.wrong == "killed once" and not marker.exists()):
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def _test(words: Sequence[str]) -> int:
    run = runs.open_run(_read_options(words)["run"])
    summary = runs.read_summary(run.summary_path)
    assert summary is not None
    summary["stages"] = {"test": {"test/loss": summary["best"]["value"] + 0.1}}
    runs.write_summary(run.summary_path, summary)
    return 0


def main(words: list[str]) -> int:
    """Be a trial, or a lightkit with such trials."""
    if words[0] == "--trial":
        return _Training(words[2:]).run() if words[1] == "fit" else _test(words[2:])
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from lightkit.commands import sweep
    from lightkit.main import main as run_lightkit
    from tests.sweep.stand_in_processes import StandInProcesses

    sweep.StageProcesses = StandInProcesses  # type: ignore[attr-defined]
    return run_lightkit(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))


def read_lines(folder: Path) -> list[dict[str, Any]]:
    """Read the record of the one sweep below a folder, without times, runs and durations."""
    (path,) = folder.glob("sweeps/*/trials.jsonl")
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [
        {key: value for key, value in line.items() if key not in ("time", "run", "seconds")}
        for line in lines
    ]
