"""A model trains on an XLA device, is stopped, killed and resumed there.

It goes on from its checkpoint on the CPU.
"""

from __future__ import annotations

import csv
import signal
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.contract.workspace import (
    assert_equal,
    assert_same_training,
    load_checkpoint,
    read_events,
    read_json,
    read_metrics,
)
from tests.tpu.commands import MINE, fitted, marks, on_xla, only_run, place, run

pytestmark = marks


def checkpoint(folder: Path, name: str = "last") -> dict[str, Any]:
    return load_checkpoint(only_run(folder) / "checkpoints" / f"{name}.ckpt")


def rows(folder: Path) -> list[dict[str, str]]:
    return read_metrics(only_run(folder))


def summary(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = read_json(only_run(folder) / "summary.json")
    return content


def tensors_in(content: Any) -> list[torch.Tensor]:
    if isinstance(content, torch.Tensor):
        return [content]
    parts = (
        content.values()
        if isinstance(content, dict)
        else content
        if isinstance(content, (list, tuple))
        else ()
    )
    return [tensor for part in parts for tensor in tensors_in(part)]


def own_net(folder: Path) -> torch.nn.Module:
    """The model of ``mine.py`` with the weights of the best checkpoint, on the CPU."""
    names: dict[str, Any] = {}
    exec(compile(MINE, "mine.py", "exec"), names)
    net: torch.nn.Module = names["Net"]()
    net.load_state_dict(checkpoint(folder, "best")["state_dict"])
    return net.eval()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four epochs, undisturbed."""
    return fitted(place(tmp_path_factory.mktemp("trained")))


def test_training_on_xla_learns_and_is_recorded(trained: Path) -> None:
    losses = [float(row["val/loss"]) for row in rows(trained)]
    assert len(losses) == 4
    assert losses[-1] < losses[0]
    manifest = read_json(only_run(trained) / "manifest.json")
    assert (manifest["hardware"]["accelerator"], manifest["hardware"]["devices"]) == ("xla", 1)
    assert summary(trained)["status"] == "done"


def test_a_checkpoint_holds_cpu_tensors_and_is_verified(trained: Path) -> None:
    for name in ("best", "last"):
        file = only_run(trained) / "checkpoints" / f"{name}.ckpt"
        assert (
            file.with_name(f"{file.name}.sha256").read_text("utf-8").split()[0]
            == sha256(file.read_bytes()).hexdigest()
        )
        assert {
            tensor.device.type for tensor in tensors_in(torch.load(file, weights_only=True))
        } == {"cpu"}
    assert isinstance(checkpoint(trained)["optimizer_states"][0]["param_groups"][0]["betas"], tuple)


def test_two_and_two_epochs_are_four(trained: Path, tmp_path: Path) -> None:
    folder = fitted(place(tmp_path), "trainer.max_epochs=2")
    fitted(folder, f"--run.resume={only_run(folder)}", "trainer.max_epochs=4")
    assert_same_training(only_run(folder), only_run(trained))


def test_a_fit_that_was_stopped_within_an_epoch_and_killed_in_another_ends_the_same(
    trained: Path, tmp_path: Path
) -> None:
    knocks = {
        f"knock_{number}": {
            "class_path": "mine.Knock",
            "init_args": {"step": step, "number": int(number)},
        }
        for number, step in ((signal.SIGTERM, 11), (signal.SIGKILL, 21))
    }
    folder = place(tmp_path, callbacks=knocks)
    stopped = on_xla(folder, "fit", "-c", "job.yaml")
    assert stopped.code == 75, stopped.err
    assert (checkpoint(folder)["epoch"], checkpoint(folder)["global_step"]) == (1, 12)
    assert on_xla(folder, "fit", "-c", "job.yaml").code == -signal.SIGKILL
    fitted(folder)
    assert [event["step"] for event in read_events(only_run(folder), "resume")] == [12, 16]
    for ours, theirs in zip(rows(folder), rows(trained), strict=True):
        # `log` means what this process has seen
        assert {**ours, "train/loss": None} == {**theirs, "train/loss": None}
    for key in ("epoch", "global_step", "state_dict", "optimizer_states", "lightkit_resume"):
        assert_equal(checkpoint(folder)[key], checkpoint(trained)[key], key)


def test_the_units_that_are_dropped_follow_the_seed(trained: Path, tmp_path: Path) -> None:
    """Weights and data as in the other run; only what the device draws differs."""
    folder = fitted(
        place(tmp_path, model={"class_path": "mine.Net", "init_args": {"seed": 8}}),
        "trainer.max_epochs=1",
    )
    ours, theirs = rows(folder)[0], rows(trained)[0]
    assert ours["train/loss"] != theirs["train/loss"]


def test_validate_test_and_predict_run_on_xla_and_agree_with_the_cpu(trained: Path) -> None:
    for command in ("validate", "test"):
        there = on_xla(trained, command, "--run", "latest")
        assert there.code == 0, there.err
        on_device = summary(trained)["stages"][command]
        here = run(trained, command, "--run", "latest", "trainer.accelerator=cpu")
        assert here.code == 0, here.err
        assert summary(trained)["stages"][command] == pytest.approx(on_device, abs=1e-6)
    predicted = on_xla(trained, "predict", "--run", "latest")
    assert predicted.code == 0, predicted.err
    with (only_run(trained) / "predictions.csv").open(encoding="utf-8", newline="") as file:
        table = [float(list(row.values())[-1]) for row in csv.DictReader(file)]
    from lightkit.data import Temperatures  # here, because plain `make test` collects this file too

    data = Temperatures(num_samples=64, batch_size=16, seed=7)
    data.setup("predict")
    (batch,) = data.predict_dataloader()
    with torch.no_grad():
        expected = own_net(trained)(batch[0]).flatten().tolist()
    assert table == pytest.approx(expected, abs=1e-6)


# torch 2.9's own, when it loads an export
@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
def test_an_xla_checkpoint_is_exported_from_the_cpu(trained: Path, tmp_path: Path) -> None:
    net, x = own_net(trained), torch.linspace(0, 100, 6).reshape(6, 1)
    torch.export.save(torch.export.export(net, (x,)), tmp_path / "net.pt2")
    with torch.no_grad():
        again = torch.export.load(tmp_path / "net.pt2").module()(x)
        assert torch.allclose(again, net(x), atol=1e-6)
