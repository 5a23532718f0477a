"""A config after all layers: its named entries as Lightning takes them, and its errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jsonargparse import ArgumentParser

from lightkit.cli.command_table import parse
from lightkit.config import Problems, Resolved, dump_yaml, error_at, resolve
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


def resolved_from(folder: Path, text: str, *flags: str) -> Resolved:
    (folder / "x.yaml").write_text(text)
    flag_list = parse(["fit", *flags]).overrides
    return resolve([folder / "x.yaml"], flags=flag_list, environ={}, subcommand="fit")


ES = {"class_path": "pytorch_lightning.callbacks.EarlyStopping", "init_args": {"patience": 3}}
BOTH = """
callbacks:
  early_stopping: {patience: 3}
  gone: null
  timer: my.Timer
trainer:
  max_epochs: 3
  callbacks:
    - class_path: Mine
"""


def test_named_entries_come_first_in_their_order(tmp_path: Path) -> None:
    values = resolved_from(tmp_path, BOTH).lightning_values
    assert values == {
        "trainer": {
            "max_epochs": 3,
            "callbacks": [ES, {"class_path": "my.Timer"}, {"class_path": "Mine"}],
        }
    }


@pytest.mark.parametrize(
    ("trainer", "expected"),
    [
        ("{}", [{"class_path": "lightkit.loggers.CSV"}]),
        ("null", [{"class_path": "lightkit.loggers.CSV"}]),
        ("{logger: true}", [{"class_path": "lightkit.loggers.CSV"}]),
        ("{logger: null}", [{"class_path": "lightkit.loggers.CSV"}]),
        ("{logger: false}", False),
        ("{logger: 'false'}", "false"),
        (
            "{logger: TensorBoardLogger}",
            [{"class_path": "lightkit.loggers.CSV"}, "TensorBoardLogger"],
        ),
        (
            "{logger: {class_path: A}}",
            [{"class_path": "lightkit.loggers.CSV"}, {"class_path": "A"}],
        ),
        ("{logger: [A, B]}", [{"class_path": "lightkit.loggers.CSV"}, "A", "B"]),
        ("{logger+: A}", [{"class_path": "lightkit.loggers.CSV"}, "A"]),
    ],
    ids=[
        *("nothing", "null-trainer", "true", "null", "false", "false-text", "name", "one"),
        *("list", "append"),
    ],
)
def test_what_the_user_says_under_trainer_still_counts(
    trainer: str, expected: Any, tmp_path: Path
) -> None:
    values = resolved_from(tmp_path, f"logger: {{csv: {{}}}}\ntrainer: {trainer}").lightning_values
    assert values == {"trainer": {"logger": expected}}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["logger.board={}", "logger.board.class_path=B"], [{"class_path": "B"}]),
        (
            ["logger.csv.name=x"],
            [{"class_path": "lightkit.loggers.CSV", "init_args": {"name": "x"}}],
        ),
        (["logger.csv=null"], False),
        (["trainer.logger=true"], [{"class_path": "lightkit.loggers.CSV"}]),
    ],
    ids=["another", "the-same", "removed", "on-again"],
)
def test_a_logger_of_a_higher_layer_counts_over_no_logger(
    flags: list[str], expected: Any, tmp_path: Path
) -> None:
    values = resolved_from(
        tmp_path, "logger: {csv: {}}\ntrainer: {logger: false}", *flags
    ).lightning_values
    assert values == {"trainer": {"logger": expected}}


@pytest.mark.parametrize(
    "trainer",
    [
        {"logger": True},
        {"callbacks": "A"},
        {"callbacks": {"class_path": "A"}},
        {"callbacks+": ["A"]},
        {},
    ],
    ids=["true", "name", "mapping", "append", "nothing"],
)
def test_a_plain_lightning_config_passes_untouched(trainer: dict[str, Any], tmp_path: Path) -> None:
    config = {"trainer": trainer, "model": {"hidden": 3}, "seed_everything": True}
    for values in (config, {**config, "callbacks": {"x": None}}, {**config, "logger": None}):
        assert resolved_from(tmp_path, dump_yaml(values)).lightning_values == config


def test_a_dumped_config_gets_its_names_back(tmp_path: Path) -> None:
    resolved = resolved_from(tmp_path, BOTH)
    dumped = resolved.lightning_values
    stopping = {
        "class_path": "lightning.callbacks.EarlyStopping",
        "init_args": {"patience": 3, "mode": "min"},
    }
    dumped["trainer"]["callbacks"][0] = stopping
    assert resolved.name_entries(dumped) == {
        "trainer": {"max_epochs": 3, "callbacks": [{"class_path": "Mine"}]},
        "callbacks": {
            "early_stopping": stopping,
            "gone": None,
            "timer": {"class_path": "my.Timer"},
        },
    }
    assert dumped["trainer"]["callbacks"][0] is stopping  # what was given is not changed


@pytest.mark.parametrize(
    "callbacks",
    [None, [], [{"class_path": "Other"}, {"class_path": "my.Timer"}], False],
    ids=["none", "too-few", "other", "false"],
)
def test_a_dump_that_does_not_begin_with_the_entries_stays_as_it_is(
    callbacks: Any, tmp_path: Path
) -> None:
    dumped = {"trainer": {"callbacks": callbacks}}
    assert resolved_from(tmp_path, BOTH).name_entries(dumped) == dumped


def test_a_saved_config_gives_lightning_the_same_again(tmp_path: Path) -> None:
    first = resolved_from(tmp_path, BOTH, "logger.csv.name=x").lightning_values
    resolved = resolved_from(tmp_path, BOTH, "logger.csv.name=x")
    saved = dump_yaml(resolved.with_references(resolved.name_entries(resolved.lightning_values)))
    assert resolved_from(tmp_path, saved).lightning_values == first


def test_a_saved_config_names_the_loggers_that_count(tmp_path: Path) -> None:
    resolved = resolved_from(
        tmp_path, "logger: {csv: {}}\ntrainer: {logger: false}", "--logger.board.class_path=B"
    )
    saved = resolved.name_entries(resolved.lightning_values)
    assert saved == {
        "trainer": {"logger": None},
        "logger": {"csv": None, "board": {"class_path": "B"}},
    }


@pytest.mark.parametrize(
    ("key", "place", "user_key"),
    [
        (
            "trainer.callbacks.0.init_args.patience",
            "x.yaml:3:30",
            ("callbacks", "early_stopping", "init_args", "patience"),
        ),
        (
            "trainer.callbacks[0].init_args.patiense",
            "x.yaml:3:3",
            ("callbacks", "early_stopping", "init_args", "patiense"),
        ),
        (
            "trainer.callbacks.2.class_path",
            "x.yaml:9:19",
            ("trainer", "callbacks", 0, "class_path"),
        ),
        ("fit.trainer.max_epochs", "x.yaml:7:15", ("trainer", "max_epochs")),
        ("trainer.max_epoch", "x.yaml:6:1", ("trainer", "max_epoch")),
        ("trainer.callbacks.7", "x.yaml:8:3", ("trainer", "callbacks", 7)),
    ],
    ids=["entry", "unknown-argument", "own", "subcommand", "nearest-parent", "beyond"],
)
def test_a_key_of_lightnings_leads_to_the_users_place(
    key: str, place: str, user_key: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    resolved = resolved_from(Path(), BOTH)
    origin = resolved.origin_of(key)
    assert origin is not None
    assert place in (str(origin), str(origin.at_key()))
    assert resolved.lightkit_path(key) == user_key


def test_a_short_key_finds_the_argument(tmp_path: Path) -> None:
    resolved = resolved_from(tmp_path, "model: {class_path: Net, hidden: 3}", "--x+=1")
    assert resolved.origin_of("model.hidden") == resolved.origin_of(
        ("model", "init_args", "hidden")
    )
    assert str(resolved.origin_of("x.0")) == "--x+=1"
    assert resolved.origin_of("nowhere") is None


class Net:
    """Takes one argument of each kind that flags can give as text.

    Args:
        sizes: A list.
        rate: A number.
        name: Text.
        extra: Anything.
    """

    def __init__(
        self,
        sizes: list[int] = [1, 2],  # noqa: B006 - the default that is appended to
        rate: float | None = None,
        name: str = "x",
        extra: dict[str, int] | None = None,
    ) -> None:
        self.sizes, self.rate, self.name, self.extra = sizes, rate, name, extra


def test_jsonargparse_takes_text_by_type_and_appends_to_a_default(tmp_path: Path) -> None:
    resolved = resolved_from(
        tmp_path,
        "model: {name: y}",
        "--model.sizes+=3",
        "model.rate=1e-3",
        "model.name=123",
        "model.extra={a: 1}",
    )
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Net, "model")
    parsed = parser.parse_object(resolved.lightning_values)
    assert parsed.model.as_dict() == {
        "sizes": [1, 2, 3],
        "rate": 0.001,
        "name": "123",
        "extra": {"a": 1},
    }


def test_thousands_of_wrong_entries_are_one_error_and_some_examples(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(
        "callbacks: {" + ", ".join(f"e{i}: 3" for i in range(8000)) + "}"
    )
    with pytest.raises(ConfigError) as error:
        resolve([tmp_path / "x.yaml"], environ={})
    assert len(error.value.problems) <= 101
