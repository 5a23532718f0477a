"""`lightkit check --deep`: what only building and one batch can show."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from tests.cli.conftest import House, Outcome

MORE = '''\
"""Parts that somebody wrote, with and without defects."""

import os
import signal
import urllib.request
import warnings
from pathlib import Path

import torch
from torch.utils.data import DataLoader
from my_models import Net, Points
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


class Brake(Net):
    """It brings a callback of its own."""

    def configure_callbacks(self):
        return [EarlyStopping("val/nothing")]


class Keeping(Net):
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


class FailsTwice(Net):
    """Training and validation have a defect each."""

    def training_step(self, batch, index):
        raise ValueError("training is out of stock")

    def validation_step(self, batch, index):
        raise KeyError("validation is out of stock")


class FailsInBoth(Net):
    """Training and validation share a defect."""

    def forward(self, x):
        raise ValueError("layers are out of stock")


class Downloads(Net):
    """It would download weights."""

    def __init__(self):
        super().__init__()
        urllib.request.urlopen("https://example.com/weights.pt")


class Unpicklable(Net):
    """Its checkpoint holds what cannot be written."""

    def on_save_checkpoint(self, checkpoint):
        checkpoint["forward"] = lambda x: x


class Steps(Net):
    """It writes down how often the optimizer steps, what the trainer is, and the loggers."""

    def on_train_epoch_end(self):
        trainer = self.trainer
        assert (trainer.global_step, trainer.num_devices) == (1, 1)
        assert type(trainer.accelerator).__name__ == "CPUAccelerator"
        self.logger.experiment.add_scalar("x", 1, 1)
        print("this model talks")


class Missing(Points):
    """Data that is not there."""

    def setup(self, stage):
        from lightkit.errors import DataError
        raise DataError("points/: no points there; run `lightkit fetch`")


class Torn(Points):
    """Data that cannot be built."""

    def __init__(self):
        raise ValueError("points are out of stock")


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
        Path(trainer.default_root_dir, "left").touch()
        Path(os.environ["SEEN"]).write_text(trainer.default_root_dir)
        os.kill(os.getpid(), signal.SIGINT)
'''


@pytest.fixture
def check(house: House) -> Callable[..., Outcome]:
    """Checks `small.yaml` deeply, and watches that the working directory stays as it is."""
    house.write("more_models.py", MORE).rename(house.folder / "my_parts.py")

    def run(*words: str, stage: str = "fit") -> Outcome:
        before = _listing(house.folder)
        done = house("check", stage, "-c", "small.yaml", "--deep", *words)
        assert _listing(house.folder) == before
        return done

    return run


def _listing(folder: Path) -> dict[str, tuple[int, int]]:
    found = [path for path in folder.rglob("*") if "__pycache__" not in path.parts]
    return {str(path.relative_to(folder)): (path.lstat().st_size, path.lstat().st_mtime_ns) for path in found}


def test_a_right_config_is_reported_and_leaves_nothing_behind(check: Callable[..., Outcome]) -> None:
    done = check("callbacks.lr_monitor={}", "logger.mlflow={}", "logger.csv={}")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert [line.split()[0] for line in lines] == [
        "model", "data", "batch", "metrics", "checkpoints", "memory", "not", "not", "no"
    ]  # fmt: skip
    assert "Net, 21 parameters, 21 of them trained" in lines[0]
    assert lines[1] == f"{'data':12} Points, training 8 samples in 2 batches, validation 8 samples in 2 batches"
    assert lines[3] == f"{'metrics':12} lr-SGD, train/loss, val/loss"
    assert lines[4].startswith(f"{'checkpoints':12} 4 x ")
    assert lines[4].split("; ")[1].endswith("B free")
    assert lines[-2] == f"{'not tried':12} logger.csv: built, but nothing is logged to it"
    assert lines[-1] == "no mistakes found"


def test_json_is_one_object_whatever_the_models_code_prints(check: Callable[..., Outcome]) -> None:
    done = check("--model=my_parts.Steps", "--output=json", "--trainer.accumulate_grad_batches=4")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert told["mistakes"] == []
    assert told["model"] == {"class": "Steps", "parameters": 21, "trained": 21}
    assert told["metrics"] == ["train/loss", "val/loss"]
    assert told["checkpoints"][0]["count"] == 4
    assert told["memory"]["num_processes"] == 1
    assert "this model talks" in done.err


def test_quiet_prints_nothing(check: Callable[..., Outcome]) -> None:
    done = check("--quiet")
    assert (done.code, done.out, done.err) == (0, "", "")


def test_a_logger_that_refuses_its_arguments_is_told_without_secrets(
    check: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TRACKER", "hunter2")
    done = check("logger.mlflow.init_args.tracking_uri=${oc.env:MY_TRACKER}", "logger.csv={}")
    assert done.code == 2
    assert "tracking_uri of the logger MLflow is '${oc.env:MY_TRACKER}', a folder." in done.err
    assert "hunter2" not in done.err


def test_a_logger_that_may_open_something_is_left_out(check: Callable[..., Outcome]) -> None:
    done = check("logger.comet.init_args.online=false")
    assert done.code == 0, done.err
    assert "not tried    logger.comet: not built: it may write, or ask a server" in done.out


def test_random_state_and_environment_are_as_before(check: Callable[..., Outcome]) -> None:
    before = _state_of_process()
    check()
    assert _state_of_process() == before


def _state_of_process() -> list[object]:
    numbers = np.random.get_state(legacy=False)
    return [torch.get_rng_state().tolist(), random.getstate(), repr(numbers), dict(os.environ)]


def test_schedules_reckon_with_the_whole_training(check: Callable[..., Outcome]) -> None:
    done = check("--model=my_parts.Scheduled", "--trainer.max_epochs=20")
    assert done.code == 0, done.err


# -- monitors ----------------------------------------------------------------------------------------------------------


def test_every_monitor_that_is_never_logged_is_told_with_its_place(check: Callable[..., Outcome], house: House) -> None:
    house.write(
        "monitors.yaml",
        "callbacks:\n  checkpoint: {init_args: {monitor: val/accuracy}}\n"
        "  early_stopping:\n    init_args:\n      monitor: val/los\n"
        "optimizer: {class_path: SGD, init_args: {lr: 0.1}}\n"
        "lr_scheduler:\n  class_path: ReduceLROnPlateau\n  init_args: {monitor: vall/loss}\n"
        "trainer:\n  callbacks:\n    - {class_path: ModelCheckpoint, init_args: {monitor: train_loss}}\n",
    )  # fmt: skip
    done = check("-c", "monitors.yaml")
    assert (done.code, done.out) == (2, "")
    assert done.err.count("error: ") == 4
    assert (
        "error: callbacks.early_stopping.init_args.monitor: 'val/los' is never logged; did you mean 'val/loss'? logged "
        "are: train/loss, val/loss\n  --> monitors.yaml:5:16\n    5 |       monitor: val/los\n"
    ) in done.err
    assert "error: callbacks.checkpoint.init_args.monitor: 'val/accuracy' is never logged" in done.err
    assert "error: lr_scheduler.init_args.monitor: 'vall/loss' is never logged; did you mean 'val/loss'" in done.err
    assert "error: trainer.callbacks.0.init_args.monitor: 'train_loss' is never logged; did you mean" in done.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--model=my_parts.Plateau", "model: ReduceLROnPlateau, which its code makes, monitors 'val/los', which is"),
        ("--model=my_parts.Brake", "model: EarlyStopping, which its code makes, monitors 'val/nothing', which is"),
        ("--trainer.limit_val_batches=0 callbacks.early_stopping.init_args.monitor=val/loss",
         "callbacks.early_stopping.init_args.monitor: 'val/loss' is never logged; did you mean"),
    ],
    ids=["a scheduler of the model's", "a callback of the model's", "no validation"],
)  # fmt: skip
def test_a_monitor_may_be_missing_for_other_reasons(words: str, says: str, check: Callable[..., Outcome]) -> None:
    done = check(*words.split())
    assert done.code == 2
    assert done.err.startswith(f"error: {says}")


@pytest.mark.parametrize(
    "words",
    [
        "callbacks.early_stopping.init_args.monitor=val/loss",
        "callbacks.early_stopping.init_args={monitor: val/none, strict: false}",
        "--model=my_parts.Plateau --model.monitor=train/loss",
        "callbacks.swa.init_args={swa_lrs: 0.01, device: null}",
        "callbacks.ema={}",
        "--trainer.check_val_every_n_epoch=5",
        "callbacks.checkpoint=null --model=my_parts.Keeping",
        "callbacks.checkpoint=null --trainer.callbacks=EarlyStopping --trainer.callbacks.monitor=val/loss",
    ],
    ids=[
        "logged",
        "not strict",
        "logged in training",
        "swa",
        "ema",
        "a validation now and then",
        "checkpoints of the model's own",
        "one callback",
    ],
)
def test_what_is_right_passes(words: str, check: Callable[..., Outcome]) -> None:
    first, *rest = words.split(" --")
    done = check(first, *(f"--{word}" for word in rest))
    assert done.code == 0, done.err


# -- code of the user's own --------------------------------------------------------------------------------------------


def test_each_part_that_cannot_be_built_is_told(check: Callable[..., Outcome]) -> None:
    done = check("--model=my_models.Broken", "--data=my_parts.Missing", "callbacks.mine=my_parts.Refuses")
    assert (done.code, done.out) == (2, "")
    assert done.err.count("error: ") == 3
    assert (
        "error: model: Broken cannot be built: ValueError: hidden layers are out of stock\n  --> my_models.py:"
        in done.err
    )
    assert 'raise ValueError("hidden layers are out of stock")' in done.err
    assert "error: callbacks.mine: Refuses cannot be built: RuntimeError: no callbacks today" in done.err
    assert "error: points/: no points there; run `lightkit fetch`" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--model=my_models.Failing"],
         ["error: model: one batch of training fails: ValueError: batches are out of stock\n  --> my_models.py:"]),
        (["--model=my_parts.FailsTwice"],
         ["error: model: one batch of training fails: ValueError: training is out of stock",
          "error: model: one batch of validation fails: KeyError: 'validation is out of stock'"]),
        (["--model=my_parts.FailsInBoth"], ["error: model: one batch of training fails: ValueError: layers are out"]),
        (["--model=my_parts.OtherSignature"],
         ["error: model: one batch of training fails: TypeError: OtherSignature.training_step() missing"]),
        (["--data=my_parts.Torn"], ["error: data: Torn cannot be built: ValueError: points are out of stock"]),
        (["--trainer.gradient_clip_algorithm=none"], ["error: trainer.gradient_clip_algorithm: "]),
        (["--data=my_parts.BrokenRow"],
         ["error: data: one batch of training fails: OSError: row 0 is torn\n  --> my_parts.py:"]),
        (["--model=my_parts.Unpicklable"], ["error: a checkpoint of this model cannot be written: Can't pickle local"]),
        (["--data=my_parts.Missing"], ["error: points/: no points there; run `lightkit fetch`"]),
        (["--optimizer=SGD", "--optimizer.lr=-1"], ["error: optimizer: SGD cannot be built: ValueError: Invalid"]),
        (["--trainer.val_check_interval=1000"],
         ["error: trainer.val_check_interval: `val_check_interval` (1000) must be"]),
        (["--model=my_parts.Downloads"],
         ["error: https://example.com/weights.pt would be downloaded, which check --deep does not do"]),
        (["callbacks.lr_finder={}"], ["error: callbacks.lr_finder: neither the model, its hparams nor its data has"]),
        (["callbacks.lr_monitor={}", "--trainer.logger=false"],
         ["error: trainer.logger: Cannot use `LearningRateMonitor` callback with `Trainer` that has no logger."]),
    ],
    ids=["training", "training and validation", "a shared defect", "signature", "data's constructor",
         "trainer's arguments",
         "data", "checkpoint", "no data", "optimizer",
         "trainer", "download", "finder", "no logger"],
)  # fmt: skip
def test_a_defect_is_told_with_its_line(words: list[str], says: list[str], check: Callable[..., Outcome]) -> None:
    done = check(*words)
    assert (done.code, done.out) == (2, "")
    assert done.err.count("error: ") == len(says)
    for text in says:
        assert text in done.err
    assert "Traceback" not in done.err


def test_an_interrupted_check_leaves_nothing_behind(house: House, tmp_path_factory: pytest.TempPathFactory) -> None:
    house.write("more_models.py", MORE).rename(house.folder / "my_parts.py")
    seen = tmp_path_factory.mktemp("seen") / "folder"
    os.environ["SEEN"] = str(seen)
    before = _listing(house.folder)
    done = house("check", "-c", "small.yaml", "--deep", "callbacks.knocks=my_parts.Knocks")
    assert done.code == 130
    assert _listing(house.folder) == before
    assert not Path(seen.read_text()).exists()


# -- disk and memory ---------------------------------------------------------------------------------------------------


def test_a_full_disk_is_a_mistake_that_says_how_much_is_needed(
    check: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    done = check("--run.root=elsewhere")
    assert done.code == 2
    assert "error: callbacks.checkpoint: 4 checkpoints of " in done.err
    assert " one of them while it is written, need " in done.err
    assert "but 1 kB are free in elsewhere; make room, keep fewer, or set run.root" in done.err


@pytest.mark.parametrize(
    ("arguments", "count", "is_bounded"),
    [
        ({"save_top_k": 3, "monitor": "val/loss"}, 4, True),
        ({"save_top_k": 30, "monitor": "val/loss"}, 11, True),
        ({"save_top_k": -1}, 11, True),
        ({"save_top_k": -1, "every_n_epochs": 5}, 3, True),
        ({"save_top_k": -1, "every_n_train_steps": 4, "save_last": True}, 7, True),
        ({"save_top_k": -1, "train_time_interval": "0:05:00"}, 2, False),
    ],
    ids=["best three", "more than epochs", "each epoch", "every fifth epoch", "by steps, and the last", "by time"],
)
def test_checkpoints_are_counted(
    arguments: dict[str, object], count: int, is_bounded: bool, check: Callable[..., Outcome], house: House
) -> None:
    house.write(
        "keeps.yaml",
        "callbacks: {checkpoint: null}\ntrainer: {max_epochs: 10, callbacks: [{class_path: ModelCheckpoint, init_args: "
        f"{json.dumps(arguments)}}}]}}\n",
    )
    done = check("-c", "keeps.yaml", "--output=json")
    assert done.code == 0, done.err
    (place,) = json.loads(done.out)["checkpoints"]
    assert (place["count"], place["is_bounded"]) == (count, is_bounded)
    assert place["needed_bytes"] == count * place["size_bytes"]


def test_scarce_memory_is_a_warning(check: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightkit.cli.deep.memory.memory_to_take", lambda: 1_000_000)
    done = check()
    assert done.code == 0
    assert "warning: one batch on the CPU took " in done.err
    assert "more than four fifths of the 1 MB of memory to be had" in done.err


def test_each_rank_takes_its_memory(check: Callable[..., Outcome]) -> None:
    done = check("--output=json", "trainer.accelerator=null", "accelerator.num_processes=2", "accelerator.strategy=ddp")
    assert done.code == 0, done.err
    memory = json.loads(done.out)["memory"]
    assert memory["num_processes"] == 2
    assert memory["needed_bytes"] == 2 * memory["peak_bytes"]


# -- the rest ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_other_stages_of_a_run_are_checked_with_its_checkpoint(stage: str, house: House) -> None:
    house.fit("-c", "small.yaml")
    before = _listing(house.folder)
    done = house("check", stage, "--run", "latest", "--deep")
    assert done.code == 0, done.err
    assert f"{'val' if stage == 'validate' else stage}" in done.out
    assert _listing(house.folder) == before


@pytest.mark.slow
def test_a_checkpoint_that_does_not_fit_is_told(house: House) -> None:
    run = house.fit("-c", "small.yaml")
    words = ["check", "-c", "small.yaml", "--deep", f"--ckpt_path={run / 'checkpoints' / 'last.ckpt'}"]
    assert house(*words).code == 0
    done = house(*words, "--model.hidden=7")
    assert done.code == 2
    assert done.err.startswith("error: the checkpoint does not fit the model: ")


def test_hardware_is_left_out(check: Callable[..., Outcome]) -> None:
    words = (
        "launch.engine=torchrun launch.processes=2 accelerator.strategy=ddp trainer.accelerator=null accelerator=cpu"
    )
    done = check("--trainer.precision=16-mixed", *words.split())
    assert done.code == 0, done.err
    assert "not tried    trainer.precision: 16-mixed is not for a CPU; 32-true in its place" in done.out


@pytest.mark.slow
@pytest.mark.parametrize("name", ["temperatures", "flowers"])
def test_shipped_configs_have_no_mistakes(name: str, house: House) -> None:
    config = Path(__file__).parents[2] / "configs" / f"{name}.yaml"
    done = house("check", "-c", str(config), "--deep")
    assert done.code == 0, done.err
    assert not list(house.folder.glob("*/"))
    assert "no mistakes found" in done.out


def test_a_shipped_config_whose_data_is_not_there_says_how_to_fetch_it(house: House) -> None:
    done = house("check", "-c", str(Path(__file__).parents[2] / "configs" / "fashion_mnist.yaml"), "--deep")
    assert done.code == 2
    assert "Run `lightkit fetch` with the same -c FILE to download them" in done.err


def test_help_says_that_the_configs_own_code_runs(house: House) -> None:
    done = house("check", "--help")
    assert done.code == 0
    assert "A deep check runs the config's own code" in done.out


def test_processes_that_load_count_with_what_they_have_for_themselves() -> None:
    from lightkit.cli.deep.memory import peak_bytes, workers_bytes

    held_bytes = 200_000_000
    held = torch.ones(held_bytes // 4)
    loader: DataLoader[int] = DataLoader([0] * 4, num_workers=1, persistent_workers=True)  # type: ignore[arg-type]
    batches = iter(loader)
    next(batches)
    assert 0 < workers_bytes() < held_bytes
    assert peak_bytes() > held.nbytes
    del batches, loader


@pytest.mark.parametrize(
    ("number", "words"),
    [(0, "0 bytes"), (999, "999 bytes"), (14_200_000, "14.2 MB"), (120e9, "120 GB"), (5e15, "5e+03 TB")],
)
def test_sizes_are_written_with_a_unit(number: float, words: str) -> None:
    from lightkit.runs.disk import in_bytes

    assert in_bytes(number) == words
