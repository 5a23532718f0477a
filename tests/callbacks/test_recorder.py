from __future__ import annotations

import csv
import json
import logging
import random
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import LambdaCallback, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

from lightkit import runs
from lightkit.callbacks.checkpoint_io import VerifiedCheckpointIO
from lightkit.callbacks.recorder import RunRecorder
from lightkit.errors import ConfigError, Interrupted

# Lightning 2.6.6 asks torch 2.15 for a name that is going; seen 2026-11-20.
pytestmark = pytest.mark.filterwarnings(
    r"ignore:.*isinstance\(treespec, LeafSpec\).*",
    "ignore:.*does not have many workers.*",
    "ignore:Starting from v1.9",
)


class Line(pl.LightningModule):
    """Fits a line; logs in every way that Lightning has."""

    def __init__(
        self, *, fails_at_step: int | None = None, error: BaseException | None = None
    ) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.fails_at_step, self.error = fails_at_step, error

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.error is not None and self.global_step == self.fails_at_step:
            raise self.error
        loss = torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])
        self.log("train/loss", loss, on_step=False, on_epoch=True)
        return loss

    def on_train_epoch_end(self) -> None:
        self.log("train/late", float(self.current_epoch))

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val/loss", torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1]))
        self.log("val/epoch", float(self.current_epoch))

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test/loss", 0.25)

    def predict_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        output: torch.Tensor = self.layer(batch[0])
        return output

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.125)


class Pairs(pl.LightningDataModule):
    def _loader(self) -> DataLoader[Any]:
        x = torch.arange(10.0).reshape(10, 1) / 10
        return DataLoader(TensorDataset(x, 2 * x), batch_size=4)

    train_dataloader = val_dataloader = test_dataloader = predict_dataloader = _loader

    def describe(self) -> dict[str, Any]:
        return {"source": "drawn", "fingerprint": "f0"}


@pytest.fixture
def run(tmp_path: Path) -> runs.Run:
    return runs.create(tmp_path, "line")


def _trainer(
    run: runs.Run, recorder: RunRecorder, *more: pl.Callback, epochs: int = 3, **settings: Any
) -> pl.Trainer:
    settings = {"logger": False, "enable_checkpointing": bool(more)} | settings
    return pl.Trainer(
        default_root_dir=run.folder,
        max_epochs=epochs,
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[recorder, *more],
        **settings,
    )


def _recorder(run: runs.Run, **more: Any) -> RunRecorder:
    return RunRecorder(run, events=runs.EventStream(run.events_path), **more)


@contextmanager
def _recording(recorder: RunRecorder) -> Iterator[RunRecorder]:
    recorder.start()
    try:
        yield recorder
    except BaseException as error:
        recorder.close(error)
        raise
    recorder.close()


def _events(run: runs.Run, event: str | None = None) -> list[dict[str, Any]]:
    return [
        record for record in runs.read_events(run.events_path) if event in (None, record["event"])
    ]


def _rows(run: runs.Run) -> list[dict[str, str]]:
    with run.metrics_path.open(newline="") as file:
        return list(csv.DictReader(file))


def _summary(run: runs.Run) -> SimpleNamespace:
    summary = runs.read_summary(run.summary_path)
    assert summary is not None
    return SimpleNamespace(**summary)


def test_the_learning_rate_is_that_of_the_epochs_start_for_each_group_that_differs(
    run: runs.Run,
) -> None:
    class Decays(Line):
        def configure_optimizers(self) -> Any:
            groups: list[dict[str, Any]] = [
                {"params": [self.layer.weight]},
                {"params": [self.layer.bias], "lr": 0.25},
            ]
            optimizer = torch.optim.SGD(groups, lr=0.5)
            halves = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": halves, "interval": "epoch"},
            }

    with _recording(_recorder(run)) as recorder:
        _trainer(run, recorder, epochs=2).fit(Decays(), Pairs())
    assert [(row["lr/0"], row["lr/1"]) for row in _rows(run)] == [
        ("0.5", "0.25"),
        ("0.25", "0.125"),
    ]


def test_a_metric_that_is_logged_by_step_alone_is_recorded_as_that_of_the_last_step(
    run: runs.Run,
) -> None:
    """Batches of 4, 4 and 2 samples log 0, 1 and 2.

    The last step has 2, and the mean is (0*4 + 1*4 + 2*2) / 10.
    """

    class Counts(Line):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            self.log("train/plain", float(batch_idx))
            self.log("train/both", float(batch_idx), on_step=True, on_epoch=True)
            self.log("train/epoch", float(batch_idx), on_step=False, on_epoch=True)
            self.log("train/again", float(batch_idx))
            return super().training_step(batch, batch_idx)

        def on_train_epoch_end(self) -> None:
            self.log("train/again", 0.5)

    with _recording(_recorder(run)) as recorder:
        _trainer(run, recorder, epochs=2).fit(Counts(), Pairs())
    for row in _rows(run):
        assert (row["train/plain_step"], row["train/both_step"]) == ("2.0", "2.0")
        assert float(row["train/both"]) == pytest.approx(0.8)
        assert float(row["train/epoch"]) == pytest.approx(0.8)
        assert row["train/again"] == "0.5"
        assert "train/plain" not in row
    assert _summary(run).metrics["last"]["train/plain_step"] == 2.0


def test_a_validation_of_an_earlier_epoch_is_not_this_epochs(run: runs.Run) -> None:
    with _recording(_recorder(run)) as recorder:
        _trainer(run, recorder, check_val_every_n_epoch=2, epochs=4).fit(Line(), Pairs())
    assert [row["val/epoch"] for row in _rows(run)] == ["", "1.0", "", "3.0"]


def test_a_data_module_that_says_nothing_of_itself_works_too(run: runs.Run) -> None:
    loader = Pairs().train_dataloader()
    with _recording(_recorder(run, manifest={"data": None})) as recorder:
        _trainer(run, recorder, epochs=1).fit(Line(), loader, loader)
    assert json.loads(run.manifest_path.read_text())["data"] is None


@pytest.mark.parametrize(
    ("error", "status", "code", "words"),
    [
        (ZeroDivisionError("a\nb"), "failed", 1, "ZeroDivisionError: a b"),
        (ConfigError("no such key"), "failed", 2, "no such key"),
        (
            BrokenPipeError(32, "Broken pipe"),
            "failed",
            141,
            "BrokenPipeError: [Errno 32] Broken pipe",
        ),
        (Interrupted(15), "interrupted", 143, "signal 15"),
        (Interrupted(15, checkpoint=Path("last.ckpt")), "preempted", 75, "signal 15"),
    ],
    ids=["crash", "mistake", "pipe", "interrupted", "preempted"],
)
def test_what_ended_it_is_recorded(
    error: BaseException, status: str, code: int, words: str, run: runs.Run
) -> None:
    with pytest.raises(type(error)), _recording(_recorder(run)) as recorder:
        _trainer(run, recorder).fit(Line(fails_at_step=4, error=error), Pairs())
    summary = _summary(run)
    assert (summary.status, summary.exit_code, summary.error) == (status, code, words)
    assert summary.epochs == 1
    (end,) = _events(run, "end")
    assert (end["status"], end["exit_code"], end["error"]) == (status, code, words)
    assert _events(run)[-1] == end


def test_the_end_is_recorded_once(run: runs.Run) -> None:
    recorder = _recorder(run)
    recorder.close(Interrupted(15, checkpoint=Path("last.ckpt")))
    late = threading.Thread(target=recorder.close)
    late.start()
    late.join()
    assert [(event["event"], event["status"]) for event in _events(run)] == [("end", "preempted")]
    assert _summary(run).exit_code == 75


def test_a_full_disk_does_not_hide_what_ended_the_training(
    run: runs.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Told(pl.Callback):
        def on_exception(
            self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
        ) -> None:
            exceptions.append(exception)

    def full(self: runs.EventStream, line: bytes) -> None:
        raise OSError(28, "No space left on device", str(self.path))

    def fails(trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        monkeypatch.setattr(runs.EventStream, "_append", full)
        raise error

    exceptions: list[BaseException] = []
    error = ValueError("the model's own")
    recorder = RunRecorder(run, events=runs.EventStream(run.events_path))
    fail = LambdaCallback(on_train_epoch_end=fails)
    with pytest.raises(ValueError, match="the model's own"), _recording(recorder):
        _trainer(run, recorder, fail, Told(), enable_checkpointing=False).fit(Line(), Pairs())
    assert exceptions == [error]


def test_a_failure_before_training_is_recorded_too(run: runs.Run) -> None:
    with pytest.raises(ConfigError), _recording(_recorder(run)):
        raise ConfigError("no such class")
    assert (_summary(run).status, _summary(run).exit_code) == ("failed", 2)


@pytest.mark.parametrize(
    ("on_train_epoch_end", "validates"),
    [(True, True), (False, True), (None, True), (True, False), (None, False)],
    ids=[
        "after-epoch",
        "after-validation",
        "default",
        "after-epoch-unvalidated",
        "default-unvalidated",
    ],
)
def test_a_resumed_fit_leaves_the_rows_of_one_that_never_stopped(
    on_train_epoch_end: bool | None, validates: bool, run: runs.Run
) -> None:
    def keeper() -> ModelCheckpoint:
        return ModelCheckpoint(
            run.checkpoints,
            filename="{epoch}",
            save_top_k=-1,
            save_on_train_epoch_end=on_train_epoch_end,
        )

    settings = {} if validates else {"limit_val_batches": 0}
    with _recording(_recorder(run)) as recorder:
        _trainer(run, recorder, keeper(), epochs=2, **settings).fit(Line(), Pairs())
    first = _rows(run)
    resumed = runs.open_run(run.folder, resumed=True)
    with _recording(_recorder(resumed)) as recorder:
        trainer = _trainer(resumed, recorder, keeper(), epochs=4, **settings)
        trainer.fit(Line(), Pairs(), ckpt_path=run.checkpoints / "epoch=1.ckpt", weights_only=False)
    rows = _rows(run)
    assert rows[:2] == first
    assert [(row["epoch"], row["step"], row["train/late"]) for row in rows] == [
        ("0", "3", "0.0"),
        ("1", "6", "1.0"),
        ("2", "9", "2.0"),
        ("3", "12", "3.0"),
    ]
    assert all(row["train/loss"] for row in rows)
    assert [record["epoch"] for record in _events(run, "epoch")] == [0, 1, 2, 3]
    (resume,) = _events(run, "resume")
    assert resume["checkpoint"] == "checkpoints/epoch=1.ckpt"
    assert resume["step"] == 6


def test_the_row_is_on_disk_before_the_checkpoint_of_its_epoch(run: runs.Run) -> None:
    seen: list[list[str]] = []

    class Keeper(ModelCheckpoint):
        def _save_checkpoint(self, trainer: pl.Trainer, filepath: str) -> None:
            super()._save_checkpoint(trainer, filepath)
            seen.append([row["train/late"] for row in _rows(run)])

    with _recording(_recorder(run)) as recorder:
        keeper = Keeper(run.checkpoints, save_on_train_epoch_end=True)
        _trainer(run, recorder, keeper, epochs=2).fit(Line(), Pairs())
    assert seen == [["0.0"], ["0.0", "1.0"]]


def test_a_fit_that_was_done_already_resumes_and_ends_without_a_row(run: runs.Run) -> None:
    keeper = ModelCheckpoint(run.checkpoints, filename="last", save_on_train_epoch_end=True)
    with _recording(_recorder(run)) as recorder:
        _trainer(run, recorder, keeper, epochs=2).fit(Line(), Pairs())
    first = _rows(run)
    resumed = runs.open_run(run.folder, resumed=True)
    with _recording(_recorder(resumed)) as recorder:
        trainer = _trainer(resumed, recorder, keeper, epochs=2)
        trainer.fit(Line(), Pairs(), ckpt_path=run.checkpoints / "last.ckpt", weights_only=False)
    assert _rows(run) == first
    assert [record["event"] for record in _events(run)][-2:] == ["resume", "end"]
    assert (_summary(run).status, _summary(run).epochs) == ("done", 2)


def test_a_test_of_a_killed_fit_does_not_call_it_done(run: runs.Run) -> None:
    runs.write_summary(
        run.summary_path, runs.new_summary("line/1") | {"status": "running", "epochs": 4}
    )
    with _recording(_recorder(run)) as recorder:
        _trainer(run, recorder).test(Line(), Pairs(), verbose=False)
    assert (_summary(run).status, _summary(run).epochs, list(_summary(run).stages)) == (
        "running",
        4,
        ["test"],
    )


def test_a_test_next_to_a_fit_and_the_fit_keep_what_the_other_writes(run: runs.Run) -> None:
    runs.write_summary(
        run.summary_path, runs.new_summary("line/1") | {"status": "preempted", "exit_code": 75}
    )
    early, late = _recorder(run), _recorder(run)
    with _recording(
        _recorder(runs.open_run(run.folder, resumed=True), manifest={"subcommand": "fit"})
    ) as fit:
        with _recording(early):  # from start to end within the fit
            _trainer(run, early).test(Line(), Pairs(), verbose=False)
        _trainer(run, fit, epochs=2).fit(Line(), Pairs())
    fitted = _summary(run)
    assert (fitted.status, fitted.epochs) == ("done", 2)
    assert fitted.stages == {}  # it is of a model without a checkpoint, and so of none of the fit's
    assert [(each["stage"], each["metrics"]) for each in fitted.scores] == [
        ("test", {"test/loss": 0.25})
    ]
    with _recording(late):  # it was opened before the fit was
        _trainer(run, late).validate(Line(), Pairs(), verbose=False)
    summary = _summary(run)
    assert list(summary.stages) == ["validate"]
    assert [each["stage"] for each in summary.scores] == ["test", "validate"]
    assert summary.durations.pop("validate") >= 0
    summary.stages, summary.scores = fitted.stages, fitted.scores
    assert summary == fitted


def test_a_test_in_a_run_of_its_own_is_done(run: runs.Run) -> None:
    with _recording(_recorder(run)) as recorder:
        _trainer(run, recorder).test(Line(), Pairs(), verbose=False)
    assert (_summary(run).status, _summary(run).exit_code) == ("done", 0)


def test_a_resume_that_fails_at_once_keeps_what_was_known(run: runs.Run) -> None:
    metrics = {"best": {"val/loss": 0.5}, "last": {}}
    runs.write_summary(
        run.summary_path,
        runs.new_summary("line/1")
        | {"status": "preempted", "exit_code": 75, "epochs": 4, "metrics": metrics},
    )
    with pytest.raises(ConfigError), _recording(_recorder(runs.open_run(run.folder, resumed=True))):
        raise ConfigError("no such class")
    summary = _summary(run)
    assert (summary.status, summary.exit_code, summary.epochs, summary.metrics) == (
        "failed",
        2,
        4,
        metrics,
    )


def test_checkpoints_and_warnings_are_events(run: runs.Run) -> None:
    quiet = logging.getLogger("quiet.package")
    quiet.propagate = False
    with warnings.catch_warnings(record=True), _recording(_recorder(run)) as recorder:
        warnings.simplefilter("always")
        recorder.checkpoint_saved(run.checkpoints / "last.ckpt", 1, 20)
        warnings.warn("slow disk", stacklevel=1)
        warnings.warn("old name", DeprecationWarning, stacklevel=1)
        logging.getLogger("some.package").warning("lost %d", 3)
        logging.getLogger("some.package").warning("lost %d", 3)
        logging.getLogger("some.package").info("fine")
        quiet.warning("unheard")
    logging.getLogger("some.package").warning("too late")
    (checkpoint,) = _events(run, "checkpoint")
    assert (checkpoint["path"], checkpoint["epoch"], checkpoint["step"], checkpoint["kind"]) == (
        *("checkpoints/last.ckpt", 1, 20),
        "last",
    )
    assert [(record["message"], record["source"]) for record in _events(run, "warning")] == [
        ("slow disk", "UserWarning"),
        ("lost 3", "some.package"),
        ("unheard", "quiet.package"),
    ]


def test_warnings_are_shown_as_before_and_the_hooks_are_put_back(run: runs.Run) -> None:
    shown: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        before = warnings.showwarning = lambda message, *rest, **more: shown.append(str(message))
        handlers = list(logging.root.handlers)
        with _recording(_recorder(run)):
            warnings.warn("slow disk", stacklevel=1)
        assert warnings.showwarning is before
    assert shown == ["slow disk"]
    assert logging.root.handlers == handlers


def test_loggers_that_keep_more_than_metrics_are_reported(run: runs.Run) -> None:
    calls: list[tuple[str, Any]] = []

    class Keeps(CSVLogger):
        def log_manifest(self, manifest: dict[str, Any]) -> None:
            calls.append(("manifest", manifest["data"]))

        def record_fit_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
            calls.append(("start", trainer.current_epoch))

        def record_fit_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
            calls.append(("end", type(module).__name__))

    with _recording(_recorder(run, manifest={})) as recorder:
        loggers = [Keeps(run.folder), CSVLogger(run.folder)]
        _trainer(run, recorder, logger=loggers, log_every_n_steps=1, epochs=1).fit(Line(), Pairs())
    assert calls == [
        ("manifest", {"source": "drawn", "fingerprint": "f0"}),
        ("start", 0),
        ("end", "Line"),
    ]


def test_samples_are_counted_however_a_batch_is_nested() -> None:
    from lightkit.callbacks.recorder import find_batch_size

    images, draw = torch.zeros(random.Random(7).randrange(2, 9), 3, 4, 4), torch.tensor(1)
    assert find_batch_size((images, draw)) == len(images)
    assert find_batch_size({"paths": ["a"], "more": [{"image": images}]}) == len(images)
    assert find_batch_size(draw) == 1
    assert find_batch_size(["a", "b"]) is None


def test_the_best_of_a_validation_within_an_epoch_has_no_metric_of_the_epoch_before(
    run: runs.Run,
) -> None:
    """Of 3 batches an epoch the second is validated: after steps 2 and 5, each better."""
    keeper = ModelCheckpoint(run.checkpoints, filename="best", monitor="val/loss")
    with _recording(_recorder(run)) as recorder:
        plugin = VerifiedCheckpointIO(on_saved=recorder.checkpoint_saved)
        trainer = _trainer(run, recorder, keeper, epochs=2, val_check_interval=2, plugins=[plugin])
        trainer.fit(Line(), Pairs())
    best = json.loads(run.summary_path.read_text())["metrics"]["best"]
    assert (best["epoch"], best["step"]) == (1, 5)
    assert best.keys() == {"epoch", "step", "val/loss", "val/epoch"}
