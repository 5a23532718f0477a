"""Which cores of a TPU a training gets, and what is refused before anything is built."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.contract.workspace import Result, read_json, read_metrics
from tests.tpu.commands import fitted, marks, on_xla, only_run, place, runs_in

pytestmark = marks


def fit(
    folder: Path, cores: Any, *words: str, program: str = "built_trainer", **environ: str
) -> Result:
    place(folder, accelerator={"tpu_cores": cores})
    return on_xla(
        folder, "fit", "-c", "job.yaml", *words, program=program, NUM_TPU_CORES="8", **environ
    )


def built(end: Result) -> dict[str, Any]:
    """Return the settings that built_trainer.py printed."""
    assert end.code == 0, end.err
    (line,) = (line for line in end.out.splitlines() if line.startswith("built "))
    settings: dict[str, Any] = json.loads(line.removeprefix("built "))
    return settings


def test_eight_cores_are_lightnings_xla_strategy_on_pjrts_tpu(tmp_path: Path) -> None:
    """PJRT_DEVICE is not set, as on a machine whose owner has never heard of it."""
    assert built(fit(tmp_path, 8, PJRT_DEVICE="")) == {
        "accelerator": "XLAAccelerator",
        "strategy": "XLAStrategy",
        "launcher": "_XLALauncher",
        "precision": "32-true",
        "checkpoint_io": "VerifiedXLACheckpointIO",
        "devices": 8,
        "PJRT_DEVICE": "TPU",
    }


def test_a_list_is_the_one_core_of_that_number(tmp_path: Path) -> None:
    """XLA makes eight devices of the CPU, of which the sixth is trained on."""
    place(tmp_path, accelerator={"tpu_cores": [5]})
    fitted(tmp_path, "trainer.max_epochs=1", NUM_TPU_CORES="8", CPU_NUM_DEVICES="8")
    assert len(read_metrics(only_run(tmp_path))) == 1
    manifest = read_json(only_run(tmp_path) / "manifest.json")
    assert manifest["hardware"]["devices"] == 1


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("trainer.precision=16-true", "bf16-true"),
        ("trainer.precision=bf16-mixed", "bf16-true"),
        ("trainer.strategy=ddp", "xla"),
    ],
    ids=["float16", "mixed", "ddp"],
)
def test_what_xla_has_not_is_refused_before_anything_is_built(
    tmp_path: Path, word: str, says: str
) -> None:
    end = fit(tmp_path, 1, word)
    assert end.code == 2, end.err
    assert says in end.err
    assert "Traceback" not in end.err
    assert runs_in(tmp_path) == []
