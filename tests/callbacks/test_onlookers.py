from __future__ import annotations

import functools
import importlib
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
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
        lambda _: trainer_of(OwnCallback()),  # this module speaks of checkpoints
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


MODEL = """
from tests.callbacks.quiet_net import QuietNet

class Net(QuietNet):
    def on_train_epoch_start(self):
        self.{reads}
"""
CALLBACK = """
import os
import numpy
import torch
from pytorch_lightning import Callback
{imports}

class Tells(Callback):
    values = numpy.zeros(3)

    def on_train_epoch_end(self, trainer, pl_module):
        {does}
"""
Write = Callable[..., ModuleType]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write modules, and give the first of them, imported."""
    before = set(sys.modules)

    def write(**sources: str) -> ModuleType:
        for name, source in sources.items():
            (tmp_path / f"{name}.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
        return importlib.import_module(next(iter(sources)))

    yield write
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and tmp_path in Path(str(sys.modules[name].__file__)).parents:
            del sys.modules[name]


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
def test_a_model_whose_module_speaks_of_checkpoints_may_look(reads: str, looks: bool, write: Write) -> None:
    module = write(my_quiet=MODEL.format(reads=reads))
    assert has_onlookers(trainer_of(module=module.Net()), WRITER) is looks


@pytest.mark.parametrize(
    ("does", "looks"),
    [
        ("print(trainer.callback_metrics['val/loss'], os.getpid())", False),
        ("os.listdir(trainer.log_dir)", True),
        ("os.listdir(trainer.default_root_dir)", True),
        ("os.listdir('runs/mine')", True),
        ("print(trainer.checkpoint_callback.best_model_path)", True),
    ],
    ids=["metric", "log_dir", "root_dir", "path", "checkpoint"],
)
def test_a_callback_whose_module_speaks_of_no_checkpoint_looks_at_none(does: str, looks: bool, write: Write) -> None:
    callback = write(my_tells=CALLBACK.format(imports="", does=does)).Tells()
    assert has_onlookers(trainer_of(callback), WRITER) is looks
    given = LambdaCallback(on_train_epoch_end=functools.partial(callback.on_train_epoch_end))
    assert has_onlookers(trainer_of(given), WRITER) is looks


@pytest.mark.parametrize(
    ("imports", "does"),
    [
        ("from my_helper import help", "help()"),
        ("import my_helper as h", "h.help()"),
        ("", "from my_helper import help; help()"),
        ("from my_between import help", "help()"),
        ("", "from my_lost import help; help()"),
    ],
    ids=["function", "module", "within_a_function", "by_another", "nowhere"],
)
def test_what_its_author_has_written_beside_it_counts(imports: str, does: str, write: Write) -> None:
    sources = {
        "my_tells": CALLBACK.format(imports=imports, does=does),
        "my_between": "from my_helper import help",
        "my_helper": "def help(): open('last.ckpt')",
    }
    assert has_onlookers(trainer_of(write(**sources).Tells()), WRITER)


def test_what_its_author_has_written_beside_it_may_look_at_nothing(write: Write) -> None:
    helper = "import json\nimport my_tells\ndef help(): open('log.txt')"
    module = write(my_tells=CALLBACK.format(imports="from my_helper import help", does="help()"), my_helper=helper)
    assert not has_onlookers(trainer_of(module.Tells()), WRITER)


def test_what_a_callback_is_given_may_look(write: Write) -> None:
    uploader = write(my_uploader="class Uploader:\n    def send(self): open('last.ckpt')")
    callback = write(my_tells=CALLBACK.format(imports="", does="self.uploader.send()")).Tells()
    assert not has_onlookers(trainer_of(callback), WRITER)
    callback.uploader = uploader.Uploader()
    assert has_onlookers(trainer_of(callback), WRITER)


@pytest.mark.parametrize(
    ("value", "looks"),
    [
        ("runs/*/latest", True),
        (Path("mine/last.ckpt"), True),
        ({"to": ["a", ("b.ckpt",)]}, True),
        (functools.partial(print, "last.ckpt"), True),
        ([OwnHook()], True),
        (str.upper, False),
        (torch.Tensor.abs, False),
        (["a text", 3, None, {"b": 2.0}], False),
    ],
    ids=["text", "path", "within", "partial", "things", "method_of_c", "method_of_torch", "nothing"],
)
def test_what_a_callback_holds_may_name_files(value: Any, looks: bool, write: Write) -> None:
    callback = write(my_tells=CALLBACK.format(imports="", does="pass")).Tells()
    callback.value = value
    assert has_onlookers(trainer_of(callback), WRITER) is looks


@pytest.mark.parametrize(
    "imports",
    ["import lightkit as lk", "from lightkit import (\n    errors,\n    runs,\n)", "import lightkit.runs as records"],
    ids=["whole", "over_lines", "part"],
)
def test_who_imports_the_records_may_look_at_them(imports: str, write: Write) -> None:
    callback = write(my_tells=CALLBACK.format(imports=imports, does="pass")).Tells()
    assert has_onlookers(trainer_of(callback), WRITER)


def test_a_module_that_is_imported_in_either_way_ends_no_training(write: Write) -> None:
    imports = "try:\n    from .my_helper import help\nexcept ImportError:\n    from my_helper import help"
    module = write(my_tells=CALLBACK.format(imports=imports, does="help()"), my_helper="def help(): pass")
    assert not has_onlookers(trainer_of(module.Tells()), WRITER)


def test_a_package_that_is_imported_later_may_look(write: Write, tmp_path: Path) -> None:
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "__init__.py").write_text("from .inner import help")
    (tmp_path / "my_package" / "inner.py").write_text("def help(): pass")
    module = write(my_tells=CALLBACK.format(imports="", does="from my_package import help; help()"))
    assert has_onlookers(trainer_of(module.Tells()), WRITER)
    importlib.import_module("my_package")
    assert not has_onlookers(trainer_of(module.Tells()), WRITER)
    (tmp_path / "my_package" / "later.py").write_text("def help(): open('last.ckpt')")
    (tmp_path / "my_tells.py").write_text(CALLBACK.format(imports="", does="from my_package import later"))
    assert has_onlookers(trainer_of(module.Tells()), WRITER)


def test_whatever_goes_wrong_with_a_source_ends_no_training(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    module = write(my_tells=CALLBACK.format(imports="", does="pass"))

    def fails(*_: Any, **__: Any) -> None:
        raise RecursionError("of a very deep source")

    monkeypatch.setattr("lightkit.callbacks.sources.ast.parse", fails)
    assert has_onlookers(trainer_of(module.Tells()), WRITER)


def test_a_model_without_a_source_may_look(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = ModuleType("my_session")
    exec("from tests.callbacks.quiet_net import QuietNet\nclass Net(QuietNet): pass", vars(typed))
    monkeypatch.setitem(sys.modules, "my_session", typed)
    assert has_onlookers(trainer_of(module=typed.Net()), WRITER)
