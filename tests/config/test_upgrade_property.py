"""Whatever an old config says: it is refused with its places, or says the same in words of which none is old."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, reject
from hypothesis import strategies as st

from lightkit.config import Hardware, resolve, resolve_hardware
from lightkit.config.upgrade import Upgraded, upgrade_file
from lightkit.errors import ConfigError

TRAINER: dict[str, list[Any]] = {
    "gpus": [None, 0, 1, 2, "2", -1, "-1", [0, 3], "0,3", []],
    "tpu_cores": [None, 0, 1, 8, [5]],
    "ipus": [None, 0, 4],
    "num_processes": [None, 1, 2],
    "accelerator": [None, "auto", "cpu", "gpu", "tpu", "ddp", "ddp_cpu", "horovod", "dp", "ddp_spawn"],
    "distributed_backend": [None, "ddp", "ddp_cpu", "horovod", "ddp2"],
    "strategy": [None, "auto", "ddp", "horovod", "tpu_spawn", "fsdp_native", "ddp_sharded", "deepspeed_stage_2"],
    "devices": [None, "auto", 1, 2, -1],
    "num_nodes": [None, 1, 2],
    "precision": [None, 16, "16", "bf16", 32, 64, "16-mixed"],
    "plugins": [None, "ddp_find_unused_parameters_false", ["deepspeed"], "ddp_sharded"],
    "max_epochs": [None, 10],
    "max_steps": [None, -1, 100],
    "logger": [None, True, False],
    "checkpoint_callback": [None, True, False],
    "weights_summary": [None, "top", "full"],
    "progress_bar_refresh_rate": [None, 0, 1, 20],
    "process_position": [0, 2],
    "weights_save_path": [None, "weights # here"],
    "resume_from_checkpoint": [None, "old: one.ckpt"],
    "accumulate_grad_batches": [None, 2, {4: 2}],
    "terminate_on_nan": [None, True, False],
    "auto_lr_find": [None, False, True],
    "log_gpu_memory": [None, "all"],
    "profiler": [None, True, False, "simple"],
}
FLAT = ("gpus", "max_epochs", "precision", "terminate_on_nan", "accumulate_grad_batches", "strategy")
MACHINE_FREE = ("accelerator", "strategy", "devices", "precision", "num_nodes")
HARDWARE = (*MACHINE_FREE, "gpus", "tpu_cores", "num_processes")


def some(keys: tuple[str, ...]) -> st.SearchStrategy[dict[str, Any]]:
    """Draw a few keys with one of their values each."""
    return st.lists(st.sampled_from(keys), unique=True, max_size=6).flatmap(
        lambda chosen: st.fixed_dictionaries({key: st.sampled_from(TRAINER[key]) for key in chosen})
    )


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a config with a trainer, arguments beside it, and a command's block."""
    config: dict[str, Any] = {"seed_everything": 1, "trainer": draw(some(tuple(TRAINER)))}
    if draw(st.booleans()):
        config |= draw(some(FLAT))
    config["model"] = {"class_path": "lightning.pytorch.demos.boring_classes.BoringModel"}
    if draw(st.booleans()):
        config["fit"] = {"trainer": draw(some(tuple(TRAINER)))}
    return config


def written(config: dict[str, Any], *, flow: bool | None) -> str:
    """Write a config with a comment on every line."""
    text = yaml.safe_dump(config, sort_keys=False, default_flow_style=flow, width=1000)
    return "".join(f"{line}  # remark {number}.\n" for number, line in enumerate(text.splitlines()))


def upgraded(text: str) -> Upgraded:
    """Upgrade a text as a file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "old.yaml"
        file.write_text(text)
        return upgrade_file(file)


def hardware_of(text: str) -> Hardware:
    """Resolve what a text asks of the hardware."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "one.yaml"
        file.write_text(text)
        return resolve_hardware(
            resolve([file], environ={}, subcommand="fit", subcommands=("fit", "test")), None, environ={}
        )


def asked(hardware: Hardware) -> dict[str, Any]:
    """Give what the trainer is told, without what says nothing."""
    trainer = hardware.resolved.values.get("trainer") or {}
    said = {key: trainer[key] for key in MACHINE_FREE if trainer.get(key) not in (None, "auto")}
    said["num_nodes"] = trainer.get("num_nodes") or 1
    if isinstance(said.get("devices"), str):
        said["devices"] = int(said["devices"])
    return said | {"processes": hardware.processes, "kind": hardware.kind, "name": hardware.strategy}


@given(configs(), st.sampled_from([False, None]))
def test_an_upgraded_config_needs_no_upgrade(config: dict[str, Any], flow: bool | None) -> None:
    try:
        once = upgraded(written(config, flow=flow))
    except ConfigError:
        reject()
    again = upgraded(once.text)

    assert again.changes == ()
    assert again.text == once.text


@given(configs(), st.sampled_from([False, None]))
def test_an_upgraded_config_keeps_its_comments_or_lists_them(config: dict[str, Any], flow: bool | None) -> None:
    text = written(config, flow=flow)
    try:
        new = upgraded(text)
    except ConfigError:
        reject()

    listed = " ".join(change for _, change in new.changes)
    remarks = [line.rpartition("  # ")[2] for line in text.splitlines()]

    assert [remark for remark in remarks if (new.text + listed).count(remark) != 1] == []


@given(some(HARDWARE), st.sampled_from([False, None]))
def test_an_upgraded_config_asks_for_the_same_hardware_in_todays_words(
    trainer: dict[str, Any], flow: bool | None
) -> None:
    text = written({"trainer": trainer, "model": "Net"}, flow=flow)
    try:
        old = hardware_of(text)
    except ConfigError:
        with pytest.raises(ConfigError):
            upgraded(text)
        return
    try:
        new = hardware_of(upgraded(text).text)
    except ConfigError:
        assert old.strategy == "horovod"  # of which a number can be said twice, where one of them is 1
        return

    assert new.notices == ()
    assert asked(new) == asked(old)


@pytest.mark.parametrize(
    ("trainer", "fit"),
    [
        ({"gpus": 2}, {"num_processes": 1}),
        ({"gpus": 2, "accelerator": "ddp"}, {"gpus": 0}),
        ({"gpus": 2}, {"gpus": None}),
        ({"gpus": 0}, {"gpus": 4, "precision": 16}),
        ({"gpus": 2}, {"accelerator": "ddp"}),
        ({"gpus": 2}, {"strategy": "horovod"}),
        ({"tpu_cores": 8}, {"num_nodes": None, "precision": "bf16"}),
        ({"accelerator": "gpu", "devices": 2}, {"num_processes": 1}),
    ],
    ids=lambda keys: " ".join(f"{key}={value}" for key, value in keys.items()),
)
def test_the_block_of_a_command_is_upgraded_as_what_it_is_laid_over(
    trainer: dict[str, Any], fit: dict[str, Any]
) -> None:
    text = written({"trainer": trainer, "fit": {"trainer": fit}}, flow=False)
    old, new = hardware_of(text), hardware_of(upgraded(text).text)

    assert new.notices == ()
    assert asked(new) == asked(old)
