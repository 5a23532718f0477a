"""The bench of the time to a loss: both train the same, and the table tells when the loss was reached."""

from __future__ import annotations

import importlib
import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import yaml

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))


def _module(name: str) -> Any:
    return importlib.import_module(f"benches.{name}")


def _moments(first_step_s: float, validated_s: tuple[float, ...], losses: tuple[float, ...]) -> Any:
    moments = _module("end_to_end_moments").Moments
    return moments(first_step_s, (first_step_s, *validated_s), validated_s, losses, (0.5,) * len(losses))


def test_the_table_tells_the_time_from_the_start_and_from_the_first_step() -> None:
    found = {
        "lightkit": [_moments(8.0, (9.0, 10.0, 11.0), (0.9, 0.54, 0.5))],
        "hand-written loop": [_moments(5.0, (15.0, 25.0), (0.9, 0.55))],
    }
    rows = _module("time_to_loss").compared(found, 0.55)
    assert [row["values"]["lightkit"]["median"] for row in rows] == [10.0, 2.0]
    assert [row["ratio"]["median"] for row in rows] == [0.4, 0.1]
    assert [row["reached"] for row in rows] == [False, None]
    assert _module("time_to_loss").epochs_in_words(found) == "Epochs: lightkit 3, hand-written loop 2."


def test_a_loss_that_is_not_reached_is_no_measurement() -> None:
    with pytest.raises(
        _module("contest").BenchError, match=r"loop has come to a loss of 0\.700 in 40 epochs, not 0\.55"
    ):
        _module("time_to_loss").reached_s("loop", _moments(1.0, (2.0, 3.0), (0.7, 0.8)), 0.55)


def test_both_train_the_same_head_on_the_same_photos_to_the_same_loss(tmp_path: Path) -> None:
    laid = _module("end_to_end_photos").Laid(tmp_path, 8, 2, 2)
    options = Namespace(size=64, loss=0.6, precision="32-true")
    trainings = _module("time_to_loss").contestants(laid, Path("weights.pth"), options, seed=3)
    own = json.loads(trainings["lightkit"].files["bench.yaml"])
    by_hand = json.loads(trainings["hand-written loop"].words[-1])
    data = own["data"]["init_args"]
    assert data.pop("augment") is False
    assert {key: by_hand[key] for key in data} == data
    model = own["model"]["init_args"]
    assert (model["weights"], model["label_smoothing"]) == (by_hand["weights"], by_hand["label_smoothing"])
    assert own["callbacks"]["early_stopping"]["init_args"]["stopping_threshold"] == by_hand["loss"] == 0.6
    assert own["optimizer"]["init_args"]["lr"] == by_hand["learning_rate"]


def test_settings_are_those_of_the_config_for_flowers() -> None:
    config = yaml.safe_load((SCRIPTS.parent / "configs" / "flowers.yaml").read_text(encoding="utf-8"))
    module, data = _module("time_to_loss"), config["data"]["init_args"]
    assert (data["batch_size"], data["image_size"]) == (module.BATCH_SIZE, module.IMAGE_SIZE)
    assert config["model"]["init_args"]["label_smoothing"] == module.LABEL_SMOOTHING
    assert config["callbacks"]["early_stopping"]["init_args"]["stopping_threshold"] == 0.55


def test_weights_that_are_not_there_are_told_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        _module("time_to_loss").run(("--photos", str(tmp_path), "--weights", "nowhere.pth"))
    assert "--weights: nowhere.pth does not exist; name it, or set BENCH_DATA" in capsys.readouterr().err


def test_the_loop_trains_the_head_alone(tmp_path: Path) -> None:
    import torch
    from torchvision import models

    torch.save(models.mobilenet_v2().state_dict(), tmp_path / "weights.pth")
    network = _module("time_to_loss_plain").Frozen(str(tmp_path / "weights.pth"), 3).train()
    assert not network.backbone.training
    assert {name for name, each in network.named_parameters() if each.requires_grad} == {"head.weight", "head.bias"}
    with torch.no_grad():
        assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 3)
