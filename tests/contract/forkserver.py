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
anywhere, but for those that are forks of the process that starts them and import then what lightkit
asks them to, most of which is there: the server from which `retrain` and `sweep` fork their stages,
the ranks of `ddp` on CPUs and of torchrun with the process that starts them, the migration of an
MLflow database, and the process in which a file that torch runs is proved, which begins without the
modules that a proof must not load. MLflow copies the tables of a new database in place of making
them. With `NO_SHORTCUTS` in the environment, all but the server of stages are new processes, and
tables are made.

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
import sqlite3
import subprocess
import sys
import tempfile
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from multiprocessing import forkserver, resource_tracker, util
from pathlib import Path
from typing import Any, NoReturn

THIRD_PARTY = (
    "torch",
    "torch.utils.tensorboard",
    "torch.distributed",
    "torch.distributed.run",
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
    "onnxscript.function_libs.torch_lib.ops",
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
    "wandb",
    "wandb.sdk.launch",  # what a run of W&B imports when it begins
)
UNFORKABLE = ("onnxruntime", "triton")
"""Not imported here: a fork waits forever for the thread of the first, and the second reports leaks
as it ends."""

STAGES = {"retrain": "lightkit.cli.preload_stages", "sweep": "lightkit.cli.preload"}
"""Commands that fork stages from a server, and the module with its imports."""
MODULES = ("lightkit", "lightkit.cli.forked_ranks", "mlflow", "torch.distributed.run")
"""Modules that processes of lightkit and torchrun start with `python -m`: ranks and what starts
them, and the migration of a database."""
STAGE_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
"""Signals that the server of stages does not hear, as where lightkit starts it."""
PROOF = "lightkit.export.formats"
"""Module whose file is the script that proves an exported file."""
UNLOADED = ("lightkit", "onnxruntime", "pytorch_lightning", "torchvision")
"""Packages that a proof begins without: it lists those that the file has loaded."""
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

    Of lightkit: the schema, the parser of a fit and the versions of packages, as the server does
    from which `retrain` and `sweep` fork, and the templates of pages; a quarter of a second of
    processor time each. Of MLflow: the relations of tables, the packages of modules and the tables
    of a new database, half a second, two and one.
    """
    pages = importlib.import_module("lightkit.reports.pages").environment()
    for name in pages.list_templates(extensions=["html", "md"]):
        pages.get_template(name)
    importlib.import_module("lightkit.config.schema").load_schema()
    importlib.import_module("lightkit.cli.lightning_cli").prepare_parser()
    importlib.import_module("lightkit.hardware").describe_packages()
    with contextlib.suppress(ImportError):
        importlib.import_module("sqlalchemy.orm").configure_mappers()
    with contextlib.suppress(ImportError, AttributeError):  # the functions are MLflow's own
        importlib.import_module("mlflow.utils.requirements_utils")._init_packages_to_modules_map()
        _copy_tables()


def _copy_tables() -> None:
    """Have MLflow fill a new SQLite database with a copy of its tables, made here once.

    Its dozens of migrations take a second of processor time in each run root.
    """
    utils: Any = importlib.import_module("mlflow.store.db.utils")
    sqlalchemy: Any = importlib.import_module("sqlalchemy")
    original = utils._initialize_tables
    with tempfile.TemporaryDirectory() as folder:
        engine = sqlalchemy.create_engine(f"sqlite:///{folder}/mlflow.db")
        original(engine)
        engine.dispose()
        with contextlib.closing(sqlite3.connect(f"{folder}/mlflow.db")) as made:
            content = made.serialize()

    def initialize(engine: Any) -> None:
        is_file = engine.url.get_backend_name() == "sqlite" and engine.url.database
        has_tables = sqlalchemy.inspect(engine).get_table_names()
        if not is_file or has_tables or "NO_SHORTCUTS" in os.environ:
            original(engine)
            return
        with (
            contextlib.closing(sqlite3.connect(":memory:")) as tables,
            contextlib.closing(engine.raw_connection()) as connection,
        ):
            tables.deserialize(content)
            tables.backup(connection.driver_connection)

    registry: Any = importlib.import_module("mlflow.store.model_registry.sqlalchemy_store")
    utils._initialize_tables = registry._initialize_tables = initialize


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
    _start_by_forks(sys.path[1:])
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


def _start_by_forks(importing_path: list[str]) -> None:
    """Have `Popen` start the processes of `MODULES` and of `PROOF` as forks of this process.

    Args:
        importing_path: `sys.path` of a new process without the folder of its script.
    """
    hooks = (sys.excepthook, threading.excepthook, warnings.showwarning, [*warnings.filters])
    original = subprocess.Popen.__init__

    def start(self: subprocess.Popen[Any], args: Any, *more: Any, **options: Any) -> None:
        environ, prepare = options.get("env"), options.get("preexec_fn")
        command = [*args] if isinstance(args, (list, tuple)) else []
        # Python runs `preexec_fn` in the new process, which has its streams and its folder
        variables = {**(os.environ if environ is None else environ)}
        if "NO_SHORTCUTS" in variables:
            pass
        elif words := _find_module(command):
            options["preexec_fn"] = lambda: fork_module(*words, environ=variables, prepare=prepare)
        elif _is_forked_proof(command):
            options["preexec_fn"] = lambda: fork_proof(command[1:], variables)
        original(self, args, *more, **options)

    def fork_module(
        module: str,
        *words: str,
        environ: Mapping[str, str],
        prepare: Callable[[], None] | None,
    ) -> NoReturn:
        if prepare is not None:
            prepare()
        forget_command()
        is_package = hasattr(importlib.import_module(module), "__path__")
        script = importlib.util.find_spec(f"{module}.__main__" if is_package else module)
        assert script is not None
        _run_program([str(script.origin), *words], environ, [str(Path.cwd()), *importing_path])

    def fork_proof(words: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
        forget_command()
        _unload_modules()
        _run_program(words, environ, [str(Path(words[0]).parent), *importing_path])

    def forget_command() -> None:
        # one of them is the pipe on which the command waits for the new program
        os.closerange(3, MOST_FILES)
        sys.excepthook, threading.excepthook, warnings.showwarning = hooks[:3]
        warnings.filters[:] = hooks[3]  # type: ignore[index]
        logging.getLogger("lightkit").handlers.clear()
        # what the command does at its end is for itself
        atexit._clear()
        atexit.register(util._exit_function)  # type: ignore[attr-defined]
        atexit.register(logging.shutdown)

    subprocess.Popen.__init__ = start  # type: ignore[method-assign]


def _find_module(command: Sequence[str]) -> Sequence[str]:
    """Return the module of `MODULES` that a command starts, and its words; nothing of others."""
    words = [word for word in command[:4] if word != "-u"]  # torchrun's, for which it makes no odds
    if words[:2] != [sys.executable, "-m"] or words[2] not in MODULES:
        return ()
    return command[command.index("-m") + 1 :]


def _is_forked_proof(command: Sequence[str]) -> bool:
    """Check whether a command proves a file of torch on one thread.

    A fork has none of the threads that torch has started by then, and waits for them.
    """
    script = importlib.import_module(PROOF).__file__
    if command[:2] != [sys.executable, script]:
        return False
    return not command[2].endswith(".onnx") and command[5] == "1"


def _unload_modules() -> None:
    """Have imports find `UNLOADED` as if for the first time, and import the user's modules anew."""
    here = f"{Path.cwd()}{os.sep}"
    unloaded = {}
    for name, module in [*sys.modules.items()]:
        if name.partition(".")[0] in UNLOADED:
            unloaded[name] = sys.modules.pop(name)
        elif str(getattr(module, "__file__", None)).startswith(here):
            del sys.modules[name]
    sys.meta_path.insert(0, _Unloaded(unloaded))


class _Unloaded(MetaPathFinder, Loader):
    """Finds modules that were loaded before, with which an import begins and ends.

    Args:
        modules: Modules by name.
    """

    def __init__(self, modules: Mapping[str, types.ModuleType]) -> None:
        self._modules = modules
        self._specs = {name: module.__spec__ for name, module in modules.items()}

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name not in self._modules:
            return None
        return ModuleSpec(name, self, is_package=hasattr(self._modules[name], "__path__"))

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return self._modules[spec.name]

    def exec_module(self, module: types.ModuleType) -> None:
        module.__spec__ = self._specs[module.__name__]


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
