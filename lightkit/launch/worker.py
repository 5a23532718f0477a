"""One rank of a launch: where its output goes, and how the others learn of its run and its end."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightkit.errors import ConfigError, Interrupted, LightkitError, told_interruption
from lightkit.launch.output import redirect
from lightkit.launch.ranks import ATTEMPT, LAUNCH, PREEMPTED, Rank, this_rank
from lightkit.launch.status import LAUNCHES, StatusStore
from lightkit.launch.watchdog import STALLED, Stall
from lightkit.runs.signals import SignalWatch

__all__ = ["DATA_CHANGED", "INHERITED", "LeftAlone", "RankContext", "join_launch"]

DATA_CHANGED = "DataChanged"
"""Name of the exception after which all ranks have to begin again, in a new run."""
INHERITED = "_LIGHTKIT_RUN"
"""Environment variable with which the process that begins a run passes it to the ranks that Lightning starts."""

_DAY_S = 86400.0
_POLL_S = 0.3
_CLOCK_SKEW_S = 60.0  # clocks of machines differ, and ranks do not begin together
_SAME_ERROR_S = 2.0  # ranks meet the same mistake at about the same time


class LeftAlone(LightkitError):
    """Rank 0 has ended, so that this rank has no run to join."""


class RankContext:
    """This process among the ranks of a launch.

    Args:
        rank: Which rank it is.
        store: Status of all ranks.
        supervised: Whether lightkit's supervisor reads the status: it then reports failures, and chooses the exit code.
    """

    def __init__(self, rank: Rank, store: StatusStore, *, supervised: bool) -> None:
        self.rank = rank
        self.store = store
        self.supervised = supervised
        self._began_s = time.time()
        self._screen: int | None = None
        self._log: Path | None = None

    def open(self) -> None:
        """Write that this rank has arrived, and send its output to its own file unless the screen is its own.

        Raises:
            ConfigError: If the folder of the launch cannot be written.
        """
        number = self.rank.rank
        try:
            if self.supervised and self.rank.engine == "torchrun":
                self.rank = self.store.agree_on_attempt(self.rank)
                os.environ[ATTEMPT] = str(self.rank.attempt)
            self.store.begin(self.rank)
            if number != 0:
                self._screen = None if self.supervised else os.dup(2)
                redirect(self.store.log(number), 1, 2)
            elif self.supervised and self.rank.engine != "local":
                redirect(self.store.log(0, "out"), 1)
                redirect(self.store.log(0, "err"), 2)
        except OSError as error:
            raise ConfigError(
                f"run.root: rank {number} cannot write {self.store.folder}: {error.strerror or error}. All ranks must "
                "see that folder."
            ) from error

    def watch_stop_requests(self, watch: SignalWatch) -> None:
        """Act on the supervisor's request to stop: it may be on another machine, and under Ray a rank is a thread."""

        def poll() -> None:
            while (signum := self.store.requested_stop(self.rank)) is None:
                time.sleep(_POLL_S)
            watch.note(signum)

        threading.Thread(target=poll, name="lightkit-stop", daemon=True).start()

    def run(self, stage: Callable[[], int], format_traceback: Callable[[BaseException], str]) -> int:
        """Run a stage and write how it has ended.

        Args:
            stage: Function that returns an exit code.
            format_traceback: Formats an exception without secrets.

        Returns:
            Exit code of this process. After an interruption it is 0 under a supervisor, which knows the code: a
            launcher that sees another code kills the rank that is saving the checkpoint.
        """
        try:
            code = stage()
        except Interrupted as interruption:
            # Any rank: the others may have stopped with it before the signal has reached them.
            is_preempted = interruption.signum == signal.SIGUSR1 and interruption.checkpoint is not None
            if is_preempted and (marker := os.environ.get(PREEMPTED)):
                Path(marker).touch()
            return self._fail(interruption, told_interruption(interruption), interruption.exit_code, process_code=0)
        except LightkitError as error:
            # Torch's agent and Ray would start all ranks again, to meet the same mistake.
            is_final = self.rank.engine in ("torchrun", "ray") and (
                error.exit_code != 1 or type(error).__name__ in (DATA_CHANGED, LeftAlone.__name__)
            )
            return self._fail(
                error, f"error: {error}", error.exit_code, process_code=0 if is_final else error.exit_code
            )
        except Exception as error:  # noqa: BLE001 (the supervisor prints it, or it is raised again)
            return self._fail(error, format_traceback(error), 1, process_code=1)
        except BaseException as error:
            code = 130 if isinstance(error, KeyboardInterrupt) else 1
            if isinstance(error, SystemExit):
                code = error.code if isinstance(error.code, int) else int(error.code is not None)
            self.store.end(self.rank, code=code, kind=type(error).__name__, message=format_traceback(error))
            raise
        self.store.end(self.rank, code=code)
        if not self.supervised:
            self._leave(is_over=code == 0)
        return code

    def end_by_force(self, interruption: Interrupted) -> int:
        """Write the end of a rank that has not ended in time after a signal; return the exit code of its process."""
        kind, message = type(interruption).__name__, told_interruption(interruption)
        self.store.end(self.rank, code=interruption.exit_code, kind=kind, message=message)
        return 0 if self.supervised else interruption.exit_code

    def end_stalled(self, stall: Stall) -> None:
        """Write that this rank makes no progress and is being ended."""
        self.store.stall(self.rank, code=STALLED, message=stall.stacks, waits_for=stall.waits_for, line=stall.line)
        if not self.supervised or self.rank.rank != 0:
            waits = "" if stall.waits_for is None else f"; it waits in {stall.waits_for}"
            message = f"error: rank {self.rank.rank} has hung for {stall.limit_s:g} s{waits}\n{stall.stacks}"
            print(message, file=sys.stderr, flush=True)  # noqa: T201 (the process ends)

    def announce_run(self, run: Mapping[str, Any]) -> None:
        """Write for the others which run it is; only rank 0 does."""
        self.store.announce_run(self.rank, run)

    def earlier_run(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the run of all ranks before they were started again, if they were and its folder still exists.

        Args:
            timeout_s: Seconds to wait for the other ranks if several launches share the folder.
        """
        if self.supervised and self.store.is_shared:
            run = self.store.earlier_run(self.rank, timeout_s)
        else:
            run = self.store.newest_run(since_s=0.0 if self.supervised else self._began_s - _DAY_S)
        if run is None or not (self.rank.attempt or self.supervised) or not Path(run["folder"]).is_dir():
            return None
        return run

    def wait_for_run(self, timeout_s: float) -> dict[str, Any]:
        """Wait until rank 0 has announced its run.

        Raises:
            LeftAlone: If it has ended instead, or the time is over.
        """
        since_s = 0.0 if self.supervised else self._began_s - _CLOCK_SKEW_S
        run = self.store.wait_for_run(self.rank, timeout_s, since_s=since_s)
        if run is None:
            raise LeftAlone(
                f"rank 0 has begun no run within {timeout_s:g} s, or has ended; rank {self.rank.rank} ends too"
            )
        return run

    def keep_log(self, folder: Path) -> None:
        """Let the run's folder have the output of this rank, also later output."""
        if self.rank.rank == 0:
            return
        kept = folder / "logs" / f"rank-{self.rank.rank}.log"
        kept.parent.mkdir(exist_ok=True)
        written = self.store.log(self.rank.rank)
        if kept.exists() and not kept.samefile(written):  # that of an earlier launch of the same run
            number = 1
            while (earlier := kept.with_name(f"{kept.stem}.{number}.log")).exists():
                number += 1
            kept.rename(earlier)
        if not kept.exists():
            try:
                os.link(written, kept)
            except OSError:  # on another file system
                kept.write_bytes(written.read_bytes())
                redirect(kept, 1, 2)
        self._log = kept

    def _fail(self, error: BaseException, message: str, code: int, *, process_code: int) -> int:
        with _delaying_signals() as signals:
            self.store.end(self.rank, code=code, kind=type(error).__name__, message=message)
            if not self.supervised:
                self._print(error, message, signals)
                self._leave(is_over=False)
        if not self.supervised:
            raise error
        if self.rank.rank != 0:
            print(message, file=sys.stderr)  # noqa: T201 (into its log)
        sys.stdout.flush()
        sys.stderr.flush()
        return process_code

    def _print(self, error: BaseException, message: str, signals: Collection[int]) -> None:
        """Print to the screen what has ended this rank, whose output goes to a file, unless others have printed it."""
        if self._screen is None or isinstance(error, (Interrupted, LeftAlone)):
            return
        number = self.rank.rank
        if isinstance(error, LightkitError):
            # A lower rank may end with the same message, or the launcher may end this one.
            deadline_s = time.monotonic() + _SAME_ERROR_S
            while time.monotonic() < deadline_s:
                if signals or any(s.message == message for s in self.store.list_ranks() if s.rank < number):
                    return
                time.sleep(_POLL_S)
            text = f"rank {number}: {message}"
        elif any(status.code for status in self.store.list_ranks() if status.rank != number):
            text = f"rank {number} has ended because of it: {message.rstrip().splitlines()[-1]}"
        else:
            text = f"rank {number}:\n{message.rstrip()}"
        log = f"\nlog   {self._log}" if self._log is not None else ""
        os.write(self._screen, f"{text}{log}\n".encode())

    def _leave(self, *, is_over: bool) -> None:
        """Remove the files that only a supervisor would read."""
        if self.store.folder.parent.name == LAUNCHES:  # else it is where the run keeps its logs
            lost = [status.rank for status in self.store.list_ranks() if status.is_lost]
            for rank in (self.rank.rank, *lost):
                self.store.log(rank).unlink(missing_ok=True)
        restarts = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) if self.rank.engine == "torchrun" else 0
        self.store.leave(is_over=is_over or self.rank.attempt >= restarts)


def join_launch(environ: Mapping[str, str], root: Path | str | None = None) -> RankContext | None:
    """Join the launch that has started this process; None if none has.

    Args:
        environ: Environment variables.
        root: Folder of all runs, in which ranks of a launcher of the user's own meet; None before it is known.
    """
    rank = this_rank(environ)
    if folder := environ.get(LAUNCH):  # without a launcher's variables this process starts the others itself
        return RankContext(rank or Rank(0, 1), StatusStore(folder), supervised=True)
    if rank is None or root is None or (rank.engine == "local" and rank.size == 1):
        return None
    if run := environ.get(INHERITED):
        return RankContext(rank, StatusStore(Path(json.loads(run)["folder"]) / "logs"), supervised=False)
    meeting = Path(root).absolute() / LAUNCHES / f"{rank.engine}-{rank.key}"
    return RankContext(rank, StatusStore(meeting), supervised=False)


@contextmanager
def _delaying_signals() -> Iterator[list[int]]:
    """Let a rank write its end: launchers send SIGTERM to all ranks as soon as one has ended. Yield what has come."""
    signals: list[int] = []
    is_main = threading.current_thread() is threading.main_thread()  # Python allows handlers nowhere else
    asking = (signal.SIGINT, signal.SIGTERM) if is_main else ()
    before = {signum: signal.signal(signum, lambda signum, _: signals.append(signum)) for signum in asking}
    try:
        yield signals
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
