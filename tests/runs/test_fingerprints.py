"""What differs between two runs' inputs is said in words; what is written reads back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lightkit.runs import INPUTS, Inputs, join_changes, list_changes, read_inputs

BEFORE = Inputs(
    config={"trainer.max_epochs": 20, "model.key": "${oc.env:KEY}"},
    hidden={"model.key": "abc"},
    data={"data.init_args.root": {"roses/1.jpg": "a", "roses/2.jpg": "b"}},
    size_bytes=1_500_000,
    code={"own.py": "c"},
    salt="s",
)


def test_what_is_written_reads_back(tmp_path: Path) -> None:
    BEFORE.write(tmp_path)
    kept = read_inputs(tmp_path)
    assert kept is not None
    assert kept.digests == BEFORE.digests
    assert list_changes(BEFORE, BEFORE) == []
    assert BEFORE.summary == "data: 2 files, 1.5 MB; config; code: 1 file"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 1}'], ids=repr)
def test_what_nobody_can_read_is_as_if_it_were_not_there(tmp_path: Path, text: str) -> None:
    (tmp_path / INPUTS).write_text(text)
    assert read_inputs(tmp_path) is None


@pytest.mark.parametrize(
    ("now", "says"),
    [
        (replace(BEFORE, config={**BEFORE.config, "trainer.max_epochs": 21}),
         "trainer.max_epochs 20 -> 21"),
        (replace(BEFORE, config={**BEFORE.config, "trainer.max_epochs": 20.0}),
         "trainer.max_epochs 20 -> 20.0"),
        (replace(BEFORE, config={**BEFORE.config, "trainer.max_epochs": True}),
         "trainer.max_epochs 20 -> true"),
        (replace(BEFORE, config={**BEFORE.config, "x": ""}), 'x (not set) -> ""'),
        (replace(BEFORE, config={**BEFORE.config, "x": "y" * 70}),
         f'x (not set) -> "{"y" * 59}...'),
        (replace(BEFORE, hidden={"model.key": "other"}),
         "model.key has another value, which is not shown"),
        (replace(BEFORE, hidden={}), "model.key has another value, which is not shown"),
        (replace(BEFORE, code={"own.py": "d"}), "code: 1 of 1 file differs (own.py)"),
        (replace(BEFORE, code={"own.py": "c", "more.py": "d"}), "code: 1 new (more.py)"),
        (replace(BEFORE, data={}), "data: 2 of 2 files gone (roses/1.jpg, roses/2.jpg)"),
        (replace(BEFORE, data={**(BEFORE.data or {}), "ckpt_path": {"a": "b"}}),
         "ckpt_path: 1 new (a)"),
    ],
    ids=[
        "value", "float", "bool", "empty-text", "long", "secret", "secret-gone", "module",
        "new-module",
        "place-gone", "new-place",
    ],
)  # fmt: skip
def test_one_change_is_one_phrase(now: Inputs, says: str) -> None:
    assert list_changes(BEFORE, now) == [says]


def test_files_that_change_places_are_no_others() -> None:
    swapped = replace(
        BEFORE, data={"data.init_args.root": {"roses/1.jpg": "b", "roses/2.jpg": "a"}}
    )
    assert list_changes(BEFORE, swapped) == ["data: 2 of 2 files differ (roses/1.jpg, roses/2.jpg)"]


def test_a_long_list_is_shortened() -> None:
    assert (
        join_changes([f"c{number}" for number in range(10)])
        == "c0; c1; c2; c3; c4; c5; c6; c7; and 2 more"
    )
