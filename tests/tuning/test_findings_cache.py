"""Findings are kept, found again for the same model and machine alone, and never trusted where they are damaged."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from lightkit.tuning import findings_cache
from lightkit.tuning.findings_cache import key_of, name_of, read, read_all, write
from tests.tuning.conftest import Small

FOUND = {"found": {"batch_size": 8}, "limit": {"budget_s": None}}


def test_what_is_kept_is_found_again(tmp_path: Path) -> None:
    assert read(tmp_path, "key") is None
    assert write(tmp_path, "key", FOUND) == tmp_path / ".tuning" / "key.json"
    assert read(tmp_path, "key") == FOUND
    assert read(tmp_path, "other") is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_what_cannot_be_read_is_passed_over(text: str, tmp_path: Path) -> None:
    path = write(tmp_path, "key", FOUND)
    path.write_text(text)
    assert read(tmp_path, "key") is None
    assert read_all(tmp_path, "k") == []


def test_all_of_a_kind_come_newest_first(tmp_path: Path) -> None:
    names = [name_of("speed", "key", number) for number in range(3)]
    assert len({*names, name_of("speed", "key")}) == 4
    for number, name in enumerate(names):
        path = write(tmp_path, name, {"found": number})
        os.utime(path, ns=(number, number))
    write(tmp_path, name_of("batch_size", "key"), {"found": 9})
    assert [content["found"] for content in read_all(tmp_path, name_of("speed", "key"))] == [2, 1, 0]


def test_several_at_once_leave_one_whole_file(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: write(tmp_path, "key", FOUND), range(32)))
    assert read(tmp_path, "key") == FOUND
    assert [path.name for path in (tmp_path / ".tuning").iterdir()] == ["key.json"]


def test_another_model_machine_or_version_has_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {"model": {"width": 8}, "batch": [4, 3]}
    key = key_of(parts)
    assert key_of({"batch": [4, 3], "model": {"width": 8}}) == key
    keys = {key, key_of({**parts, "model": {"width": 9}})}
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    keys.add(key_of(parts))
    monkeypatch.setattr(findings_cache, "__version__", "0.0.0")
    keys.add(key_of(parts))
    monkeypatch.setattr(findings_cache, "num_cores", lambda: 99)
    keys.add(key_of(parts))
    assert len(keys) == 5


def test_keys_of_several_kinds_count_as_what_they_are() -> None:
    key = key_of({"weights": {0: 1.0, "other": 2.0, None: 3.0}})
    assert key_of({"weights": {None: 3.0, "other": 2.0, 0: 1.0}}) == key
    others = [{"0": 1.0, "other": 2.0, None: 3.0}, {0: 1.0, "other": 2.0, "null": 3.0}, [[0, 1.0], ["other", 2.0]]]
    assert len({key, *(key_of({"weights": weights}) for weights in others)}) == 4
    assert key_of({"layers": [{(1, 2): torch.relu}]}) != key_of({"layers": [{(1, 2): torch.tanh}]})


def test_a_function_counts_by_its_name_and_what_has_none_is_refused() -> None:
    assert key_of({"act": functional.relu}) == key_of({"act": "torch.nn.functional.relu"})
    assert key_of({"act": torch.relu}) != key_of({"act": torch.tanh})
    assert key_of({"kind": Small}) == key_of({"kind": f"{Small.__module__}.Small"})
    for nameless in (object(), lambda: 1):
        with pytest.raises(ValueError, match="says no more than where it is in memory"):
            key_of({"act": nameless})
