"""LightningCLI with layered configs, a run folder, verified checkpoints and an exact resume."""

from __future__ import annotations

import inspect
import json
import sys
from argparse import ArgumentError
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from types import MethodType
from typing import Any

from jsonargparse import Namespace, set_dumper
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.accelerators import XLAAccelerator
from pytorch_lightning.cli import ArgsType, LightningArgumentParser, LightningCLI, SaveConfigCallback
from pytorch_lightning.utilities.model_helpers import is_overridden

from lightkit import config, runs
from lightkit.cli.context import RunContext
from lightkit.cli.data_paths import check_data
from lightkit.cli.lightning_errors import locate_lightning_error, unwrap_errors
from lightkit.cli.parser import build_each_logger, parse_config
from lightkit.cli.predict_images import build_image_data, drop_limits
from lightkit.cli.redaction import redact_tags
from lightkit.cli.run_lifecycle import start_run
from lightkit.cli.script_arguments import load_script_context
from lightkit.cli.trainer_components import (
    build_components,
    build_computation,
    finish_trainer,
    list_callbacks,
    set_devices,
    set_threads,
)
from lightkit.cli.trust import restrict_loading
from lightkit.cli.validation import validate_signatures
from lightkit.config.accelerator.keys import AcceleratorSettings
from lightkit.config.loader import collect_errors
from lightkit.errors import ConfigError, DataChanged, LightkitError
from lightkit.export.bare_trainer import build_bare_trainer
from lightkit.launch import LaunchSettings
from lightkit.launch.watchdog import WatchdogSettings
from lightkit.registry.gate import GateSettings
from lightkit.runs.resume import RunSettings

__all__ = ["Checked", "LightkitCLI"]

# jsonargparse 4.53 writes init_args as YAML and reads them back: the text 7e2 without quotes, which comes back as a
# number, and the default of Timer, which is an enumeration's where the argument is text, not at all.
set_dumper("yaml", config.dump_yaml)

_SECTIONS = {
    "run": RunSettings,
    "launch": LaunchSettings,
    "watchdog": WatchdogSettings,
    "gate": GateSettings,
    "accelerator": AcceleratorSettings,
}
"""Sections that lightkit adds to LightningCLI's."""
_EXPORT = "export"
_NOT_SAVED = ("ckpt_path", "weights_only", "verbose", "return_predictions", "config")
_TRAINER_ERRORS = (MisconfigurationException, ValueError, TypeError, RuntimeError, ImportError)
_TRAINING_HARDWARE = (
    *("accelerator", "devices", "num_nodes", "strategy", "precision", "plugins", "sync_batchnorm"),
    *("callbacks", "logger", "profiler", "model_registry"),
)
"""Keys of the trainer that an export, which runs on one CPU, leaves out."""


class Checked(Exception):
    """The config was parsed without a mistake, and nothing more was asked for."""


class LightkitCLI(LightningCLI):
    """A LightningCLI whose config comes in layers and whose runs are recorded.

    In a script it takes the place of LightningCLI, with the same arguments: words of a command line, given or the
    process's own, make a recorded run. With `run=False`, or with `args` as a dict or a namespace, it builds and trains
    as LightningCLI does, and records nothing. `export` is one command more, which builds the model and the data only.

    Args:
        args: Positional arguments of LightningCLI.
        context: The invocation, where a command has loaded it already; None in a script.
        kwargs: Keyword arguments of LightningCLI. LightningCLI's default `save_config_callback` is left out of a
            recorded run, whose folder holds the config, unless `save_config_kwargs` say more than `overwrite`; its file
            is `lightning_config.yaml` there. With `parser_kwargs={"exit_on_error": False}` a mistake raises
            `LightkitError`; otherwise it is printed on standard error and ends the process.
    """

    def __init__(self, *args: Any, context: RunContext | None = None, **kwargs: Any) -> None:
        given = inspect.signature(LightningCLI).bind(*args, **kwargs)
        given.apply_defaults()
        arguments = given.arguments
        self.context = context
        self._is_script = context is None
        self._script_stack = ExitStack()
        stages = list(self.subcommands())
        parser_kwargs = arguments["parser_kwargs"] or {}
        exits = self._is_script and parser_kwargs.get("exit_on_error", True)
        self._exports = context.command == _EXPORT if context is not None else self._asks_for_export(arguments, stages)
        arguments["parser_kwargs"] = {**parser_kwargs, "exit_on_error": False}
        if context is not None:
            arguments["parser_kwargs"]["prog"] = "lightkit"  # not `__main__.py`
            if not self._exports:  # one parser alone: each takes a third of a second
                methods, stages = self.subcommands(), [context.command]
                self.subcommands = lambda: {context.command: methods[context.command]}  # type: ignore[method-assign]
        if self._exports:
            arguments["run"] = False
        elif arguments["run"]:
            arguments["parser_kwargs"] |= {
                stage: {**parser_kwargs.get(stage, {}), "exit_on_error": False} for stage in stages
            }
        with _exit_on_error() if exits else nullcontext(), self._script_stack:
            super().__init__(**arguments)
            if self._exports and self._is_script:
                from lightkit.cli.model_export import export_model  # here: it loads what writes and proves exports

                assert self.context is not None
                export_model(self.context, self.model, self.datamodule)

    @staticmethod
    def _asks_for_export(arguments: dict[str, Any], stages: Sequence[str]) -> bool:
        """Return whether a script's words name the command `export`, which its class may have itself."""
        if not arguments["run"] or _EXPORT in stages or isinstance(arguments["args"], (dict, Namespace)):
            return False
        words = sys.argv[1:] if arguments["args"] is None else arguments["args"]
        return next((word for word in words if word in (*stages, _EXPORT)), None) == _EXPORT

    # -- the config ----------------------------------------------------------------------------------------------------

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add lightkit's sections beside `seed_everything`."""
        super().add_default_arguments_to_parser(parser)
        for name, settings in _SECTIONS.items():
            parser.add_class_arguments(settings, name)

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Merge all layers and let jsonargparse parse the result.

        Raises:
            ConfigError: If anything in it is wrong.
            Checked: If only that was asked.
        """
        if self.context is None and not isinstance(args, (dict, Namespace)):
            words = list(sys.argv[1:] if args is None else args)
            if words[:1] in (["-h"], ["--help"]):
                parser.parse_args(words)  # prints the commands and ends the process
            self.context = load_script_context(
                words,
                {_EXPORT: parser} if self._exports else getattr(self, "_subcommand_parsers", None),
                parser_kwargs=self.parser_kwargs,
                fixed=["model"] * (not self.subclass_mode_model) + ["data"] * (not self.subclass_mode_data),
            )
            self._script_stack.push(self.context.stack)
        context = self.context
        if context is None:
            with _argument_errors():
                super().parse_arguments(parser, args)
            return
        if context.options.get("trust"):
            context.stack.enter_context(runs.trusting())
        command = [context.command] if context.command and not self._exports else []
        if context.passthrough:
            with _argument_errors():
                parser.parse_args([*command, *context.passthrough])
        parse = partial(self._parse, parser, command)
        try:
            self.config = parse(context.resolved)
        except ConfigError:  # the first mistake: collect all of them
            problems, resolved = config.Problems(), context.resolved
            if not context.has_own_parser:
                resolved = validate_signatures(resolved, problems)
            self.config, _ = collect_errors(resolved, parse, problems)
            if (error := problems.error()) is not None:
                raise error.reworded(context.resolved.masked) from None
        if self.config is None:  # the rest of the config depends on a mistake that is reported already
            raise Checked
        self._check_parsed(context, self.config[context.command] if command else self.config)

    def _parse(self, parser: LightningArgumentParser, command: list[str], resolved: config.Resolved) -> Any:
        values = resolved.lightning().values
        values.pop("ckpt_path", None)  # `start_run` decides
        if self._exports and isinstance(trainer := values.get("trainer"), dict):
            values["trainer"] = {key: value for key, value in trainer.items() if key not in _TRAINING_HARDWARE}
        known = self._subcommand_parsers[command[0]] if command else parser
        return parse_config(parser, command, values, resolved, known=known)

    def _check_parsed(self, context: RunContext, section: Namespace) -> None:
        """Print or check the parsed config, where that is asked for, before anything is built."""
        if context.command:
            section["run"]["name"] = section["run"]["name"] or context.default_name
        if context.print_config is not None and not context.only_checks:
            parser = self._parser(None if self._exports or not context.command else context.command)
            for line in (parser.dump_header or ()) if self._is_script else ():
                print(f"# {line}")
            print(config.dump_yaml(self._dump(parser, section, context.print_config)), end="")
            raise SystemExit(0)
        if context.command and not context.inputs and context.print_config is None:  # images need none of the data
            check_data(section.get("data"), context.resolved)
        if context.only_checks:
            raise Checked

    def _dump(self, parser: LightningArgumentParser, section: Namespace, flags: Sequence[str] = ()) -> dict[str, Any]:
        """Return the config as it is saved: in lightkit's form, with references in the place of secrets."""
        assert self.context is not None
        text = parser.dump(
            section,
            format="json",
            skip_unset="skip_unset" in flags or "skip_null" in flags,
            skip_default="skip_default" in flags,
        )
        values = {key: value for key, value in json.loads(text).items() if key not in _NOT_SAVED}
        resolved = self.context.resolved
        return resolved.with_references(resolved.named(values))

    # -- the run -------------------------------------------------------------------------------------------------------

    def instantiate_classes(self) -> None:
        """Start the run, then build data, model and trainer; optimizers wait for a model without parameters yet.

        LightningCLI 2.6 takes the model's parameters here: before `configure_model` has made them, and before an XLA
        device has put others in their place, so that the optimizer would train nothing.
        """
        context = self.context
        if context is not None and self.subcommand is not None:
            self.start_run(context, self.config[self.subcommand])
        automatic, self.auto_configure_optimizers = self.auto_configure_optimizers, False
        try:
            with unwrap_errors():
                super().instantiate_classes()
        except ValueError as error:
            if context is not None and str(error).startswith("Not a valid subclass of Logger"):
                build_each_logger(self.parser, self._get(self.config, "trainer.logger"), command=self.subcommand)
            raise
        self.auto_configure_optimizers = automatic
        if self._exports:
            return
        if context is not None and self.subcommand is not None:
            method = self.config_init[self.subcommand]  # the config itself keeps the user's value
            if "weights_only" in method:
                method["weights_only"] = restrict_loading(method["weights_only"])
        if context is not None and context.inputs:
            self.datamodule = build_image_data(context, self.model, self.datamodule, context.start)
        on_xla = isinstance(self.trainer.accelerator, XLAAccelerator)
        if not on_xla and not is_overridden("configure_model", self.model):
            self._add_configure_optimizers_method_to_model(self.subcommand)
        elif automatic:
            self.defer_optimizers(self.model)

    def start_run(self, context: RunContext, section: Namespace) -> None:
        """Start the run, and set the keys of the config that depend on it."""
        trainer = section["trainer"]
        context.saved_config = self._dump(self._parser(self.subcommand), section)
        seed = None if section["seed_everything"] is False else section["seed_everything"]
        settings = RunSettings(**section["run"].as_dict())
        start_run(context, settings, seed=seed, is_trial=bool(trainer.get("fast_dev_run")))
        set_threads(section["launch"]["threads"], context)
        set_devices(trainer, context)
        if "ckpt_path" in section:
            section["ckpt_path"] = None if context.start.checkpoint is None else str(context.start.checkpoint)
        if "default_root_dir" in trainer:
            trainer["default_root_dir"] = trainer["default_root_dir"] or str(context.run.folder)
        redact_tags(trainer.get("logger"), context.resolved)
        if not self._is_script and self.subcommand in ("validate", "test"):  # else Lightning prints a table of its own
            section["verbose"] = bool(context.resolved.values.get("verbose", False))
        if not self._is_script and self.subcommand == "predict":  # they are written; kept, they would fill memory
            section["return_predictions"] = False
        if context.inputs:
            drop_limits(trainer)
        if self.save_config_callback is SaveConfigCallback and not set(self.save_config_kwargs) - {"overwrite"}:
            self.save_config_callback = None
        elif self.save_config_callback is not None:
            accepted = inspect.signature(self.save_config_callback).parameters
            if "config_filename" in accepted or any(each.kind is each.VAR_KEYWORD for each in accepted.values()):
                self.save_config_kwargs = {"config_filename": "lightning_config.yaml", **self.save_config_kwargs}
        context.stack.enter_context(runs.activate(replace(context.run, stage=self.subcommand or "fit")))

    def defer_optimizers(self, model: LightningModule) -> None:
        """Let the model take the config's optimizer when the trainer asks for it, if the config has one."""
        registered = self._parser(self.subcommand)._optimizers
        automatic = [key for key, (_, link_to) in registered.items() if link_to == "AUTOMATIC"]
        if any(self._get(self.config_init, key) for key in automatic):
            model.configure_optimizers = MethodType(self.create_optimizers, model)  # type: ignore[method-assign]

    def create_optimizers(self, module: LightningModule) -> Any:
        """Build the config's optimizer for a model whose parameters exist by now."""
        del module.configure_optimizers  # `create_optimizers`, set on the instance
        self._add_configure_optimizers_method_to_model(self.subcommand)
        return module.configure_optimizers()

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Build the trainer, with the components of a recorded run.

        Raises:
            ConfigError: If the trainer refuses its arguments.
        """
        if self._exports:
            return build_bare_trainer()
        context = self.context
        trainer_config = {**self._get(self.config_init, "trainer", default={}), **kwargs}
        if context is None or self.subcommand is None:
            section = self._get(self.config_init, "accelerator")
            if computation := build_computation({} if section is None else vars(section)):
                kwargs["callbacks"] = [*computation, *list_callbacks(trainer_config)]
        else:  # a script may have a function for the trainer that takes few arguments
            known = self._get(self.config, "trainer", default={})
            components = build_components(context, trainer_config)
            kwargs |= {key: value for key, value in components.items() if key in kwargs or key in known}
        try:
            trainer = super().instantiate_trainer(**kwargs)
        except _TRAINER_ERRORS as error:
            if context is None:
                raise
            raise locate_lightning_error(error, context.resolved) from error
        if context is not None and self.subcommand is not None:
            finish_trainer(context, trainer)
        return trainer


# For editors and for `inspect`: the arguments are LightningCLI's.
LightkitCLI.__init__.__signature__ = inspect.signature(LightningCLI.__init__)  # type: ignore[attr-defined]


@contextmanager
def _argument_errors() -> Iterator[None]:
    try:
        yield
    except ArgumentError as error:
        raise ConfigError(str(error)) from error


@contextmanager
def _exit_on_error() -> Iterator[None]:
    """End a script as LightningCLI does where the config is wrong: with a line on standard error, and its exit code."""
    try:
        yield
    except DataChanged as change:
        reason = str(change).removeprefix("begins a new run: ")
        print(f"error: run.resume: {reason}, and --run.resume=never begins a new run", file=sys.stderr)
        raise SystemExit(ConfigError.exit_code) from change
    except LightkitError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from error
