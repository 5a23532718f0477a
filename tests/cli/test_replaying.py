"""A run's later stages, on this machine, whatever its training was launched on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from lightkit.cli.launching import plan_of
from lightkit.cli.session import Session, open_session
from lightkit.runs.signals import SignalWatch

TRAINER = {"accelerator": "cpu", "strategy": "ddp", "devices": 2, "num_nodes": 1}
BEYOND: dict[str, dict[str, Any]] = {
    "machines": {"launch": {"engine": "torchrun", "processes": 2, "nodes": "1:4", "rendezvous": "far:29500"}},
    "hosts": {"launch": {"processes": 4, "hosts": "far:2,near:2"}, "trainer": {**TRAINER, "strategy": "horovod"}},
    "spark": {"launch": {"engine": "spark", "processes": 2, "master": "spark://far:7077"}},
    "ray": {"launch": {"engine": "ray", "processes": 2, "max_failures": 1}},
    "slurm": {"launch": {"engine": "slurm", "processes": 2}},
    "submitted": {"launch": {"slurm": {"partition": "gpu"}}},
    "by hand": {"launch": {}, "trainer": {**TRAINER, "num_nodes": 3}},
    "a class": {
        "launch": {"engine": "ray", "processes": 2},
        "trainer": {**TRAINER, "strategy": {"class_path": "DDPStrategy", "init_args": {"static_graph": True}}},
    },
}


def trained(folder: Path, config: dict[str, Any], *words: str) -> Session:
    """The session of `lightkit test` on a run with this saved config."""
    run = folder / "runs" / "job" / "20261120-113859-3fa1"
    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints" / "best.ckpt").touch()
    (run / "config.yaml").write_text(yaml.safe_dump({"model": "Net", "trainer": TRAINER, **config}), encoding="utf-8")
    return open_session("test", ["--run", str(run), *words], SignalWatch())


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.mark.parametrize("config", BEYOND.values(), ids=BEYOND)
def test_what_was_trained_elsewhere_is_tested_in_one_process(tmp_path: Path, config: dict[str, Any]) -> None:
    session = trained(tmp_path, config)
    trainer = session.resolved.values["trainer"]
    assert [trainer[key] for key in ("accelerator", "strategy", "devices", "num_nodes")] == ["cpu", "auto", 1, 1]
    assert "launch" not in session.resolved.values
    assert plan_of(session) is None


def test_what_the_command_line_says_of_the_hardware_counts(tmp_path: Path) -> None:
    session = trained(tmp_path, BEYOND["machines"], "trainer.devices=3", "--trainer.strategy=ddp")
    assert session.resolved.values["trainer"]["num_nodes"] == 1
    plan = plan_of(session)
    assert plan is not None
    assert (plan.engine, plan.processes, plan.strategy) == ("local", 3, "ddp")


def test_a_launch_that_the_command_line_speaks_of_is_started(tmp_path: Path) -> None:
    plan = plan_of(trained(tmp_path, BEYOND["machines"], "--launch.rendezvous=near:29500"))
    assert plan is not None
    assert (plan.engine, plan.settings.num_nodes, plan.settings.rendezvous) == ("torchrun", (1, 4), "near:29500")


def test_a_launch_on_this_machine_is_started_again(tmp_path: Path) -> None:
    plan = plan_of(trained(tmp_path, {"launch": {"engine": "torchrun", "processes": 2, "max_restarts": 1}}))
    assert plan is not None
    assert (plan.engine, plan.processes) == ("torchrun", 2)
