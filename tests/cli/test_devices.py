"""`lightkit devices` on a terminal, in a pipe, for a program, and with a wrong word."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata

import pytest

from lightkit.cli import main
from lightkit.cli.commands import devices as command
from lightkit.machine import Gpu, Horovod, Machine, Xla

GPU = Gpu(0, "NVIDIA H200", 139 << 30, "GPU-1")


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is always the same."""
    machine = Machine(
        host="box",
        platform="Linux",
        python="3.11.7",
        cpu="EPYC",
        cores=2,
        instruction_sets=("avx2", "avx512f"),
        memory_bytes=24 << 30,
        memory_available_bytes=20 << 30,
        gpus=(GPU,),
        gpu_driver="570.1",
        xla=Xla(None, None, 4, 8),
        versions={"torch": "2.15.0", "mlflow": "3.17.2"},
    )
    monkeypatch.setattr(command, "this_machine", lambda: machine)
    monkeypatch.setattr(command, "find_horovod", lambda: Horovod("0.28.1", {"gloo": True, "mpi": False}))


def test_the_table_in_a_pipe(here: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "host      box, Linux",
        "cpu       EPYC",
        "cores     2 for this process; avx2 avx512f",
        "memory    24.0 GiB, 20.0 GiB available",
        "gpus      1, driver 570.1",
        "          0: NVIDIA H200, 139.0 GiB, GPU-1",
        "xla       4 TPU chips with 8 cores in all; torch-xla is not installed: "
        "in lightkit's sources and an environment of its own, pip install -c constraints-tpu.txt '.[tpu]'",
        "horovod   0.28.1, built with gloo; without mpi",
        "versions  Python 3.11.7",
        "          torch 2.15.0",
        "          mlflow 3.17.2",
    ]


def test_the_table_on_a_terminal(
    here: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["devices"]) == 0
    told = capsys.readouterr().out
    for text in ("host", "box, Linux", "0: NVIDIA H200, 139.0 GiB, GPU-1", "0.28.1, built with gloo; without mpi"):
        assert text in told


def test_json_holds_all_of_it(here: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "schema": 1,
        "host": "box",
        "platform": "Linux",
        "python": "3.11.7",
        "cpu": "EPYC",
        "cores": 2,
        "instruction_sets": ["avx2", "avx512f"],
        "memory_bytes": 24 << 30,
        "memory_available_bytes": 20 << 30,
        "gpus": [{"index": 0, "name": "NVIDIA H200", "memory_bytes": 139 << 30, "uuid": "GPU-1"}],
        "gpu_driver": "570.1",
        "mps": False,
        "xla": {"version": None, "device": None, "tpu_chips": 4, "tpu_cores": 8},
        "versions": {"torch": "2.15.0", "mlflow": "3.17.2"},
        "horovod": {"version": "0.28.1", "built_with": {"gloo": True, "mpi": False}, "problem": None},
    }


@pytest.mark.parametrize(
    ("machine", "horovod", "says"),
    [
        (Machine(), Horovod(), "gpus      none that CUDA shows to this process, or no driver for them\n"),
        (Machine(gpu_driver="570.1"), Horovod(), "gpus      none that CUDA shows to this process; driver 570.1\n"),
        (Machine(gpus=None), Horovod(), "gpus      there are some, which only CUDA or ROCm itself can count\n"),
        (Machine(mps=True), Horovod(), "gpus      Apple's, as mps\n"),
        (Machine(), Horovod(), "horovod   not installed: make horovod\n"),
        (Machine(), Horovod("0.28.1", problem="no"), "horovod   0.28.1, but no; to build it again: make horovod\n"),
        (Machine(), Horovod(), "memory    unknown, unknown available\n"),
        (Machine(), Horovod(), "xla       no TPU chips, no torch-xla\n"),
        (Machine(xla=Xla("2.9.0", "CPU")), Horovod(), "xla       no TPU chips; torch-xla 2.9.0, PJRT_DEVICE CPU\n"),
    ],
)
def test_what_is_missing_is_told(
    machine: Machine,
    horovod: Horovod,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(command, "this_machine", lambda: machine)
    monkeypatch.setattr(command, "find_horovod", lambda: horovod)
    assert main(["devices"]) == 0
    assert says in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "hint"),
    [("--jsn", "; did you mean '--json'?"), ("--output=json", "; did you mean '--json'?"), ("gpus=2", "")],
)
def test_a_wrong_word_is_a_mistake(word: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", word]) == 2
    told = capsys.readouterr()
    assert told.err == f"error: devices: unexpected argument {word!r}{hint}\nusage: lightkit devices [--json]\n"
    assert told.out == ""


def test_help_names_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--help"]) == 0
    assert "--json" in capsys.readouterr().out


@pytest.mark.slow
def test_this_machine_in_a_process_of_its_own() -> None:
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    ask = [sys.executable, "-m", "lightkit", "devices"]
    done = subprocess.run([*ask, "--json"], capture_output=True, text=True, check=True, env=environ, timeout=200)
    assert json.loads(done.stdout)["versions"]["torch"] == metadata.version("torch")
    plain = subprocess.run(ask, capture_output=True, text=True, check=True, env=environ, timeout=200)
    assert plain.stderr == ""
    assert "\x1b" not in plain.stdout
    assert f"torch {metadata.version('torch')}\n" in plain.stdout
