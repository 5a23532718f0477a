"""Without Horovod the room can be entered, and says what is missing when its strategy is built."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

from lightkit import distributed
from lightkit.data.loader import local_ranks
from lightkit.distributed import collectives, horovod
from lightkit.errors import ConfigError


def test_without_horovod_the_strategy_says_how_to_build_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "hvd", None)
    monkeypatch.setattr(collectives, "_MISSING", "No module named 'horovod'", raising=False)
    with pytest.raises(ConfigError, match="make horovod"):
        distributed.HorovodStrategy()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_the_room_imports_without_horovod() -> None:
    child = os.fork()  # a process that has torch and Lightning already
    if child == 0:
        code = 1
        try:
            for name in [*sys.modules]:
                if name.partition(".")[0] in ("lightkit", "horovod"):
                    del sys.modules[name]
            sys.modules["horovod"] = None  # type: ignore[assignment] # as if not installed
            strategy = import_module("lightkit.distributed").HorovodStrategy
            missing = import_module("lightkit.distributed.collectives").hvd is None
            code = 0 if missing and strategy is not None else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_room_opens_without_torch() -> None:
    code = "import lightkit.distributed, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Strategy'"):
        distributed.Strategy  # noqa: B018


def test_an_unknown_compression_is_refused() -> None:
    if collectives.hvd is None:
        pytest.skip("Horovod is not installed: make horovod")
    with pytest.raises(ConfigError, match="expected fp16 or null, got 'fp8'"):
        distributed.HorovodStrategy(compression="fp8")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("said", "num_ranks", "num_threads", "num_cores", "cycle"),
    [
        (None, 2, 1, 2, "10"),
        (None, 2, 1, 4, None),
        (None, 2, 2, 4, "10"),
        ("1", 2, 1, 2, "1"),
        (None, 1, 2, 2, None),
        (None, 64, 1, 64, "10"),
    ],
)
def test_horovods_thread_spares_cores_that_the_ranks_of_mpirun_need(
    said: str | None,
    num_ranks: int,
    num_threads: int,
    num_cores: int,
    cycle: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (
        ("RANK", 0),
        ("SIZE", num_ranks),
        ("LOCAL_RANK", 0),
        ("LOCAL_SIZE", num_ranks),
    ):
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", str(value))
    monkeypatch.delenv("HOROVOD_RANK", raising=False)
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", said or "")
    if said is None:
        monkeypatch.delenv("HOROVOD_CYCLE_TIME")
    monkeypatch.setattr(horovod, "this_machine", lambda: SimpleNamespace(cores=num_cores))
    monkeypatch.setattr("torch.get_num_threads", lambda: num_threads)
    monkeypatch.setattr(horovod.HorovodEnvironment, "set_global_rank", lambda self, rank: None)
    numbers = {
        name: lambda: 0
        for name in ("rank", "cross_rank", "local_rank", "size", "local_size", "init")
    }
    # Horovod without MPI would not start
    monkeypatch.setattr(horovod, "hvd", SimpleNamespace(**numbers))
    horovod.HorovodEnvironment().start(on_cpu=True)
    assert os.environ.get("HOROVOD_CYCLE_TIME") == cycle


def test_ranks_of_horovod_share_the_cores_of_their_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = {name: lambda: 0 for name in ("rank", "cross_rank", "local_rank", "init")}
    monkeypatch.setattr(
        horovod, "hvd", SimpleNamespace(**numbers, size=lambda: 4, local_size=lambda: 2)
    )
    monkeypatch.setattr(horovod.HorovodEnvironment, "set_global_rank", lambda self, rank: None)
    environment = horovod.HorovodEnvironment()
    environment.start()
    strategy = SimpleNamespace(cluster_environment=environment)
    training: Any = SimpleNamespace(strategy=strategy, num_devices=1, world_size=4)
    assert local_ranks(training) == 2
