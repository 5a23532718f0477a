"""The config of one command line, resolved for this machine; frozen. No torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from lightkit import config, runs
from lightkit.cli.command_line import Invocation
from lightkit.cli.command_table import PRINT_FLAGS, STAGES
from lightkit.cli.config_loader import LoadedConfig, load_config, resolve_settings, spawns
from lightkit.cli.console import OutputMode, choose_output_mode
from lightkit.cli.predict_options import explain_numbers, parse_predict_options
from lightkit.config import Hardware, error_at
from lightkit.config.display import Written, list_written
from lightkit.config.resolved import find_named_class
from lightkit.config.secret_values import find_masked_values
from lightkit.config.sections import USER_SECTIONS
from lightkit.errors import ConfigError
from lightkit.export.options import ExportOptions
from lightkit.hardware import Machine
from lightkit.launch.plan import LaunchSettings
from lightkit.launch.ranks import complete_torch_variables
from lightkit.runs.deadline import Deadline
from lightkit.runs.index import read_config
from lightkit.runs.resume import RunSettings, find_checkpoint

ROW_DATA = ("TableData", "TextData")
"""Data modules of rows of a table; one of another name has ``row_kind`` in its run's manifest, see
`describe`."""


@dataclass(frozen=True, kw_only=True)
class StageConfig(LoadedConfig):
    """The config of a stage or an export, with its hardware keys resolved for this machine.

    Its command is `fit`, `validate`, `test`, `predict` or `export`, and empty where a script runs
    none.

    Args:
        given: The config before its hardware keys were resolved.
        print_config: What to leave out of the config that is printed instead of a run:
            `skip_default`, `skip_unset` or `skip_null`, the first two as in LightningCLI; None runs
            the stage.
        is_script: Whether it is a script with a `LightkitCLI`, whose own parser decides which keys
            there are.
        only_checks: Whether the invocation ends once its config is parsed, before anything is
            built.
        hardware: The resolved hardware keys.
        launch: The config's `launch` section.
        needs_imports: Whether classes must be imported for a complete verdict on the config.
        ckpt_path: Checkpoint that the user names: a path, `last`, `best`, or None.
        deadline: Moment by which a fit has to be done, if there is one.
        mode: Output mode of the screen.
        inputs_now: Digests of the inputs of the fit, where they have been computed.
    """

    given: config.Resolved
    print_config: tuple[str, ...] | None = None
    is_script: bool = False
    only_checks: bool = False
    hardware: Hardware
    launch: LaunchSettings = field(default_factory=LaunchSettings)
    needs_imports: bool = True
    ckpt_path: str | None = None
    deadline: Deadline | None = None
    mode: OutputMode = "plain"
    inputs_now: runs.Inputs | None = None

    @property
    def command(self) -> str:
        """The command: a stage, `export`, or empty where a script runs none."""
        return self.invocation.command

    @property
    def options(self) -> Mapping[str, Any]:
        """The command's own options."""
        return self.invocation.options

    @cached_property
    def written(self) -> Written:
        """The values as they are written, with their places."""
        return list_written(self.resolved, by_rule=self.hardware.chosen, ckpt_path=self.ckpt_path)

    @property
    def images(self) -> Sequence[str]:
        """Words without an option: the images of `predict`."""
        return self.invocation.inputs

    @property
    def takes_rows(self) -> bool:
        """Return whether those words are tables whose rows are predicted."""
        return bool(self.images) and names_row_data(self.resolved, self.base)

    @property
    def passthrough(self) -> Sequence[str]:
        """Words that only print help."""
        return self.invocation.passthrough

    @property
    def only_prints(self) -> bool:
        """Return whether help or the config is printed, and nothing runs."""
        return bool(self.passthrough) or self.print_config is not None

    @property
    def finished_run(self) -> tuple[runs.Run, Path]:
        """The run that `--run` names and its checkpoint, where the command asks for a run."""
        assert self.base is not None
        assert self.ckpt_path is not None
        return self.base, Path(self.ckpt_path)

    @property
    def run_root(self) -> Path:
        """Folder of all runs."""
        return self.resolved.run_root

    @property
    def weights(self) -> Path | None:
        """Exported weights in the place of a checkpoint."""
        return Path(self.options["model"]) if "model" in self.options else None


def load_stage_config(
    invocation: Invocation,
    problems: config.Problems,
    *,
    class_sections: Sequence[str] = config.CLASS_SECTIONS,
    subcommands: Sequence[str] = STAGES,
    is_script: bool = False,
    fixed_classes: Mapping[str, str] = MappingProxyType({}),
    machine: Machine | Literal["this"] | None = "this",
) -> StageConfig:
    """Merge the layers of a command line, and resolve them for this machine.

    Args:
        invocation: The command line.
        problems: Takes the errors.
        class_sections: Top-level keys that hold one class each.
        subcommands: All commands.
        is_script: Whether a script's own parser decides which keys there are.
        fixed_classes: Classes that a script fixes, so that its config has their arguments alone, by
            their sections.
        machine: Machine whose hardware the config must fit; None to check against none.

    Raises:
        ConfigError: If the config cannot be read.
    """
    complete_torch_variables(os.environ)
    try:
        loaded = load_config(
            invocation, problems, class_sections=class_sections, subcommands=subcommands
        )
        if loaded.base is not None:
            _check_form(loaded, loaded.base, fixed_classes)
    except ConfigError as error:  # nothing is left to check
        problems.add(error)
        raise problems.error() or error from None
    for problem in find_masked_values(loaded.resolved.tree):
        problems.add(problem)

    command = invocation.command
    hardware, launch = resolve_settings(command, loaded.resolved, problems, machine)
    resolved = hardware.resolved
    if not is_script and command in STAGES:
        _refuse_spawning(resolved, problems)

    # Each option is read by itself, so that all errors are reported together.
    print_config: tuple[str, ...] | None = None
    with problems.noted():
        print_config = _read_print_flags(invocation)
    with problems.noted():
        if command == "predict":
            takes_rows = names_row_data(resolved, loaded.base)
            if invocation.inputs:
                _refuse_numbers(resolved, invocation.inputs[0])
            parse_predict_options(invocation.options, invocation.inputs, takes_rows=takes_rows)
        elif command == "export":
            ExportOptions.parse(invocation.options)
    ckpt_path: str | None = None
    with problems.noted():
        ckpt_path = _find_named_checkpoint(invocation.options, resolved, loaded.base)
    return StageConfig(
        invocation=invocation,
        given=loaded.resolved,
        print_config=print_config,
        is_script=is_script,
        resolved=resolved,
        hardware=hardware,
        launch=launch,
        base=loaded.base,
        ckpt_path=ckpt_path,
        mode=choose_output_mode(invocation.options),
    )


def _check_form(loaded: LoadedConfig, base: runs.Run, fixed_classes: Mapping[str, str]) -> None:
    """Check that the run that `--run` names has a config of the form that is read here.

    A config names classes, or has their arguments alone.

    A script with `LightkitCLI(Model, Data)` fixes the classes, and the configs of its runs have
    their arguments alone; runs of commands and of other scripts may stand under the same name.

    Args:
        loaded: The command line and its config.
        base: The run.
        fixed_classes: Classes that a script fixes, by their sections.

    Raises:
        ConfigError: With both forms, and the newest run of the one that is read here.
    """
    saved = read_config(base)
    run = f"{base.name}/{base.id}"
    asked = f"--run {loaded.invocation.options.get('run', base.folder)}: the config of {run}"
    command = loaded.invocation.command or "test"
    for section in USER_SECTIONS:
        named = find_named_class(saved.get(section))
        if section in fixed_classes and named is not None:
            raise ConfigError(
                f"{asked} names the class of its {section}, {named}, and this script has one of its"
                f" own, {fixed_classes[section]}, whose runs name none."
                f" {_name_newest(base, fixed_classes)} The other one is read by: lightkit {command}"
                f" --run {run}"
            )
        has_arguments_alone = (
            isinstance(saved.get(section), Mapping) and saved[section] and named is None
        )
        is_named_now = loaded.resolved.class_named(section) is not None
        if section not in fixed_classes and has_arguments_alone and not is_named_now:
            raise ConfigError(
                f"{asked} has no class for its {section}, as those of a script with"
                f" LightkitCLI(Model, Data), which reads it: python SCRIPT {command} --run {run}."
                f" {_name_newest(base, fixed_classes)} Or name the class:"
                f" --{section}=my_module.MyClass"
            )


def _name_newest(base: runs.Run, fixed_classes: Mapping[str, str]) -> str:
    """Name the job's newest run whose config names the classes not fixed here.

    It names none that is fixed.
    """
    for run in runs.list_runs(base.root, base.name):
        saved = read_config(run)
        named = {section: find_named_class(saved.get(section)) for section in USER_SECTIONS}
        is_of_form = all(
            (named[section] is None) if section in fixed_classes else (named[section] is not None)
            for section in USER_SECTIONS
            if section in fixed_classes or saved.get(section)
        )
        if is_of_form and saved:
            return f"The newest run of this form: --run {run.name}/{run.id}."
    return f"{base.name} has no run of this form."


def names_row_data(resolved: config.Resolved, base: runs.Run | None) -> bool:
    """Return whether the data of a config is rows of a table, or the run was trained on such."""
    if str(resolved.class_named("data")).rpartition(".")[2] in ROW_DATA:
        return True
    manifest = None if base is None else runs.read_json(base.folder / "manifest.json")
    described = runs.find_value(manifest, "data")
    return isinstance(described, Mapping) and bool(described.get("row_kind"))


def _refuse_numbers(resolved: config.Resolved, word: str) -> None:
    """Refuse a table on the command line where the data of a config is numbers in a table.

    It is a split of that table.

    Raises:
        ConfigError: With the command that predicts the rows of the table ``word``.
    """
    arguments = resolved.section("data").get("init_args")
    named = str(resolved.class_named("data"))
    if (
        named.rpartition(".")[2] == "Table"
        and isinstance(arguments, Mapping)
        and arguments.get("features")
    ):
        trained = arguments.get("path") or arguments.get("train")
        raise error_at(explain_numbers(word, trained=trained), resolved.origin_of("data"))


def _refuse_spawning(resolved: config.Resolved, problems: config.Problems) -> None:
    """Refuse a strategy that starts its processes from within the trainer."""
    if spawns(resolved.section("trainer").get("strategy")):
        text = "trainer.strategy: its processes have no run folder; ddp trains the same and has one"
        problems.add(error_at(text, resolved.origin_of("trainer.strategy")))


def _read_print_flags(invocation: Invocation) -> tuple[str, ...] | None:
    """Read what ``--print_config`` leaves out; None without it.

    Raises:
        ConfigError: If there is no such flag.
    """
    given = invocation.options.get("print_config")
    if given is None:
        return None
    flags = tuple(given.split(",")) if isinstance(given, str) and given else ()
    for flag in flags:
        if flag not in PRINT_FLAGS:
            raise ConfigError(f"--print_config: expected {', '.join(PRINT_FLAGS)}, got {flag!r}")
    return flags


def _find_named_checkpoint(
    options: Mapping[str, Any], resolved: config.Resolved, base: runs.Run | None
) -> str | None:
    """Return the checkpoint that the command line or the config names.

    A run's is its best one by default.

    Raises:
        ConfigError: If the run has none of this name.
    """
    if "model" in options:  # exported weights take its place
        return None
    named = options.get("ckpt_path", resolved.value_of("ckpt_path"))
    if base is not None:
        return str(find_checkpoint(base, "best" if named is None else str(named)))
    return str(named) if named else None


def read_run_settings(resolved: config.Resolved, job_name: str) -> RunSettings:
    """Read the `run` section of a config that jsonargparse has not parsed."""
    return replace(resolved.read_section("run", RunSettings), name=job_name)
