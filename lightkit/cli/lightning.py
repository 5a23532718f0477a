"""LightningCLI with layered configs, a run folder, verified checkpoints and an exact resume."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentError
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any

from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning import Callback, LightningDataModule, LightningModule, Trainer
from pytorch_lightning.accelerators import XLAAccelerator
from pytorch_lightning.callbacks import LambdaCallback, ModelCheckpoint, ProgressBar
from pytorch_lightning.cli import ArgsType, LightningArgumentParser, LightningCLI, SaveConfigCallback
from pytorch_lightning.loggers import Logger
from pytorch_lightning.plugins import CheckpointIO
from pytorch_lightning.utilities.model_helpers import is_overridden
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

# The classes of these rooms are known by their short names once they are imported.
from lightkit import config, data, loggers, models, runs  # noqa: F401
from lightkit.callbacks import (
    Checkpoint,
    PredictionTable,
    ResumeState,
    StallWatch,
    StopOnSignal,
    VerifiedCheckpointIO,
    VerifiedXLACheckpointIO,
    progress_for,
)
from lightkit.cli.explaining import explained, subclass_names
from lightkit.cli.masking import mask_hyperparameters, mask_tags, masked, without_nulls
from lightkit.cli.refusals import refused, unwrapped_errors
from lightkit.cli.resuming import RunSettings
from lightkit.cli.session import Session, open_session
from lightkit.cli.showing import Heading
from lightkit.cli.starting import Stage, begin
from lightkit.distributed.xla import HushXLA, trains_on_xla
from lightkit.errors import ConfigError, LightkitError
from lightkit.launch import LaunchSettings
from lightkit.runs.signals import SignalWatch

__all__ = ["ConfigPrinted", "DataChanged", "LightkitCLI", "build_data"]

_NOT_SAVED = ("ckpt_path", "weights_only", "verbose", "return_predictions", "config")
_TRAINER_ERRORS = (MisconfigurationException, ValueError, TypeError, RuntimeError, ImportError)


class ConfigPrinted(Exception):
    """The resolved config was asked for and has been printed."""


class DataChanged(LightkitError):
    """The interrupted run that was about to go on had other data."""


class LightkitCLI(LightningCLI):
    """A LightningCLI whose config comes in layers and whose runs are recorded.

    Args:
        model_class: As in LightningCLI.
        datamodule_class: As in LightningCLI.
        save_config_callback: As in LightningCLI, but None by default: the run folder holds the config.
        session: The invocation, where the caller has read it already.
        kwargs: LightningCLI's other arguments.
    """

    def __init__(
        self,
        model_class: Any = None,
        datamodule_class: Any = None,
        save_config_callback: type[SaveConfigCallback] | None = None,
        *,
        session: Session | None = None,
        **kwargs: Any,
    ) -> None:
        self.session = session
        self._own_sessions = ExitStack()
        self.stage: Stage | None = None
        self.saved_config: dict[str, Any] = {}
        stages = list(self.subcommands())
        parser_kwargs = {"exit_on_error": False, **kwargs.pop("parser_kwargs", {})}
        if session is not None:  # only the parser that is asked for: each takes a third of a second
            stages = [session.command]
            parser_kwargs["prog"] = "lightkit"  # not `__main__.py`
            self.subcommands = lambda: {session.command: LightningCLI.subcommands()[session.command]}  # type: ignore[method-assign]
        if kwargs.get("run", True):
            parser_kwargs |= {stage: {"exit_on_error": False, **parser_kwargs.get(stage, {})} for stage in stages}
        if save_config_callback is not None:  # the run folder, which may be its place, has a config.yaml
            named = {"config_filename": "lightning_config.yaml", **(kwargs.get("save_config_kwargs") or {})}
            kwargs["save_config_kwargs"] = named
        with self._own_sessions:  # a session that the caller has opened is the caller's to close
            super().__init__(model_class, datamodule_class, save_config_callback, parser_kwargs=parser_kwargs, **kwargs)

    # -- parsing -----------------------------------------------------------------------------------------------

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the `run` and `launch` sections beside `seed_everything`."""
        super().add_default_arguments_to_parser(parser)
        parser.add_class_arguments(RunSettings, "run")
        parser.add_class_arguments(LaunchSettings, "launch")

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Lay all layers over one another and let jsonargparse check the result.

        Raises:
            ConfigError: If anything in it is wrong.
        """
        if self.session is None and (args is None or isinstance(args, list)):
            self.session = self._open_session(list(sys.argv[1:] if args is None else args))
            self._own_sessions.push(self.session.stack)
        if self.session is None:
            super().parse_arguments(parser, args)
            return
        command = self.session.command
        try:
            if self.session.passthrough:
                parser.parse_args([*([command] if command else []), *self.session.passthrough])
            values = self.session.resolved.lightning().values
            values.pop("ckpt_path", None)  # `begin` decides; Lightning would let its hyper-parameters win
            # As a file's text: given as an object, `key+` in init_args would forget the signature's default.
            self.config = parser.parse_args([*([command] if command else []), "--config", config.dump_yaml(values)])
        except ArgumentError as error:
            known = _known_keys(self._subcommand_parsers[command] if command else parser)
            raise explained(error, self.session.resolved, keys=known, classes=_known_classes()) from error

    def _open_session(self, words: list[str]) -> Session:
        """Read the arguments where this class stands for LightningCLI in a script of the user's own."""
        fixed = {"model": not self.subclass_mode_model, "data": not self.subclass_mode_data}
        sections = [section for section in config.CLASS_SECTIONS if not fixed.get(section)]
        if not hasattr(self, "_subcommand_parsers"):
            return open_session("", words, SignalWatch(), class_sections=sections, default_entries=())
        names = list(self.subcommands())
        command = next((word for word in words if word in names), None)
        if command is None:
            raise ConfigError(f"No command among {' '.join(words)!r}. Commands: {', '.join(names)}.")
        words.remove(command)
        return open_session(
            command,
            words,
            SignalWatch(),
            class_sections=sections,
            subcommands=names,
            default_entries=("callbacks",) if "logger" in self.trainer_defaults else ("callbacks", "logger"),
        )

    # -- the run -----------------------------------------------------------------------------------------------

    def before_instantiate_classes(self) -> None:
        """Choose the run folder and the checkpoint before anything is built."""
        if self.session is None or self.subcommand is None:
            return
        section = self.config[self.subcommand]
        section["run"]["name"] = section["run"]["name"] or self.session.default_name
        self.saved_config = self._config_to_save()
        if self.session.print_config is not None:
            print(config.dump_yaml(self._config_to_save(self.session.print_config)), end="")
            raise ConfigPrinted
        self.stage = begin(
            self.session,
            RunSettings(**section["run"].as_dict()),
            saved=self.saved_config,
            seed=None if section["seed_everything"] is False else section["seed_everything"],
            fresh=bool(section["trainer"].get("fast_dev_run")),
        )
        start = self.stage.start
        self._share_devices(section["trainer"])
        section["ckpt_path"] = None if start.checkpoint is None else str(start.checkpoint)
        section["trainer"]["default_root_dir"] = section["trainer"].get("default_root_dir") or str(start.run.folder)
        mask_tags(section["trainer"].get("logger"), self.session.resolved)
        if self.subcommand in ("validate", "test"):  # Lightning prints a table of its own unless told not to
            section["verbose"] = bool(self.session.resolved.values.get("verbose", False))
        if self.subcommand == "predict":  # they are written; keeping them too would fill the memory
            section["return_predictions"] = False
        self.session.stack.enter_context(runs.activate(start.run))

    def _share_devices(self, trainer: Any) -> None:
        """Let the trainer count the ranks as their launcher does; the saved config keeps what the user said."""
        assert self.session is not None
        rank = None if self.session.seat is None else self.session.seat.rank
        if rank is None or rank.engine not in ("torchrun", "slurm", "ray"):
            return
        in_ray = rank.engine == "ray"  # it shows each rank one device, and knows the others itself
        if not isinstance(trainer.get("devices"), list):
            trainer["devices"] = 1 if in_ray else rank.local_size
        trainer["num_nodes"] = 1 if in_ray else rank.num_nodes
        if rank.size > 1 and trainer.get("strategy") in (None, "auto"):
            trainer["strategy"] = "ddp"

    def _config_to_save(self, flags: tuple[str, ...] = ()) -> dict[str, Any]:
        assert self.session is not None
        text = self._subcommand_parsers[str(self.subcommand)].dump(
            self.config[self.subcommand],
            format="json",
            skip_unset="skip_unset" in flags or "skip_null" in flags,
            skip_default="skip_default" in flags,
        )
        dumped = json.loads(text)
        named = self.session.resolved.named({key: value for key, value in dumped.items() if key not in _NOT_SAVED})
        return self.session.resolved.with_references(named)

    def instantiate_classes(self) -> None:
        """Build data, model and trainer; optimizers wait for a model whose parameters are made later.

        LightningCLI 2.6 takes the model's parameters here: before `configure_model` has made them, and before an XLA
        device has put others in their place, so that the optimizer would train nothing.
        """
        automatic, self.auto_configure_optimizers = self.auto_configure_optimizers, False
        with unwrapped_errors():
            super().instantiate_classes()
        self.auto_configure_optimizers = automatic
        on_xla = isinstance(self.trainer.accelerator, XLAAccelerator)
        if not on_xla and not is_overridden("configure_model", self.model):
            self._add_configure_optimizers_method_to_model(self.subcommand)
        elif automatic and self._get(self.config_init, "optimizer"):
            self.model.configure_optimizers = MethodType(self._late_optimizers, self.model)

    def _late_optimizers(self, module: LightningModule) -> Any:
        del module.configure_optimizers  # this method, set on the instance
        self._add_configure_optimizers_method_to_model(self.subcommand)
        return module.configure_optimizers()

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Build the trainer, with lightkit's callbacks and checkpoint writer.

        Raises:
            ConfigError: If the trainer refuses its arguments.
        """
        given = self._get(self.config_init, "trainer", default={})
        if self.stage is not None:
            kwargs["callbacks"] = self._callbacks(given)
            kwargs["plugins"] = self._plugins(given)
            kwargs |= self._parts_of_engine(kwargs["callbacks"], kwargs["plugins"])
            kwargs.setdefault("enable_model_summary", given.get("enable_model_summary") or False)
        try:
            trainer = super().instantiate_trainer(**kwargs)
        except _TRAINER_ERRORS as error:
            if self.session is None:
                raise
            raise refused(error, self.session.resolved) from error
        if self.stage is not None:
            self._attach(trainer, self.stage)
        return trainer

    def _parts_of_engine(self, callbacks: list[Callback], plugins: list[Any] | None) -> dict[str, Any]:
        """Give the trainer what an engine has for it beside its variables."""
        assert self.session is not None
        engine = None if self.session.seat is None else self.session.seat.rank.engine
        if engine == "slurm":  # the batch script puts the job into the queue again, with our own checkpoint
            return {"plugins": [*(plugins or []), SLURMEnvironment(auto_requeue=False)]}
        if engine != "ray":
            return {}
        from lightkit.launch.ray import lightning_parts  # here, because it loads Ray

        strategy, its_plugins, its_callbacks = lightning_parts()
        return {
            "strategy": strategy,
            "plugins": [*(plugins or []), *its_plugins],
            "callbacks": [*callbacks, *its_callbacks],
        }

    def _callbacks(self, given: Mapping[str, Any]) -> list[Callback]:
        assert self.stage is not None
        assert self.session is not None
        own = given.get("callbacks") or []
        own = list(own) if isinstance(own, list) else [own]
        if given.get("enable_checkpointing") is False:  # Lightning refuses the default entry then
            own = [callback for callback in own if not isinstance(callback, Checkpoint)]
        run, seat = self.stage.start.run, self.session.seat
        shown: list[Callback] = [Heading(self.session.mode, run)]
        if given.get("enable_progress_bar") is not False and not any(
            isinstance(callback, ProgressBar) for callback in own
        ):
            shown.append(progress_for(self.session.mode))
        if self.session.command == "predict":
            shown.append(PredictionTable(run.folder))
        stop = StopOnSignal(
            self.session.watch, last_good=lambda: runs.last_good(run.checkpoints, report=lambda _: None)
        )
        unchanged = LambdaCallback(setup=self._refuse_other_data)
        began = LambdaCallback(on_fit_start=self._log_config, on_train_start=self._note_beginning)
        watched = [] if seat is None else [StallWatch(seat.watchdog(self.session.launch.stall_timeout_s))]
        hush = [HushXLA()] if trains_on_xla(given.get("accelerator"), given.get("strategy")) else []
        return [*hush, unchanged, *own, self.stage.recorder, ResumeState(), stop, began, *watched, *shown]

    def _refuse_other_data(self, trainer: Trainer, _module: LightningModule, stage: str) -> None:
        """Do not go on by itself with other data than the interrupted run had."""
        assert self.stage is not None
        before = self.stage.data_before
        describe = getattr(trainer.datamodule, "describe", None)  # type: ignore[attr-defined]
        if stage != "fit" or not self.stage.resumes_by_itself or before is None or not callable(describe):
            return
        if describe().get("fingerprint") != before.get("fingerprint"):
            raise DataChanged(
                f"begins a new run: the data has changed since {self.stage.start.run.folder} was interrupted; "
                f"--run.resume={self.stage.start.run.folder} goes on there"
            )

    def _log_config(self, trainer: Trainer, _module: LightningModule) -> None:
        """Give trackers the whole config; Lightning gives them the model's and the data's arguments only."""
        for logger in trainer.loggers:
            logger.log_hyperparams(without_nulls(self.saved_config))

    def _note_beginning(self, trainer: Trainer, _module: LightningModule) -> None:
        """From here on the run is worth keeping, and the newest."""
        assert self.stage is not None
        if trainer.is_global_zero and not getattr(trainer, "fast_dev_run", False):
            runs.point_latest(self.stage.start.run)
        self.stage.worth_keeping.set()

    def _plugins(self, given: Mapping[str, Any]) -> list[Any] | None:
        assert self.stage is not None
        assert self.session is not None
        own = given.get("plugins")
        plugins = list(own) if isinstance(own, list) else [] if own is None else [own]
        if not any(isinstance(plugin, CheckpointIO) for plugin in plugins):
            on_xla = trains_on_xla(given.get("accelerator"), given.get("strategy"))
            kind = VerifiedXLACheckpointIO if on_xla else VerifiedCheckpointIO
            plugins.append(kind(mask=partial(masked, self.session.resolved), on_saved=self._note_checkpoint))
        return plugins

    def _note_checkpoint(self, path: Path, checkpoint: Mapping[str, Any]) -> None:
        assert self.stage is not None
        self.stage.recorder.checkpoint_saved(path, checkpoint["epoch"], checkpoint["global_step"], path.stem)

    def _attach(self, trainer: Trainer, stage: Stage) -> None:
        """Give people's own checkpoint callbacks their folder, and keep secrets from every logger."""
        assert self.session is not None
        for callback in trainer.checkpoint_callbacks:
            if isinstance(callback, ModelCheckpoint) and callback.dirpath is None:
                callback.dirpath = str(stage.start.run.checkpoints)
        for logger in trainer.loggers:
            mask_hyperparameters(logger, self.session.resolved)


def build_data(section: Any, resolved: config.Resolved) -> LightningDataModule:
    """Build the data module of a config alone.

    Raises:
        ConfigError: If the section is wrong.
    """
    parser = LightningArgumentParser(exit_on_error=False)
    parser.add_lightning_class_args(LightningDataModule, "data", subclass_mode=True)
    try:
        with unwrapped_errors():
            built = parser.instantiate_classes(parser.parse_object({"data": section}))
    except ArgumentError as error:
        raise explained(error, resolved, keys=(), classes=_known_classes()) from error
    module: LightningDataModule = built["data"]
    return module


def _known_keys(parser: LightningArgumentParser) -> set[str]:
    return {str(action.dest) for action in parser._actions} | {"callbacks", "logger"}


def _known_classes() -> set[str]:
    bases: list[type] = [LightningModule, LightningDataModule, Callback, Logger, Optimizer, LRScheduler]
    return {name for base in bases for name in subclass_names(base)}
