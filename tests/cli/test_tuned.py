"""What `fit` makes of `auto` in the section `accelerator`: chosen once, kept, and the same training as its replay."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from lightkit.hardware.processor import num_cores
from lightkit.runs import read_events
from tests.cli.conftest import House, read_json

pytestmark = pytest.mark.long

RANKS = """\
import json

import torch
from pytorch_lightning import Callback


class Seen(Callback):
    def on_train_start(self, trainer, module):
        seen = {"precision": trainer.precision, "threads": torch.get_num_threads()}
        with open(f"seen-{trainer.global_rank}.json", "w") as file:
            json.dump(seen, file)
"""
AUTOS = """\
extends: small.yaml
accelerator: {precision: auto, memory_format: auto, fused: auto, threads: auto}
"""


def test_a_replay_of_a_tuned_run_measures_nothing_and_gives_the_same_weights(house: House) -> None:
    house.write("auto.yaml", AUTOS)
    done = house("fit", "-c", "auto.yaml")
    assert done.code == 0, done.err
    assert len(re.findall(r"^tuned  ", done.err, re.MULTILINE)) == 1
    first = house.runs[-1]
    assert "auto" not in _autos(first)
    told = read_json(first / "manifest.json")["tuned"]
    assert told["source"] == "measured"
    assert {*told["chosen"]} == {"precision", "memory_format", "fused", "threads"}
    replay = house.fit("-c", str(first / "config.yaml"), "--run.name=replay")
    assert _events(replay, "tune") == []
    assert "tuned" not in read_json(replay / "manifest.json")
    assert _weights_equal(first, replay)


def test_the_same_job_takes_what_was_measured_before(house: House) -> None:
    house.write("auto.yaml", "extends: small.yaml\naccelerator: {memory_format: auto}\n")  # no convolution: one choice
    first, second = (house.fit("-c", "auto.yaml") for _ in range(2))
    (before,), (after,) = (_events(run, "tune") for run in (first, second))
    assert (before["source"], after["source"]) == ("measured", "cache")
    assert before["chosen"] == after["chosen"]
    assert _weights_equal(first, second)


def test_a_measurement_leaves_the_training_that_follows_as_it_would_be_without(house: House) -> None:
    house.write("auto.yaml", "extends: small.yaml\naccelerator: {memory_format: auto}\n")  # no convolution: one choice
    assert _weights_equal(house.fit("-c", "auto.yaml"), house.fit("-c", "small.yaml"))


def test_a_fast_dev_run_measures_nothing_and_says_so(house: House) -> None:
    done = house("fit", "-c", "small.yaml", "--accelerator.precision=auto", "--trainer.fast_dev_run=true")
    assert done.code == 0, done.err
    assert "auto measures nothing in a fast_dev_run" in done.err
    assert "tuned  " not in done.err


def test_a_defect_of_the_model_ends_the_training_as_it_would_without_auto(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=r"^batches are out of stock$"):
        house("fit", "-c", "small.yaml", "--model=my_models.Failing", "--accelerator.precision=auto")
    assert "auto chooses nothing, for measuring has ended with ValueError: batches are" in capsys.readouterr().err
    assert read_json(house.runs[-1] / "summary.json")["status"] == "failed"
    assert "auto" not in _autos(house.runs[-1])


def test_an_interrupted_run_goes_on_with_what_it_has_chosen(house: House) -> None:
    house.write("auto.yaml", AUTOS)
    run = house.fit("-c", "auto.yaml")
    summary = read_json(run / "summary.json")
    (run / "summary.json").write_text(json.dumps({**summary, "status": "interrupted", "exit_code": 75}))
    done = house("fit", "-c", "auto.yaml", "--trainer.max_epochs=1")
    assert done.code == 0, done.err
    assert f"resumes {run}" in done.err
    assert "tuned  " not in done.err
    assert "auto" not in _autos(run)
    assert len(house.runs) == 1


def test_a_stage_without_training_computes_as_its_run_does(house: House) -> None:
    house.write("auto.yaml", AUTOS)
    run = house.fit("-c", "auto.yaml")
    before = (run / "config.yaml").read_text()
    done = house("test", "-c", "auto.yaml", f"--ckpt_path={run / 'checkpoints' / 'best.ckpt'}")
    assert done.code == 0, done.err
    assert read_json(house.runs[-1] / "manifest.json")["tuned"]["chosen"] == _chosen(run)
    assert house("test", "--run", str(run), "--accelerator.precision=auto").code == 0
    assert (run / "config.yaml").read_text() == before


def test_fixed_threads_are_those_that_compute(house: House) -> None:
    before = torch.get_num_threads()
    run = house.fit("-c", "small.yaml", f"--accelerator.threads={before + 1}")
    assert read_json(run / "manifest.json")["hardware"]["threads"] == before + 1
    assert torch.get_num_threads() == before


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["horovod", "ddp"])
def test_all_ranks_train_with_what_rank_0_has_chosen(house: House, strategy: str) -> None:
    if strategy == "horovod":
        pytest.importorskip("horovod.torch", reason="needs Horovod")
    house.write("my_ranks.py", RANKS)
    words = ("--accelerator.kind=cpu", "--accelerator.num_processes=2", f"--accelerator.strategy={strategy}")
    house.write("ranks.yaml", AUTOS + "callbacks: {seen: my_ranks.Seen}\n")
    done = house("fit", "-c", "ranks.yaml", *words)
    assert done.code == 0, done.err
    run = house.runs[-1]
    (told,) = _events(run, "tune")
    seen = [json.loads(path.read_text()) for path in sorted(house.folder.glob("seen-*.json"))]
    assert len(seen) == 2
    assert seen[0] == seen[1]
    assert seen[0]["precision"] == told["chosen"]["precision"]
    assert seen[0]["threads"] == told["chosen"]["threads"] <= max(1, (num_cores() or 1) // 2)


def _autos(run: Path) -> list[Any]:
    config = yaml.safe_load((run / "config.yaml").read_text())
    return [*config["accelerator"].values(), config["trainer"].get("precision")]


def _chosen(run: Path) -> dict[str, Any]:
    chosen: dict[str, Any] = read_json(run / "manifest.json")["tuned"]["chosen"]
    return chosen


def _events(run: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_events(run / "events.jsonl") if event["event"] == kind]


def _weights_equal(first: Path, second: Path) -> bool:
    states = [torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"] for run in (first, second)]
    return all(torch.equal(states[0][name], states[1][name]) for name in states[0])
