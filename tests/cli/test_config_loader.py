"""The config of a command line: layers over the config of a run, each file read once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from lightkit.cli.command_table import parse
from lightkit.cli.config_loader import load_config
from lightkit.config import Problems
from lightkit.config.yaml_reader import read_file
from lightkit.errors import ConfigError

SAVED = """\
trainer: {max_epochs: 3}
lr_scheduler: {class_path: CosineAnnealingLR, init_args: {T_max: 3}}
"""
FILES = {
    "root.yaml": "run: {root: other}",
    "extended.yaml": "extends: root\ntrainer: {max_steps: 5}",
    "dotted.yaml": "run.root: other",
    "block.yaml": "test: {run: {root: other}}",
    "section.yaml": "run: part.yaml",
    "part.yaml": "{root: other}",
    "variable.yaml": "run: {root: '${oc.env:PLACE}'}",
    "reference.yaml": "data: {init_args: {root: other}}\nrun: {root: '${data.init_args.root}'}",
    "of_run.yaml": "trainer: {max_steps: '${trainer.max_epochs}'}",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the layers, and a run in `other`; enter the folder."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    run = tmp_path / "other" / "small" / "20261101-000000-aaaa"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(SAVED, encoding="utf-8")
    (run / "manifest.json").write_text("{}", encoding="utf-8")
    return tmp_path


@pytest.fixture
def num_reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how often each file is read, by its name."""
    counted: Counter[str] = Counter()

    def count(file: Path, problems: Problems | None = None) -> object:
        counted[file.name] += 1
        return read_file(file, problems)

    monkeypatch.setattr("lightkit.config.loader.read_file", count)
    return counted


@pytest.mark.parametrize(
    ("words", "environ"),
    [
        ("--run.root=other", {}),
        ("--root other", {}),
        ("--run=small --run.root=other", {}),
        ("--fit.run.root=nowhere --test.run.root=other", {}),
        ("-c root.yaml", {}),
        ("-c extended.yaml", {}),
        ("-c dotted.yaml", {}),
        ("-c block.yaml", {}),
        ("-c section.yaml", {}),
        ("-c variable.yaml", {"PLACE": "other"}),
        ("-c reference.yaml", {}),
        ("", {"LIGHTKIT_RUN__ROOT": "other"}),
        ("", {"LIGHTKIT_RUN": "part.yaml"}),
        ("", {"LIGHTKIT_TEST__RUN__ROOT": "other"}),
    ],
)
def test_a_run_is_found_below_the_root_that_its_layers_name(
    folder: Path, words: str, environ: dict[str, str]
) -> None:
    loaded = load_config(
        parse(["test", "--run=latest", *words.split()]), Problems(), environ=environ
    )
    assert loaded.base is not None
    assert loaded.base.root.resolve() == folder / "other"
    assert loaded.resolved.section("run") == {"root": "other"}


def test_each_file_is_read_once(folder: Path, num_reads: Counter[str]) -> None:
    words = "test --run latest -c section.yaml -c extended.yaml -c of_run.yaml --data=part.yaml"
    problems = Problems()
    loaded = load_config(parse(words.split()), problems, environ={"LIGHTKIT_MODEL": "block.yaml"})
    assert list(problems) == []
    assert loaded.resolved.section("trainer") == {"max_epochs": 3, "max_steps": 3}
    named = ("config", "section", "part", "root", "extended", "of_run", "block")
    expected = {f"{name}.yaml": 1 for name in named}
    assert num_reads == {**expected, "part.yaml": 2}  # two layers name it


def test_a_variable_means_the_key_of_the_run_in_its_case(folder: Path) -> None:
    environ = {"LIGHTKIT_RUN__ROOT": "other", "LIGHTKIT_LR_SCHEDULER__INIT_ARGS__T_MAX": "9"}
    loaded = load_config(parse(["test", "--run=latest"]), Problems(), environ=environ)
    assert loaded.resolved.section("lr_scheduler")["init_args"] == {"T_max": "9"}


def test_of_a_missing_run_the_errors_are_told_that_may_be_the_reason(folder: Path) -> None:
    problems = Problems()
    with pytest.raises(ConfigError, match="There is no run 'latest'"):
        load_config(
            parse(["test", "--run", "latest", "-c", "variable.yaml", "-c", "of_run.yaml"]),
            problems,
            environ={},
        )
    (problem,) = problems
    assert "the environment variable PLACE is not set" in str(problem)
