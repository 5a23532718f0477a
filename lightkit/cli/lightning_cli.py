"""LightningCLI with layered configs, a run folder, verified checkpoints and an exact resume."""

from __future__ import annotations

from types import MethodType
from typing import Any

from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.accelerators import XLAAccelerator
from pytorch_lightning.utilities.model_helpers import is_overridden

from lightkit import runs
from lightkit.cli.data_paths import check_data
from lightkit.cli.layered import LayeredCLI
from lightkit.cli.lightning_errors import locate_lightning_error, unwrap_errors
from lightkit.cli.parser import build_each_logger
from lightkit.cli.predict_images import build_image_data, drop_limits
from lightkit.cli.redaction import redact_tags
from lightkit.cli.resume import RunSettings
from lightkit.cli.scripted import Checked, ConfigPrinted, DataChanged, keeps_own_file, with_file_name
from lightkit.cli.stage import Stage
from lightkit.cli.starting import begin
from lightkit.cli.trainer_components import (
    TrainerComponents,
    computation_unrecorded,
    list_callbacks,
    share_devices,
    take_threads,
)
from lightkit.cli.trust import restrict_loading
from lightkit.export.bare_trainer import build_bare_trainer

__all__ = ["Checked", "ConfigPrinted", "DataChanged", "LightkitCLI"]

_TRAINER_ERRORS = (MisconfigurationException, ValueError, TypeError, RuntimeError, ImportError)


class LightkitCLI(LayeredCLI):
    """A LightningCLI whose config comes in layers and whose runs are recorded.

    In a script it takes the place of LightningCLI: words of a command line, given or the process's own, make a
    recorded run. With `run=False`, or with arguments as a dict or a namespace, it builds and trains as LightningCLI
    does, and records nothing.

    Args:
        model_class: As in LightningCLI, as are all others but the last.
        datamodule_class: Class of the data.
        save_config_callback: Saves LightningCLI's own config beside the run folder's. LightningCLI's default is left
            out of a recorded run, whose folder holds the config, unless it is told to write another file.
        save_config_kwargs: Arguments of that callback. Its file in a run folder is `lightning_config.yaml` by default.
        trainer_class: The trainer, or a function that builds it.
        trainer_defaults: Values for the trainer that a config can change, and callbacks that it cannot.
        seed_everything_default: Seed where the config gives none; True draws one, False leaves seeds alone.
        parser_kwargs: Arguments of the parser, or of each command's. With `exit_on_error: False` a mistake raises
            `LightkitError`; otherwise it is told on standard error and ends the process.
        parser_class: Class of the parsers.
        subclass_mode_model: Let configs choose any subclass of the model class.
        subclass_mode_data: Let configs choose any subclass of the data class.
        args: Words, dict or namespace in place of the process's own words.
        run: Whether a command is part of the arguments, and runs.
        auto_configure_optimizers: Whether configs can have `optimizer` and `lr_scheduler`.
        load_from_checkpoint_support: Whether a checkpoint holds what `load_from_checkpoint` needs.
        session: The invocation, where the caller has read it already.
    """

    stage: Stage | None = None

    def _begin(self) -> None:
        """Choose the run folder and the checkpoint before anything is built."""
        if self.session is None:
            return
        if self.subcommand is None:
            self._print_config()
            return
        section = self.config[self.subcommand]
        section["run"]["name"] = section["run"]["name"] or self.session.default_name
        self.saved_config = self._config_to_save()
        if self.session.print_config is None and not self.session.inputs:  # which need none of the data
            check_data(section.get("data"), self.session.resolved)
        if self.session.only_checks:
            raise Checked
        self._print_config()
        if self._exports:  # which leaves a run as it is
            return
        self.stage = begin(
            self.session,
            RunSettings(**section["run"].as_dict()),
            saved=self.saved_config,
            seed=None if section["seed_everything"] is False else section["seed_everything"],
            fresh=bool(section["trainer"].get("fast_dev_run")),
        )
        start = self.stage.start
        take_threads(self.session, section)
        share_devices(section["trainer"], self.session)
        if "ckpt_path" in self._subcommand_method_arguments[self.subcommand]:
            section["ckpt_path"] = None if start.checkpoint is None else str(start.checkpoint)
        if "default_root_dir" in self._trainer_arguments():
            section["trainer"]["default_root_dir"] = section["trainer"].get("default_root_dir") or str(start.run.folder)
        redact_tags(section["trainer"].get("logger"), self.session.resolved)
        if not self._is_script and self.subcommand in ("validate", "test"):  # else Lightning prints a table of its own
            section["verbose"] = bool(self.session.resolved.values.get("verbose", False))
        if not self._is_script and self.subcommand == "predict":  # they are written; kept, they would fill memory
            section["return_predictions"] = False
        if self.session.inputs:
            drop_limits(section["trainer"])
        if self.save_config_callback and keeps_own_file(self.save_config_callback, self.save_config_kwargs):
            self.save_config_kwargs = with_file_name(self.save_config_callback, self.save_config_kwargs)
        else:
            self.save_config_callback = None
        self.session.stack.enter_context(runs.activate(start.run))

    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        """Let strategies and checkpoint plugins of anybody's load tensors and plain values only, unless `--trust`."""
        given: dict[str, Any] = super()._prepare_subcommand_kwargs(subcommand)
        return given if self.session is None else restrict_loading(given)

    def instantiate_classes(self) -> None:
        """Build data, model and trainer; optimizers wait for a model whose parameters are made later.

        LightningCLI 2.6 takes the model's parameters here: before `configure_model` has made them, and before an XLA
        device has put others in their place, so that the optimizer would train nothing.
        """
        self._begin()
        automatic, self.auto_configure_optimizers = self.auto_configure_optimizers, False
        try:
            with unwrap_errors():
                super().instantiate_classes()
        except ValueError as error:
            if self.session is not None and str(error).startswith("Not a valid subclass of Logger"):
                build_each_logger(self.parser, self._get(self.config, "trainer.logger"), command=self.subcommand)
            raise
        self.auto_configure_optimizers = automatic
        if self._exports:  # nothing is trained
            return
        if self.session is not None and self.session.inputs and self.stage is not None:
            self.datamodule = build_image_data(self.session, self.model, self.datamodule, self.stage.start)
        on_xla = isinstance(self.trainer.accelerator, XLAAccelerator)
        if not on_xla and not is_overridden("configure_model", self.model):
            self._add_configure_optimizers_method_to_model(self.subcommand)
        elif automatic and any(self._get(self.config_init, key) for key in self._automatic_optimizers()):
            self.model.configure_optimizers = MethodType(self._late_optimizers, self.model)

    def _automatic_optimizers(self) -> list[str]:
        registered = self._parser(self.subcommand)._optimizers
        return [key for key, (_, link_to) in registered.items() if link_to == "AUTOMATIC"]

    def _late_optimizers(self, module: LightningModule) -> Any:
        del module.configure_optimizers  # this method, set on the instance
        self._add_configure_optimizers_method_to_model(self.subcommand)
        return module.configure_optimizers()

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Build the trainer, with lightkit's callbacks and checkpoint writer.

        Raises:
            ConfigError: If the trainer refuses its arguments.
        """
        if self._exports:
            return build_bare_trainer()
        asked = set(kwargs)
        given = {**self._get(self.config_init, "trainer", default={}), **kwargs}
        equipment = None
        if self.session is not None and self.stage is not None:
            equipment = TrainerComponents(self.session, self.stage, self.saved_config)
            kwargs |= equipment.arguments(given)
            kwargs.setdefault("enable_model_summary", given.get("enable_model_summary") or False)
            kwargs = {key: value for key, value in kwargs.items() if key in asked or key in self._trainer_arguments()}
        elif computing := computation_unrecorded(self._get(self.config_init, "accelerator")):
            kwargs["callbacks"] = [computing, *list_callbacks(given)]
        try:
            trainer = super().instantiate_trainer(**kwargs)
        except _TRAINER_ERRORS as error:
            if self.session is None:
                raise
            raise locate_lightning_error(error, self.session.resolved) from error
        if equipment is not None:
            equipment.attach(trainer)
        return trainer

    def _run_subcommand(self, subcommand: str) -> None:
        """Run the trainer's method of that name, or the export."""
        if not self._exports:
            super()._run_subcommand(subcommand)
            return
        from lightkit.cli.model_export import export_model  # here: it loads what writes and proves exports

        assert self.session is not None
        export_model(self.session, self.model, self.datamodule)
