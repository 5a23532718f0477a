"""Fork a `lightkit` process for each request, from a process that has the heavy imports already.

A cold `lightkit fit` spends 5 to 10 s of processor time on importing torch, Lightning, torchmetrics
and MLflow. This server imports them once, and lightkit with them, then forks: each child gets a
session and process group, working directory, environment and standard streams of its own, runs the
installed `lightkit` script (or a Python script) as `__main__`, receives real signals and ends as
any process does, with its real exit code.

It cannot show:

- what an import costs, in which order modules are imported, and which are not imported at all;
- variables that are read once when a library is imported: `OMP_NUM_THREADS`, `MALLOC_*`,
  `ATEN_CPU_CAPABILITY`, `CUDA_VISIBLE_DEVICES`, `PYTHON*`, and `HOME` where a library keeps it from
  its import;
- `python -m lightkit`, what happens to a signal while Python starts, and what Python does after its
  exit functions.

Tests about those use `Workspace.run_cold`. Processes that a child starts itself (ranks of a
launcher, workers with `spawn`, the verification of exports) are new Python processes here as
anywhere, but for two, which are forks of the command and import then what lightkit asks them to,
most of which is there: the server from which `retrain` and `sweep` fork their stages, and the
process that forks the ranks of `ddp` on CPUs.

Protocol on the UNIX socket that is the only argument: one connection a process; a message with the
request as JSON and three file descriptors (standard input, output, error); then two lines back, the
process's id, and its wait status.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import logging
import multiprocessing
import os
import pkgutil
import selectors
import signal
import socket
import subprocess
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import forkserver, resource_tracker, util
from pathlib import Path
from typing import Any, NoReturn

THIRD_PARTY = (
    "torch",
    "torch.utils.tensorboard",
    "torch.distributed",
    "torchvision",
    "torchmetrics",
    "pytorch_lightning",
    "pytorch_lightning.cli",
    "pytorch_lightning.loggers",
    "torch.export._trace",  # what an export, a registration and a report import when they begin
    "torch._export.serde.serialize",
    "torch._functorch.aot_autograd",
    "torch._inductor.ir",
    "torch.onnx",
    "onnxscript",
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
    "mlflow",
    "mlflow.tracking",
    "mlflow.pyfunc",
    "mlflow.pytorch",
    "mlflow.store.tracking.sqlalchemy_workspace_store",
    "mlflow.store.model_registry.sqlalchemy_workspace_store",
    "alembic.command",
    "git",
    "jinja2",
    "pandas",
    "pyarrow.parquet",
    "pyarrow.dataset",
    "omegaconf",
    "rich.progress",
)
UNFORKABLE = ("onnxruntime", "triton")
"""Not imported here: a fork waits forever for the thread of the first, and the second reports leaks
as it ends."""

STAGES = {"retrain": "lightkit.cli.preload_stages", "sweep": "lightkit.cli.preload"}
"""Commands that fork stages from a server, and the module with its imports."""
RANKS = "lightkit.cli.forked_ranks"
"""Module of the process that forks ranks; the command starts it with `python -m`."""
STAGE_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
"""Signals that the server of stages does not hear, as where lightkit starts it."""
MOST_FILES = 4096
"""More than a process here opens."""


def main(address: str) -> None:
    """Serve until the socket's file is removed or the parent has ended.

    Args:
        address: File of the UNIX socket to listen on.
    """
    importing_path = list(sys.path)
    for name in UNFORKABLE:
        sys.modules[name] = None  # type: ignore[assignment] # imports of it fail as if it were not installed
    for name in THIRD_PARTY:
        with contextlib.suppress(ImportError):  # an extra that is not installed
            importlib.import_module(name)
    package = importlib.import_module("lightkit")
    for module in pkgutil.walk_packages(package.__path__, "lightkit."):
        if not module.name.endswith(("__main__", "preload", "preload_stages")):
            # needs an extra that is not installed, or onnxruntime
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)
    for name in UNFORKABLE:
        del sys.modules[name]
    _fill_caches()
    logging.getLogger().handlers.clear()  # an import adds one, and sets the level to that of errors
    logging.getLogger().setLevel(logging.WARNING)
    sys.path[:] = importing_path
    gc.collect()
    # else each fork spends a second on collecting at its end what it shares with this process
    gc.freeze()
    # else each fork takes back at its end what torch has registered here: a tenth of a second
    for finalizer in [*weakref.finalize._registry]:  # type: ignore[attr-defined]
        finalizer.atexit = False
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{address}.new")
        listener.listen(64)
        Path(f"{address}.new").rename(address)  # who sees the file can connect
        with contextlib.closing(selectors.DefaultSelector()) as selector:
            return _serve(listener, selector)


def _fill_caches() -> None:
    """Compute what a process computes once.

    Of lightkit: the schema, and the parser of a fit, as the server does from which `retrain` and
    `sweep` fork, and the templates of pages; a quarter of a second of processor time each. Of
    MLflow: tables' relations and the packages of modules, half a second and two.
    """
    pages = importlib.import_module("lightkit.reports.pages").environment()
    for name in pages.list_templates(extensions=["html", "md"]):
        pages.get_template(name)
    importlib.import_module("lightkit.config.schema").load_schema()
    importlib.import_module("lightkit.cli.lightning_cli").prepare_parser()
    with contextlib.suppress(ImportError):
        importlib.import_module("sqlalchemy.orm").configure_mappers()
    with contextlib.suppress(ImportError, AttributeError):  # the function is MLflow's own
        importlib.import_module("mlflow.utils.requirements_utils")._init_packages_to_modules_map()


def _serve(listener: socket.socket, selector: selectors.BaseSelector) -> None:
    parent = os.getppid()
    children: dict[int, tuple[int, socket.socket]] = {}
    selector.register(listener, selectors.EVENT_READ)
    while os.getppid() == parent:
        for key, _ in selector.select(timeout=2):
            if key.fileobj is listener:
                connection, _ = listener.accept()
                message, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
                pid = os.fork()
                if pid == 0:
                    selector.close()
                    listener.close()
                    for pidfd, (_, other) in children.items():
                        os.close(pidfd)
                        other.close()
                    connection.close()
                    _become_process(json.loads(message), streams)
                for stream in streams:
                    os.close(stream)
                pidfd = os.pidfd_open(pid)
                children[pidfd] = (pid, connection)
                selector.register(pidfd, selectors.EVENT_READ)
                _send(connection, pid)
            else:
                assert isinstance(key.fileobj, int)
                selector.unregister(key.fileobj)
                pid, connection = children.pop(key.fileobj)
                _, status = os.waitpid(pid, 0)
                os.close(key.fileobj)
                _send(connection, status)
                connection.close()
    return


def _send(connection: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # the test has ended already
        connection.sendall(f"{number}\n".encode())


def _become_process(request: dict[str, object], streams: list[int]) -> NoReturn:
    """Make this fork look like a new process, and run what was asked for to its end."""
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number, inheritable=True)
        os.close(stream)
    environ, words, folder = request["environ"], request["words"], request["folder"]
    assert isinstance(environ, dict)
    assert isinstance(words, list)
    assert isinstance(folder, str)
    os.chdir(folder)
    subprocess.Popen = _with_forked_ranks(sys.path[1:])  # type: ignore[misc, assignment]
    _run_program(words, environ, [str(Path(words[0]).absolute().parent), *sys.path[1:]])


def _run_program(
    words: Sequence[str], environ: Mapping[str, str], importing_path: list[str]
) -> NoReturn:
    """Run a Python script as the main module of this process, to its end.

    Args:
        words: The script and its arguments.
        environ: All variables.
        importing_path: `sys.path`, but for the folders of `PYTHONPATH`.
    """
    for signum in (
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGURG,
    ):
        signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environ)
    sys.path[:] = importing_path
    if os.environ.get("PYTHONPATH"):
        sys.path[1:1] = [
            str(Path(entry).absolute()) for entry in os.environ["PYTHONPATH"].split(os.pathsep)
        ]
    # Opened anew, since a standard stream's encoding and buffering follow what it is connected to.
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # type: ignore[misc] # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(  # type: ignore[misc] # noqa: SIM115
        1, "w", encoding="utf-8", closefd=False, buffering=1 if os.isatty(1) else -1
    )
    sys.stderr = sys.__stderr__ = open(  # type: ignore[misc] # noqa: SIM115
        2, "w", encoding="utf-8", errors="backslashreplace", closefd=False, buffering=1
    )
    sys.argv[:] = words
    _reseed()
    main_module = types.ModuleType("__main__")
    main_module.__file__ = words[0]
    main_module.__spec__ = None
    main_module.__builtins__ = __builtins__  # type: ignore[attr-defined]
    sys.modules["__main__"] = main_module
    if words[1:2] and words[1] in STAGES:
        _start_server_of_stages(STAGES[words[1]])
    code = compile(Path(words[0]).read_text(encoding="utf-8"), words[0], "exec")
    try:
        exec(code, main_module.__dict__)
        _end(0)
    except SystemExit as error:
        if error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
        _end(error.code if isinstance(error.code, int) else int(error.code is not None))
    except BaseException as error:  # noqa: BLE001 (as Python does with what nothing catches)
        sys.excepthook(type(error), error, error.__traceback__)
        _end(1)


def _with_forked_ranks(importing_path: list[str]) -> type[subprocess.Popen[bytes]]:
    """Return `Popen` that starts the process of `RANKS` as a fork of this process.

    Args:
        importing_path: `sys.path` of a new process without the folder of its script.
    """
    hooks = (sys.excepthook, threading.excepthook, warnings.showwarning, [*warnings.filters])

    class Popen(subprocess.Popen[bytes]):
        def __init__(self, args: Any, *more: Any, **options: Any) -> None:
            if isinstance(args, list) and args[:3] == [sys.executable, "-m", RANKS]:
                prepare, environ = options["preexec_fn"], options["env"]
                # Python runs it in the new process, which has its streams and its folder by then
                options["preexec_fn"] = lambda: fork_ranks(args[3:], environ, prepare)
            super().__init__(args, *more, **options)

    def fork_ranks(
        words: Sequence[str], environ: Mapping[str, str], prepare: Callable[[], None]
    ) -> NoReturn:
        prepare()
        # one of them is the pipe on which the command waits for the new program
        os.closerange(3, MOST_FILES)
        sys.excepthook, threading.excepthook, warnings.showwarning = hooks[:3]
        warnings.filters[:] = hooks[3]  # type: ignore[index]
        logging.getLogger("lightkit").handlers.clear()
        # what the command does at its end is not for its ranks
        atexit._clear()
        atexit.register(util._exit_function)  # type: ignore[attr-defined]
        atexit.register(logging.shutdown)
        script = importlib.import_module(RANKS).__file__
        _run_program([str(script), *words], environ, [str(Path.cwd()), *importing_path])

    return Popen


def _start_server_of_stages(module: str) -> None:
    """Start the fork server of `multiprocessing` as a fork of this process.

    Args:
        module: What it imports.
    """
    multiprocessing.set_forkserver_preload([module])
    resource_tracker.ensure_running()
    original = util.spawnv_passfds
    util.spawnv_passfds = _fork_passfds
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STAGE_SIGNALS)
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        util.spawnv_passfds = original


def _fork_passfds(path: Any, args: Sequence[Any], passfds: Sequence[int]) -> int:
    """Fork a process in place of starting a new Python with `-c`; return its id.

    Args:
        path: The Python program.
        args: Its arguments, the last of which is the text to run.
        passfds: The only files that stay open, beside the standard streams.
    """
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        kept = sorted({0, 1, 2, *passfds})
        for first, last in zip(kept, [*kept[1:], MOST_FILES], strict=True):
            os.closerange(first + 1, last)
        importlib.reload(forkserver)  # its lock is held by the caller
        exec(args[-1], {})
        code = 0
    except SystemExit:
        code = 0
    except BaseException:  # noqa: BLE001 (as Python does with what nothing catches)
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def _end(code: int) -> NoReturn:
    """End as Python does, but for deleting the modules, which takes half a second of the CPU."""
    threading._shutdown()  # type: ignore[attr-defined] # waits for threads that are no daemons
    atexit._run_exitfuncs()
    try:
        if sys.stdout is not None:  # closed when the process was started
            sys.stdout.flush()
    except (OSError, ValueError):
        code = code or 120
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.flush()
    os._exit(code & 0xFF)


def _reseed() -> None:
    """Give each process random numbers of its own, as a new process has.

    Python's own module does so by itself.
    """
    import numpy as np
    import torch

    torch.seed()
    np.random.seed()


if __name__ == "__main__":
    main(sys.argv[1])
