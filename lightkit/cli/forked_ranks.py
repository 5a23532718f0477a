"""The ranks of a launch on the CPUs of this machine, forked from one process that imports torch.

`python -m lightkit.cli.forked_ranks NUM_RANKS WORDS...`, a program of the supervisor. Lightning's
own launcher has rank 0 start the others: each imports torch and Lightning, one after the other.
Here they are imported once. Only imports happen before the fork, as in the fork server of a sweep:
no tensor is computed, so that OpenMP has no threads, and no device is opened. The ranks have the
variables of Lightning's launcher.
"""

from __future__ import annotations

import os
import runpy
import signal
import socket
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

from lightkit.cli.stage_processes import seed_generators
from lightkit.errors import exit_code_of
from lightkit.launch.process_tree import end_with_parent

_SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP")
    if hasattr(signal, name)
)


def run_ranks(num_ranks: int, words: Sequence[str]) -> int:
    """Import torch and Lightning, fork the ranks, and wait until all of them have ended.

    In a rank it returns the exit code of the command. The process itself ends here, with the code
    of the first rank that has failed, or 0.

    Args:
        num_ranks: Number of ranks.
        words: The command line after `lightkit`, which each rank gets.
    """
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback of the imports

    from lightkit.cli import preload  # noqa: F401 (here: it imports torch, which takes seconds)

    environment = _build_environment(num_ranks)

    # a signal that comes meanwhile waits until each rank is there to get it
    ranks: list[int] = []
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    for rank in range(num_ranks):
        pid = _fork()
        if pid == 0:
            return _run_rank({**environment, "LOCAL_RANK": str(rank)}, words)
        ranks.append(pid)

    def forward(signum: int, _frame: FrameType | None) -> None:
        for each in ranks:
            with suppress(ProcessLookupError):  # it has ended just now
                os.kill(each, signum)

    for signum in _SIGNALS:
        if signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)

    # the wait goes on after a signal
    code = 0
    while ranks:
        pid, status = os.wait()
        ranks.remove(pid)
        ended = os.waitstatus_to_exitcode(status)
        code = code or (128 - ended if ended < 0 else ended)
    os._exit(code)  # it has written nothing, and a million objects need not be freed


def _build_environment(num_ranks: int) -> dict[str, str]:
    """Build the variables that Lightning's launcher gives to all ranks; those of the user stand."""
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NODE_RANK": "0"}
    own = {name: os.environ[name] for name in environment if name in os.environ}
    return {**environment, **own, "WORLD_SIZE": str(num_ranks)}


def _fork() -> int:
    with warnings.catch_warnings():
        # Python 3.12 counts the threads of OpenBLAS, which ends them before a fork by itself
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        return os.fork()


def _run_rank(environment: dict[str, str], words: Sequence[str]) -> int:
    """Run the command of a rank in this new process, and return its exit code."""
    end_with_parent()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    seed_generators()
    os.environ.update(environment)
    sys.argv[:] = ["lightkit", *words]
    try:
        runpy.run_module("lightkit", run_name="__main__")
    except SystemExit as end:
        return exit_code_of(end)
    return 0


if __name__ == "__main__":
    sys.exit(run_ranks(int(sys.argv[1]), sys.argv[2:]))
