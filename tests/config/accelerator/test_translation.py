"""Each layer is translated to the trainer's keys before it is merged.

What it replaces below, and what it refuses.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from lightkit.cli.command_table import parse
from lightkit.config import resolve, resolve_hardware
from lightkit.errors import ConfigError
from tests.config.accelerator.test_resolve import trainer_of, two
from tests.config.accelerator.test_resolve_precedence import layered


def test_the_keys_of_the_trainer_are_there_after_the_merge(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("accelerator: {gpus: 2}\n")
    resolved = resolve([tmp_path / "x.yaml"], environ={})
    assert resolved.values == {"accelerator": {"gpus": 2}, "trainer": two("gpu")}
    assert str(resolved.origin_of("trainer.devices")) == str(resolved.origin_of("accelerator.gpus"))


def test_another_key_can_refer_to_a_hardware_key(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("trainer: {gpus: 2, max_epochs: '${trainer.gpus}'}\n")
    hardware = resolve_hardware(resolve([tmp_path / "x.yaml"], environ={}), environ={})
    assert trainer_of(hardware) == {"max_epochs": 2, **two("gpu")}


REPLACED: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    # another kind of device drops the number
    (("accelerator: gpu\ntrainer: {devices: 2}", "--accelerator=cpu"),
     {"accelerator": "cpu", "devices": "auto"}),
    (("trainer: {accelerator: gpu}", "trainer: {devices: 2}", "--accelerator=cpu"),
     {"accelerator": "cpu", "devices": "auto"}),
    (("accelerator: {gpus: 2}", "accelerator: cpu", "accelerator: gpu"), {"accelerator": "gpu"}),
    (("trainer: {devices: 2}", "accelerator: cpu"), two("cpu")),
    (("trainer: {devices: -1}", "accelerator: cpu"), {"accelerator": "cpu", "devices": "auto"}),
    # and a layer that sets a number, too, keeps its own
    (("accelerator: {gpus: 4}", "trainer: {accelerator: cpu, devices: 2}"), two("cpu")),
    # a key replaces what the same key has set
    (("accelerator: {tpu_cores: 8}", "accelerator: {tpu_cores: null}"), {}),
    (("trainer: {devices: 2}", "accelerator: {tpu_cores: 8}", "accelerator: {tpu_cores: null}"),
     {"devices": 2}),
    (("accelerator: {strategy: ddp_cpu}", "accelerator: {strategy: fsdp}"), {"strategy": "fsdp"}),
    (("trainer: {accelerator: ddp, gpus: 2}", "trainer: {accelerator: gpu}"), two("gpu")),
    (("accelerator: {strategy: ddp, precision: 16}\ntrainer: {precision: 16-mixed}",
      "accelerator: null"),
     {"precision": "16-mixed"}),
    # an old name of a strategy leaves the kind of device of a lower layer
    (("trainer: {accelerator: gpu, devices: 2}", "trainer: {accelerator: ddp}"),
     {**two("gpu"), "strategy": "ddp"}),
    (("trainer: {strategy: horovod}", "--trainer.strategy.compression=fp16"),
     {"strategy": {"class_path": "lightkit.distributed.HorovodStrategy",
                   "init_args": {"compression": "fp16"}},
      "devices": 1}),
    # 1 is the default of Lightning 1.x
    (("trainer: {accelerator: gpu, num_processes: 1}",), {"accelerator": "gpu"}),
    (("trainer: {num_processes: 1}\nlaunch: {processes: 3}",),
     {"accelerator": "cpu", "devices": 3, "strategy": "ddp"}),
    (("accelerator: {num_processes: 2}\ntrainer: {strategy: auto}",),
     {**two("cpu"), "strategy": "auto"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("layers", "becomes"), REPLACED, ids=[" & ".join(row[0]) for row in REPLACED]
)
def test_a_layer_replaces_what_it_sets_in_whatever_words(
    layers: tuple[str, ...], becomes: dict[str, Any], tmp_path: Path
) -> None:
    assert trainer_of(layered(tmp_path, *layers)) == becomes


CONTRADICTIONS = [
    (
        ("accelerator: cpu\ntrainer: {accelerator: gpu}", "accelerator: {gpus: 2}"),
        "accelerator: cpu contradicts",
    ),
    (
        ("trainer: {tpu_cores: 8, num_processes: 2}", "--accelerator=cpu"),
        "tpu_cores: 8 contradicts trainer.num_proc",
    ),
    (
        ("accelerator: {precision: auto}\ntrainer: {precision: 16-mixed}",),
        "precision: auto contradicts trainer.prec",
    ),
    (
        ("accelerator: {gpus: 2}\ntrainer: {accelerator: '${run.name}'}\nrun: {name: cpu}",),
        "contradicts accelerator.g",
    ),
]


@pytest.mark.parametrize(
    ("layers", "says"), CONTRADICTIONS, ids=[" & ".join(row[0]) for row in CONTRADICTIONS]
)
def test_a_layer_that_contradicts_itself_is_refused_also_below_others(
    layers: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)) as caught:
        layered(tmp_path, *layers)
    assert str(caught.value).count("  --> ") == 2


def test_a_wrong_value_counts_only_where_no_layer_replaces_it(tmp_path: Path) -> None:
    assert trainer_of(layered(tmp_path, "accelerator: {gpus: two}", "--accelerator.gpus=2")) == two(
        "gpu"
    )
    with pytest.raises(ConfigError, match=r"accelerator\.gpus: expected a number of GPUs"):
        layered(tmp_path, "accelerator: {gpus: 2}", "--accelerator.gpus=two")


def test_a_variable_in_a_hardware_key_is_read_as_it_is_translated(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("accelerator: {gpus: '${oc.env:NUMBER}'}\n")
    resolved = resolve([tmp_path / "x.yaml"], environ={"NUMBER": "2"})
    hardware = resolve_hardware(resolved, environ={})
    assert (hardware.kind, hardware.devices) == ("gpu", 2)
    assert (
        hardware.resolved.with_references(hardware.resolved.values)["trainer"]["devices"]
        == "${oc.env:NUMBER}"
    )


def test_a_hardware_key_that_refers_to_another_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("accelerator: {gpus: '${run.seed}'}\nrun: {seed: 2}\n")
    with pytest.raises(
        ConfigError, match=r"accelerator\.gpus: 2: expected a value, got \$\{run\.seed\}; write"
    ):
        resolve_hardware(resolve([tmp_path / "x.yaml"], environ={}), environ={})


def test_horovods_ranks_outlive_another_kind_of_device(tmp_path: Path) -> None:
    flags = parse(["fit", "--accelerator=cpu"]).overrides
    (tmp_path / "x.yaml").write_text("accelerator: {strategy: horovod, gpus: 2}\n")
    hardware = resolve_hardware(resolve([tmp_path / "x.yaml"], flags=flags, environ={}), environ={})
    assert (hardware.processes, hardware.kind) == (2, "cpu")
