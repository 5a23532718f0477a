"""JUnit XML as CI systems read it."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from lightkit import errors
from lightkit.errors import ConfigError, GateFailed, Interrupted, LightkitError, exit_code_of
from lightkit.runs.ci_report import (
    Case,
    CiReport,
    add_fit_page,
    add_step_summary,
    is_failure,
    markdown_table,
    write_junit,
)
from lightkit.runs.files import write_json
from lightkit.runs.folder import create

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
    assert passed.attrib == {
        "classname": "lightkit.gate",
        "name": "test/accuracy at least 0.8",
        "time": "1.250",
    }
    assert passed.findtext("system-out") == "0.91"
    assert failed.find("failure").attrib == {"message": "test/accuracy fell by 0.03 <from> 0.9"}  # type: ignore[union-attr]
    assert failed.findtext("failure") == CASES[1].failure
    assert skipped.find("skipped").attrib == {"message": "fewer than 5 promotions"}  # type: ignore[union-attr]


def end_with(path: Path, end: BaseException | int, cases: list[Case] | None = None) -> int:
    """Let a command end with an exception or a code, after it has written cases of its own.

    Return the exit code.
    """

    def work() -> None:
        if isinstance(end, BaseException):
            raise end

    with suppress(BaseException), CiReport("lightkit gate", path, case="gate") as report:
        assert not path.exists()
        if cases is not None:
            report.write(cases)
        work()
        report.code = int(str(end))
    return exit_code_of(end) if isinstance(end, BaseException) else end


KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, LightkitError)
]
ENDS: list[BaseException | int] = [
    *(kind("it is out of stock") for kind in KINDS if kind is not errors.ConfigErrors),
    errors.ConfigErrors([ConfigError("one"), ConfigError("two")]),
    *(
        LightkitError(""),
        KeyError("x"),
        KeyboardInterrupt(),
        SystemExit(3),
        BrokenPipeError(),
        MemoryError(),
    ),
    *(Interrupted(2), Interrupted(15), Interrupted(15, checkpoint=Path("last.ckpt"))),
    *(0, 1, 2, 3, 4, 5, 6, 70, 74, 75, 129, 130, 138, 141, 143, 255),
]


@pytest.mark.parametrize(
    "cases", [None, [], [CASES[0]], [CASES[0], CASES[1]]], ids=["none", "empty", "good", "bad"]
)
@pytest.mark.parametrize("end", ENDS, ids=repr)
def test_junit_and_page_tell_of_a_failure_where_the_exit_code_is_one_and_why(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    end: BaseException | int,
    cases: list[Case] | None,
) -> None:
    path, page = tmp_path / "gate.xml", tmp_path / "page.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    write_junit(path, "lightkit gate", [CASES[1]])  # of yesterday

    code = end_with(path, end, cases)

    if not is_failure(code):
        assert cases is None or CASES[1] in cases or suite_of(path).get("failures") == "0"
        assert path.exists() == (cases is not None)
        assert not page.exists()
        return
    suite = suite_of(path)
    assert int(str(suite.get("failures"))) > 0
    assert all(str(failure.get("message")).strip() for failure in suite.iter("failure"))
    head, reason = page.read_text(encoding="utf-8").split("\n\n")[:2]
    assert head == f"### lightkit gate: exit code {code}"
    assert reason.strip()


def test_a_case_that_was_written_as_passed_has_failed_where_the_command_has(tmp_path: Path) -> None:
    end_with(tmp_path / "gate.xml", GateFailed("no"), [Case("gate", 1.0), Case("other", 1.0)])
    suite = suite_of(tmp_path / "gate.xml")
    assert [(case.get("name"),
             case.find("failure") is not None) for case in suite.findall("testcase")] == [
        ("gate", True), ("other", False),
    ]  # fmt: skip


def test_a_failure_without_words_says_so(tmp_path: Path) -> None:
    write_junit(tmp_path / "a.xml", "a", [Case("b", 0, failure=""), Case("c", 0, skipped=" ")])
    messages = [each.get("message") for case in suite_of(tmp_path / "a.xml") for each in case]
    assert messages == ["no reason was given"] * 2


def test_the_commands_own_page_is_the_only_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    with CiReport("lightkit gate", None, case="gate") as report:
        report.add_page("### Gate: no")
        report.code = 4
    with CiReport("lightkit fit", None, case="fit", shares_page=True) as report:
        add_step_summary("### of a rank")
        report.code = 1
    assert page.read_text() == "### Gate: no\n\n### of a rank\n\n"


@pytest.mark.parametrize("value", [0.0, -1.5, 1], ids=str)
def test_the_page_of_a_fit_has_each_best_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "page.md"))
    run = create(tmp_path, "job")
    best = {"monitor": "val/loss", "value": value, "epoch": 3}
    paths = {"best_checkpoint": "checkpoints/best.ckpt"}
    write_json(run.summary_path, {"run": "job/1", "status": "done", "best": best, "paths": paths})
    add_fit_page(run)
    assert f"val/loss {value:.4g} in epoch 3" in (tmp_path / "page.md").read_text(encoding="utf-8")


def test_the_page_of_a_fit_lists_what_the_summary_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "page.md"))
    monkeypatch.chdir(tmp_path)
    run = create(tmp_path, "job")
    metrics = {
        "best": {"epoch": 0, "step": 4, "val/loss": 0.5},
        "last": {"epoch": 1, "val/loss": 0.75, "val/f1": 1.0},
    }
    write_json(
        run.summary_path,
        {
            "run": "job/1", "status": "failed", "exit_code": 1, "epochs": 2, "steps": 8,
            "metrics": metrics,
            "paths": {"last_checkpoint": "checkpoints/last.ckpt"}, "durations": {"total": 61.0},
            "error": "it broke",
        },
    )  # fmt: skip
    add_fit_page(run)
    assert (
        (tmp_path / "page.md").read_text(encoding="utf-8")
        == f"### lightkit fit: job/1 failed (exit code 1)\n\n|  |  |\n| --- | --- |\n"
        f"| run | `{run.folder.relative_to(tmp_path)}` |\n"
        "| checkpoint | `checkpoints/last.ckpt` |\n"
        "| epochs | 2 |\n| steps | 8 |\n| time | 61 s |\n| error | it broke |\n\n"
        "| metric | best epoch | last epoch |\n| --- | --- | --- |\n"
        "| val/loss | 0.5 | 0.75 |\n| val/f1 |  | 1 |\n\n"
    )


def test_a_link_as_a_device_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "gate.xml").write_text("x")
    (tmp_path / "link.xml").symlink_to(tmp_path / "gate.xml")
    with CiReport("a", tmp_path / "link.xml", case="b"), CiReport("a", None, case="b"):
        assert (tmp_path / "link.xml").exists()  # a link, as /dev/stdout is one


def test_what_no_xml_can_hold_is_escaped(tmp_path: Path) -> None:
    write_junit(tmp_path / "a.xml", "a", [Case("b\x1b[31m\x00\ud800\uffff", 0, failure="c\x07\r")])
    case = suite_of(tmp_path / "a.xml").find("testcase")
    assert case is not None
    assert case.attrib["name"] == r"b\x1b[31m\x00\ud800\uffff"
    assert case.findtext("failure") == r"c\x07\r"


def test_a_file_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ConfigError, match=r"--junit: .*a\.xml cannot be written: .*\. Choose another file\."
    ):
        write_junit(tmp_path / "file" / "a.xml", "a", [])


def test_each_summary_is_a_paragraph_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    for markdown in ("### one\n", "two"):
        add_step_summary(markdown)
    assert page.read_text() == "### one\n\ntwo\n\n"


def test_without_the_variable_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert table.splitlines() == [
        "| name | value |",
        "| --- | --- |",
        r"| a\|b c | 0.1235 |",
        "| &lt;b> | 3 |",
    ]
