"""LightningCLI with layered configs, a run folder, verified checkpoints and an exact resume."""

from __future__ import annotations

import inspect
import json
import logging
import multiprocessing
import re
import sys
import warnings
from argparse import ArgumentError
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from glob import glob
from pathlib import Path
from types import MethodType
from typing import Any

import yaml
from jsonargparse import Namespace, set_dumper
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.cli import ArgsType, LightningArgumentParser, LightningCLI, instantiate_class

# The classes of these packages are known by their short names once they are imported.
from lightkit import config, data, loggers, models, runs  # noqa: F401
from lightkit.callbacks.optimizer_settings import OptimizerSettings
from lightkit.cli.argument_lookup import import_class
from lightkit.cli.command_line import Command, parse_command
from lightkit.cli.command_table import COMMANDS, WITH_MODEL
from lightkit.cli.config_loader import is_yaml_text, spawns
from lightkit.cli.console import configure_console, quiet_libraries
from lightkit.cli.context import RunContext, load_context
from lightkit.cli.parser_errors import (
    OTHER_WEIGHTS,
    explain_parser_error,
    explain_process_limit,
    find_first_error,
    locate_lightning_error,
    unwrap_errors,
)
from lightkit.cli.predict_images import build_image_data, drop_limits
from lightkit.cli.redaction import redact_tags
from lightkit.cli.run_lifecycle import start_run
from lightkit.cli.schedules import (
    count_schedule,
    describe_schedule_class,
    explain_building,
    keeps_own_optimizer,
    warn_of_schedule,
    warn_of_two_command_lines,
    with_schedule,
)
from lightkit.cli.trainer_components import (
    as_list,
    build_components,
    build_computation,
    finish_trainer,
    print_run_end,
    set_devices,
    set_threads,
)
from lightkit.cli.validation import check_inputs, validate_signatures
from lightkit.config.accelerator.computation import AcceleratorSettings
from lightkit.config.resolved import collect_errors, drop_paths
from lightkit.config.schedule import SECTION, check_stepping, hide_schedule, read_schedule, show_schedule
from lightkit.errors import ConfigError, LightkitError
from lightkit.export.bare_trainer import build_bare_trainer
from lightkit.launch.plan import LaunchSettings
from lightkit.launch.watchdog import WatchdogSettings
from lightkit.models.module import ScoredModule
from lightkit.registry.gate import GateSettings
from lightkit.runs.resume import RunSettings
from lightkit.runs.signals import SignalWatch

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
    """The config was parsed without an error, and nothing more was asked for."""


class LightkitCLI(LightningCLI):
    """A LightningCLI whose config comes in layers and whose runs are recorded.

    In a script it takes the place of LightningCLI, with the same arguments: a command line, given or the process's own,
    makes a recorded run. With `run=False`, or with `args` as a dict or a namespace, it builds and trains as
    LightningCLI does, and records nothing. `export` is one command more, which builds the model and the data only.

    Args:
        args: Positional arguments of LightningCLI.
        context: The invocation, where a command has loaded it already; None in a script.
        kwargs: Keyword arguments of LightningCLI. With `parser_kwargs={"exit_on_error": False}` an error raises
            `LightkitError`; otherwise it is printed on standard error and ends the process.
    """

    left_out_of_export: tuple[str, ...] = _TRAINING_HARDWARE

    def __init__(self, *args: Any, context: RunContext | None = None, **kwargs: Any) -> None:
        self.context = context
        self._is_recorded = False
        self._ckpt_path: str | None = None
        self.optimizer_settings = OptimizerSettings(self._is_set)
        if context is not None:
            kwargs["save_config_callback"] = None  # the run folder has the config
            command = "fit" if context.command == _EXPORT else context.command
            methods = self.subcommands()[command]  # one parser alone: each takes a third of a second
            self.subcommands = lambda: {command: methods}  # type: ignore[method-assign]
        _keep_forking()
        try:
            with ExitStack() as self._script_stack:
                super().__init__(*args, **kwargs)
        except (ArgumentError, LightkitError) as raised:
            error = raised if isinstance(raised, LightkitError) else ConfigError(str(raised))
            if not (self._is_script and self.parser_kwargs.get("exit_on_error", True)):
                raise error from raised.__cause__
            print(f"error: {error}", file=sys.stderr)
            raise SystemExit(error.exit_code) from error

    def __getstate__(self) -> dict[str, Any]:
        """Leave the invocation out: a strategy that spawns processes pickles the parser, which knows this object."""
        return {**vars(self), "context": None, "_script_stack": None}

    def _is_set(self, section: str) -> bool:
        """Check whether the config names an optimizer, or a schedule."""
        return self.context is not None and self.context.resolved.values.get(section) is not None

    @property
    def _is_script(self) -> bool:
        return self.context is None or self.context.is_script

    @property
    def _exports(self) -> bool:
        return self.context is not None and self.context.command == _EXPORT

    # -- the config ----------------------------------------------------------------------------------------------------

    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        """Build a parser that raises its errors; they are explained where they are caught."""
        prog = {} if self._is_script else {"prog": "lightkit"}  # not `__main__.py`
        return super().init_parser(**{**prog, **kwargs, "exit_on_error": False})

    def setup_parser(self, *args: Any) -> None:
        """Build the parsers.

        Raises:
            ConfigError: If a script adds an argument with the name of one of lightkit's sections.
        """
        try:
            super().setup_parser(*args)
        except (ArgumentError, ValueError) as error:
            name = re.search(rf"\b({'|'.join(_SECTIONS)})\b", str(error))
            if name is None or not self._is_script:
                raise
            raise ConfigError(f"--{name[1]}: lightkit has sections of the names {', '.join(_SECTIONS)}") from error

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add lightkit's sections next to `seed_everything`."""
        super().add_default_arguments_to_parser(parser)
        for name, settings in _SECTIONS.items():
            parser.add_class_arguments(settings, name)

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Merge all layers and let jsonargparse parse the result.

        Raises:
            ConfigError: If anything in it is wrong.
            Checked: If only that was asked.
        """
        if self.context is None and isinstance(args, (dict, Namespace)):
            super().parse_arguments(parser, args)
            return
        if self.context is None and args is not None and len(sys.argv) > 1:
            warn_of_two_command_lines(args)
        context = self.context or self._load_script_context(parser, None if args is None else list(args))
        if context.options.get("trust"):
            context.stack.enter_context(runs.trusting())
        parsers = getattr(self, "_subcommand_parsers", {})
        command = [context.command if context.command in parsers else next(iter(parsers))] if context.command else []
        if context.passthrough:
            parser.parse_args([*command, *context.passthrough])
        parse = partial(self._parse, parser, command)
        try:
            self.config = parse(context.resolved)
        except ConfigError:  # the first error: collect all of them
            problems = config.Problems()
            resolved = context.resolved
            if not context.is_script:
                resolved = validate_signatures(resolved, problems)
            self.config, _ = collect_errors(resolved, parse, problems)
            problems.raise_any(context.resolved.masked)
        if self.config is None:  # the rest of the config depends on an error that is reported already
            raise Checked
        section = self.config[command[0]] if command else self.config
        if command:
            section["run"]["name"] = section["run"]["name"] or context.job_name
            self._is_recorded = not self._exports and not spawns(section["trainer"].get("strategy"))
        if context.print_config is not None:
            parser = parsers[command[0]] if command else parser
            for line in (parser.dump_header or ()) if context.is_script else ():
                print(f"# {line}")
            left_out = ("config",) if context.is_script else _NOT_SAVED
            values = self._dump(parser, section, left_out=left_out, flags=context.print_config)
            print(config.dump_yaml(values), end="")
            raise SystemExit(0)
        if command == ["fit"] and not context.resolved.removed:  # else errors are to be reported first
            self._warn_of_schedule(context, section)
        if command and not context.inputs:  # images need none of the data
            starts = context.only_checks and command == ["fit"] and context.ckpt_path is None
            check_inputs(context.resolved, starts_training=starts, parsed=section)
        if context.only_checks:
            raise Checked

    def _load_script_context(self, parser: LightningArgumentParser, args: list[str] | None) -> RunContext:
        """Load the context of a script from its command line and the defaults of its parsers."""
        words = list(sys.argv[1:] if args is None else args)
        if words[:1] in (["-h"], ["--help"]):
            parser.parse_args(words)  # prints the commands and ends the process
        parsers = getattr(self, "_subcommand_parsers", {})
        command = ""
        kwargs = self.parser_kwargs
        files = _default_files(kwargs)
        if parsers:
            command, words = _find_command(words, parsers)
            files += _default_files(kwargs.get(command, {}))
        known = parsers.get(command) or next(iter(parsers.values()), parser)
        fixed = ["model"] * (not self.subclass_mode_model) + ["data"] * (not self.subclass_mode_data)
        problems = config.Problems()
        invocation = parse_command(
            _create_script_command(command, known), [*files, *_join_values(words, known)], is_script=True
        )
        context, loaded = load_context(
            invocation,
            SignalWatch(owns_process=False),
            problems,
            class_sections=[section for section in config.CLASS_SECTIONS if section not in fixed],
            subcommands=[*LightningCLI.subcommands(), *parsers],
            is_script=True,
        )
        problems.raise_any(loaded.resolved.masked)
        self.context = context
        context.resolved = drop_paths(context.resolved, {("subcommand",)})
        if (path := context.ckpt_path) and path not in ("best", "last") and not Path(path).is_file():
            # Lightning knows more places than files
            self._ckpt_path = path
            context.ckpt_path = None
        self._script_stack.push(context.stack)
        if args is None:  # a program of its own, which is as quiet as a command
            configure_console(context.mode, context.resolved.masked)
            quiet_libraries()
            # of which a command warns itself, with the place; see `warn_of_schedule`
            warnings.filterwarnings("default", message=".*configure_optimizers` will be overridden by")
        return context

    def _parse(self, parser: LightningArgumentParser, command: list[str], resolved: config.Resolved) -> Any:
        values = resolved.lightning_values
        values.pop("ckpt_path", None)  # `start_run` decides
        if SECTION in values and SECTION in resolved.class_sections:
            values[SECTION] = hide_schedule(values[SECTION], describe_schedule_class)
            check_stepping(values[SECTION], resolved)
        if self._exports and isinstance(trainer := values.get("trainer"), dict):
            values["trainer"] = {key: value for key, value in trainer.items() if key not in self.left_out_of_export}
        try:
            # As a file's text: given as an object, `key+` in init_args would forget the signature's default.
            return parser.parse_args([*command, "--config", config.dump_yaml(values)])
        except ArgumentError as error:
            known = self._subcommand_parsers[command[0]] if command else parser
            keys = {str(action.dest) for action in known._actions} | {"callbacks", "logger"}
            said = replace(resolved, subcommand=command[0]) if command else resolved
            raise explain_parser_error(error, said, keys=keys) from error
        except SystemExit as end:
            raise ConfigError(f"a module that the config imports calls sys.exit({end.code})") from end

    def _dump(
        self,
        parser: LightningArgumentParser,
        section: Namespace,
        *,
        left_out: Sequence[str] = _NOT_SAVED,
        flags: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Return the config as it is saved: in lightkit's form, with references in the place of secrets."""
        assert self.context is not None
        text = parser.dump(
            section,
            format="json",
            skip_unset="skip_unset" in flags or "skip_null" in flags,
            skip_default="skip_default" in flags,
        )
        values = {key: value for key, value in json.loads(text).items() if key not in left_out}
        if SECTION in values:
            values[SECTION] = show_schedule(values[SECTION])
        resolved = self.context.resolved
        return resolved.with_references(resolved.name_entries(values))

    # -- the run -------------------------------------------------------------------------------------------------------

    def instantiate_classes(self) -> None:
        """Start the run, then build data, model and trainer."""
        context = self.context
        if context is not None and self.subcommand is not None:
            set_threads(self.config[self.subcommand]["launch"]["threads"], context)
        if self._is_recorded:
            self.start_run()
        try:
            with unwrap_errors():
                super().instantiate_classes()
        except ValueError as error:
            listed = self._get(self.config, "trainer.logger")
            if str(error).startswith("Not a valid subclass of Logger") and isinstance(listed, list):
                for value in listed:
                    self.build_part("trainer.logger", value)
            raise
        if context is not None and self._is_recorded:
            method = self.config_init[self.subcommand]  # the config itself keeps the user's value
            if "weights_only" in method and not (context.is_script and method["weights_only"] is None):
                if method["weights_only"] is False and not runs.is_trusting():
                    logging.getLogger("lightkit").warning(
                        "weights_only: false has no effect: checkpoints are loaded as tensors and plain values; "
                        "--trust on the command line allows more"
                    )
                method["weights_only"] = not runs.is_trusting()  # strategies and checkpoint plugins follow it
        if context is not None and context.inputs:
            self.datamodule = build_image_data(context, self.model, self.datamodule, context.start)

    def start_run(self) -> None:
        """Start the run, and set the keys of the config that depend on it."""
        context = self.context
        section = self.config[self.subcommand]
        assert context is not None
        trainer = section["trainer"]
        context.saved_config = self._dump(self._parser(self.subcommand), section)
        seed = None if section["seed_everything"] is False else section["seed_everything"]
        settings = RunSettings(**section["run"].as_dict())
        start_run(context, settings, seed=seed, is_trial=bool(trainer.get("fast_dev_run")))
        context.notifier.run = context.run
        if self.subcommand == "fit" and context.start.checkpoint is None:
            check_inputs(context.resolved, starts_training=True, parsed=section)
        set_devices(trainer, context)
        if "ckpt_path" in section:
            checkpoint = context.start.checkpoint
            section["ckpt_path"] = self._ckpt_path if checkpoint is None else str(checkpoint)
        redact_tags(trainer.get("logger"), context.resolved)
        if context.is_script:
            if context.run.resumed:  # its own config is there
                self.save_config_kwargs = {**self.save_config_kwargs, "overwrite": True}
        else:
            trainer["default_root_dir"] = trainer["default_root_dir"] or str(context.run.folder)
            if self.subcommand in ("validate", "test"):  # else Lightning prints a table of its own
                section["verbose"] = bool(context.resolved.values.get("verbose", False))
            if self.subcommand == "predict":  # they are written; kept, they would fill memory
                section["return_predictions"] = False
        if context.inputs:
            drop_limits(trainer)
        context.stack.enter_context(runs.activate(replace(context.run, stage=self.subcommand or "fit")))

    def build_part(self, key: str, value: Any) -> Any:
        """Build one part of the config: of a list, jsonargparse 4.53 does not keep what the constructors raised.

        Raises:
            Exception: What a constructor raises.
        """
        place = key if self.subcommand is None else f"{self.subcommand}.{key}"
        alone = Namespace(subcommand=self.subcommand)  # type: ignore[no-untyped-call]
        alone[place] = value
        with unwrap_errors():
            return self.parser.instantiate_classes(alone)[place]

    def _add_configure_optimizers_method_to_model(self, subcommand: str | None) -> None:
        """Hand the config's optimizer to the trainer when it asks the model for one, if the config has one.

        LightningCLI 2.6 takes the parameters as soon as the model is built: before `setup` or `configure_model` has
        made them, and before an XLA device has put others in their place, so that the optimizer would train nothing.
        """
        parser = self._parser(subcommand)
        is_given = any(self._get(self.config_init, key) for key in _list_automatic(parser._optimizers))
        # Lightkit's own models have an optimizer to which the config's schedule belongs.
        schedules = [self._get(self.config_init, key) for key in _list_automatic(parser._lr_schedulers)]
        has_schedule = any(each is not None and "class_path" in each for each in schedules)
        is_given = is_given or (has_schedule and keeps_own_optimizer(type(self.model)))
        if self.auto_configure_optimizers and is_given and not self._exports:
            self.model.configure_optimizers = MethodType(self.create_optimizers, self.model)

    def create_optimizers(self, module: LightningModule) -> Any:
        """Build the config's optimizer and schedule for a model whose parameters exist by now.

        Raises:
            ConfigError: If they cannot be built with these arguments.
        """
        del module.configure_optimizers  # `create_optimizers`, set on the instance
        parser = self._parser(self.subcommand)
        resolved = None if self.context is None else self.context.resolved
        key = next(iter(_list_automatic(parser._lr_schedulers)), SECTION)
        init = self._get(self.config_init, key)
        with explain_building(resolved), warnings.catch_warnings():
            if keeps_own_optimizer(type(module)):  # it is there to be replaced
                warnings.filterwarnings("ignore", message=".*configure_optimizers` will be overridden")
            if any(self._get(self.config_init, each) for each in _list_automatic(parser._optimizers)):
                super()._add_configure_optimizers_method_to_model(self.subcommand)
                found = module.configure_optimizers()
            else:
                assert isinstance(module, ScoredModule)
                optimizer = module.create_optimizer()
                found = self.configure_optimizers(module, optimizer, instantiate_class(optimizer, init))
        schedule = read_schedule(self._get(self.config, key))
        if schedule.counted:
            self.optimizer_settings.counted = count_schedule(found, schedule.counted, init)
        return with_schedule(found, schedule)

    def _warn_of_schedule(self, context: RunContext, section: Namespace) -> None:
        """Warn of a schedule and an optimizer that the model, or the number of epochs, makes idle."""
        if context.rank is not None and context.rank.rank != 0:
            return
        value = section.get("model")
        cls: Any = self.model_class
        if self.subclass_mode_model and value is not None and "class_path" in value:
            cls = import_class(value["class_path"])
        is_automatic = self.auto_configure_optimizers and bool(_list_automatic(self._parsers()[0]._optimizers))
        warn_of_schedule(context, cls if is_automatic and isinstance(cls, type) else None)

    def _parsers(self) -> list[LightningArgumentParser]:
        return list(getattr(self, "_subcommand_parsers", {"": self.parser}).values())

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Build the trainer, with the components of a recorded run.

        Raises:
            ConfigError: If the trainer refuses its arguments.
        """
        if self._exports:
            return build_bare_trainer()
        context = self.context
        trainer_config = {**self._get(self.config_init, "trainer", default={}), **kwargs}
        if context is None or not self._is_recorded:
            section = self._get(self.config_init, "accelerator")
            added = build_computation({} if section is None else vars(section))
            keys = _list_automatic(self._parser(self.subcommand)._lr_schedulers)
            if any(read_schedule(self._get(self.config, key)).counted for key in keys):
                added.append(self.optimizer_settings)
            if added:
                kwargs["callbacks"] = [*added, *as_list(trainer_config.get("callbacks"))]
        else:  # a script may have a function for the trainer that takes few arguments
            added = [self._get(self.config_init, key) for key in self._parser(self.subcommand).callback_keys]
            added += as_list(self.trainer_defaults.get("callbacks"))
            components = build_components(context, trainer_config, added, settings=self.optimizer_settings)
            known = self._get(self.config, "trainer", default={})
            kwargs |= {key: value for key, value in components.items() if key in kwargs or key in known}
        try:
            trainer = super().instantiate_trainer(**kwargs)
        except _TRAINER_ERRORS as error:
            if context is None:
                raise
            raise locate_lightning_error(error, context.resolved) from error
        if context is not None and self._is_recorded:
            finish_trainer(context, trainer)
        return trainer

    def _run_subcommand(self, subcommand: str) -> None:
        if self._exports:
            from lightkit.cli.model_export import export_model  # here: it loads what writes and proves exports

            assert self.context is not None
            export_model(self.context, self.model, self.datamodule)
            return
        try:
            super()._run_subcommand(subcommand)
            if self._is_script and self._is_recorded:
                assert self.context is not None
                print_run_end(self.trainer, self.context)
        except Exception as error:
            first = find_first_error(error)
            if (limit := explain_process_limit(first)) is not None:
                raise limit from first
            if isinstance(first, RuntimeError) and str(first).startswith(OTHER_WEIGHTS):
                raise ConfigError(f"the checkpoint does not fit the model: {' '.join(str(first).split())}") from first
            if first is error:
                raise
            raise first from first.__cause__


# For editors and for `inspect`: the arguments are LightningCLI's.
LightkitCLI.__init__.__signature__ = inspect.signature(LightningCLI.__init__)  # type: ignore[attr-defined]


def _list_automatic(registered: Mapping[str, tuple[Any, str]]) -> list[str]:
    """List the keys of optimizers or schedules that LightningCLI gives to the model."""
    return [key for key, (_, link_to) in registered.items() if link_to == "AUTOMATIC"]


# -- the command line of a script --------------------------------------------------------------------------------------


def _default_files(parser_kwargs: Mapping[str, Any]) -> list[str]:
    """List the options for `default_config_files`, which are the lowest layers, as far as they exist."""
    patterns = map(str, parser_kwargs.get("default_config_files") or ())
    return [f"--config={file}" for pattern in patterns for file in sorted(glob(pattern))]  # noqa: PTH207 (as in jsonargparse)


def _join_values(words: Sequence[str], parser: LightningArgumentParser) -> list[str]:
    """Write the values after an argument that takes several (``nargs``) as one list."""
    several = {
        option for action in parser._actions if action.nargs not in (None, 0, "?") for option in action.option_strings
    }
    joined: list[str] = []
    values: list[str] | None = None
    for word in words:
        if values is not None and not word.startswith("-"):
            values.append(word)
            joined[-1] = f"{joined[-1].partition('=')[0]}={json.dumps(values)}"
            continue
        values = [] if word in several else None
        joined.append(word)
    return joined


def _create_script_command(name: str, parser: LightningArgumentParser) -> Command:
    """Return a command for the parser of a script: lightkit's options, but for those whose names the script has."""
    own = {str(action.dest) for action in parser._actions} - {*_SECTIONS, "ckpt_path", "print_config"}
    command = COMMANDS[name if name in WITH_MODEL else "validate"]
    options = [option for option in command.options if option.key not in own or option.suffixes]
    return command._replace(name=name, options=tuple(options), key_aliases={})


def _find_command(words: Sequence[str], commands: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return the command, which a word or a config file names, and the other words."""
    if (command := next((word for word in words if word in (*commands, _EXPORT)), None)) is not None:
        at = words.index(command)
        return command, [*words[:at], *words[at + 1 :]]
    for file in parse_command(COMMANDS["fit"], words, is_script=True).files:
        try:
            values = yaml.safe_load(file if is_yaml_text(file) else Path(file).read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError):  # the loader reports it
            continue
        found = [str(key) for key in values if key in commands] if isinstance(values, dict) else []
        named = values.get("subcommand") if isinstance(values, dict) else None
        if named in commands or found:
            return str(named or found[0]), list(words)
    raise ConfigError(f"No command among {' '.join(words)!r}. Commands: {', '.join(commands)}.")


def _keep_forking() -> None:
    """Fork worker processes where Python's default is a fork server, as on Linux from Python 3.14 on.

    A fork server pickles what a worker gets: data that cannot be pickled would not load any more. The watchdog writes
    the stacks of forked processes alone. A method that the user has chosen stays.
    """
    default = multiprocessing.get_all_start_methods()[0]
    is_chosen = multiprocessing.get_start_method(allow_none=True) is not None
    if default == "forkserver" and not is_chosen:
        multiprocessing.set_start_method("fork")
