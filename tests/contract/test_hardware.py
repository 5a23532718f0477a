"""The hardware table: what a config says of devices, and what Lightning's trainer gets for it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.contract.command_table import Command, run_commands
from tests.contract.conftest import Once
from tests.contract.workspace import Result, Workspace

Values = dict[str, Any]

ELSEWHERE = "\nlaunch: {engine: slurm}"
"""Trained on other machines, so that nothing is asked of this one."""
HOROVOD = {"class_path": "lightkit.distributed.HorovodStrategy"}


def two(kind: str, **more: Any) -> Values:
    return {"accelerator": kind, "devices": 2, **more}


TABLE: list[tuple[str, Values]] = [
    ("", {}),
    ("accelerator: auto", {}),
    ("accelerator: null", {}),
    ("accelerator: cpu", {"accelerator": "cpu"}),
    ("accelerator: {kind: cpu}", {"accelerator": "cpu"}),
    ("accelerator: gpu", {"accelerator": "gpu"}),
    ("accelerator: mps", {"accelerator": "mps"}),
    ("accelerator: tpu", {"accelerator": "tpu"}),
    ("accelerator: {gpus: 0}", {"accelerator": "cpu"}),
    ("accelerator: {gpus: null}", {"accelerator": "cpu"}),
    ("accelerator: {gpus: 2}", two("gpu")),
    ("accelerator: {gpus: '2'}", two("gpu")),
    ("accelerator: {gpus: [0, 3]}", {"accelerator": "gpu", "devices": [0, 3]}),
    ("accelerator: {gpus: '0,3'}", {"accelerator": "gpu", "devices": [0, 3]}),
    ("accelerator: {gpus: -1}", {"accelerator": "gpu", "devices": -1}),
    ("accelerator: {gpus: '-1'}", {"accelerator": "gpu", "devices": -1}),
    ("accelerator: {gpus: all}", {"accelerator": "gpu", "devices": -1}),
    ("accelerator: {tpu_cores: 1}", {"accelerator": "tpu", "devices": 1}),
    ("accelerator: {tpu_cores: 8}", {"accelerator": "tpu", "devices": 8}),
    ("accelerator: {tpu_cores: all}", {"accelerator": "tpu", "devices": "auto"}),
    ("accelerator: {tpu_cores: [5]}", {"accelerator": "tpu", "devices": [5]}),
    ("accelerator: {gpus: null, tpu_cores: 8}", {"accelerator": "tpu", "devices": 8}),
    ("accelerator: {num_processes: 2}", two("cpu", strategy="ddp")),
    ("accelerator: {num_processes: 2, strategy: ddp_spawn}", two("cpu", strategy="ddp_spawn")),
    ("accelerator: {num_processes: 2, gpus: 2}", two("gpu")),
    ("accelerator: {strategy: ddp, gpus: 2}", two("gpu", strategy="ddp")),
    ("accelerator: {num_nodes: 2}", {"num_nodes": 2}),
    ("accelerator: {precision: bf16-true}", {"precision": "bf16-true"}),
    ("trainer: {accelerator: gpu, devices: '0,3', strategy: fsdp}",
     {"accelerator": "gpu", "devices": "0,3", "strategy": "fsdp"}),
    ("launch: {processes: 2}", {"devices": 2, "strategy": "ddp"}),
    ("launch: {processes: 2, engine: torchrun}", {}),
]  # fmt: skip

LIGHTNING_1: list[tuple[str, Values]] = [
    ("trainer: {gpus: ^2}", two("gpu")),
    ("trainer: {gpus: ^'0,3'}", {"accelerator": "gpu", "devices": [0, 3]}),
    ("trainer: {gpus: ^0}", {"accelerator": "cpu"}),
    ("trainer: {tpu_cores: ^8}", {"accelerator": "tpu", "devices": 8}),
    ("trainer: {num_processes: ^2}", two("cpu", strategy="ddp")),
    ("trainer: {accelerator: ^ddp, gpus: ^2}", two("gpu", strategy="ddp")),
    ("trainer: {accelerator: ^ddp_cpu, num_processes: ^2}", two("cpu", strategy="ddp")),
    ("trainer: {strategy: ^null}", {"strategy": "auto"}),
    ("trainer: {precision: ^16}", {"precision": "16-mixed"}),
    ("trainer: {precision: ^bf16}", {"precision": "bf16-mixed"}),
    (
        "trainer: {accelerator: tpu, precision: ^bf16}",
        {"accelerator": "tpu", "precision": "bf16-true"},
    ),
    (
        "accelerator: {strategy: ^tpu_spawn, tpu_cores: 8}",
        {"accelerator": "tpu", "devices": 8, "strategy": "xla"},
    ),
    ("accelerator: {strategy: ^fsdp_native, gpus: 2}", two("gpu", strategy="fsdp")),
]
"""Spellings of Lightning 1.x; `^` stands before each value that belongs to one."""

HOROVOD_TABLE: list[tuple[str, int | None, Values]] = [
    ("accelerator: {strategy: horovod}", None, {}),
    ("trainer: {strategy: horovod}", None, {}),
    ("accelerator: {strategy: horovod, num_processes: 2}", 2, {"accelerator": "cpu"}),
    ("accelerator: {strategy: horovod, gpus: 2}", 2, {"accelerator": "gpu"}),
    (
        "accelerator: {strategy: horovod, gpus: 0}\nlaunch: {processes: 3}",
        3,
        {"accelerator": "cpu"},
    ),
    ("launch: {engine: horovod, processes: 2}", 2, {}),
]

LAYERS: list[tuple[str, str, Values]] = [
    (
        "accelerator: {num_processes: 2, strategy: ddp}",
        "accelerator=cpu",
        two("cpu", strategy="ddp"),
    ),
    (
        "accelerator: {gpus: 2, precision: bf16}",
        "accelerator=cpu",
        {"accelerator": "cpu", "precision": "bf16-mixed"},
    ),
    ("accelerator: {gpus: 2}", "accelerator=auto", {}),
    ("accelerator: cpu", "accelerator.gpus=2", two("gpu")),
    ("accelerator: {gpus: 4}", "accelerator.gpus=[0,3]", {"accelerator": "gpu", "devices": [0, 3]}),
    ("accelerator: {gpus: 0}", "accelerator.tpu_cores=8", {"accelerator": "tpu", "devices": 8}),
    ("accelerator: {tpu_cores: 8}", "accelerator.gpus=0", {"accelerator": "cpu"}),
    ("accelerator: {gpus: [0, 3]}", "trainer.devices=1", {"accelerator": "gpu", "devices": 1}),
    ("accelerator: {gpus: 2, strategy: fsdp}", "trainer.strategy=ddp", two("gpu", strategy="ddp")),
    ("accelerator: {gpus: 2}", "trainer.accelerator=auto", {"accelerator": "auto"}),
    (
        "accelerator: {num_processes: 2}",
        "launch.processes=4",
        two("cpu", strategy="ddp", devices=4),
    ),
    (
        "trainer: {accelerator: gpu, devices: 2}",
        "accelerator=cpu",
        {"accelerator": "cpu", "devices": "auto"},
    ),
    ("trainer: {accelerator: cpu, devices: 4}", "accelerator.gpus=2", two("gpu")),
    ("trainer: {gpus: 2}", "trainer.accelerator=cpu", {"accelerator": "cpu"}),
    ("trainer: {strategy: ddp}", "accelerator.strategy=fsdp", {"strategy": "fsdp"}),
    ("trainer: {precision: bf16-mixed}", "accelerator.precision=null", {"precision": "32-true"}),
    ("launch: {processes: 2}", "accelerator.gpus=0,3", {"accelerator": "gpu", "devices": [0, 3]}),
]

XLA_BF16: list[tuple[str, int]] = [
    ("accelerator: {tpu_cores: 1, precision: 32}", 2),
    ("accelerator: {tpu_cores: 1, precision: bf16-true}", 0),
    ("accelerator: {gpus: 0, precision: 32}", 0),
]

HOMES: list[tuple[str, str, Any]] = [
    ("accelerator: {threads: 1}", "launch.threads", 1),
    ("accelerator: {num_workers: 2}", "data.init_args.num_workers", 2),
    ("accelerator: {batch_size: 16}", "data.init_args.batch_size", 16),
    ("accelerator: {learning_rate: 0.5}", "model.init_args.learning_rate", 0.5),
    ("accelerator: {learning_rate: 0.5}\noptimizer: SGD", "optimizer.init_args.lr", 0.5),
]

WRONG: list[tuple[str, str]] = [
    ("accelerator: ^[gpu]", r"accelerator: expected one of auto.*\['gpu'\]"),
    ("accelerator: ^gup", r"'gup'.*did you mean 'gpu'"),
    ("accelerator: ^horovod", r"'horovod'.*strategy"),
    ("accelerator: {^gpu: 2}", r"accelerator\.gpu: .*did you mean 'gpus'"),
    ("accelerator: {gpus: ^true}", r"accelerator\.gpus: .*True"),
    ("accelerator: {gpus: ^-2}", r"accelerator\.gpus: .*-2"),
    ("accelerator: {gpus: ^two}", r"accelerator\.gpus: .*'two'"),
    ("accelerator: {gpus: ^[0, -1]}", r"accelerator\.gpus: .*\[0, -1\]"),
    ("accelerator: {gpus: ^'1,1'}", r"accelerator\.gpus: .*twice"),
    ("accelerator: {tpu_cores: ^4}", r"accelerator\.tpu_cores: .*1, 8.*got 4"),
    ("accelerator: {tpu_cores: ^[8]}", r"accelerator\.tpu_cores: .*\[8\]"),
    (
        "accelerator: {ipus: ^4}",
        r"accelerator\.ipus: 4: Lightning 2\.1 dropped IPUs; use gpus, tpu_cores or cpu",
    ),
    ("trainer: {ipus: ^4}", r"trainer\.ipus: 4: Lightning 2\.1 dropped IPUs"),
    ("accelerator: {hpus: ^4}", r"accelerator\.hpus: 4: Lightning 2\.1"),
    ("accelerator: {num_processes: ^0}", r"accelerator\.num_processes: .*got 0"),
    ("accelerator: {num_nodes: ^0}", r"accelerator\.num_nodes: .*got 0"),
    ("accelerator: {strategy: ^dp}", r"accelerator\.strategy: dp .*use ddp"),
    ("trainer: {accelerator: ^ddp2}", r"trainer\.accelerator: ddp2 .*use ddp"),
    ("trainer: {strategy: ^ddp_sharded}", r"FairScale; use fsdp or deepspeed"),
    ("accelerator: {precision: ^bf15}", r"accelerator\.precision: .*'bf15'.*did you mean .*'bf16'"),
    ("launch: {processes: ^-2}", r"launch\.processes: .*spark.*-2"),
    ("accelerator: {strategy: horovod, gpus: ^[0, 3]}", r"CUDA_VISIBLE_DEVICES=0,3.*gpus: 2"),
    ("launch: {engine: ^torchrun, processes: 2, hosts: ^'a:1,b:1'}", r"launch\.hosts: .*torchrun"),
    ("launch: {engine: ^mesos}", r"launch\.engine: .*torchrun.*'mesos'"),
    (
        f"accelerator: {{precision: ^16-true, tpu_cores: 1}}{ELSEWHERE}",
        r"precision: 16-true: on a TPU .*bf16-true",
    ),
    (
        f"accelerator: {{precision: ^bf16-mixed, tpu_cores: 1}}{ELSEWHERE}",
        r"bf16-mixed: on a TPU .*bf16-true",
    ),
]
"""`^` stands before each value (or key) that the error shows."""

CONTRADICTIONS: list[tuple[str, str]] = [
    ("accelerator: {gpus: ^2, tpu_cores: ^8}", r"gpus: 2 contradicts accelerator\.tpu_cores: 8"),
    (
        "accelerator: {gpus: ^2}\ntrainer: {gpus: ^1}",
        r"accelerator\.gpus: 2 contradicts trainer\.gpus: 1",
    ),
    (
        "accelerator: {gpus: ^2}\ntrainer: {devices: ^1}",
        r"accelerator\.gpus: 2 contradicts trainer\.devices: 1",
    ),
    ("accelerator: {gpus: ^0}\ntrainer: {accelerator: ^gpu}", r"contradicts accelerator\.gpus: 0"),
    ("accelerator: {gpus: ^2, num_processes: ^3}", r"contradicts accelerator\.num_processes: 3"),
    ("accelerator: {gpus: ^2, strategy: ^ddp_cpu}", r"contradicts accelerator\.strategy: ddp_cpu"),
    ("accelerator: {strategy: ^xla, gpus: ^0}", r"xla is for TPUs only"),
    ("accelerator: {strategy: ^fsdp, gpus: ^0}", r"fsdp works on NVIDIA's GPUs only.*ddp"),
    (
        "accelerator: {strategy: ^ddp}\ntrainer: {strategy: ^fsdp}",
        r"ddp contradicts trainer\.strategy: fsdp",
    ),
    (
        "accelerator: {precision: ^16}\ntrainer: {precision: ^bf16}",
        r"contradicts trainer\.precision: bf16",
    ),
    (
        "accelerator: {num_nodes: ^2}\ntrainer: {num_nodes: ^3}",
        r"contradicts trainer\.num_nodes: 3",
    ),
    (
        "launch: {processes: ^4}\ntrainer: {devices: ^2}",
        r"trainer\.devices: 2 contradicts launch\.processes: 4",
    ),
    (
        "launch: {engine: ^horovod}\naccelerator: {strategy: ^ddp}",
        r"ddp contradicts launch\.engine: horovod",
    ),
    ("launch: {engine: ^ray}\naccelerator: {strategy: ^horovod}", r"horovod or spark"),
    (
        "accelerator: {gpus: ^0}\ntrainer: {devices: ^-1}",
        r"trainer\.devices: .*number of processes",
    ),
    ("accelerator: {threads: ^1}\nlaunch: {threads: ^2}", r"launch\.threads"),
    (
        "accelerator: {batch_size: ^16}\ndata: {init_args: {batch_size: ^8}}",
        r"data\.init_args\.batch_size",
    ),
]
"""Each with its two places."""

MISSING: list[tuple[str, str]] = [
    ("accelerator: {gpus: ^1}", r"accelerator\.gpus: 1: this machine shows no GPU.*gpus: 0"),
    ("accelerator: {gpus: ^-1}", r"accelerator\.gpus: -1: this machine shows no GPU"),
    ("accelerator: ^gpu", r"accelerator: gpu: this machine shows no GPU"),
    ("trainer: {accelerator: gpu, devices: ^8}", r"trainer\.devices: 8: this machine shows no GPU"),
    ("trainer: {devices: ^[0, 3]}", r"trainer\.devices: \[0, 3\]: .*no device but CPUs"),
    ("accelerator: {strategy: ^fsdp}", r"accelerator\.strategy: fsdp: .*no device but CPUs"),
    ("accelerator: ^mps", r"accelerator: mps: this machine has no GPU of Apple's"),
]
"""On a machine that shows no GPU."""

SEVERAL = "accelerator: {gpus: ^two, ipus: ^4, precision: ^bf15, num_nodes: ^0}"
PRESETS = Path(__file__).parents[2] / "configs" / "accelerator"
BASE = """\
model: Regressor
data: Temperatures
"""


@dataclass(frozen=True)
class Marked:
    """A text without its `^`, and the places (line, column) of what stood behind them."""

    text: str
    places: list[tuple[int, int]]


def marked(text: str) -> Marked:
    places = []
    for number, line in enumerate(text.splitlines(), 1):
        parts = line.split("^")
        places += [(number, len("".join(parts[:count])) + 1) for count in range(1, len(parts))]
    return Marked(text.replace("^", ""), places)


def explain(text: str, *words: str, environ: Mapping[str, str] | None = None) -> Command:
    return Command(
        ["explain", "trainer", "launch", "--json", "-c", "base.yaml", "-c", "hw.yaml", *words],
        {"base.yaml": BASE, "hw.yaml": text + "\n"},
        environ or {},
        is_light=True,
    )


def check(text: str, **environ: str) -> Command:
    return Command(
        ["check", "-c", "base.yaml", "-c", "hw.yaml"],
        {"base.yaml": BASE, "hw.yaml": marked(text).text + "\n"},
        environ,
        is_light=True,
    )


def variable(flag: str) -> dict[str, str]:
    key, _, value = flag.partition("=")
    return {f"LIGHTKIT_{key.upper().replace('.', '__')}": value}


COMMANDS: dict[str, Command] = {
    **{f"table {text}": explain(text) for text, _ in TABLE},
    **{f"old {text}": explain(marked(text).text) for text, _ in LIGHTNING_1},
    **{f"notice {text}": check(text + ELSEWHERE) for text, _ in LIGHTNING_1},
    **{f"horovod {text}": explain(text) for text, _, _ in HOROVOD_TABLE},
    **{f"flag {text} {flag}": explain(text, flag) for text, flag, _ in LAYERS},
    **{
        f"variable {text} {flag}": explain(text, environ=variable(flag)) for text, flag, _ in LAYERS
    },
    **{f"bf16 {text}": check(text + ELSEWHERE, XLA_USE_BF16="1") for text, _ in XLA_BF16},
    **{
        f"home {text} {key}": Command(
            ["explain", key, "--json", "-c", "base.yaml", "-c", "hw.yaml"],
            {"base.yaml": BASE, "hw.yaml": text + "\n"},
        )
        for text, key, _ in HOMES
    },
    **{f"check {text}": check(text) for text, _ in (*WRONG, *CONTRADICTIONS, *MISSING)},
    "several": check(SEVERAL),
    "preset": Command(
        [
            "explain",
            "trainer",
            "launch",
            "--json",
            "-c",
            str(PRESETS / "horovod.yaml"),
            "accelerator=cpu",
        ]
    ),
    "variable and flag": Command(
        ["check", "-c", "base.yaml", "--accelerator.tpu_cores=8"],
        {"base.yaml": BASE},
        {"LIGHTKIT_ACCELERATOR__GPUS": "2"},
    ),
    "scale_lr": Command(
        [
            "explain",
            "callbacks",
            "--json",
            "-c",
            "base.yaml",
            "callbacks.scale_lr={}",
            "callbacks.scale_lr.warmup_epochs=5",
        ],
        {"base.yaml": BASE},
    ),
    "printed": Command(
        ["fit", "--print_config", "-c", "base.yaml", "-c", "hw.yaml"],
        {
            "base.yaml": BASE,
            "hw.yaml": (
                "accelerator: {num_processes: 2, precision: bf16, fused: true, threads: 1}\n"
            ),
        },
    ),
    "devices": Command(["devices"]),
    "devices json": Command(["devices", "--json"]),
}


@pytest.fixture(scope="module")
def answers(made_once: Once) -> dict[str, Result]:
    """What all commands of this file answered, by their names."""
    return {
        name: ended.result for name, ended in run_commands("hardware", COMMANDS, made_once).items()
    }


def explained(result: Result) -> dict[str, Any]:
    """Values of the keys that were asked for; a value of a flag or variable is read as YAML."""
    keys = json.loads(result.ok().out)["keys"]
    return {each["key"]: read(each.get("value")) for each in keys}


def read(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: read(each) for key, each in value.items() if each is not None}
    return yaml.safe_load(value) if isinstance(value, str) and value.isdigit() else value


@pytest.mark.parametrize(
    ("text", "becomes"), TABLE, ids=[text.replace("\n", " & ") or "nothing" for text, _ in TABLE]
)
def test_hardware_keys_become_lightnings(
    text: str, becomes: Values, answers: dict[str, Result]
) -> None:
    assert (explained(answers[f"table {text}"])["trainer"] or {}) == becomes


@pytest.mark.parametrize(
    ("text", "becomes"), LIGHTNING_1, ids=[text.replace("^", "") for text, _ in LIGHTNING_1]
)
def test_spellings_of_lightning_1_become_todays(
    text: str, becomes: Values, answers: dict[str, Result]
) -> None:
    assert explained(answers[f"old {text}"])["trainer"] == becomes


@pytest.mark.parametrize(
    "text", [row[0] for row in LIGHTNING_1], ids=[row[0].replace("^", "") for row in LIGHTNING_1]
)
def test_an_old_spelling_gets_one_warning_that_says_what_to_write(
    text: str, answers: dict[str, Result]
) -> None:
    result = answers[f"notice {text}"].ok()
    warnings = [line for line in result.err.splitlines() if line.startswith("warning: ")]
    places = [re.findall(r"hw\.yaml:(\d+):(\d+)", line) for line in warnings]
    assert sorted((int(line), int(column)) for [(line, column)] in places) == marked(text).places
    assert all("Lightning 1.x; today: " in line for line in warnings)


@pytest.mark.parametrize(
    ("text", "processes", "more"),
    HOROVOD_TABLE,
    ids=[row[0].replace("\n", " & ") for row in HOROVOD_TABLE],
)
def test_horovod_has_one_device_a_process(
    text: str, processes: int | None, more: Values, answers: dict[str, Result]
) -> None:
    found = explained(answers[f"horovod {text}"])
    assert found["trainer"] == {"strategy": HOROVOD, "devices": 1, **more}
    assert (found["launch"] or {}).get("processes") == processes


@pytest.mark.parametrize("by", ["flag", "variable"])
@pytest.mark.parametrize(
    ("text", "flag", "becomes"), LAYERS, ids=[f"{row[0]} & {row[1]}" for row in LAYERS]
)
def test_a_later_layer_wins_in_whatever_words(
    text: str, flag: str, becomes: Values, by: str, answers: dict[str, Result]
) -> None:
    assert (explained(answers[f"{by} {text} {flag}"])["trainer"] or {}) == becomes


@pytest.mark.parametrize(("text", "key", "value"), HOMES, ids=[row[1] for row in HOMES])
def test_a_fixed_number_of_the_accelerator_block_goes_to_its_key(
    text: str, key: str, value: Any, answers: dict[str, Result]
) -> None:
    assert explained(answers[f"home {text} {key}"])[key] == value


def assert_refused(result: Result, text: str, says: str) -> None:
    """Assert exit code 2, and one error with these words .

    At the places of `hw.yaml` that are marked in the text.
    """
    assert result.code == 2, result.err
    blocks = re.split(r"^(?=error: )", result.err, flags=re.MULTILINE)
    (block,) = (block for block in blocks if re.search(says, block, re.DOTALL))
    places = re.findall(r"--> hw\.yaml:(\d+):(\d+)$", block, re.MULTILINE)
    assert sorted((int(line), int(column)) for line, column in places) == marked(text).places
    assert "Traceback" not in result.err


@pytest.mark.parametrize(("text", "says"), WRONG, ids=[text.replace("^", "") for text, _ in WRONG])
def test_a_wrong_value_of_a_hardware_key_is_shown_at_its_place(
    text: str, says: str, answers: dict[str, Result]
) -> None:
    assert_refused(answers[f"check {text}"], text, says)


@pytest.mark.parametrize(
    ("text", "says"),
    CONTRADICTIONS,
    ids=[text.replace("^", "").replace("\n", " & ") for text, _ in CONTRADICTIONS],
)
def test_hardware_keys_that_contradict_are_shown_at_both_places(
    text: str, says: str, answers: dict[str, Result]
) -> None:
    assert_refused(answers[f"check {text}"], text, says)


@pytest.mark.parametrize(
    ("text", "says"), MISSING, ids=[text.replace("^", "") for text, _ in MISSING]
)
def test_devices_that_the_machine_has_not_are_refused_with_what_it_has(
    text: str, says: str, answers: dict[str, Result]
) -> None:
    assert_refused(answers[f"check {text}"], text, says)


def test_all_errors_in_hardware_keys_are_shown_at_once(answers: dict[str, Result]) -> None:
    places = re.findall(r"^  --> hw\.yaml:(\d+):(\d+)$", answers["several"].err, re.MULTILINE)
    assert [(int(line), int(column)) for line, column in places] == marked(SEVERAL).places


def test_keys_of_a_variable_and_a_flag_that_contradict_are_named(
    answers: dict[str, Result],
) -> None:
    result = answers["variable and flag"]
    assert result.code == 2
    assert "gpus: 2 contradicts accelerator.tpu_cores: 8" in result.err
    assert re.search(
        r"--> .*LIGHTKIT_ACCELERATOR__GPUS\n  --> --accelerator\.tpu_cores=8\n", result.err
    )


@pytest.mark.parametrize(("text", "code"), XLA_BF16, ids=[text for text, _ in XLA_BF16])
def test_the_variable_xla_use_bf16_counts_as_a_precision_on_a_tpu_only(
    text: str, code: int, answers: dict[str, Result]
) -> None:
    result = answers[f"bf16 {text}"]
    assert result.code == code, result.err
    if code:
        assert "precision: 32 contradicts XLA_USE_BF16: 1" in result.err
        assert re.search(r"--> hw\.yaml:1:40\n", result.err)
        assert re.search(r"--> environment variable XLA_USE_BF16\n", result.err)


def test_a_shipped_layer_for_horovod_can_be_moved_to_the_cpu(answers: dict[str, Result]) -> None:
    found = explained(answers["preset"])
    assert found["trainer"] == {"accelerator": "cpu", "strategy": HOROVOD, "devices": 1}
    assert found["launch"] == {"processes": 2}


def test_scaling_the_learning_rate_is_a_callback_by_name(answers: dict[str, Result]) -> None:
    entry = explained(answers["scale_lr"])["callbacks"]["scale_lr"]
    assert entry == {
        "class_path": "lightkit.distributed.ScaledLearningRate",
        "init_args": {"warmup_epochs": 5},
    }


def test_the_printed_config_has_todays_keys(answers: dict[str, Result]) -> None:
    printed = answers["printed"].yaml
    trainer = {
        key: printed["trainer"][key] for key in ("accelerator", "devices", "strategy", "precision")
    }
    assert trainer == two("cpu", strategy="ddp", precision="bf16-mixed")
    assert printed["launch"]["threads"] == 1
    assert printed["accelerator"]["fused"] is True
    assert not {"num_processes", "strategy"} & {k for k, v in printed["accelerator"].items() if v}


def test_devices_says_what_the_machine_has(answers: dict[str, Result]) -> None:
    output = answers["devices"].ok().out
    found = json.loads(answers["devices json"].ok().out)
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert 0 < found["memory_available_bytes"] < found["memory_bytes"]
    assert found["gpus"] == []  # CUDA_VISIBLE_DEVICES is empty
    assert found["versions"]["torch"].split("+")[0] == version("torch").split("+")[0]
    assert (found["horovod"]["version"] is None) == (find_spec("horovod") is None)
    assert re.search(rf"^cores +{found['cores']} ", output, re.MULTILINE)
    assert re.search(r"^gpus +none", output, re.MULTILINE)
    for name in ("host", "cpu", "memory", "xla", "horovod", "versions"):
        assert re.search(rf"^{name} +\S", output, re.MULTILINE), output


@pytest.mark.skipif(
    find_spec("torch_xla") is not None, reason="torch-xla is installed; tests/tpu is for that"
)
@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("accelerator.gpus=2", r"accelerator\.gpus: 2: this machine shows no GPU"),
        (
            "accelerator.tpu_cores=1",
            r"tpu_cores: 1: .*torch-xla.*pip install '\.\[tpu\]' -c constraints-tpu\.txt",
        ),
    ],
    ids=["gpus", "tpu_cores"],
)
def test_missing_devices_are_refused_before_torch_is_loaded(
    workspace: Workspace, word: str, says: str
) -> None:
    workspace.write("torch.py", "raise SystemError('torch was loaded')")
    result = workspace.run_cold("fit", "--model=Regressor", "--data=Temperatures", word)
    assert result.code == 2, result.err
    assert re.search(says, result.err)
    assert "Traceback" not in result.err
    assert result.out == ""
    assert workspace.runs == []
