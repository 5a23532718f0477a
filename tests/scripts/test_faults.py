"""scripts/faults.py: five kills keep all promises, and a broken promise is reported."""

from __future__ import annotations

import json
import random
import runpy
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit import runs

HERE = Path(__file__).parents[2]
SCRIPT = HERE / "scripts" / "faults.py"


@pytest.mark.long
@pytest.mark.timeout(1500)  # on a busy machine
def test_five_kills_at_random_moments_keep_all_promises(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(10**6)
    words = [
        "--kills",
        "5",
        "--seconds",
        "8",
        "--jobs",
        "2",
        "--seed",
        str(seed),
        "--keep",
        str(tmp_path / "kept"),
    ]
    ended = subprocess.run(
        [sys.executable, str(SCRIPT), *words], capture_output=True, text=True, check=False, cwd=HERE
    )
    print(ended.stdout, ended.stderr)
    lines = ended.stdout.splitlines()
    assert lines[0] == f"seed {seed}"
    assert len([line for line in lines if line.startswith("kill ")]) == 5
    result = json.loads(lines[-1])
    assert (result["kills"], result["kept"], result["seed"]) == (5, 5, seed)
    assert ended.returncode == 0, ended.stderr


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def _write(content: dict[str, Any], file: Path) -> str:
    torch.save(content, file)
    return runs.digest(file)


def _place(folder: Path) -> Path:
    """What a job leaves that was resumed from its fourth step and has ended."""
    run = runs.create(folder / "runs", "faults")
    run.checkpoints.mkdir()
    content = {
        "epoch": 1,
        "global_step": 8,
        "state_dict": {"w": torch.ones(2)},
        "optimizer_states": [{"step": 8}],
    }
    for name in ("last.ckpt", "best.ckpt"):
        runs.write_aside(run.checkpoints / name, partial(_write, content))
    run.metrics_path.write_text("epoch,val/loss,epoch_seconds\n0,1.5,2.0\n", encoding="utf-8")
    runs.write_summary(run.summary_path, {**runs.new_summary("faults/1"), "status": "done"})
    events = runs.EventStream(run.events_path)
    events.write(
        "resume",
        run="faults/1",
        stage="fit",
        checkpoint="last.ckpt",
        epoch=0,
        step=4,
        folder=str(run.folder),
    )
    runs.point_latest(run)
    return folder


def _weigh(run: runs.Run) -> None:
    content = torch.load(run.checkpoints / "last.ckpt", weights_only=True)
    content["state_dict"]["w"][1] += 1e-7
    runs.write_aside(run.checkpoints / "last.ckpt", partial(_write, content))


BREAKS: dict[str, tuple[Callable[[runs.Run], object], str]] = {
    "not_done": (
        lambda run: runs.write_summary(run.summary_path, runs.new_summary("faults/1")),
        "its summary does not say done",
    ),
    "other_weights": (_weigh, "state_dict differs"),
    "other_metrics": (
        lambda run: run.metrics_path.write_text("epoch,val/loss\n0,1.6\n"),
        "metrics.csv differs",
    ),
    "cut_off": (
        lambda run: (run.checkpoints / "best.ckpt").write_bytes(b"PK"),
        "best.ckpt is not whole",
    ),
    "half_written": (
        lambda run: (run.checkpoints / ".last.ckpt.1.aside").touch(),
        "something is left half written: .last.ckpt.1.aside",
    ),
    "locked": (lambda run: runs.Lock(run.root, run.name).acquire(), "it is left locked"),
}


def test_what_is_as_it_should_be_breaks_no_promise(script: dict[str, Any], tmp_path: Path) -> None:
    killed, whole = _place(tmp_path / "killed"), _place(tmp_path / "whole")
    assert script["broken_promises"](killed, whole, saved=4) == []


def test_a_checkpoint_that_was_lost_is_reported(script: dict[str, Any], tmp_path: Path) -> None:
    killed, whole = _place(tmp_path / "killed"), _place(tmp_path / "whole")
    (broken,) = script["broken_promises"](killed, whole, saved=6)
    assert broken == "a checkpoint was lost: 6 steps were saved, and it went on from 4"


@pytest.mark.parametrize(("damage", "says"), BREAKS.values(), ids=BREAKS)
def test_a_broken_promise_is_reported(
    script: dict[str, Any], damage: Callable[[runs.Run], object], says: str, tmp_path: Path
) -> None:
    killed, whole = _place(tmp_path / "killed"), _place(tmp_path / "whole")
    damage(runs.find("faults", killed / "runs"))
    assert says in script["broken_promises"](killed, whole, saved=4)


def test_the_same_seed_gives_the_same_moments(
    script: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []

    def note_kills(kills: Any, *_: object, **__: object) -> int:
        drawn.append(kills)
        return 0

    monkeypatch.setitem(script["main"].__globals__, "judge_kills", note_kills)
    for seed in ("7", "7", "8"):
        assert script["main"](["--kills", "30", "--seed", seed]) == 0
    assert drawn[0] == drawn[1] != drawn[2]
    assert len({int(kill.moment * 30) for kill in drawn[0]}) == 30, (
        "each part of the job has its kill"
    )
