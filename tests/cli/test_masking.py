"""A value from the environment is nowhere in what a run leaves behind, and its reference is in the config."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import House, read_json

CANARY = "canary-5f2b9c"

SECRETS = """\
model: {class_path: my_models.Net, init_args: {name: '${oc.env:TOKEN}', tags: ['a-${oc.env:TOKEN}-z', plain]}}
data: {class_path: my_models.Points, init_args: {note: '${oc.env:TOKEN}'}}
callbacks: {told: {class_path: my_models.Told, init_args: {word: told}}}
logger: {tensorboard: {}, csv: {}}
"""


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TOKEN", CANARY)
    return CANARY


def places_of(text: str, folder: Path) -> list[str]:
    """Every file below a folder that holds the text, also inside archives such as checkpoints."""
    found = []
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        contents = {path.name: path.read_bytes()}
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                contents |= {name: archive.read(name) for name in archive.namelist()}
        found += [f"{path.relative_to(folder)}: {name}" for name, data in contents.items() if text.encode() in data]
    return found


def test_the_search_sees_inside_checkpoints(house: House) -> None:
    run = house.fit("-c", "small.yaml", f"--model.name={CANARY}")
    assert any(place.startswith("checkpoints/last.ckpt") for place in places_of(CANARY, run))
    assert any(place.startswith("config.yaml") for place in places_of(CANARY, run))


def test_a_secret_is_in_no_file_and_on_no_screen(token: str, house: House) -> None:
    house.write("secrets.yaml", SECRETS)
    said = [
        house("fit", "-c", "small.yaml", "-c", "secrets.yaml", "--trainer.max_epochs=2", *more)
        for more in ([], ["--print_config"])
    ]
    said += [house(stage, "--run", "latest") for stage in ("validate", "test", "predict")]
    assert [done.code for done in said] == [0] * 5
    assert places_of(token, house.folder) == []
    assert [done for done in said if token in done.out + done.err] == []
    saved = yaml.safe_load((house.runs[0] / "config.yaml").read_text())
    assert saved["model"]["init_args"] == {
        "hidden": 4,
        "name": "${oc.env:TOKEN}",
        "tags": ["a-${oc.env:TOKEN}-z", "plain"],
    }
    assert saved["data"]["init_args"]["note"] == "${oc.env:TOKEN}"


@pytest.mark.parametrize(
    "word", ["--model.name=${oc.env:TOKEN}", "model.tags+=${oc.env:TOKEN}", "run.name=${oc.env:TOKEN}"]
)
def test_a_secret_in_a_flag_is_in_no_file(word: str, token: str, house: House) -> None:
    done = house("fit", "-c", "small.yaml", word)
    assert done.code == 0
    if not word.startswith("run.name"):  # whoever names a folder by it wants it to be seen
        assert places_of(token, house.folder) == []
        assert token not in done.out + done.err


def test_a_secret_in_mlflow_is_in_no_file(token: str, house: House) -> None:
    house.write("mlflow.yaml", "logger: {mlflow: {init_args: {tags: {mine: '${oc.env:TOKEN}'}}}}")
    words = ["--model.name=${oc.env:TOKEN}", "--data.note=${oc.env:TOKEN}"]
    done = house("fit", "-c", "small.yaml", "-c", "mlflow.yaml", *words)
    assert done.code == 0, done.err
    assert list(house.folder.rglob("mlflow.db"))
    assert places_of(token, house.folder) == []
    assert token not in done.out + done.err


def test_a_password_in_an_address_is_in_no_message(token: str, house: House) -> None:
    house.write("mlflow.yaml", "logger: {mlflow: {init_args: {tracking_uri: 'http://me:${oc.env:TOKEN}@127.0.0.1:9'}}}")
    done = house("fit", "-c", "small.yaml", "-c", "mlflow.yaml")
    assert token not in done.out + done.err
    assert "127.0.0.1:9" in done.out + done.err
    assert places_of(token, house.folder) == []


@pytest.mark.parametrize(
    "words",
    [
        ["--model.hidden=${oc.env:TOKEN}"],
        ["--trainer.max_epochs=${oc.env:TOKEN}"],
        ["--trainer.accelerator=${oc.env:TOKEN}"],
        ["--model=${oc.env:TOKEN}"],
        ["--model=my_models.${oc.env:TOKEN}"],
        ["callbacks.x=${oc.env:TOKEN}"],
        ["callbacks.early_stopping.monitor=val/loss", "callbacks.early_stopping.mode=${oc.env:TOKEN}"],
        ["callbacks.early_stopping.monitor=${oc.env:TOKEN}"],
        ["callbacks.checkpoint.monitor=${oc.env:TOKEN}"],
        ["--ckpt_path=${oc.env:TOKEN}"],
        ["--run.root=small.yaml/${oc.env:TOKEN}"],
        ["--data=ImageFolder", "--data.root=${oc.env:TOKEN}"],
    ],
    ids=lambda words: words[-1].split("=")[0].lstrip("-"),
)
def test_a_secret_that_is_wrong_is_in_no_message(words: list[str], token: str, house: House) -> None:
    done = house("fit", "-c", "small.yaml", *words)
    assert done.code in (2, 3)
    assert "error: " in done.err
    assert token not in done.out + done.err
    assert places_of(token, house.folder) == []


SAYS = """\
import logging
from my_models import Net


class Crash(Net):
    def training_step(self, batch, index):
        raise ValueError("refused " + self.hparams.name)


class Warn(Net):
    def on_train_start(self):
        logging.getLogger("lightkit.x").warning("odd " + self.hparams.name)
"""


def test_a_crash_is_recorded_without_the_secret(token: str, house: House) -> None:
    house.write("user_says.py", SAYS)
    with pytest.raises(ValueError, match="refused"):
        house("fit", "-c", "small.yaml", "--model=user_says.Crash", "--model.name=${oc.env:TOKEN}")
    assert places_of(token, house.folder) == []
    assert read_json(house.runs[0] / "summary.json")["error"] == "ValueError: refused ${oc.env:TOKEN}"


def test_a_warning_is_recorded_without_the_secret(token: str, house: House) -> None:
    house.write("user_says.py", SAYS)
    done = house("fit", "-c", "small.yaml", "--model=user_says.Warn", "--model.name=${oc.env:TOKEN}")
    assert done.code == 0
    assert places_of(token, house.folder) == []
    assert "warning: odd ${oc.env:TOKEN}" in done.err


def test_a_logger_that_is_given_nothing_secret_is_told_the_config(house: House) -> None:
    run = house.fit("-c", "small.yaml", "logger.csv={}")
    hparams = yaml.safe_load((run / "csv" / "hparams.yaml").read_text())
    assert hparams["model"]["init_args"]["hidden"] == 4
    assert hparams["trainer"]["max_epochs"] == 1
