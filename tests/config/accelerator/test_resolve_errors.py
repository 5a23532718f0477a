"""What the hardware keys refuse: each error says what, where, and what to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lightkit.cli.command_table import parse
from lightkit.config.accelerator import resolve_hardware
from lightkit.config.loader import resolve
from lightkit.config.overrides import Flag
from lightkit.errors import ConfigError
from lightkit.hardware import Gpu, Machine, Xla
from tests.config.accelerator.test_resolve import FOUR, NOTHING, TPU, hardware_of

ONE = Machine(gpus=(Gpu(0, "NVIDIA H200", 139 << 30, "GPU-0"),))
TORCH = {"torch": "2.15.0+cu132"}
CHIPS = Xla("2.9.0", None, 4, 8)

WRONG = [
    (
        "accelerator: [gpu]",
        r"accelerator: expected one of auto, .*, or a mapping such as {gpus: 2}, got \['gpu'\]",
    ),
    ("accelerator: gup", r"accelerator: expected one of .*got 'gup'; did you mean 'gpu'\?"),
    (
        "accelerator: horovod",
        r"got 'horovod'; a strategy stands below it, as in accelerator: {strategy: ddp}",
    ),
    (
        "accelerator: {gpu: 2}",
        r"accelerator.gpu: there is no such key; did you mean 'gpus'.*\nkeys: kind, gpus, tpu",
    ),
    (
        "accelerator: {scale_lr: true}",
        r"scale_lr: there is no such key; set callbacks: {scale_lr: {}}",
    ),
    ("accelerator: {gpus: true}", r"gpus: expected a number of GPUs.* got True"),
    (
        "accelerator: {gpus: -2}",
        r"accelerator.gpus: expected a number of GPUs, their numbers.*got -2",
    ),
    ("accelerator: {gpus: 1.5}", r"got 1.5"),
    ("accelerator: {gpus: two}", r"got 'two'"),
    ("accelerator: {gpus: [0, -1]}", r"got \[0, -1\]"),
    ("accelerator: {gpus: [0, true]}", r"got \[0, True\]"),
    ("accelerator: {gpus: {a: 1}}", r"got {'a': 1}"),
    ("trainer: {devices: [0, 0]}", r"trainer.devices: \[0, 0\] names a device twice"),
    ("accelerator: {gpus: '1,1'}", r"accelerator.gpus: \[1, 1\] names a device twice"),
    (
        "accelerator: {tpu_cores: 4}",
        r"tpu_cores: expected 1, 8, auto, or the number of one core such as \[7\]; .*, go",
    ),
    (
        "accelerator: {tpu_cores: [1, 2]}",
        r"one core or all of a TPU's, and counts them from 0, got \[1, 2\]",
    ),
    ("accelerator: {tpu_cores: [8]}", r"counts them from 0, got \[8\]"),
    ("accelerator: {tpu_cores: true}", r"got True"),
    (
        "accelerator: {ipus: 4}",
        r"accelerator.ipus: 4: Lightning 2.1 dropped IPUs; use gpus, tpu_cores or cpu",
    ),
    ("trainer: {ipus: 4}", r"trainer.ipus: 4: Lightning 2.1 dropped IPUs"),
    ("trainer: {accelerator: ipu}", r"trainer.accelerator: ipu: Lightning 2.1 dropped IPUs"),
    ("accelerator: {hpus: 4}", r"accelerator.hpus: 4: Lightning 2.1 moved HPUs out"),
    ("accelerator: {num_processes: 0}", r"num_processes: expected a number from 1, got 0"),
    ("accelerator: {num_processes: many}", r"got 'many'"),
    ("accelerator: {num_nodes: 0}", r"num_nodes: expected a number from 1, got 0"),
    (
        "accelerator: {strategy: dp}",
        r"strategy: dp is not a strategy any more: Lightning 2.0 dropped it; use ddp",
    ),
    (
        "trainer: {accelerator: ddp2, gpus: 2}",
        r"trainer.accelerator: ddp2 is not a strategy any more",
    ),
    ("trainer: {strategy: ddp_sharded}", r"dropped FairScale; use fsdp or deepspeed_stage_2"),
    ("trainer: {strategy: bagua}", r"dropped Bagua"),
    (
        "accelerator: {precision: bf15}",
        r"precision: expected one of auto, 16, .*, got 'bf15'; did you mean .*'bf16'",
    ),
    ("accelerator: {precision: 8}", r"got 8"),
    ("accelerator: {precision: true}", r"got True"),
    (
        "trainer: {devices: 0, accelerator: gpu}",
        r"trainer.devices: expected a number of devices from 1",
    ),
    (
        "trainer: {devices: -3, accelerator: cpu}",
        r"trainer.devices: expected a number of devices from 1",
    ),
    (
        "launch: {processes: -2}",
        r"launch.processes: expected a number from 1; .* launch.engine: spark only, got -2",
    ),
    (
        "accelerator: {tpu_cores: 1, precision: 16}",
        r"precision: 16: on a TPU expected 32-true or bf16-true; 16-true comp",
    ),
    (
        "trainer: {accelerator: tpu, precision: bf16-mixed}",
        r"trainer.precision: bf16-mixed: on a TPU expected",
    ),
    (
        "trainer: {accelerator: tpu, precision: 16-true}",
        r"trainer.precision: 16-true: on a TPU expected",
    ),
    ("trainer: {accelerator: tpu, precision: 64}", r"trainer.precision: 64: on a TPU expected"),
    (
        "accelerator: {strategy: horovod, gpus: [0, 3]}",
        r"the variable CUDA_VISIBLE_DEVICES=0,3, and say gpus: 2",
    ),
]


@pytest.mark.parametrize(
    ("text", "says"), WRONG, ids=[text.replace("\n", " & ") for text, _ in WRONG]
)
def test_what_is_wrong_is_shown_at_its_place(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        hardware_of(tmp_path, text)
    assert re.search(says, str(caught.value))
    assert f"  --> {tmp_path / 'x.yaml'}:1:" in str(caught.value) or "\n" in text


BOTH = [
    (
        "accelerator: {gpus: 2, tpu_cores: 8}",
        r"gpus: 2 contradicts accelerator.tpu_cores: 8; .*one kind of device",
    ),
    (
        "accelerator: {gpus: 2}\ntrainer: {gpus: 1}",
        r"accelerator.gpus: 2 contradicts trainer.gpus: 1",
    ),
    (
        "accelerator: {gpus: 2}\ntrainer: {devices: 1}",
        r"accelerator.gpus: 2 contradicts trainer.devices: 1",
    ),
    (
        "accelerator: {gpus: 2}\ntrainer: {accelerator: cpu}",
        r"trainer.accelerator: cpu contradicts accelerator.gpus: 2",
    ),
    (
        "accelerator: {gpus: 0}\ntrainer: {accelerator: gpu}",
        r"trainer.accelerator: gpu contradicts accelerator.gpus: 0",
    ),
    (
        "accelerator: cpu\ntrainer: {accelerator: gpu}",
        r"accelerator: cpu contradicts trainer.accelerator: gpu",
    ),
    (
        "accelerator: {gpus: 2, num_processes: 3}",
        r"gpus: 2 contradicts accelerator.num_processes: 3",
    ),
    (
        "accelerator: {num_processes: 2}\ntrainer: {accelerator: gpu}",
        r"accelerator: gpu contradicts .*num_processes: 2",
    ),
    (
        "accelerator: {tpu_cores: 8, strategy: ddp}",
        r"strategy: ddp contradicts .*tpu_cores: 8; a TPU takes the strat",
    ),
    (
        "accelerator: {tpu_cores: 8, strategy: horovod}",
        r"strategy: horovod contradicts accelerator.tpu_cores: 8",
    ),
    (
        "accelerator: {gpus: 2, strategy: ddp_cpu}",
        r"gpus: 2 contradicts accelerator.strategy: ddp_cpu",
    ),
    (
        "accelerator: {gpus: 2, strategy: tpu_spawn}",
        r"gpus: 2 contradicts accelerator.strategy: tpu_spawn",
    ),
    ("accelerator: {strategy: xla, gpus: 0}", r"the strategy xla is for TPUs only"),
    (
        "accelerator: {strategy: fsdp, gpus: 0}",
        r"fsdp works on NVIDIA's GPUs only; on CPUs there is ddp",
    ),
    ("accelerator: {strategy: ddp}\ntrainer: {accelerator: mps}", r"Apple's GPU works alone"),
    (
        "accelerator: {strategy: ddp}\ntrainer: {strategy: fsdp}",
        r"accelerator.strategy: ddp contradicts trainer.strategy",
    ),
    (
        "trainer: {strategy: ddp, accelerator: ddp_spawn}",
        r"trainer.accelerator: ddp_spawn contradicts trainer.strategy: ddp",
    ),
    (
        "accelerator: {precision: 16}\ntrainer: {precision: bf16}",
        r"precision: 16 contradicts trainer.precision: bf16",
    ),
    (
        "accelerator: {num_nodes: 2}\ntrainer: {num_nodes: 3}",
        r"num_nodes: 2 contradicts trainer.num_nodes: 3",
    ),
    (
        "accelerator: {strategy: horovod, num_nodes: 2}",
        r"the machines stand under launch.hosts: 'a:4,b:4'",
    ),
    (
        "accelerator: {strategy: horovod, gpus: 2}\nlaunch: {processes: 4}",
        r"gpus: 2 contradicts launch.processes: 4",
    ),
    (
        "launch: {processes: 4}\ntrainer: {devices: 2}",
        r"trainer.devices: 2 contradicts launch.processes: 4",
    ),
    (
        "launch: {processes: 4, engine: torchrun}\naccelerator: {num_processes: 2}",
        r"num_processes: 2 contradicts launch",
    ),
    (
        "launch: {processes: 3}\naccelerator: {gpus: [0, 3]}",
        r"gpus: \[0, 3\] contradicts launch.processes: 3",
    ),
    (
        "accelerator: {gpus: [0, 3]}\ntrainer: {devices: [0, 1]}",
        r"gpus: \[0, 3\] contradicts trainer.devices: \[0, 1",
    ),
    (
        "accelerator: {gpus: 2, strategy: single_device}",
        r"strategy: single_device contradicts accelerator.gpus: 2; it",
    ),
    (
        "launch: {engine: horovod}\naccelerator: {strategy: ddp}",
        r"ddp contradicts launch.engine: horovod",
    ),
    (
        "launch: {engine: ray}\naccelerator: {strategy: horovod}",
        r"started by the engine horovod or spark",
    ),
    (
        "accelerator: {gpus: 0}\ntrainer: {devices: -1}",
        r"on CPUs it is the number of processes, such as 2",
    ),
]


@pytest.mark.parametrize(
    ("text", "says"), BOTH, ids=[text.replace("\n", " & ") for text, _ in BOTH]
)
def test_a_contradiction_shows_both_places(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        hardware_of(tmp_path, text)
    assert re.search(says, str(caught.value))
    assert str(caught.value).count(f"  --> {tmp_path / 'x.yaml'}:") == 2


def test_two_flags_that_contradict_are_both_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        hardware_of(tmp_path, "", "--accelerator.gpus=2", "--trainer.devices=4")
    assert str(caught.value).splitlines() == [
        "accelerator.gpus: 2 contradicts trainer.devices: 4; say one of them, or the same number",
        "  --> --accelerator.gpus=2",
        "  --> --trainer.devices=4",
    ]


TOO_FEW = [
    (
        "accelerator: {gpus: 2}",
        ONE,
        r"gpus: 2: this machine shows 1 GPU, 0: NVIDIA H200 \(139 GiB\); say at most 1, or",
    ),
    ("accelerator: {gpus: [3]}", ONE, r"gpus: \[3\]: this machine shows 1 GPU"),
    (
        "accelerator: {gpus: 1}",
        NOTHING,
        r"gpus: 1: this machine shows no GPU; say gpus: 0 for the CPU, or",
    ),
    ("accelerator: gpu", NOTHING, r"accelerator: gpu: this machine shows no GPU"),
    (
        "trainer: {accelerator: gpu, devices: 8}",
        NOTHING,
        r"say trainer.accelerator: cpu, or leave it out",
    ),
    ("accelerator: {gpus: -1}", NOTHING, r"gpus: -1: this machine shows no GPU"),
    (
        "trainer: {accelerator: cuda, devices: 5}",
        FOUR,
        r"trainer.devices: 5: this machine shows 4 GPUs, 0: NVIDIA",
    ),
    ("accelerator: {strategy: horovod, gpus: 8}", FOUR, r"gpus: 8: this machine shows 4 GPUs"),
    (
        "trainer: {devices: [0, 3]}",
        NOTHING,
        r"devices: \[0, 3\]: Lightning finds no device but CPUs on this",
    ),
    (
        "accelerator: {strategy: fsdp}",
        NOTHING,
        r"strategy: fsdp: Lightning finds no device but CPUs on this",
    ),
    (
        "trainer: {devices: 16}",
        FOUR,
        r"devices: 16: this machine shows 4 GPUs, .*; say at most 4, or trainer.accelerator: cpu",
    ),
    (
        "launch: {processes: 2}",
        ONE,
        r"launch.processes: 2: this machine shows 1 GPU, .*; say at most 1, or accelerator.gpus: 0",
    ),
    (
        "trainer: {devices: 2}",
        Machine(mps=True),
        r"devices: 2: this machine has one GPU, Apple's; .*trainer.accelerator: cpu",
    ),
    (
        "accelerator: {strategy: xla}",
        FOUR,
        r"strategy: xla: Lightning finds GPUs on this machine; the strategy xla is for TPUs",
    ),
    (
        "accelerator: {strategy: ddp}",
        TPU,
        r"strategy: ddp: Lightning finds a TPU on this machine; a TPU takes the",
    ),
    ("accelerator: mps", NOTHING, r"accelerator: mps: this machine has no GPU of Apple's"),
    ("accelerator: {gpus: 2}", Machine(mps=True), r"gpus: 2: this machine has one GPU, Apple's"),
    (
        "accelerator: {strategy: horovod, gpus: -1}",
        Machine(gpus=None),
        r"cannot be counted without CUDA; set their number",
    ),
    (
        "accelerator: {tpu_cores: 8}",
        Machine(xla=Xla("2.9.0"), versions=TPU.versions),
        r"tpu_cores: 8: this machine has no TPU cores",
    ),
    (
        "accelerator: {tpu_cores: 8}",
        Machine(xla=Xla("2.9.0", "TPU", 4, 4)),
        r"expected 1, 4, auto, .* got 8",
    ),
    (
        "accelerator: {tpu_cores: 8}",
        Machine(xla=Xla("2.9.0", "TPU", 1, 1)),
        r"expected 1, auto, .* \[0\]; .* got 8",
    ),
    (
        "launch: {engine: torchrun, processes: 8}",
        FOUR,
        (
            r"launch.processes: 8: this machine shows 4 GPUs, .*; say at most 4, or"
            r" accelerator.gpus: 0"
        ),
    ),
    (
        "accelerator: {gpus: 1}",
        Machine(gpus=FOUR.gpus, versions={"torch": "2.15.0+cpu"}),
        (
            r"gpus: 1: this machine shows 4 GPUs, .*, and torch 2.15.0\+cpu is built for CPUs only;"
            r" say gpus: 0"
        ),
    ),
]


@pytest.mark.parametrize(
    ("text", "machine", "says"), TOO_FEW, ids=[f"{row[0]}-{row[2][-20:]}" for row in TOO_FEW]
)
def test_more_devices_than_there_are(
    text: str, machine: Machine, says: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        hardware_of(tmp_path, text, machine=machine)
    assert re.search(says, str(caught.value))
    assert f"  --> {tmp_path / 'x.yaml'}:1:" in str(caught.value)


def test_the_variable_that_hides_gpus_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"shows no GPU \(CUDA_VISIBLE_DEVICES is ''\)"):
        hardware_of(tmp_path, "accelerator: {gpus: 1}", machine=NOTHING, CUDA_VISIBLE_DEVICES="")


@pytest.mark.parametrize(
    ("versions", "says"),
    [
        (
            TORCH,
            (
                r"torch 2.9, and here are torch-xla \(not installed\) and torch 2.15.0\+cu132;"
                r" .*pip install '.\[tpu\]'"
            ),
        ),
        ({}, r"TPUs need torch-xla and torch 2.9, and here are torch-xla \(not installed\)"),
        (
            {**TORCH, "torch-xla": "2.9.0"},
            r"torch 2.9, and here are torch-xla 2.9.0 and torch 2.15.0\+cu132; make an env",
        ),
    ],
    ids=["none", "neither", "other"],
)
def test_a_tpu_without_its_torch_says_how_to_install(
    versions: dict[str, str], says: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        hardware_of(
            tmp_path, "accelerator: {tpu_cores: 1}", machine=Machine(xla=CHIPS, versions=versions)
        )
    assert f"  --> {tmp_path / 'x.yaml'}:1:26" in str(caught.value)


def test_xlas_variable_against_another_precision(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"precision: 32 contradicts XLA_USE_BF16: 1") as caught:
        hardware_of(tmp_path, "accelerator: {tpu_cores: 1, precision: 32}", XLA_USE_BF16="1")
    assert str(caught.value).endswith("  --> environment variable XLA_USE_BF16")


def test_an_error_names_the_flag(tmp_path: Path) -> None:
    resolved = resolve(flags=[Flag("accelerator.gpus", "x", "--accelerator.gpus=x")], environ={})
    with pytest.raises(ConfigError, match=r"got 'x'\n  --> --accelerator.gpus=x$"):
        resolve_hardware(resolved, environ={})
    assert parse(["fit", "accelerator.gpus=2"]).overrides[0].key == "accelerator.gpus"
