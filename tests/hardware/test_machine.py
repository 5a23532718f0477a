"""The machine as a whole, and what asking costs."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

import pytest

from lightkit.hardware import Horovod, find_horovod, this_machine

HEAVY = ("torch", "pytorch_lightning", "torchvision", "mlflow", "numpy", "horovod", "torch_xla")


def test_this_machine_is_described_in_plain_values() -> None:
    machine = this_machine({"CUDA_VISIBLE_DEVICES": "", "PJRT_DEVICE": "CPU"})
    assert machine.cores
    assert machine.memory_bytes
    assert machine.memory_available_bytes
    assert machine.memory_available_bytes <= machine.memory_bytes
    assert not machine.gpus
    assert machine.xla.device == "CPU"
    assert machine.versions["torch"] == metadata.version("torch")
    described = json.loads(json.dumps(asdict(machine)))
    assert described["versions"] == machine.versions
    assert described["instruction_sets"] == list(machine.instruction_sets)


def test_asking_loads_nothing_heavy() -> None:
    program = (
        "import sys; from lightkit.hardware import find_horovod, this_machine; this_machine();"
        f" find_horovod();print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_horovod_reports_what_it_was_built_with() -> None:
    found = find_horovod()
    if found.version is None:
        pytest.skip("horovod is not installed: make horovod")
    assert found.problem is None
    assert found.built_with is not None
    assert found.built_with["gloo"] is True
    assert set(found.built_with) == {"gloo", "mpi", "nccl", "cuda", "rocm", "ccl", "ddl"}


@pytest.mark.slow  # it loads torch
def test_a_horovod_that_does_not_load_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").write_text("raise OSError('not a library')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(
        "lightkit.hardware.packages.describe_packages", lambda _: {"horovod": "0.28.1"}
    )
    assert find_horovod() == Horovod(
        "0.28.1", problem="its library does not load: OSError: not a library"
    )


def test_no_horovod_is_reported_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightkit.hardware.packages.describe_packages", lambda _: {})
    assert find_horovod() == Horovod()
