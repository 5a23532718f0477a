"""Who is told how a command as a whole begins and ends: the dead-man's switch, and the notifiers of its callbacks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkit.cli.config_loader import WITH_MODEL, load_config, options_of
from lightkit.config import Problems, Resolved, mistake, read_scalar, split_arguments
from lightkit.errors import PIPE_CLOSED, Interrupted, LightkitError, told_interruption
from lightkit.launch import DATA_CHANGED, INHERITED, LAUNCH, this_rank
from lightkit.runs.dead_man import HELD, DeadMansSwitch, sign_of
from lightkit.runs.webhook import CLOSE_TIMEOUT_S

if TYPE_CHECKING:
    from lightkit.callbacks.notifiers import Notifier
    from lightkit.launch import RankContext

__all__ = ["CommandNotifier", "build_notifiers", "create_heartbeat", "find_job_name"]

_LAST_LINES = 12  # of what the screen was told, which may end with a traceback
_HURRIED_S = 2.0  # of a process that was asked to end: it and its children have 15 s in all


class CommandNotifier:
    """Whom a command tells of its beginning and its end.

    Args:
        command: The command; empty in a script, whose notifiers tell the end of their trainer themselves.
        words: The command line after it.
    """

    def __init__(self, command: str = "", words: list[str] | None = None) -> None:
        rank = this_rank(os.environ)
        self._command, self._words = command, list(words or [])
        self._is_first = INHERITED not in os.environ and (rank is None or rank.rank == 0)
        self._speaks_for_all = self._is_first and LAUNCH not in os.environ  # else a supervisor does
        self._is_held = HELD in os.environ
        self._patience_s = CLOSE_TIMEOUT_S
        self._switch: DeadMansSwitch | None = None
        self._resolved: Resolved | None = None
        self._rank: RankContext | None = None
        self.notifiers: list[Notifier] = []
        """Those of the trainer, once there is one."""
        self.words = ""
        """What the screen has been told of an end that is no exception."""
        self.is_told = False
        """Whether the notifiers know how it ended, or other processes have told them."""

    @property
    def tells_end(self) -> bool:
        """Whether the command tells notifiers the end, and not the trainer's hooks."""
        return bool(self._command)

    def around(self, work: Callable[[], int]) -> int:
        """Do the work of the command, and tell how it has ended.

        Returns:
            The exit code that the work gave.
        """
        try:
            code = work()
        except BaseException as error:
            with suppress(Interrupted, KeyboardInterrupt):  # it ends already
                self._end(error, _code_of(error))
            raise
        with suppress(Interrupted, KeyboardInterrupt):  # what there was to do is done
            self._end(_Ended(self.words, code) if code else None, code)
        return code

    def tell_now(self, error: BaseException, *, within_s: float) -> None:
        """Tell the end of a process that is about to be ended by force, since its work cannot be unwound.

        Args:
            error: What is told.
            within_s: Seconds that there are for it.
        """
        self._patience_s = within_s
        self._tell_stage_end(error)
        self._end(error, _code_of(error))

    def begin(self, resolved: Resolved, rank: RankContext | None, *, runs_stage: bool) -> None:
        """Send the beginning: the config is known.

        Args:
            resolved: The config.
            rank: This process's rank, if it is one of several.
            runs_stage: Whether a stage runs, and not only help or the config is printed.

        Raises:
            ConfigError: If `run.heartbeat_url` is no address.
        """
        self._resolved, self._rank = resolved, rank
        if runs_stage:
            self._take_switch(resolved)
        if self._switch is not None:
            os.environ[HELD] = "1"  # for the processes that this one starts
            self._switch.begin()

    def adopt(self, notifiers: Sequence[Notifier], resolved: Resolved) -> None:
        """Take over the trainer's notifiers.

        Args:
            notifiers: Those that the trainer was given.
            resolved: The config, which knows the secrets.
        """
        self.notifiers.clear()
        for notifier in notifiers:
            notifier.mask = resolved.masked
            notifier.command_tells_end = self.tells_end
        if self._is_first and not _is_trial(resolved):
            self.notifiers += notifiers

    @contextmanager
    def stage(self) -> Iterator[None]:
        """Send how the stage ends that runs meanwhile."""
        try:
            yield
        except BaseException as error:
            if type(error).__name__ != DATA_CHANGED:  # after which the same command begins again
                self._tell_stage_end(error)
            raise
        self._tell_stage_end(None)

    def _tell_stage_end(self, error: BaseException | None) -> None:
        """Let the trainer's notifiers tell it; what befalls one of many ranks, their supervisor tells."""
        rank = self._rank
        if not self.notifiers:
            return
        self.is_told = True
        if error is None or rank is None or not rank.supervised:
            for notifier in self.notifiers:
                notifier.tell_end(error)
        if rank is not None:  # its launcher may end this process as soon as the stage is over
            self._close(self.notifiers, error)

    def _end(self, error: BaseException | None, code: int) -> None:
        """Tell all who do not know it, and wait a few seconds until they do."""
        listeners: list[Any] = list(self.notifiers)
        if error is not None and not self.is_told and self._speaks_for_all:
            listeners += self._told_alone(error, code)
        if self._switch is not None:
            os.environ.pop(HELD, None)
            self._switch.end(code, "" if error is None else self._masked(_words_of(error)))
            listeners.append(self._switch)
        self._close(listeners, error)

    def _told_alone(self, error: BaseException, code: int) -> list[Notifier]:
        """Tell a failure that came before there was a trainer; who sits at a terminal has seen it.

        Returns:
            The notifiers that were built for it.
        """
        # After a signal there is no time to load torch for it.
        is_failure = sign_of(code) == "fail" and not isinstance(
            error, (BrokenPipeError, Interrupted, KeyboardInterrupt)
        )
        resolved = self._known_config() if is_failure and not sys.stderr.isatty() else None
        if resolved is None or _is_trial(resolved):
            return []
        notifiers: list[Notifier] = []
        with suppress(LightkitError):  # the command has failed already, and says why
            if self._resolved is None:
                self._take_switch(resolved)
            notifiers = [notifier for _, notifier in build_notifiers(resolved)]
        for notifier in notifiers:
            notifier.mask = resolved.masked
            notifier.tell_end(error, job=find_job_name(resolved, self._command, self._words), stage=self._command)
        return notifiers

    def _take_switch(self, resolved: Resolved) -> None:
        if self._speaks_for_all and not self._is_held and not _is_trial(resolved):
            self._switch = create_heartbeat(resolved)

    def _known_config(self) -> Resolved | None:
        """Give the config, or what there is of one that is wrong."""
        if self._resolved is not None:
            return self._resolved
        if self._command not in WITH_MODEL or {"-h", "--help", "--print_config"} & {*self._words}:
            return None
        with suppress(LightkitError):
            return load_config(self._command, self._words, Problems()).resolved
        return None

    def _close(self, listeners: Sequence[Any], error: BaseException | None) -> None:
        """Wait for all of them together."""
        is_hurried = isinstance(error, (Interrupted, KeyboardInterrupt))
        for listener in listeners:
            listener.begin_close(min(self._patience_s, _HURRIED_S) if is_hurried else self._patience_s)
        for listener in listeners:
            listener.close()

    def _masked(self, text: str) -> str:
        return text if self._resolved is None else self._resolved.masked(text)


class _Ended(LightkitError):
    """An end that was told on the screen, and of which the exit code is left."""

    def __init__(self, words: str, code: int) -> None:
        super().__init__("\n".join(words.splitlines()[-_LAST_LINES:]) or f"exit code {code}")
        self.exit_code = code


def create_heartbeat(resolved: Resolved) -> DeadMansSwitch | None:
    """Give the dead-man's switch of a config, if it has one.

    Raises:
        ConfigError: If `run.heartbeat_url` is no address.
    """
    url = (resolved.values.get("run") or {}).get("heartbeat_url")
    if url is None or (isinstance(url, str) and read_scalar(url) is None):
        return None
    try:
        return DeadMansSwitch(str(url))
    except LightkitError as error:
        raise mistake(str(error), resolved.origin_of("run.heartbeat_url")) from None


def build_notifiers(resolved: Resolved) -> list[tuple[str, Notifier]]:
    """Build the notifiers of a config and nothing else of it.

    Returns:
        Each with the name of its entry.

    Raises:
        ConfigError: If one refuses its arguments.
    """
    entries = {name: entry for name, entry in _entries(resolved) if _may_notify(entry)}
    for name, entry in _entries(resolved):
        if (said := _class_path(entry)) in ("slack", "webhook"):
            says = f"{said!r} is no class; leave it out of callbacks.{said}, or say {said.capitalize()}Notifier"
            raise mistake(f"{name}.class_path: {says}", resolved.origin_of(f"{name}.class_path"))
    if not entries:
        return []
    from lightkit.cli.notifiers import instantiate_notifiers  # here: it loads torch

    return instantiate_notifiers(resolved, entries)


def find_job_name(resolved: Resolved, command: str, words: Sequence[str]) -> str:
    """Give the name of a job, as far as it is known: that of the config, else of its last file."""
    if name := (resolved.values.get("run") or {}).get("name"):
        return str(name)
    arguments = split_arguments(words, options=options_of(command), takes_inputs=True, problems=Problems())
    return Path(arguments.files[-1]).stem if arguments.files else "default"


def _entries(resolved: Resolved) -> list[tuple[str, Any]]:
    values = resolved.values
    named = values.get("callbacks")
    listed = (values.get("trainer") or {}).get("callbacks")
    found = [(f"callbacks.{name}", entry) for name, entry in named.items()] if isinstance(named, dict) else []
    listed = listed if isinstance(listed, list) else [listed]
    return found + [(f"trainer.callbacks.{index}", entry) for index, entry in enumerate(listed)]


def _may_notify(entry: Any) -> bool:
    """Tell, without importing it, whether a callback may be a notifier: not if it is one of Lightning's, or of ours."""
    module, _, name = _class_path(entry).rpartition(".")
    if module.partition(".")[0] in ("", "lightkit", "lightning", "pytorch_lightning"):
        return name.endswith("Notifier")
    return True


def _class_path(entry: Any) -> str:
    path = entry if isinstance(entry, str) else entry.get("class_path") if isinstance(entry, dict) else None
    return str(path or "")


def _is_trial(resolved: Resolved) -> bool:
    """Tell whether it is a ``fast_dev_run``, which is no sign of life."""
    said = (resolved.values.get("trainer") or {}).get("fast_dev_run")
    return bool(read_scalar(said) if isinstance(said, str) else said)


def _code_of(error: BaseException) -> int:
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, (LightkitError, Interrupted)):
        return error.exit_code
    if isinstance(error, BrokenPipeError):
        return PIPE_CLOSED
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def _words_of(error: BaseException) -> str:
    if isinstance(error, Interrupted):
        return told_interruption(error)
    return str(error) if isinstance(error, LightkitError) else " ".join(f"{type(error).__name__}: {error}".split())
