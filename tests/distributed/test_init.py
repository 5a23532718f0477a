"""Without Horovod the room can be entered, and says what is missing when its strategy is built."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from lightkit import distributed
from lightkit.distributed import collectives, environment
from lightkit.errors import ConfigError


def test_without_horovod_the_strategy_says_how_to_build_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "hvd", None)
    monkeypatch.setattr(collectives, "_MISSING", "No module named 'horovod'", raising=False)
    with pytest.raises(ConfigError, match="make horovod"):
        distributed.HorovodStrategy()


def test_the_room_imports_without_horovod() -> None:
    code = "import sys; sys.modules['horovod'] = None; from lightkit.distributed import HorovodStrategy"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


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
    [(None, 2, 1, 2, "10"), (None, 2, 1, 4, None), (None, 2, 2, 4, "10"), ("1", 2, 1, 2, "1"), (None, 1, 2, 2, None)],
)
def test_horovods_thread_spares_cores_that_the_ranks_need(
    said: str | None, num_ranks: int, num_threads: int, num_cores: int, cycle: str | None
) -> None:
    environ = {} if said is None else {"HOROVOD_CYCLE_TIME": said}
    collectives.spare_cores(environ, num_ranks=num_ranks, num_threads=num_threads, num_cores=num_cores)
    assert environ.get("HOROVOD_CYCLE_TIME") == cycle


def test_ranks_of_mpirun_are_counted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", 0), ("SIZE", 64), ("LOCAL_RANK", 0), ("LOCAL_SIZE", 64)):
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", str(value))
    monkeypatch.delenv("HOROVOD_RANK", raising=False)
    monkeypatch.delenv("HOROVOD_CYCLE_TIME", raising=False)
    monkeypatch.setattr(environment, "this_machine", lambda: SimpleNamespace(cores=64))
    monkeypatch.setattr(environment, "start_horovod", lambda: None)
    monkeypatch.setattr(environment.HorovodEnvironment, "set_global_rank", lambda self, rank: None)
    place = SimpleNamespace(size=lambda: 64, rank=lambda: 0, cross_rank=lambda: 0, local_rank=lambda: 0)
    place.local_size = lambda: 64
    monkeypatch.setattr(environment, "hvd", place)  # mpirun is not here, and Horovod without MPI would not start
    environment.HorovodEnvironment().start(on_cpu=True)
    assert os.environ.pop("HOROVOD_CYCLE_TIME") == "10"
