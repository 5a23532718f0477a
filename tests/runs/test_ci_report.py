"""JUnit XML as CI systems read it."""

from __future__ import annotations

import logging
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from lightkit.errors import ConfigError
from lightkit.runs.ci_report import Case, add_step_summary, junit_on_failure, markdown_table, write_junit

CASES = (
    Case("test/accuracy at least 0.8", 1.25, output="0.91"),
    Case("drop", 0.5, failure="test/accuracy fell by 0.03 <from> 0.9\nmore & more"),
    Case("drift", 0.0, skipped="fewer than 5 promotions"),
)


def suite_of(path: Path) -> ET.Element:
    suite = ET.parse(path).getroot().find("testsuite")
    assert suite is not None
    return suite


def test_cases_are_counted_and_read_back(tmp_path: Path) -> None:
    write_junit(tmp_path / "new" / "gate.xml", "lightkit gate", CASES)
    suite = suite_of(tmp_path / "new" / "gate.xml")
    counts = {"tests": "3", "failures": "1", "errors": "0", "skipped": "1", "time": "1.750"}
    assert suite.attrib == {"name": "lightkit gate", **counts}
    passed, failed, skipped = suite.findall("testcase")
    assert passed.attrib == {"classname": "lightkit.gate", "name": "test/accuracy at least 0.8", "time": "1.250"}
    assert passed.findtext("system-out") == "0.91"
    assert failed.find("failure").attrib == {"message": "test/accuracy fell by 0.03 <from> 0.9"}  # type: ignore[union-attr]
    assert failed.findtext("failure") == CASES[1].failure
    assert skipped.find("skipped").attrib == {"message": "fewer than 5 promotions"}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("error", "says"),
    [(ConfigError("gate.min: expected a number"), "gate.min: expected a number"), (KeyError("x"), "ended by KeyError")],
    ids=["told", "a crash"],
)
def test_the_green_file_of_yesterday_does_not_stay(tmp_path: Path, error: Exception, says: str) -> None:
    path = tmp_path / "gate.xml"
    write_junit(path, "lightkit gate", [CASES[0]])

    def work() -> None:
        with junit_on_failure(path, "lightkit gate", "gate"):
            assert not path.exists()
            raise error

    with pytest.raises(type(error)):
        work()
    suite = suite_of(path)
    assert suite.get("failures") == "1"
    assert suite.find("testcase/failure").attrib == {"message": says}  # type: ignore[union-attr]


def test_what_the_command_has_written_itself_stays(tmp_path: Path) -> None:
    path = tmp_path / "gate.xml"

    def work() -> None:
        with junit_on_failure(path, "lightkit gate", "gate"):
            write_junit(path, "lightkit gate", CASES)
            raise ConfigError

    with pytest.raises(ConfigError):
        work()
    assert suite_of(path).get("tests") == "3"
    (tmp_path / "link.xml").symlink_to(path)
    with junit_on_failure(tmp_path / "link.xml", "a", "b"), junit_on_failure(None, "a", "b"):
        assert (tmp_path / "link.xml").exists()  # a link, as /dev/stdout is one


def test_what_no_xml_can_hold_is_escaped(tmp_path: Path) -> None:
    write_junit(tmp_path / "a.xml", "a", [Case("b\x1b[31m\x00\ud800\uffff", 0, failure="c\x07\r")])
    case = suite_of(tmp_path / "a.xml").find("testcase")
    assert case is not None
    assert case.attrib["name"] == r"b\x1b[31m\x00\ud800?"
    assert case.findtext("failure") == r"c\x07\r"


def test_a_file_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--junit: .*a\.xml cannot be written: .*\. Choose another file\."):
        write_junit(tmp_path / "file" / "a.xml", "a", [])


def test_each_summary_is_a_paragraph_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    for markdown in ("### one\n", "two"):
        add_step_summary(markdown)
    assert page.read_text() == "### one\n\ntwo\n\n"


def test_without_the_variable_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "")
    add_step_summary("text")
    assert not list(tmp_path.iterdir())


def test_a_page_that_refuses_is_a_warning_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "none" / "page.md"))
    with caplog.at_level(logging.WARNING, "lightkit"):
        add_step_summary("text")
    assert "No such file or directory); the step has no summary" in caplog.text


def test_a_cell_cannot_end_its_table() -> None:
    table = markdown_table(["name", "value"], [["a|b\nc", 0.123456], ["<b>", 3]])
    assert table.splitlines() == ["| name | value |", "| --- | --- |", r"| a\|b c | 0.1235 |", "| &lt;b> | 3 |"]
