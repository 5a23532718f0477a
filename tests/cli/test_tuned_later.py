"""A config with `auto` under the commands that repeat, leave out or limit a training."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from lightkit.cli import tuned
from lightkit.runs import read_events
from tests.cli.conftest import House, read_json

pytestmark = pytest.mark.long

AUTOS = """\
extends: small.yaml
data: {class_path: my_seen.Seen, init_args: {file: small.yaml}}
optimizer: {class_path: SGD, init_args: {lr: 0.02}}
accelerator: {precision: auto, memory_format: auto, batch_size: auto, learning_rate: auto}
"""


@pytest.fixture
def autos(house: House) -> House:
    seen = "def __init__(self, file: str, batch_size: int = 4):\n        super().__init__(batch_size)\n"
    house.write("my_seen.py", f"from my_models import Points\n\n\nclass Seen(Points):\n    {seen}")
    house.write("auto.yaml", AUTOS)
    return house


def _events(run: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_events(run / "events.jsonl") if event["event"] == kind]


def _weights_equal(first: Path, second: Path) -> bool:
    states = [torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"] for run in (first, second)]
    return all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_a_reproduction_measures_nothing_and_gives_the_same_weights(autos: House) -> None:
    run = autos.fit("-c", "auto.yaml")
    done = autos("reproduce", str(run))
    assert done.code == 0, done.err
    assert "tuned  " not in done.err
    (again,) = [folder for folder in autos.runs if folder.parent.name.endswith("-reproduced")]
    assert _events(again, "tune") == []
    assert _weights_equal(run, again)


def test_a_replay_of_a_found_batch_size_and_rate_gives_the_same_weights(autos: House) -> None:
    run = autos.fit("-c", "auto.yaml")
    replay = autos.fit("-c", str(run / "config.yaml"), "--run.name=replay")
    assert _events(replay, "tune") == []
    assert _weights_equal(run, replay)


def test_nothing_has_changed_though_the_saved_config_has_choices_in_place_of_autos(autos: House) -> None:
    words = ("fit", "-c", "auto.yaml", "--if-changed")
    for code in (0, 6):
        done = autos(*words)
        assert done.code == code, done.err
    assert len(autos.runs) == 1
    changed = autos(*words, "--accelerator.memory_format=contiguous")
    assert changed.code == 0, changed.err
    assert "accelerator.memory_format" in changed.err


def test_a_training_with_a_deadline_has_little_time_to_measure(autos: House, monkeypatch: pytest.MonkeyPatch) -> None:
    moment = datetime.now(timezone.utc)
    budgets: list[float] = []
    budget_of = tuned.MeasuredAutos._budget_s

    class Standing(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return moment.astimezone(tz)

    def noted(self: tuned.MeasuredAutos) -> float:
        budgets.append(budget_of(self))
        return budgets[-1]

    monkeypatch.setattr(tuned, "datetime", Standing)
    monkeypatch.setattr(tuned.MeasuredAutos, "_budget_s", noted)
    soon = moment + timedelta(seconds=400)
    done = autos("fit", "-c", "auto.yaml", f"--deadline={soon.isoformat()}")
    assert done.code == 0, done.err
    assert budgets == [pytest.approx(0.05 * 400)]
    assert read_json(autos.runs[-1] / "summary.json")["status"] == "done"


@pytest.mark.slow
def test_retrains_take_what_was_measured_before(autos: House) -> None:
    chosen = json.loads(autos("tune", "-c", "auto.yaml", "--json").out)["chosen"]
    for _ in range(2):
        done = autos("retrain", "-c", "auto.yaml", "--skip=test", "--skip=export")
        assert done.code == 0, done.err
    told = [_events(run, "tune")[0] for run in autos.runs]
    assert [(event["source"], event["chosen"]) for event in told] == [("cache", chosen)] * 2
    configs = [yaml.safe_load((run / "config.yaml").read_text()) for run in autos.runs]
    assert configs[0] == configs[1]
    assert _weights_equal(*autos.runs)
