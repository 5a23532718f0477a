"""Whatever keys are said together.

One set of trainer arguments that Lightning takes, or one error with its places.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, reject, settings
from hypothesis import strategies as st

from lightkit.config import Hardware, resolve, resolve_hardware
from lightkit.config.overrides import Flag
from lightkit.config.yaml_reader import read_scalar
from lightkit.errors import ConfigError
from lightkit.hardware import Machine
from tests.config.accelerator.test_resolve import FOUR, NOTHING, TPU

GPUS: list[Any] = [
    None,
    0,
    1,
    2,
    "2",
    -1,
    "-1",
    "all",
    [0, 3],
    "0,3",
    "0,",
    [],
    [1, 1],
    True,
    -3,
    "two",
    {"a": 1},
    2.5,
]
TPU_CORES: list[Any] = [None, 0, 1, 8, "8", [5], "5,", [8], 3, "auto", False]
COUNTS: list[Any] = [None, 0, 1, 2, "2", 3, -1, "x", True, [2]]
STRATEGIES: list[Any] = [
    *(
        None,
        "auto",
        "ddp",
        "ddp_spawn",
        "DDP",
        "fsdp",
        "xla",
        "single_device",
        "horovod",
        "HorovodStrategy",
    ),
    *(
        "dp",
        "ddp2",
        "ddp_cpu",
        "tpu_spawn",
        "tpu_spawn_debug",
        "fsdp_native",
        "ddp_sharded",
        "bagua",
    ),
    {"class_path": "lightkit.distributed.HorovodStrategy", "init_args": {"x": 1}},
]
PRECISIONS: list[Any] = [
    None,
    16,
    "16",
    32,
    64,
    "bf16",
    "bf16-true",
    "bf16-mixed",
    "16-true",
    "32-true",
]
ACCELERATORS: list[Any] = ["auto", "cpu", "gpu", "cuda", "tpu", "mps"]
SHARED: dict[str, list[Any]] = {
    "gpus": GPUS,
    "tpu_cores": TPU_CORES,
    "ipus": [None, 0, 4],
    "hpus": [None, 1],
    "num_processes": COUNTS,
    "strategy": STRATEGIES,
    "num_nodes": [1, 2, None],
}


def some_of(values: dict[str, list[Any]], most: int) -> st.SearchStrategy[dict[str, Any]]:
    keys = st.lists(st.sampled_from(sorted(values)), unique=True, max_size=most)
    return keys.flatmap(
        lambda chosen: st.fixed_dictionaries({key: st.sampled_from(values[key]) for key in chosen})
    )


BLOCKS = st.one_of(
    st.none(),
    st.sampled_from([*ACCELERATORS, "ddp", "gup", 3, ["cpu"]]),
    some_of(
        {
            **SHARED,
            "precision": [*PRECISIONS, "auto", "bf17", 8, True, [16]],
            "memory_format": [None, "auto", "contiguous", "channels_last", "nhwc"],
            "compile": [None, True, "auto", "maybe"],
            "tf32": [None, False, "auto"],
            "threads": [None, "auto", 1, 4, "2", 0],
            "num_workers": [None, "auto", 0, 2, -1],
            "learning_rate": [None, "auto", 0.1, "1e-3", 0],
            "gpu": [1],
        },
        4,
    ),
)
TRAINERS = some_of(
    {
        **SHARED,
        "precision": PRECISIONS,
        "accelerator": [None, *ACCELERATORS, "ddp", "ddp_cpu", "horovod", "dp", "ipu", "tpu_spawn"],
        "devices": [None, "auto", 1, 2, "2", -1, 0, [0, 3], [0], "0,3"],
    },
    4,
)
LAUNCHES = some_of(
    {
        "processes": [None, 1, 2, "2", -4, 0, True, "x"],
        "engine": [None, "local", "horovod", "torchrun", "spark", "ray", "slurm", "no"],
        "hosts": [None, "a:4,b:4"],
    },
    2,
)
DATA = {"class_path": "Flowers", "init_args": {"num_workers": 1}}
MODEL = {"class_path": "ImageClassifier"}
MACHINES = {
    "unknown": None,
    "cpu": NOTHING,
    "four": FOUR,
    "uncounted": Machine(gpus=None),
    "tpu": TPU,
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("config") / "x.yaml"


FLAGS = st.one_of(
    st.none(),
    st.sampled_from([("accelerator", word) for word in ACCELERATORS]),
    st.sampled_from(sorted(SHARED)).flatmap(
        lambda key: st.tuples(
            st.sampled_from([f"accelerator.{key}", f"trainer.{key}"]),
            st.sampled_from([value for value in SHARED[key] if not isinstance(value, dict)]),
        )
    ),
    st.sampled_from([("trainer.devices", number) for number in (1, 2, "auto", "0,3", -1)]),
    st.sampled_from([("trainer.accelerator", word) for word in (*ACCELERATORS, "ddp", "ddp_cpu")]),
)


def resolved_hardware(
    file: Path, config: dict[str, Any], machine: Machine | None, flag: Any = None
) -> Hardware:
    file.write_text(yaml.safe_dump(config, sort_keys=False))
    flags = (
        [Flag(flag[0], json.dumps(flag[1]), f"--{flag[0]}={json.dumps(flag[1])}")] if flag else []
    )
    return resolve_hardware(resolve([file], flags=flags, environ={}), machine, environ={})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(BLOCKS, TRAINERS, LAUNCHES, st.sampled_from(sorted(MACHINES)), FLAGS)
def test_any_combination_is_one_trainer_or_one_clear_error(
    file: Path, block: Any, trainer: dict[str, Any], launch: dict[str, Any], machine: str, flag: Any
) -> None:
    config = {
        "accelerator": block,
        "trainer": trainer,
        "launch": launch,
        "data": DATA,
        "model": MODEL,
    }
    try:
        hardware = resolved_hardware(file, config, MACHINES[machine], flag)
    except ConfigError as error:
        message = str(error)
    else:
        check_idempotence(hardware, file, MACHINES[machine])
        return
    assert f"  --> {file}:" in message or (flag and f"  --> --{flag[0]}=" in message)
    assert len(message.splitlines()[0]) > 20


def check_idempotence(hardware: Hardware, file: Path, machine: Machine | None) -> None:
    values = hardware.resolved.values
    assert not set(values.get("accelerator", {})) & {
        "kind",
        "gpus",
        "tpu_cores",
        "num_processes",
        "strategy",
    }
    assert not {"gpus", "tpu_cores", "ipus", "hpus", "num_processes"} & set(values["trainer"])
    check_coherence(hardware)
    again = resolved_hardware(file, values, machine)
    assert again.resolved.values == values
    assert (again.processes, again.strategy, again.kind) == (
        hardware.processes,
        hardware.strategy,
        hardware.kind,
    )
    assert not [notice for notice in again.notices if "no effect" not in notice]


def check_coherence(hardware: Hardware) -> None:
    trainer = hardware.resolved.values["trainer"]
    if hardware.strategy == "horovod":
        assert trainer["devices"] == 1
        assert trainer["strategy"]["class_path"] == "lightkit.distributed.HorovodStrategy"
    else:
        assert hardware.processes is None
    if hardware.kind == "tpu":
        assert trainer.get("precision") in (None, 32, "32-true", "bf16-true")
        assert trainer.get("strategy", "auto") in ("auto", "xla", "xla_debug", "single_device")


@contextmanager
def gpus_for_lightning(number: int) -> Iterator[None]:
    """Let Lightning count GPUs that are not there; it does not use them before it trains."""
    from lightning_fabric.accelerators import cuda
    from pytorch_lightning.accelerators import CUDAAccelerator

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda, "num_cuda_devices", lambda: number)
        patch.setattr(CUDAAccelerator, "is_available", staticmethod(lambda: number > 0))
        patch.setattr(CUDAAccelerator, "auto_device_count", staticmethod(lambda: number))
        yield


@pytest.mark.parametrize("machine", ["cpu", "four"])
@settings(
    # many are errors
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
)
@given(BLOCKS, TRAINERS, LAUNCHES, FLAGS)
def test_lightning_takes_what_comes_out(
    file: Path, machine: str, block: Any, trainer: dict[str, Any], launch: dict[str, Any], flag: Any
) -> None:
    config = {
        "accelerator": block,
        "trainer": trainer,
        "launch": launch,
        "data": DATA,
        "model": MODEL,
    }
    try:
        hardware = resolved_hardware(file, config, MACHINES[machine], flag)
    except ConfigError:
        reject()
    # not this machine
    assume(launch.get("engine") not in ("spark", "ray", "slurm") and not launch.get("hosts"))
    said = hardware.resolved.values["trainer"]
    arguments = {
        key: read_scalar(value) if isinstance(value, str) else value for key, value in said.items()
    }
    if hardware.strategy == "horovod":
        del arguments["strategy"]  # it wants Horovod's own processes
    # late: it loads torch, which the other tests here do without
    from pytorch_lightning import Trainer

    num_gpus = 4 if machine == "four" else 0
    with warnings.catch_warnings(), gpus_for_lightning(num_gpus):
        warnings.simplefilter("ignore")  # what Lightning says of precision is its own
        built = Trainer(
            **arguments, logger=False, enable_checkpointing=False, enable_progress_bar=False
        )
    on_cpu = hardware.kind == "cpu" or not num_gpus
    assert type(built.accelerator).__name__ == ("CPUAccelerator" if on_cpu else "CUDAAccelerator")
    expected = arguments.get("devices", "auto")
    if isinstance(expected, str) and "," in expected:
        expected = [int(number) for number in expected.split(",") if number]
    every = 1 if on_cpu or arguments.get("strategy") == "single_device" else 4
    number = (
        len(expected)
        if isinstance(expected, list)
        else every
        if expected in ("auto", -1)
        else expected
    )
    assert built.num_devices == number
