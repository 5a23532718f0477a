"""The bench of whole epochs: how photos are laid out, what moments become, what the table says."""

from __future__ import annotations

import importlib
import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))


def _module(name: str) -> Any:
    return importlib.import_module(f"benches.{name}")


def _moments(epochs_s: tuple[float, ...], accuracy: float) -> Any:
    moments = _module("end_to_end_moments").Moments
    number = len(epochs_s) - 1
    return moments(epochs_s[0] + 1, epochs_s, epochs_s[1:], (1.0,) * number, (accuracy,) * number)


def _folder(root: Path, num_photos: int) -> Path:
    for name in ("roses", "tulips"):
        (root / name).mkdir(parents=True)
        for number in range(num_photos):
            (root / name / f"{number:02d}.jpg").write_bytes(b"photo")
    (root / "LICENSE.txt").write_text("free")
    return root


def test_each_fifth_photo_of_a_class_is_kept_for_validation(tmp_path: Path) -> None:
    laid = _module("end_to_end_photos").lay(_folder(tmp_path / "photos", 10), tmp_path / "laid")
    assert (laid.num_train, laid.num_val, laid.num_classes) == (16, 4, 2)
    assert sorted(path.name for path in (laid.root / "val" / "roses").iterdir()) == ["00.jpg", "05.jpg"]


def test_fewer_photos_are_taken_of_all_classes_alike(tmp_path: Path) -> None:
    laid = _module("end_to_end_photos").lay(_folder(tmp_path / "photos", 10), tmp_path / "laid", max_images=12)
    assert (laid.num_train, laid.num_val) == (8, 4)


def test_noted_moments_are_read_in_seconds_of_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moments = _module("end_to_end_moments")
    monkeypatch.setenv(moments.FILE, str(tmp_path / "moments"))
    clock = iter([103.0, 104.0, 110.0, 111.0, 118.0, 119.0])
    monkeypatch.setattr(moments.time, "time", lambda: next(clock))
    for what, figures in (
        ("epoch", {}),
        ("step", {}),
        ("validated", {"loss": 0.7, "accuracy": 0.5}),
        ("epoch", {}),
        ("validated", {"loss": 0.5, "accuracy": 0.75}),
        ("end", {}),
    ):
        moments.note(what, figures)
    read = moments.read(tmp_path / "moments", started_s=100.0)
    assert (read.first_step_s, read.epochs_s, read.validated_s) == (4.0, (3.0, 11.0, 19.0), (10.0, 18.0))
    assert (read.accuracies, read.reached_s(0.55), read.reached_s(0.4)) == ((0.5, 0.75), 18.0, None)


def test_epochs_after_the_first_and_the_first_with_its_start_up_stand_in_rows_of_their_own() -> None:
    found = {
        "lightkit": [_moments((5.0, 10.0, 12.0, 14.0), 0.5)],
        "LightningCLI": [_moments((5.0, 20.0, 26.0, 32.0), 0.5)],
        "hand-written loop": [_moments((5.0, 20.0, 25.0, 30.0), 0.5)],
    }
    rows = _module("end_to_end").compared(found, 100, 50)
    assert [row["ratio"]["median"] for row in rows] == [3.0, 2.5, 2.0, 2.0, 2.286, 2.143]
    assert [row["reached"] for row in rows] == [True, None, None, None, None, None]
    assert [row["what"] for row in rows[::2]] == [
        "ResNet-18, epochs after the first; accuracy 0.50 against 0.50 (chance 0.20)",
        "ResNet-18, first epoch with start-up",
        "ResNet-18, 3 epochs with start-up",
    ]


@pytest.mark.parametrize(("accuracy", "reached"), [(0.9, True), (0.45, True), (0.1, False)])
def test_speed_at_a_lower_accuracy_reaches_nothing(accuracy: float, reached: bool) -> None:
    found = {
        "lightkit": [_moments((5.0, 10.0, 12.0), accuracy)],
        "LightningCLI": [_moments((5.0, 20.0, 30.0), 0.5)],
        "hand-written loop": [_moments((5.0, 20.0, 30.0), 0.5)],
    }
    row = _module("end_to_end").compared(found, 100, 100)[0]
    assert (row["ratio"]["median"], row["reached"]) == (5.0, reached)
    assert f"accuracy {accuracy:.2f} against 0.50" in row["what"]


@pytest.mark.parametrize(("accuracy", "says"), [(0.55, "within"), (0.9, "beyond")])
def test_accuracy_is_equal_within_the_noise_of_the_photos(accuracy: float, says: str) -> None:
    moments = (1.0, 2.0, 3.0)
    found = {"lightkit": [_moments(moments, accuracy)] * 2, "LightningCLI": [_moments(moments, 0.5)] * 2}
    words = _module("end_to_end").accuracy_in_words(found, 100, 2)
    assert f", {says} 0." in words
    assert "mean of 2 seeds" in words


def test_all_contestants_train_on_the_same_photos_by_the_same_settings(tmp_path: Path) -> None:
    laid = _module("end_to_end_photos").Laid(tmp_path, 8, 2, 2)
    options = Namespace(size=64, epochs=2, fixed=True)
    trainings = _module("end_to_end").contestants(laid, options, seed=3)
    own, plain = (json.loads(trainings[name].files["bench.yaml"]) for name in ("lightkit", "LightningCLI"))
    by_hand = json.loads(trainings["hand-written loop"].words[-1])
    assert own["data"]["init_args"] == plain["data"]
    assert {key: by_hand[key] for key in plain["data"]} == plain["data"]
    assert own["seed_everything"] == plain["seed_everything"] == by_hand["seed"] == 3
    assert own["trainer"]["max_epochs"] == plain["trainer"]["max_epochs"] == by_hand["max_epochs"] == 2
    assert own["optimizer"]["init_args"]["lr"] == plain["model"]["learning_rate"] == by_hand["learning_rate"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--photos", "nowhere"), "--photos: nowhere does not exist"),
        (("--epochs", "1"), "--epochs: expected 2 or more, got 1"),
    ],
    ids=["photos", "epochs"],
)
def test_mistakes_are_told_before_anything_is_measured(
    words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        _module("end_to_end").run(words)
    assert says in capsys.readouterr().err


def test_a_contestant_that_fails_is_no_measurement(tmp_path: Path) -> None:
    training = _module("end_to_end_training")
    broken = training.Training("broken", ("timeit", "-n", "1", "-r", "1", "raise SystemExit('why')"), {})
    with pytest.raises(_module("contest").BenchError, match=r"(?s)broken ended with 1:.*why"):
        training.train(broken, tmp_path / "run", threads=1)


@pytest.mark.slow
def test_a_loop_notes_all_its_moments(tmp_path: Path) -> None:
    photos = _folder(tmp_path / "photos", 5)
    for file in photos.glob("*/*.jpg"):
        Image.new("RGB", (40, 30), int(file.stem)).save(file)
    laid = _module("end_to_end_photos").lay(photos, tmp_path / "laid")
    options = Namespace(size=32, epochs=2, fixed=True)
    training = _module("end_to_end").contestants(laid, options, seed=0)["hand-written loop"]
    moments = _module("end_to_end_training").train(training, tmp_path / "run", threads=1)
    assert len(moments.epochs_s) == 3
    assert 0 < moments.epochs_s[0] < moments.first_step_s < moments.validated_s[0] < moments.epochs_s[1]
    assert all(0 <= accuracy <= 1 for accuracy in moments.accuracies)
