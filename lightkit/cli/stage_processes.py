"""Commands of lightkit as processes of their own, forked from one server that has imported torch.

No torch here.
"""

from __future__ import annotations

import atexit
import logging
import math
import multiprocessing
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import NoReturn

import psutil

from lightkit.cli.console import print_error, printed_errors
from lightkit.config import Resolved
from lightkit.errors import Interrupted, exit_code_of, format_interruption
from lightkit.runs.deadline import Deadline

_log = logging.getLogger("lightkit")
_SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP")
    if hasattr(signal, name)
)
OF_STAGES = ["lightkit.cli.preload_stages"]
"""Modules for a fork server of all stages of a retrain."""
OF_TRAINING = ["lightkit.cli.preload"]
"""Modules for a fork server that trains and does nothing else."""
_OF_TEXTS = [
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
]
_LOST_CODE = 255  # of a process whose fork server is gone, in Python 3.11 to 3.14
_POLL_S = 0.1
_LONGEST_ALARM_S = 366 * 86400.0
"""More than a command lasts; a timer takes no year 9999."""
_END_S = 600.0
"""How long a process may take to end once its command is done and has told its code.

In this time Python joins threads and child processes, and trackers upload what they hold, which a
slow network makes long. One of them may hang, as no watchdog watches any more.
"""
_KILL_S = 10.0  # for the end of a process after SIGKILL; one that hangs in the kernel outlives it


def list_packages_of(resolved: Resolved) -> list[str]:
    """List what the model of a config imports beside torch and Lightning, for a fork server."""
    arguments = resolved.section("model").get("init_args")
    encoder = arguments.get("encoder") if isinstance(arguments, Mapping) else None
    return _OF_TEXTS if isinstance(encoder, str) and encoder != "ngrams" else []


class _GivenUp(Exception):
    """A signal or the deadline came while the fork server was imported: no command is running."""


@dataclass(frozen=True)
class _Waiting:
    """A process that waits for its command.

    Args:
        process: The process, which has begun.
        commands: Takes the command; closed without one, it ends the process.
        receiver: Gets the exit code and the last error of the command.
    """

    process: BaseProcess
    commands: Connection
    receiver: Connection

    @property
    def is_alive(self) -> bool:
        """Return whether the process is still there, as far as the fork server tells."""
        return self.process.exitcode is None

    def end(self) -> None:
        """End the process, which has had no command."""
        self.commands.close()
        self.receiver.close()
        self.process.join(_END_S)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join(_KILL_S)


class CommandProcess:
    """One command that runs in a process of its own.

    Args:
        args: The arguments after the program's name.
        process: Its process, which has begun; None where it could not be started.
        receiver: Gets its exit code and its last error.
        reason: Why it could not be started.
        signum: Signal that counts as its end where it could not be started.
        overlaps: Whether it has ended well as soon as it says so, while its process still frees its
            memory.
    """

    def __init__(
        self,
        args: Sequence[str],
        process: BaseProcess | None,
        receiver: Connection | None,
        reason: str = "",
        signum: int = signal.SIGKILL,
        *,
        overlaps: bool = False,
    ) -> None:
        self.args = tuple(args)
        self.reason = reason
        """Why it ended as it did, in its own words; empty if it has printed no error."""
        self.process = process
        self._receiver = receiver
        self._overlaps = overlaps
        self._sent_code: int | None = None
        self._sent_s = math.inf  # when it was received
        self._is_killed = False
        self._code: int | None = None if process is not None else -signum

    @property
    def pid(self) -> int | None:
        """Id of the process."""
        return None if self.process is None else self.process.pid

    @property
    def sources(self) -> list[Connection | int]:
        """Handles for `multiprocessing.connection.wait` of which one is ready at the end.

        None of them is ready before it, as the process would be asked again and again then.
        """
        if self._code is not None or self.process is None:
            return []
        found: list[Connection | int] = []
        if self.process.exitcode is None:  # else its fork server is gone, and it may still run
            found.append(self.process.sentinel)
        if self._overlaps and self._receiver is not None:
            found.append(self._receiver)
        return found

    def send_signal(self, signum: int) -> None:
        """Send a signal, if the process is still there."""
        is_ending = self._overlaps and self.process is not None and self.process.exitcode is None
        if (self._code is None or is_ending) and self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def poll(self, wait_s: float = 0.0) -> int | None:
        """Return the exit code, minus the number of the signal that killed it; None while it runs.

        Args:
            wait_s: Seconds to wait for its end.
        """
        if self._code is not None or self.process is None:
            return self._code
        if self._receive() == 0 and self._overlaps:
            self._code = 0
            return self._code
        self.process.join(wait_s)
        if self._is_running:
            if self.process.exitcode is not None:
                time.sleep(wait_s)
            self._kill_if_late()
            return None
        self._code = self._find_code(self.process.exitcode)
        return self._code

    def _find_code(self, code: int | None) -> int:
        """Return the code of a command by that of its process; None of one that is given up."""
        sent = self._receive()
        if sent is not None and self._is_killed:  # here, after its work
            return sent
        if code == _LOST_CODE or code is None:
            return -signal.SIGKILL if sent is None else sent
        return code

    @property
    def _is_running(self) -> bool:
        """Return whether the process is still there; one that outlives SIGKILL is given up."""
        if self.process is None:
            return False
        code = self.process.exitcode
        if code is None:
            return not self._is_killed
        # The fork server, which alone knows exit codes, is gone where it is this one: ask for the
        # command itself.
        return code == _LOST_CODE and not self._is_killed and is_running(self.pid)

    def is_ending(self) -> bool:
        """Return whether the process of an ended command is still there; kill one that is late."""
        if self._is_running:
            self._kill_if_late()
        return self._is_running

    def _kill_if_late(self) -> None:
        """Kill the process, and those that it has started, if its command has been done for long.

        What it did is done and on record. Only its end hangs.
        """
        if time.monotonic() - self._sent_s < _END_S or self.process is None:
            return
        _log.warning(
            f"the process of `lightkit {self.args[0]}` had not ended {_END_S:g} s after its work"
            " was done, and was killed: a thread or a process that its code has started, or an"
            " exit function, hangs. What it did counts"
        )
        self._is_killed = True
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid or 0, signal.SIGKILL)  # it leads a group: see `run_command`
        self.process.join(_KILL_S)

    def _receive(self) -> int | None:
        """Take what the process has sent, and return its exit code; None where it has sent none."""
        if self._receiver is not None:
            try:
                if not self._receiver.poll():
                    return None
                self._sent_code, self.reason = self._receiver.recv()
                self._sent_s = time.monotonic()
            except (EOFError, OSError):
                pass
            self._receiver.close()
            self._receiver = None
        return self._sent_code

    def end(self) -> None:
        """End the command if it is still running, and wait for its end."""
        if self.process is None:
            return
        self.process.terminate()
        if self.process.exitcode == _LOST_CODE:  # its fork server is gone, so that nothing was sent
            with suppress(ProcessLookupError):
                os.kill(self.pid or 0, signal.SIGTERM)
        while self.poll(_POLL_S) is None:
            pass
        self.wait()

    def wait(self) -> None:
        """Wait for the end of the process of a command that has ended, and kill one that hangs."""
        while self.process is not None and self._is_running:
            self.process.join(_POLL_S)
            if self.process.exitcode is not None:
                time.sleep(_POLL_S)
            self._kill_if_late()


class StageProcesses:
    """Run commands of lightkit and forward signals to the running ones; a context manager.

    Each command is a process, forked from one fork server: a command that crashes or fills the
    memory of a GPU leaves the others alone. Between two commands a signal is remembered. Signals
    that this process was started to ignore are left alone, but for SIGTERM.

    Args:
        preloads: Whether the fork server imports torch, Lightning and MLflow, once for all
            commands.
        modules: The modules that it imports.
        overlaps: Whether a command that has done its work counts as ended while its process still
            frees its memory. It is not for a GPU, whose memory the next command needs.
        deadline: Moment from which no command is waited for that the fork server, which still
            imports, has not started; it does not end one that runs.
    """

    def __init__(
        self,
        *,
        preloads: bool = True,
        modules: Sequence[str] | None = None,
        overlaps: bool = False,
        deadline: Deadline | None = None,
    ) -> None:
        self.received: int | None = None
        """The first signal that came."""
        self.is_late = False
        """Whether the deadline is over."""
        self.reason = ""
        """Why the last command ended as it did, in its own words; empty if it has printed no
        error."""
        self._preloads = preloads and sys.platform == "linux"  # elsewhere torch survives no fork
        self._modules = modules
        self._overlaps = overlaps
        self._deadline = deadline
        self._running: list[CommandProcess] = []
        self._ending: list[CommandProcess] = []  # whose code is known
        self._waiting: _Waiting | None = None
        self._is_starting = False

    def __enter__(self) -> StageProcesses:
        modules = OF_STAGES if self._modules is None else self._modules
        multiprocessing.set_forkserver_preload([*modules] if self._preloads else [])
        handled = [
            each
            for each in _SIGNALS
            if signal.getsignal(each) != signal.SIG_IGN or each == signal.SIGTERM
        ]
        self._before = {signum: signal.signal(signum, self._handle) for signum in handled}
        if self._deadline is not None:
            self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._handle_deadline)
            left_s = min(max(self._deadline.left_s, _POLL_S), _LONGEST_ALARM_S)
            signal.setitimer(signal.ITIMER_REAL, left_s)
        return self

    def __exit__(self, *_: object) -> None:
        if self._waiting is not None:
            self._waiting.end()
            self._waiting = None
        self._wait_for_ending()
        if self._deadline is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _handle(self, signum: int, _frame: FrameType | None) -> None:
        self.received = self.received or signum
        self._give_up_start()
        for each in [*self._running, *self._ending]:
            each.send_signal(signum)

    def _handle_deadline(self, _signum: int, _frame: FrameType | None) -> None:
        self.is_late = True
        self._give_up_start()

    def _give_up_start(self) -> None:
        """End the wait for a command that is being started, where no other one runs.

        Raises:
            _GivenUp: If there is such a wait.
        """
        if self._is_starting and not self._running:
            self._is_starting = False
            raise _GivenUp

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
        sys.stdout.flush()
        try:
            waiting = self._take_waiting()
            with waiting.commands:
                waiting.commands.send(([*args], {**os.environ, **environment}, output))
        except _GivenUp:
            _kill_fork_server()
            return CommandProcess(args, None, None, signum=self.received or signal.SIGKILL)
        except (EOFError, OSError) as error:  # of the connection to the fork server
            reason = (
                f"it could not be started ({type(error).__name__}): the"
                " process that forks it was killed"
            )
            return CommandProcess(args, None, None, reason, self.received or signal.SIGKILL)
        started = CommandProcess(args, waiting.process, waiting.receiver, overlaps=self._overlaps)
        self._running.append(started)
        if self.received is not None:  # while it was being started
            started.send_signal(self.received)
        return started

    def prepare(self) -> None:
        """Fork the process of the next command while another runs, in which it waits.

        Do nothing where one waits already, after a signal or the deadline, and without a fork
        server.
        """
        if self._waiting is None and self.received is None and not self.is_late:
            with suppress(_GivenUp, EOFError, OSError):
                self._waiting = self._fork()

    def _take_waiting(self) -> _Waiting:
        """Return the process that waits for a command, or fork one.

        The exceptions are those of `_fork`.
        """
        waiting = self._waiting
        self._waiting = None
        if waiting is None:
            return self._fork()
        if waiting.is_alive and self.received is None:
            return waiting
        waiting.end()  # killed, as where no memory was left; or a signal has come
        return self._fork()

    def _fork(self) -> _Waiting:
        """Fork a process that waits for its command.

        Raises:
            _GivenUp: If a signal or the deadline has come, and no other command runs.
            EOFError, OSError: If the fork server is gone.
        """
        context = multiprocessing.get_context("forkserver")
        theirs, commands = context.Pipe(duplex=False)
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=run_command, args=(theirs, sender))
        try:
            self._start(process)
        except BaseException:
            commands.close()
            receiver.close()
            raise
        finally:
            self._is_starting = False
            theirs.close()
            sender.close()
        return _Waiting(process, commands, receiver)

    def _start(self, process: BaseProcess) -> None:
        """Start a process by way of the fork server.

        Raises:
            _GivenUp: If a signal or the deadline has come, and no other command runs.
            EOFError, OSError: If the fork server is gone.
        """
        self._is_starting = True
        if self.received is not None or self.is_late:
            self._give_up_start()

        # Blocked in the fork server too, which a signal to all processes of a job must not end: it
        # would seem to be the end of the stage. The tracker, if it is not running yet, would
        # unblock them.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (*_SIGNALS, signal.SIGALRM))
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

        # The server answers once it has imported its modules, which takes seconds. What it forks
        # for a start that was given up ends with this process.
        process.start()
        self._is_starting = False

    def forget(self, process: CommandProcess) -> None:
        """Take a command that has ended from the running ones.

        Its process may still free its memory. Wait for the one before it that did, so that there is
        never more than one; not while other commands run, which must be followed.
        """
        if process in self._running:
            self._running.remove(process)
        if self._overlaps:
            if not self._running:
                self._wait_for_ending()
            self._ending.append(process)

    def _wait_for_ending(self) -> None:
        for each in self._ending:
            each.wait()
        self._ending.clear()

    def wait(self, seconds: float) -> None:
        """Wait until a command ends, for so many seconds at most."""
        self._ending = [each for each in self._ending if each.is_ending()]
        sources = [source for each in self._running for source in each.sources]
        if sources:
            wait(sources, seconds)
        else:
            time.sleep(seconds)

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


def _kill_fork_server() -> None:
    """Kill the fork server, which still imports its modules.

    Until it had, which takes minutes on a crowded machine, it would hold the output of this
    process open, for whose end a pipe or a CI job waits.
    """
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if "multiprocessing.forkserver" in " ".join(child.cmdline()):
                child.kill()


def is_running(pid: int | None) -> bool:
    """Return whether a process runs that is no child of this one."""
    try:
        return pid is not None and psutil.Process(pid).status() not in (
            psutil.STATUS_ZOMBIE,
            psutil.STATUS_DEAD,
        )
    except psutil.NoSuchProcess:
        return False


def run_command(commands: Connection, sender: Connection) -> NoReturn:
    """Run a command of lightkit in this new process, until its parent is gone.

    Args:
        commands: Gets the command, for which this process waits: the arguments after the program's
            name, all variables, and the file to which standard output and error are appended, or
            None. It is closed where no command is left.
        sender: Takes the exit code and the last error that was printed.
    """
    os.setpgid(0, 0)  # so that a terminal's Ctrl-C comes to the parent alone
    # mlflow.pytorch, which the fork server has imported, lets it print errors alone
    root = logging.getLogger()
    root.setLevel(logging.WARNING)
    root.handlers.clear()
    # of the fork server; the stage chooses its own
    multiprocessing.set_start_method(None, force=True)
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        # one that came meanwhile ends it without a traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*_SIGNALS, signal.SIGALRM))
    seed_generators()
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end_with_parent, daemon=True).start()
    with commands:
        try:
            args, environment, output = commands.recv()
        except EOFError:
            sys.exit(0)
    if output is not None:
        _redirect(output)
    os.environ.clear()
    os.environ.update(environment)
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
    _finish_uploads(code)
    with suppress(OSError):  # nobody listens any more
        sender.send((code, reason))
    # before Python 3.13, multiprocessing ends without them
    atexit._run_exitfuncs()
    sys.exit(code)


def seed_generators() -> None:
    """Seed the global generators of numpy and torch in a new process that has been forked.

    They are copies of its parent's: without a seed in the config all processes of one parent would
    draw the same numbers. Python seeds its own by itself.
    """
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()


def _finish_uploads(code: int) -> None:
    """End the run of W&B, if one is open, once all of it is uploaded.

    W&B does so in an exit function, whose end the command does not wait for.
    """
    wandb = sys.modules.get("wandb")
    if wandb is not None and wandb.run is not None:
        wandb.finish(exit_code=code)


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
