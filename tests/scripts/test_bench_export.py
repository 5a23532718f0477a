"""The bench of exported files: what is timed, and what the table says of it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))


def _module(name: str) -> Any:
    return importlib.import_module(f"benches.{name}")


def _figures(*medians_s: float) -> dict[str, Any]:
    sizes = dict(zip(("1", "32"), medians_s, strict=True))
    return {"2": {size: {"median_s": at, "p95_s": 2 * at, "repetitions": 40} for size, at in sizes.items()}}


def test_each_file_is_compared_with_the_eager_model_for_each_size_of_batch() -> None:
    found = {"eager": [_figures(0.02, 0.4)], "onnx": [_figures(0.01, 0.3)], "onnx int8": [_figures(0.004, 0.1)]}
    rows = _module("export").compared(found, 2)
    assert [(row["what"], row["of"], row["ratio"]["median"]) for row in rows] == [
        ("MobileNetV2, batch 1, 2 threads", "lightkit, onnx", 0.5),
        ("MobileNetV2, batch 1, 2 threads", "lightkit, onnx int8", 0.2),
        ("MobileNetV2, batch 32, 2 threads", "lightkit, onnx", 0.75),
        ("MobileNetV2, batch 32, 2 threads", "lightkit, onnx int8", 0.25),
    ]
    assert {row["unit"] for row in rows} == {"ms"}
    assert {row["reached"] for row in rows} == {None}


def test_medians_and_95th_percentiles_stand_in_a_line_for_each_size() -> None:
    found = {"eager": [_figures(0.02, 0.4)], "onnx": [_figures(0.01, 0.3)]}
    assert _module("export").in_words(found) == [
        "2 threads, batch 1: eager 20 (p95 40), onnx 10 (p95 20) ms",
        "2 threads, batch 32: eager 400 (p95 800), onnx 300 (p95 600) ms",
    ]


def test_a_command_that_fails_is_no_measurement(tmp_path: Path) -> None:
    with pytest.raises(_module("contest").BenchError, match="lightkit export ended with 2"):
        _module("export")._said(("lightkit", "export", "--format", "tflite"), tmp_path, 1)


def test_the_eager_model_of_a_checkpoint_is_timed_with_each_number_of_threads(tmp_path: Path) -> None:
    import torch
    from pytorch_lightning import Trainer

    from lightkit.models import ImageClassifier

    model = ImageClassifier(class_names=["rose", "tulip"])
    model.configure_model()
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    trainer.strategy.connect(model)
    trainer.save_checkpoint(tmp_path / "best.ckpt")
    before = torch.get_num_threads()
    try:
        found = _module("export_call").timed(tmp_path / "best.ckpt", sizes=[1, 3], threads=[1], image_size=32, seed=0)
    finally:
        torch.set_num_threads(before)
    assert {threads: list(sizes) for threads, sizes in found.items()} == {"1": ["1", "3"]}
    assert all(0 < each["median_s"] <= each["p95_s"] for each in found["1"].values())
