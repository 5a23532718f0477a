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
from contextlib import ExitStack, suppress
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
from lightkit import config, data, loggers, models, runs
from lightkit.callbacks.computation import build_computation
from lightkit.callbacks.optimizer_settings import OptimizerSettings
from lightkit.cli.argument_lookup import import_class
from lightkit.cli.command_line import Command, Invocation, parse_command
from lightkit.cli.command_table import COMMANDS, WITH_MODEL
from lightkit.cli.config_loader import is_yaml_text, spawns
from lightkit.cli.console import configure_console, quiet_libraries
from lightkit.cli.parser_errors import (
    explain_other_weights,
    explain_parser_error,
    explain_process_limit,
    find_first_error,
    locate_lightning_error,
    unwrap_errors,
)
from lightkit.cli.predict_images import build_image_data, build_row_data, drop_limits
from lightkit.cli.redaction import redact_tags
from lightkit.cli.run_display import print_run_end
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
from lightkit.cli.session import Session, StageProcess, join_ranks
from lightkit.cli.stage_config import StageConfig, load_stage_config
from lightkit.cli.threads import set_threads
from lightkit.cli.trainer_components import as_list, build_components, finish_trainer
from lightkit.cli.validation import check_inputs, require_prediction, validate_signatures
from lightkit.config.accelerator.block import AcceleratorSettings
from lightkit.config.merge import appends_to_signature
from lightkit.config.resolved import collect_errors
from lightkit.config.schedule import (
    SECTION,
    check_stepping,
    hide_schedule,
    read_schedule,
    show_schedule,
)
from lightkit.config.yaml_reader import YamlLoader
from lightkit.data.listed import ListedImages
from lightkit.data.listed_rows import ListedRows
from lightkit.errors import ConfigError, LightkitError
from lightkit.export.bare_trainer import build_bare_trainer
from lightkit.launch.plan import LaunchSettings
from lightkit.launch.ranks import set_devices
from lightkit.launch.watchdog import WatchdogSettings
from lightkit.models.metric_states import keep_metric_states
from lightkit.models.module import ScoredModule
from lightkit.registry.gate import GateSettings
from lightkit.runs.resume import RunSettings
from lightkit.runs.signals import SignalWatch

# jsonargparse 4.53 writes init_args as YAML and reads them back: the text 7e2 without quotes, which
# comes back as a number, and the default of Timer, which is an enumeration's where the argument is
# text, not at all.
set_dumper("yaml", config.dump_yaml)

SECTION_SETTINGS = {
    "run": RunSettings,
    "launch": LaunchSettings,
    "watchdog": WatchdogSettings,
    "gate": GateSettings,
    "accelerator": AcceleratorSettings,
}
"""Classes of the sections that lightkit adds to LightningCLI's."""
_EXPORT = "export"
_NOT_SAVED = ("ckpt_path", "weights_only", "verbose", "return_predictions", "config")
_TRAINER_ERRORS = (MisconfigurationException, ValueError, TypeError, RuntimeError, ImportError)
_TRAINING_HARDWARE = (
    "accelerator",
    "devices",
    "num_nodes",
    "strategy",
    "precision",
    "plugins",
    "sync_batchnorm",
    "callbacks",
    "logger",
    "profiler",
    "model_registry",
)
"""Keys of the trainer that an export, which runs on one CPU, leaves out."""


class Checked(Exception):
    """The config was parsed without an error, and nothing more was asked for."""


class LightkitCLI(LightningCLI):
    """A LightningCLI whose config comes in layers and whose runs are recorded.

    In a script it takes the place of LightningCLI, with the same arguments: a command line, given
    or the process's own, makes a recorded run. With `run=False`, or with `args` as a dict or a
    namespace, it builds and trains as LightningCLI does, and records nothing. `export` is one
    command more, which builds the model and the data only.

    Args:
        args: Positional arguments of LightningCLI.
        stage_config: Config of the stage, where a command has loaded it already; None in a script.
        process: The process that runs the stage, where a command has one already.
        kwargs: Keyword arguments of LightningCLI. With `parser_kwargs={"exit_on_error": False}` an
            error raises `LightkitError`; otherwise it is printed on standard error and ends the
            process.
    """

    left_out_of_export: tuple[str, ...] = _TRAINING_HARDWARE

    def __init__(
        self,
        *args: Any,
        stage_config: StageConfig | None = None,
        process: StageProcess | None = None,
        **kwargs: Any,
    ) -> None:
        self.stage_config = stage_config
        self.process = process
        self.session: Session | None = None
        """The stage once its run has begun."""
        self._ckpt_path: str | None = None
        self.optimizer_settings = OptimizerSettings(self._is_set)
        if stage_config is not None:
            kwargs["save_config_callback"] = None  # the run folder has the config
            self._keep_command("fit" if self._exports else stage_config.command)
        resolved = None if stage_config is None else stage_config.resolved
        _import_tables(resolved)
        _import_loggers(resolved)
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

    def _keep_command(self, command: str) -> None:
        """Build the parser of one command alone: each takes a third of a second."""
        methods = self.subcommands()[command]
        self.subcommands = lambda: {command: methods}  # type: ignore[method-assign]

    def __getstate__(self) -> dict[str, Any]:
        """Leave the invocation out.

        A strategy that spawns processes pickles the parser, which knows this object.
        """
        left_out = ("stage_config", "process", "session", "_script_stack")
        return {**vars(self), **dict.fromkeys(left_out)}

    def _is_set(self, section: str) -> bool:
        """Check whether the config names an optimizer, or a schedule."""
        return (
            self.stage_config is not None
            and self.stage_config.resolved.value_of(section) is not None
        )

    @property
    def _is_script(self) -> bool:
        return self.stage_config is None or self.stage_config.is_script

    @property
    def _loaded(self) -> StageConfig:
        """The config of the stage, which a command hands over and a script loads."""
        assert self.stage_config is not None
        return self.stage_config

    @property
    def _is_recorded(self) -> bool:
        """Return whether the stage has a run folder."""
        if self.stage_config is None or self.subcommand is None or self._exports:
            return False
        return not spawns(self.config[self.subcommand]["trainer"].get("strategy"))

    @property
    def _exports(self) -> bool:
        return self.stage_config is not None and self.stage_config.command == _EXPORT

    # -- the config --------------------------------------------------------------------------------

    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        """Build a parser that raises its errors; they are explained where they are caught."""
        prog = {} if self._is_script else {"prog": "lightkit"}  # not `__main__.py`
        return super().init_parser(**{**prog, **kwargs, "exit_on_error": False})

    def setup_parser(self, *args: Any) -> None:
        """Build the parsers.

        Raises:
            ConfigError: If a script adds an argument with the name of one of lightkit's sections.
        """
        prepared = None
        if type(self) is LightkitCLI and self.stage_config is not None:
            prepared = _prepared.pop(self.stage_config.command, None)
        if prepared is not None:
            vars(self).update(prepared)
            return
        try:
            super().setup_parser(*args)
        except (ArgumentError, ValueError) as error:
            name = re.search(rf"\b({'|'.join(SECTION_SETTINGS)})\b", str(error))
            if name is None or not self._is_script:
                raise
            raise ConfigError(
                f"--{name[1]}: lightkit has sections of the names {', '.join(SECTION_SETTINGS)}"
            ) from error

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add lightkit's sections next to `seed_everything`."""
        super().add_default_arguments_to_parser(parser)
        for name, settings in SECTION_SETTINGS.items():
            parser.add_class_arguments(settings, name)

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Merge all layers and let jsonargparse parse the result.

        Raises:
            ConfigError: If anything in it is wrong.
            Checked: If only that was asked.
        """
        if self.stage_config is None:
            if isinstance(args, (dict, Namespace)):
                super().parse_arguments(parser, args)
                return
            self._load_script_config(args)
        stage_config = self._loaded
        assert self.process is not None
        if stage_config.options.get("trust"):
            self.process.stack.enter_context(runs.trusting())

        command = self._choose_parser(stage_config.command)
        if stage_config.passthrough:
            parser.parse_args([*filter(None, [command]), *stage_config.passthrough])
        self.config = self._parse_or_explain(command)
        section = self._values_of(command)
        if command is not None:
            section["run"]["name"] = section["run"]["name"] or stage_config.job_name
        if stage_config.print_config is not None:
            self._print_config(command)
            raise SystemExit(0)
        self._check_parsed(command, section)

    def _values_of(self, command: str | None) -> Any:
        """Return the values of a command, or of a script that runs none."""
        return self.config if command is None else self.config[command]

    def _choose_parser(self, command: str) -> str | None:
        """Return the command whose parser is used; of `export`, which has none, the first one."""
        if not command:
            return None
        parsers = self._subcommand_parsers
        return command if command in parsers else next(iter(parsers))

    def _parse_or_explain(self, command: str | None) -> Namespace:
        """Parse the config, or raise all of its errors.

        Raises:
            ConfigError: If there are errors in it.
            Checked: If they are reported already, and the rest of the config depends on them.
        """
        parse = partial(self._parse, command)
        resolved = self._loaded.resolved
        if not self._loaded.is_script and any(map(appends_to_signature, resolved.origins)):
            # the defaults of somebody's own classes are known by now, and jsonargparse drops them
            problems = config.Problems()
            validate_signatures(resolved, problems)
            problems.raise_any(resolved.masked)
        parsed: Namespace | None
        try:
            parsed = parse(resolved)
        except ConfigError:  # the first error: collect all of them
            problems = config.Problems()
            if not self._loaded.is_script:
                resolved = validate_signatures(resolved, problems)
            parsed, _ = collect_errors(resolved, parse, problems)
            problems.raise_any(self._loaded.resolved.masked)
        if parsed is None:
            raise Checked
        return parsed

    def _print_config(self, command: str | None) -> None:
        """Print the config as the command's parser has it."""
        parser = self._parser(command)
        is_script = self._loaded.is_script
        if is_script and parser.dump_header:
            for line in parser.dump_header:
                print(f"# {line}")
        left_out = ("config",) if is_script else _NOT_SAVED
        flags = self._loaded.print_config or ()
        values = self._dump(command, left_out=left_out, flags=flags)
        print(config.dump_yaml(values), end="")

    def _check_parsed(self, command: str | None, section: Namespace) -> None:
        """Warn of a schedule without effect, and check what the config names outside of itself.

        Raises:
            ConfigError: If an input is missing, or the model cannot predict.
            Checked: If only that was asked.
        """
        stage_config = self._loaded
        trains = command == "fit"
        if trains and not stage_config.resolved.removed:  # else errors are to be reported first
            self._warn_of_schedule(section)
        if command == "predict" and not stage_config.is_script:
            require_prediction(stage_config.resolved)
        if command and not stage_config.images:  # images need none of the data
            starts = stage_config.only_checks and trains and stage_config.ckpt_path is None
            check_inputs(stage_config.resolved, starts_training=starts, parsed=section)
        if stage_config.only_checks:
            raise Checked

    def _load_script_config(self, args: Sequence[str] | None) -> None:
        """Load the config of a script from its command line and the defaults of its parsers."""
        if args is None:
            words = sys.argv[1:]
        else:
            words = list(args)
            warn_of_two_command_lines(words)
        parsers = getattr(self, "_subcommand_parsers", {})
        invocation = self._read_words(parsers, words)

        # A class that the script fixes has a section of plain arguments.
        fixed: dict[str, str] = {}
        if not self.subclass_mode_model:
            fixed["model"] = _name_class(self.model_class)
        if not self.subclass_mode_data:
            fixed["data"] = _name_class(self.datamodule_class)
        sections = [section for section in config.CLASS_SECTIONS if section not in fixed]
        problems = config.Problems()
        stage_config = load_stage_config(
            invocation,
            problems,
            class_sections=sections,
            subcommands=[*LightningCLI.subcommands(), *parsers],
            is_script=True,
            fixed_classes=fixed,
        )
        problems.raise_any(stage_config.given.masked)
        stage_config = replace(stage_config, resolved=_leave_command_out(stage_config.resolved))
        if (
            (path := stage_config.ckpt_path)
            and path not in ("best", "last")
            and not Path(path).is_file()
        ):
            # Lightning knows more places than files
            self._ckpt_path = path
            stage_config = replace(stage_config, ckpt_path=None)
        self.stage_config = stage_config
        self.process = StageProcess(
            stack=self._script_stack,
            watch=SignalWatch(owns_process=False),
            rank_context=join_ranks(stage_config.command, stage_config.run_root),
        )
        if args is None:  # a program of its own, which is as quiet as a command
            configure_console(stage_config.mode, stage_config.resolved.masked)
            quiet_libraries()
            # of which a command warns itself, with the place; see `warn_of_schedule`
            warnings.filterwarnings(
                "default", message=".*configure_optimizers` will be overridden by"
            )

    def _read_words(
        self, parsers: Mapping[str, LightningArgumentParser], words: list[str]
    ) -> Invocation:
        """Read the command line of a script with the arguments of its own parser."""
        if words[:1] in (["-h"], ["--help"]):
            self.parser.parse_args(words)  # prints the commands and ends the process
        command = ""
        kwargs = self.parser_kwargs
        files = _default_files(kwargs)
        if parsers:
            command, words = _find_command(words, parsers)
            files += _default_files(kwargs.get(command, {}))
        known = parsers.get(command) or next(iter(parsers.values()), self.parser)
        script_command = _create_script_command(command, known)
        return parse_command(script_command, [*files, *_join_values(words, known)], is_script=True)

    def _parse(self, command: str | None, resolved: config.Resolved) -> Any:
        values = resolved.lightning_values
        values.pop("ckpt_path", None)  # `start_run` decides
        if SECTION in values and SECTION in resolved.class_sections:
            values[SECTION] = hide_schedule(values[SECTION], describe_schedule_class)
            check_stepping(values[SECTION], resolved)
        trainer = values.get("trainer")
        if self._exports and isinstance(trainer, dict):
            for key in self.left_out_of_export:
                trainer.pop(key, None)
        try:
            # As a file's text: given as an object, `key+` of a class that a script fixes would
            # forget the signature's default, which the parser of the command has.
            text = config.dump_yaml(values)
            if command is not None and not self._loaded.is_script:
                return self._parse_section(command, text)
            return self.parser.parse_args([*filter(None, [command]), "--config", text])
        except ArgumentError as error:
            keys = {str(action.dest) for action in self._parser(command)._actions}
            named = replace(resolved, subcommand=command)
            raise explain_parser_error(error, named, keys=keys | {"callbacks", "logger"}) from error
        except SystemExit as end:
            raise ConfigError(
                f"a module that the config imports calls sys.exit({end.code})"
            ) from end

    def _parse_section(self, command: str, text: str) -> Namespace:
        """Parse the config of a command with the command's own parser.

        The one around it would check each value once more. In a script it also names the errors.
        """
        section = self._parser(command).parse_args(["--config", text])
        parsed = Namespace(config=None, subcommand=command)  # type: ignore[no-untyped-call]
        parsed[command] = section
        return parsed

    def _dump(
        self,
        command: str | None,
        *,
        left_out: Sequence[str] = _NOT_SAVED,
        flags: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Return the config as it is saved.

        In lightkit's form, with references in the place of secrets.
        """
        values = self._serialize(
            command,
            skip_unset="skip_unset" in flags or "skip_null" in flags,
            skip_default="skip_default" in flags,
        )
        values = {key: value for key, value in values.items() if key not in left_out}
        if SECTION in values:
            values[SECTION] = show_schedule(values[SECTION])
        resolved = self._loaded.resolved
        return resolved.with_references(resolved.name_entries(values))

    def _serialize(self, command: str | None, **options: bool) -> dict[str, Any]:
        """Return what was parsed as plain values, whose keys are those of YAML.

        Args:
            command: The command; None in a script that runs none.
            options: Options of jsonargparse's, for what it leaves out.
        """
        section = self._values_of(command)
        # it was parsed, and is not validated again
        text = self._parser(command).dump(section, format="yaml", skip_validation=True, **options)
        values: dict[str, Any] = yaml.load(text, Loader=YamlLoader)  # noqa: S506 - a safe loader
        return values

    # -- the run -----------------------------------------------------------------------------------

    def instantiate_classes(self) -> None:
        """Start the run, then build data, model and trainer."""
        stage_config = self.stage_config
        if self.process is not None and self.subcommand is not None:
            set_threads(self.config[self.subcommand]["launch"]["threads"], self.process)
        if self._is_recorded:
            self.start_run()
        if stage_config is not None:
            # what model and data save of themselves; LightningCLI would validate the whole config
            # again, and read a text like 2026-11-29 as a date
            self.config_dump = self._serialize(
                self.subcommand, skip_unset=False, skip_link_targets=False
            )
        try:
            with unwrap_errors():
                super().instantiate_classes()
        except ValueError as error:
            self._build_loggers(error)
            raise
        if self._is_recorded:
            self._set_weights_only()
        if stage_config is not None and self.session is not None and stage_config.images:
            self.datamodule = self._build_listed_data(stage_config, self.session)

    def _build_listed_data(
        self, stage_config: StageConfig, session: Session
    ) -> ListedImages | ListedRows:
        """Build the data of what the command line names."""
        if stage_config.takes_rows:
            weights = stage_config.weights
            return build_row_data(stage_config.images, weights, self.model, session.start)
        early = session.process.early_images
        return build_image_data(
            stage_config, self.model, self.datamodule, session.start, early_images=early
        )

    def _build_loggers(self, error: ValueError) -> None:
        """Build the loggers of a list one by one, of which jsonargparse tells only that one fails.

        Raises:
            Exception: Raised by a constructor.
        """
        listed = self._get(self.config, "trainer.logger")
        if str(error).startswith("Not a valid subclass of Logger") and isinstance(listed, list):
            for value in listed:
                self.build_part("trainer.logger", value)

    def _set_weights_only(self) -> None:
        """Load checkpoints as tensors and plain values, unless the command line trusts them."""
        method = self.config_init[self.subcommand]
        if "weights_only" not in method or (
            self._loaded.is_script and method["weights_only"] is None
        ):
            return
        if method["weights_only"] is False and not runs.is_trusting():
            logging.getLogger("lightkit").warning(
                "weights_only: false has no effect: checkpoints are loaded as tensors and plain"
                " values; --trust on the command line allows more"
            )
        # strategies and checkpoint plugins follow it
        method["weights_only"] = not runs.is_trusting()

    def start_run(self) -> None:
        """Start the run, and set the keys of the config that depend on it."""
        stage_config = self._loaded
        process = self.process
        assert process is not None
        section = self.config[self.subcommand]
        trainer = section["trainer"]
        session = start_run(
            stage_config,
            process,
            RunSettings(**section["run"].as_dict()),
            saved_config=self._dump(self.subcommand),
            seed=None if section["seed_everything"] is False else section["seed_everything"],
            is_trial=bool(trainer.get("fast_dev_run")),
        )
        self.session = session
        run = session.run
        checkpoint = session.start.checkpoint
        process.notifier.run = run
        if self.subcommand == "fit" and checkpoint is None:
            check_inputs(stage_config.resolved, starts_training=True, parsed=section)

        # Set what the run and the launch decide.
        set_devices(trainer, process.rank)
        if "ckpt_path" in section:
            section["ckpt_path"] = self._ckpt_path if checkpoint is None else str(checkpoint)
        redact_tags(trainer.get("logger"), stage_config.resolved)
        if stage_config.is_script:
            self._allow_another_save(session, has_logger=trainer.get("logger") is not False)
        else:
            self._set_output_keys(section, run)
        if stage_config.images:
            drop_limits(trainer)
        process.stack.enter_context(runs.activate(replace(run, stage=stage_config.command)))

    def _allow_another_save(self, session: Session, *, has_logger: bool) -> None:
        """Allow a later start of a run to save its config where the first did.

        But never over a file of the user's.

        Without a logger Lightning saves into the working directory, where a config.yaml may have
        become the user's.
        """
        if not session.run.resumed and session.stage_config.base is None:
            return
        if has_logger or not self.save_config_kwargs.get("save_to_log_dir", True):
            self.save_config_kwargs = {**self.save_config_kwargs, "overwrite": True}
        else:
            self.save_config_callback = None

    def _set_output_keys(self, section: Namespace, run: runs.Run) -> None:
        """Send the output of Lightning to the run folder; keep its own tables and lists away."""
        trainer = section["trainer"]
        trainer["default_root_dir"] = trainer["default_root_dir"] or str(run.folder)
        if self.subcommand in ("validate", "test"):  # else Lightning prints a table of its own
            section["verbose"] = bool(self._loaded.resolved.value_of("verbose"))
        if self.subcommand == "predict":  # they are written; kept, they would fill memory
            section["return_predictions"] = False

    def build_part(self, key: str, value: Any) -> Any:
        """Build one part of the config.

        Of a list, jsonargparse 4.53 does not keep what the constructors raised.

        Raises:
            Exception: What a constructor raises.
        """
        place = key if self.subcommand is None else f"{self.subcommand}.{key}"
        alone = Namespace(subcommand=self.subcommand)  # type: ignore[no-untyped-call]
        alone[place] = value
        with unwrap_errors():
            return self.parser.instantiate_classes(alone)[place]

    def _add_configure_optimizers_method_to_model(self, subcommand: str | None) -> None:
        """Hand the config's optimizer to the trainer when it asks the model for one.

        If the config has one.

        LightningCLI 2.6 takes the parameters as soon as the model is built: before `setup` or
        `configure_model` has made them, and before an XLA device has put others in their place, so
        that the optimizer would train nothing.
        """
        # Lightkit's own models have an optimizer to which the config's schedule belongs.
        schedules = self._get_automatic(self._parser(subcommand)._lr_schedulers)
        has_schedule = any(each is not None and "class_path" in each for each in schedules)
        is_given = self._names_optimizer or (has_schedule and keeps_own_optimizer(type(self.model)))
        if self.auto_configure_optimizers and is_given and not self._exports:
            self.model.configure_optimizers = MethodType(self.create_optimizers, self.model)

    @property
    def _names_optimizer(self) -> bool:
        """Return whether the config has an optimizer for the model."""
        return any(self._get_automatic(self._parser(self.subcommand)._optimizers))

    def _get_automatic(self, registered: Mapping[str, tuple[Any, str]]) -> list[Any]:
        """List the values of the optimizers or schedules that LightningCLI gives to the model."""
        return [self._get(self.config_init, key) for key in _list_automatic(registered)]

    def create_optimizers(self, module: LightningModule) -> Any:
        """Build the config's optimizer and schedule for a model whose parameters exist by now.

        Raises:
            ConfigError: If they cannot be built with these arguments.
        """
        del module.configure_optimizers  # `create_optimizers`, set on the instance
        parser = self._parser(self.subcommand)
        resolved = None if self.stage_config is None else self.stage_config.resolved
        key = next(iter(_list_automatic(parser._lr_schedulers)), SECTION)
        init = self._get(self.config_init, key)
        with explain_building(resolved), warnings.catch_warnings():
            if keeps_own_optimizer(type(module)):  # it is there to be replaced
                warnings.filterwarnings(
                    "ignore", message=".*configure_optimizers` will be overridden"
                )
            if self._names_optimizer:
                super()._add_configure_optimizers_method_to_model(self.subcommand)
                found = module.configure_optimizers()
            else:
                assert isinstance(module, ScoredModule)
                optimizer = module.create_optimizer()
                found = self.configure_optimizers(
                    module, optimizer, instantiate_class(optimizer, init)
                )
        schedule = read_schedule(self._get(self.config, key))
        if schedule.counted:
            self.optimizer_settings.counted = count_schedule(found, schedule.counted, init)
        return with_schedule(found, schedule)

    def _warn_of_schedule(self, section: Namespace) -> None:
        """Warn of a schedule and an optimizer that the model or the number of epochs makes idle."""
        stage_config = self._loaded
        if self.process is not None and self.process.rank_number:
            return
        value = section.get("model")
        cls: Any = self.model_class
        if self.subclass_mode_model and value is not None and "class_path" in value:
            cls = import_class(value["class_path"])
        is_automatic = self.auto_configure_optimizers and bool(
            _list_automatic(self._parsers()[0]._optimizers)
        )
        cls = cls if is_automatic and isinstance(cls, type) else None
        warn_of_schedule(stage_config.resolved, cls, is_script=stage_config.is_script)

    def _parsers(self) -> list[LightningArgumentParser]:
        return list(getattr(self, "_subcommand_parsers", {"": self.parser}).values())

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Build the trainer, with the components of a recorded run.

        Raises:
            ConfigError: If the trainer refuses its arguments.
        """
        if self._exports:
            return build_bare_trainer()
        trainer_config = {**self._get(self.config_init, "trainer", default={}), **kwargs}
        if self.session is None:
            kwargs |= self._build_unrecorded(trainer_config)
        else:  # a script may have a function for the trainer that takes few arguments
            components = self._build_recorded(self.session, trainer_config)
            known = self._get(self.config, "trainer", default={})
            kwargs |= {
                key: value for key, value in components.items() if key in kwargs or key in known
            }
        try:
            trainer = super().instantiate_trainer(**kwargs)
        except _TRAINER_ERRORS as error:
            if self.stage_config is None:
                raise
            raise locate_lightning_error(error, self.stage_config.resolved) from error
        keep_metric_states(trainer)
        if self.session is not None:
            finish_trainer(self.session, trainer)
        return trainer

    def _build_recorded(
        self, session: Session, trainer_config: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Build the trainer's arguments that a recorded run changes."""
        keys = self._parser(self.subcommand).callback_keys
        added = [self._get(self.config_init, key) for key in keys]
        added += as_list(self.trainer_defaults.get("callbacks"))
        return build_components(session, trainer_config, added, settings=self.optimizer_settings)

    def _build_unrecorded(self, trainer_config: Mapping[str, Any]) -> dict[str, Any]:
        """Build the trainer's arguments that the config changes where no run is recorded."""
        section = self._get(self.config_init, "accelerator")
        callbacks = build_computation({} if section is None else vars(section))
        keys = _list_automatic(self._parser(self.subcommand)._lr_schedulers)
        if any(read_schedule(self._get(self.config, key)).counted for key in keys):
            callbacks.append(self.optimizer_settings)
        if not callbacks:
            return {}
        return {"callbacks": [*callbacks, *as_list(trainer_config.get("callbacks"))]}

    def _run_subcommand(self, subcommand: str) -> None:
        if self._exports:
            # here: it loads what writes and proves exports
            from lightkit.cli.model_export import export_model

            export_model(self._loaded, self.model, self.datamodule)
            return
        try:
            super()._run_subcommand(subcommand)
            if self._is_script and self.session is not None:
                print_run_end(self.trainer, self.session)
        except Exception as error:
            first = find_first_error(error)
            explained = explain_process_limit(first)
            if explained is not None:
                raise explained from first
            reason = explain_other_weights(first)
            if reason is not None:
                raise ConfigError(reason) from first
            if first is error:
                raise
            raise first from first.__cause__


# For editors and for `inspect`: the arguments are LightningCLI's.
LightkitCLI.__init__.__signature__ = inspect.signature(LightningCLI.__init__)  # type: ignore[attr-defined]

_prepared: dict[str, dict[str, Any]] = {}
"""Attributes of a LightkitCLI with the parser of a command, by the command."""


class _ParserBuilder(LightkitCLI):
    """Build the parser of a fit, and nothing more."""

    _is_script = False

    def __init__(self) -> None:
        self._keep_command("fit")
        with suppress(Checked):
            LightningCLI.__init__(self)

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parse nothing."""
        raise Checked


def prepare_parser() -> None:
    """Build the parser of a fit for the next `LightkitCLI`.

    That is the next one of this process, or of each process that it forks.
    """
    names = ("parser", "_subcommand_parsers", "_subcommand_method_arguments")
    built = vars(_ParserBuilder())
    _prepared["fit"] = {name: built[name] for name in names}


def _list_automatic(registered: Mapping[str, tuple[Any, str]]) -> list[str]:
    """List the keys of optimizers or schedules that LightningCLI gives to the model."""
    return [key for key, (_, link_to) in registered.items() if link_to == "AUTOMATIC"]


# -- the command line of a script ------------------------------------------------------------------


def _name_class(cls: Any) -> str:
    """Return the path of a class, or of a function that makes the model."""
    return f"{getattr(cls, '__module__', '')}.{getattr(cls, '__qualname__', cls)}".removeprefix(
        "__main__."
    )


def _leave_command_out(resolved: config.Resolved) -> config.Resolved:
    """Return a config without the command that a file of a script may name."""
    entries = {key: node for key, node in resolved.tree.entries.items() if key != "subcommand"}
    return replace(resolved, tree=replace(resolved.tree, entries=entries))


def _default_files(parser_kwargs: Mapping[str, Any]) -> list[str]:
    """List the options for `default_config_files`, which are the lowest layers.

    As far as they exist.
    """
    patterns = map(str, parser_kwargs.get("default_config_files") or ())
    return [f"--config={file}" for pattern in patterns for file in sorted(glob(pattern))]  # noqa: PTH207 (as in jsonargparse)


def _join_values(words: Sequence[str], parser: LightningArgumentParser) -> list[str]:
    """Write the values after an argument that takes several (``nargs``) as one list."""
    several = {
        option
        for action in parser._actions
        if action.nargs not in (None, 0, "?")
        for option in action.option_strings
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
    """Return a command for the parser of a script.

    lightkit's options, but for those whose names the script has.
    """
    own = {str(action.dest) for action in parser._actions} - {
        *SECTION_SETTINGS,
        "ckpt_path",
        "print_config",
    }
    command = COMMANDS[name if name in WITH_MODEL else "validate"]
    options = []
    for option in command.options:
        if option.key in own and not option.suffixes:
            continue
        has_other = {name.lstrip("-") for name in option.value_of} & own
        options.append(option._replace(value_of=()) if has_other else option)
    return command._replace(name=name, options=tuple(options))


def _find_command(words: Sequence[str], commands: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return the command, which a word or a config file names, and the other words."""
    for index, word in enumerate(words):
        if word in commands or word == _EXPORT:
            return word, [*words[:index], *words[index + 1 :]]
    for file in parse_command(COMMANDS["fit"], words, is_script=True).files:
        command = _read_command(file, commands)
        if command is not None:
            return command, list(words)
    raise ConfigError(f"No command among {' '.join(words)!r}. Commands: {', '.join(commands)}.")


def _read_command(file: str, commands: Mapping[str, Any]) -> str | None:
    """Read the command that a config names, or the first for which it has a section.

    None without either.
    """
    try:
        values = yaml.safe_load(
            file if is_yaml_text(file) else Path(file).read_text(encoding="utf-8")
        )
    except (OSError, ValueError, yaml.YAMLError):  # the loader reports it
        return None
    if not isinstance(values, dict):
        return None
    named = values.get("subcommand")
    found = [str(key) for key in values if key in commands]
    if named in commands or found:
        return str(named or found[0])
    return None


_WITHOUT_TABLES = (
    "DrawnBouquets",
    "DrawnFlowers",
    "DrawnMasks",
    "FashionMNIST",
    "Flowers",
    "ImageFolder",
    "ImageTable",
    "MaskFolder",
    "Temperatures",
)
_ROW_MODELS = ("TabularModel", "TextClassifier")
_TABLES = ("Table", "PetastormTable", "TableData", "TextData")


def _import_tables(resolved: config.Resolved | None) -> None:
    """Import the classes for tables, whose short names are known then.

    Unless the config names another data module.

    They load pyarrow, which no other class needs.
    """
    named = None if resolved is None else resolved.class_named("data")
    if str(named).removeprefix("lightkit.data.") in _WITHOUT_TABLES:
        return
    for name in _ROW_MODELS:
        getattr(models, name)
    for name in _TABLES:
        getattr(data, name)


def _import_loggers(resolved: config.Resolved | None) -> None:
    """Import lightkit's loggers that the config names by their short names, known then."""
    entries = {} if resolved is None else resolved.section("logger")
    for entry in entries.values():
        name = entry.get("class_path") if isinstance(entry, Mapping) else None
        if name in loggers.__all__:
            getattr(loggers, name)


def _keep_forking() -> None:
    """Fork worker processes where Python's default is a fork server, as on Linux from Python 3.14.

    A fork server pickles what a worker gets: data that cannot be pickled would not load any more.
    The watchdog writes the stacks of forked processes alone. A method that the user has chosen
    stays.
    """
    default = multiprocessing.get_all_start_methods()[0]
    is_chosen = multiprocessing.get_start_method(allow_none=True) is not None
    if default == "forkserver" and not is_chosen:
        multiprocessing.set_start_method("fork")
