"""`lightkit tune`: all measurements of a config, the choice, and no run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from lightkit.runs import read_events
from tests.cli.commands import SMALL, run, workplace
from tests.cli.conftest import House

AUTOS = "extends: small.yaml\naccelerator: {precision: auto, memory_format: auto, fused: auto, threads: auto}\n"


def test_it_prints_measurements_and_the_lines_that_fix_the_choice_and_leaves_no_run(house: House) -> None:
    house.write("auto.yaml", AUTOS)
    done = house("tune", "-c", "auto.yaml")
    assert done.code == 0, done.err
    table, _, fixing = done.out.partition("to fix it:\n")
    assert table.splitlines()[0].split()[:2] == ["setting", "ms"]
    assert table.splitlines()[1].startswith("32-true, contiguous")
    assert "auto" not in fixing
    assert {*yaml.safe_load(fixing)["accelerator"]} >= {"precision", "memory_format", "threads"}
    assert house.runs == []


def test_a_fit_takes_what_tune_has_measured(house: House) -> None:
    house.write("auto.yaml", AUTOS)
    told = json.loads(house("tune", "-c", "auto.yaml", "--json").out)
    assert told["findings"]["measurements"][0]["variant"]["precision"] == "32-true"
    run = house.fit("-c", "auto.yaml")
    (event,) = [event for event in read_events(run / "events.jsonl") if event["event"] == "tune"]
    assert event["source"] == "cache"
    assert event["chosen"] == told["chosen"]


def test_without_auto_all_that_the_config_leaves_open_is_measured(house: House) -> None:
    words = ("--trainer.precision=32-true", "--accelerator.compile=false", "--accelerator.threads=1", "--quiet")
    done = house("tune", "-c", "small.yaml", *words)
    assert done.code == 0, done.err
    assert {*yaml.safe_load(done.out)["accelerator"]} <= {"memory_format", "fused", "num_workers"}
    assert "memory_format" in yaml.safe_load(done.out)["accelerator"]


def test_learning_rate_and_batch_size_stand_beside(house: House) -> None:
    words = (
        "--accelerator.batch_size=auto",
        "--accelerator.learning_rate=auto",
        "--optimizer=SGD",
        "--optimizer.lr=0.1",
    )
    done = house("tune", "-c", "small.yaml", *words, "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert told["findings"] is None
    assert told["batch_size"]["batch_size"] == told["chosen"]["batch_size"]
    assert told["learning_rate"]["rates"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--budget", "soon"), "--budget: expected a number of seconds above 0, got 'soon'"),
        (("latest",), "unexpected argument 'latest'"),
        (("--run", "latest"), "tune: --run is no option of it; -c RUN/config.yaml names the config of a run\n"),
        (("--output=json",), "tune: --output is no option of it; --json prints all measurements as JSON\n"),
        (("--print_config",), "tune: --print_config is no option of it; lightkit fit has it\n"),
        (("--print_config=skip_null",), "tune: --print_config is no option of it; lightkit fit has it\n"),
        (("--model.help",), "tune: --KEY.help is an option of lightkit fit"),
        (("--accelerator.precision=atuo",), "precision"),
    ],
    ids=["budget", "place", "run", "output", "print-config", "print-config-of", "help-of-key", "value"],
)
def test_a_mistake_is_told_before_anything_is_measured(house: House, words: tuple[str, ...], says: str) -> None:
    done = house("tune", "-c", "small.yaml", *words)
    assert done.code == 2
    assert says in done.err


@pytest.mark.slow
@pytest.mark.parametrize("form", ["--json", "--quiet"])
def test_what_is_no_news_is_not_told(form: str, tmp_path: Path) -> None:
    folder = workplace(tmp_path, {**SMALL, "accelerator": {"memory_format": "auto"}})
    done = run(folder, "tune", "-c", "job.yaml", form)
    assert (done.code, done.err) == (0, "")
