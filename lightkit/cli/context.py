"""The context of one invocation: its arguments, its config, its run, and what is undone at its end. No torch."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lightkit import config, runs
from lightkit.cli.command_line import Invocation
from lightkit.cli.command_table import STAGES
from lightkit.cli.config_loader import LoadedConfig, load_config, resolve_settings, spawns
from lightkit.cli.console import OutputMode, choose_output_mode
from lightkit.cli.notifications import CommandNotifier
from lightkit.cli.predict_options import parse_predict_options
from lightkit.config import Hardware, error_at
from lightkit.config.loader import find_masked_values
from lightkit.errors import ConfigError, RunLocked
from lightkit.export.options import ExportOptions
from lightkit.hardware import Machine
from lightkit.launch.plan import LaunchSettings
from lightkit.launch.ranks import Rank, complete_torch_variables
from lightkit.launch.worker import RankContext, join_launch
from lightkit.runs.deadline import Deadline
from lightkit.runs.resume import RunSettings, RunStart, find_checkpoint, open_named_run
from lightkit.runs.signals import SignalWatch

if TYPE_CHECKING:
    from lightkit.callbacks import RunRecorder

_PRINT_FLAGS = ("skip_default", "skip_null", "skip_unset")


@dataclass(kw_only=True)
class RunContext:
    """One invocation of a command, or of a script.

    Args:
        invocation: The command line; its command is `fit`, `validate`, `test`, `predict` or `export`, and empty where a
            script runs none.
        print_config: What to leave out of the config that is printed instead of a run: `skip_default`, `skip_unset`
            or `skip_null`, the first two as in LightningCLI; None runs the stage.
        is_script: Whether it is a script with a `LightkitCLI`, whose own parser decides which keys there are.
        only_checks: Whether the invocation ends once its config is parsed, before anything is built.
        resolved: The config.
        hardware: The resolved hardware keys.
        launch: The config's `launch` section.
        job_name: Name of the job.
        needs_imports: Whether classes must be imported for a complete verdict on the config.
        base: Run that `--run` names.
        ckpt_path: Checkpoint that the user names: a path, `last`, `best`, or None.
        deadline: Moment by which a fit has to be done, if there is one.
        mode: What the screen shows.
        watch: Handler of SIGINT and SIGTERM.
        rank_context: This process among the ranks of a launch, if it is one of them.
        notifier: Sends the beginning and the end of the command.
        stack: Closed at the end of the invocation: lock, run, trust.
        began_with: Digests of the inputs of the fit, where they have been computed.
        saved_config: The config as the run folder keeps it, once the run has begun.
        start: The run and the checkpoint that it starts from, once it has begun.
        recorder: Keeps the run folder up to date.
        has_trained: Whether training has begun: an error in the config that shows before leaves no folder.
        warned: Warnings about the config that were given.
        nothing_left: Whether the checkpoint of another run has left nothing to train.
    """

    invocation: Invocation
    print_config: tuple[str, ...] | None = None
    is_script: bool = False
    only_checks: bool = False
    resolved: config.Resolved
    hardware: Hardware
    launch: LaunchSettings = field(default_factory=LaunchSettings)
    job_name: str = "default"
    needs_imports: bool = True
    base: runs.Run | None = None
    ckpt_path: str | None = None
    deadline: Deadline | None = None
    mode: OutputMode = "plain"
    watch: SignalWatch
    rank_context: RankContext | None = None
    notifier: CommandNotifier = field(default_factory=CommandNotifier)
    stack: ExitStack = field(default_factory=ExitStack)
    began_with: runs.Inputs | None = None
    saved_config: dict[str, Any] = field(default_factory=dict)
    start: RunStart = field(init=False)
    recorder: RunRecorder = field(init=False)
    has_trained: bool = False
    warned: set[str] = field(default_factory=set)
    nothing_left: bool = False

    @property
    def command(self) -> str:
        """The command: a stage, `export`, or empty where a script runs none."""
        return self.invocation.command

    @property
    def options(self) -> Mapping[str, Any]:
        """The command's own options."""
        return self.invocation.options

    @property
    def inputs(self) -> Sequence[str]:
        """Words without an option: the images of `predict`."""
        return self.invocation.inputs

    @property
    def passthrough(self) -> Sequence[str]:
        """Words that only print help."""
        return self.invocation.passthrough

    @property
    def only_prints(self) -> bool:
        """Return whether help or the config is printed, and nothing runs."""
        return bool(self.passthrough) or self.print_config is not None

    @property
    def run_root(self) -> Path:
        """Folder of all runs."""
        return self.resolved.run_root

    @property
    def rank(self) -> Rank | None:
        """Which of several processes this one is."""
        return None if self.rank_context is None else self.rank_context.rank

    @property
    def run(self) -> runs.Run:
        """The run that has begun."""
        return self.start.run

    @property
    def weights(self) -> Path | None:
        """Exported weights in the place of a checkpoint."""
        return Path(self.options["model"]) if "model" in self.options else None

    def attach_notifier(self, notifier: CommandNotifier) -> None:
        """Send the beginning with the command's notifier, now that the config is known.

        Raises:
            ConfigError: If `run.heartbeat_url` is no address.
        """
        self.notifier = notifier
        notifier.begin(self.resolved, self.job_name, runs_stage=not self.only_prints)

    def tell(self, text: str) -> None:
        """Print information on standard error."""
        logging.getLogger("lightkit").info(text)


def load_context(
    invocation: Invocation,
    watch: SignalWatch,
    problems: config.Problems,
    *,
    class_sections: Sequence[str] = config.CLASS_SECTIONS,
    subcommands: Sequence[str] = STAGES,
    is_script: bool = False,
    machine: Machine | Literal["this"] | None = "this",
) -> tuple[RunContext, LoadedConfig]:
    """Merge the layers of a command line, and resolve them for this machine.

    Args:
        invocation: The command line.
        watch: Handler of SIGINT and SIGTERM.
        problems: Takes the errors.
        class_sections: Top-level keys that hold one class each.
        subcommands: All commands.
        is_script: Whether a script's own parser decides which keys there are.
        machine: Machine whose hardware the config must fit; None to check against none.

    Returns:
        The context, and the config before its hardware keys were resolved.

    Raises:
        ConfigError: If the config cannot be read.
    """
    complete_torch_variables(os.environ)
    try:
        loaded = load_config(invocation, problems, class_sections=class_sections, subcommands=subcommands)
    except ConfigError as error:  # nothing is left to check
        problems.add(error)
        raise problems.error() or error from None
    for problem in find_masked_values(loaded.resolved.tree):
        problems.add(problem)

    command = invocation.command
    hardware, launch = resolve_settings(command, loaded, problems, machine)
    context = RunContext(
        invocation=invocation,
        is_script=is_script,
        resolved=hardware.resolved,
        hardware=hardware,
        launch=launch,
        job_name=loaded.job_name,
        base=loaded.base,
        watch=watch,
    )
    if not is_script and command in STAGES:
        _refuse_spawning(context.resolved, problems)
    with problems.noted():
        context.print_config = _read_print_flags(invocation)
    with problems.noted():
        if command == "predict":
            parse_predict_options(invocation.options, invocation.inputs)
        elif command == "export":
            ExportOptions.parse(invocation.options)
    with problems.noted():
        context.mode = choose_output_mode(invocation.options, is_path=command in ("export", "predict"))
    with problems.noted():
        context.ckpt_path = _find_named_checkpoint(context)
    if command not in ("", "export") and not problems:
        context.rank_context = join_launch(os.environ, context.run_root)
    return context, loaded


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
        if flag not in _PRINT_FLAGS:
            raise ConfigError(f"--print_config: expected {', '.join(_PRINT_FLAGS)}, got {flag!r}")
    return flags


def _find_named_checkpoint(context: RunContext) -> str | None:
    """Return the checkpoint that the command line or the config names; of a run by default the best.

    Raises:
        ConfigError: If the run has none of this name.
    """
    if context.weights is not None:
        return None
    named = context.options.get("ckpt_path", context.resolved.values.get("ckpt_path"))
    if context.base is not None:
        return str(find_checkpoint(context.base, "best" if named is None else str(named)))
    return str(named) if named else None


def read_run_settings(context: RunContext) -> RunSettings:
    """Read the `run` section of a config that jsonargparse has not parsed, in which values of flags are text."""
    given = {
        key: config.read_scalar(value) if isinstance(value, str) and key in ("wait_s", "stale_s", "report") else value
        for key, value in context.resolved.section("run").items()
    }
    return RunSettings(**{**given, "name": context.job_name})


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
