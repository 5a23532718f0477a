"""What differs between two runs' inputs is said in words; what is written reads back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lightkit.runs import INPUTS, Inputs, changes_between, fingerprints, join_changes, read_inputs

BEFORE = Inputs(
    config={"trainer.max_epochs": 20, "model.key": "${oc.env:KEY}"},
    hidden={"model.key": "abc"},
    data={"data.init_args.root": {"roses/1.jpg": "a", "roses/2.jpg": "b"}},
    num_files=2,
    size_bytes=1_500_000,
    code={"own.py": "c"},
    versions={"torch": "2.9"},
    salt="s",
)


def test_what_is_written_reads_back(tmp_path: Path) -> None:
    BEFORE.write(tmp_path)
    assert read_inputs(tmp_path) == BEFORE
    assert changes_between(BEFORE, BEFORE) == []
    assert BEFORE.description == "data: 2 files, 1.5 MB; config; code: 1 file"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 2}', '{"schema": 1}'], ids=repr)
def test_what_nobody_can_read_is_as_if_it_were_not_there(tmp_path: Path, text: str) -> None:
    (tmp_path / INPUTS).write_text(text)
    assert read_inputs(tmp_path) is None


@pytest.mark.parametrize(
    ("now", "says"),
    [
        (replace(BEFORE, config={**BEFORE.config, "trainer.max_epochs": 21}), "trainer.max_epochs 20 -> 21"),
        (replace(BEFORE, config={**BEFORE.config, "trainer.max_epochs": 20.0}), "trainer.max_epochs 20 -> 20.0"),
        (replace(BEFORE, config={**BEFORE.config, "trainer.max_epochs": True}), "trainer.max_epochs 20 -> true"),
        (replace(BEFORE, config={**BEFORE.config, "x": ""}), 'x (not set) -> ""'),
        (replace(BEFORE, config={**BEFORE.config, "x": "y" * 70}), f"x (not set) -> {'y' * 60}..."),
        (replace(BEFORE, hidden={"model.key": "other"}), "model.key has another value, which is not shown"),
        (replace(BEFORE, hidden={}), "model.key has another value, which is not shown"),
        (replace(BEFORE, versions={"torch": "2.15"}), "torch 2.9 -> 2.15"),
        (replace(BEFORE, code={"own.py": "d"}), "code: 1 of 1 file differs (own.py)"),
        (replace(BEFORE, code={"own.py": "c", "more.py": "d"}), "code: 1 new (more.py)"),
        (replace(BEFORE, data={}), "data.init_args.root: is not read any more"),
        (replace(BEFORE, data={**(BEFORE.data or {}), "ckpt_path": {"a": "b"}}), "ckpt_path: is read now"),
    ],
    ids=[
        "value", "float", "bool", "empty-text", "long", "secret", "secret-gone", "version", "module", "new-module",
        "place-gone", "new-place",
    ],
)  # fmt: skip
def test_one_change_is_one_phrase(now: Inputs, says: str) -> None:
    assert changes_between(BEFORE, now) == [says]


def test_files_that_change_places_are_no_others() -> None:
    swapped = replace(BEFORE, data={"data.init_args.root": {"roses/1.jpg": "b", "roses/2.jpg": "a"}})
    assert changes_between(BEFORE, swapped) == ["data: 2 of 2 files differ (roses/1.jpg, roses/2.jpg)"]


def test_of_very_many_files_the_folders_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprints, "_MOST_FILES", 3)
    files = {f"{kind}/{number}.jpg": f"{kind}{number}" for kind in ("roses", "tulips") for number in range(4)}
    many = replace(BEFORE, data={"data.init_args.root": files})
    many.write(tmp_path)
    kept = read_inputs(tmp_path)
    assert kept is not None
    assert list((kept.data or {})["data.init_args.root"]) == ["roses/", "tulips/"]
    assert changes_between(kept, many) == []
    other = replace(many, data={"data.init_args.root": {**files, "roses/1.jpg": "x"}})
    assert changes_between(kept, other) == ["data: 1 of 2 files differs (roses/)"]


def test_a_long_list_is_shortened() -> None:
    assert join_changes([f"c{number}" for number in range(10)]) == "c0; c1; c2; c3; c4; c5; c6; c7; and 2 more"
