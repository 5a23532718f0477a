"""What the promotion log records, refuses and passes over, and the champions by it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mlflow import MlflowClient

from lightkit.callbacks.checkpoint_io import digest_weights
from lightkit.commands.promote import _require_not_rejected
from lightkit.errors import ConfigError, GateFailed, RunLocked
from lightkit.loggers.mlflow_address import find_address
from lightkit.registry.promotion import (
    OUTSIDE,
    Move,
    alias_version,
    champions,
    describe_actor,
    digests_of_inputs,
    hold_alias,
    last_scored,
    list_rejections,
    match_rejection,
    move_alias,
    read_hold,
    read_moves,
    recent_champions,
    release_alias,
    require_no_hold,
)
from lightkit.registry.store import Registry
from lightkit.runs import digest
from lightkit.runs.files import write_json

pytestmark = [
    # 2026-11: mlflow 3.17 leaves connections to the collector
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def client(database: str) -> MlflowClient:
    """A client of an SQLite database."""
    return MlflowClient(database)


@pytest.fixture
def registry(client: MlflowClient, database: str, tmp_path: Path) -> Registry:
    """The empty log of a model `net` of three versions."""
    client.create_registered_model("net")
    for _ in range(3):
        client.create_model_version("net", str(tmp_path))
    registry = Registry(find_address(database))
    registry.client = client
    return registry


def done(
    kind: str, version: str, before: str | None = None, alias: str = "champion", **more: Any
) -> Move:
    """A move; a promotion has its version as its score."""
    scores = {"challenger": float(version)} if kind == "promote" else {}
    return Move(kind, alias, before, version, **{"scores": scores, **more})


def chain(registry: Registry) -> list[tuple[str, str | None, str]]:
    """The kinds and versions of the moves."""
    return [(move.kind, move.before, move.to) for move in read_moves(registry, "net")]


@pytest.mark.parametrize(
    ("moves", "expected"),
    [
        ([], []),
        ([done("promote", "1"), done("promote", "2", "1")], ["1", "2"]),
        ([done("promote", "5", "4")], ["4", "5"]),
        ([done("promote", "1"), done("promote", "2"), done("rollback", "1")], ["1"]),
        ([done("promote", "1"), done("promote", "2"), done("promote", "3"), done("rollback", "2"),
          done("rollback", "1")], ["1"]),
        ([done("promote", "1"), done("promote", "2"), done("rollback", "1"), done("promote", "3")],
         ["1", "3"]),
        ([done("promote", "1"), done("promote", "2"), done(OUTSIDE, "1", "2")], ["1"]),
        ([done("promote", "1"), done(OUTSIDE, "2", "1")], ["1", "2"]),
        ([done("promote", "1"), done("rollback", "7")], ["1", "7"]),
    ],
    ids=["none", "two", "first by other means", "back", "twice back", "forth again", "back outside",
         "forth outside",
         "to another"],
)  # fmt: skip
def test_versions_that_were_rolled_back_from_are_no_champions(
    moves: list[Move], expected: list[str]
) -> None:
    assert champions(moves, "champion") == expected
    assert champions(moves, "shadow") == []


def test_who_is_the_actor_in_ci_and_else_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_ACTOR", raising=False)
    assert "@" in describe_actor()
    for name, value in {
        "GITHUB_ACTOR": "octo",
        "GITHUB_REPOSITORY": "a/b",
        "GITHUB_RUN_ID": "7",
    }.items():
        monkeypatch.setenv(name, value)
    assert describe_actor() == "octo (CI a/b/7)"


def test_a_reason_that_no_tag_can_hold_is_refused_before_anything_is_written(
    registry: Registry,
) -> None:
    with pytest.raises(
        ConfigError, match=r"--reason: the entry of the log has .* characters; shorten the reason"
    ):
        move_alias(registry, "net", done("promote", "1", reason="x" * 5001))
    assert (read_moves(registry, "net"), alias_version(registry, "net", "champion")) == ([], None)


def test_a_move_without_a_record_is_one_from_outside(
    registry: Registry, client: MlflowClient
) -> None:
    client.set_registered_model_alias("net", "challenger", "1")
    move_alias(registry, "net", done("promote", "1"))
    client.set_registered_model_alias("net", "champion", "2")
    assert chain(registry) == [("promote", None, "1"), (OUTSIDE, "1", "2")]
    move_alias(registry, "net", done("promote", "3", "2"))
    assert chain(registry) == [("promote", None, "1"), (OUTSIDE, "1", "2"), ("promote", "2", "3")]
    assert [move.number for move in read_moves(registry, "net")] == [1, 0, 2]


def test_a_record_that_is_missing_is_written_once(registry: Registry, client: MlflowClient) -> None:
    move_alias(registry, "net", done("promote", "1"))
    client.set_registered_model_alias("net", "champion", "2")
    for _ in range(2):
        move_alias(registry, "net", done("promote", "2", "2"))
    assert chain(registry) == [("promote", None, "1"), ("promote", "1", "2")]


def test_an_alias_that_has_moved_meanwhile_is_left_alone(registry: Registry) -> None:
    move_alias(registry, "net", done("promote", "1"))
    with pytest.raises(
        RunLocked, match=r"another process has moved net@champion meanwhile: it is version 1\."
    ):
        move_alias(registry, "net", done("promote", "2"))
    assert chain(registry) == [("promote", None, "1")]


def test_an_alias_that_another_has_moved_at_the_same_time_is_not_recorded(
    registry: Registry, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_alias = MlflowClient.set_registered_model_alias

    def and_another(self: MlflowClient, name: str, alias: str, version: str) -> None:
        set_alias(self, name, alias, version)
        set_alias(self, name, alias, "3")

    move_alias(registry, "net", done("promote", "1"))
    monkeypatch.setattr(MlflowClient, "set_registered_model_alias", and_another)
    with pytest.raises(RunLocked, match="it is version 3"):
        move_alias(registry, "net", done("promote", "2", "1"))
    assert chain(registry) == [("promote", None, "1"), (OUTSIDE, "1", "3")]


def test_tags_of_somebody_else_are_passed_over(registry: Registry, client: MlflowClient) -> None:
    foreign = {"000001.ab": "no JSON", "000002.ab": "{}", "000003.ab": "[]", "000004.ab": "7"}
    tags = {"owner": "ann", "lightkit.promotion.2": "{}"}
    tags |= {f"lightkit.promotion.{key}": text for key, text in foreign.items()}
    for key, text in tags.items():
        client.set_registered_model_tag("net", key, text)
    assert read_moves(registry, "net") == []


@pytest.mark.parametrize(
    ("moves", "expected"),
    [
        ([done("promote", "1"), done("promote", "2", "1"), done("promote", "3", "2")], ["2", "3"]),
        (
            [
                done("promote", "1"),
                done("promote", "9", alias="staging"),
                done("promote", "8", alias="staging"),
            ],
            ["1"],
        ),
        ([done("promote", "1"), done("promote", "2", "1"), done("rollback", "1", "2")], ["1"]),
        ([done("promote", "2", "1")], ["1", "2"]),
        ([done("promote", "1"), done("promote", "2", "1"), done("promote", "1", "2")], ["2", "1"]),
        ([], []),
    ],
    ids=["the last", "of another alias", "rolled back", "moved by other means", "twice", "none"],
)
def test_only_champions_of_the_alias_count(moves: list[Move], expected: list[str]) -> None:
    assert recent_champions(moves, "champion", 2) == expected


def test_the_scores_of_a_version_are_those_of_its_promotion_whatever_moved_last() -> None:
    moves = [done("promote", "1"), done("promote", "2", "1"), done("rollback", "1", "2")]
    scored = last_scored(moves, "1")
    assert scored is not None
    assert scored.scores == {"challenger": 1.0}
    assert last_scored(moves, "3") is None


INPUTS = {"config": "c", "data": "d", "code": "e"}
FIRST, SECOND = (
    done("promote", "1", weights="w1"),
    done("promote", "2", "1", weights="w2", inputs=INPUTS),
)
BACK = done("rollback", "1", "2")


@pytest.mark.parametrize(
    ("moves", "expected"),
    [
        ([FIRST, SECOND], []),
        ([FIRST, SECOND, BACK], ["2"]),
        ([FIRST, SECOND, BACK, done("promote", "2", "1", weights="w2")], []),
        ([FIRST, SECOND, BACK, done("promote", "3", "1", weights="w2")], []),
        ([FIRST, SECOND, BACK, done("promote", "3", "1", weights="w3", inputs=INPUTS)], []),
        ([FIRST, SECOND, BACK, done("promote", "3", "1", weights="w3")], ["2"]),
        ([FIRST, SECOND, BACK, done(OUTSIDE, "2", "1")], []),
        ([FIRST, SECOND, done("promote", "3", "2"), done("rollback", "2", "3"), BACK], ["3", "2"]),
        ([FIRST, SECOND, done("rollback", "1", "2", alias="shadow")], []),
    ],
    ids=["none", "one", "promoted again", "the same weights by force", "the same inputs by force",
         "another since then",
         "moved back outside", "two", "another alias"],
)  # fmt: skip
def test_what_was_rolled_back_is_rejected_until_it_is_promoted_again(
    moves: list[Move], expected: list[str]
) -> None:
    assert [each.version for each in list_rejections(moves, "champion")] == expected


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"version": "2", "weights": "w9"}, ""),
        ({"weights": "w2"}, "the same weights"),
        ({"weights": "w9", "inputs": INPUTS}, "the same config, data and code"),
        ({"weights": "w9", "inputs": {**INPUTS, "data": "other"}}, None),
        ({"version": "3", "weights": "w9", "inputs": {}}, None),
    ],
    ids=["version", "weights", "inputs", "other data", "nothing"],
)
def test_a_model_that_was_rolled_back_is_known_by_version_weights_or_inputs(
    model: dict[str, Any], words: str | None
) -> None:
    found = match_rejection(list_rejections([FIRST, SECOND, BACK], "champion"), **model)
    assert (found is None) == (words is None)
    if found is not None:
        assert words is not None
        assert found[0].version == "2"
        assert words in found[1]


def test_a_log_of_before_is_completed_by_the_tags_of_the_version_and_its_run(
    tmp_path: Path,
) -> None:
    inputs = {
        "config": "c",
        "data": {"digest": "d", "num_files": 2},
        "code": {"digest": "e", "num_files": 1},
    }
    write_json(tmp_path / "manifest.json", {"inputs": inputs})
    versions = [SimpleNamespace(version=2, tags={"weights_sha256": "w"})]
    moves = [done("promote", "1"), done("promote", "2", "1"), BACK]
    (rejection,) = list_rejections(moves, "champion", versions, {"2": tmp_path})
    assert (rejection.weights, rejection.inputs) == ("w", INPUTS)
    (unknown,) = list_rejections(moves, "champion")
    assert (unknown.weights, unknown.inputs) == (None, {})
    assert match_rejection([unknown], weights=None, inputs={}) is None


@pytest.mark.parametrize("has_other_copy", [False, True], ids=["moved", "copied"])
def test_a_rollback_is_known_by_weights_and_inputs_in_a_run_root_that_was_moved(
    registry: Registry, tmp_path: Path, has_other_copy: bool
) -> None:
    """Neither log nor tags have digests, and the tag names the place before, of other files now."""
    inputs = {
        "config": "c",
        "data": {"digest": "d", "num_files": 2},
        "code": {"digest": "e", "num_files": 1},
    }
    run = tmp_path / "runs" / "net" / "two"
    write_json(run / "manifest.json", {"inputs": inputs})
    checkpoint = run / "checkpoints" / "best.ckpt"
    checkpoint.parent.mkdir()
    content = {"state_dict": {"weight": torch.ones(2)}, "pytorch-lightning_version": "2.6.6"}
    torch.save(content, checkpoint)
    if has_other_copy:
        write_json(tmp_path / "before" / "manifest.json", {"inputs": {**inputs, "config": "x"}})
    tags = {
        "run": "net/two",
        "run_folder": str(tmp_path / "before"),
        "checkpoint": "checkpoints/best.ckpt",
        "checkpoint_sha256": digest(checkpoint),
    }
    for name, value in tags.items():
        registry.client.set_model_version_tag("net", "2", name, value)
    for move in (done("promote", "1"), done("promote", "2", "1"), done("rollback", "1", "2")):
        move_alias(registry, "net", move)
    for inputs_now, weights, says in (
        (INPUTS, "w9", "the same config, data and code"),
        ({}, digest_weights(str(checkpoint)), "the same weights"),
    ):
        with pytest.raises(GateFailed, match=says):
            _require_not_rejected(
                registry, "net", "champion", version="3", weights=weights, inputs=[inputs_now]
            )
    _require_not_rejected(registry, "net", "champion", version="3", weights="w9", inputs=[{}])


@pytest.mark.parametrize(
    "inputs",
    [
        None,
        {},
        {"config": "c", "data": None, "code": {"digest": "e"}},
        {"config": "c", "data": {"digest": "d", "num_files": 0}, "code": {"digest": "e"}},
        {
            "config": "c",
            "data": {"digest": "d", "num_files": 3, "unseen": ["data.url"]},
            "code": {"digest": "e"},
        },
        {"config": "c", "data": "torn", "code": 3},
    ],
    ids=["none", "empty", "data not read", "data in no file", "data behind an address", "torn"],
)
def test_inputs_of_which_a_part_is_unknown_are_equal_to_none(inputs: Any) -> None:
    assert digests_of_inputs({"inputs": inputs}) == {}


def test_the_digest_by_the_list_of_earlier_versions_is_kept_beside_that_of_today() -> None:
    inputs = {"config": "c", "data": {"digest": "d", "num_files": 1}, "code": {"digest": "e"}}
    both = {"inputs": {**inputs, "earlier_config": "b"}}
    assert digests_of_inputs(both) == {"config": "c", "data": "d", "code": "e"}
    assert digests_of_inputs(both, by_earlier_list=True) == {
        "config": "b",
        "data": "d",
        "code": "e",
    }
    assert digests_of_inputs({"inputs": inputs}, by_earlier_list=True) == {
        "config": "c",
        "data": "d",
        "code": "e",
    }


def test_an_alias_that_is_held_is_not_promoted_but_rolled_back(registry: Registry) -> None:
    move_alias(registry, "net", done("promote", "1"))
    move_alias(registry, "net", done("promote", "2", "1"))
    hold = hold_alias(registry, "net", "champion", reason="an audit")
    assert hold_alias(registry, "net", "champion", reason="of another") == hold
    with pytest.raises(
        GateFailed, match=r"net@champion is held by .*@.* since 20.* \(an audit\)\. .*--release net"
    ):
        move_alias(registry, "net", done("promote", "3", "2"))
    require_no_hold(registry, "net", "shadow")
    move_alias(registry, "net", done("rollback", "1", "2"))
    assert alias_version(registry, "net", "champion") == "1"
    assert release_alias(registry, "net", "champion") == hold
    assert release_alias(registry, "net", "champion") is None
    move_alias(registry, "net", done("promote", "3", "1"))


@pytest.mark.parametrize("text", ["by hand", "[1]", "{}", '{"by": 3}'], ids=str)
def test_a_hold_that_was_set_by_hand_holds(
    registry: Registry, client: MlflowClient, text: str
) -> None:
    client.set_registered_model_tag("net", "lightkit.hold.champion", text)
    assert read_hold(registry, "net", "champion") is not None
    with pytest.raises(GateFailed, match=r"net@champion is held by"):
        require_no_hold(registry, "net", "champion")
