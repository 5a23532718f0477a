"""`lightkit check`: what it says and writes, and what only `--deep` finds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.contract.batch import Answer, Command, run_batch
from tests.contract.examples import MY_PROJECT, SMALL, write_pictures
from tests.contract.workspace import ForkServer, Workspace

MY_PARTS = '''\
"""Parts that somebody wrote, with and without defects."""

import os
import signal
import urllib.request
from pathlib import Path

import torch
from my_project import Net, Points
from pytorch_lightning import Callback
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau
from torch.utils.data import DataLoader, Dataset


class Plateau(Net):
    """Its scheduler goes by a metric.

    Args:
        monitor: The metric.
    """

    def __init__(self, monitor: str = "val/los"):
        super().__init__()
        self.monitor = monitor

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        scheduler = {"scheduler": ReduceLROnPlateau(optimizer), "monitor": self.monitor}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


class Brings(Net):
    """It brings a callback of its own."""

    def configure_callbacks(self):
        return [EarlyStopping("val/nothing")]


class Keeps(Net):
    """It brings a checkpoint callback of its own, and reads what that has written."""

    def configure_callbacks(self):
        return [ModelCheckpoint("kept", monitor="val/loss", save_last="link")]

    def on_fit_end(self):
        torch.load(self.trainer.checkpoint_callback.best_model_path, weights_only=False)


class Scheduled(Net):
    """Its schedule reckons with the length of the whole training."""

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        warm_up, num_steps = 10, self.trainer.estimated_stepping_batches
        assert num_steps - warm_up > 0, num_steps
        assert self.trainer.max_epochs == 20
        return [optimizer], [LambdaLR(optimizer, lambda step: min(1, step / (num_steps - warm_up)))]


class FailsInValidation(Net):
    """The validation alone has a defect."""

    def validation_step(self, batch, index):
        raise KeyError("validation is out of stock")


class Downloads(Net):
    """It would download weights."""

    def __init__(self):
        super().__init__()
        urllib.request.urlopen("https://example.com/weights.pt")


class Unpicklable(Net):
    """Its checkpoint holds what cannot be written."""

    def on_save_checkpoint(self, checkpoint):
        checkpoint["forward"] = lambda x: x


class Talks(Net):
    """It prints, logs, and looks at the trainer."""

    def on_train_epoch_end(self):
        trainer = self.trainer
        assert (trainer.global_step, trainer.num_devices) == (1, 1)
        assert type(trainer.accelerator).__name__ == "CPUAccelerator"
        self.logger.experiment.add_scalar("x", 1, 1)
        print("this model talks")


class FailsInTest(Net):
    """The test alone has a defect."""

    def test_step(self, batch, index):
        raise ValueError("tests are out of stock")


class NoTest(Points):
    """It has no test samples."""

    def test_dataloader(self):
        from lightkit.errors import DataError
        raise DataError("points/: no test samples")


class Missing(Points):
    """Data that is not there."""

    def setup(self, stage):
        from lightkit.errors import DataError
        raise DataError("points/: no points there; run `lightkit fetch`")


class OtherSignature(Net):
    """Its step lacks an argument."""

    def training_step(self, batch, index, more):
        pass


class BrokenRow(Points):
    """A row that cannot be read."""

    def train_dataloader(self):
        return DataLoader(Rows(), batch_size=2)


class Rows(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        raise OSError(f"row {index} is torn")


class Refuses(Callback):
    """It cannot be built."""

    def __init__(self):
        raise RuntimeError("no callbacks today")


class Knocks(Callback):
    """Sends Ctrl-C to its process."""

    def on_train_batch_start(self, trainer, module, batch, index):
        Path(os.environ["SEEN"]).write_text(trainer.default_root_dir)
        os.kill(os.getpid(), signal.SIGINT)
'''
MONITORS = """\
callbacks:
  checkpoint: {init_args: {monitor: val/accuracy}}
  early_stopping:
    init_args:
      monitor: val/los
optimizer: {class_path: SGD, init_args: {lr: 0.1}}
lr_scheduler:
  class_path: ReduceLROnPlateau
  init_args: {monitor: vall/loss}
trainer:
  callbacks:
    - {class_path: ModelCheckpoint, init_args: {monitor: train_loss}}
"""
EARLY = "callbacks.early_stopping.init_args.monitor"
KEEPS: dict[str, Any] = {
    "three.yaml": {"save_top_k": 3, "monitor": "val/loss"},
    "fifth.yaml": {"save_top_k": -1, "every_n_epochs": 5},
    "all.yaml": {"save_top_k": -1},
}
CONFIGS = Path(__file__).parents[2] / "configs"
DEEP: dict[str, list[str]] = {
    "report": ["callbacks.lr_monitor={}", "logger.mlflow={}", "logger.csv={}",
               "--trainer.logger=null"],
    "json": [
        "--model=my_parts.Talks", "--output=json", "--trainer.accumulate_grad_batches=4",
        "--trainer.logger=null",
    ],
    "quiet": ["--quiet"],
    "secret": ["logger.mlflow.init_args.tracking_uri=${oc.env:MY_TRACKER}",
               "--trainer.logger=null"],
    "comet": ["logger.comet.init_args.online=false", "--trainer.logger=null"],
    "schedule": ["--model=my_parts.Scheduled", "--trainer.max_epochs=20"],
    "monitors": ["-c", "monitors.yaml"],
    "parts": ["--model=my_project.FailsInInit", "--data=my_parts.Missing",
              "callbacks.mine=my_parts.Refuses"],
    "best three": ["-c", "three.yaml", "--output=json"],
    "each fifth epoch": ["-c", "fifth.yaml", "--output=json"],
    "several callbacks": ["-c", "several.yaml", "--output=json"],
    "weights": [
        "--model=ImageClassifier", "--model.backbone=mobilenet_v3_small", "--model.weights=default",
        "--data=ImageFolder", "--data.root=pictures", "--data.image_size=32", "--data.batch_size=4",
        "--data.num_workers=0",
    ],
    "16 bit": ["--trainer.precision=16-mixed"],
    "ranks": [
        "launch.engine=torchrun", "launch.processes=1000", "accelerator.strategy=ddp",
        "trainer.accelerator=null",
        "accelerator=cpu", "--output=json",
    ],
}  # fmt: skip
RIGHT: dict[str, list[str]] = {
    "logged": [f"{EARLY}=val/loss"],
    "not strict": ["callbacks.early_stopping.init_args={monitor: val/none, strict: false}"],
    "of a scheduler": ["--model=my_parts.Plateau", "--model.monitor=train/loss"],
    "swa": ["callbacks.swa.init_args={swa_lrs: 0.01, device: null}"],
    "ema": ["callbacks.ema={}"],
    "validated now and then": ["--trainer.check_val_every_n_epoch=5"],
    "no test samples": ["--data=my_parts.NoTest", "gate.metric=test/none"],
    "a gate of the test": ["gate.metric=test/loss", "gate.mode=min"],
    "a gate of the validation": ["gate.metric=val/loss", "gate.mode=min"],
    "checkpoints of the model's own": ["callbacks.checkpoint=null", "--model=my_parts.Keeps"],
}
DEFECTS: dict[str, tuple[list[str], list[str]]] = {
    "training": (
        ["--model=my_project.FailsInStep"],
        [
            r"one batch of training fails: ValueError: batches are out of stock\n  -->"
            r" my_project\.py:\d+"
        ],
    ),
    "training with the config's optimizer, which calls it": (
        ["--model=my_project.FailsInStep", "--optimizer=SGD", "--optimizer.lr=0.1"],
        [
            r"one batch of training fails: ValueError: batches are out of stock\n  -->"
            r" my_project\.py:\d+"
        ],
    ),
    "validation": (
        ["--model=my_parts.FailsInValidation"],
        [
            r"one batch of validation fails: KeyError: 'validation is out of stock'\n  -->"
            r" my_parts\.py:\d+"
        ],
    ),
    "the test": (
        ["--model=my_parts.FailsInTest"],
        [r"one batch of test fails: ValueError: tests are out of stock"],
    ),
    "a gate's metric": (
        ["gate.metric=test/los"],
        [r"gate\.metric: 'test/los' is never logged; did you mean 'test/loss'"],
    ),
    "a signature": (
        ["--model=my_parts.OtherSignature"],
        [r"one batch of .*TypeError: OtherSignature\.training_step\(\)"],
    ),
    "a row": (
        ["--data=my_parts.BrokenRow"],
        [r"one batch of .*OSError: row 0 is torn\n  --> my_parts\.py:\d+"],
    ),
    "a checkpoint": (
        ["--model=my_parts.Unpicklable"],
        [r".*Can't pickle .*Unpicklable\.on_save_checkpoint"],
    ),
    "data that is not there": (
        ["--data=my_parts.Missing"],
        [r"points/: no points there; run `lightkit fetch`"],
    ),
    "an optimizer": (
        ["--optimizer=SGD", "--optimizer.lr=-1"],
        [
            r"optimizer\.init_args\.lr: expected 0 or more or a Tensor, got '-1'\n  -->"
            r" --optimizer\.lr=-1"
        ],
    ),
    "a trainer's argument": (
        ["--trainer.val_check_interval=1000"],
        [r"trainer\.val_check_interval: .*1000"],
    ),
    "a disk that is too small": (
        ["-c", "all.yaml", "--trainer.max_epochs=1000000000"],
        [r"trainer\.callbacks.*1000000001 checkpoints of .*need .*TB.* but .*B are free in runs"],
    ),
    "a download": (
        ["--model=my_parts.Downloads"],
        [r"https://example\.com/weights\.pt would be downloaded"],
    ),
    "a callback without a logger": (
        ["callbacks.lr_monitor={}"],
        [r"trainer\.logger: .*LearningRateMonitor"],
    ),
    "a monitor of the model's scheduler": (
        ["--model=my_parts.Plateau"],
        [r"model: ReduceLROnPlateau.*'val/los'.*did you mean 'val/loss'"],
    ),
    "a monitor of the model's callback": (
        ["--model=my_parts.Brings"],
        [r"model: EarlyStopping.*'val/nothing'"],
    ),
    "a monitor without validation": (
        ["--trainer.limit_val_batches=0", f"{EARLY}=val/loss"],
        [r"callbacks\.early_stopping\.init_args\.monitor: 'val/loss' is never logged"],
    ),
}


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    """All files below a folder, with size and time."""
    return {
        str(path): (path.lstat().st_size, path.lstat().st_mtime_ns) for path in folder.rglob("*")
    }


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer) -> Iterator[Workspace]:
    """A working directory with a small job and many parts."""
    workspace = Workspace(tmp_path_factory.mktemp("check") / "work", fork_server)
    workspace.write("my_project.py", MY_PROJECT)
    workspace.write("my_parts.py", MY_PARTS)
    workspace.write("small.yaml", SMALL)
    workspace.write("monitors.yaml", MONITORS)
    write_pictures(workspace.folder / "pictures", 20)
    for name, arguments in KEEPS.items():
        entry = {"class_path": "ModelCheckpoint", "init_args": arguments}
        layer = {
            "callbacks": {"checkpoint": None},
            "trainer": {"max_epochs": 10, "callbacks": [entry]},
        }
        workspace.write(name, layer)
    three, weights = (
        {
            "class_path": "ModelCheckpoint",
            "init_args": {"save_top_k": kept, "monitor": "val/loss", **rest},
        }
        for kept, rest in ((3, {}), (2, {"save_weights_only": True, "every_n_epochs": 2}))
    )
    workspace.write("several.yaml", {"trainer": {"max_epochs": 10, "callbacks": [three, weights]}})
    yield workspace
    workspace.close()


@pytest.fixture(scope="module")
def deep(room: Workspace) -> dict[str, Answer]:
    """What deep checks of many configs say; none leaves anything in the working directory."""
    environ = {"MY_TRACKER": "hunter2"}
    words = {**DEEP, **RIGHT, **{name: given for name, (given, _) in DEFECTS.items()}}
    commands = {
        name: Command(("check", "-c", "small.yaml", "--deep", *given), environ=environ)
        for name, given in words.items()
    }
    before = listing(room.folder)
    answers = run_batch(room, commands)
    assert listing(room.folder) == before
    return answers


# -- check -----------------------------------------------------------------------------------------


WRONG = ("check", "-c", "small.yaml", "--trainer.max_epochs=ten", "--model.hiden=3")
NO_DATA = ("-c", "small.yaml", "--data=ImageFolder", "--data.root=nowhere")
ON_GPUS = ("-c", "small.yaml", "--trainer.accelerator=gpu", "--trainer.devices=99")
CHECKS: dict[str, tuple[str, ...]] = {
    "wrong": (*WRONG, "--junit=../.home-work/wrong.xml"),
    "right": ("check", "-c", "small.yaml", "--junit", "../.home-work/right.xml"),
    "no data": ("check", *NO_DATA, "--junit=../.home-work/no_data.xml"),
    "no data of a fit": ("fit", *NO_DATA),
    "junit": ("check", "-c", "small.yaml", "--junit"),
    "stage": ("check", "test", "-c", "small.yaml", "--verbose=maybe"),
    "no GPU": ("check", *ON_GPUS),
    "any hardware": ("check", *ON_GPUS, "--no-hardware"),
    "for GPUs": ("check", *ON_GPUS, "--for", "gpu=99"),
    "for a GPU": ("check", *ON_GPUS, "--for=gpu=1"),
    "for what": ("check", *ON_GPUS, "--for=gpus"),
}


@pytest.fixture(scope="module")
def checked(room: Workspace) -> dict[str, Answer]:
    """What checks say, of which none leaves anything in the working directory but its output."""
    before = listing(room.folder)
    pages = {name: {"GITHUB_STEP_SUMMARY": str(room.home / f"{name}.md")} for name in CHECKS}
    answers = run_batch(
        room, {name: Command(words, environ=pages[name]) for name, words in CHECKS.items()}
    )
    assert listing(room.folder) == before
    return answers


def suite_of(room: Workspace, name: str) -> ET.Element:
    """The suite of test cases that a check has written."""
    suite = ET.parse(room.home / f"{name}.xml").getroot().find("testsuite")
    assert suite is not None
    return suite


def test_all_errors_are_reported_at_once_with_their_places(checked: dict[str, Answer]) -> None:
    answer = checked["wrong"]
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.count("error: ") == 2
    assert re.search(
        r"error: trainer\.max_epochs: .*'ten'\n  --> --trainer\.max_epochs=ten", answer.err
    )
    assert re.search(
        r"error: model\.init_args\.hiden: .*did you mean 'hidden'\?\n  --> --model\.hiden=3",
        answer.err,
    )


def test_a_check_writes_a_test_case_for_each_error(
    room: Workspace, checked: dict[str, Answer]
) -> None:
    suite = suite_of(room, "wrong")
    assert (suite.attrib["name"], suite.attrib["tests"], suite.attrib["failures"]) == (
        "lightkit check",
        "2",
        "2",
    )
    names = sorted(case.attrib["name"] for case in suite)
    assert names == ["small.yaml: model.init_args.hiden", "small.yaml: trainer.max_epochs"]
    assert all((case.findtext("failure") or "nothing") in checked["wrong"].err for case in suite)


def test_a_check_adds_its_errors_to_the_page_of_the_job(
    room: Workspace, checked: dict[str, Answer]
) -> None:
    said = (room.home / "wrong.md").read_text(encoding="utf-8")
    assert "small.yaml" in said
    assert "2 mistakes" in said
    mistakes = checked["wrong"].err.removeprefix("error: ").split("\nerror: ")
    assert [error_at for error_at in mistakes if error_at.strip() not in said] == []


def test_a_right_config_is_said_to_have_no_errors_and_is_one_passed_case(
    room: Workspace, checked: dict[str, Answer]
) -> None:
    assert (checked["right"].code, checked["right"].err) == (0, "")
    assert checked["right"].out.startswith("no mistakes found")
    suite = suite_of(room, "right")
    assert (suite.attrib["tests"], suite.attrib["failures"]) == ("1", "0")
    assert "no mistakes found" in (room.home / "right.md").read_text(encoding="utf-8")


def test_missing_data_is_an_error_of_a_config_and_a_case(
    room: Workspace, checked: dict[str, Answer]
) -> None:
    answer = checked["no data"]
    assert answer.code == 2
    assert re.search(
        r"error: data\.init_args\.root: .*nowhere(.|\n)*  --> --data\.root=nowhere\n", answer.err
    )
    assert suite_of(room, "no_data").attrib["failures"] == "1"


def test_missing_data_alone_ends_a_fit_with_code_3_and_no_run(checked: dict[str, Answer]) -> None:
    assert (checked["no data of a fit"].code, checked["no data of a fit"].out) == (3, "")
    assert checked["no data of a fit"].err == checked["no data"].err


def test_junit_needs_a_file_after_it(checked: dict[str, Answer]) -> None:
    assert (checked["junit"].code, checked["junit"].out) == (2, "")
    assert re.match(r"error: --junit: expected a value", checked["junit"].err)


def test_a_config_is_checked_for_the_stage_that_is_named(checked: dict[str, Answer]) -> None:
    assert checked["stage"].code == 2
    assert re.match(r"error: verbose: expected true or false, got 'maybe'", checked["stage"].err)


def test_a_config_is_checked_for_other_hardware(checked: dict[str, Answer]) -> None:
    assert {name: checked[name].code for name in ("no GPU", "any hardware", "for GPUs", "for a GPU",
                                                  "for what")} == {
        "no GPU": 2, "any hardware": 0, "for GPUs": 0, "for a GPU": 2, "for what": 2,
    }  # fmt: skip
    assert "trainer.devices: 99: this machine shows" in checked["no GPU"].err
    assert "this machine shows 1 GPU" in checked["for a GPU"].err
    assert re.search(r"--for: expected gpu=N.*'gpus'", checked["for what"].err)


# -- deep: what it says ----------------------------------------------------------------------------


def test_a_deep_check_says_what_it_saw(deep: dict[str, Answer]) -> None:
    answer = deep["report"]
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    words = [line.split()[0] for line in lines]
    assert words == [
        "model",
        "data",
        "batch",
        "metrics",
        "checkpoints",
        "memory",
        "not",
        "not",
        "no",
    ]
    assert re.search(r"Net, 41 parameters, 41 of them trained", lines[0])
    assert re.search(
        r"Points, training 48 samples in 6 batches, validation 48 samples in 6 batches, test 48 ",
        lines[1],
    )
    assert re.search(r"lr-AdamW, test/loss, train/loss, val/loss", lines[3])
    assert re.search(r"\d x [\d.]+ k?B in .*; .*B free", lines[4])
    # that of one checkpoint, and that of the disk
    assert len(re.findall(r"[\d.]+ [kMGT]?B\b", lines[4])) == 2
    assert {line.split()[2] for line in lines[6:8]} == {"logger.mlflow:", "logger.csv:"}
    assert lines[-1] == "no mistakes found"


def test_a_deep_check_as_json_is_one_object_whatever_the_model_prints(
    deep: dict[str, Answer],
) -> None:
    answer = deep["json"]
    found: dict[str, Any] = json.loads(answer.ok().out)
    assert found["mistakes"] == []
    assert found["model"] == {"class": "Talks", "parameters": 41, "trained": 41}
    assert found["metrics"] == ["test/loss", "train/loss", "val/loss"]
    assert "this model talks" in answer.err


def test_a_quiet_deep_check_prints_nothing_where_nothing_is_wrong(deep: dict[str, Answer]) -> None:
    assert (deep["quiet"].code, deep["quiet"].out, deep["quiet"].err) == (0, "", "")


def test_a_deep_check_reports_a_loggers_error_without_the_secret(deep: dict[str, Answer]) -> None:
    answer = deep["secret"]
    assert answer.code == 2
    assert "tracking_uri" in answer.err
    assert "${oc.env:MY_TRACKER}" in answer.err
    assert "hunter2" not in answer.err + answer.out


def test_a_deep_check_does_not_build_a_logger_that_may_ask_a_server(
    deep: dict[str, Answer],
) -> None:
    assert re.search(r"^not tried +logger\.comet", deep["comet"].ok().out, re.MULTILINE)


def test_a_deep_check_leaves_default_weights_out(deep: dict[str, Answer]) -> None:
    assert re.search(
        r"^not tried +model\.init_args\.weights: ", deep["weights"].ok().out, re.MULTILINE
    )


def test_a_deep_check_keeps_the_epochs_and_schedules_of_the_config(deep: dict[str, Answer]) -> None:
    assert deep["schedule"].ok().err == ""


# with one while written
@pytest.mark.parametrize(("name", "count"), [("best three", 4), ("each fifth epoch", 3)])
def test_a_deep_check_counts_the_checkpoints_that_a_run_keeps(
    name: str, count: int, deep: dict[str, Answer]
) -> None:
    (place,) = json.loads(deep[name].ok().out)["checkpoints"]
    assert place["count"] == count
    assert place["needed_bytes"] == count * place["size_bytes"]


def test_a_deep_check_counts_the_checkpoint_that_is_being_written_once_a_run(
    deep: dict[str, Answer],
) -> None:
    """Two callbacks of the config keep three and, of weights alone, two.

    `resume.ckpt` is the third's.
    """
    places = json.loads(deep["several callbacks"].ok().out)["checkpoints"]
    assert sorted(place["count"] for place in places) == [1, 2, 3 + 1]
    of_weights, state, largest = sorted(
        places, key=lambda place: (place["size_bytes"], place["count"])
    )
    assert of_weights["count"] == 2
    assert of_weights["size_bytes"] < state["size_bytes"] == largest["size_bytes"]
    assert largest["count"] == 4


def test_a_deep_check_is_on_one_cpu_whatever_the_hardware_keys(deep: dict[str, Answer]) -> None:
    assert re.search(
        r"^not tried +trainer\.precision: 16-mixed", deep["16 bit"].ok().out, re.MULTILINE
    )


def test_a_deep_check_warns_where_the_ranks_take_more_memory_than_there_is(
    deep: dict[str, Answer],
) -> None:
    memory = json.loads(deep["ranks"].ok().out)["memory"]
    assert memory["num_processes"] == 1000
    assert memory["needed_bytes"] == 1000 * memory["peak_bytes"]
    assert re.search(r"^warning: .*memory available", deep["ranks"].err, re.MULTILINE)


# -- deep: what it finds ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", RIGHT)
def test_a_deep_check_takes_what_is_right(name: str, deep: dict[str, Answer]) -> None:
    assert deep[name].ok().out.endswith("no mistakes found\n")


@pytest.mark.parametrize("name", DEFECTS)
def test_a_deep_check_finds(name: str, deep: dict[str, Answer]) -> None:
    answer, says = deep[name], DEFECTS[name][1]
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.count("error: ") == len(says), answer.err
    for text in says:
        assert re.search(f"error: {text}", answer.err), answer.err
    assert "Traceback" not in answer.err


@pytest.mark.parametrize(
    ("key", "metric", "near"),
    [
        ("callbacks.checkpoint.init_args.monitor", "val/accuracy", ""),
        ("callbacks.early_stopping.init_args.monitor", "val/los", "val/loss"),
        ("lr_scheduler.init_args.monitor", "vall/loss", "val/loss"),
        ("trainer.callbacks.0.init_args.monitor", "train_loss", "train/loss"),
    ],
    ids=["checkpoint", "early stopping", "scheduler", "list"],
)
def test_a_deep_check_reports_every_monitor_that_is_never_logged(
    key: str, metric: str, near: str, deep: dict[str, Answer]
) -> None:
    answer = deep["monitors"]
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.count("error: ") == 4
    found = re.search(
        rf"error: {re.escape(key)}: '{metric}' is never logged.*\n  --> monitors.yaml:\d",
        answer.err,
    )
    assert found
    assert f"did you mean '{near}'" in found[0] if near else "train/loss, val/loss" in found[0]


def test_a_deep_check_reports_each_part_that_cannot_be_built(deep: dict[str, Answer]) -> None:
    answer = deep["parts"]
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.count("error: ") == 3
    assert re.search(
        r"error: model: .*ValueError: hidden layers are out of stock\n  --> my_project\.py:",
        answer.err,
    )
    assert re.search(r"error: callbacks\.mine: .*RuntimeError: no callbacks today", answer.err)
    assert "error: points/: no points there" in answer.err


def test_an_interrupted_deep_check_leaves_nothing_behind(room: Workspace) -> None:
    seen = room.home / "seen"
    before = listing(room.folder)
    words = ("check", "-c", "small.yaml", "--deep", "callbacks.knocks=my_parts.Knocks")
    result = room.run(*words, environ={"SEEN": str(seen), "PYTHONDONTWRITEBYTECODE": "1"})
    assert result.code == 130, result.err
    after = {
        path: state for path, state in listing(room.folder).items() if "__pycache__" not in path
    }
    assert after.keys() == before.keys()
    assert not Path(seen.read_text(encoding="utf-8")).exists()


def test_a_deep_check_of_a_run_reads_its_checkpoint(
    finished: Workspace,
) -> None:
    checkpoint = finished.only_run / "checkpoints" / "last.ckpt"
    words = ("check", "-c", "small.yaml", "--deep", f"--ckpt_path={checkpoint}")
    commands = {
        "test": Command(("check", "test", "--run", "latest", "--deep")),
        "validate": Command(("check", "validate", "--run", "latest", "--deep")),
        "fits": Command(words),
        "does not fit": Command((*words, "--model.hidden=7")),
    }
    before = listing(finished.folder)
    answers = run_batch(finished, commands)
    assert listing(finished.folder) == before
    assert {name: answer.code for name, answer in answers.items()} == {
        "test": 0, "validate": 0, "fits": 0, "does not fit": 2,
    }, answers  # fmt: skip
    assert "test/loss" in answers["test"].out
    assert re.match(r"error: the checkpoint does not fit the model", answers["does not fit"].err)


def test_a_deep_check_of_a_shipped_config_downloads_nothing(
    room: Workspace, tmp_path: Path
) -> None:
    words = {
        name: ("check", "-c", str(CONFIGS / f"{name}.yaml"), "--deep")
        for name in ("temperatures", "fashion_mnist")
    }
    answers = run_batch(room, {name: Command(given, tmp_path) for name, given in words.items()})
    assert answers["temperatures"].ok().out.endswith("no mistakes found\n")
    assert answers["fashion_mnist"].code in (2, 3)
    assert "lightkit fetch" in answers["fashion_mnist"].err
    assert list(tmp_path.glob("*/*")) == []


def test_check_prints_the_errors_as_json_with_their_places(workspace: Workspace) -> None:
    workspace.write("wrong.yaml", "trainer:\n  max_epoch: 3\n")
    result = workspace.run("check", "-c", "small.yaml", "-c", "wrong.yaml", "--output", "json")
    assert result.code == 2
    (error,) = json.loads(result.out)["mistakes"]
    assert (error["file"], error["line"], error["column"], error["exit_code"]) == (
        "wrong.yaml",
        2,
        3,
        2,
    )
    assert "did you mean 'max_epochs'" in error["message"]
