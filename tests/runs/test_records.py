from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from lightkit import runs
from lightkit.runs.files import inspect_json
from lightkit.runs.index import UNREADABLE, index_run
from lightkit.runs.records import (
    RECORDS,
    DataDescription,
    Event,
    find_excess,
    find_mismatch,
    keep_matching,
)
from lightkit.runs.retention import RetentionRules, plan_deletions
from lightkit.runs.summary import new_summary

ARCHIVE = Path(__file__).parents[1] / "contract" / "earlier_runs.tar.xz"


def test_records_of_an_earlier_version_have_their_types() -> None:
    seen = set()
    with tarfile.open(ARCHIVE) as archive:
        for member in archive:
            name = Path(member.name).name
            content = archive.extractfile(member) if name in {*RECORDS, "events.jsonl"} else None
            if content is None:
                continue
            text = content.read()
            for part in text.splitlines() if name == "events.jsonl" else [text]:
                value = json.loads(part)
                assert find_excess(value) is None
                assert find_mismatch(value, RECORDS.get(name, Event)) is None, member.name
                seen.add(name)
    later = {"importance.json", "trial.json", "verdict.json"}
    assert seen == {*RECORDS, "events.jsonl"} - later


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("summary.json", {"best": {"monitor": 3}}, "best.monitor is 3, expected text or null"),
        ("summary.json", {"best": [1]}, "best is a list, expected an object or null"),
        (
            "summary.json",
            {"metrics": {"best": {"a": "1"}}},
            'metrics.best.a is "1", expected a number or null',
        ),
        ("summary.json", {"scores": [{"stage": "test"}, 7]}, "scores.1 is 7, expected an object"),
        ("summary.json", {"epochs": True}, "epochs is true, expected a whole number"),
        ("summary.json", {"epochs": 1.5}, "epochs is 1.5, expected a whole number"),
        ("manifest.json", {"hardware": {"gpus": None}}, "hardware.gpus is null, expected a list"),
        ("lock.json", {"processes": {"pid": 1}}, "processes is an object, expected a list"),
        ("other.json", [1], "it is a list, expected an object"),
        ("gate.json", {}, "it has no keys"),
    ],
)
def test_a_value_of_another_type_is_named_with_its_key(
    name: str, content: Any, says: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(json.dumps(content))
    assert inspect_json(tmp_path / name) == (None, says)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it is no JSON (Expecting value: line 1 column 1 (char 0))"),
        ('{"a": ' + "7" * 400 + "}", f"it has the number {'7' * 40}..."),
        ('{"a": ' + "7" * 5000 + "}", "it is no JSON"),
        ('{"a": 1e400}', "it has the number Infinity"),
        ('{"a": [NaN]}', "it has the number NaN"),
        ('{"a": ' + "[" * 2000 + "]" * 2000 + "}", "levels"),
        ('{"a": ' + "[" * 200 + "]" * 200 + "}", "it has more than 100 levels"),
        ('{"a": "\\ud800"}', 'it has "\\ud800", which is no text'),
        ('{"a\\u0000": 1}', 'it has "a\\u0000", which is no text'),
    ],
)
def test_what_no_reader_can_work_with_is_not_read(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    value, damage = inspect_json(tmp_path / "a.json")
    assert value is None
    assert says in str(damage)


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    assert inspect_json(tmp_path / "folder.json") == (None, "it is no file")
    assert inspect_json("/dev/zero") == (None, "it is no file")
    assert inspect_json(tmp_path / "missing.json") == (None, None)


def test_a_damaged_file_is_warned_of_once_and_kept_when_it_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "gate.json"
    path.write_text('{"passed": "yes"}')
    for _ in range(2):
        assert runs.read_json(path) is None
    (record,) = caplog.records
    assert (
        record.getMessage()
        == f'{path} cannot be read: passed is "yes", expected true or false. It counts as missing.'
    )
    runs.write_json(path, {"passed": True})
    runs.write_json(path, {"passed": False})
    assert runs.read_json(path) == {"passed": False}
    assert (tmp_path / "gate.json.damaged").read_text() == '{"passed": "yes"}'


def test_what_a_data_module_says_may_have_any_type() -> None:
    manifest = {"data": {"class_names": 5, "root": ["a"], "counts": {"train": 3}, "own": object}}
    assert find_mismatch(manifest, RECORDS["manifest.json"]) is None
    assert keep_matching(manifest["data"], DataDescription) == {
        "counts": {"train": 3},
        "own": object,
    }


@pytest.mark.parametrize(
    "name", ["summary.json", "manifest.json", "retrain.json", "promoted.json", "mlflow.json"]
)
def test_a_run_that_cannot_be_read_is_kept(name: str, tmp_path: Path) -> None:
    entries = []
    for number in range(3):
        folder = tmp_path / "a" / f"20261128-07000{number}-0000"
        folder.mkdir(parents=True)
        runs.write_json(folder / "manifest.json", {"subcommand": "test"})
        runs.write_json(folder / "summary.json", {**new_summary("a/b"), "status": "done"})
        if number == 0:
            (folder / name).write_text('{"status": [')
        entries.append(index_run(runs.open_run(folder)))
    plan = plan_deletions(entries[::-1], RetentionRules(keep_last=0), now=0.0)
    assert entries[0].status == UNREADABLE
    assert plan.kept[entries[0].key].startswith(f"it cannot be read ({name}: it is no JSON")
    assert plan.deleted == entries[1:]
