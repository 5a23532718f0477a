"""Hardware keys from a file, a variable and a flag, as the command tells what is wrong with them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from lightkit.cli import main

MODEL = "pytorch_lightning.demos.boring_classes.BoringModel"


@pytest.fixture(autouse=True)
def without_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(tmp_path)


def test_gpus_that_are_not_there_are_told_with_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("x.yaml").write_text(f"model: {MODEL}\naccelerator:\n  gpus: 2\n")
    assert main(["fit", "-c", "x.yaml"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: accelerator.gpus: 2: this machine shows no GPU (CUDA_VISIBLE_DEVICES is ''); "
        "say gpus: 0, which is the CPU, or leave it out",
        "  --> x.yaml:3:9",
        "    3 |   gpus: 2",
        "      |         ^",
    ]


def test_a_variable_and_a_flag_are_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTKIT_ACCELERATOR__GPUS", "2")
    assert main(["fit", f"--model={MODEL}", "--accelerator.tpu_cores=8"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: accelerator.gpus: 2 contradicts accelerator.tpu_cores: 8; "
        "a run is on one kind of device, not on gpu and tpu",
        "  --> environment variable LIGHTKIT_ACCELERATOR__GPUS",
        "  --> --accelerator.tpu_cores=8",
    ]


def test_hardware_is_refused_before_torch_is_loaded() -> None:
    program = (
        "import sys; from lightkit.cli import main\n"
        "codes = [main(['fit', 'accelerator.gpus=2']), main(['fit', 'accelerator.tpu_cores=1'])]\n"
        "print(codes, [name for name in ('torch', 'torch_xla', 'horovod') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[2, 2] []\n"
    assert "pip install '.[tpu]' -c constraints-tpu.txt" in done.stderr


@pytest.mark.slow
def test_the_printed_config_has_todays_keys() -> None:
    flags = ["accelerator.num_processes=2", "accelerator.precision=bf16", "accelerator.scale_lr=true"]
    flags += ["accelerator.threads=1", "accelerator.memory_format=auto", "accelerator.fused=true"]
    ask = [
        sys.executable,
        "-m",
        "lightkit",
        "fit",
        "--print_config",
        *flags,
        "model=pytorch_lightning.demos.boring_classes.BoringModel",
    ]
    done = subprocess.run(ask, capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 0, done.stderr
    for line in ("accelerator: cpu", "devices: 2", "strategy: ddp", "precision: bf16-mixed"):
        assert f"\n  {line}\n" in done.stdout
    assert "class_path: lightkit.distributed.ScaledLearningRate" in done.stdout
    printed = yaml.safe_load(done.stdout)
    assert printed["launch"]["threads"] == 1
    assert {key: value for key, value in printed["accelerator"].items() if value} == {
        "memory_format": "auto",
        "fused": True,
    }
