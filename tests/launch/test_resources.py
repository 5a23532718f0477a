"""resources.csv: what is measured, and that a resumed run goes on in it."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from lightkit.hardware.usage import Usage, UsageMeter
from lightkit.launch import resources
from lightkit.launch.resources import COLUMNS, ResourceLog, read_resources
from lightkit.runs.fence import Fence


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.computed_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def thread_time(self) -> float:
        return self.computed_s


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


@pytest.mark.parametrize(
    ("cost_s", "every_s"), [(0.001, 2), (0.02, 10), (0.5, 60)], ids=["small", "large", "huge"]
)
def test_rows_are_rarer_where_one_takes_long(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, cost_s: float, every_s: int
) -> None:
    """A 500th of a core at most, down to a row a minute."""

    class Meter:
        def measure(self) -> Usage:
            clock.computed_s += cost_s
            return Usage(1.0, 1000)

    monkeypatch.setattr(resources, "UsageMeter", Meter)
    path = tmp_path / "resources.csv"
    sample_for(ResourceLog(path), clock, 300)
    seconds = [row["seconds"] for row in read_resources(path)]
    gaps = {later - earlier for earlier, later in itertools.pairwise(seconds)}
    assert seconds[0] == 2
    assert gaps == {every_s}


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


def test_memory_that_processes_share_counts_once() -> None:
    """A child shares 80 MB with its parent, whose pages are looked at for it alone."""
    code = (
        "import os\ndata = bytearray(80_000_000); data[::4096] = b'1' * len(data[::4096])\n"
        "print('alone', flush=True); input()\n"
        "reader, writer = os.pipe()\n"
        "if not os.fork(): os.close(writer); os.read(reader, 1); os._exit(0)\n"
        "print('two', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdout.readline()
        alone = UsageMeter(parent.pid).measure().memory_bytes
        parent.stdin.write("\n")
        parent.stdin.flush()
        parent.stdout.readline()
        two = UsageMeter(parent.pid).measure().memory_bytes
        parent.communicate("\n")
    assert 80e6 <= alone <= 120e6
    assert 80e6 <= two <= 120e6


def test_a_process_alone_is_measured_without_a_look_at_each_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(psutil.Process, "children", lambda *_, **__: [])
    monkeypatch.setattr(psutil.Process, "memory_full_info", None)
    memory_bytes = UsageMeter().measure().memory_bytes
    assert memory_bytes == pytest.approx(psutil.Process().memory_info().rss, rel=0.05)


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
