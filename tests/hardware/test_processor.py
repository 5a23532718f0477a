"""The CPU and the memory as this process may use them, from files like the kernel's."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from lightkit.hardware import processor

X86 = (
    "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC 9654\n"
    "flags\t\t: fpu sse4_2 avx avx2 fma avx512f amx_bf16\n"
)
ARM = "processor\t: 0\nFeatures\t: fp asimd asimddp sve bf16\nCPU implementer\t: 0x41\n"


@pytest.mark.parametrize(
    ("text", "sets"),
    [
        (X86, ("sse4_2", "avx", "avx2", "fma", "avx512f", "amx_bf16")),
        (ARM, ("neon", "asimddp", "sve", "bf16")),
    ],
    ids=["x86", "arm"],
)
def test_instruction_sets_are_those_that_torch_uses(
    text: str, sets: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    assert processor.instruction_sets(tmp_path / "cpuinfo") == sets


def test_the_cpu_has_a_name(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(X86)
    assert processor.cpu_model(tmp_path / "cpuinfo") == "AMD EPYC 9654"
    assert processor.cpu_model(tmp_path / "missing")
    assert processor.instruction_sets(tmp_path / "missing") == ()


def test_the_maker_of_an_x86_cpu_is_known(tmp_path: Path) -> None:
    (tmp_path / "x86").write_text(X86)
    (tmp_path / "arm").write_text(ARM)
    assert processor.cpu_vendor(tmp_path / "x86") == "AuthenticAMD"
    assert processor.cpu_vendor(tmp_path / "arm") is None
    assert processor.cpu_vendor(tmp_path / "missing") is None


@pytest.mark.parametrize(
    ("sets", "vendor", "limit", "is_fast"),
    [
        (("avx512_bf16",), "AuthenticAMD", "", True),
        (("avx512_bf16",), "AuthenticAMD", "AVX512_CORE", False),
        (("avx512_bf16",), "GenuineIntel", "", False),
        (("avx512_bf16", "amx_bf16"), "GenuineIntel", "", True),
        (("avx512_bf16", "amx_bf16"), "GenuineIntel", "avx512_core_bf16", False),
        (("avx512_bf16", "amx_bf16"), "GenuineIntel", "AVX512_CORE_AMX", True),
        (("bf16",), None, "", True),
        (("avx2",), "AuthenticAMD", "", False),
    ],
)
def test_bf16_is_fast_where_a_step_in_it_is(
    sets: tuple[str, ...], vendor: str | None, limit: str, is_fast: bool
) -> None:
    assert processor.is_bf16_fast(sets, vendor, {"ONEDNN_MAX_CPU_ISA": limit}) is is_fast


def cores_within(folder: Path, quota: str) -> int | None:
    (folder / "job").mkdir(exist_ok=True)
    (folder / "cgroup").write_text("0::/job\n")
    (folder / "job" / "cpu.max").write_text(quota)
    return processor.num_cores(folder, folder / "cgroup")


def test_a_quota_counts_where_it_is_below_the_affinity(tmp_path: Path) -> None:
    allowed = processor.num_cores(tmp_path, tmp_path / "missing")
    assert allowed == len(os.sched_getaffinity(0))
    assert cores_within(tmp_path, "max 100000\n") == allowed
    assert cores_within(tmp_path, "150000 100000\n") == 1
    assert cores_within(tmp_path, "20000 100000\n") == 1
    assert cores_within(tmp_path, "100000000 100000\n") == allowed


def test_a_quota_of_a_group_above_counts_too(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    assert cores_within(tmp_path, "max 100000\n") == 1


def test_the_first_version_of_control_groups_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "cpu" / "job").mkdir(parents=True)
    (tmp_path / "cgroup").write_text("4:memory:/job\n1:cpu:/job\n")
    for name, value in {"cpu.cfs_quota_us": "100000", "cpu.cfs_period_us": "100000"}.items():
        (tmp_path / "cpu" / "job" / name).write_text(f"{value}\n")
    assert processor.num_cores(tmp_path, tmp_path / "cgroup") == 1
    (tmp_path / "memory" / "job").mkdir(parents=True)
    (tmp_path / "memory" / "job" / "memory.limit_in_bytes").write_text("1000000\n")
    assert processor.memory_bytes(tmp_path, tmp_path / "cgroup") == 1_000_000
    (tmp_path / "memory" / "job" / "memory.limit_in_bytes").write_text(f"{(1 << 63) - 4096}\n")
    assert processor.memory_bytes(tmp_path, tmp_path / "cgroup") == psutil.virtual_memory().total


def test_memory_is_what_the_control_group_allows(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("0::/\n")
    assert processor.memory_bytes(tmp_path, tmp_path / "cgroup") == psutil.virtual_memory().total
    (tmp_path / "memory.max").write_text("1000000\n")
    assert processor.memory_bytes(tmp_path, tmp_path / "cgroup") == 1_000_000
    assert processor.available_memory_bytes(tmp_path, tmp_path / "cgroup") == 1_000_000


@pytest.mark.parametrize(
    ("names", "files"),
    [
        (("memory.max", "memory.current"), "anon 300\ninactive_file 100\n"),
        (
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
            "inactive_file 7\ntotal_inactive_file 100\n",
        ),
    ],
    ids=["2", "1"],
)
def test_what_a_control_group_has_taken_is_not_available(
    names: tuple[str, str], files: str, tmp_path: Path
) -> None:
    (tmp_path / "cgroup").write_text("0::/job\n")
    (tmp_path / "job").mkdir()
    for name, text in zip((*names, "memory.stat"), ("1000000\n", "600100\n", files), strict=True):
        (tmp_path / "job" / name).write_text(text)
    assert processor.memory_bytes(tmp_path, tmp_path / "cgroup") == 1_000_000
    assert processor.available_memory_bytes(tmp_path, tmp_path / "cgroup") == 400_000
    (tmp_path / "job" / names[1]).write_text("1000200\n")
    assert processor.available_memory_bytes(tmp_path, tmp_path / "cgroup") == 0
