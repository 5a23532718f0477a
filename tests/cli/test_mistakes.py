"""A corpus of broken configs, each with what `lightkit check` says of it, to the letter.

A case is a file ``mistakes/NAME.yaml``, or a folder ``mistakes/NAME/`` where several files are needed, or a command
line in `SAID` alone. ``mistakes/NAME.txt`` holds the whole standard error. After a change of words, this writes them
anew, and each is then to be read as a user would::

    UPDATE_GOLDENS=1 python -m pytest tests/cli/test_mistakes.py
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lightkit.cli.main import COMMANDS
from tests.cli.conftest import MY_MODELS, House

CORPUS = Path(__file__).with_name("mistakes")
SMALL = "model: Regressor\ndata: Temperatures\n"
MINE = "model: my_models.Net\ndata: my_models.Points\n"
"""Configs without mistakes, for the cases to stand on; somebody's own classes need torch to be judged."""
STATES = {
    "small.yaml": SMALL,
    "mine.yaml": MINE,
    "my_models.py": MY_MODELS,
    "my_layers.py": (CORPUS / "my_layers.py").read_text("utf-8"),
}


@dataclass(frozen=True)
class Said:
    """How a case is run where its file alone does not say all.

    Args:
        words: The command line; that of the case's file if empty.
        environ: Further environment variables.
    """

    words: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)


SAID = {
    "file_is_a_folder": Said("check -c ."),
    "file_missing": Said("check -c smal.yaml"),
    "file_in_missing_folder": Said("check -c config/small.yaml"),
    "file_without_flag": Said("check small.yaml"),
    "flag_abbreviated": Said("check -c small.yaml --trainer.max_epoch=3"),
    "flag_against_file": Said("check -c flag_against_file.yaml accelerator.gpus=2"),
    "flag_bad_key": Said("check -c small.yaml --trainer..max_epochs=3"),
    "flag_into_a_list": Said("check -c mine.yaml --model.tags=[a] --model.tags.2.name=b"),
    "flag_misspelt": Said("check -c small.yaml --quite"),
    "flag_of_another_value": Said("check -c small.yaml --output xml"),
    "flag_of_unknown_key": Said("check -c mine.yaml --model.init_args.hiden=3 --frobnicate=3"),
    "flag_print_config": Said("check -c small.yaml --print_config=nonsense"),
    "flag_without_value": Said("check -c small.yaml --trainer.max_epochs"),
    "flag_wrong_value": Said("check -c mine.yaml --trainer.max_epochs=ten model.hidden=2.5"),
    "option_without_file": Said("check -c"),
    "run_missing": Said("check test --run latest"),
    "run_of_fit": Said("check -c small.yaml --run latest"),
    "subcommand_missing": Said("-c small.yaml"),
    "subcommand_misspelt": Said("chekc -c small.yaml"),
    "variable_bad_name": Said("check -c small.yaml", {"LIGHTKIT_TRAINER____MAX_EPOCHS": "3"}),
    "variable_gives_wrong_value": Said(environ={"NET_WIDTH": "twenty"}),
    "variable_of_unknown_key": Said("check -c small.yaml", {"LIGHTKIT_TRAINER__MAX_EPOCH": "3"}),
    "variable_wrong_value": Said("check -c small.yaml", {"LIGHTKIT_TRAINER__MAX_EPOCHS": "ten"}),
}
WITHOUT_TORCH = (
    "yaml_",
    "duplicate_",
    "layer_",
    "extends_",
    "hardware_",
    "interpolation_",
    "file_",
    "key_unknown_at",
    "run_",
)
"""How the names of cases begin whose mistakes are told before torch is loaded."""

CASES = sorted({path.stem for path in CORPUS.iterdir() if path.suffix in ("", ".yaml")} - {"__pycache__"} | SAID.keys())


def words_of(case: str) -> list[str]:
    """The words after ``lightkit`` of a case."""
    said = SAID.get(case, Said())
    return said.words.split() or ["check", "-c", f"{case}.yaml"]


def lay_out(case: str, folder: Path) -> None:
    """Put a case's files into a folder, with the models and the config that all cases stand on."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in STATES.items():
        (folder / name).write_text(text, encoding="utf-8")
    if (CORPUS / case).is_dir():
        shutil.copytree(CORPUS / case, folder, dirs_exist_ok=True)
        for module in folder.glob("*.py.txt"):  # so named because linters would find fault with them
            module.rename(module.with_suffix(""))
    if (CORPUS / f"{case}.yaml").is_file():
        shutil.copy(CORPUS / f"{case}.yaml", folder)


def contents(folder: Path) -> dict[str, bytes | None]:
    """All that is in a folder."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def stable(said: str, folder: Path) -> str:
    """Leave out of a message what is not the same everywhere, and the commands, of which there may be more."""
    said = said.replace(f"{folder.resolve()}", "<folder>")
    return said.replace(f"Commands: {', '.join(COMMANDS)}.", "Commands: <commands>.")


def golden(case: str) -> str:
    """What a case is to say."""
    return (CORPUS / f"{case}.txt").read_text(encoding="utf-8")


@pytest.fixture
def bare(house: House, monkeypatch: pytest.MonkeyPatch) -> House:
    """A working directory without GPUs, where importing leaves no files."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return house


@pytest.mark.parametrize("case", CASES)
def test_each_mistake_is_told_with_its_place_and_leaves_nothing(
    case: str, bare: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out(case, bare.folder)
    for name, value in SAID.get(case, Said()).environ.items():
        monkeypatch.setenv(name, value)
    before = contents(bare.folder)
    done = bare(*words_of(case))
    done.err = stable(done.err, bare.folder)
    if os.environ.get("UPDATE_GOLDENS"):
        (CORPUS / f"{case}.txt").write_text(done.err, encoding="utf-8")
    assert (done.code, done.out) == (2, "")
    assert done.err == golden(case)
    assert contents(bare.folder) == before


EACH_IN_TURN = """\
import contextlib, io, json, os, sys
sys.dont_write_bytecode = True
from lightkit.cli import main
for folder, words in json.load(sys.stdin):
    os.chdir(folder)
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        code = main(words)
    heavy = [name for name in ("torch", "pytorch_lightning", "jsonargparse") if name in sys.modules]
    print(json.dumps([code, said.getvalue(), heavy]))
"""


def test_mistakes_of_files_layers_and_hardware_are_told_without_torch(tmp_path: Path) -> None:
    cases = [case for case in CASES if case.startswith(WITHOUT_TORCH)]
    for case in cases:
        lay_out(case, tmp_path / case)
    done = subprocess.run(
        [sys.executable, "-c", EACH_IN_TURN],
        input=json.dumps([[str(tmp_path / case), words_of(case)] for case in cases]),
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    found = dict(zip(cases, map(json.loads, done.stdout.splitlines()), strict=True))
    assert found == {case: [2, golden(case), []] for case in cases}


@pytest.mark.slow
@pytest.mark.parametrize("case", ["class_logger_as_callback", "class_module_as_model", "type_text_for_number"])
def test_words_do_not_depend_on_what_was_imported_before(case: str, tmp_path: Path) -> None:
    lay_out(case, tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", EACH_IN_TURN],
        input=json.dumps([[str(tmp_path), words_of(case)]] * 2),
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    fresh, again = map(json.loads, done.stdout.splitlines())
    assert fresh[:2] == again[:2] == [2, golden(case)]


# -- the configs that come with lightkit ------------------------------------------------------------------------------

CONFIGS = Path(__file__).parents[2] / "configs"
LAYERS = [CONFIGS / "base.yaml", *sorted(CONFIGS.glob("*/*.yaml"))]
RUNNABLE = sorted({*CONFIGS.glob("*.yaml")} - {*LAYERS})
NEEDS = {
    "accelerator/gpu.yaml": "accelerator.gpus: -1: this machine shows no GPU",
    "accelerator/horovod.yaml": "accelerator.strategy: horovod",
    "accelerator/tpu.yaml": "accelerator.tpu_cores: all",
    "accelerator/ray.yaml": "launch.engine: ray",
    "accelerator/spark.yaml": "launch.engine: spark",
    "logger/comet.yaml": "comet",
}
"""What those layers say where the machine lacks what they need."""


@pytest.mark.parametrize("file", RUNNABLE, ids=lambda file: file.stem)
def test_no_shipped_config_has_a_mistake(file: Path, bare: House) -> None:
    (bare.folder / "data" / "flowers_delta").mkdir(parents=True)  # the table that configs/flowers_delta.yaml names
    before = contents(bare.folder)
    done = bare("check", "-c", str(file))
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("no mistakes found")
    assert contents(bare.folder) == before


@pytest.mark.parametrize("file", LAYERS, ids=lambda file: f"{file.parent.name}_{file.stem}")
def test_no_shipped_layer_has_a_mistake(file: Path, bare: House, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLACK_WEBHOOK_URL", "WEBHOOK_URL", "HEARTBEAT_URL"):
        monkeypatch.setenv(name, "https://hooks.example.com/night")
    done = bare("check", "-c", str(CONFIGS / "flowers.yaml"), "-c", str(file))
    if done.code and (needs := NEEDS.get(f"{file.parent.name}/{file.name}")):
        assert done.err.startswith(f"error: {needs}")
        assert done.err.count("error: ") == 1
    else:
        assert (done.code, done.err) == (0, "")


# -- the other commands -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["three_layers", "hardware_two_kinds", "extends_missing", "yaml_tab"])
@pytest.mark.parametrize("command", ["fit", "validate", "test", "predict", "submit", "fetch"])
def test_every_command_tells_the_same_before_it_builds_anything(command: str, case: str, bare: House) -> None:
    lay_out(case, bare.folder)
    before = contents(bare.folder)
    done = bare(command, "-c", f"{case}.yaml")
    assert (done.code, done.out) == (2, "")
    assert done.err == golden(case)
    assert contents(bare.folder) == before


# -- several mistakes -------------------------------------------------------------------------------------------------

PLANTED = {
    "three_kinds_in_one_file": 4,
    "three_layers": 4,
    "five_in_one_class": 5,
    "torch_free_and_others": 6,
    "class_unknown_two_in_list": 4,
    "data_missing_in_two_places": 3,
}
"""Cases with several faults, and how many."""


@pytest.mark.parametrize(("case", "num_faults"), PLANTED.items(), ids=PLANTED)
def test_each_planted_fault_gives_one_report_in_the_order_of_places(case: str, num_faults: int) -> None:
    reports = golden(case).removeprefix("error: ").split("\nerror: ")
    assert len(reports) == num_faults
    places = [next(line for line in report.splitlines() if line.startswith("  --> ")) for report in reports]
    files = list(dict.fromkeys(place.split(":")[0] for place in places))
    keys = [(files.index(place.split(":")[0]), *map(int, place.split(":")[1:])) for place in places]
    assert keys == sorted(keys)
    assert len({report.split(": ")[0] for report in reports}) == num_faults
