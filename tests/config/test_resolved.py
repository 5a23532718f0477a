"""Checks that stop at their first mistake, repeated until none is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.cli.command_table import parse
from lightkit.config import Problems, Resolved, error_at, resolve
from lightkit.config.resolved import (
    FollowUpError,
    collect_errors,
    drop_origins,
    drop_paths,
    original_path,
)
from lightkit.errors import ConfigError


def resolve_text(tmp_path: Path, text: str, *words: str) -> Resolved:
    (tmp_path / "c.yaml").write_text(text)
    return resolve([tmp_path / "c.yaml"], environ={}, flags=parse(["fit", *words]).overrides)


def refuse_text(resolved: Resolved) -> int:
    """Refuse the first value that is text."""
    for path, value in sorted(resolved.values.get("a", {}).items()):
        if isinstance(value, str):
            raise error_at(f"a.{path}: {value}", resolved.origin_of(("a", path)))
    return len(resolved.values["a"])


def test_a_check_finds_every_error_and_gives_its_result_for_the_rest(tmp_path: Path) -> None:
    problems = Problems()
    result, left = collect_errors(
        resolve_text(tmp_path, "a: {b: one, c: 2, d: three}"), refuse_text, problems
    )
    assert result == 1
    assert left.values == {"a": {"c": 2}}
    assert left.removed == {("a", "b"), ("a", "d")}
    assert [str(problem).split("\n")[0] for problem in problems] == ["a.b: one", "a.d: three"]


def test_a_check_ends_where_an_error_has_no_place(tmp_path: Path) -> None:
    def refuse(_: Resolved) -> None:
        raise ConfigError("no place")

    problems = Problems()
    assert collect_errors(resolve_text(tmp_path, "a: 1"), refuse, problems)[0] is None
    assert str(problems.error()) == "no place"


def test_a_consequence_of_what_is_left_out_is_not_reported(tmp_path: Path) -> None:
    def need_b(resolved: Resolved) -> None:
        refuse_text(resolved)
        if "b" not in resolved.values["a"]:
            raise FollowUpError("a needs b")

    problems = Problems()
    collect_errors(resolve_text(tmp_path, "a: {b: one}"), need_b, problems)
    assert [str(problem).split("\n")[0] for problem in problems] == ["a.b: one"]


def test_a_flag_takes_away_only_the_value_that_it_sets(tmp_path: Path) -> None:
    resolved = resolve_text(tmp_path, "x: 1", "a.b=one", "a.c=two")
    origin = resolved.origin_of("a.b")
    assert origin is not None
    assert drop_origins(resolved, [origin]).values == {"x": 1, "a": {"c": "two"}}


def test_an_error_about_a_key_takes_away_its_value(tmp_path: Path) -> None:
    resolved = resolve_text(tmp_path, "a:\n  b: {c: 1}\n  d: 2\n")
    origin = resolved.origin_of("a.b")
    assert origin is not None
    assert drop_origins(resolved, [origin.at_key()]).values == {"a": {"d": 2}}


@pytest.mark.parametrize(
    ("path", "left"),
    [
        (("a",), {"l": [1, 2]}),
        (("l", 0), {"a": {"b": 1}, "l": [2]}),
        (("no",), {"a": {"b": 1}, "l": [1, 2]}),
    ],
    ids=["mapping", "element", "nothing"],
)
def test_what_is_left_out_is_gone(
    tmp_path: Path, path: tuple[str | int, ...], left: dict[str, object]
) -> None:
    assert drop_paths(resolve_text(tmp_path, "a: {b: 1}\nl: [1, 2]\n"), [path]).values == left


def test_with_the_name_of_a_class_its_arguments_go(tmp_path: Path) -> None:
    resolved = resolve_text(tmp_path, "model: {class_path: Nett, init_args: {x: 1}}\nb: 1\n")
    assert drop_paths(resolved, [("model", "class_path")]).values == {"b": 1}


def test_an_index_is_reported_as_it_was_before_others_were_left_out() -> None:
    removed = {("list", 0), ("list", 2), ("other", 0)}
    assert [original_path(("list", index, "x"), removed) for index in range(2)] == [
        ("list", 1, "x"),
        ("list", 3, "x"),
    ]


def test_a_check_ends_after_twenty_errors_and_says_so(tmp_path: Path) -> None:
    problems = Problems()
    config = resolve_text(
        tmp_path, "a: {" + ", ".join(f"b{number}: x" for number in range(50)) + "}"
    )
    assert collect_errors(config, refuse_text, problems)[0] is None
    messages = [str(problem).split("\n")[0] for problem in problems]
    assert len(messages) == 21
    assert messages[-1] == "there may be more mistakes, which show once these are corrected"
