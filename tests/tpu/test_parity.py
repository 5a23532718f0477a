"""Training on an XLA device gives the weights of training on the CPU, and bfloat16 is bfloat16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.contract.examples import write_pictures
from tests.contract.workspace import load_checkpoint, read_metrics
from tests.tpu.commands import JOB, fitted, marks, on_xla, only_run, place, run

pytestmark = marks

NO_DROPOUT: dict[str, Any] = {
    "model": {"class_path": "mine.Net", "init_args": {"drop": 0.0}},
    "optimizer": {"class_path": "SGD", "init_args": {"lr": 0.05, "momentum": 0.9}},
    "callbacks": {"hlo": {"class_path": "mine.Hlo"}},
}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = load_checkpoint(
        only_run(folder) / "checkpoints" / "last.ckpt"
    )["state_dict"]
    return state


def rounded(state: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(weight, weight.bfloat16().to(weight.dtype)) for weight in state.values())


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two epochs on the CPU, eagerly."""
    folder = place(
        tmp_path_factory.mktemp("cpu"), **{**NO_DROPOUT, "callbacks": {}, "accelerator": "cpu"}
    )
    run(folder, "fit", "-c", "job.yaml", "trainer.max_epochs=2").ok()
    return folder


def test_sgd_with_momentum_gives_the_weights_of_the_cpu(on_cpu: Path, tmp_path: Path) -> None:
    folder = fitted(place(tmp_path, **NO_DROPOUT), "trainer.max_epochs=2")
    expected = weights(on_cpu)
    for name, weight in weights(folder).items():
        assert torch.allclose(weight, expected[name], rtol=0, atol=1e-6), name
    for ours, theirs in zip(
        read_metrics(only_run(folder)), read_metrics(only_run(on_cpu)), strict=True
    ):
        assert float(ours["val/loss"]) == pytest.approx(float(theirs["val/loss"]), abs=1e-6)
    assert "f32[4,4]" in (folder / "hlo.txt").read_text()
    assert not rounded(weights(folder))


@pytest.mark.parametrize(
    ("words", "environ"),
    [(["trainer.precision=bf16-true"], {}), ([], {"XLA_USE_BF16": "1"})],
    ids=["precision", "environment"],
)
def test_bf16_is_bfloat16_on_the_device(
    on_cpu: Path, tmp_path: Path, words: list[str], environ: dict[str, str]
) -> None:
    folder = place(tmp_path, **NO_DROPOUT)
    done = on_xla(folder, "fit", "-c", "job.yaml", "trainer.max_epochs=2", *words, **environ)
    assert done.code == 0, done.err
    assert "will be deprecated" not in done.out + done.err
    assert "on    XLA, precision bf16-true" in done.out
    hlo = (folder / "hlo.txt").read_text()
    assert "bf16[4,4]" in hlo
    assert "f32[4,4]" not in hlo.replace("bf16", "")
    assert rounded(weights(folder))
    for name, weight in weights(folder).items():
        assert torch.allclose(weight.float(), weights(on_cpu)[name], rtol=0, atol=0.05), name


def test_an_image_classifier_trains_on_xla(tmp_path: Path) -> None:
    write_pictures(tmp_path / "pictures")
    data = {"root": "pictures", "image_size": 32, "batch_size": 10, "num_workers": 0}
    trainer = {**JOB["trainer"], "max_epochs": 1, "limit_train_batches": 2, "limit_val_batches": 1}
    job = {
        "seed_everything": 7,
        "model": "ImageClassifier",
        "data": {"class_path": "ImageFolder", "init_args": data},
        "accelerator": {"tpu_cores": 1},
        "trainer": trainer,
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
    (row,) = read_metrics(only_run(fitted(tmp_path)))
    assert float(row["val/loss"]) > 0
