"""Build horovod 0.28.1 for the torch of the running interpreter, and install it beside that torch.

    python scripts/build_horovod.py                              # CPU, gloo
    HOROVOD_WITH_MPI=1 python scripts/build_horovod.py           # with MPI too
    HOROVOD_GPU_OPERATIONS=NCCL python scripts/build_horovod.py  # CUDA: nvcc and NCCL's headers

The last release of Horovod asks for C++14, which torch's headers refuse, and takes any nvcc on the
machine for a wish to build with CUDA; both are changed in the sources. Other HOROVOD_* variables
reach Horovod's own build. The wheel is kept in $LIGHTKIT_CACHE (default: $XDG_CACHE_HOME/lightkit,
else ~/.cache/lightkit) under `wheels/`. A Horovod that is installed and loads stays, unless it was
built for another torch, or HOROVOD_* variables ask for another.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote

VERSION = "0.28.1"
SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
# raise it when a change to this file changes the wheel; where one is installed, --anew replaces it
RECIPE = 1
TOOLS = (
    "cmake>=3.18,<4",
    "setuptools>=77,<81",
    "wheel",
    "packaging",
    "cloudpickle",
    "psutil",
    "pyyaml",
    "cffi",
)
CPU = {
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITH_GLOO": "1",
}
STANDARDS = {"201402": 14, "201703": 17, "202002": 20, "202302": 23}
ALL_H = Path("include/torch/csrc/api/include/torch/all.h")
BUILD_VARIABLE = re.compile(
    r"HOROVOD_(WITH|WITHOUT|GPU|CPU|CUDA|ROCM|NCCL|MPI|CCL|ALLOW|BUILD|DEBUG|CMAKE)"
)
CHECK = """
import horovod
import horovod.torch as hvd
hvd.init()
built = {"gloo": hvd.gloo_built(), "mpi": hvd.mpi_built(), "nccl": hvd.nccl_built()}
print(
    "installed horovod",
    horovod.__version__,
    "with",
    ", ".join(name for name, there in built.items() if there),
)
"""


class BuildError(Exception):
    """The wheel cannot be built; the text says what to do."""


@dataclass(frozen=True)
class Torch:
    """The torch that Horovod is built for.

    Args:
        version: With its local part, such as ``2.15.0+cu132``.
        standard: C++ standard that its headers ask for.
    """

    version: str
    standard: int


def installed_torch() -> Torch:
    """Look at the torch of this interpreter without importing it.

    Raises:
        BuildError: If there is none.
    """
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise BuildError(
            f"there is no torch in {sys.prefix}. Install it first: make fit, or pip install torch."
        )
    root = Path(spec.origin).parent
    version = str(runpy.run_path(str(root / "version.py"))["__version__"])
    return Torch(version, cxx_standard((root / ALL_H).read_text(encoding="utf-8")))


def cxx_standard(header: str) -> int:
    """Read from torch/all.h the C++ standard below which it refuses to compile.

    Raises:
        BuildError: If the header says nothing that is known here.
    """
    found = re.search(r"__cplusplus\s*<\s*(\d{6})L", header)
    if found is None or found[1] not in STANDARDS:
        raise BuildError(
            f"{ALL_H} of the installed torch does not say which C++ standard it needs."
        )
    return STANDARDS[found[1]]


def wishes(environ: Mapping[str, str]) -> dict[str, str]:
    """Give the HOROVOD_* variables of the build.

    The caller's, and what a small build for torch leaves out.
    """
    said = {name: value for name, value in environ.items() if BUILD_VARIABLE.match(name) and value}
    without_mpi = {} if said.get("HOROVOD_WITH_MPI") == "1" else {"HOROVOD_WITHOUT_MPI": "1"}
    flags = {**CPU, **without_mpi, **said}
    if said.get("HOROVOD_WITHOUT_GLOO") == "1" and "HOROVOD_WITH_GLOO" not in said:
        del flags["HOROVOD_WITH_GLOO"]
    return flags


def wants_gpu(flags: Mapping[str, str]) -> bool:
    """Say whether the build may look for CUDA."""
    return any(name.startswith("HOROVOD_GPU") for name in flags)


def interpreter() -> dict[str, str]:
    """Give what of this interpreter makes a wheel another one."""
    return {"python": str(sys.implementation.cache_tag), "platform": sysconfig.get_platform()}


def cache_key(torch: Torch, flags: Mapping[str, str], *, python: str, platform: str) -> str:
    """Name the folder of a wheel after all that makes it another wheel.

    Args:
        torch: The torch it is built for.
        flags: HOROVOD_* variables of the build.
        python: Such as ``cpython-311``.
        platform: Such as ``linux-x86_64``.
    """
    parts = ["gloo"] if flags.get("HOROVOD_WITH_GLOO") == "1" else []
    parts += ["mpi"] if flags.get("HOROVOD_WITH_MPI") == "1" else []
    parts += ["gpu"] if wants_gpu(flags) else []
    digest = hashlib.sha256(
        repr((RECIPE, torch.standard, sorted(flags.items()))).encode()
    ).hexdigest()[:8]
    return f"horovod-{VERSION}-torch-{torch.version}-{python}-{platform}-{'-'.join(parts)}-{digest}"


def patched(name: str, text: str, *, standard: int, gpu: bool) -> str:
    """Give a file of Horovod's sources as this torch needs it.

    Args:
        name: Its name, for the error.
        text: Its content.
        standard: C++ standard to build with.
        gpu: Leave the search for CUDA as it is.

    Raises:
        BuildError: If the file does not hold what is to be replaced.
    """
    if name.endswith("CMakeLists.txt"):
        old, new = "set(CMAKE_CXX_STANDARD 14)", f"set(CMAKE_CXX_STANDARD {standard})"
    else:
        old, new = "(CUDA_HOME is not None)", "(CUDA_HOME is not None)" if gpu else "False"
    if old not in text:
        raise BuildError(
            f"{name} of horovod {VERSION} does not hold {old!r}; the"
            " sources are not those expected."
        )
    return text.replace(old, new)


def cache_root(environ: Mapping[str, str]) -> Path:
    """Give the folder that wheels are kept in."""
    home = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(environ.get("LIGHTKIT_CACHE") or home / "lightkit") / "wheels"


@contextmanager
def held(lock: Path) -> Iterator[None]:
    """Keep other builds of the same wheel waiting; the lock ends with the process."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another process builds the same wheel; waiting for it", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def check_compiler(standard: int) -> None:
    """Try the compiler that CMake will take.

    Raises:
        BuildError: If there is no compiler or no make, or if the compiler is too old.
    """
    compiler = (
        os.environ.get("CXX")
        or shutil.which("c++")
        or shutil.which("g++")
        or shutil.which("clang++")
    )
    missing = [
        name
        for name, path in (("a C++ compiler", compiler), ("make", shutil.which("make")))
        if not path
    ]
    if missing:
        raise BuildError(f"{' and '.join(missing)} not found. On Debian: apt-get install g++ make.")
    words = [*str(compiler).split(), f"-std=c++{standard}", "-x", "c++", "-fsyntax-only", "-"]
    tried = subprocess.run(
        words, input="#include <string>\n", capture_output=True, text=True, check=False
    )
    if tried.returncode:
        raise BuildError(
            f"{compiler} cannot compile C++{standard}, which this torch needs; g++ 11"
            f" can:\n{tried.stderr}"
        )


def run(words: list[str], *, log: Path, what: str, **environ: str) -> None:
    """Run a command, its output in a file.

    Raises:
        BuildError: If it fails, with the end of its output.
    """
    with log.open("a", encoding="utf-8") as file:
        ended = subprocess.run(
            words, env={**os.environ, **environ}, stdout=file, stderr=subprocess.STDOUT, check=False
        )
    if ended.returncode:
        last = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-40:])
        raise BuildError(
            f"{last}\n{what} failed (code {ended.returncode}); its whole output is in {log}"
        )


def pip(*words: str) -> list[str]:
    """Give pip's command line for this interpreter."""
    return [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]


def fetch_tools(place: Path, *, log: Path) -> dict[str, str]:
    """Install the build's tools into a folder of their own.

    Return the variables that make the build use them.
    """
    what = f"fetching the build's tools ({', '.join(TOOLS)})"
    run(
        pip("install", "--target", str(place), *TOOLS),
        log=log,
        what=what,
        PIP_CONSTRAINT="",
        PYTHONPATH="",
    )
    return {
        "PYTHONPATH": str(place),
        "HOROVOD_CMAKE": str(place / "cmake" / "data" / "bin" / "cmake"),
    }


def fetch_sources(place: Path, *, log: Path, tools: Mapping[str, str]) -> Path:
    """Download, verify and unpack the source distribution, and give its folder."""
    place.mkdir()
    wanted = place / "wanted.txt"
    wanted.write_text(f"horovod=={VERSION} --hash=sha256:{SHA256}\n", encoding="utf-8")
    options = ("--no-deps", "--no-binary", "horovod", "--no-build-isolation", "--dest", str(place))
    what = (
        f"downloading horovod {VERSION} (a network, or pip's find-links, must have its source"
        " distribution)"
    )
    run(pip("download", "--requirement", str(wanted), *options), log=log, what=what, **tools)
    unpack(place / f"horovod-{VERSION}.tar.gz", place)
    return place / f"horovod-{VERSION}"


def unpack(file: Path, place: Path) -> None:
    """Unpack an archive whose hash was verified."""
    with tarfile.open(file) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(place, filter="data")
        else:  # before Python 3.11.4
            archive.extractall(place)  # noqa: S202


def num_cores() -> int:
    """Count the cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def build(folder: Path, torch: Torch, flags: Mapping[str, str], *, work: Path, log: Path) -> None:
    """Build the wheel in ``work`` and leave it in ``folder``, which appears only once whole."""
    tools = fetch_tools(work / "tools", log=log)
    sources = fetch_sources(work / "sources", log=log, tools=tools)
    for name in (
        "CMakeLists.txt",
        "horovod/torch/CMakeLists.txt",
        "cmake/Modules/FindPytorch.cmake",
    ):
        file = sources / name
        text = file.read_text(encoding="utf-8")
        file.write_text(
            patched(name, text, standard=torch.standard, gpu=wants_gpu(flags)), encoding="utf-8"
        )
    environ = {**tools, **flags, "MAKEFLAGS": f"-j{num_cores()}"}
    options = ("--no-deps", "--no-build-isolation", "--wheel-dir", str(work / "wheel"))
    print(
        f"building horovod {VERSION} for torch {torch.version} (C++{torch.standard}): some minutes",
        flush=True,
    )
    run(pip("wheel", *options, str(sources)), log=log, what="building the wheel", **environ)
    partial = folder.with_name(f"{folder.name}.partial")
    for stale in (partial, folder):
        shutil.rmtree(stale, ignore_errors=True)
    shutil.copytree(work / "wheel", partial)
    partial.replace(folder)


def cached_wheel(root: Path, torch: Torch, flags: Mapping[str, str], *, anew: bool) -> Path:
    """Give the wheel from the cache, building it first where it is missing."""
    folder = root / cache_key(torch, flags, **interpreter())
    log = folder.with_name(f"{folder.name}.log")
    with held(folder.with_name(f"{folder.name}.lock")):
        if anew or not list(folder.glob("*.whl")):
            check_compiler(torch.standard)
            log.unlink(missing_ok=True)
            with tempfile.TemporaryDirectory(prefix="horovod-") as work:
                build(folder, torch, flags, work=Path(work), log=log)
    return next(folder.glob("*.whl"))


def install(wheel: Path) -> None:
    """Install the wheel into this interpreter's environment and load it."""
    log = wheel.parent.with_name(f"{wheel.parent.name}.install.log")
    log.unlink(missing_ok=True)
    run(
        pip("install", "--force-reinstall", "--no-deps", str(wheel)),
        log=log,
        what="installing the wheel",
    )
    run(pip("install", str(wheel)), log=log, what="installing what horovod needs")
    run(
        [sys.executable, "-c", CHECK],
        log=log,
        what=f"loading the installed horovod (--anew builds {wheel} again)",
    )
    print(log.read_text(encoding="utf-8", errors="replace").splitlines()[-1])


def kept(torch: Torch, environ: Mapping[str, str], *, python: str, platform: str) -> str | None:
    """Say what is installed where that is to stay.

    It loads, is for this torch, and is what the caller may wish.

    A caller without wishes wants any. For which torch pip's record of the wheel tells, which names
    the cache's folder; of a Horovod from elsewhere it is known only whether it loads.
    """
    try:
        record = metadata.distribution("horovod").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return None
    own = Path(unquote(json.loads(record or "{}").get("url", ""))).parent.name
    wished = cache_key(torch, wishes(environ), python=python, platform=platform)
    if own != wished and wishes(environ) != wishes({}):
        return None
    if (
        own.startswith("horovod-")
        and own.partition(f"-{platform}-")[0] != wished.partition(f"-{platform}-")[0]
    ):
        return None
    tried = subprocess.run(
        [sys.executable, "-c", CHECK], capture_output=True, text=True, check=False
    )
    return tried.stdout.splitlines()[-1] if tried.returncode == 0 else None


def main() -> int:
    """Build or find the wheel and install it."""
    summary, _, more = (__doc__ or "").partition("\n\n")
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=summary, epilog=more, formatter_class=form)
    parser.add_argument(
        "--anew", action="store_true", help="build even where it is installed, or the cache has it"
    )
    anew = parser.parse_args().anew
    try:
        torch = installed_torch()
        there = None if anew else kept(torch, os.environ, **interpreter())
        if there is None:
            install(cached_wheel(cache_root(os.environ), torch, wishes(os.environ), anew=anew))
        else:
            print(f"{there}; it is left as it is: --anew, or HOROVOD_* variables, build another")
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
