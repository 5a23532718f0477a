"""One invocation: its arguments, its config, and what must be undone at its end. No torch yet."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightkit import config, runs
from lightkit.cli.config_loader import STAGES, LoadedConfig, load_config, options_of
from lightkit.cli.console import OutputMode, choose_output_mode
from lightkit.cli.notifications import CommandNotifier
from lightkit.cli.predict_options import check_predict_options
from lightkit.cli.resume import find_checkpoint
from lightkit.cli.settling import resolve_settings
from lightkit.cli.validation import validate
from lightkit.config import Hardware
from lightkit.config.secrets import find_masked_values
from lightkit.errors import ConfigError
from lightkit.launch import LaunchSettings, RankContext, join_launch
from lightkit.runs.signals import SignalWatch

__all__ = ["RunContext", "load_context"]


@dataclass
class RunContext:
    """What a stage needs to know about its invocation.

    Args:
        command: `fit`, `validate`, `test` or `predict`.
        words: The command line after the command.
        resolved: The config.
        ckpt_path: Checkpoint that the user names: a path, `last`, `best`, or nothing.
        base: Run that `--run` names.
        mode: What the screen shows.
        watch: Handler of SIGINT and SIGTERM.
        passthrough: Arguments that only print help.
        print_config: What to leave out of the config that is printed instead of a run: `skip_default`, `skip_unset`
            or `skip_null`, the first two as in LightningCLI; None runs the stage.
        has_own_parser: Whether a script's own parser decides which keys there are.
        needs_imports: Whether classes must be imported for a complete verdict on the config.
        only_checks: Whether the invocation ends once its config is known to be right, before anything is built.
        hardware: What the hardware keys came to.
        launch: The config's `launch` block.
        options: The command's own options, as they were said.
        inputs: Words that stand alone: the images of `predict`.
        rank_context: This process among the ranks of a launch, if it is one of them.
        began_with: What the fit is made from, where that has been looked at already.
        notifier: Whom the command tells of its beginning and its end.
        stack: Closed at the end of the invocation: lock, current run.
        problems: Mistakes that have been found in the config.
        unchecked_classes: Places of classes that must be imported before their arguments can be checked.
        mask: Hides the secrets of the config as the user wrote it.
    """

    command: str
    words: list[str]
    resolved: config.Resolved
    ckpt_path: str | None
    base: runs.Run | None
    mode: OutputMode
    watch: SignalWatch
    passthrough: list[str]
    print_config: tuple[str, ...] | None = None
    has_own_parser: bool = False
    needs_imports: bool = True
    only_checks: bool = False
    hardware: Hardware = field(kw_only=True)
    launch: LaunchSettings = field(default_factory=LaunchSettings)
    options: Mapping[str, str | bool] = field(default_factory=dict)
    inputs: Sequence[str] = ()
    rank_context: RankContext | None = None
    began_with: runs.Inputs | None = None
    notifier: CommandNotifier = field(default_factory=CommandNotifier)
    stack: ExitStack = field(default_factory=ExitStack)
    problems: config.Problems = field(default_factory=config.Problems)
    unchecked_classes: Sequence[config.KeyPath] = ()
    mask: Callable[[str], str] = str

    def attach_notifier(self, notifier: CommandNotifier) -> None:
        """Let the command's notifier send the beginning, now that the config is known.

        Raises:
            ConfigError: If `run.heartbeat_url` is no address.
        """
        self.notifier = notifier
        notifier.begin(self.resolved, self.rank_context, runs_stage=not self.passthrough and self.print_config is None)

    def raise_problems(self) -> None:
        """Raise every mistake that has been found, with secrets hidden.

        Raises:
            ConfigError: If there are mistakes in the config.
            DataError: If only data is missing.
        """
        if (error := self.problems.error()) is not None:
            raise error.reworded(self.mask)

    def environment_digest(self, salt: str) -> str:
        """Tell apart, without showing them, the values that came from the environment.

        Args:
            salt: Anything that differs from run to run, so that equal values do not look equal.
        """
        values = sorted(
            (config.dotted(path), str(_at(self.resolved.values, path))) for path in self.resolved.references
        )
        return hashlib.sha256(json.dumps([salt, *values]).encode()).hexdigest()

    def tell(self, text: str) -> None:
        """Say something on standard error that the user did not ask for but should know."""
        logging.getLogger("lightkit").info(text)

    @property
    def weights(self) -> Path | None:
        """Exported weights in the place of a checkpoint."""
        return Path(str(self.options["artefact"])) if "artefact" in self.options else None

    @property
    def default_name(self) -> str:
        """Name of the job where the config has none: that of the run in hand, or of the last config file."""
        if self.base is not None:
            return self.base.name
        files = config.split_arguments(self.words, options=options_of(self.command), takes_inputs=True).files
        return Path(files[-1]).stem if files else "default"


def load_context(
    command: str,
    words: Sequence[str],
    watch: SignalWatch,
    *,
    class_sections: Sequence[str] = config.CLASS_SECTIONS,
    subcommands: Sequence[str] = STAGES,
    default_entries: Sequence[str] = ("callbacks", "logger"),
    has_own_parser: bool = False,
    full: bool = False,
) -> RunContext:
    """Read the arguments, merge the layers, resolve them for this machine, and check what can be checked without torch.

    Where there are mistakes, and classes that must be imported before the verdict is complete, the context holds both,
    and the caller calls `validate_with_imports`.

    Args:
        command: `fit`, `validate`, `test` or `predict`; empty where a script runs no command.
        words: The command line after the command.
        watch: Handler of SIGINT and SIGTERM.
        class_sections: Top-level keys that hold one class each.
        subcommands: All commands.
        default_entries: Sections that get an entry of lightkit's own: the checkpoint, and a logger where there is none.
        has_own_parser: Whether a script's own parser decides which keys there are.
        full: Whether jsonargparse is asked for more mistakes also where the schema describes every class.

    Raises:
        ConfigError: If anything in them is wrong.
        DataError: If nothing is but that data is missing.
    """
    problems = config.Problems()
    try:
        laid = load_config(
            command,
            words,
            problems,
            class_sections=class_sections,
            subcommands=subcommands,
            default_entries=default_entries,
        )
    except ConfigError as error:  # nothing is left to go on with
        problems.add(error)
        problems.raise_any()
        raise
    for problem in find_masked_values(laid.resolved.tree):
        problems.add(problem)
    session = _session(command, words, watch, laid, problems)
    session.has_own_parser = has_own_parser
    if not has_own_parser and not session.passthrough:
        session.resolved, result = validate(command, laid, session.resolved, problems)
        session.unchecked_classes, session.needs_imports = result.unjudged, not result.is_final
    session.problems, session.mask = problems, laid.resolved.masked
    if not (problems and (session.unchecked_classes or full)):
        session.raise_problems()
    return session


def _session(
    command: str, words: Sequence[str], watch: SignalWatch, laid: LoadedConfig, problems: config.Problems
) -> RunContext:
    options, base = laid.arguments.options, laid.base
    settled = resolve_settings(command, laid, problems)
    resolved = settled.hardware.resolved
    session = RunContext(
        command=command,
        words=list(words),
        resolved=resolved,
        ckpt_path=None,
        base=base,
        mode="plain",
        watch=watch,
        passthrough=laid.arguments.passthrough,
        hardware=settled.hardware,
        launch=settled.launch,
        options=options,
        inputs=tuple(laid.arguments.inputs),
    )
    with problems.noted():
        session.print_config = _print_flags(options.get("print_config"))
    if command == "predict":
        with problems.noted():
            check_predict_options(options, session.inputs)
    with problems.noted():
        session.mode = choose_output_mode(_shown(command, options), sys.stdout)
    with problems.noted():
        session.ckpt_path = (
            None if session.weights else _checkpoint(options.get("ckpt_path", resolved.values.get("ckpt_path")), base)
        )
    if command and not problems:
        session.rank_context = join_launch(os.environ, (resolved.values.get("run") or {}).get("root") or "runs")
    return session


def _shown(command: str, options: Mapping[str, str | bool]) -> Mapping[str, str | bool]:
    """Leave out ``--output`` where it is a place for files."""
    is_place = command in ("export", "predict") and options.get("output") != "json"
    return {key: value for key, value in options.items() if key != "output" or not is_place}


def _checkpoint(named: Any, base: runs.Run | None) -> str | None:
    if base is None:
        return str(named) if named else None
    return str(find_checkpoint(base, "best" if named is None else str(named)))


def _print_flags(said: str | bool | None) -> tuple[str, ...] | None:
    if said is None:
        return None
    flags = tuple(said.split(",")) if isinstance(said, str) and said else ()
    known = ("skip_default", "skip_null", "skip_unset")
    if unknown := [flag for flag in flags if flag not in known]:
        raise ConfigError(f"--print_config: expected {', '.join(known)}, got {unknown[0]!r}")
    return flags


def _at(values: Any, path: config.KeyPath) -> Any:
    for part in path:
        values = values[part]
    return values
