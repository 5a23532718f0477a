"""What `--help` says after a stage: one screen, and what goes deeper."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lightkit.cli.help.hardware import ACCELERATOR
from lightkit.cli.help.screen import KEYS, NO_DEFAULT, screen
from lightkit.cli.laying import NAMED_CLASSES, STAGES
from lightkit.config.catalogue import load_catalogue
from lightkit.config.hardware.said import BLOCK_KEYS
from tests.cli.conftest import House


def _described(key: str) -> dict[str, Any]:
    """What the catalogue says of a key by its dotted name."""
    catalogue = load_catalogue()
    section, _, name = key.rpartition(".")
    if not section:
        described: dict[str, Any] = catalogue.data["top"][name]
    elif section in catalogue.data["sections"]:
        described = catalogue.data["sections"][section]["arguments"][name]
    else:
        room, _, entry = section.partition(".")
        described = catalogue.classes[NAMED_CLASSES[room][entry]]["arguments"][name]
    return described


@pytest.mark.parametrize("stage", STAGES)
def test_the_help_of_a_stage_is_one_screen(stage: str, house: House) -> None:
    done = house(stage, "--help")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert len(lines) <= 45
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith(f"usage: lightkit {stage} ")


def test_the_screen_has_every_section_and_option() -> None:
    text = screen("fit", "train")
    catalogue = load_catalogue()
    for section in (
        *catalogue.data["sections"],
        *catalogue.data["bases"],
        "accelerator",
        "seed_everything",
        "ckpt_path",
    ):
        assert f" {section}" in text
    for option in ("-c FILE", "--quiet", "--output json", "--print_config", "--help all"):
        assert f"\n  {option}" in text
    assert "\n  --run RUN" in screen("test", "score")
    assert "--run RUN" not in text


@pytest.mark.parametrize("key", [key for key in KEYS if key.default is not NO_DEFAULT], ids=lambda key: str(key.name))
def test_the_screen_names_defaults_that_are_true(key: Any) -> None:
    assert _described(key.name)["default"] == key.default


@pytest.mark.parametrize(
    "name",
    [key.name for key in KEYS if key.name.startswith("accelerator.")],
)
def test_the_screen_names_keys_of_the_accelerator_block_that_there_are(name: str) -> None:
    assert name.partition(".")[2] in BLOCK_KEYS


def test_the_screen_names_entries_and_classes_that_there_are() -> None:
    said = {key.name: key.says for key in KEYS}
    for section in ("callbacks", "logger"):
        names = said[f"{section}.NAME"].partition(";")[0].replace(" ", "").split(",")
        assert {*names} - {"..."} <= {*NAMED_CLASSES[section]}
    catalogue = load_catalogue()
    for section in ("model", "data"):
        names = [name.removeprefix("or ") for name in said[section].split(", ")]
        for name in {*names} - {"...", "my_module.Net", "my_module.Data"}:
            assert catalogue.path_of(name, catalogue.data["bases"][section])


def test_a_stage_that_does_not_train_shows_no_keys_of_training(house: House) -> None:
    out = house("predict", "--help").out
    assert "max_epochs=" not in out
    assert "\n  optimizer, lr_scheduler  " not in out
    assert "run.root=runs" in out


@pytest.mark.parametrize(
    "words",
    [("help", "fit"), ("--help", "fit"), ("-h", "fit"), ("fit", "-h"), ("fit", "-c", "missing.yaml", "--help")],
    ids="_".join,
)
def test_help_of_a_stage_can_be_asked_for_in_each_order(words: tuple[str, ...], house: House) -> None:
    assert house(*words) == house("fit", "--help")


def test_help_of_another_command_can_be_asked_for_before_it(house: House) -> None:
    assert house("help", "completion") == house("completion", "--help")
    assert house("help", "devices").out.startswith("usage: lightkit devices")


def test_help_of_a_command_that_there_is_not_is_a_mistake(house: House) -> None:
    for words in (("help", "fitt"), ("--help", "fitt"), ("fitt", "--help")):
        done = house(*words)
        assert (done.code, done.out) == (2, "")
        assert "did you mean 'fit'?" in done.err


@pytest.mark.parametrize("section", ["trainer", "run", "launch"])
def test_help_of_a_section_lists_every_key_with_type_and_default(section: str, house: House) -> None:
    done = house("fit", "--help", section)
    assert (done.code, done.err) == (0, "")
    for key in load_catalogue().data["sections"][section]["arguments"]:
        assert f"\n  {key} " in done.out
    assert max(map(len, done.out.splitlines())) <= 100


@pytest.mark.parametrize("section", ["trainer", "run", "launch", "accelerator"])
def test_a_section_has_help_in_the_spelling_of_a_class_too(section: str, house: House) -> None:
    assert house("fit", f"--{section}.help") == house("fit", "--help", section)


def test_help_of_what_is_no_section_of_classes_is_a_mistake_without_a_traceback(house: House) -> None:
    done = house("fit", "--modle.help", "Regressor")
    assert (done.code, done.out, done.err) == (2, "", "error: unrecognized arguments: --modle.help Regressor\n")


def test_a_key_has_its_type_its_default_and_what_it_is_for(house: House) -> None:
    said = " ".join(house("fit", "--help", "trainer").out.split())
    assert "max_epochs an integer or null; default: null Stop training once this number of epochs" in said
    assert "root text; default: runs Folder of all runs." in " ".join(house("fit", "--help", "run").out.split())


def test_help_of_the_accelerator_block_has_every_key(house: House) -> None:
    assert {*ACCELERATOR} == {*BLOCK_KEYS}
    out = house("fit", "--help", "accelerator").out
    for key in BLOCK_KEYS:
        assert f"\n  {key} " in out
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize(
    "words",
    [("trainer", "max_epochs"), ("trainer.max_epochs",), ("max_epochs",)],
    ids="_".join,
)
def test_help_of_one_key(words: tuple[str, ...], house: House) -> None:
    out = house("fit", "--help", *words).out
    assert out.startswith("  trainer.max_epochs  an integer or null; default: null\n")
    assert len(out.splitlines()) < 6


def test_help_of_a_key_that_stands_by_itself(house: House) -> None:
    assert house("fit", "--help", "seed_everything").out.startswith("  seed_everything  ")


@pytest.mark.parametrize(
    ("section", "names"),
    [
        ("model", ["ImageClassifier", "Regressor", "my_module.Mine"]),
        ("data", ["Flowers", "FashionMNIST", "ImageFolder", "Temperatures"]),
        ("callbacks", ["early_stopping", "lr_monitor", "ModelCheckpoint", "EarlyStopping"]),
        ("logger", ["mlflow", "csv", "CSVLogger"]),
        ("optimizer", ["AdamW", "SGD"]),
        ("lr_scheduler", ["CosineAnnealingLR", "StepLR"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_help_of_a_section_of_classes_lists_what_there_is(section: str, names: list[str], house: House) -> None:
    done = house("fit", "--help", section)
    assert (done.code, done.err) == (0, "")
    for name in names:
        assert f"\n  {name}" in done.out
    assert max(map(len, done.out.splitlines())) <= 100


@pytest.mark.parametrize(
    ("words", "path", "key"),
    [
        (("model", "ImageClassifier"), "lightkit.models.ImageClassifier", "label_smoothing"),
        (("ImageClassifier",), "lightkit.models.ImageClassifier", "label_smoothing"),
        (("lightkit.models.ImageClassifier",), "lightkit.models.ImageClassifier", "label_smoothing"),
        (("data", "lightkit.data.Flowers"), "lightkit.data.Flowers", "image_size"),
        (("callbacks", "early_stopping"), "pytorch_lightning.callbacks.EarlyStopping", "patience"),
        (("callbacks.early_stopping",), "pytorch_lightning.callbacks.EarlyStopping", "patience"),
        (("early_stopping",), "pytorch_lightning.callbacks.EarlyStopping", "patience"),
        (("callbacks", "EarlyStopping"), "pytorch_lightning.callbacks.EarlyStopping", "patience"),
        (("logger", "mlflow"), "lightkit.loggers.MLflow", "tracking_uri"),
        (("optimizer", "AdamW"), "torch.optim.AdamW", "weight_decay"),
        (("lr_scheduler", "StepLR"), "torch.optim.lr_scheduler.StepLR", "step_size"),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, tuple) else "",
)
def test_help_of_a_class_has_its_arguments(words: tuple[str, ...], path: str, key: str, house: House) -> None:
    done = house("fit", "--help", *words)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"{path}\n")
    assert f"\n  {key} " in done.out


def test_an_argument_without_a_default_is_said_to_be_required(house: House) -> None:
    assert "monitor                   text; required\n" in house("fit", "--help", "early_stopping").out


def test_an_entry_is_shown_as_it_is_typed(house: House) -> None:
    assert "\nlightkit fit --callbacks.early_stopping.monitor=VALUE\n" in house("fit", "--help", "early_stopping").out
    assert "\nlightkit test --model=Regressor --model." in house("test", "--help", "model", "Regressor").out


@pytest.mark.parametrize("words", [("model", "my_models.Net"), ("my_models.Net",)], ids="_".join)
def test_help_of_a_class_of_ones_own(words: tuple[str, ...], house: House) -> None:
    done = house("fit", "--help", *words)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("my_models.Net\nA small network.\n\nlightkit fit --model=my_models.Net --model.hidden=")
    assert "\n  hidden  an integer; default: 4\n      Width of the hidden layer.\n" in done.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("trainr",), "--help: there is no section 'trainr'; did you mean 'trainer'?\nSections: trainer, run, launch,"),
        (("max_epoch",), "--help: there is no section 'max_epoch'; did you mean 'max_epochs'"),
        (("trainer", "max_epoch"), "--help trainer: there is no key 'max_epoch'; did you mean 'max_epochs'"),
        (("accelerator", "gpu"), "--help accelerator: there is no key 'gpu'; did you mean 'gpus'"),
        (("model", "Regresor"), "--help model: there is no class 'Regresor'; did you mean 'Regressor'?\n"),
        (("callbacks", "early_stoping"), "there is no class 'early_stoping'; did you mean 'early_stopping'"),
        (("model", "lightkit.data.Flowers"), "lightkit.data.Flowers is no LightningModule; it goes under data"),
        (("model", "my_models.Nett"), "--help: my_models has no class 'Nett'; did you mean 'Net'?"),
        (("model", "nothere.Net"), "--help: nothere.Net cannot be imported: No module named 'nothere'"),
        (("trainer", "max_epochs", "more"), "expected nothing after it, got 'more'"),
        (("all", "more"), "--help all: expected nothing after it, got 'more'"),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, tuple) else "",
)
def test_a_topic_that_there_is_not_is_told_with_a_near_one(words: tuple[str, ...], says: str, house: House) -> None:
    done = house("fit", "--help", *words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert says in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    "words",
    [
        ["fit", "--help", "trainer"],
        ["fit", "--help", "model"],
        ["fit", "--help", "ImageClassifier"],
        ["fit", "--help", "callbacks", "early_stopping"],
        ["fit", "--help", "trainr"],
    ],
    ids="_".join,
)
def test_help_of_what_is_known_loads_no_torch(words: list[str], tmp_path: Path) -> None:
    program = (
        f"import sys\nfrom lightkit.cli import main\nmain({words!r})\n"
        "sys.exit(3 if {'torch', 'pytorch_lightning', 'omegaconf', 'numpy'} & {*sys.modules} else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", [("trainer",), ("callbacks", "early_stopping")], ids="_".join)
def test_help_asks_the_class_itself_where_another_version_was_described(
    words: tuple[str, ...], house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = house("fit", "--help", *words)
    other = load_catalogue().fits({"pytorch-lightning": "99.0"})
    monkeypatch.setattr("lightkit.cli.help.topics.load_catalogue", lambda: other)
    said = house("fit", "--help", *words)
    assert (said.code, said.err) == (0, "")
    assert said.out == known.out


@pytest.mark.slow
def test_help_all_is_that_of_lightning_with_lightkits_keys(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "lightkit", "fit", "--help", "all"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: lightkit ")
    for key in ("--trainer.max_epochs", "--run.resume", "--model", "--data", "--optimizer", "--seed_everything"):
        assert f"{key} " in done.stdout
    assert done.stderr == ""
