"""Without Horovod the room can be entered, and says what is missing when its strategy is built."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lightkit import distributed
from lightkit.distributed import collectives
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
    ("environ", "num_threads", "num_cores", "cycle"),
    [
        ({"HOROVOD_LOCAL_SIZE": "2"}, 1, 2, "5"),
        ({"HOROVOD_LOCAL_SIZE": "2"}, 1, 4, None),
        ({"HOROVOD_LOCAL_SIZE": "2"}, 2, 4, "5"),
        ({"HOROVOD_LOCAL_SIZE": "2", "HOROVOD_CYCLE_TIME": "1"}, 1, 2, "1"),
        ({}, 1, 1, None),
    ],
)
def test_horovods_thread_spares_cores_that_the_ranks_need(
    environ: dict[str, str], num_threads: int, num_cores: int, cycle: str | None
) -> None:
    collectives.spare_cores(environ, num_threads=num_threads, num_cores=num_cores)
    assert environ.get("HOROVOD_CYCLE_TIME") == cycle
