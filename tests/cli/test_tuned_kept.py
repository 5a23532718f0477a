"""When what was measured before counts again, and what `auto` leaves alone."""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from lightkit import runs
from lightkit.cli import tuned
from lightkit.cli.answers import SPEED
from lightkit.cli.kept_findings import Keepable, Shelf
from lightkit.cli.lightning_cli import LightkitCLI
from lightkit.cli.resume import RunStart
from lightkit.config.accelerator.settings import AcceleratorSettings
from lightkit.hardware import this_machine
from lightkit.runs import Run, read_events
from lightkit.tuning.allowance import Allowance, Part
from lightkit.tuning.batch_size import FoundSize, TriedSize
from lightkit.tuning.computation import Computation
from lightkit.tuning.learning_rate import FoundRate
from lightkit.tuning.variant import Findings, Measurement, Variant
from tests.cli.conftest import House, read_json

AUTO = "extends: small.yaml\naccelerator: {memory_format: auto}\n"  # no convolution: one choice, quickly made
OWN_LOADER = """\
from my_models import Net, Points


class Alone(Net):
    def train_dataloader(self):
        assert self.trainer.max_epochs is not None
        return Points().train_dataloader()

    def val_dataloader(self):
        return Points().train_dataloader()
"""
WORDS = [
    "fit",
    "--seed_everything=7",
    "--trainer.accelerator=cpu",
    "--trainer.max_epochs=1",
    "--trainer.limit_val_batches=0",
]
LEFT_OUT = Findings((Measurement(Variant()),), Variant(), left_out=("bf16-mixed: takes about 9 s, 1 s were left",))
WHOLE = replace(LEFT_OUT, left_out=())
SIZE = FoundSize(8, (TriedSize(8, 0.1, 80.0, 1),), "8192 is the most", first=8)
RATE = FoundRate(0.01, None, (0.1, 0.2), (2.0, 1.0))


def test_findings_of_one_class_are_not_those_of_another_that_a_script_has_fixed(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(house.folder)
    my_models = importlib.import_module("my_models")  # of the working directory
    words = [*WORDS, "--accelerator.memory_format=auto", "--run.name=same"]
    for model in (my_models.Net, my_models.Wide, my_models.Net):
        LightkitCLI(model, my_models.Points, args=[*words])
    assert [_source(run) for run in house.runs] == ["measured", "measured", "cache"]


def test_a_module_that_the_model_imports_counts(house: House) -> None:
    house.write("blocks.py", "WIDTH = 4\n")
    house.write("my_blocks.py", "import blocks\nfrom my_models import Net as Net\n\n\nclass Blocks(Net):\n    pass\n")
    house.write("auto.yaml", AUTO + "model: my_blocks.Blocks\n")
    first = house.fit("-c", "auto.yaml")
    house.write("blocks.py", "WIDTH = 16  # wider\n")
    assert (_source(first), _source(house.fit("-c", "auto.yaml"))) == ("measured", "measured")


def test_a_mapping_with_keys_of_several_kinds_is_kept_too(house: House) -> None:
    house.write(
        "my_weights.py",
        "from my_models import Net\n\n\nclass Weighted(Net):\n"
        "    def __init__(self, weights: dict):\n        super().__init__()\n",
    )
    weights = "model: {class_path: my_weights.Weighted, init_args: {weights: {0: 1.0, other: 2.0}}}\n"
    house.write("auto.yaml", AUTO + weights)
    runs = [house.fit("-c", "auto.yaml"), house.fit("-c", "auto.yaml")]
    assert [_source(run) for run in runs] == ["measured", "cache"]
    house.write("auto.yaml", AUTO + weights.replace("0:", "'0':"))
    assert _source(house.fit("-c", "auto.yaml")) == "measured"


def _of(budget_s: float | None) -> Part:
    return Allowance(budget_s).next()


def test_what_time_has_left_out_counts_for_no_more_time(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, is_read=True)
    shelf.keep("key", LEFT_OUT, _of(5.0))
    assert Shelf(tmp_path, is_read=False).kept("key", Findings.of_json, _of(5.0)) is None  # `tune` reads nothing
    assert shelf.kept("key", Findings.of_json, _of(5.0)) == LEFT_OUT
    assert shelf.kept("key", Findings.of_json, _of(4.0)) is not None
    assert shelf.kept("key", Findings.of_json, _of(6.0)) is not None  # hardly more
    assert shelf.kept("key", Findings.of_json, _of(30.0)) is None
    shelf.keep("whole", WHOLE, _of(2.0))
    assert shelf.kept("whole", Findings.of_json, _of(None)) == WHOLE  # more time would not tell more


def test_what_had_less_time_takes_no_place(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, is_read=True)
    other = replace(LEFT_OUT, load_s=0.5)
    shelf.keep("key", LEFT_OUT, _of(20.0))
    shelf.keep("key", other, _of(10.0))
    assert shelf.kept("key", Findings.of_json, _of(25.0)) == LEFT_OUT
    assert shelf.kept("key", Findings.of_json, _of(40.0)) is None  # it is still known how long it had
    shelf.keep("key", replace(LEFT_OUT, left_out=(*LEFT_OUT.left_out, "another")), _of(40.0))
    assert shelf.kept("key", Findings.of_json, _of(25.0)) == LEFT_OUT
    shelf.keep("key", other, _of(40.0))
    assert shelf.kept("key", Findings.of_json, _of(40.0)) == other
    shelf.keep("key", WHOLE, _of(1.0))
    shelf.keep("key", LEFT_OUT, _of(None))
    assert shelf.kept("key", Findings.of_json, _of(None)) == WHOLE


def test_a_search_that_had_no_more_time_in_the_end_is_not_made_each_time(tmp_path: Path) -> None:
    """Whoever expects more time, and finds that batches are as fast as the training is longer, has no more."""
    shelf = Shelf(tmp_path, is_read=True)
    first = Allowance(30.0, num_steps=lambda _: 1000).next()
    second, third = (Allowance(30.0, num_steps=lambda _: 4000).next() for _ in range(2))
    first.expect(0.1, None)
    shelf.keep("key", LEFT_OUT, first)
    assert shelf.kept("key", Findings.of_json, second) is None
    second.expect(0.02, None)
    shelf.keep("key", LEFT_OUT, second)
    assert shelf.kept("key", Findings.of_json, third) == LEFT_OUT


@pytest.mark.parametrize("is_worth", [True, False], ids=["something", "nothing"])
def test_what_time_has_cut_short_is_kept_if_it_says_something(tmp_path: Path, is_worth: bool) -> None:
    shelf = Shelf(tmp_path, is_read=True)
    look: Callable[[], Findings] = lambda: LEFT_OUT  # noqa: E731
    found = shelf.kept_or_new(SPEED, "key", Findings.of_json, look, _of(5.0), is_worth=lambda _: is_worth)
    assert found == LEFT_OUT
    assert shelf.before == set()
    assert shelf.kept("key", Findings.of_json, _of(5.0)) == (LEFT_OUT if is_worth else None)


def test_what_was_found_before_is_looked_for_again_only_if_it_does_not_count(tmp_path: Path) -> None:
    shelf, other, searched = Shelf(tmp_path, is_read=True), replace(WHOLE, load_s=0.5), list[str]()

    def look() -> Findings:
        searched.append(SPEED)
        return other

    def found(name: str | None, **options: Any) -> Findings:
        worth: dict[str, Any] = {"is_worth": lambda _: True, **options}
        given: Findings = shelf.kept_or_new(SPEED, name, Findings.of_json, look, _of(5.0), **worth)
        return given

    shelf.keep("key", WHOLE, _of(5.0))
    assert (found("key"), searched, shelf.before) == (WHOLE, [], {SPEED})
    assert found("key", counts=lambda _: False, otherwise=lambda: LEFT_OUT) == LEFT_OUT
    assert (found("key", counts=lambda _: False), searched) == (other, [SPEED])
    assert found("key") == other
    assert (found(None), searched) == (other, [SPEED, SPEED])


def test_what_another_version_kept_is_replaced(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, is_read=True)
    shelf.keep("key", LEFT_OUT, _of(20.0))
    path = tmp_path / ".tuning" / "key.json"
    path.write_text(json.dumps({**read_json(path), "limit": {"budget_s": 20.0, "trainer": None}}))
    assert shelf.kept("key", Findings.of_json, _of(5.0)) is None
    shelf.keep("key", LEFT_OUT, _of(5.0))
    assert shelf.kept("key", Findings.of_json, _of(5.0)) == LEFT_OUT


@pytest.mark.parametrize(
    ("of_more", "taken"),
    [(WHOLE, WHOLE), (replace(LEFT_OUT, load_s=0.5), LEFT_OUT), (None, LEFT_OUT)],
    ids=["more", "no more", "nothing"],
)
def test_what_was_cut_short_gives_way_to_what_tells_more(
    tmp_path: Path, of_more: Findings | None, taken: Findings
) -> None:
    shelf = Shelf(tmp_path, is_read=True)
    shelf.keep("key", LEFT_OUT, _of(5.0))
    options: dict[str, Any] = {"look": lambda: pytest.fail("searched"), "is_worth": lambda _: True}
    of_json: Callable[[dict[str, Any]], Findings] = Findings.of_json
    assert shelf.kept_or_new(SPEED, "key", of_json, part=_of(5.0), otherwise=lambda: of_more, **options) == taken


@pytest.mark.parametrize(
    ("found", "had", "now", "has_time"),
    [
        (LEFT_OUT, 5.0, 5.0, False),
        (LEFT_OUT, 5.0, 30.0, True),
        (replace(WHOLE, seconds=4.0), None, 3.0, False),
        (replace(WHOLE, seconds=4.0), None, 5.0, True),
    ],
    ids=["cut short", "more time", "less than it took", "as much as it took"],
)
def test_findings_for_more_come_with_whether_there_is_time_for_more(
    tmp_path: Path, found: Findings, had: float | None, now: float, has_time: bool
) -> None:
    shelf = Shelf(tmp_path, is_read=True)
    shelf.keep("key", found, _of(had))
    ((alike, tells),) = shelf.alike("key", Findings.of_json, _of(now), took_s=lambda one: one.seconds)
    assert (alike, tells()) == (found, has_time)


@pytest.mark.parametrize(
    ("of_json", "found", "hollow"),
    [
        (Findings.of_json, LEFT_OUT, {"measurements": []}),
        (FoundSize.of_json, SIZE, {"tried": []}),
        (FoundSize.of_json, SIZE, {"first": 4}),
        (FoundSize.of_json, SIZE, {"batch_size": 0}),
        (FoundRate.of_json, RATE, {"rates": [], "losses": []}),
        (FoundRate.of_json, RATE, {"learning_rate": None}),
        (FoundRate.of_json, RATE, {"losses": [1.0]}),
    ],
    ids=["speed", "sizes", "first size", "size", "curve", "reason", "losses"],
)
def test_a_hollow_file_is_passed_over(
    of_json: Callable[[dict[str, Any]], Keepable], found: Keepable, hollow: dict[str, Any], tmp_path: Path
) -> None:
    shelf = Shelf(tmp_path, is_read=True)
    shelf.keep("key", found, _of(None))
    assert shelf.kept("key", of_json, _of(None)) == found
    path = tmp_path / ".tuning" / "key.json"
    content = read_json(path)
    path.write_text(json.dumps({**content, "found": {**content["found"], **hollow}}))
    assert shelf.kept("key", of_json, _of(None)) is None
    assert list(shelf.alike("key", of_json, _of(None), took_s=lambda _: 1.0)) == []


def test_what_cannot_be_kept_is_told_and_loses_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / ".tuning").write_text("a file")
    with caplog.at_level(logging.WARNING, logger="lightkit"):
        Shelf(tmp_path, is_read=True).keep("key", LEFT_OUT, _of(None))
    assert "what was measured is not kept" in caplog.text


def test_a_checkpoint_brings_its_own_rate(house: House) -> None:
    before = house.fit("-c", "small.yaml", "--optimizer=SGD", "--optimizer.lr=0.02")
    checkpoint = before / "checkpoints" / "last.ckpt"
    words = ("--optimizer=SGD", "--optimizer.lr=0.02", "--accelerator.learning_rate=auto", "--trainer.max_epochs=2")
    done = house("fit", "-c", "small.yaml", *words, f"--ckpt_path={checkpoint}", "--run.name=on")
    assert done.code == 0, done.err
    assert done.err.count("accelerator.learning_rate: auto looks for none: the optimizer goes on with that of") == 1
    assert "tuned  " not in done.err
    config = yaml.safe_load((house.runs[-1] / "config.yaml").read_text())
    assert config["optimizer"]["init_args"]["lr"] == 0.02
    assert config["accelerator"]["learning_rate"] is None


def test_workers_without_data_are_left_out_and_told_once(house: House) -> None:
    house.write("my_alone.py", OWN_LOADER)
    words = ("--model=my_alone.Alone", "--data=null", "--trainer.limit_val_batches=0")
    autos = ("--accelerator.num_workers=auto", "--accelerator.memory_format=auto")
    done = house("fit", "-c", "small.yaml", *words, *autos)
    assert done.code == 0, done.err
    assert done.err.count("accelerator.num_workers: auto chooses nothing, for nothing takes it") == 1
    assert "measuring has ended" not in done.err
    (line,) = [line for line in done.err.splitlines() if line.startswith("tuned  ")]
    assert "worker" not in line
    assert read_json(house.runs[-1] / "manifest.json")["tuned"]["chosen"]["num_workers"] is None


def test_a_curve_that_cannot_be_written_costs_no_run(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: FoundRate, folder: Path) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(FoundRate, "write", refuse)
    words = ("--optimizer=SGD", "--optimizer.lr=0.02", "--accelerator.learning_rate=auto")
    done = house("fit", "-c", "small.yaml", *words)
    assert done.code == 0, done.err
    assert done.err.count("the curve of the search is not kept: the disk is full") == 1


def test_the_manifest_explains_a_config_before_it_is_written(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.write("auto.yaml", AUTO)
    seen: list[bool] = []
    write = runs.write_text

    def note(path: Path, text: str) -> None:
        if path.name == "config.yaml":
            seen.append("tuned" in read_json(path.with_name("manifest.json")) if seen else False)
        write(path, text)

    monkeypatch.setattr(runs, "write_text", note)
    house.fit("-c", "auto.yaml")
    assert seen == [False, True]


@pytest.mark.parametrize(("gpus", "is_measured"), [((), True), (None, False)], ids=["cpu", "gpu"])
def test_a_strategy_that_forks_measures_nothing_on_gpus(
    gpus: tuple[()] | None, is_measured: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tuned, "this_machine", lambda: replace(this_machine(), gpus=gpus))
    trainer = {"accelerator": "auto", "strategy": "ddp_notebook"}
    cli = SimpleNamespace(config={"fit": {"trainer": trainer}}, subcommand="fit")
    told: list[str] = []
    session = SimpleNamespace(command="fit", tell=told.append)
    autos = tuned.MeasuredAutos(cli, session, AcceleratorSettings(precision="auto"))  # type: ignore[arg-type]
    start = RunStart(Run(tmp_path, "job", "1", tmp_path), checkpoint=None)
    assert (autos.recalled(start) is None) == is_measured
    assert len(told) == (not is_measured)


def test_what_a_hook_has_changed_stays_when_autos_are_settled(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    class Hooked(LightkitCLI):
        def before_instantiate_classes(self) -> None:
            self.config["fit"]["trainer"]["max_epochs"] = 2

    monkeypatch.syspath_prepend(house.folder)
    my_models = importlib.import_module("my_models")
    cli = Hooked(my_models.Net, my_models.Points, args=[*WORDS, "--accelerator.memory_format=auto"])
    assert cli.trainer.max_epochs == 2
    config = yaml.safe_load((house.runs[-1] / "config.yaml").read_text())
    assert config["trainer"]["max_epochs"] == 2
    assert config["accelerator"]["memory_format"] == "contiguous"


def test_without_a_record_fixed_settings_compute_and_autos_are_passed_over(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.syspath_prepend(house.folder)
    my_models = importlib.import_module("my_models")
    monkeypatch.setattr("sys.argv", ["script.py"])
    said = {"memory_format": "channels_last", "precision": "auto"}
    given = {"seed_everything": 7, "trainer": {"accelerator": "cpu", "logger": False}, "accelerator": said}
    with caplog.at_level(logging.WARNING, logger="lightkit"):
        cli = LightkitCLI(my_models.Net, my_models.Points, args=given, run=False)
    (computing,) = [one for one in vars(cli.trainer)["callbacks"] if isinstance(one, Computation)]
    assert computing.memory_format == "channels_last"
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["accelerator.precision"]


def _source(run: Path) -> str:
    (event,) = [event for event in read_events(run / "events.jsonl") if event["event"] == "tune"]
    source: str = event["source"]
    return source
