"""Mistakes as they are collected."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.cli.command_table import parse
from lightkit.config import Origin, Problems, error_at, resolve
from lightkit.config.packaged import find_config
from lightkit.errors import ConfigError, ConfigErrors, DataError

FIRST, SECOND = Path("first.yaml"), Path("second.yaml")


def place(file: Path, line: int, column: int = 1) -> Origin:
    return Origin("file", file.name, file, line, column)


def test_errors_are_reported_file_by_file_and_line_by_line_and_flags_last() -> None:
    problems = Problems()
    for says, origin in [
        ("flag", Origin("flag", "--a=1")),
        ("b2", place(FIRST, 2)),
        ("c1", place(SECOND, 1)),
        ("a1-late", place(FIRST, 1, 9)),
        ("a1", place(FIRST, 1, 3)),
    ]:
        problems.add(error_at(says, origin))
    assert [str(problem).split("\n")[0] for problem in problems] == [
        "a1",
        "a1-late",
        "b2",
        "c1",
        "flag",
    ]


def test_an_error_is_reported_once() -> None:
    problems = Problems()
    problems.add(ConfigError("a"))
    problems.add(ConfigErrors([ConfigError("a"), ConfigError("b")]))
    assert str(problems.error()) == "a\nerror: b"


def test_one_error_is_itself() -> None:
    problems = Problems()
    problems.add(only := ConfigError("a"))
    assert problems.error() is only


def test_nothing_wrong_is_no_error() -> None:
    problems = Problems()
    problems.raise_any()
    assert problems.error() is None
    assert not problems


@pytest.mark.parametrize(
    ("found", "code"),
    [
        ([DataError("a"), DataError("b")], 3),
        ([DataError("a"), ConfigError("b")], 2),
        ([DataError("a")], 3),
    ],
    ids=["data-only", "mixed", "one"],
)
def test_the_exit_code_is_that_of_data_only_where_nothing_else_is_wrong(
    found: list[ConfigError | DataError], code: int
) -> None:
    problems = Problems()
    for error in found:
        problems.add(error)
    together = problems.error()
    assert together is not None
    assert together.exit_code == code


def test_rewording_keeps_each_error_and_its_place() -> None:
    error = ConfigErrors(
        [error_at("secret one", place(FIRST, 1)), error_at("two secret", place(FIRST, 2))]
    )
    reworded = error.reworded(lambda says: says.replace("secret", "${oc.env:TOKEN}"))
    assert [str(problem).split("\n")[0] for problem in reworded.problems] == [
        "${oc.env:TOKEN} one",
        "two ${oc.env:TOKEN}",
    ]
    assert reworded.places == error.places


def test_a_block_that_leaves_a_gap_makes_the_config_incomplete() -> None:
    problems = Problems()
    with problems.noted(leaves_gap=True):
        find_config("lightkit:nothing")
    assert problems.is_incomplete
    assert str(problems.error()).startswith("lightkit:nothing: no packaged config")


def test_all_errors_of_all_layers_are_reported_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    FIRST.write_text(
        "a: 1\na: 2\nb: !!python/name:os.system\nc: 0x\nd: ${nothing}\ncallbacks: {x: {}, y: 3}\n"
    )
    SECOND.write_text("extends: gone\na+: [1]\ncallbacks: 3\n")
    with pytest.raises(ConfigErrors) as caught:
        resolve(
            [FIRST, SECOND, "third.yaml"],
            environ={"LIGHTKIT_A____B": "1"},
            flags=parse(["fit", "k..l=1"]).overrides,
        )
    says = [str(problem).split("\n")[0] for problem in caught.value.problems]
    assert says == [
        "first.yaml: the key 'a' stands twice in one mapping",
        (
            "first.yaml: the tag !!python/name:os.system is not allowed here; configs hold plain"
            " YAML values, and classes are named by class_path"
        ),
        "second.yaml extends 'gone', but gone.yaml does not exist; files next to it: first, second",
        "a+ appends to a list, but a is 1; set a to a list first",
        (
            "callbacks: expected a mapping from names to entries, got 3; Lightning's own value goes"
            " under trainer.callbacks"
        ),
        "third.yaml: no such file",
        (
            "LIGHTKIT_A____B: expected keys joined by two underscores, such as"
            " LIGHTKIT_TRAINER__MAX_EPOCHS"
        ),
        "k..l=1: expected keys joined by single dots, such as trainer.max_epochs",
    ]


def test_what_seems_missing_is_not_reported_while_a_layer_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("x: ${y}\ncallbacks: {mine: {patience: 3}}\n")
    (tmp_path / "b.yaml").write_text("y: [\n")
    with pytest.raises(ConfigError) as caught:
        resolve([tmp_path / "b.yaml", tmp_path / "a.yaml"], environ={})
    assert len(caught.value.problems) == 1
    assert "not valid YAML" in str(caught.value)


def test_errors_are_reported_from_the_lowest_layer_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, extended in (("top", "middle"), ("middle", "bottom"), ("bottom", "")):
        Path(f"{name}.yaml").write_text(
            f"{f'extends: {extended}' if extended else 'a: 1'}\nb_{name}: !x 1\n"
        )
    with pytest.raises(ConfigErrors) as caught:
        resolve(["top.yaml"], environ={})
    assert [str(problem).partition(":")[0] for problem in caught.value.problems] == [
        "bottom.yaml",
        "middle.yaml",
        "top.yaml",
    ]


@pytest.mark.parametrize(
    ("origin", "written"),
    [
        (Origin("flag", "--model.note=a\n\x1b[2Jb"), "--model.note=a  [2Jb"),
        (Origin("file", "a\tb.yaml", line=3, column=5), "a b.yaml:3:5"),
        (Origin("variable", "LIGHTKIT_A\rB"), "environment variable LIGHTKIT_A B"),
        (Origin("default"), "default of lightkit"),
    ],
    ids=["flag", "file", "variable", "default"],
)
def test_a_place_is_one_line_without_control_characters(origin: Origin, written: str) -> None:
    assert str(origin) == written
    assert origin.render().splitlines()[0] == f"  --> {written}"
