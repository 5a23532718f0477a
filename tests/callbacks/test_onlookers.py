from __future__ import annotations

import functools
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import pytorch_lightning as pl
from pytorch_lightning.callbacks import EarlyStopping, LambdaCallback, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger
from pytorch_lightning.plugins import AsyncCheckpointIO, CheckpointIO, TorchCheckpointIO
from pytorch_lightning.strategies import FSDPStrategy, SingleDeviceStrategy

from lightkit import runs
from lightkit.callbacks import Checkpoint, LeanSteps, VerifiedCheckpointIO
from lightkit.callbacks.deadline import StopAtDeadline
from lightkit.callbacks.onlookers import has_onlookers
from lightkit.loggers import MLflow
from tests.callbacks.quiet_net import QuietNet


class OwnCallback(pl.Callback):
    pass


class OwnTrainer(pl.Trainer):
    pass


class OwnHook:
    def __call__(self, *_: Any) -> None:
        pass


class OwnCheckpoint(Checkpoint):
    pass


class OwnLogger(CSVLogger):
    pass


class OwnStrategy(SingleDeviceStrategy):
    pass


class OwnCheckpointIO(VerifiedCheckpointIO):
    pass


class WritingStrategy(SingleDeviceStrategy):
    """As Lightning's own strategies for models that no device holds alone."""

    save_checkpoint = FSDPStrategy.save_checkpoint


WritingStrategy.__module__ = FSDPStrategy.__module__
WRITER = runs.Writer()


def trainer_of(
    *callbacks: pl.Callback,
    logger: Any = False,
    module: pl.LightningModule | None = None,
    kind: type[pl.Trainer] = pl.Trainer,
    writes: CheckpointIO | None = None,
    **settings: Any,
) -> pl.Trainer:
    has_keeper = any(isinstance(each, ModelCheckpoint) for each in callbacks)
    trainer = kind(
        accelerator="cpu", devices=1, enable_progress_bar=False, logger=logger,
        callbacks=[*callbacks, *([] if has_keeper else [Checkpoint()])],
        plugins=[VerifiedCheckpointIO(writer=WRITER) if writes is None else writes], **settings,
    )  # fmt: skip
    trainer.strategy._lightning_module = QuietNet() if module is None else module
    return trainer


def from_lightkit() -> LambdaCallback:
    return LambdaCallback(on_fit_start=LeanSteps().setup, on_train_start=functools.partial(LeanSteps().setup))


def in_time() -> StopAtDeadline:
    return StopAtDeadline(
        datetime.now(timezone.utc),
        last_good=functools.partial(runs.last_good, "checkpoints"),
        stopped=list[str]().append,
        clock=time.time,
    )


@pytest.mark.parametrize(
    "callbacks",
    [[], [EarlyStopping("val/loss"), LeanSteps()], [from_lightkit()], [in_time()]],
    ids=["none", "lightnings", "lambda_of_lightkit", "deadline"],
)
def test_lightkits_and_lightnings_own_look_at_nothing(callbacks: list[pl.Callback], tmp_path: Path) -> None:
    loggers = [
        CSVLogger(str(tmp_path)),
        TensorBoardLogger(str(tmp_path)),
        MLflow("sqlite:///" + str(tmp_path / "m.db")),
    ]
    assert not has_onlookers(trainer_of(*callbacks, logger=loggers), WRITER)


@pytest.mark.parametrize(
    "make",
    [
        lambda _: trainer_of(OwnCallback()),
        lambda _: trainer_of(LambdaCallback(on_fit_start=lambda *_: None)),
        lambda _: trainer_of(LambdaCallback(on_fit_start=functools.partial(lambda *_: None))),
        lambda _: trainer_of(LambdaCallback(on_fit_start=OwnHook())),
        lambda _: trainer_of(kind=OwnTrainer),
        lambda _: trainer_of(OwnCheckpoint()),
        lambda folder: trainer_of(ModelCheckpoint(folder)),
        lambda folder: trainer_of(logger=OwnLogger(folder)),
        lambda folder: trainer_of(logger=MLFlowLogger(tracking_uri=f"sqlite:///{folder}/m.db", log_model="all")),
        lambda _: trainer_of(strategy=OwnStrategy("cpu")),
        lambda _: trainer_of(strategy=WritingStrategy("cpu")),
        lambda _: trainer_of(writes=TorchCheckpointIO()),
        lambda _: trainer_of(writes=AsyncCheckpointIO()),
        lambda _: trainer_of(writes=OwnCheckpointIO(writer=WRITER)),
        lambda _: trainer_of(writes=VerifiedCheckpointIO()),
    ],
    ids=[
        "callback",
        "lambda",
        "partial",
        "callable",
        "trainer",
        "checkpoint",
        "lightnings_checkpoint",
        "logger",
        "sending_logger",
        "strategy",
        "writing_strategy",
        "lightnings_checkpoint_io",
        "async_checkpoint_io",
        "checkpoint_io",
        "checkpoint_io_without_the_writer",
    ],
)
def test_others_may_look_at_a_file_at_once(make: Any, tmp_path: Path) -> None:
    assert has_onlookers(make(str(tmp_path)), WRITER)


SOURCE = """
from tests.callbacks.quiet_net import QuietNet

class Net(QuietNet):
    def on_train_epoch_start(self):
        self.{reads}
"""


@pytest.mark.parametrize(
    ("reads", "looks"),
    [
        ("trainer.checkpoint_callback", True),
        ("best_CKPT()", True),
        ("read('summary.json')", True),
        ("log('a', 1.0)", False),
    ],
    ids=["callback", "path", "records", "metric"],
)
def test_a_model_whose_module_speaks_of_checkpoints_may_look(
    reads: str, looks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_quiet.py").write_text(SOURCE.format(reads=reads))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_quiet", raising=False)
    import my_quiet  # type: ignore[import-not-found]

    assert has_onlookers(trainer_of(module=my_quiet.Net()), WRITER) is looks
    monkeypatch.delitem(sys.modules, "my_quiet")


def test_a_model_without_a_source_may_look(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = ModuleType("my_session")
    exec("from tests.callbacks.quiet_net import QuietNet\nclass Net(QuietNet): pass", vars(typed))
    monkeypatch.setitem(sys.modules, "my_session", typed)
    assert has_onlookers(trainer_of(module=typed.Net()), WRITER)
