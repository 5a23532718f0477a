"""Commands of lightkit as processes of their own, forked from one server that has imported torch.

No torch here.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import NoReturn

import psutil

from lightkit.cli.console import print_error, printed_errors
from lightkit.errors import Interrupted, exit_code_of, format_interruption

_SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP")
    if hasattr(signal, name)
)
_PRELOAD = [
    *("lightkit.cli.lightning_cli", "lightkit.cli.model_export", "lightkit.cli.gate_evaluation"),
    *("lightkit.cli.registration", "mlflow.pytorch"),
]  # not onnxruntime: a fork waits forever for its threads
OF_TRAINING = ["lightkit.cli.lightning_cli"]
"""Modules for a fork server that trains and does nothing else."""
_LOST_CODE = 255  # of a process whose fork server is gone, in Python 3.11 to 3.14
_POLL_S = 0.1


class _GivenUp(Exception):
    """A signal came while the fork server was imported: no command is running."""


class CommandProcess:
    """One command that runs in a process of its own.

    Args:
        args: The arguments after the program's name.
        process: Its process, which has begun; None where it could not be started.
        receiver: Gets its exit code and its last error.
        reason: Why it could not be started.
        signum: Signal that counts as its end where it could not be started.
    """

    def __init__(
        self,
        args: Sequence[str],
        process: BaseProcess | None,
        receiver: Connection | None,
        reason: str = "",
        signum: int = signal.SIGKILL,
    ) -> None:
        self.args = tuple(args)
        self.reason = reason
        """Why it ended as it did, in its own words; empty if it has printed no error."""
        self.process = process
        self._receiver = receiver
        self._code: int | None = None if process is not None else -signum

    @property
    def pid(self) -> int | None:
        """Id of the process."""
        return None if self.process is None else self.process.pid

    def send_signal(self, signum: int) -> None:
        """Send a signal, if the process is still there."""
        if self._code is None and self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def poll(self, wait_s: float = 0.0) -> int | None:
        """Return the exit code, minus the number of the signal that killed it; None while it runs.

        Args:
            wait_s: Seconds to wait for its end.
        """
        if self._code is not None or self.process is None:
            return self._code
        self.process.join(wait_s)
        code = self.process.exitcode
        if code is None:
            return None
        # The fork server, which alone knows exit codes, is gone where it is this one: wait for the
        # command itself.
        if code == _LOST_CODE and is_running(self.pid):
            time.sleep(wait_s)
            return None
        self._code = self._receive(code)
        return self._code

    def _receive(self, code: int) -> int:
        """Take what the process has sent, and return its exit code."""
        assert self._receiver is not None
        with self._receiver, suppress(EOFError, OSError):
            if self._receiver.poll():
                sent, self.reason = self._receiver.recv()
                return int(sent) if code == _LOST_CODE else code
            if code == _LOST_CODE:
                return -signal.SIGKILL
        return code

    def end(self) -> None:
        """End the command if it is still running, and wait for its end."""
        if self.process is None:
            return
        self.process.terminate()
        self.process.join()
        if is_running(self.pid):  # its fork server is gone, so that nothing was sent
            with suppress(ProcessLookupError):
                os.kill(self.pid or 0, signal.SIGTERM)
        while is_running(self.pid):
            time.sleep(_POLL_S)


class StageProcesses:
    """Run commands of lightkit and forward signals to the running ones; a context manager.

    Each command is a process, forked from one fork server: a command that crashes or fills the
    memory of a GPU leaves the others alone. Between two commands a signal is remembered. Signals
    that this process was started to ignore are left alone, but for SIGTERM.

    Args:
        preloads: Whether the fork server imports torch, Lightning and MLflow, once for all
            commands.
        modules: The modules that it imports.
    """

    def __init__(self, *, preloads: bool = True, modules: Sequence[str] | None = None) -> None:
        self.received: int | None = None
        """The first signal that came."""
        self.reason = ""
        """Why the last command ended as it did, in its own words; empty if it has printed no
        error."""
        self._preloads = preloads and sys.platform == "linux"  # elsewhere torch survives no fork
        self._modules = modules
        self._running: list[CommandProcess] = []
        self._is_starting = False

    def __enter__(self) -> StageProcesses:
        modules = _PRELOAD if self._modules is None else self._modules
        multiprocessing.set_forkserver_preload([*modules] if self._preloads else [])
        handled = [
            each
            for each in _SIGNALS
            if signal.getsignal(each) != signal.SIG_IGN or each == signal.SIGTERM
        ]
        self._before = {signum: signal.signal(signum, self._handle) for signum in handled}
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _handle(self, signum: int, _frame: FrameType | None) -> None:
        self.received = self.received or signum
        if self._is_starting and not self._running:
            self._is_starting = False
            raise _GivenUp
        for each in self._running:
            each.send_signal(signum)

    def start(
        self, args: Sequence[str], environment: Mapping[str, str], *, output: Path | None = None
    ) -> CommandProcess:
        """Start a command.

        It gets SIGTERM if this process is killed. If the fork server is killed, which has as much
        memory as torch takes, the command goes on without it.

        Args:
            args: The arguments after the program's name.
            environment: Variables in addition to those of this process.
            output: File to which standard output and error are appended; without one they are those
                of this process, and a terminal stays one.
        """
        context = multiprocessing.get_context("forkserver")
        receiver, sender = context.Pipe(duplex=False)
        everything = {**os.environ, **environment}
        process = context.Process(target=run_command, args=([*args], everything, sender, output))
        sys.stdout.flush()

        try:
            self._start(process)
        except _GivenUp:
            receiver.close()
            return CommandProcess(args, None, None, signum=self.received or signal.SIGKILL)
        except (EOFError, OSError) as error:  # of the connection to the fork server
            receiver.close()
            reason = (
                f"it could not be started ({type(error).__name__}): the"
                " process that forks it was killed"
            )
            return CommandProcess(args, None, None, reason, self.received or signal.SIGKILL)
        finally:
            self._is_starting = False
            sender.close()
        started = CommandProcess(args, process, receiver)
        self._running.append(started)
        if self.received is not None:  # while it was being started
            started.send_signal(self.received)
        return started

    def _start(self, process: BaseProcess) -> None:
        """Start a process by way of the fork server.

        Raises:
            _GivenUp: If a signal has come, and no other command runs that it concerns.
            EOFError, OSError: If the fork server is gone.
        """
        self._is_starting = True
        if self.received is not None and not self._running:
            raise _GivenUp

        # Blocked in the fork server too, which a signal to all processes of a job must not end: it
        # would seem to be the end of the stage. The tracker, if it is not running yet, would
        # unblock them.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

        # The server answers once it has imported its modules, which takes seconds. What it forks
        # for a start that was given up ends with this process.
        process.start()
        self._is_starting = False

    def forget(self, process: CommandProcess) -> None:
        """Forward no signal to a command any more, which has ended."""
        if process in self._running:
            self._running.remove(process)

    def run(
        self, args: Sequence[str], environment: Mapping[str, str], on_poll: Callable[[], None]
    ) -> int:
        """Run a command and return its exit code; minus the number of the signal that killed it.

        It shares standard output and error.

        Args:
            args: The arguments after the program's name.
            environment: Variables in addition to those of this process.
            on_poll: Called again and again, and once more after the end.
        """
        self.reason = ""
        process = self.start(args, environment)
        code = None
        try:
            while code is None:
                code = process.poll(_POLL_S)
                on_poll()
        finally:
            process.end()  # after an error here, such as a closed pipe; else it has ended
            self.forget(process)
        self.reason = process.reason

        # A signal that came before the command handled any has ended it without a word.
        if self.received is not None and code == -self.received:
            stage = args[0] if args[0] != "fit" else ""
            self.reason = format_interruption(Interrupted(self.received), stage=stage)
            print_error(self.reason)
        return code


def is_running(pid: int | None) -> bool:
    """Return whether a process runs that is no child of this one."""
    try:
        return pid is not None and psutil.Process(pid).status() not in (
            psutil.STATUS_ZOMBIE,
            psutil.STATUS_DEAD,
        )
    except psutil.NoSuchProcess:
        return False


def run_command(
    args: Sequence[str],
    environment: Mapping[str, str],
    sender: Connection,
    output: Path | None = None,
) -> NoReturn:
    """Run a command of lightkit in this new process, until its parent is gone.

    Args:
        args: The arguments after the program's name.
        environment: All variables.
        sender: Takes the exit code and the last error that was printed.
        output: File to which standard output and error are appended.
    """
    os.setpgid(0, 0)  # so that a terminal's Ctrl-C comes to the parent alone
    # mlflow.pytorch, which the fork server has imported, lets it print errors alone
    root = logging.getLogger()
    root.setLevel(logging.WARNING)
    root.handlers.clear()
    if output is not None:
        _redirect(output)
    # of the fork server; the stage chooses its own
    multiprocessing.set_start_method(None, force=True)
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        # one that came meanwhile ends it without a traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    os.environ.clear()
    os.environ.update(environment)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end_with_parent, daemon=True).start()
    sys.argv[1:] = args
    if args[0] != "fit":
        Interrupted.stage = args[0]
    code = 1
    reason = ""
    try:
        runpy.run_module("lightkit", run_name="__main__")
    except SystemExit as end:
        code = exit_code_of(end)
        reason = printed_errors[-1].removeprefix("error: ") if printed_errors and code else ""
    except Exception as error:  # noqa: BLE001 (reported as Python itself does)
        sys.excepthook(*sys.exc_info())
        reason = " ".join(f"{type(error).__name__}: {error}".split())
    with suppress(OSError):  # nobody listens any more
        sender.send((code, reason))
    sys.exit(code)


def _redirect(output: Path) -> None:
    """Append standard output and error to a file; standard input has nothing."""
    output.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (descriptor, 1), (descriptor, 2)):
        os.dup2(source, target)
    os.close(descriptor)
    os.close(nothing)


def describe_kill(signum: int, reason: str = "") -> str:
    """Write what has killed a process, and the likely cause.

    Args:
        signum: The signal.
        reason: What is known beside that.
    """
    likely = {
        signal.SIGKILL: (
            "most likely no memory was left, of this machine or within the limit of the container"
            " or job; a smaller batch_size or fewer num_workers need less, and the kernel's log"
            " (dmesg) says what was killed"
        ),
        signal.SIGBUS: "most likely shared memory (/dev/shm) or a disk is full",
        signal.SIGXCPU: "the limit of processor time is reached",
    }
    cause = likely.get(signal.Signals(signum), "most likely native code has crashed")
    return f"{reason or f'killed by {signal.Signals(signum).name}'}: {cause}"
