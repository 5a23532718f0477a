"""resources.csv: what is measured, and that a resumed run goes on in it."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from lightkit.hardware.usage import UsageMeter
from lightkit.launch import resources
from lightkit.launch.resources import COLUMNS, ResourceLog, read_resources
from lightkit.runs.fence import Fence


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(resources, "time", clock)
    return clock


def sample_for(log: ResourceLog, clock: Clock, seconds: int) -> None:
    """Call it once a second, as the watchdog does."""
    for _ in range(seconds):
        log.sample()
        clock.now_s += 1


def test_rows_become_rarer_and_a_resumed_run_goes_on_after_them(
    tmp_path: Path, clock: Clock
) -> None:
    path = tmp_path / "resources.csv"
    log = ResourceLog(path)
    sample_for(log, clock, 3600)
    log.close()
    seconds = [row["seconds"] for row in read_resources(path)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(seconds)]
    assert gaps[0] == 2
    assert gaps == sorted(gaps)
    assert 17 <= gaps[-1] <= 19, "0.5 % of an hour"
    assert len(seconds) <= 650

    clock.now_s += 5000  # nothing ran
    again = ResourceLog(path)
    sample_for(again, clock, 10)
    again.close()
    rows = read_resources(path)
    assert rows[len(seconds)]["seconds"] == seconds[-1] + 2
    assert path.read_text().count("seconds") == 1


def test_a_process_that_has_lost_its_job_adds_no_row(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "job" / "run" / "resources.csv"
    path.parent.mkdir(parents=True)
    fence = Fence(tmp_path / "job", "token", lambda: None)
    fence.open()
    try:
        log = ResourceLog(path)
        sample_for(log, clock, 10)
        rows = path.read_text(encoding="utf-8")
        assert len(rows.splitlines()) > 2
        shutil.rmtree(fence.staging)  # as whoever takes the job over does first
        sample_for(log, clock, 10)
        assert path.read_text(encoding="utf-8") == rows
    finally:
        fence.close()


def test_a_line_that_was_cut_off_is_no_row(tmp_path: Path) -> None:
    path = tmp_path / "resources.csv"
    path.write_text(",".join(COLUMNS) + "\n2.0,0.50,1000,,\n4.0,0.5\n4.0,x,1000,,\n")
    assert read_resources(path) == [{"seconds": 2.0, "cpu_cores": 0.5, "memory_bytes": 1000.0}]


def test_what_cannot_be_written_is_one_warning(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    log = ResourceLog(tmp_path / "missing" / "resources.csv")
    sample_for(log, clock, 20)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "resources.csv is not written any more"
    ]


def test_memory_is_that_of_the_process_and_what_it_has_started() -> None:
    code = (
        "data = bytearray(80_000_000); data[::4096] = b'1' * len(data[::4096]); print('ready',"
        " flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        before = UsageMeter(child.pid).measure().memory_bytes
        child.stdout.readline()
        after = UsageMeter(child.pid).measure().memory_bytes
        child.communicate("\n")
    assert 80e6 <= after <= 120e6
    assert before <= after


def test_gpus_are_those_that_cuda_would_show() -> None:
    """Of three GPUs the first and the last are visible: (30 + 90) / 2 % and 1 + 4 GB."""
    rates = {0: 30, 1: 50, 2: 90}
    used = {0: 1e9, 1: 2e9, 2: 4e9}
    nvml = SimpleNamespace(
        NVMLError=ValueError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 3,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=lambda gpu: f"GPU-{gpu}",
        nvmlDeviceGetUtilizationRates=lambda gpu: SimpleNamespace(gpu=rates[gpu]),
        nvmlDeviceGetMemoryInfo=lambda gpu: SimpleNamespace(used=used[gpu]),
    )
    usage = UsageMeter(environ={"CUDA_VISIBLE_DEVICES": "0,2"}, nvml=nvml).measure()
    assert (usage.gpu_percent, usage.gpu_memory_bytes) == (60, 5_000_000_000)
    assert UsageMeter(environ={"CUDA_VISIBLE_DEVICES": ""}, nvml=nvml).measure().gpu_percent is None
