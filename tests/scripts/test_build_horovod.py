"""The build of Horovod follows the installed torch.

Its cache never hands out a wheel for something else.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
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
    said = {
        "torch": TORCH,
        "flags": CPU,
        "python": "cpython-311",
        "platform": "linux-x86_64",
        **changed,
    }
    return str(build_horovod.cache_key(said.pop("torch"), said.pop("flags"), **said))


@pytest.mark.parametrize(
    ("header", "standard"),
    [
        ("#if !defined(_MSC_VER) && __cplusplus < 201402L", 14),
        ("#if !defined(_MSC_VER) && __cplusplus < 201703L", 17),
        (
            (
                "// MSVC keeps __cplusplus at 199711L\n#if"
                " (!defined(_MSVC_LANG) && __cplusplus < 202002L)"
            ),
            20,
        ),
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
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    import torch

    assert ended.stdout.strip() == str(torch.__version__)


def test_sources_are_built_with_the_standard_of_torch() -> None:
    text = "project(horovod)\nset(CMAKE_CXX_STANDARD 14)\nset(CMAKE_CXX_STANDARD_REQUIRED ON)\n"
    assert "set(CMAKE_CXX_STANDARD 20)" in build_horovod.patched(
        "CMakeLists.txt", text, standard=20, gpu=False
    )


@pytest.mark.parametrize(
    ("gpu", "looks_for_cuda"), [(False, False), (True, True)], ids=["cpu", "gpu"]
)
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


def test_the_key_reports_what_is_in_the_wheel() -> None:
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
    assert build_horovod.cache_root({"LIGHTKIT_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path(
        "/a/wheels"
    )
    assert build_horovod.cache_root({"XDG_CACHE_HOME": "/b"}) == Path("/b/lightkit/wheels")
    assert build_horovod.cache_root({}) == Path.home() / ".cache/lightkit/wheels"


def test_a_wheel_in_the_cache_is_taken_without_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    folder = tmp_path / build_horovod.cache_key(
        TORCH,
        CPU,
        python=sys.implementation.cache_tag,
        platform=build_horovod.sysconfig.get_platform(),
    )
    folder.mkdir()
    wheel = folder / "horovod-0.28.1.whl"
    wheel.touch()
    assert build_horovod.cached_wheel(tmp_path, TORCH, CPU, anew=False) == wheel


def test_no_compiler_is_reported_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(build_horovod.BuildError, match=r"a C\+\+ compiler and make not found"):
        build_horovod.cached_wheel(tmp_path, TORCH, CPU, anew=False)


def test_a_failing_command_shows_its_last_words_and_its_log(tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    with pytest.raises(
        build_horovod.BuildError, match=r"no rule\n.*making tea failed \(code 3\).*build\.log"
    ):
        build_horovod.run(
            [sys.executable, "-c", "print('no rule'); exit(3)"], log=log, what="making tea"
        )


GPU = "horovod-0.28.1-torch-2.15.0+cpu-cpython-311-linux-x86_64-gloo-gpu-00112233"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes the script find a Horovod that loads, or does not.

    Pip has installed it from a wheel.
    """
    monkeypatch.setattr(sys, "path", [str(tmp_path)])

    def install(folder: str | None, *, loads: bool = True) -> None:
        info = tmp_path / "horovod-0.28.1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n")
        if folder is not None:
            wheel = Path("/cache") / folder / "horovod-0.28.1.whl"
            (info / "direct_url.json").write_text(
                json.dumps({"url": wheel.as_uri(), "archive_info": {}})
            )
        check = (
            "print('installed horovod 0.28.1 with gloo, nccl')"
            if loads
            else "raise ImportError('undefined symbol')"
        )
        monkeypatch.setattr(build_horovod, "CHECK", check)

    return install


@pytest.mark.parametrize(
    ("folder", "said", "is_kept"),
    [
        (GPU, {}, True),
        (GPU, {"HOROVOD_WITH_MPI": "1"}, False),
        (GPU, {"HOROVOD_RANK": "1"}, True),
        (key(), {"HOROVOD_WITH_MPI": "0"}, False),
        (key(), {}, True),
        (GPU.replace("2.15.0+cpu", "2.14.0"), {}, False),
        (GPU.replace("2.15.0+cpu", "2.15.0"), {}, False),
        (GPU.replace("cpython-311", "cpython-310"), {}, False),
        (None, {}, True),
        (None, {"HOROVOD_WITH_MPI": "1"}, False),
    ],
    ids=[
        *("gpu", "mpi wished", "running", "wished", "plain", "torch", "local", "python"),
        *("by others", "others, wished"),
    ],
)
def test_a_horovod_that_was_built_for_this_torch_is_left_alone(
    folder: str | None, said: dict[str, str], is_kept: bool, installed: Callable[..., None]
) -> None:
    installed(folder)
    place = {"python": "cpython-311", "platform": "linux-x86_64"}
    assert (build_horovod.kept(TORCH, said, **place) is not None) is is_kept


def test_what_was_wished_before_is_left_alone_when_it_is_wished_again(
    installed: Callable[..., None],
) -> None:
    said = {"HOROVOD_GPU_OPERATIONS": "NCCL"}
    installed(key(flags=build_horovod.wishes(said)))
    place = {"python": "cpython-311", "platform": "linux-x86_64"}
    assert build_horovod.kept(TORCH, said, **place) == "installed horovod 0.28.1 with gloo, nccl"


def test_a_horovod_that_does_not_load_is_replaced(installed: Callable[..., None]) -> None:
    installed(GPU, loads=False)
    assert build_horovod.kept(TORCH, {}, python="cpython-311", platform="linux-x86_64") is None


def test_without_a_horovod_there_is_none_to_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert build_horovod.kept(TORCH, {}, python="cpython-311", platform="linux-x86_64") is None


@pytest.mark.slow
def test_the_installed_horovod_is_kept_by_a_second_call(tmp_path: Path) -> None:
    """Without a compiler and without a cache, so that nothing could be built or installed."""
    if importlib.util.find_spec("horovod") is None:
        pytest.skip("Horovod is not installed: make horovod")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HOROVOD_", "CXX"))
    }
    environ = {**kept, "PATH": "", "LIGHTKIT_CACHE": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert ended.returncode == 0, ended.stderr
    assert "installed horovod 0.28.1 with gloo" in ended.stdout
    assert "is left as it is" in ended.stdout


@pytest.mark.parametrize("has_filters", [True, False], ids=["Python 3.11.4", "Python 3.11.3"])
def test_sources_are_unpacked_by_any_python(
    has_filters: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_filters:
        old = tarfile.TarFile.extractall
        monkeypatch.delattr(tarfile, "data_filter")
        monkeypatch.setattr(
            tarfile.TarFile, "extractall", lambda self, path: old(self, path, filter="data")
        )
    content = tmp_path / "CMakeLists.txt"
    content.write_text("project(horovod)")
    with tarfile.open(tmp_path / "horovod-0.28.1.tar.gz", "w:gz") as archive:
        archive.add(content, "horovod-0.28.1/CMakeLists.txt")
    build_horovod.unpack(tmp_path / "horovod-0.28.1.tar.gz", tmp_path / "out")
    assert (
        tmp_path / "out" / "horovod-0.28.1" / "CMakeLists.txt"
    ).read_text() == "project(horovod)"


def test_two_builds_of_one_wheel_wait_for_each_other(tmp_path: Path) -> None:
    lock = tmp_path / "wheel.lock"
    with build_horovod.held(lock), lock.open("w") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
