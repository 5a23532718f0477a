"""LightningCLI with a config that comes in layers: how it is parsed, what is chosen in it, and how it is written."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentError
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any

from jsonargparse import set_dumper
from pytorch_lightning import LightningDataModule, LightningModule, Trainer
from pytorch_lightning.cli import ArgsType, LightningArgumentParser, LightningCLI, SaveConfigCallback

from lightkit import config, runs
from lightkit.cli.context import RunContext
from lightkit.cli.model_loading import add_export_method, drop_training_hardware
from lightkit.cli.parser import parse_config
from lightkit.cli.resume import RunSettings
from lightkit.cli.script_session import EXPORT, asks_for_export, open_script_context
from lightkit.cli.scripted import Checked, ConfigPrinted, exit_on_error
from lightkit.cli.validation import validate_signatures
from lightkit.config.accelerator.settings import AcceleratorSettings
from lightkit.config.loader import collect_errors
from lightkit.errors import ConfigError
from lightkit.launch import LaunchSettings
from lightkit.launch.watchdog import WatchdogSettings
from lightkit.registry.gate import GateSettings

__all__ = ["LayeredCLI"]

# jsonargparse 4.53 writes init_args as YAML and reads them back: the text 7e2 without quotes, which comes back as a
# number, and the default of Timer, which is an enumeration's where the argument is text, not at all.
set_dumper("yaml", config.dump_yaml)
_NOT_SAVED = ("ckpt_path", "weights_only", "verbose", "return_predictions", "config")


class LayeredCLI(LightningCLI):
    """A LightningCLI whose config comes in layers; `LightkitCLI`, which records runs, describes the arguments."""

    def __init__(
        self,
        model_class: type[LightningModule] | Callable[..., LightningModule] | None = None,
        datamodule_class: type[LightningDataModule] | Callable[..., LightningDataModule] | None = None,
        save_config_callback: type[SaveConfigCallback] | None = SaveConfigCallback,
        save_config_kwargs: dict[str, Any] | None = None,
        trainer_class: type[Trainer] | Callable[..., Trainer] = Trainer,
        trainer_defaults: dict[str, Any] | None = None,
        seed_everything_default: bool | int = True,
        parser_kwargs: dict[str, Any] | dict[str, dict[str, Any]] | None = None,
        parser_class: type[LightningArgumentParser] = LightningArgumentParser,
        subclass_mode_model: bool = False,
        subclass_mode_data: bool = False,
        args: ArgsType = None,
        run: bool = True,
        auto_configure_optimizers: bool = True,
        load_from_checkpoint_support: bool = True,
        *,
        session: RunContext | None = None,
    ) -> None:
        self.session = session
        self._is_script = session is None
        self._own_sessions = ExitStack()
        self.saved_config: dict[str, Any] = {}
        stages = list(self.subcommands())
        given: dict[str, Any] = parser_kwargs or {}
        to_parsers = {**given, "exit_on_error": False}
        self._exports = run and (asks_for_export(args, stages) if session is None else session.command == EXPORT)
        if session is not None:
            to_parsers["prog"] = "lightkit"  # not `__main__.py`
        if session is not None or self._exports:  # only the parser that is asked for: each takes a third of a second
            stages = [EXPORT if session is None else session.command]
            known = {**LightningCLI.subcommands(), EXPORT: {"model", "datamodule"}}
            self.subcommands = lambda: {stages[0]: known[stages[0]]}  # type: ignore[method-assign]
        if self._exports:
            trainer_class = add_export_method(trainer_class)
        if run:
            to_parsers |= {stage: {**given.get(stage, {}), "exit_on_error": False} for stage in stages}
        ends = self._is_script and given.get("exit_on_error", True)
        with exit_on_error() if ends else nullcontext(), self._own_sessions:  # the caller's session is the caller's
            super().__init__(
                model_class=model_class,
                datamodule_class=datamodule_class,
                save_config_callback=save_config_callback,
                save_config_kwargs=save_config_kwargs,
                trainer_class=trainer_class,
                trainer_defaults=trainer_defaults,
                seed_everything_default=seed_everything_default,
                parser_kwargs=to_parsers,
                parser_class=parser_class,
                subclass_mode_model=subclass_mode_model,
                subclass_mode_data=subclass_mode_data,
                args=args,
                run=run,
                auto_configure_optimizers=auto_configure_optimizers,
                load_from_checkpoint_support=load_from_checkpoint_support,
            )

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the sections that lightkit has beside `seed_everything`."""
        super().add_default_arguments_to_parser(parser)
        parser.add_class_arguments(RunSettings, "run")
        parser.add_class_arguments(LaunchSettings, "launch")
        parser.add_class_arguments(WatchdogSettings, "watchdog")
        parser.add_class_arguments(GateSettings, "gate")
        parser.add_class_arguments(AcceleratorSettings, "accelerator")

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Lay all layers over one another and let jsonargparse check the result.

        Raises:
            ConfigError: If anything in it is wrong.
        """
        if self.session is None and (args is None or isinstance(args, list)):
            self.session = open_script_context(
                list(sys.argv[1:] if args is None else args),
                getattr(self, "_subcommand_parsers", None),
                parser_kwargs=self.parser_kwargs,
                fixed=["model"] * (not self.subclass_mode_model) + ["data"] * (not self.subclass_mode_data),
            )
            self._own_sessions.push(self.session.stack)
        if self.session is None:
            self._parse_values(parser, args)
            return
        if self.session.options.get("trust"):
            self.session.stack.enter_context(runs.trusting())
        command = [self.session.command] if self.session.command else []
        if self.session.passthrough:
            try:
                parser.parse_args([*command, *self.session.passthrough])
            except ArgumentError as error:
                raise ConfigError(str(error)) from error
        try:
            self.config = self._parsed(parser, command, self.session.resolved)
        except ConfigError:  # now all mistakes
            problems, resolved = config.Problems(), self.session.resolved
            if not self.session.has_own_parser:
                resolved = validate_signatures(resolved, problems)
            self.config, _ = collect_errors(resolved, partial(self._parsed, parser, command), problems)
            if (told := problems.error()) is not None:
                raise told.reworded(self.session.resolved.masked) from None
        if self.config is None:  # what is missing was wrong, and has been told
            raise Checked

    def _set_seed(self) -> None:
        """Seed this process, unless it only checks a config."""
        if self.session is None or not self.session.only_checks:
            super()._set_seed()

    def _parsed(self, parser: LightningArgumentParser, command: list[str], resolved: config.Resolved) -> Any:
        """Give what jsonargparse makes of a config.

        Raises:
            ConfigError: At its first mistake.
        """
        values = resolved.lightning().values
        values.pop("ckpt_path", None)  # `begin` decides
        values = drop_training_hardware(values) if self._exports else values
        known = self._subcommand_parsers[command[0]] if command else parser
        return parse_config(parser, command, values, resolved, known=known)

    def _parse_ckpt_path(self) -> None:
        """Leave the config as it is: in LightningCLI 2.6 the hyper-parameters of a checkpoint replace its values."""

    def _parse_values(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Check a dict or a namespace as LightningCLI does."""
        try:
            super().parse_arguments(parser, args)
        except ArgumentError as error:
            raise ConfigError(str(error)) from error

    def _trainer_arguments(self) -> set[str]:
        """Name what the trainer takes: a script may have a function for it that takes little."""
        known = (str(action.dest) for action in self._parser(self.subcommand)._actions)
        return {key.removeprefix("trainer.") for key in known if key.startswith("trainer.")}

    def _print_config(self) -> None:
        """Print the config and stop, where that was asked for."""
        if self.session is not None and self.session.print_config is not None:
            print(config.dump_yaml(self._config_to_save(self.session.print_config)), end="")
            raise ConfigPrinted

    def _config_to_save(self, flags: tuple[str, ...] = ()) -> dict[str, Any]:
        assert self.session is not None
        text = self._parser(self.subcommand).dump(
            self.config if self.subcommand is None else self.config[self.subcommand],
            format="json",
            skip_unset="skip_unset" in flags or "skip_null" in flags,
            skip_default="skip_default" in flags,
        )
        dumped = json.loads(text)
        resolved = self.session.resolved
        named = resolved.named({key: value for key, value in dumped.items() if key not in _NOT_SAVED})
        return resolved.with_references(named)
