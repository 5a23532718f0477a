"""An example run with `LightningCLI` and again with the class swapped, and what of the two must be the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
from pytorch_lightning.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from pytorch_lightning.cli import LightningCLI, SaveConfigCallback
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger

from lightkit.cli.lightning import LightkitCLI

__all__ = ["FIT", "HERE", "Both", "Example", "OurFit", "Ran", "TheirFit", "built", "parsed", "weights"]

HERE = "tests.cli.superset.models"
FIT = ["fit", "--trainer.accelerator=cpu", "--trainer.fast_dev_run=1", "--seed_everything=1"]
Example = Callable[[type[LightningCLI]], LightningCLI]
"""A script as a function of the class of its command line."""


class FitOnly:
    """Builds one parser of four, because each takes its time."""

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        return {"fit": LightningCLI.subcommands()["fit"]}


class TheirFit(FitOnly, LightningCLI):
    """LightningCLI's `fit`."""


class OurFit(FitOnly, LightkitCLI):
    """Lightkit's `fit`."""


@dataclass
class Ran:
    """What an example left behind.

    Args:
        cli: The command line, unless the example ended early.
        code: Exit code.
        out: Standard output.
        err: Standard error.
        folder: Its working directory.
    """

    cli: Any
    code: Any
    out: str
    err: str
    folder: Path


class Both:
    """Runs an example with either class, each in a working directory of its own.

    Args:
        folder: Where those are made.
        monkeypatch: Changes the working directory.
        capsys: Captures what is printed.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._monkeypatch, self._capsys = folder, monkeypatch, capsys
        self.files: dict[str, str] = {}

    def __call__(self, example: Example, *, all_commands: bool = False) -> tuple[Ran, Ran]:
        """Run it as Lightning's users do, then with the class swapped."""
        return self.theirs(example, all_commands=all_commands), self.ours(example, all_commands=all_commands)

    def theirs(self, example: Example, *, all_commands: bool = False) -> Ran:
        """Run it as Lightning's users do."""
        return self._run(example, LightningCLI if all_commands else TheirFit, "theirs")

    def ours(self, example: Example, *, all_commands: bool = False) -> Ran:
        """Run it with the class swapped."""
        return self._run(example, LightkitCLI if all_commands else OurFit, "ours")

    def same(self, example: Example, *, all_commands: bool = False) -> Any:
        """Run it with both, see that config, objects and training are the same, and give lightkit's command line."""
        theirs, ours = self(example, all_commands=all_commands)
        assert (ours.code, theirs.code) == (None, None), ours.err + theirs.err
        for of in (parsed, built, weights):
            assert not (differs := _differences(of(ours.cli), of(theirs.cli))), f"{of.__name__}: {differs}"
        return ours.cli

    def _run(self, example: Example, base: type[LightningCLI], name: str) -> Ran:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        for file, text in self.files.items():
            (folder / file).write_text(text, encoding="utf-8")
        self._monkeypatch.chdir(folder)
        self._capsys.readouterr()
        cli, code = None, None
        try:
            cli = example(base)
        except SystemExit as end:
            code = end.code or 0
        said = self._capsys.readouterr()
        return Ran(cli, code, said.out, said.err, folder)


def parsed(cli: LightningCLI) -> dict[str, Any]:
    """The config, without what lightkit adds to it or decides."""
    section = cli.config if cli.subcommand is None else cli.config[cli.subcommand]
    config: dict[str, Any] = json.loads(cli._parser(cli.subcommand).dump(section, format="json"))
    trainer = config["trainer"]
    callbacks = trainer.pop("callbacks", None) or []
    callbacks = callbacks if isinstance(callbacks, list) else [callbacks]
    trainer["callbacks"] = [each for each in callbacks if "lightkit." not in str(each)]
    given = trainer.pop("logger", None)
    trainer["logger"] = None if given is True or "lightkit." in str(given) else given
    for key in ("run", "launch", "watchdog", "gate", "accelerator", "config", "ckpt_path"):
        config.pop(key, None)
    trainer.pop("default_root_dir", None)
    return config


def built(cli: LightningCLI) -> dict[str, Any]:
    """What was built, without what lightkit adds: its own callbacks, loggers, and checkpoint folders."""
    trainer: Any = cli.trainer  # its type leaves out what it sets from another module
    model = cli.model
    own = (ModelCheckpoint, SaveConfigCallback, pl.callbacks.ProgressBar, pl.callbacks.ModelSummary)
    callbacks = [
        callback
        for callback in trainer.callbacks
        if not _is_own(callback) and type(callback).__name__ != "LambdaCallback" and not isinstance(callback, own)
    ]
    checkpoints = [
        (callback.monitor, callback.save_top_k)
        for callback in trainer.checkpoint_callbacks
        if isinstance(callback, ModelCheckpoint) and callback.monitor and not _is_own(callback)
    ]
    optimizers = trainer.optimizers
    schedules = [
        (type(each.scheduler), each.scheduler.state_dict(), each.monitor, each.interval)
        for each in trainer.lr_scheduler_configs
    ]
    return {
        "model": (type(model), _plain(model.hparams)),
        "data": cli.datamodule and (type(cli.datamodule), _plain(cli.datamodule.hparams)),
        "callbacks": [(type(each), _settings(each)) for each in callbacks],
        "checkpoints": checkpoints,
        "optimizers": [(type(each), _plain_group(each.param_groups[0])) for each in optimizers],
        "schedules": schedules,
        "loggers": [isinstance(each, (TensorBoardLogger, CSVLogger)) for each in trainer.loggers],
        "seed": cli._get(cli.config, "seed_everything"),
        "trainer": {name: getattr(trainer, name) for name in TRAINER},
        "steps": trainer.global_step,
    }


TRAINER = (
    "max_epochs",
    "max_steps",
    "precision",
    "fast_dev_run",
    "gradient_clip_val",
    "limit_train_batches",
    "val_check_interval",
    "accumulate_grad_batches",
    "num_devices",
    "world_size",
    "log_every_n_steps",
    "check_val_every_n_epoch",
)


def _is_own(part: object) -> bool:
    return type(part).__module__.startswith("lightkit.")


def _differences(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    keys = dict.fromkeys([*ours, *theirs])
    return {key: (ours.get(key), theirs.get(key)) for key in keys if ours.get(key) != theirs.get(key)}


def _plain(hparams: Any) -> dict[str, Any]:
    return {key: value for key, value in dict(hparams).items() if key != "_instantiator"}


def _plain_group(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


def _settings(callback: Any) -> Any:
    if isinstance(callback, EarlyStopping):
        return callback.monitor, callback.patience, callback.min_delta, callback.mode
    if isinstance(callback, LearningRateMonitor):
        return callback.logging_interval, callback.log_momentum
    return None


def weights(cli: LightningCLI) -> dict[str, list[float]]:
    """The model's parameters, where the seed was fixed."""
    if cli._get(cli.config, "seed_everything") is False:
        return {}
    return {name: parameter.detach().flatten().tolist() for name, parameter in cli.model.named_parameters()}
