"""Layers that say the same thing in other words.

The higher one counts, and leaves what it does not contradict.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from lightkit.cli.command_table import parse
from lightkit.config import Hardware, resolve, resolve_hardware
from lightkit.errors import ConfigError
from lightkit.hardware import Machine
from tests.config.accelerator.test_resolve import FOUR, HOROVOD, TPU, trainer_of, two

PRESETS = Path(__file__).parents[3] / "configs" / "accelerator"


def layered(
    folder: Path,
    *layers: str,
    machine: Machine | None = None,
    environ: Mapping[str, str] = MappingProxyType({}),
) -> Hardware:
    """Resolve layers, lowest first: texts of files, names of shipped files, flags."""
    files = [PRESETS / layer for layer in layers if layer.endswith(".yaml")]
    for number, text in enumerate(
        layer for layer in layers if not layer.endswith(".yaml") and layer[:2] != "--"
    ):
        files.append(folder / f"{number}.yaml")
        files[-1].write_text(text)
    flags = parse(["fit", *(layer for layer in layers if layer[:2] == "--")]).overrides
    return resolve_hardware(resolve(files, flags=flags, environ={}), machine, environ=environ)


HOROVOD_ON_CPU = {"accelerator": "cpu", "strategy": HOROVOD, "devices": 1}
BF16_GPUS = {"accelerator": "gpu", "precision": "bf16-mixed"}
SHIPPED: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    (("cpu.yaml", "horovod.yaml"), HOROVOD_ON_CPU),
    (("horovod.yaml", "cpu.yaml"), HOROVOD_ON_CPU),
    (("horovod.yaml", "--accelerator=cpu"), HOROVOD_ON_CPU),
    (("cpu.yaml", '--accelerator.strategy="HorovodStrategy"'), HOROVOD_ON_CPU),
    (("horovod.yaml", "--accelerator=gpu"), {**HOROVOD_ON_CPU, "accelerator": "gpu"}),
    (("ddp.yaml", "cpu.yaml"), {**two("cpu"), "strategy": "ddp"}),
    (("ddp.yaml", "--accelerator=cpu"), {**two("cpu"), "strategy": "ddp"}),
    (("gpu.yaml", "ddp.yaml"), {**BF16_GPUS, "devices": 2, "strategy": "ddp"}),
    (("ddp.yaml", "gpu.yaml"), {**BF16_GPUS, "devices": -1, "strategy": "ddp"}),
    (("gpu.yaml", "horovod.yaml"), {**BF16_GPUS, "devices": 1, "strategy": HOROVOD}),
    (("horovod.yaml", "gpu.yaml"), {**BF16_GPUS, "devices": 1, "strategy": HOROVOD}),
    (("gpu.yaml", "torchrun.yaml"), {**BF16_GPUS, "strategy": "ddp"}),
    (("torchrun.yaml", "gpu.yaml"), {**BF16_GPUS, "strategy": "ddp"}),
    (("torchrun.yaml", "cpu.yaml"), {"accelerator": "cpu", "strategy": "ddp"}),
    (("gpu.yaml", "--accelerator=cpu"), {"accelerator": "cpu", "precision": "bf16-mixed"}),
    (("gpu.yaml", "cpu.yaml"), {"accelerator": "cpu", "precision": "bf16-mixed"}),
    (("tpu.yaml", "--accelerator=cpu"), {"accelerator": "cpu", "precision": "bf16-true"}),
    (("cpu.yaml", "tpu.yaml"), {"accelerator": "tpu", "devices": "auto", "precision": "bf16-true"}),
]


@pytest.mark.parametrize(("layers", "becomes"), SHIPPED, ids=[" ".join(row[0]) for row in SHIPPED])
def test_shipped_layers_combine(
    layers: tuple[str, ...], becomes: dict[str, Any], tmp_path: Path
) -> None:
    assert trainer_of(layered(tmp_path, *layers)) == becomes


LATER_WINS: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    (("accelerator: cpu", "accelerator: {precision: bf16-mixed}"),
     {"accelerator": "cpu", "precision": "bf16-mixed"}),
    (("accelerator: {gpus: 2, precision: 16}", "accelerator: cpu"),
     {"accelerator": "cpu", "precision": "16-mixed"}),
    (("accelerator: cpu", "accelerator: {gpus: 2}"), two("gpu")),
    (("accelerator: {gpus: 2}", "accelerator: auto"), {}),
    (("accelerator: {gpus: 2}", "accelerator: null"), {}),
    (("accelerator: {gpus: 2}", "accelerator: {kind: cpu}"), {"accelerator": "cpu"}),
    (("trainer: {gpus: 2}", "--trainer.accelerator=cpu"), {"accelerator": "cpu"}),
    (("trainer: {gpus: 2}", "--trainer.devices=1"), {"accelerator": "gpu", "devices": "1"}),
    (("trainer: {gpus: 2}", "trainer: {devices: 1}"), {"accelerator": "gpu", "devices": 1}),
    (("trainer: {devices: 1}", "accelerator: {gpus: 2}"), two("gpu")),
    (("trainer: {accelerator: cpu, devices: 4}", "accelerator: {gpus: 2}"), two("gpu")),
    (("accelerator: {gpus: 2}", "trainer: {devices: 1}"), {"accelerator": "gpu", "devices": 1}),
    (("accelerator: {precision: 16}", "trainer: {precision: bf16-mixed}"),
     {"precision": "bf16-mixed"}),
    (("trainer: {precision: 32-true}", "accelerator: {precision: bf16}"),
     {"precision": "bf16-mixed"}),
    (("trainer: {strategy: ddp}", "accelerator: {strategy: fsdp}"), {"strategy": "fsdp"}),
    (("accelerator: {tpu_cores: 8}", "accelerator: {gpus: 0}"), {"accelerator": "cpu"}),
    (("trainer: {accelerator: tpu, strategy: auto}",), {"accelerator": "tpu", "strategy": "auto"}),
    (("accelerator: {tpu_cores: 1, strategy: auto}",), {"accelerator": "tpu", "devices": 1}),
    (("trainer: {accelerator: mps, strategy: null}",), {"accelerator": "mps", "strategy": "auto"}),
    (("accelerator: {gpus: 0}", "accelerator: {tpu_cores: 8}"),
     {"accelerator": "tpu", "devices": 8}),
    (("accelerator: {num_processes: 2}", "--launch.processes=4"),
     {"accelerator": "cpu", "devices": 4, "strategy": "ddp"}),
    (("launch: {processes: 2}", "--trainer.devices=4"), {"devices": "4"}),
    (("launch: {processes: 2}", "--accelerator.gpus=0,3"),
     {"accelerator": "gpu", "devices": [0, 3]}),
    (("accelerator: {gpus: -1}", "launch: {processes: 2}"), {**two("gpu"), "strategy": "ddp"}),
    (("accelerator: {gpus: [0, 3]}", "launch: {processes: 2}"),
     {"accelerator": "gpu", "devices": [0, 3]}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("layers", "becomes"), LATER_WINS, ids=[" & ".join(row[0]) for row in LATER_WINS]
)
def test_a_later_layer_wins_in_other_words(
    layers: tuple[str, ...], becomes: dict[str, Any], tmp_path: Path
) -> None:
    assert trainer_of(layered(tmp_path, *layers)) == becomes


@pytest.mark.parametrize(
    ("layers", "processes"),
    [
        (("launch: {processes: 2}", "--trainer.devices=4"), 4),
        (("launch: {processes: 2}", "--accelerator.num_processes=4"), 4),
        (("launch: {processes: 2}", "--accelerator.gpus=0,3"), 2),
        (("launch: {processes: 2}", "--launch.processes=3"), "3"),
        (("accelerator: {num_processes: 2}", "launch: {processes: 4}"), 4),
        (("horovod.yaml", "--accelerator.gpus=4"), 4),
        (("horovod.yaml", "--accelerator.gpus=1"), 2),
        (("horovod.yaml", "gpu.yaml"), 2),
    ],
)
def test_as_many_processes_are_launched(
    layers: tuple[str, ...], processes: Any, tmp_path: Path
) -> None:
    assert layered(tmp_path, *layers).resolved.values["launch"]["processes"] == processes


@pytest.mark.parametrize(
    ("layers", "says"),
    [
        (
            ("accelerator: {gpus: 2}", "--accelerator.tpu_cores=8"),
            "gpus: 2 contradicts accelerator.tpu_cores: 8",
        ),
        (("gpu.yaml", "tpu.yaml"), "gpus: -1 contradicts accelerator.tpu_cores: all"),
        (
            ("", "--accelerator=cpu", "--accelerator.gpus=2"),
            "accelerator: cpu contradicts accelerator.gpus: 2",
        ),
        (
            ("trainer: {gpus: 2, accelerator: cpu}",),
            "trainer.accelerator: cpu contradicts trainer.gpus: 2",
        ),
    ],
)
def test_what_contradicts_all_the_same(layers: tuple[str, ...], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        layered(tmp_path, *layers)


def test_what_an_error_advises_can_be_said(tmp_path: Path) -> None:
    machine = Machine(gpus=(FOUR.gpus or ())[:2])
    asked = ("accelerator: {strategy: horovod}\nlaunch: {processes: 6}",)
    with pytest.raises(ConfigError, match=r"at most 2, or accelerator.gpus: 0 for the CPU"):
        layered(tmp_path, *asked, machine=machine)
    said = layered(tmp_path, *asked, "--accelerator.gpus=0", machine=machine)
    assert (said.processes, trainer_of(said)) == (6, HOROVOD_ON_CPU)


def test_all_cores_of_any_tpu(tmp_path: Path) -> None:
    assert trainer_of(layered(tmp_path, "tpu.yaml", machine=TPU))["devices"] == "auto"
