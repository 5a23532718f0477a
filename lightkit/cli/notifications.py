"""Send how a command begins and ends.

To its heartbeat address, and through the notifiers among its callbacks.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pydoc import locate
from typing import TYPE_CHECKING, Any

from lightkit.cli.command_line import Invocation
from lightkit.cli.command_table import WITH_MODEL
from lightkit.cli.config_loader import load_config
from lightkit.config import KeyPath, Problems, Resolved, dotted, error_at, read_file, read_scalar
from lightkit.config.interpolation import escape
from lightkit.config.secret_values import NOTIFIER_ADDRESSES
from lightkit.config.secrets import HIDDEN
from lightkit.config.tree import find, to_plain
from lightkit.errors import Interrupted, LightkitError, exit_code_of
from lightkit.launch.ranks import LAUNCH, this_rank
from lightkit.launch.worker import INHERITED
from lightkit.runs import Run
from lightkit.runs.webhook import CLOSE_TIMEOUT_S, DeadMansSwitch, close_all, heartbeat_sign

if TYPE_CHECKING:
    from lightkit.callbacks.notifiers import Notifier

IN_RETRAIN = "_LIGHTKIT_RETRAIN"
"""Environment variable of the stages of a retrain, which prints the closing block; "tested": its
test is new."""
_ADDRESS = "_LIGHTKIT_ADDRESS_"
_NUM_LAST_LINES = 12  # of the error output of other processes, which may end with a traceback
_INTERRUPTED_CLOSE_S = 2.0  # after a signal: this process and its children have 15 s in all


class CommandNotifier:
    """Send the beginning and the end of a command; a context manager around its work.

    Args:
        invocation: The command line; None in a script, whose end nothing sends.
    """

    def __init__(self, invocation: Invocation | None = None) -> None:
        rank = this_rank(os.environ)
        self._invocation = invocation or Invocation("")
        self._command = self._invocation.command
        self._is_first_rank = INHERITED not in os.environ and (rank is None or rank.rank == 0)
        self._is_supervised = LAUNCH in os.environ  # by a process that sends what goes wrong here
        # which sends one message for all its trials
        self._is_of_sweep = "trial" in self._invocation.options
        self._heartbeat: DeadMansSwitch | None = None
        self._resolved: Resolved | None = None
        self._job_name = ""
        self._notifiers: Sequence[Notifier] = ()  # those of the trainer, once there is one
        self.code = 0
        """Exit code of an end that is no exception here."""
        self.message = ""
        """Error output of such an end."""
        self.run: Run | None = None
        """The run of the command, once it has begun."""
        self.has_sent_end = False
        """Whether other processes have sent the end."""
        self.sends_each_end = False
        """Whether each end without a trainer is sent, and not only a failure that no terminal has
        shown."""
        self.known: dict[str, Any] = {}
        """Fields of the message of such an end."""

    def __enter__(self) -> CommandNotifier:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: object
    ) -> None:
        if error is None and self.code:
            error = _ChildFailed(self.message, self.code)
        with suppress(Interrupted, KeyboardInterrupt):  # the work is over already
            self.send_end(error)

    def begin(self, resolved: Resolved, job_name: str, *, runs_stage: bool) -> None:
        """Send the beginning: the config is known.

        Args:
            resolved: The config.
            job_name: Name of the job.
            runs_stage: Whether a stage runs, and not only help or the config is printed.

        Raises:
            ConfigError: If `run.heartbeat_url` is no address.
        """
        self._resolved = resolved
        self._job_name = job_name
        if runs_stage:
            self._open_heartbeat(resolved)
        if self._heartbeat is not None:
            self._heartbeat.send("start")

    def adopt(self, notifiers: Sequence[Notifier], resolved: Resolved) -> None:
        """Send the end of the command with the trainer's notifiers.

        Args:
            notifiers: Those among the trainer's callbacks.
            resolved: The config, which masks secrets.
        """
        for notifier in notifiers:
            notifier.mask = resolved.masked
            if self._is_of_sweep:
                notifier.mute()
        is_silent = self._is_of_sweep or not self._is_first_rank or _is_trial(resolved)
        self._notifiers = () if is_silent else notifiers

    def send_end(self, error: BaseException | None, *, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Send the end through the trainer's notifiers, or the config's; wait for answers.

        Args:
            error: What ended the command; None where all is well.
            timeout_s: Seconds to wait; fewer after a signal.
        """
        sign = heartbeat_sign(0 if error is None else exit_code_of(error))
        senders = [notifier.sender for notifier in self._notify(error, sign)]
        if self._heartbeat is not None:
            text = _describe_end(error)
            text = text if self._resolved is None else self._resolved.masked(text)
            self._heartbeat.send(sign, text)
            senders.append(self._heartbeat.sender)
        if isinstance(error, (Interrupted, KeyboardInterrupt)):
            timeout_s = min(timeout_s, _INTERRUPTED_CLOSE_S)
        close_all(senders, timeout_s)

    def _notify(self, error: BaseException | None, sign: str | None) -> Sequence[Notifier]:
        """Send the end through the notifiers of this process, and return them."""
        if self._is_supervised and sign == "fail":  # which the supervisor sends
            return self._notifiers
        for notifier in self._notifiers:
            notifier.send_end(error)
        if self._notifiers or self.has_sent_end or not self._is_first_rank:
            return self._notifiers
        return self._send_without_trainer(error, sign)

    def _send_without_trainer(
        self, error: BaseException | None, sign: str | None
    ) -> list[Notifier]:
        """Send a failure from before there was a trainer, unless a terminal has shown it.

        Send the end of a sweep, too.

        Returns:
            The notifiers that were built for it.
        """
        # no time to load torch
        is_interruption = isinstance(error, (BrokenPipeError, Interrupted, KeyboardInterrupt))
        is_unseen_failure = sign == "fail" and not sys.stderr.isatty()
        if is_interruption or self._is_of_sweep or not (self.sends_each_end or is_unseen_failure):
            return []
        notifiers: list[Notifier] = []
        with suppress(LightkitError):  # the command has failed already, and prints why
            self._load_config()
            if self._resolved is not None and not _is_trial(self._resolved):
                notifiers = [notifier for _, notifier in build_notifiers(self._resolved)]
        for notifier in notifiers:
            notifier.send_end(
                error, **{"job": self._job_name, "stage": self._command, **self.known}
            )
        return notifiers

    def _load_config(self) -> None:
        """Load the config of a command that has ended before it did, unless it only prints."""
        only_prints = self._invocation.passthrough or self._invocation.has("print_config")
        if self._resolved is None and self._command in WITH_MODEL and not only_prints:
            loaded = load_config(self._invocation, Problems())
            self._resolved = loaded.resolved
            self._job_name = loaded.job_name
            self._open_heartbeat(loaded.resolved)

    def _open_heartbeat(self, resolved: Resolved) -> None:
        # of a retrain
        is_outermost = (
            self._is_first_rank and not self._is_supervised and IN_RETRAIN not in os.environ
        )
        if is_outermost and not self._is_of_sweep and not _is_trial(resolved):
            self._heartbeat = create_heartbeat(resolved)


def _describe_end(error: BaseException | None) -> str:
    """Return the text of a heartbeat: an error in one line, of lightkit's own as it is."""
    if error is None or isinstance(error, LightkitError):
        return str(error or "")
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


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
    url = resolved.section("run").get("heartbeat_url")
    if read_scalar(url) is None:
        return None
    try:
        return DeadMansSwitch(str(url))
    except LightkitError as error:
        raise error_at(str(error), resolved.origin_of("run.heartbeat_url")) from None


def build_notifiers(resolved: Resolved) -> list[tuple[str, Notifier]]:
    """Build the notifiers of a config and nothing else of it.

    Import torch only where there may be one.

    Returns:
        Each with the name of its entry.

    Raises:
        ConfigError: If one refuses its arguments.
    """
    found = []
    for place, entry in resolved.entries_of("callbacks").items():
        if (path := _notifier_class(entry)) is None:
            continue
        given: dict[str, Any] = entry if isinstance(entry, dict) else {"class_path": entry}
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
            text = f"{dotted(place)}: {path} cannot be built: {type(error).__name__}: {reason}"
            raise error_at(text, resolved.origin_of(place)) from None
        notifier.mask = resolved.masked
        found.append((dotted(place).removeprefix("callbacks."), notifier))
    return found


def _notifier_class(entry: Any) -> str | None:
    """Return the class path of an entry of the callbacks if its name is a notifier's, else None."""
    path = str((entry.get("class_path") if isinstance(entry, dict) else entry) or "")
    path = path if "." in path else f"lightkit.callbacks.{path}"
    return path if path.endswith("Notifier") else None


def pass_on_notifiers(resolved: Resolved) -> tuple[list[str], dict[str, str]]:
    """Return flags and variables that give a later stage the notifiers of this config.

    The config of a run holds ``***`` in the place of an address that is written in the config. What
    is secret is passed in the environment, since other users of a machine can read the arguments of
    a process.
    """
    environment: dict[str, str] = {}

    def refer(value: Any, path: KeyPath) -> Any:
        """Return a value as it can be read again.

        What came from the environment, or is secret, as a reference.
        """
        reference = resolved.references.get(path)
        if reference is not None and HIDDEN not in reference:
            return reference
        if reference is not None and isinstance(value, str):
            name = f"{_ADDRESS}{len(environment)}"
            environment[name] = value
            return f"${{oc.env:{name}}}"
        if isinstance(value, dict):
            return {key: refer(child, (*path, key)) for key, child in value.items()}
        if isinstance(value, list):
            return [refer(child, (*path, index)) for index, child in enumerate(value)]
        return escape(value) if isinstance(value, str) else value

    flags = []
    for name, entry in resolved.section("callbacks").items():
        if _notifier_class(entry) is not None:
            key = ("callbacks", name)
            flags.append(f"--{dotted(key)}={json.dumps(refer(entry, key))}")
    own = resolved.section("trainer").get("callbacks")
    listed = own if isinstance(own, list) else [own]
    if any(_notifier_class(entry) is not None for entry in listed):
        flags.append(f"--trainer.callbacks={json.dumps(refer(own, ('trainer', 'callbacks')))}")
    return flags, environment


def warn_of_lost_addresses(resolved: Resolved, run: Run) -> None:
    """Warn of notifiers that send nothing.

    The run's saved config has ``***`` in the place of their address.

    Args:
        resolved: The config of this command, in which such an address is null.
        run: The run whose config it is.
    """
    saved = read_file(run.config_path)
    for path, entry in resolved.entries_of("callbacks").items():
        if _notifier_class(entry) is None or not isinstance(entry, dict):
            continue
        arguments = entry.get("init_args") or {}
        for key in NOTIFIER_ADDRESSES:
            before = to_plain(find(saved, (*path, "init_args", key)))
            if key in arguments and arguments[key] is None and HIDDEN in str(before):
                logging.getLogger("lightkit").warning(
                    "%s sends nothing: its %s is written in the config, and a run keeps"
                    " no secret; write ${oc.env:NAME} there and set the variable, or give"
                    " --%s.%s=ADDRESS",
                    *(dotted(path), key, dotted(path), key),
                )


def _is_trial(resolved: Resolved) -> bool:
    """Return whether it is a ``fast_dev_run``, which is no sign of life."""
    return bool(read_scalar(resolved.section("trainer").get("fast_dev_run")))
