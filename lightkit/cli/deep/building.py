"""Each part of a config built by itself, so that one that fails hides none of the others."""

from __future__ import annotations

import importlib
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from types import MethodType
from typing import Any

from jsonargparse import Namespace
from pytorch_lightning import Callback, LightningDataModule, LightningModule
from pytorch_lightning.callbacks import BasePredictionWriter, BatchSizeFinder, LearningRateFinder, ProgressBar
from pytorch_lightning.callbacks.model_summary import ModelSummary
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger

from lightkit.callbacks import Checkpoint
from lightkit.callbacks.notifying import Notifier
from lightkit.cli.context import RunContext
from lightkit.cli.deep.crashes import crashes_told
from lightkit.cli.lightning_cli import LightkitCLI
from lightkit.cli.trust import restrict_loading
from lightkit.config import KeyPath, Problems, Resolved, dotted, mistake
from lightkit.errors import LightkitError
from lightkit.loggers import CSV, MLflow, TensorBoard
from lightkit.models import ImageClassifier
from lightkit.models.backbones import SMALL_CNN

__all__ = ["Parts", "build_parts"]

_OPENS_NOTHING = (CSV, CSVLogger, MLflow, TensorBoard, TensorBoardLogger)
"""Loggers that write nothing and ask nobody until something is logged."""
_LEFT_OUT: dict[type[Callback], str] = {
    LearningRateFinder: "built, but it trains by itself",
    BatchSizeFinder: "built, but it trains by itself",
    BasePredictionWriter: "built, but it writes files",
}
_OF_THE_SCREEN = (ProgressBar, ModelSummary)


@dataclass
class Parts:
    """What a config is made of.

    Args:
        trainer: Values of the `trainer` section.
        arguments: What the command passes to the trainer's method beside model and data.
        model: The model; None where it cannot be built.
        data: The data; None where it cannot be built, or there is none.
        is_complete: Whether there is all that a batch needs.
        callbacks: Those that can be built and do nothing outside the process.
        finders: Those that would train by themselves, which are left out.
        paths: What of the config made each callback, by its `id`.
        has_logger: Whether there is a logger.
        not_tried: What is left out, by its key.
    """

    trainer: dict[str, Any]
    arguments: dict[str, Any]
    model: LightningModule | None = None
    data: LightningDataModule | None = None
    is_complete: bool = False
    callbacks: list[Callback] = field(default_factory=list)
    finders: list[Callback] = field(default_factory=list)
    paths: dict[int, KeyPath] = field(default_factory=dict)
    has_logger: bool = False
    not_tried: dict[str, str] = field(default_factory=dict)


def build_parts(session: RunContext, problems: Problems) -> Parts:
    """Build all parts of a config that has no mistakes that show without building.

    Args:
        session: The invocation.
        problems: Takes the mistakes of the parts that cannot be built.
    """
    return _PartByPart(session, problems).parts


class _PartByPart(LightkitCLI):
    """Parses as the command does, builds each part by itself, and runs nothing."""

    parts: Parts

    def __init__(self, session: RunContext, problems: Problems) -> None:
        self._problems = problems
        super().__init__(session=session)

    def instantiate_classes(self) -> None:
        """Build data, model, callbacks and loggers, none of which knows of the others."""
        section = self.config[self.subcommand]
        trainer = dict(vars(section["trainer"]))
        self.parts = Parts(trainer, self._prepare_subcommand_kwargs_of(section))
        self._leave_weights_out(section.get("model"))
        self.config_init = self.config
        self.parts.data = self.datamodule = self._built("data", section.get("data"))
        self.parts.model = self.model = self._built("model", section.get("model"))
        self.parts.is_complete = self.model is not None and (self.datamodule is not None or not section.get("data"))
        self._take_optimizers()
        for path, callback in self._entries("callbacks", trainer.get("callbacks")):
            self._sort_callback(path, callback, checkpoints=trainer.get("enable_checkpointing") is not False)
        self.parts.has_logger = trainer.get("logger") not in (False, [])
        for _ in self._entries("logger", trainer.get("logger")):
            pass  # the constructors judge their arguments; a stand-in takes what is logged

    def _run_subcommand(self, subcommand: str) -> None:
        """Nothing is run: the parts are for the caller."""

    def _prepare_subcommand_kwargs_of(self, section: Any) -> dict[str, Any]:
        names = self._subcommand_method_arguments[str(self.subcommand)]
        given = {name: section[name] for name in names}
        quiet = {"verbose": False, "return_predictions": False}
        return restrict_loading({name: quiet.get(name, value) for name, value in given.items()})

    def _leave_weights_out(self, model: Any) -> None:
        """Do not download weights: they change no shape, and training itself fetches them."""
        arguments = getattr(model, "init_args", None)
        if arguments is None or _class_of(model) is not ImageClassifier:
            return
        if arguments.get("weights") == "default" and arguments.get("backbone") != SMALL_CNN:
            arguments["weights"] = None
            self.parts.not_tried["model.init_args.weights"] = (
                "default, which the first fit downloads unless it has them"
            )

    def _built(self, key: str, value: Any) -> Any:
        """Build one part; None where that fails.

        One callback is a list, and one logger is not: only then jsonargparse 4.53 keeps what their constructors raised.
        """
        if value is None:
            return None
        path: KeyPath = self._resolved.lightkit_path(key)
        config = Namespace(subcommand=self.subcommand)  # type: ignore[no-untyped-call]
        built = None
        base = key.partition(".")[2].partition(".")[0]
        with crashes_told(self._problems, self._resolved, lambda: path, lambda: f"{_name_of(value)} cannot be built"):
            place = f"{self.subcommand}.{f'trainer.{base}' if base else key}"
            config[place] = [value] if base == "callbacks" else value
            made = self.parser.instantiate_classes(config)[place]
            built = made[0] if base == "callbacks" else made
        return built  # noqa: RET504 (None where the block has failed)

    def _entries(self, name: str, said: Any) -> list[tuple[KeyPath, Any]]:
        """Build each entry of `trainer.callbacks` or `trainer.logger`, as far as it can be built without effect."""
        values = {f".{index}": value for index, value in enumerate(said)} if isinstance(said, list) else {"": said}
        entries = []
        for index, value in values.items():
            if value is None or isinstance(value, bool):
                continue
            key = f"trainer.{name}{index}"
            path = self._resolved.lightkit_path(key)
            kind = _class_of(value)
            if name == "logger" and kind not in _OPENS_NOTHING:
                self.parts.not_tried[dotted(path)] = "not built: it may write, or ask a server"
            elif (built := self._built(key, value)) is not None:
                entries.append((path, built))
                if name == "logger":
                    self.parts.not_tried[dotted(path)] = "built, but nothing is logged to it"
        return entries

    def _sort_callback(self, path: KeyPath, callback: Callback, *, checkpoints: bool) -> None:
        if isinstance(callback, _OF_THE_SCREEN) or (isinstance(callback, Checkpoint) and not checkpoints):
            return
        if isinstance(callback, Notifier):
            self.parts.not_tried[dotted(path)] = "built, but it sends messages; lightkit notify-test tries them"
            return
        self.parts.paths[id(callback)] = path
        why = next((words for kind, words in _LEFT_OUT.items() if isinstance(callback, kind)), None)
        if why is None:
            self.parts.callbacks.append(callback)
            return
        self.parts.not_tried[dotted(path)] = why
        self.parts.finders.append(callback)

    def _take_optimizers(self) -> None:
        """Let the model make the config's optimizers when the trainer asks for them."""
        if self.model is not None and any(self._get(self.config, key) for key in self._automatic_optimizers()):
            self.model.configure_optimizers = MethodType(self._told_optimizers, self.model)

    def _told_optimizers(self, module: LightningModule) -> Any:
        """Make them, and name the key where one refuses its arguments.

        Raises:
            ConfigError: Then.
        """
        try:
            return self._late_optimizers(module)
        except LightkitError:
            raise
        except Exception as error:
            raised_in = [Path(frame.filename).name for frame in traceback.extract_tb(error.__traceback__)]
            key = "lr_scheduler" if "lr_scheduler.py" in raised_in else "optimizer"
            words = " ".join(self._resolved.masked(str(error)).split())
            says = f"{key}: {_name_of(self._get(self.config, key))} cannot be built: {type(error).__name__}: {words}"
            raise mistake(says, self._resolved.origin_of((key,))) from error

    @property
    def _resolved(self) -> Resolved:
        assert self.session is not None
        return self.session.resolved


def _class_of(value: Any) -> type | None:
    module, _, name = str(getattr(value, "class_path", "")).rpartition(".")
    found = getattr(importlib.import_module(module), name, None) if module else None
    return found if isinstance(found, type) else None


def _name_of(value: Any) -> str:
    return str(getattr(value, "class_path", value)).rpartition(".")[2]
