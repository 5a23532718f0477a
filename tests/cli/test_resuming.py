"""The run folder as people meet it: what is in it, how it is found again, and when a run goes on in it."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from lightkit import runs
from lightkit.cli.resuming import differences
from lightkit.runs import FIELDS
from tests.cli.conftest import House, read_json

EPOCHS = "--trainer.max_epochs={}"


def _weights(run: Path, name: str = "last") -> dict[str, Any]:
    state: dict[str, Any] = torch.load(run / "checkpoints" / f"{name}.ckpt", weights_only=False)["state_dict"]
    return state


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def _table(run: Path, name: str = "metrics.csv") -> list[dict[str, str]]:
    with (run / name).open(newline="") as file:
        return list(csv.DictReader(file))


def _config(run: Path) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((run / "config.yaml").read_text())
    return config


def _interrupt(run: Path) -> None:
    """Make a run look as if its process had been killed: no end in its records."""
    summary = read_json(run / "summary.json")
    runs.write_json(run / "summary.json", {**summary, "status": "running", "exit_code": None})


# -- what is in the folder --------------------------------------------------------------------------------------------


def test_the_saved_config_replays_to_the_same_config_and_the_same_weights(house: House) -> None:
    house.write("b.yaml", "callbacks: {early_stopping: {init_args: {monitor: val/loss}}, lr_monitor: {}}")
    first = house.fit(
        "-c", "small.yaml", "-c", "b.yaml", "--model.hidden=6", "callbacks.lr_monitor=null", EPOCHS.format(2)
    )
    second = house.fit("-c", "runs/b/latest/config.yaml")
    assert second != first
    assert second.parent == first.parent
    assert (second / "config.yaml").read_text() == (first / "config.yaml").read_text()
    assert _same(_weights(second), _weights(first))


@pytest.mark.parametrize(
    "words", [[], ["trainer.callbacks=[my_models.Told]", "logger.csv={}", "optimizer=Adam"]], ids=len
)
def test_print_config_prints_what_a_run_saves(words: list[str], house: House) -> None:
    printed = house("fit", "-c", "small.yaml", *words, "--print_config")
    run = house.fit("-c", "small.yaml", *words)
    assert printed.out == (run / "config.yaml").read_text()


def test_print_config_leaves_no_run(house: House) -> None:
    house("fit", "-c", "small.yaml", "--print_config")
    assert not (house.folder / "runs").exists()


def test_the_manifest_says_what_the_run_was_made_from(house: House) -> None:
    run = house.fit("-c", "small.yaml")
    manifest = read_json(run / "manifest.json")
    assert manifest["run"] == f"small/{run.name}"
    assert manifest["subcommand"] == "fit"
    assert manifest["seed"] == 7
    assert manifest["parent"] is None
    assert manifest["packages"]["torch"] == torch.__version__.split("+")[0]
    assert manifest["hardware"]["accelerator"] == "cpu"
    assert {"lightkit", "python", "git", "data", "created", "working_directory"} <= manifest.keys()


def test_a_seed_that_nobody_set_is_in_the_manifest_and_in_the_config(house: House) -> None:
    house.write("free.yaml", (house.folder / "small.yaml").read_text().replace("seed_everything: 7\n", ""))
    run = house.fit("-c", "free.yaml")
    seed = read_json(run / "manifest.json")["seed"]
    assert isinstance(seed, int)
    assert not isinstance(seed, bool)
    assert _config(run)["seed_everything"] == seed


def test_metrics_have_one_row_an_epoch(house: House) -> None:
    run = house.fit("-c", "small.yaml", EPOCHS.format(3))
    rows = _table(run)
    assert [row["epoch"] for row in rows] == ["0", "1", "2"]
    assert [row["step"] for row in rows] == ["2", "4", "6"]
    assert all(float(row["val/loss"]) > 0 and float(row["train/loss"]) > 0 for row in rows)


def test_the_summary_has_the_best_and_the_last_epoch(house: House) -> None:
    run = house.fit("-c", "small.yaml", EPOCHS.format(3), "callbacks.checkpoint.mode=max")
    rows = _table(run)
    summary = read_json(run / "summary.json")
    assert (summary["status"], summary["exit_code"], summary["epochs"], summary["steps"]) == ("done", 0, 3, 6)
    assert summary["metrics"]["last"]["val/loss"] == pytest.approx(float(rows[-1]["val/loss"]))
    worst = max(rows, key=lambda row: float(row["val/loss"]))
    best = {"monitor": "val/loss", "mode": "max", "value": float(worst["val/loss"]), "epoch": int(worst["epoch"])}
    assert summary["best"] == best
    assert all((run / path).exists() for path in summary["paths"].values())


def test_every_checkpoint_has_its_digest_beside_it(house: House) -> None:
    run = house.fit("-c", "small.yaml")
    assert {path.name for path in (run / "checkpoints").glob("*.ckpt")} == {"best.ckpt", "last.ckpt"}
    assert all(runs.verify(path) for path in (run / "checkpoints").glob("*.ckpt"))


def test_events_are_those_of_the_schema(house: House) -> None:
    run = house.fit("-c", "small.yaml", EPOCHS.format(2))
    for stage in ("validate", "test", "predict"):
        assert house(stage, "--run", "latest").code == 0
    events = list(runs.read_events(run / "events.jsonl"))
    for event in events:
        assert "time" in event
        for name, kinds in FIELDS[event["event"]].items():
            assert isinstance(event[name], kinds), event
    names = [event["event"] for event in events if event["event"] != "checkpoint"]
    assert names == ["start", "epoch", "epoch", "end", *["start", "result", "end"] * 3]


def test_name_and_root_say_where_the_folder_is(house: House) -> None:
    house.fit("-c", "small.yaml", "--run.name=job", "--run.root=runs/deep")
    latest = house.folder / "runs" / "deep" / "job" / "latest"
    assert latest.is_symlink()
    assert (latest / "summary.json").is_file()


# -- resuming ------------------------------------------------------------------------------------------------------


def test_a_run_that_ended_well_is_not_resumed(house: House) -> None:
    first = house.fit("-c", "small.yaml")
    assert house.fit("-c", "small.yaml") != first


def test_the_same_command_resumes_an_interrupted_run(house: House) -> None:
    undisturbed = house.fit("-c", "small.yaml", EPOCHS.format(4), "--run.name=other")
    house.write("user_stop.py", STOP)
    with pytest.raises(RuntimeError, match="out of power"):
        house("fit", "-c", "small.yaml", EPOCHS.format(4), "callbacks.stop=user_stop.Stop")
    (run,) = house.folder.glob("runs/small/2*")
    house.write("user_stop.off", "")
    done = house("fit", "-c", "small.yaml", EPOCHS.format(4), "callbacks.stop=user_stop.Stop")
    assert done.code == 0
    assert done.err == f"resumes {run} from last.ckpt\n"
    assert list(house.folder.glob("runs/small/2*")) == [run]
    assert _same(_weights(run), _weights(undisturbed))
    rows = _table(run)
    assert [row["epoch"] for row in rows] == ["0", "1", "2", "3"]
    assert read_json(run / "summary.json")["status"] == "done"
    resumed = [event for event in runs.read_events(run / "events.jsonl") if event["event"] == "resume"]
    assert [(event["epoch"], event["checkpoint"]) for event in resumed] == [(2, "checkpoints/last.ckpt")]


STOP = """\
from pathlib import Path
from pytorch_lightning import Callback


class Stop(Callback):
    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch == 2 and not Path("user_stop.off").exists():
            raise RuntimeError("out of power")
"""


def test_never_begins_a_new_run(house: House) -> None:
    run = house.fit("-c", "small.yaml")
    _interrupt(run)
    assert house.fit("-c", "small.yaml", "--run.resume=never") != run


@pytest.mark.parametrize(
    ("key", "decides"),
    [
        ("run.resume", False),
        ("run.wait_s", False),
        ("run.stale_s", False),
        ("run.heartbeat_url", False),
        ("run.name", True),
        ("gate.min", False),
        ("watchdog.factor", False),
        ("watchdog.on_nonfinite", True),
        ("trainer.max_epochs", True),
    ],
)
def test_what_decides_when_and_whether_to_run_is_no_other_config(key: str, decides: bool) -> None:
    section, _, name = key.partition(".")
    assert differences({section: {name: 1}}, {section: {name: 2}}) == ([key] if decides else [])


def test_another_config_begins_a_new_run_and_says_why(house: House) -> None:
    run = house.fit("-c", "small.yaml")
    _interrupt(run)
    done = house("fit", "-c", "small.yaml", "--model.hidden=5")
    assert done.code == 0
    assert done.err == (
        f"begins a new run: {run} was interrupted, but had another config (model.init_args.hidden); "
        f"--run.resume={run} goes on there with this one\n"
    )
    assert len(house.runs) == 2


def test_a_run_that_began_from_a_checkpoint_is_resumed_by_the_same_command(house: House) -> None:
    first = house.fit("-c", "small.yaml", EPOCHS.format(1))
    words = ["-c", "small.yaml", EPOCHS.format(3), f"--ckpt_path={first}/checkpoints/last.ckpt"]
    run = house.fit(*words)
    assert run != first
    _interrupt(run)
    assert "resumes" in house("fit", *words).err
    assert house.runs == [first, run]
    _interrupt(run)
    assert "(ckpt_path)" in house("fit", *words[:-1]).err
    assert len(house.runs) == 3


def test_another_value_from_the_environment_begins_a_new_run(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIDDEN", "3")
    words = ["-c", "small.yaml", "--model.hidden=${oc.env:HIDDEN}"]
    run = house.fit(*words)
    _interrupt(run)
    monkeypatch.setenv("HIDDEN", "4")
    assert "(a value from the environment)" in house("fit", *words).err
    assert len(house.runs) == 2


def test_other_data_begins_a_new_run(house: House) -> None:
    module = (
        "import pytorch_lightning as pl, pathlib\n"
        "from my_models import *\n"
        "class Described(LightningDataModule if 'LightningDataModule' in globals() else pl.LightningDataModule):\n"
        "    def describe(self):\n"
        "        text = pathlib.Path('data.txt').read_text()\n"
        "        return {'fingerprint': text, 'version': ['one', 'two'].index(text)}\n"
        "    def train_dataloader(self):\n"
        "        from pytorch_lightning.demos.boring_classes import RandomDataset\n"
        "        from torch.utils.data import DataLoader\n"
        "        return DataLoader(RandomDataset(32, 8), batch_size=4)\n"
        "    val_dataloader = train_dataloader\n"
    )
    house.write("described.py", module)
    house.write("data.txt", "one")
    house.write("plain.yaml", "trainer: {max_epochs: 1, accelerator: cpu}")
    model = "pytorch_lightning.demos.boring_classes.BoringModel"
    words = ["-c", "plain.yaml", "--data=described.Described", f"--model={model}"]
    run = house.fit(*words)
    _interrupt(run)
    house.write("data.txt", "two")
    again = house("fit", *words)
    assert again.code == 0, again.err
    assert f"the data has changed since {run} was interrupted (version 0, now 1)" in again.err
    assert len(house.runs) == 2
    assert read_json(house.runs[-1] / "manifest.json")["data"] == {"fingerprint": "two", "version": 1}


def test_a_quick_check_in_between_does_not_stand_in_the_way_of_a_resume(house: House) -> None:
    run = house.fit("-c", "small.yaml")
    _interrupt(run)
    assert house("fit", "-c", "small.yaml", "--trainer.fast_dev_run=true").code == 0
    assert "resumes" in house("fit", "-c", "small.yaml").err


def test_a_path_goes_on_in_that_run_with_this_config(house: House) -> None:
    run = house.fit("-c", "small.yaml")
    house.fit("-c", "small.yaml", "--run.resume=never")
    done = house("fit", "-c", "small.yaml", f"--run.resume={run}", EPOCHS.format(3))
    assert done.code == 0
    assert len(house.runs) == 2
    assert read_json(run / "summary.json")["epochs"] == 3
    assert _config(run)["trainer"]["max_epochs"] == 3


def test_latest_is_the_path_of_the_newest_run(house: House) -> None:
    run = house.fit("-c", "small.yaml")
    assert house("fit", "-c", "small.yaml", "--run.resume=runs/small/latest", EPOCHS.format(2)).code == 0
    assert house.runs == [run]


def test_nothing_to_resume_from_is_an_error(house: House) -> None:
    run = house.fit("-c", "small.yaml", "callbacks.checkpoint=null", "--trainer.enable_checkpointing=false")
    done = house("fit", "-c", "small.yaml", f"--run.resume={run}")
    assert done.code == 2
    assert done.err == (f"error: run.resume: {run} has no checkpoint to resume from.\n  --> --run.resume={run}\n")
    assert (run / "summary.json").is_file()


def test_a_broken_last_checkpoint_is_passed_over(house: House) -> None:
    house.write("user_stop.py", STOP)
    words = ["fit", "-c", "small.yaml", EPOCHS.format(4), "callbacks.stop=user_stop.Stop"]
    with pytest.raises(RuntimeError, match="out of power"):
        house(*words)
    (run,) = house.runs
    (run / "checkpoints" / "last.ckpt").write_bytes(b"torn")
    house.write("user_stop.off", "")
    done = house(*words)
    assert done.code == 0
    assert f"resumes {run} from best.ckpt" in done.err
    assert "last.ckpt" in done.err
    assert [row["epoch"] for row in _table(run)] == ["0", "1", "2", "3"]


# -- checkpoints by name --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", ["last", "best", "path"])
def test_a_checkpoint_begins_a_new_run_where_the_old_one_ended(choice: str, house: House) -> None:
    first = house.fit("-c", "small.yaml")
    word = str(first / "checkpoints" / "last.ckpt") if choice == "path" else choice
    run = house.fit("-c", "small.yaml", f"--ckpt_path={word}", EPOCHS.format(2))
    assert run != first
    assert read_json(run / "manifest.json")["parent"] == str(first)
    assert [row["epoch"] for row in _table(run)] == ["1"]


def test_a_checkpoint_may_stand_in_the_config(house: House) -> None:
    first = house.fit("-c", "small.yaml")
    house.write("b.yaml", f"ckpt_path: {first}/checkpoints/last.ckpt")
    run = house.fit("-c", "small.yaml", "-c", "b.yaml", EPOCHS.format(2))
    assert [row["epoch"] for row in _table(run)] == ["1"]
    assert "ckpt_path" not in _config(run)


# -- the other commands ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["latest", "PATH", "NAME", "NAME/ID", "NAME/latest", "ID", "link"])
@pytest.mark.parametrize("command", ["test", "validate"])
def test_a_run_is_found_by(form: str, command: str, house: House) -> None:
    run = house.fit("-c", "small.yaml")
    word = {"PATH": str(run), "NAME": "small", "NAME/ID": f"small/{run.name}", "NAME/latest": "small/latest",
            "ID": run.name, "link": "runs/small/latest"}.get(form, form)  # fmt: skip
    done = house(command, "--run", word)
    assert done.code == 0, done.err
    metric = {"test": "test/loss", "validate": "val/loss"}[command]
    result = [event for event in runs.read_events(run / "events.jsonl") if event["event"] == "result"]
    assert read_json(run / "summary.json")["stages"] == {command: result[0]["metrics"]}
    assert list(result[0]["metrics"]) == [metric]
    assert f"{command}  {metric} {result[0]['metrics'][metric]:.4}" in done.out


def test_the_best_checkpoint_is_the_one_that_is_scored(house: House) -> None:
    """The best is the first epoch here, because the largest loss is called the best."""
    run = house.fit("-c", "small.yaml", EPOCHS.format(3), "callbacks.checkpoint.mode=max")
    losses = [float(row["val/loss"]) for row in _table(run)]
    scored = {}
    for words in ([], ["--ckpt_path=best"], ["--ckpt_path=last"], [f"--ckpt_path={run}/checkpoints/last.ckpt"]):
        assert house("validate", "--run", "latest", *words).code == 0
        scored["".join(words)] = read_json(run / "summary.json")["stages"]["validate"]["val/loss"]
    assert list(scored.values()) == pytest.approx([losses[0], losses[0], losses[-1], losses[-1]])


def test_a_score_leaves_the_rest_of_the_summary_and_the_config_as_they_are(house: House) -> None:
    run = house.fit("-c", "small.yaml")
    before, config = read_json(run / "summary.json"), (run / "config.yaml").read_text()
    assert house("test", "--run", "latest", "--data.count=4").code == 0
    after = read_json(run / "summary.json")
    assert {key: after[key] for key in after if key not in ("stages", "durations")} == {
        key: before[key] for key in before if key not in ("stages", "durations")
    }
    assert (run / "config.yaml").read_text() == config


def test_a_run_without_the_checkpoint_is_told_which_it_has(house: House) -> None:
    run = house.fit("-c", "small.yaml")
    (run / "checkpoints" / "best.ckpt").unlink()
    done = house("test", "--run", "latest")
    assert (done.code, done.err) == (2, f"error: {run} has no best checkpoint; it has last.ckpt.\n")


def test_a_checkpoint_that_is_not_what_was_written_is_refused(house: House) -> None:
    run = house.fit("-c", "small.yaml")
    (run / "checkpoints" / "best.ckpt").write_bytes(b"torn")
    done = house("test", "--run", "latest")
    assert done.code == 2
    assert f"{run}/checkpoints/best.ckpt is not what was written: its digest differs." in done.err


def test_without_a_run_an_untrained_model_is_said_to_be_one(house: House) -> None:
    done = house("test", "-c", "small.yaml")
    assert done.code == 0
    assert "the model is untrained" in done.err
    assert not list(house.folder.glob("runs/*/latest"))


def test_predictions_of_any_module_are_a_table(house: House) -> None:
    run = house.fit("-c", "small.yaml")
    done = house("predict", "--run", "latest")
    assert done.code == 0
    rows = _table(run, "predictions.csv")
    assert len(rows) == 8
    from my_models import Net, Points  # type: ignore[import-not-found]  # beside the config

    model = Net()
    model.load_state_dict(_weights(run, "best"))
    points = torch.cat([batch[0] for batch in Points().predict_dataloader()])
    expected = model(points).flatten().tolist()
    assert [float(list(row.values())[-1]) for row in rows] == pytest.approx(expected, rel=1e-5)


def test_predictions_of_a_classifier_name_the_photo_and_its_class(house: House) -> None:
    from PIL import Image

    for index, (split, kind) in enumerate((s, k) for s in ("train", "val", "test") for k in ("daisy", "rose")):
        for copy in range(2):
            path = house.folder / "photos" / split / kind / f"{copy}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (16, 16), (40 * index, 90 * copy, 10 * index + copy)).save(path)
    house.write("photos.yaml", PHOTOS)
    run = house.fit("-c", "photos.yaml")
    assert house("predict", "--run", "latest").code == 0
    rows = _table(run, "predictions.csv")
    assert [Path(next(iter(row.values()))).parts[-3:] for row in rows] == [
        ("test", kind, f"{copy}.png") for kind in ("daisy", "rose") for copy in (0, 1)
    ]
    assert {row["label"] for row in rows} <= {"daisy", "rose"}


PHOTOS = """\
seed_everything: 7
model: {class_path: ImageClassifier, init_args: {backbone: small_cnn}}
data: {class_path: ImageFolder, init_args: {root: photos, image_size: 16, num_workers: 0, batch_size: 2}}
trainer: {accelerator: cpu, max_epochs: 1, logger: false}
"""
