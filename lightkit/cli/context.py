"""The context of one invocation: its arguments, its config, its run, and what is undone at its end. No torch."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Literal

from lightkit import config, runs
from lightkit.cli.config_loader import STAGES, Takes, load_config, resolve_settings, spawns
from lightkit.cli.console import OutputMode, choose_output_mode
from lightkit.cli.notifications import CommandNotifier
from lightkit.cli.predict_options import parse_predict_options
from lightkit.cli.validation import validate
from lightkit.config import Hardware, error_at
from lightkit.config.loader import find_masked_values
from lightkit.errors import ConfigError, RunLocked
from lightkit.export.options import ExportOptions
from lightkit.hardware import Machine
from lightkit.launch.plan import LaunchSettings
from lightkit.launch.worker import RankContext, join_launch
from lightkit.runs.resume import RunSettings, RunStart, find_checkpoint, open_named_run
from lightkit.runs.signals import SignalWatch

if TYPE_CHECKING:
    from lightkit.callbacks import RunRecorder

_PRINT_FLAGS = ("skip_default", "skip_null", "skip_unset")


@dataclass(kw_only=True)
class RunContext:
    """One invocation of a command, or of a script.

    Args:
        command: `fit`, `validate`, `test`, `predict` or `export`; empty where a script runs no command.
        args: The command line after the command.
        options: The command's own options.
        inputs: Positional arguments: the images of `predict`.
        passthrough: Arguments that only print help.
        print_config: What to leave out of the config that is printed instead of a run: `skip_default`, `skip_unset`
            or `skip_null`, the first two as in LightningCLI; None runs the stage.
        has_own_parser: Whether a script's own parser decides which keys there are.
        only_checks: Whether the invocation ends once its config is parsed, before anything is built.
        resolved: The config.
        hardware: The resolved hardware keys.
        launch: The config's `launch` section.
        default_name: Name of the job where the config has none: that of the base run, or of the first config file.
        needs_imports: Whether classes must be imported for a complete verdict on the config.
        base: Run that `--run` names.
        ckpt_path: Checkpoint that the user names: a path, `last`, `best`, or None.
        mode: What the screen shows.
        watch: Handler of SIGINT and SIGTERM.
        rank_context: This process among the ranks of a launch, if it is one of them.
        notifier: Sends the beginning and the end of the command.
        stack: Closed at the end of the invocation: lock, run, trust.
        began_with: Digests of the inputs of the fit, where they have been computed.
        saved_config: The config as the run folder keeps it, once the run has begun.
        start: The run and the checkpoint that it starts from, once it has begun.
        recorder: Keeps the run folder up to date.
        data_before: Description of the data that an interrupted run, resumed without being named, was trained on.
        keeps_folder: Set once training has begun: an error in the config that shows before leaves no folder.
        nothing_left: Whether the checkpoint of another run has left nothing to train.
    """

    command: str
    args: list[str]
    options: Mapping[str, str | bool] = field(default_factory=dict)
    inputs: Sequence[str] = ()
    passthrough: list[str] = field(default_factory=list)
    print_config: tuple[str, ...] | None = None
    has_own_parser: bool = False
    only_checks: bool = False
    resolved: config.Resolved
    hardware: Hardware
    launch: LaunchSettings = field(default_factory=LaunchSettings)
    default_name: str = "default"
    needs_imports: bool = True
    base: runs.Run | None = None
    ckpt_path: str | None = None
    mode: OutputMode = "plain"
    watch: SignalWatch
    rank_context: RankContext | None = None
    notifier: CommandNotifier = field(default_factory=CommandNotifier)
    stack: ExitStack = field(default_factory=ExitStack)
    began_with: runs.Inputs | None = None
    saved_config: dict[str, Any] = field(default_factory=dict)
    start: RunStart = field(init=False)
    recorder: RunRecorder = field(init=False)
    data_before: dict[str, Any] | None = None
    keeps_folder: Event = field(default_factory=Event)
    nothing_left: bool = False

    @property
    def run(self) -> runs.Run:
        """The run that has begun."""
        return self.start.run

    @property
    def weights(self) -> Path | None:
        """Exported weights in the place of a checkpoint."""
        return Path(str(self.options["artefact"])) if "artefact" in self.options else None

    def attach_notifier(self, notifier: CommandNotifier) -> None:
        """Let the command's notifier send the beginning, now that the config is known.

        Raises:
            ConfigError: If `run.heartbeat_url` is no address.
        """
        self.notifier = notifier
        is_supervised = self.rank_context is not None and self.rank_context.supervised
        runs_stage = not self.passthrough and self.print_config is None
        notifier.begin(self.resolved, is_supervised=is_supervised, runs_stage=runs_stage)

    def tell(self, text: str) -> None:
        """Print information on standard error."""
        logging.getLogger("lightkit").info(text)


def load_context(
    command: str,
    args: Sequence[str],
    watch: SignalWatch,
    *,
    class_sections: Sequence[str] = config.CLASS_SECTIONS,
    subcommands: Sequence[str] = STAGES,
    has_own_parser: bool = False,
    options: Mapping[str, Takes] | None = None,
    full: bool = False,
    machine: Machine | Literal["this"] | None = "this",
    validate_imports: Callable[[RunContext, config.Problems], None] | None = None,
) -> RunContext:
    """Read the arguments, merge the layers, resolve them for this machine, and raise every error in the config.

    Args:
        command: `fit`, `validate`, `test` or `predict`; empty where a script runs no command.
        args: The command line after the command.
        watch: Handler of SIGINT and SIGTERM.
        class_sections: Top-level keys that hold one class each.
        subcommands: All commands.
        has_own_parser: Whether a script's own parser decides which keys there are.
        options: Options, and whether each takes a value; those of the command if None.
        full: Whether jsonargparse is asked for more errors also where the schema describes every class.
        machine: Machine whose hardware the config must fit; None to check against none.
        validate_imports: Where there are errors, imports classes that the schema does not describe, and adds theirs.

    Raises:
        ConfigError: If anything in them is wrong.
        DataError: If nothing is wrong but data is missing.
    """
    problems = config.Problems()
    try:
        loaded = load_config(
            command,
            args,
            problems,
            options=options,
            class_sections=class_sections,
            subcommands=subcommands,
        )
    except ConfigError as error:  # nothing is left to check
        problems.add(error)
        problems.raise_any()
        raise
    for problem in find_masked_values(loaded.resolved.tree):
        problems.add(problem)
    hardware, launch = resolve_settings(command, loaded, problems, machine)
    given, resolved = loaded.arguments.options, hardware.resolved
    context = RunContext(
        command=command,
        args=list(args),
        options=given,
        inputs=tuple(loaded.arguments.inputs),
        passthrough=loaded.arguments.passthrough,
        has_own_parser=has_own_parser,
        resolved=resolved,
        hardware=hardware,
        launch=launch,
        default_name=loaded.default_name,
        base=loaded.base,
        watch=watch,
    )
    trainer = resolved.values.get("trainer")
    if not has_own_parser and command in STAGES and isinstance(trainer, dict) and spawns(trainer.get("strategy")):
        text = "trainer.strategy: its processes have no run folder; ddp trains the same and has one"
        problems.add(error_at(text, resolved.origin_of("trainer.strategy")))
    if (flags := given.get("print_config")) is not None:
        context.print_config = tuple(flags.split(",")) if isinstance(flags, str) and flags else ()
        if unknown := [flag for flag in context.print_config if flag not in _PRINT_FLAGS]:
            problems.add(ConfigError(f"--print_config: expected {', '.join(_PRINT_FLAGS)}, got {unknown[0]!r}"))
    if command == "predict":
        with problems.noted():
            parse_predict_options(given, context.inputs)
    if command == "export":
        with problems.noted():
            ExportOptions.parse(given)
    with problems.noted():
        context.mode = choose_output_mode(given, is_path=command in ("export", "predict"))
    with problems.noted():
        named = given.get("ckpt_path", resolved.values.get("ckpt_path"))
        if context.base is not None and context.weights is None:
            context.ckpt_path = str(find_checkpoint(context.base, "best" if named is None else str(named)))
        elif named and context.weights is None:
            context.ckpt_path = str(named)
    if command not in ("", "export") and not problems:
        section = resolved.values.get("run")  # an error that is not found yet may stand in its place
        root = section.get("root") if isinstance(section, dict) else None
        context.rank_context = join_launch(os.environ, root or "runs")
    if not has_own_parser and not context.passthrough:
        context.resolved, result = validate(command, loaded, resolved, problems)
        context.needs_imports = not result.is_final
        if problems and validate_imports is not None and (result.unjudged or full):
            validate_imports(context, problems)
    if (found := problems.error()) is not None:
        raise found.reworded(loaded.resolved.masked)
    return context


def find_job(settings: RunSettings) -> tuple[Path, str]:
    """Return the run root and the name of a job: that of the run to go on in, where one is named.

    Raises:
        ConfigError: If the name cannot be a folder's, or there is no such run.
    """
    if settings.resume not in ("auto", "never"):
        named = open_named_run(settings.resume, settings.root, settings.name)
        return named.root, named.name
    return Path(settings.root), runs.check_name(str(settings.name))


def create_job_lock(context: RunContext, settings: RunSettings) -> runs.Lock:
    """Make the lock of a job; this process ends once another has taken it over.

    Raises:
        ConfigError: If the name cannot be a folder's, there is no such run, or the seconds are none.
    """
    return runs.Lock(
        *find_job(settings),
        wait_s=settings.wait_s,
        stale_s=settings.stale_s,
        tell=context.tell,
        lost=lambda reason: context.watch.cut(RunLocked.exit_code, f"error: this process has lost its job. {reason}"),
    )
