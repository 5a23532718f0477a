"""How to compute.

Values go to the keys that they are for, `auto` follows the hardware, and a higher layer wins.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lightkit.config import Hardware, resolve, resolve_hardware
from lightkit.errors import ConfigError
from lightkit.hardware import Gpu, Machine
from tests.config.accelerator.test_resolve import NOTHING, TPU
from tests.config.accelerator.test_resolve_precedence import layered

CLASSES = (
    "model: {class_path: ImageClassifier}\ndata: {class_path: Flowers,"
    " init_args: {batch_size: 16}}\n"
)
ADAM = "optimizer: {class_path: Adam}\n"
BF16 = replace(NOTHING, cores=4, instruction_sets=("avx512f", "avx512_bf16"))
CHOSEN_BY_RULE = (
    "precision",
    "memory_format",
    "compile",
    "tf32",
    "fused",
    "threads",
    "num_workers",
)
AUTO = f"accelerator: {{{', '.join(f'{key}: auto' for key in CHOSEN_BY_RULE)}}}"
OWN_DATA = "data: {class_path: my_data.Own}"


def said_by(hardware: Hardware) -> dict[str, Any]:
    """Give all that a config says but its classes, by dotted key."""
    values = hardware.resolved.values
    found = {
        f"accelerator.{key}": value for key, value in (values.get("accelerator") or {}).items()
    }
    for section in ("data", "model", "optimizer"):
        arguments = (values.get(section) or {}).get("init_args") or {}
        found |= {f"{section}.{key}": value for key, value in arguments.items()}
    for section in ("trainer", "launch"):
        found |= {f"{section}.{key}": value for key, value in (values.get(section) or {}).items()}
    return found


BECOMES: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    (("accelerator: {threads: 2}",), {"launch.threads": 2}),
    (("accelerator: {batch_size: 32, num_workers: 0}",),
     {"data.batch_size": 32, "data.num_workers": 0}),
    (("accelerator: {precision: bf16}",), {"trainer.precision": "bf16-mixed"}),
    (("accelerator: {learning_rate: 1e-2}",), {"model.learning_rate": 0.01}),
    (("accelerator: {learning_rate: 1e-2}", ADAM), {"optimizer.lr": 0.01}),
    (("accelerator: {memory_format: channels_last, compile: true}",),
     {"accelerator.memory_format": "channels_last", "accelerator.compile": True}),
    (("--accelerator.threads=2", "--accelerator.compile=auto", "--accelerator.fused=false"),
     {"launch.threads": 2, "accelerator.compile": False, "accelerator.fused": False}),
    (("accelerator: {threads: null, compile: null, precision: null}",), {}),
    (("accelerator: cpu", "accelerator: {precision: auto}"),
     {"trainer.accelerator": "cpu", "trainer.precision": "bf16-mixed"}),
    (("accelerator: {precision: auto}", "accelerator: null"), {}),
    (("accelerator: {precision: auto}", "accelerator: cpu"),
     {"trainer.accelerator": "cpu", "trainer.precision": "bf16-mixed"}),
    # a higher layer wins in whatever words
    (("accelerator: {precision: auto}", "--trainer.precision=32"), {"trainer.precision": "32"}),
    (("trainer: {precision: 16-mixed}", "accelerator: {precision: auto}"),
     {"trainer.precision": "bf16-mixed"}),
    (("accelerator: {precision: auto}", "accelerator: {precision: 16-mixed}"),
     {"trainer.precision": "16-mixed"}),
    (("accelerator: {precision: 16-mixed}", "accelerator: {precision: auto}"),
     {"trainer.precision": "bf16-mixed"}),
    (("accelerator: {num_workers: auto}",), {"data.num_workers": "auto"}),
    (("accelerator: {tf32: auto, fused: auto}",), {}),
    (("accelerator: {batch_size: 8}", "--data.batch_size=64"), {"data.batch_size": "64"}),
    (("accelerator: {threads: 4}", "launch: {threads: 1}"), {"launch.threads": 1}),
    (("launch: {threads: 1}", "accelerator: {threads: auto}"), {"launch.threads": 4}),
    (("launch: {threads: 2}\naccelerator: {threads: 2}",), {"launch.threads": 2}),
    (("data: {num_workers: auto}\naccelerator: {num_workers: 2}",), {"data.num_workers": 2}),
    (("model: {init_args: {learning_rate: 0.1}}", "accelerator: {learning_rate: 0.5}"),
     {"model.learning_rate": 0.5}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("layers", "becomes"), BECOMES, ids=[" & ".join(row[0]) for row in BECOMES]
)
def test_a_value_goes_where_it_is_for_and_the_higher_layer_wins(
    layers: tuple[str, ...], becomes: dict[str, Any], tmp_path: Path
) -> None:
    assert (
        said_by(layered(tmp_path, CLASSES, *layers, machine=BF16))
        == {"data.batch_size": 16} | becomes
    )


WRONG = [
    (
        "memory_format: chanels_last",
        r"memory_format: expected 'auto', 'contiguous' or .* did you mean 'channels_last'",
    ),
    ("compile: 3", r"compile: expected 'auto', true or false or null, got 3"),
    ("threads: 0", r"threads: expected 1 or more, 'auto' or null, got 0"),
    ("num_workers: -1", r"num_workers: expected 0 or more, 'auto' or null, got -1"),
    ("batch_size: 2.5", r"batch_size: expected an integer or null, got 2.5"),
    ("threads: atuo", r"got 'atuo'; did you mean 'auto'"),
    (
        "batch_size: auto",
        r"batch_size: auto: no training measures; `lightkit tune --batch-size` finds a number",
    ),
    (
        "learning_rate: auto",
        r"learning_rate: auto: no training measures; `lightkit tune --learning-rate` finds",
    ),
    ("threads: AUTO", r"got 'AUTO'; did you mean 'auto'"),
    ("compile: AUTO", r"got 'AUTO'; did you mean 'auto'"),
    ("memory_format: AUTO", r"got 'AUTO'; did you mean 'auto'"),
    ("precision: AUTO", r"got 'AUTO'; did you mean 'auto'"),
    ("precision: BF16-MIXED", r"got 'BF16-MIXED'; did you mean 'bf16-mixed'"),
    ("learning_rate: 0", r"learning_rate: expected a number above 0"),
    ("learning_rate: .inf", r"learning_rate: expected a number above 0"),
    ("batch_size: 8", r"batch_size: 8 contradicts data.init_args.batch_size: 16; say one of them"),
    ("memory_fromat: auto", r"memory_fromat: there is no such key; did you mean 'memory_format'"),
]


@pytest.mark.parametrize(("block", "says"), WRONG, ids=[row[0] for row in WRONG])
def test_what_is_wrong_is_shown_at_its_place(block: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        layered(tmp_path, f"{CLASSES}accelerator: {{{block}}}\n")
    assert re.search(says, str(caught.value))
    assert f"{tmp_path.name}/0.yaml:3:" in str(caught.value)


@pytest.mark.parametrize("value", ["2", "auto"])
def test_a_class_without_such_an_argument_is_reported_with_those_that_it_has(
    value: str, tmp_path: Path
) -> None:
    data = "data: {class_path: pytorch_lightning.demos.boring_classes.BoringDataModule}"
    with pytest.raises(
        ConfigError, match=r"BoringDataModule has no argument num_workers"
    ) as caught:
        layered(tmp_path, f"{data}\naccelerator: {{num_workers: {value}}}\n")
    assert "\narguments of pytorch_lightning.demos.boring_classes.BoringDataModule: none" in str(
        caught.value
    )


def test_a_number_needs_what_takes_it_and_auto_waits_for_a_layer_above(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"num_workers: 2: nothing takes it, because data is not set"
    ):
        layered(tmp_path, "accelerator: {num_workers: 2}")
    assert said_by(layered(tmp_path, "accelerator: {num_workers: auto}", machine=BF16)) == {}


def gpus(*capabilities: tuple[int, int]) -> Machine:
    return replace(
        NOTHING,
        cores=8,
        gpus=tuple(Gpu(at, "", 1 << 30, "", each) for at, each in enumerate(capabilities)),
    )


RULE: list[tuple[str, str, Machine | None, dict[str, Any]]] = [
    ("CPU with bf16", "cpu", BF16,
     {"precision": "bf16-mixed", "memory_format": "channels_last", "compile": False, "threads": 4,
      "num_workers": 1}),
    ("CPU", "cpu", replace(NOTHING, cores=4),
     {"precision": "32-true", "memory_format": "channels_last", "compile": False, "threads": 4,
      "num_workers": 1}),
    ("Intel's with bf16 and without AMX", "cpu", replace(BF16, cpu_vendor="GenuineIntel"),
     {"precision": "32-true", "memory_format": "channels_last", "compile": False, "threads": 4,
      "num_workers": 1}),
    ("Intel's with AMX", "cpu",
     replace(BF16, cpu_vendor="GenuineIntel",
             instruction_sets=("avx512_bf16", "amx_tile", "amx_bf16")),
     {"precision": "bf16-mixed", "memory_format": "channels_last", "compile": False, "threads": 4,
      "num_workers": 1}),
    ("AMD's with bf16", "cpu", replace(BF16, cpu_vendor="AuthenticAMD"),
     {"precision": "bf16-mixed", "memory_format": "channels_last", "compile": False, "threads": 4,
      "num_workers": 1}),
    ("CPU, two processes", "{kind: cpu, num_processes: 2}", BF16,
     {"precision": "bf16-mixed", "memory_format": "channels_last", "compile": False, "threads": 2,
      "num_workers": 1}),
    ("CUDA with bf16", "gpu", gpus((9, 0)),
     {"precision": "bf16-mixed", "memory_format": "channels_last", "compile": False,
      "num_workers": 7}),
    ("CUDA with bf16, two of them", "{gpus: 2}", gpus((8, 0), (9, 0)),
     {"precision": "bf16-mixed", "memory_format": "channels_last", "compile": False,
      "num_workers": 3}),
    ("CUDA without", "gpu", gpus((8, 0), (7, 5)),
     {"precision": "16-mixed", "memory_format": "channels_last", "compile": False,
      "num_workers": 3}),
    ("MPS", "mps", replace(NOTHING, cores=8, mps=True),
     {"precision": "32-true", "memory_format": "contiguous", "compile": False, "num_workers": 7}),
    ("XLA", "{tpu_cores: 1}", replace(TPU, cores=8), {"num_workers": 7}),
    ("another machine", "cpu", None, {}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("limit", "precision"),
    [
        ("AVX2", "32-true"),
        ("AVX512_CORE", "32-true"),
        ("AVX512_CORE_AMX", "bf16-mixed"),
        ("ALL", "bf16-mixed"),
    ],
)
def test_instructions_that_onednn_may_not_use_are_not_counted_on(
    limit: str, precision: str, tmp_path: Path
) -> None:
    hardware = layered(tmp_path, CLASSES, AUTO, machine=BF16, environ={"ONEDNN_MAX_CPU_ISA": limit})
    assert hardware.chosen["trainer.precision"] == precision


def test_threads_are_left_to_machines_that_a_launcher_chooses(tmp_path: Path) -> None:
    hardware = layered(
        tmp_path, CLASSES, AUTO, "launch: {engine: spark, processes: 2}", machine=BF16
    )
    assert hardware.chosen["launch.threads"] is None


@pytest.mark.parametrize(
    ("kind", "machine", "chosen"), [row[1:] for row in RULE], ids=[row[0] for row in RULE]
)
def test_auto_is_a_rule_on_the_hardware(
    kind: str, machine: Machine | None, chosen: dict[str, Any], tmp_path: Path
) -> None:
    hardware = layered(tmp_path, OWN_DATA, AUTO, f"accelerator: {kind}", machine=machine)
    values = {key: value for key, value in hardware.chosen.items() if value is not None}
    assert {key.rpartition(".")[2]: value for key, value in values.items()} == chosen
    said = said_by(hardware)
    assert {key: said[key.replace(".init_args", "")] for key in values} == values
    assert "auto" not in said.values()
    assert hardware.notices == ()


def test_threads_that_the_user_has_set_in_the_environment_are_kept(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("accelerator: {kind: cpu, threads: auto}")
    hardware = resolve_hardware(
        resolve([tmp_path / "a.yaml"], environ={}), BF16, environ={"OMP_NUM_THREADS": "3"}
    )
    assert hardware.chosen == {"launch.threads": None}
    assert "launch" not in hardware.resolved.values


def test_a_fixed_value_without_effect_is_reported_once(tmp_path: Path) -> None:
    block = "accelerator: {tpu_cores: 1, memory_format: channels_last, compile: false, tf32: true}"
    hardware = layered(tmp_path, block, machine=TPU)
    assert "accelerator" not in hardware.resolved.values
    notices = [notice.partition(" (")[0] for notice in hardware.notices]
    assert notices == [
        "accelerator.memory_format: channels_last has no effect on a TPU",
        "accelerator.tf32: true has no effect on a TPU",
    ]


def test_what_the_environment_gave_is_a_reference_where_it_went(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(f"{CLASSES}accelerator: {{threads: '${{oc.env:CORES}}', batch_size: 4}}\n")
    environ = {
        "CORES": "2",
        "LIGHTKIT_ACCELERATOR__PRECISION": "auto",
        "LIGHTKIT_ACCELERATOR__BATCH_SIZE": "8",
    }
    hardware = resolve_hardware(resolve([file], environ=environ), BF16, environ={})
    assert said_by(hardware) == {
        "data.batch_size": 8,
        "launch.threads": 2,
        "trainer.precision": "bf16-mixed",
    }
    saved = hardware.resolved.with_references(hardware.resolved.values)
    assert saved["launch"] == {"threads": "${oc.env:CORES}"}
