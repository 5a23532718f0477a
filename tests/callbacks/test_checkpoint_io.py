from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit import runs
from lightkit.callbacks import VerifiedCheckpointIO
from lightkit.callbacks.checkpoint_io import digest_weights
from lightkit.errors import CheckpointError
from lightkit.launch import watchdog
from lightkit.runs import checkpoints

CONTENT = {
    "state_dict": {"weight": torch.arange(3.0)},
    "hyper_parameters": {"token": "hunter2"},
    "epoch": 1,
    "global_step": 20,
}


def test_a_checkpoint_has_a_digest_next_to_it_and_is_announced(tmp_path: Path) -> None:
    saves: list[tuple[Path, int, int]] = []
    path = tmp_path / "checkpoints" / "last.ckpt"
    VerifiedCheckpointIO(on_saved=lambda *saved: saves.append(saved)).save_checkpoint(
        dict(CONTENT), path
    )
    assert runs.find_fault(path) is None
    assert torch.equal(
        torch.load(path, weights_only=True)["state_dict"]["weight"], torch.arange(3.0)
    )
    assert saves == [(path, 1, 20)]
    assert sorted(file.name for file in path.parent.iterdir()) == ["last.ckpt", "last.ckpt.sha256"]


def test_the_same_content_has_the_same_digest_under_any_name(tmp_path: Path) -> None:
    for name in ("best.ckpt", "last.ckpt"):
        VerifiedCheckpointIO().save_checkpoint(dict(CONTENT), tmp_path / name)
    assert runs.digest(tmp_path / "best.ckpt") == runs.digest(tmp_path / "last.ckpt")


def test_secrets_are_masked_before_they_are_written(tmp_path: Path) -> None:
    VerifiedCheckpointIO(mask=lambda _: {"token": "${oc.env:TOKEN}"}).save_checkpoint(
        dict(CONTENT), tmp_path / "a.ckpt"
    )
    assert b"hunter2" not in (tmp_path / "a.ckpt").read_bytes()
    assert torch.load(tmp_path / "a.ckpt", weights_only=True)["hyper_parameters"] == {
        "token": "${oc.env:TOKEN}"
    }


@pytest.mark.parametrize(
    "error",
    [
        PermissionError(13, "Permission denied"),
        OSError(28, "No space left on device"),
        RuntimeError("unexpected pos"),
    ],
    ids=["permission", "space", "torch"],
)
def test_a_write_that_fails_is_an_error_and_leaves_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    path = tmp_path / "last.ckpt"
    VerifiedCheckpointIO().save_checkpoint(dict(CONTENT), path)
    before = path.read_bytes()

    def fail(_content: Any, file: Any) -> None:
        file.write(b"half")
        raise error

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(
        CheckpointError, match=r"last\.ckpt cannot be written: .*Free space or change"
    ):
        VerifiedCheckpointIO().save_checkpoint(dict(CONTENT), path)
    assert path.read_bytes() == before
    assert runs.find_fault(path) is None
    assert not list(tmp_path.glob(".*"))


def test_a_loader_that_dies_during_a_write_is_no_error_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch raises it from a signal handler: here while an error of the disk is being handled."""
    path = tmp_path / "last.ckpt"
    VerifiedCheckpointIO().save_checkpoint(dict(CONTENT), path)

    def die(_content: Any, _file: Any) -> None:
        try:
            raise FileExistsError(17, "File exists")
        except OSError as error:
            raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ") from error

    monkeypatch.setattr(torch, "save", die)
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid 7\) is killed"):
        VerifiedCheckpointIO().save_checkpoint(dict(CONTENT), path)
    assert runs.find_fault(path) is None


def test_what_does_not_read_back_replaces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, save = tmp_path / "last.ckpt", torch.save
    VerifiedCheckpointIO().save_checkpoint(dict(CONTENT), path)

    def flip_a_bit(content: Any, file: Any) -> None:
        save(content, file)
        file.seek(200)
        file.write(b"\xff" * 300)

    monkeypatch.setattr(torch, "save", flip_a_bit)
    with pytest.raises(
        CheckpointError, match=r"last\.ckpt cannot be written: .* read back as it was written"
    ):
        VerifiedCheckpointIO().save_checkpoint({**CONTENT, "more": torch.ones(1000)}, path)
    assert runs.find_fault(path) is None
    assert torch.load(path, weights_only=True).keys() == CONTENT.keys()


def _saved(writer: VerifiedCheckpointIO, folder: Path, step: int, name: str = "last") -> None:
    writer.save_checkpoint({**CONTENT, "global_step": step}, folder / f"{name}.ckpt")


def _steps(folder: Path) -> dict[str, int]:
    assert all(runs.find_fault(path) is None for path in folder.glob("*.ckpt"))
    return {
        path.stem: torch.load(path, weights_only=True)["global_step"]
        for path in folder.glob("*.ckpt")
    }


def test_the_one_before_the_last_is_kept(tmp_path: Path) -> None:
    writer = VerifiedCheckpointIO()
    for step in range(3):
        _saved(writer, tmp_path, step)
        _saved(writer, tmp_path, step, "best")
    assert _steps(tmp_path) == {"last": 2, "last-1": 1, "best": 2}
    assert len(list(tmp_path.iterdir())) == 6


def test_one_that_was_damaged_meanwhile_does_not_replace_the_one_before_it(tmp_path: Path) -> None:
    for step in range(2):
        _saved(VerifiedCheckpointIO(), tmp_path, step)
    (tmp_path / "last.ckpt").write_bytes(b"damaged")
    # as a process that has resumed from the one before does
    _saved(VerifiedCheckpointIO(), tmp_path, 2)
    assert _steps(tmp_path) == {"last": 2, "last-1": 0}


def test_what_is_damaged_while_the_process_runs_is_noticed_too(tmp_path: Path) -> None:
    writer = VerifiedCheckpointIO()
    for step in range(2):
        _saved(writer, tmp_path, step)
    (tmp_path / "last.ckpt").write_bytes(b"damaged")
    _saved(writer, tmp_path, 2)
    assert _steps(tmp_path) == {"last": 2, "last-1": 0}


def test_a_removed_checkpoint_takes_its_digest_along(tmp_path: Path) -> None:
    writer = VerifiedCheckpointIO()
    writer.save_checkpoint(dict(CONTENT), tmp_path / "a.ckpt")
    writer.remove_checkpoint(tmp_path / "a.ckpt")
    assert not list(tmp_path.iterdir())


def test_equal_weights_have_one_digest_in_whatever_file_and_order(tmp_path: Path) -> None:
    weights = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(3)}

    def digest_of(name: str, state: dict[str, torch.Tensor], **more: object) -> str:
        torch.save(
            {"state_dict": state, "pytorch-lightning_version": "2.6.6", **more}, tmp_path / name
        )
        return digest_weights(tmp_path / name)

    known = digest_of("one.ckpt", weights)
    assert digest_of("two.ckpt", dict(reversed(weights.items())), epoch=3) == known
    others = [
        {**weights, "b": torch.tensor(4)},
        {**weights, "a": weights["a"].reshape(3, 2)},
        {"a": weights["a"]},
    ]
    others.append({**weights, "b": torch.tensor(3, dtype=torch.int32)})
    assert known not in [digest_of(f"other-{at}.ckpt", state) for at, state in enumerate(others)]


def test_each_phase_of_a_long_checkpoint_is_a_sign_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watchdog sees the longest phase, not the sum of all."""
    beat, silent_s = watchdog.heartbeat(), []
    now_s = beat.progress_at_s

    def slow(work: Callable[..., Any]) -> Callable[..., Any]:
        def worked(*args: Any, **kwargs: Any) -> Any:
            nonlocal now_s
            now_s += 100.0
            silent_s.append(beat.silent_s)
            return work(*args, **kwargs)

        return worked

    monkeypatch.setattr("lightkit.launch.watchdog.time.monotonic", lambda: now_s)
    monkeypatch.setattr(torch, "save", slow(torch.save))
    for phase in ("flush", "digest", "_keep"):
        monkeypatch.setattr(checkpoints, phase, slow(getattr(checkpoints, phase)))
    for _ in range(2):
        beat.enter("checkpoint")
        VerifiedCheckpointIO().save_checkpoint(dict(CONTENT), tmp_path / "last.ckpt")
        checkpoints._written.clear()  # as in a process that goes on, which reads the old file too
    assert len(silent_s) >= 8
    assert max(silent_s) <= 100.0
