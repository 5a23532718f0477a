"""Hardware keys: what the trainer gets for those that the contract tests' table lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from lightkit.cli.command_table import parse
from lightkit.config import Hardware, Resolved, resolve, resolve_hardware
from lightkit.config.yaml_reader import read_scalar
from lightkit.hardware import Gpu, Machine, Xla

HOROVOD = {"class_path": "lightkit.distributed.HorovodStrategy"}
FOUR = Machine(
    gpus=tuple(Gpu(index, "NVIDIA H200", 139 << 30, f"GPU-{index}") for index in range(4))
)
TPU = Machine(xla=Xla("2.9.0", None, 4, 8), versions={"torch": "2.9.0", "torch-xla": "2.9.0"})
NOTHING = Machine(versions={"torch": "2.15.0"})


def config_from(
    folder: Path, text: str, *flags: str, environ: dict[str, str] | None = None
) -> Resolved:
    (folder / "x.yaml").write_text(text)
    return resolve(
        [folder / "x.yaml"],
        flags=parse(["fit", *flags]).overrides,
        environ=environ or {},
        subcommand="fit",
    )


def hardware_of(
    folder: Path, text: str, *flags: str, machine: Machine | None = None, **environ: str
) -> Hardware:
    resolved = config_from(folder, text, *flags, environ=environ)
    return resolve_hardware(resolved, machine, environ=environ)


def trainer_of(hardware: Hardware) -> dict[str, Any]:
    values = hardware.resolved.values
    assert "accelerator" not in values
    found: dict[str, Any] = values.get("trainer", {})
    return found


def two(kind: str) -> dict[str, Any]:
    return {"accelerator": kind, "devices": 2}


TABLE: list[tuple[str, dict[str, Any]]] = [
    ("accelerator: {}", {}),
    ("accelerator: cuda", {"accelerator": "cuda"}),
    ("accelerator: {gpus: '0'}", {"accelerator": "cpu"}),
    ("accelerator: {gpus: []}", {"accelerator": "cpu"}),
    ("accelerator: {gpus: 0, tpu_cores: 0}", {"accelerator": "cpu"}),
    ("accelerator: {gpus: '0, 3'}", {"accelerator": "gpu", "devices": [0, 3]}),
    ("accelerator: {gpus: ['1', 2]}", {"accelerator": "gpu", "devices": [1, 2]}),
    ("accelerator: {gpus: '0,'}", {"accelerator": "gpu", "devices": [0]}),
    ("accelerator: {tpu_cores: '8'}", {"accelerator": "tpu", "devices": 8}),
    ("accelerator: {tpu_cores: null}", {}),
    ("accelerator: {ipus: null, hpus: 0}", {}),
    ("accelerator: {num_processes: 1}", {"accelerator": "cpu", "devices": 1}),
    ("accelerator: {num_processes: 1, gpus: 2}", two("gpu")),
    ("accelerator: {strategy: ddp_cpu, num_processes: 2}", {**two("cpu"), "strategy": "ddp"}),
    ("accelerator: {strategy: tpu_spawn_debug}", {"accelerator": "tpu", "strategy": "xla_debug"}),
    ("accelerator: {strategy: my_own}", {"strategy": "my_own"}),
    ("accelerator: {precision: 16}", {"precision": "16-mixed"}),
    ("accelerator: {precision: '16'}", {"precision": "16-mixed"}),
    ("accelerator: {precision: bf16}", {"precision": "bf16-mixed"}),
    ("accelerator: {precision: 32}", {"precision": "32-true"}),
    ("accelerator: {precision: 64}", {"precision": "64-true"}),
    ("accelerator: {precision: 16-true}", {"precision": "16-true"}),
    (
        "accelerator: {precision: bf16, tpu_cores: 1}",
        {"accelerator": "tpu", "devices": 1, "precision": "bf16-true"},
    ),
    ("accelerator: {gpus: 2}\ntrainer: {devices: 2}", two("gpu")),
    ("accelerator: {gpus: 2}\ntrainer: {devices: auto, accelerator: auto}", two("gpu")),
    ("accelerator: {gpus: 2}\ntrainer: {gpus: 2}", two("gpu")),
    ("accelerator: {gpus: 0}\ntrainer: {devices: 4}", {"accelerator": "cpu", "devices": 4}),
    ("accelerator: gpu\ntrainer: {accelerator: cuda, devices: 2}", two("gpu")),
    ("accelerator: gpu\ntrainer: {gpus: 2}", two("gpu")),
    ("trainer: {precision: '16'}", {"precision": "16-mixed"}),
    ("accelerator: {precision: 16}\ntrainer: {precision: 16-mixed}", {"precision": "16-mixed"}),
    ("accelerator: {precision: 16}\ntrainer: {precision: 16}", {"precision": "16-mixed"}),
    ("trainer: {gpus: null}", {"accelerator": "cpu"}),
    ("trainer: {accelerator: ddp}", {"strategy": "ddp"}),
    (
        "trainer: {accelerator: gpu, devices: 2, gpus: null, num_processes: 1, tpu_cores: null}",
        two("gpu"),
    ),
    (
        "trainer: {accelerator: null, devices: null, strategy: null, num_nodes: null}",
        {"accelerator": "auto", "devices": "auto", "strategy": "auto", "num_nodes": 1},
    ),
    ("launch: {processes: 2}\naccelerator: {strategy: ddp}", {"devices": 2, "strategy": "ddp"}),
    ("launch: {processes: 2}\naccelerator: cpu", {**two("cpu"), "strategy": "ddp"}),
    ("launch: {processes: 2}\naccelerator: {gpus: 2}", two("gpu")),
    (
        "launch: {processes: 8, engine: spark}\naccelerator: {gpus: 1}",
        {"accelerator": "gpu", "devices": 1},
    ),
    ("launch: {processes: -4, engine: spark}", {}),
    ("launch: {processes: 2, engine: ray}", {}),
    (
        "launch: {processes: 2, engine: torchrun}\naccelerator: {gpus: [0, 3]}",
        {"accelerator": "gpu", "devices": [0, 3]},
    ),
    ("launch: {processes: 2}\ntrainer: {devices: '0,3'}", {"devices": "0,3"}),
    (
        "accelerator: {gpus: [0, 3], num_processes: 2}\ntrainer: {devices: 2}",
        {"accelerator": "gpu", "devices": [0, 3]},
    ),
    ("launch: {processes: 2, engine: local}", {"devices": 2, "strategy": "ddp"}),
]


@pytest.mark.parametrize(
    ("said", "becomes"), TABLE, ids=[said.replace("\n", " & ") or "nothing" for said, _ in TABLE]
)
def test_the_table(said: str, becomes: dict[str, Any], tmp_path: Path) -> None:
    hardware = hardware_of(tmp_path, said)
    assert trainer_of(hardware) == becomes
    assert hardware.processes is None


HOROVOD_TABLE: list[tuple[str, int | None, str | None]] = [
    ("accelerator: {strategy: HorovodStrategy}", None, None),
    ("trainer: {strategy: {class_path: lightkit.distributed.HorovodStrategy}}", None, None),
    ("trainer: {strategy: {class_path: HorovodStrategy}}", None, None),
    ("trainer: {accelerator: horovod}", None, None),
    ("accelerator: {strategy: horovod, gpus: -1}", 4, "gpu"),
    ("accelerator: {strategy: horovod, gpus: 1}", None, "gpu"),
    ("accelerator: {strategy: horovod, gpus: 0}", None, "cpu"),
    ("accelerator: {strategy: horovod, gpus: 2, num_processes: 2}", 2, "gpu"),
    ("accelerator: {strategy: horovod, gpus: 1}\nlaunch: {processes: 3}", 3, "gpu"),
    ("accelerator: {strategy: horovod, gpus: -1}\nlaunch: {processes: 3}", 3, "gpu"),
    ("accelerator: {strategy: horovod}\nlaunch: {processes: 2}", 2, None),
    ("accelerator: {strategy: horovod}\nlaunch: {engine: spark, processes: -4}", -4, None),
    (
        (
            "accelerator: {strategy: horovod}\nlaunch: {engine: spark, processes: -1}\ntrainer:"
            " {accelerator: cpu}"
        ),
        -1,
        "cpu",
    ),
    ("accelerator: {strategy: horovod, gpus: 4}\nlaunch: {hosts: 'a:4,b:4'}", None, "gpu"),
    ("accelerator: {strategy: horovod}\ntrainer: {devices: 1}\nlaunch: {processes: 2}", 2, None),
    ("accelerator: {strategy: horovod}\ntrainer: {devices: 2}", 2, None),
]


@pytest.mark.parametrize(
    ("said", "processes", "accelerator"), HOROVOD_TABLE, ids=[row[0] for row in HOROVOD_TABLE]
)
def test_horovod_has_one_device_a_process(
    said: str, processes: int | None, accelerator: str | None, tmp_path: Path
) -> None:
    hardware = hardware_of(tmp_path, said, machine=FOUR)
    expected = {
        "strategy": HOROVOD,
        "devices": 1,
        **({"accelerator": accelerator} if accelerator else {}),
    }
    assert trainer_of(hardware) == expected
    assert (hardware.strategy, hardware.processes) == ("horovod", processes)
    assert (hardware.resolved.values.get("launch") or {}).get("processes") == processes


@pytest.mark.parametrize(
    ("flag", "devices"),
    [
        ("--trainer.devices=2", 2),
        ("--accelerator.gpus=0,3", (0, 3)),
        ("--accelerator.gpus=all", -1),
        ("--accelerator=cpu", None),
        ("--accelerator.strategy=horovod", 1),
    ],
)
def test_the_number_of_devices_is_known_as_a_number(
    flag: str, devices: Any, tmp_path: Path
) -> None:
    assert hardware_of(tmp_path, "", flag).devices == devices


def test_what_was_resolved_resolves_to_itself(tmp_path: Path) -> None:
    text = "accelerator: {strategy: horovod, gpus: 2, precision: bf16}"
    once = hardware_of(tmp_path, text, machine=FOUR)
    again = hardware_of(tmp_path, yaml.safe_dump(once.resolved.values), machine=FOUR)
    assert again.resolved.values == once.resolved.values
    assert (again.processes, again.strategy, again.kind, again.notices) == (2, "horovod", "gpu", ())


def test_arguments_of_horovods_strategy_are_kept(tmp_path: Path) -> None:
    flags = ("--trainer.strategy=horovod", "--trainer.strategy.compression=fp16")
    hardware = hardware_of(tmp_path, "accelerator: {num_processes: 2}", *flags)
    assert trainer_of(hardware)["strategy"] == {**HOROVOD, "init_args": {"compression": "fp16"}}


TODAY = [
    "trainer: {accelerator: gpu, devices: 2, strategy: ddp, precision: 16-mixed}",
    "trainer: {accelerator: cpu, devices: 2, strategy: ddp_spawn, precision: bf16-true}",
    "trainer: {accelerator: cuda, devices: '0,3', strategy: fsdp, precision: bf16-mixed}",
    (
        "trainer: {accelerator: gpu, devices: -1, strategy:"
        " deepspeed_stage_2_offload, precision: '32'}"
    ),
    "trainer: {accelerator: auto, devices: auto, strategy: auto, num_nodes: 2, precision: null}",
    "trainer: {accelerator: tpu, devices: 8, strategy: xla, precision: bf16-true}",
    "trainer: {accelerator: tpu, devices: [5], precision: 32}",
    "trainer: {accelerator: mps, devices: 1}",
    "trainer: {strategy: {class_path: DDPStrategy, init_args: {find_unused_parameters: true}}}",
    (
        "trainer: {accelerator: {class_path: pytorch_lightning.accelerators.CPUAccelerator},"
        " devices: '2'}"
    ),
    "trainer: {accelerator: registered_by_me, strategy: registered_by_me_too}",
    "trainer: {precision: 64}\nmodel: Net",
    "trainer: null",
]


@pytest.mark.parametrize("text", TODAY)
def test_todays_keys_pass_unchanged_and_without_a_word(text: str, tmp_path: Path) -> None:
    resolved = config_from(tmp_path, text)
    hardware = resolve_hardware(resolved, environ={})
    assert hardware.resolved is resolved
    assert hardware.notices == ()


@pytest.mark.parametrize(
    ("text", "strategy", "kind"),
    [
        (
            "trainer: {strategy: ddp_find_unused_parameters_true}",
            "ddp_find_unused_parameters_true",
            None,
        ),
        (
            "trainer: {strategy: {class_path: pytorch_lightning.strategies.FSDPStrategy}}",
            "fsdp",
            None,
        ),
        ("trainer: {strategy: {class_path: mine.Strategy}, accelerator: cuda}", None, "gpu"),
        ("trainer: {accelerator: {class_path: XLAAccelerator}}", None, "tpu"),
        ("trainer: {accelerator: mine}", None, None),
        ("accelerator: {num_processes: 2}", "ddp", "cpu"),
    ],
)
def test_strategy_and_kind_are_known_by_name(
    text: str, strategy: str | None, kind: str | None, tmp_path: Path
) -> None:
    hardware = hardware_of(tmp_path, text)
    assert (hardware.strategy, hardware.kind) == (strategy, kind)


def test_a_trainer_key_keeps_the_place_of_the_key_that_set_it(tmp_path: Path) -> None:
    resolved = hardware_of(tmp_path, "trainer: {max_epochs: 1}\naccelerator:\n  gpus: 2\n").resolved
    for key in ("trainer.devices", "trainer.accelerator"):
        assert str(resolved.origin_of(key)).endswith("x.yaml:3:9")


def test_variables_and_flags_say_it_too(tmp_path: Path) -> None:
    by_variable = hardware_of(tmp_path, "accelerator: {gpus: 4}", LIGHTKIT_ACCELERATOR__GPUS="2")
    assert trainer_of(by_variable) == two("gpu")
    origin = by_variable.resolved.origin_of("trainer.devices")
    assert str(origin) == "environment variable LIGHTKIT_ACCELERATOR__GPUS"
    by_flag = hardware_of(tmp_path, "accelerator: {gpus: 4}", "--accelerator.gpus=[0,3]")
    assert trainer_of(by_flag) == {"accelerator": "gpu", "devices": [0, 3]}
    assert str(by_flag.resolved.origin_of("trainer.devices.0")) == "--accelerator.gpus=[0,3]"


@pytest.mark.parametrize(
    ("flag", "becomes"),
    [
        ("--accelerator.gpus=2", two("gpu")),
        ("--accelerator.precision=bf16", {"accelerator": "cpu", "precision": "bf16-mixed"}),
        ("--accelerator=gpu", {"accelerator": "gpu"}),
    ],
)
def test_a_later_layer_reaches_into_a_word(
    flag: str, becomes: dict[str, Any], tmp_path: Path
) -> None:
    assert trainer_of(hardware_of(tmp_path, "accelerator: cpu", flag)) == becomes


def test_a_reference_moves_with_its_value_and_is_dropped_where_that_changes(tmp_path: Path) -> None:
    text = (
        "accelerator: {gpus: '${oc.env:GPUS}', precision: '${oc.env:BITS}', num_nodes:"
        " '${oc.env:NODES,1}'}"
    )
    resolved = hardware_of(tmp_path, text, GPUS="2", BITS="bf16").resolved
    assert resolved.references == {
        ("trainer", "devices"): "${oc.env:GPUS}",
        ("trainer", "num_nodes"): "${oc.env:NODES,1}",
    }
    assert resolved.with_references(resolved.values)["trainer"]["devices"] == "${oc.env:GPUS}"


@pytest.mark.parametrize(
    ("text", "precision"),
    [
        ("accelerator: {tpu_cores: 1}", "bf16-true"),
        ("accelerator: {tpu_cores: 1, precision: bf16}", "bf16-true"),
        ("trainer: {accelerator: tpu, precision: bf16-true}", "bf16-true"),
        ("accelerator: cpu", None),
        ("accelerator: {gpus: 1, precision: 16}", "16-mixed"),
    ],
)
def test_the_variable_of_xla_counts_on_a_tpu_only(
    text: str, precision: str | None, tmp_path: Path
) -> None:
    assert trainer_of(hardware_of(tmp_path, text, XLA_USE_BF16="1")).get("precision") == precision


def test_pjrt_gets_the_tpu_unless_it_is_set(tmp_path: Path) -> None:
    assert hardware_of(tmp_path, "accelerator: tpu").environment == {"PJRT_DEVICE": "TPU"}
    assert hardware_of(tmp_path, "accelerator: tpu", PJRT_DEVICE="CPU").environment == {}
    assert hardware_of(tmp_path, "accelerator: cpu").environment == {}


def test_a_tpu_that_lightning_will_find_counts_as_asked_for(tmp_path: Path) -> None:
    found = hardware_of(tmp_path, "trainer: {precision: bf16}", machine=TPU)
    assert (found.kind, found.environment) == ("tpu", {"PJRT_DEVICE": "TPU"})
    assert trainer_of(found) == {"precision": "bf16-true"}


def test_xla_on_the_cpu_has_as_many_devices_as_it_is_reported(tmp_path: Path) -> None:
    machine = Machine(
        xla=Xla("2.9.0", "CPU"), versions={"torch": "2.9.0+cpu", "torch-xla": "2.9.0"}
    )
    hardware = hardware_of(
        tmp_path, "accelerator: {tpu_cores: 8}", machine=machine, PJRT_DEVICE="CPU"
    )
    assert trainer_of(hardware) == {"accelerator": "tpu", "devices": 8}


@pytest.mark.parametrize(
    ("text", "machine"),
    [
        ("accelerator: {gpus: 4}", FOUR),
        ("accelerator: {gpus: [3]}", FOUR),
        ("accelerator: {gpus: -1}", FOUR),
        ("accelerator: {tpu_cores: 8}", TPU),
        ("accelerator: {num_processes: 64}", NOTHING),
        ("accelerator: {gpus: 8}", Machine(gpus=None)),
        ("accelerator: {gpus: 1}", Machine(mps=True)),
        ("accelerator: {gpus: 8}\nlaunch: {engine: slurm}", NOTHING),
        ("accelerator: {strategy: horovod, gpus: 8}\nlaunch: {hosts: 'a:4,b:4'}", NOTHING),
        ("trainer: {devices: 3}", NOTHING),
        ("trainer: {devices: 16}", Machine(gpus=FOUR.gpus, versions={"torch": "2.15.0+cpu"})),
        ("trainer: {devices: 16}", Machine(gpus=None)),
        ("trainer: {devices: 4}", FOUR),
        (
            "accelerator: {tpu_cores: 4}",
            Machine(xla=Xla("2.9.0", None, 4, 4), versions=TPU.versions),
        ),
    ],
)
def test_a_machine_that_has_it_is_fine(text: str, machine: Machine, tmp_path: Path) -> None:
    hardware_of(tmp_path, text, machine=machine)


IN_OTHER_WORDS: list[tuple[str, str, dict[str, Any]]] = [
    ("--accelerator=cpu", "trainer: {accelerator: gpu, devices: 2}",
     {"accelerator": "cpu", "devices": "auto"}),
    ("--accelerator=cpu", "trainer: {accelerator: gpu, devices: [0, 3]}",
     {"accelerator": "cpu", "devices": "auto"}),
    ("--accelerator=cpu", "trainer: {devices: '0,3'}", {"accelerator": "cpu", "devices": "auto"}),
    ("--accelerator=cpu", "trainer: {devices: 2}", two("cpu")),
    ("--accelerator=gpu", "trainer: {devices: [0, 3]}", {"accelerator": "gpu", "devices": [0, 3]}),
    ("--accelerator=cpu", "trainer: {gpus: 2, devices: 2}",
     {"accelerator": "cpu", "devices": "auto"}),
    ("--accelerator=cpu", "trainer: {gpus: 2}", {"accelerator": "cpu"}),
    ("--accelerator=auto", "trainer: {accelerator: gpu, devices: 2}",
     {"accelerator": "auto", "devices": "auto"}),
    ("--accelerator.gpus=0", "trainer: {accelerator: gpu, devices: 2}",
     {"accelerator": "cpu", "devices": "auto"}),
    ("--accelerator.gpus=null", "trainer: {accelerator: gpu, devices: 2}",
     {"accelerator": "cpu", "devices": "auto"}),
    ("--accelerator.gpus=1", "trainer: {accelerator: gpu, devices: 2}",
     {"accelerator": "gpu", "devices": 1}),
    ("--accelerator.num_processes=4", "trainer: {accelerator: gpu, devices: 2, strategy: ddp}",
     {"accelerator": "cpu", "devices": 4, "strategy": "ddp"}),
    ("--accelerator.num_processes=1", "trainer: {accelerator: gpu, devices: 2}",
     {"accelerator": "cpu", "devices": 1}),
    ("--accelerator.strategy=fsdp", "trainer: {accelerator: gpu, strategy: ddp}",
     {"accelerator": "gpu", "strategy": "fsdp"}),
    ("--accelerator.strategy=auto", "trainer: {strategy: ddp}", {"strategy": "auto"}),
    ("--accelerator.strategy=fsdp", "trainer: {accelerator: ddp}", {"strategy": "fsdp"}),
    ("--accelerator.strategy=tpu_spawn", "trainer: {accelerator: gpu, devices: 2}",
     {"accelerator": "tpu", "devices": "auto", "strategy": "xla"}),
    ("--accelerator.num_nodes=2", "trainer: {num_nodes: 3}", {"num_nodes": 2}),
    ("--accelerator.precision=null", "trainer: {precision: bf16-mixed}", {"precision": "32-true"}),
    ("--trainer.accelerator=gpu", "accelerator: {gpus: 2}", two("gpu")),
    ("--trainer.accelerator=cuda", "accelerator: {gpus: [0, 3]}",
     {"accelerator": "cuda", "devices": [0, 3]}),
    ("--trainer.accelerator=cpu", "accelerator: {num_processes: 2}",
     {**two("cpu"), "strategy": "ddp"}),
    ("--trainer.accelerator=cpu", "accelerator: {gpus: 2, strategy: ddp}",
     {"accelerator": "cpu", "strategy": "ddp"}),
    ("--trainer.accelerator=auto", "accelerator: {gpus: 2}", {"accelerator": "auto"}),
    ("--trainer.accelerator=gpu", "accelerator: {strategy: ddp_cpu, num_processes: 2}",
     {"accelerator": "gpu", "strategy": "ddp"}),
    ("--trainer.devices=1", "accelerator: {tpu_cores: 8}", {"accelerator": "tpu", "devices": 1}),
    ("--trainer.devices=1", "accelerator: {gpus: [0, 3]}", {"accelerator": "gpu", "devices": 1}),
    ("--trainer.devices=auto", "accelerator: {gpus: 2}", {"accelerator": "gpu", "devices": "auto"}),
    ("--trainer.devices=4", "accelerator: {num_processes: 2}",
     {"accelerator": "cpu", "devices": 4}),
    ("--trainer.strategy=ddp", "accelerator: {gpus: 2, strategy: fsdp}",
     {**two("gpu"), "strategy": "ddp"}),
    ("--trainer.accelerator=ddp", "accelerator: {gpus: 2, strategy: fsdp}",
     {**two("gpu"), "strategy": "ddp"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("flag", "text", "becomes"), IN_OTHER_WORDS, ids=[f"{r[0]} {r[1]}" for r in IN_OTHER_WORDS]
)
def test_a_flag_wins_over_what_a_file_says_in_other_words(
    flag: str, text: str, becomes: dict[str, Any], tmp_path: Path
) -> None:
    found = trainer_of(hardware_of(tmp_path, text, flag))
    key, _, value = flag.removeprefix("--").partition("=")
    variable = {f"LIGHTKIT_{key.upper().replace('.', '__')}": value}
    by_variable = resolve_hardware(config_from(tmp_path, text, environ=variable), environ=variable)
    assert trainer_of(by_variable) == found
    found["devices"] = (
        read_scalar(found["devices"])
        if isinstance(found.get("devices"), str)
        else found.get("devices")
    )
    assert {name: value for name, value in found.items() if value is not None} == becomes


def test_a_flag_leaves_horovod_its_ranks(tmp_path: Path) -> None:
    for text in (
        "accelerator: {gpus: 2, strategy: horovod}",
        "accelerator: {num_processes: 2, strategy: horovod}",
    ):
        hardware = hardware_of(tmp_path, text, "--trainer.accelerator=gpu")
        assert trainer_of(hardware) == {"accelerator": "gpu", "strategy": HOROVOD, "devices": 1}
        assert hardware.processes == 2


def test_an_accelerator_of_the_users_own_is_lightnings_business(tmp_path: Path) -> None:
    text = "trainer: {accelerator: abacus}"
    assert trainer_of(hardware_of(tmp_path, text, machine=NOTHING)) == {"accelerator": "abacus"}
