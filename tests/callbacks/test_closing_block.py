from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.callbacks.progress import format_closing_block


def test_the_last_block_says_what_is_best_where_it_is_and_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "my flowers" / "7"
    block = format_closing_block(
        folder=folder,
        best_checkpoint=folder / "checkpoints" / "best.ckpt",
        monitor="val/loss",
        value=0.51234,
        epoch=11,
        commands=[["lightkit", "test", "--run", "runs/my flowers/7"], ["tensorboard", "--logdir", "runs"]],
        notices=["12 metrics wait in runs/outbox"],
    )
    assert block.splitlines() == [
        "best  runs/my flowers/7/checkpoints/best.ckpt  (val/loss 0.5123 after epoch 11)",
        "run   runs/my flowers/7",
        "note  12 metrics wait in runs/outbox",
        "next  lightkit test --run 'runs/my flowers/7'",
        "      tensorboard --logdir runs",
    ]


def test_a_run_elsewhere_without_a_checkpoint_is_named_in_full() -> None:
    assert format_closing_block(folder="/somewhere/runs/7") == "run   /somewhere/runs/7"
