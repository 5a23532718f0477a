"""Send how a command begins and ends: to its heartbeat address, and through the notifiers among its callbacks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pydoc import locate
from typing import TYPE_CHECKING, Any

from lightkit.cli.config_loader import WITH_MODEL, first_file_name, load_config, options_of
from lightkit.config import Problems, Resolved, error_at, read_scalar, split_arguments
from lightkit.errors import Interrupted, LightkitError, exit_code_of, format_interruption
from lightkit.launch.ranks import LAUNCH, this_rank
from lightkit.launch.worker import INHERITED
from lightkit.runs import Run
from lightkit.runs.webhook import CLOSE_TIMEOUT_S, HELD, DeadMansSwitch, close_all, heartbeat_sign

if TYPE_CHECKING:
    from lightkit.callbacks.notifiers import Notifier


_NUM_LAST_LINES = 12  # of the error output of other processes, which may end with a traceback
_INTERRUPTED_CLOSE_S = 2.0  # after a signal: this process and its children have 15 s in all


class CommandNotifier:
    """Send the beginning and the end of a command.

    Args:
        command: The command; empty in a script, whose end nothing sends.
        args: The command line after it.
    """

    def __init__(self, command: str = "", args: list[str] | None = None) -> None:
        rank = this_rank(os.environ)
        self._command, self._args = command, list(args or [])
        self._is_first_rank = INHERITED not in os.environ and (rank is None or rank.rank == 0)
        self._is_outermost = self._is_first_rank and LAUNCH not in os.environ  # else a supervisor sends
        self._close_timeout_s = CLOSE_TIMEOUT_S
        self._heartbeat: DeadMansSwitch | None = None
        self._resolved: Resolved | None = None
        self._is_supervised = False
        self.notifiers: list[Notifier] = []
        """Those of the trainer, once there is one."""
        self.message = ""
        """Error output of an end that is no exception here."""
        self.run: Run | None = None
        """The run of the command, once it has begun."""
        self.has_sent_end = False
        """Whether other processes have sent the end."""

    def around(self, work: Callable[[], int]) -> int:
        """Do the work of the command, send how it ended, and return the exit code of the work."""
        try:
            code = work()
        except BaseException as error:
            with suppress(Interrupted, KeyboardInterrupt):  # it ends already
                self._send_end(error, exit_code_of(error))
            raise
        with suppress(Interrupted, KeyboardInterrupt):  # the work is done
            self._send_end(_ChildFailed(self.message, code) if code else None, code)
        return code

    def send_now(self, error: BaseException, *, within_s: float) -> None:
        """Send the end of a process that is about to be ended by force.

        Args:
            error: What is sent.
            within_s: Seconds that may be spent on it.
        """
        self._close_timeout_s = within_s
        self._send_end(error, exit_code_of(error))

    def begin(self, resolved: Resolved, *, is_supervised: bool, runs_stage: bool) -> None:
        """Send the beginning: the config is known.

        Args:
            resolved: The config.
            is_supervised: Whether a supervisor reports what goes wrong here.
            runs_stage: Whether a stage runs, and not only help or the config is printed.

        Raises:
            ConfigError: If `run.heartbeat_url` is no address.
        """
        self._resolved, self._is_supervised = resolved, is_supervised
        if runs_stage:
            self._open_heartbeat(resolved)
        if self._heartbeat is not None:
            os.environ[HELD] = "1"  # for the processes that this one starts
            self._heartbeat.send("start")

    def adopt(self, notifiers: Sequence[Notifier], resolved: Resolved) -> None:
        """Let the trainer's notifiers send the end of the command.

        Args:
            notifiers: Those among the trainer's callbacks.
            resolved: The config, which masks secrets.
        """
        self.notifiers.clear()
        for notifier in notifiers:
            notifier.mask = resolved.masked
        if self._is_first_rank and not _is_trial(resolved):
            self.notifiers += notifiers

    def _send_end(self, error: BaseException | None, code: int) -> None:
        """Send the end through the trainer's notifiers, or those of the config, and wait a few seconds for answers."""
        senders: list[Any] = list(self.notifiers)
        if not self._is_supervised or heartbeat_sign(code) != "fail":  # a failure is sent by the supervisor
            for notifier in self.notifiers:
                notifier.send_end(error)
        if error is not None and not self.notifiers and not self.has_sent_end and self._is_outermost:
            senders += self._send_early_failure(error, code)
        if self._heartbeat is not None:
            os.environ.pop(HELD, None)
            text = " ".join(f"{type(error).__name__}: {error}".split())
            if error is None or isinstance(error, (Interrupted, LightkitError)):
                text = format_interruption(error) if isinstance(error, Interrupted) else str(error or "")
            text = text if self._resolved is None else self._resolved.masked(text)
            self._heartbeat.send(heartbeat_sign(code), text)
            senders.append(self._heartbeat)
        timeout_s = self._close_timeout_s
        if isinstance(error, (Interrupted, KeyboardInterrupt)):
            timeout_s = min(timeout_s, _INTERRUPTED_CLOSE_S)
        close_all((sender.sender for sender in senders), timeout_s)

    def _send_early_failure(self, error: BaseException, code: int) -> list[Notifier]:
        """Send a failure from before there was a trainer, unless a terminal has shown it.

        Returns:
            The notifiers that were built for it.
        """
        is_interruption = isinstance(error, (BrokenPipeError, Interrupted, KeyboardInterrupt))  # no time to load torch
        if sys.stderr.isatty() or is_interruption or heartbeat_sign(code) != "fail":
            return []
        resolved = self._resolved
        if resolved is None and self._command in WITH_MODEL and not {"-h", "--help", "--print_config"} & {*self._args}:
            with suppress(LightkitError):
                resolved = load_config(self._command, self._args, Problems()).resolved
        if resolved is None or _is_trial(resolved):
            return []
        notifiers: list[Notifier] = []
        with suppress(LightkitError):  # the command has failed already, and prints why
            if self._resolved is None:
                self._open_heartbeat(resolved)
            notifiers = [notifier for _, notifier in build_notifiers(resolved)]
        for notifier in notifiers:
            notifier.send_end(error, job=find_job_name(resolved, self._command, self._args), stage=self._command)
        return notifiers

    def _open_heartbeat(self, resolved: Resolved) -> None:
        if self._is_outermost and HELD not in os.environ and not _is_trial(resolved):
            self._heartbeat = create_heartbeat(resolved)


class _ChildFailed(LightkitError):
    """The command ended with an exit code, and other processes have printed why."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__("\n".join(message.splitlines()[-_NUM_LAST_LINES:]) or f"exit code {code}")
        self.exit_code = code


def create_heartbeat(resolved: Resolved) -> DeadMansSwitch | None:
    """Create the dead-man's switch of a config, if it has one.

    Raises:
        ConfigError: If `run.heartbeat_url` is no address.
    """
    url = _section(resolved, "run").get("heartbeat_url")
    if url is None or (isinstance(url, str) and read_scalar(url) is None):
        return None
    try:
        return DeadMansSwitch(str(url))
    except LightkitError as error:
        raise error_at(str(error), resolved.origin_of("run.heartbeat_url")) from None


def build_notifiers(resolved: Resolved) -> list[tuple[str, Notifier]]:
    """Build the notifiers of a config and nothing else of it, importing torch only where there may be one.

    Returns:
        Each with the name of its entry.

    Raises:
        ConfigError: If one refuses its arguments.
    """
    named, listed = resolved.values.get("callbacks"), _section(resolved, "trainer").get("callbacks")
    entries = {f"callbacks.{name}": entry for name, entry in named.items()} if isinstance(named, dict) else {}
    listed = listed if isinstance(listed, list) else [listed]
    entries |= {f"trainer.callbacks.{number}": entry for number, entry in enumerate(listed)}
    found = []
    for key, entry in entries.items():
        given: dict[str, Any] = entry if isinstance(entry, dict) else {"class_path": entry}
        path = str(given.get("class_path") or "")
        path = path if "." in path else f"lightkit.callbacks.{path}"
        if not path.endswith("Notifier"):
            continue
        # Here: they load torch and Lightning.
        from jsonargparse import ArgumentParser

        from lightkit.callbacks.notifiers import Notifier
        from lightkit.cli.parser_errors import unwrap_errors

        try:
            cls = locate(path)
            if isinstance(cls, type) and not issubclass(cls, Notifier):
                continue
            parser = ArgumentParser(exit_on_error=False)  # since a flag's values are text
            parser.add_subclass_arguments(Notifier, "notifier")
            with unwrap_errors():
                parsed = parser.parse_object({"notifier": {**given, "class_path": path}})
                notifier: Notifier = parser.instantiate_classes(parsed).notifier
        except Exception as error:  # noqa: BLE001 (the class is anybody's)
            reason = resolved.masked(" ".join(str(error).split()))
            text = f"{key}: {path} cannot be built: {type(error).__name__}: {reason}"
            raise error_at(text, resolved.origin_of(key)) from None
        notifier.mask = resolved.masked
        found.append((key.removeprefix("callbacks."), notifier))
    return found


def find_job_name(resolved: Resolved, command: str, args: Sequence[str]) -> str:
    """Return the name of a job, as far as it is known: that of the config, else of its first file."""
    if name := _section(resolved, "run").get("name"):
        return str(name)
    arguments = split_arguments(args, options=options_of(command), takes_inputs=True, problems=Problems())
    return first_file_name(arguments)


def _section(resolved: Resolved, name: str) -> dict[str, Any]:
    """Return a section; an empty one where it is missing, or an error is in its place."""
    section = resolved.values.get(name)
    return section if isinstance(section, dict) else {}


def _is_trial(resolved: Resolved) -> bool:
    """Return whether it is a ``fast_dev_run``, which is no sign of life."""
    value = _section(resolved, "trainer").get("fast_dev_run")
    return bool(read_scalar(value) if isinstance(value, str) else value)
