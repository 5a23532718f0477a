"""What a CI job reads: the stream of events, test cases, the page of the step and summary.json."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import pytest
import yaml

from lightkit.runs.summary import SUMMARY_SCHEMA
from tests.cli.conftest import House, read_json

WORKFLOW = Path(__file__).parents[2] / "configs" / "ci" / "pull_request.yml"
GOLDEN = [
    ("start", ["checkpoint", "event", "folder", "run", "stage", "time"]),
    ("epoch", ["disk_free_bytes", "epoch", "event", "memory_free_bytes", "metrics", "seconds", "step", "time"]),
    ("checkpoint", ["disk_free_bytes", "epoch", "event", "kind", "memory_free_bytes", "path", "step", "time"]),
    ("checkpoint", ["disk_free_bytes", "epoch", "event", "kind", "memory_free_bytes", "path", "step", "time"]),
    ("end", ["error", "event", "exit_code", "seconds", "status", "time"]),
]


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "page.md"))
    return tmp_path / "page.md"


def validated(folder: Path) -> dict[str, Any]:
    summary: dict[str, Any] = read_json(folder / "summary.json")
    schema = json.loads(SUMMARY_SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(summary, {**schema, "additionalProperties": False})
    return summary


def test_a_fit_tells_programs_and_the_page_of_the_job_how_it_went(house: House, page: Path) -> None:
    done = house("fit", "-c", "small.yaml", "--output", "json")
    assert done.code == 0, done.err
    events = [json.loads(line) for line in done.out.splitlines()]
    assert [event["event"] for event in events] == [name for name, _ in GOLDEN]
    summary = validated(house.runs[-1])
    assert (summary["schema"], summary["status"], summary["stages"]) == (1, "done", {})
    assert events[-1]["status"] == "done"
    assert page.read_text().startswith(f"### lightkit fit: {summary['run']} done\n")
    assert "| train/loss | " in page.read_text()
    assert house("test", "--run", "latest").code == 0
    assert validated(house.runs[-1])["stages"]["test"]
    assert page.read_text().count("###") == 1  # of the fit alone


def test_the_events_have_the_fields_that_programs_read(house: House) -> None:
    run = house.fit("-c", "small.yaml")
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert [(event["event"], sorted(event)) for event in events] == GOLDEN


def test_a_fit_that_fails_says_so_on_the_page_and_in_a_valid_summary(house: House, page: Path) -> None:
    with pytest.raises(ValueError, match="out of stock"):
        house("fit", "-c", "small.yaml", "--model=my_models.Failing")
    assert validated(house.runs[-1])["status"] == "failed"
    assert "failed (exit code 1)" in page.read_text()
    assert "batches are out of stock" in page.read_text()


def test_a_check_writes_a_case_a_mistake_and_the_page(house: House, page: Path) -> None:
    wrong = ["--trainer.max_epochs=ten", "--model.hiden=3"]
    done = house("check", "-c", "small.yaml", *wrong, "--junit=check.xml")
    assert done.code == 2
    suite = ET.parse(house.folder / "check.xml").getroot().find("testsuite")
    assert suite is not None
    assert (suite.attrib["name"], suite.attrib["tests"], suite.attrib["failures"]) == ("lightkit check", "2", "2")
    names = sorted(case.attrib["name"] for case in suite)
    assert names == ["small.yaml: model.init_args.hiden", "small.yaml: trainer.max_epochs"]
    assert all((case.findtext("failure") or "") in done.err for case in suite)
    assert "2 mistakes" in page.read_text()


def test_junit_needs_a_file_after_it(house: House) -> None:
    done = house("check", "-c", "small.yaml", "--junit")
    assert (done.code, done.err) == (2, "error: check: --junit: expected a file after it\n")


def test_the_schema_of_the_summary_is_printed(house: House) -> None:
    assert json.loads(house("schema", "--summary").out) == json.loads(SUMMARY_SCHEMA.read_text())
    assert house("schema", "--summary", "-o", "s.json").out == "s.json is written\n"


def test_the_commands_of_the_pull_request_check_run(house: House) -> None:
    steps = yaml.safe_load(WORKFLOW.read_text())["jobs"]["check"]["steps"]
    commands = [shlex.split(step["run"]) for step in steps if step.get("run", "").startswith("lightkit ")]
    assert [words[1] for words in commands] == ["check", "fit"]
    (house.folder / "configs").mkdir()
    (house.folder / "configs" / "flowers.yaml").write_text((house.folder / "small.yaml").read_text())
    for words in commands:
        done = house(*words[1:])
        assert done.code == 0, done.err
    assert (house.folder / "check.xml").is_file()
