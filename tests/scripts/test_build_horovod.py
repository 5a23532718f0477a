"""The build of Horovod follows the installed torch, and its cache never hands out a wheel for something else."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "build_horovod.py"
_spec = importlib.util.spec_from_file_location("build_horovod", SCRIPT)
assert _spec is not None
assert _spec.loader is not None
build_horovod = importlib.util.module_from_spec(_spec)
sys.modules["build_horovod"] = build_horovod  # dataclasses look their module up
_spec.loader.exec_module(build_horovod)

TORCH = build_horovod.Torch("2.15.0+cpu", 20)
CPU = build_horovod.wishes({})


def key(**changed: object) -> str:
    said = {"torch": TORCH, "flags": CPU, "python": "cpython-311", "platform": "linux-x86_64", **changed}
    return str(build_horovod.cache_key(said.pop("torch"), said.pop("flags"), **said))


@pytest.mark.parametrize(
    ("header", "standard"),
    [
        ("#if !defined(_MSC_VER) && __cplusplus < 201402L", 14),
        ("#if !defined(_MSC_VER) && __cplusplus < 201703L", 17),
        ("// MSVC keeps __cplusplus at 199711L\n#if (!defined(_MSVC_LANG) && __cplusplus < 202002L)", 20),
    ],
    ids=["14", "17", "20"],
)
def test_the_standard_is_what_the_headers_of_torch_ask_for(header: str, standard: int) -> None:
    assert build_horovod.cxx_standard(header) == standard


def test_headers_that_name_no_standard_are_an_error() -> None:
    with pytest.raises(build_horovod.BuildError, match="does not say which C"):
        build_horovod.cxx_standard("#pragma once")


def test_the_installed_torch_is_found_without_importing_it() -> None:
    code = (
        f"import importlib.util as u, sys; s = u.spec_from_file_location('b', {str(SCRIPT)!r}); "
        "m = u.module_from_spec(s); sys.modules['b'] = m; s.loader.exec_module(m); "
        "print(m.installed_torch().version); assert 'torch' not in sys.modules"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    import torch

    assert ended.stdout.strip() == str(torch.__version__)


def test_sources_are_built_with_the_standard_of_torch() -> None:
    text = "project(horovod)\nset(CMAKE_CXX_STANDARD 14)\nset(CMAKE_CXX_STANDARD_REQUIRED ON)\n"
    assert "set(CMAKE_CXX_STANDARD 20)" in build_horovod.patched("CMakeLists.txt", text, standard=20, gpu=False)


@pytest.mark.parametrize(("gpu", "looks_for_cuda"), [(False, False), (True, True)], ids=["cpu", "gpu"])
def test_only_a_gpu_build_looks_for_cuda(gpu: bool, looks_for_cuda: bool) -> None:
    text = "((torch.version.cuda is not None) and (CUDA_HOME is not None))"
    new = build_horovod.patched("cmake/Modules/FindPytorch.cmake", text, standard=20, gpu=gpu)
    assert ("CUDA_HOME" in new) is looks_for_cuda


def test_sources_that_look_otherwise_are_an_error() -> None:
    with pytest.raises(build_horovod.BuildError, match="the sources are not those expected"):
        build_horovod.patched("CMakeLists.txt", "project(other)", standard=20, gpu=False)


@pytest.mark.parametrize(
    "changed",
    [
        {"torch": build_horovod.Torch("2.15.0+cu132", 20)},
        {"python": "cpython-312"},
        {"platform": "linux-aarch64"},
        {"flags": build_horovod.wishes({"HOROVOD_WITH_MPI": "1"})},
        {"flags": build_horovod.wishes({"HOROVOD_GPU_OPERATIONS": "NCCL"})},
        {"flags": build_horovod.wishes({"HOROVOD_NCCL_HOME": "/opt/nccl"})},
    ],
    ids=["torch", "python", "platform", "mpi", "nccl", "nccl_home"],
)
def test_another_build_has_another_place_in_the_cache(changed: dict[str, object]) -> None:
    assert key(**changed) != key()
    assert key() == key()


def test_the_key_tells_what_is_in_the_wheel() -> None:
    flags = build_horovod.wishes({"HOROVOD_WITH_MPI": "1", "HOROVOD_GPU_OPERATIONS": "NCCL"})
    expected = "horovod-0.28.1-torch-2.15.0+cpu-cpython-311-linux-x86_64-gloo-mpi-gpu-"
    assert key(flags=flags).startswith(expected)


def test_variables_of_a_running_horovod_do_not_change_the_build() -> None:
    assert build_horovod.wishes({"HOROVOD_RANK": "1", "HOROVOD_LOG_LEVEL": "debug"}) == CPU


def test_a_build_without_mpi_says_so_unless_mpi_is_asked_for() -> None:
    assert CPU["HOROVOD_WITHOUT_MPI"] == "1"
    assert "HOROVOD_WITHOUT_MPI" not in build_horovod.wishes({"HOROVOD_WITH_MPI": "1"})


def test_a_build_without_gloo_does_not_ask_for_it_too() -> None:
    flags = build_horovod.wishes({"HOROVOD_WITHOUT_GLOO": "1", "HOROVOD_WITH_MPI": "1"})
    assert "HOROVOD_WITH_GLOO" not in flags
    assert "-gloo" not in key(flags=flags)


def test_cores_are_counted_where_there_is_no_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    assert build_horovod.num_cores() == len(os.sched_getaffinity(0))
    monkeypatch.delattr(os, "sched_getaffinity")
    assert build_horovod.num_cores() == os.cpu_count()


def test_the_cache_is_where_the_user_says(tmp_path: Path) -> None:
    assert build_horovod.cache_root({"LIGHTKIT_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a/wheels")
    assert build_horovod.cache_root({"XDG_CACHE_HOME": "/b"}) == Path("/b/lightkit/wheels")
    assert build_horovod.cache_root({}) == Path.home() / ".cache/lightkit/wheels"


def test_a_wheel_in_the_cache_is_taken_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    folder = tmp_path / build_horovod.cache_key(
        TORCH, CPU, python=sys.implementation.cache_tag, platform=build_horovod.sysconfig.get_platform()
    )
    folder.mkdir()
    wheel = folder / "horovod-0.28.1.whl"
    wheel.touch()
    assert build_horovod.cached_wheel(tmp_path, TORCH, CPU, anew=False) == wheel


def test_no_compiler_is_told_before_anything_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(build_horovod.BuildError, match=r"a C\+\+ compiler and make not found"):
        build_horovod.cached_wheel(tmp_path, TORCH, CPU, anew=False)


def test_a_failing_command_shows_its_last_words_and_its_log(tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    with pytest.raises(build_horovod.BuildError, match=r"no rule\n.*making tea failed \(code 3\).*build\.log"):
        build_horovod.run([sys.executable, "-c", "print('no rule'); exit(3)"], log=log, what="making tea")


def test_two_builds_of_one_wheel_wait_for_each_other(tmp_path: Path) -> None:
    lock = tmp_path / "wheel.lock"
    with build_horovod.held(lock), lock.open("w") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
