"""A stage under way: its process, its run, and the lock of its job. No torch."""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkit import runs
from lightkit.cli.notifications import CommandNotifier
from lightkit.cli.stage_config import StageConfig
from lightkit.errors import RunLocked
from lightkit.launch.ranks import Rank
from lightkit.launch.worker import RankContext, join_launch
from lightkit.runs.resume import RunSettings, RunStart, open_named_run
from lightkit.runs.signals import SignalWatch

if TYPE_CHECKING:
    from lightkit.callbacks import RunRecorder
    from lightkit.images.early import EarlyImages

_log = logging.getLogger("lightkit")


@dataclass(frozen=True, kw_only=True)
class StageProcess:
    """The process that builds or runs a stage.

    Args:
        stack: Closed at the end of the stage: lock, run, trust.
        watch: Handler of SIGINT and SIGTERM.
        notifier: Sends the beginning and the end of the command.
        rank_context: This process among the ranks of a launch, if it is one of them.
        early_images: Images of `predict` that are read while torch is imported.
    """

    stack: ExitStack
    watch: SignalWatch = field(default_factory=SignalWatch)
    notifier: CommandNotifier = field(default_factory=CommandNotifier)
    rank_context: RankContext | None = None
    early_images: EarlyImages | None = None

    @property
    def rank(self) -> Rank | None:
        """Which of several processes this one is."""
        return None if self.rank_context is None else self.rank_context.rank

    @property
    def rank_number(self) -> int:
        """Number of this process among the ranks; 0 of the only one."""
        return 0 if self.rank is None else self.rank.rank


@dataclass(kw_only=True)
class Session:
    """A stage whose run has begun.

    Args:
        stage_config: Its command line and config.
        process: The process that runs it.
        start: The run, and the checkpoint that it starts from.
        recorder: Keeps the run folder up to date.
        saved_config: The config as the run folder keeps it.
        has_trained: Whether training has begun: an error in the config that shows before leaves no
            folder.
        nothing_left: Whether the checkpoint of another run has left nothing to train.
    """

    stage_config: StageConfig
    process: StageProcess
    start: RunStart
    recorder: RunRecorder
    saved_config: dict[str, Any]
    has_trained: bool = False
    nothing_left: bool = False

    @property
    def run(self) -> runs.Run:
        """The run."""
        return self.start.run

    @property
    def trains(self) -> bool:
        """Return whether it is a fit."""
        return self.stage_config.command == "fit"


def join_ranks(command: str, run_root: Path) -> RankContext | None:
    """Join the launch that has started this process.

    None if none has, or where a command is one process anywhere.
    """
    if command in ("", "export"):
        return None
    return join_launch(os.environ, run_root)


def find_job(settings: RunSettings) -> tuple[Path, str]:
    """Return the run root and the name of a job: that of the run to go on in, where one is named.

    Raises:
        ConfigError: If the name cannot be a folder's, or there is no such run.
    """
    if settings.resume not in ("auto", "never"):
        named = open_named_run(settings.resume, settings.root, settings.name)
        return named.root, named.name
    return Path(settings.root), runs.check_name(str(settings.name))


def create_job_lock(settings: RunSettings, watch: SignalWatch) -> runs.Lock:
    """Make the lock of a job; this process ends once another has taken it over.

    Raises:
        ConfigError: If the name cannot be a folder's, there is no such run, or the seconds are
            none.
    """
    return runs.Lock(
        *find_job(settings),
        wait_s=settings.wait_s,
        stale_s=settings.stale_s,
        tell=_log.info,
        lost=lambda reason: watch.cut(
            RunLocked.exit_code, f"error: this process has lost its job. {reason}"
        ),
    )
