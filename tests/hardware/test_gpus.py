"""Which GPUs count, by a fake NVML: there is none where these tests run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from lightkit.hardware.gpus import Gpu, visible_gpus

MIG = "MIG-7f1a"


class FakeNVMLError(Exception):
    """Stands in for `pynvml.NVMLError`."""


class FakeNoPermission(FakeNVMLError):
    """Stands in for `pynvml.NVMLError_NoPermission`."""


class FakeNVML:
    """Stands in for the module `pynvml`, with so many GPUs.

    Args:
        count: Number of GPUs.
        has_driver: Whether NVML can be asked at all.
        is_broken: Whether it fails once it was asked.
        closed: Numbers of GPUs that this process may not open.
        lost: Number of a GPU that has fallen off the bus.
    """

    NVMLError = FakeNVMLError
    NVMLError_NoPermission = FakeNoPermission

    def __init__(
        self,
        count: int = 3,
        *,
        has_driver: bool = True,
        is_broken: bool = False,
        closed: Sequence[int] = (),
        lost: int | None = None,
    ) -> None:
        self.uuids = [f"GPU-{'abc'[index]}{index}-1234" for index in range(count)]
        self.has_driver, self.is_broken, self.is_open = has_driver, is_broken, False
        self.closed, self.lost = closed, lost

    def nvmlInit(self) -> None:  # noqa: N802 (the name is NVML's)
        if not self.has_driver:
            raise FakeNVMLError("Driver Not Loaded")
        self.is_open = True

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.is_open = False

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        if self.is_broken:
            raise FakeNVMLError("GPU is lost")
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        if index in self.closed:
            raise FakeNoPermission("Insufficient Permissions")
        if index == self.lost:
            raise FakeNVMLError("GPU is lost")
        return self.uuids[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid != MIG:
            raise FakeNVMLError("Not Found")
        return uuid

    def nvmlDeviceGetUUID(self, handle: str) -> str:  # noqa: N802
        return handle

    def nvmlDeviceGetName(self, handle: str) -> str:  # noqa: N802
        return f"NVIDIA {handle[4]}"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(total=len(handle) << 30)

    def nvmlDeviceGetCudaComputeCapability(self, handle: str) -> list[int]:  # noqa: N802
        return [8, 0]

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "570.1"


@pytest.mark.parametrize(
    ("variable", "shown"),
    [
        (None, ["GPU-a0", "GPU-b1", "GPU-c2"]),
        ("", []),
        ("-1", []),
        ("0", ["GPU-a0"]),
        ("2,0", ["GPU-c2", "GPU-a0"]),
        (" 2 , 0 ", ["GPU-c2", "GPU-a0"]),
        ("1,-1,0", ["GPU-b1"]),
        ("1,7,0", ["GPU-b1"]),
        ("1,x,0", ["GPU-b1"]),
        ("0,0", []),
        ("GPU-c", ["GPU-c2"]),
        ("GPU-b1-1234,GPU-a", ["GPU-b1", "GPU-a0"]),
        ("GPU-", []),
        ("GPU-z,0", []),
        (f"{MIG},0", ["MIG-7f"]),
        ("MIG-none", []),
        ("none", []),
    ],
)
def test_cudas_rules_choose_among_the_gpus(variable: str | None, shown: list[str]) -> None:
    nvml = FakeNVML()
    environ = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    found, _ = visible_gpus(environ, nvml)
    assert found is not None
    assert [gpu.uuid[:6] for gpu in found] == shown
    assert [gpu.index for gpu in found] == list(range(len(shown)))
    assert not nvml.is_open


def test_a_gpu_has_name_memory_and_uuid() -> None:
    found = visible_gpus({}, FakeNVML(1))
    assert found == ((Gpu(0, "NVIDIA a", 11 << 30, "GPU-a0-1234", (8, 0)),), "570.1")


def test_without_a_driver_there_are_none(tmp_path: Path) -> None:
    nvml = FakeNVML(has_driver=False)
    assert visible_gpus({}, nvml, [str(tmp_path / "nvidia0")]) == ((), None)
    assert visible_gpus({}, nvml, [str(tmp_path)]) == (None, None)


def test_a_driver_that_fails_leaves_them_uncounted() -> None:
    nvml = FakeNVML(is_broken=True)
    assert visible_gpus({}, nvml) == (None, None)
    assert not nvml.is_open


@pytest.mark.parametrize(
    ("variable", "shown"),
    [
        (None, ["GPU-a0", "GPU-c2"]),
        ("0,1", ["GPU-a0", "GPU-c2"]),
        ("1", ["GPU-c2"]),
        ("0,2", ["GPU-a0"]),
    ],
)
def test_a_gpu_that_may_not_be_opened_does_not_count(
    variable: str | None, shown: list[str]
) -> None:
    environ = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    found, _ = visible_gpus(environ, FakeNVML(closed=[1]))
    assert found is not None
    assert [(gpu.index, gpu.uuid[:6]) for gpu in found] == list(enumerate(shown))


def test_where_no_gpu_may_be_opened_there_is_none() -> None:
    assert visible_gpus({}, FakeNVML(closed=range(3))) == ((), "570.1")


def test_a_gpu_that_is_lost_leaves_them_uncounted() -> None:
    assert visible_gpus({}, FakeNVML(lost=1)) == (None, None)


def test_pynvml_has_the_errors_that_are_reported_apart() -> None:
    assert issubclass(pynvml.NVMLError_NoPermission, pynvml.NVMLError)


def test_the_real_nvml_can_be_asked() -> None:
    found, _ = visible_gpus({"CUDA_VISIBLE_DEVICES": ""})
    assert not found
