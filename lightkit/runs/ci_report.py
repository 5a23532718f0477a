"""Reports for CI systems: JUnit XML, and the Markdown summary that GitHub and others show."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from lightkit.config import shown_path
from lightkit.errors import (
    ConfigError,
    Interrupted,
    LightkitError,
    exit_code_of,
    format_count,
    format_interruption,
    visible,
)
from lightkit.runs.deadline import format_duration
from lightkit.runs.files import find_value, read_json, write_text
from lightkit.runs.folder import Run

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
"""Variable with the path of the file that the CI system reads."""
_NO_XML = re.compile("[\x00-\x08\x0b-\x1f\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True)
class Case:
    """A test case.

    Args:
        name: Unique in its file.
        seconds: Its duration.
        failure: Why it failed, the first line being the shortest account; None where it passed.
        output: Further text about it.
        skipped: Why it was not checked; None where it was.
    """

    name: str
    seconds: float
    failure: str | None = None
    output: str = ""
    skipped: str | None = None


def is_failure(code: int) -> bool:
    """Return whether an exit code is a failure for CI: all but 0, and 6, nothing has changed."""
    return code not in (0, 6)


class CiReport:
    """The JUnit file and the page of the CI step of one command; a context manager around its work.

    One rule for both: they tell of a failure exactly where the exit code is one (see `is_failure`),
    and each failure has a reason. The file of an earlier command is removed at the beginning. At
    the end of one that fails, what it has not written itself is written: a failed case, and a page
    with the reason.

    Args:
        command: The command, such as ``lightkit gate``: name of the suite, and head of the page.
        junit: The file; None for none.
        case: Name of the case for an error that is none of the command's own cases.
        shares_page: Whether other processes of the command add to the page, so that it may have the
            end already.
    """

    def __init__(
        self, command: str, junit: Path | None, *, case: str, shares_page: bool = False
    ) -> None:
        self._command = command
        self._junit = junit
        self._case = case
        self._cases: list[Case] = []
        self._has_page = False
        self._size_before = _read_page_size() if shares_page else None
        self._began_s = time.monotonic()
        self.code = 0
        """Exit code of the command, where it ends without an exception."""
        self.reason = ""
        """Why the command ends with that code."""

    def write(self, cases: Sequence[Case]) -> None:
        """Write the command's own cases.

        Raises:
            ConfigError: If the file cannot be written.
        """
        self._cases = list(cases)
        if self._junit is not None:
            write_junit(self._junit, self._command, self._cases)

    def add_page(self, markdown: str) -> None:
        """Add the command's own page, a text without secrets."""
        self._has_page = True
        add_step_summary(markdown)

    def __enter__(self) -> CiReport:
        # and no device
        if self._junit is not None and self._junit.is_file() and not self._junit.is_symlink():
            with suppress(OSError):  # writing it reports the error
                self._junit.unlink()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        code = self.code if error is None else exit_code_of(error)
        reason = self.reason if error is None else _describe_error(error)
        reason = reason.strip() or f"exit code {code}"
        if not is_failure(code):
            return
        # an error of the command's own cases stands there already
        if not any(case.failure is not None for case in self._cases):
            self._write_failure(reason)
        has_page = self._has_page or (
            self._size_before is not None and _read_page_size() > self._size_before
        )
        if not has_page:
            first, *rest = reason.splitlines()
            details = "\n".join(["", "", "```", *rest, "```"]) if rest else ""
            self.add_page(
                f"### {self._command}: exit code {code}\n\n{_escape_markdown(first)}{details}"
            )

    def _write_failure(self, reason: str) -> None:
        """Write the failed case, in the place of one of its name."""
        failed = Case(self._case, time.monotonic() - self._began_s, failure=reason)
        cases = [failed if case.name == self._case else case for case in self._cases]
        with suppress(ConfigError):  # the error that is raised matters more
            self.write(cases if failed in cases else [*cases, failed])


def _read_page_size() -> int:
    """Return the size of the file of the step's page; 0 where there is none."""
    try:
        return Path(os.environ.get(STEP_SUMMARY) or os.devnull).stat().st_size
    except OSError:
        return 0


def _describe_error(error: BaseException) -> str:
    if isinstance(error, LightkitError):
        return str(error)
    if isinstance(error, Interrupted):
        return format_interruption(error)
    return f"ended by {type(error).__name__}"


def _escape_markdown(text: str) -> str:
    return text.replace("<", "&lt;")


def write_junit(path: Path | str, name: str, cases: Sequence[Case]) -> None:
    """Write one test suite, replacing the file as a whole.

    Args:
        path: The file; its folder is made.
        name: Name of the suite, such as ``lightkit check``. A case's class is this name with dots
            for spaces.
        cases: In the order in which they were checked.

    Raises:
        ConfigError: If the file cannot be written.
    """
    counts = {
        "tests": str(len(cases)),
        "failures": str(sum(case.failure is not None for case in cases)),
        "errors": "0",
        "skipped": str(sum(case.skipped is not None for case in cases)),
        "time": f"{sum(case.seconds for case in cases):.3f}",
    }
    suites = ET.Element("testsuites", counts)
    suite = ET.SubElement(suites, "testsuite", {"name": _escape(name), **counts})
    for case in cases:
        names = {"classname": _escape(name).replace(" ", "."), "name": _escape(case.name)}
        element = ET.SubElement(suite, "testcase", {**names, "time": f"{case.seconds:.3f}"})
        for tag, reason in (("failure", case.failure), ("skipped", case.skipped)):
            if reason is not None:
                shown = reason if reason.strip() else "no reason was given"
                message = _escape(shown.strip().split("\n", 1)[0])
                ET.SubElement(element, tag, {"message": message}).text = _escape(shown)
        if case.output:
            ET.SubElement(element, "system-out").text = _escape(case.output)
    ET.indent(suites)
    document = ET.tostring(suites, encoding="unicode")
    try:
        write_text(
            Path(path), f'<?xml version="1.0" encoding="utf-8"?>\n{document}\n', durable=False
        )
    except OSError as error:
        raise ConfigError(
            f"--junit: {path} cannot be written: {error.strerror or error}. Choose another file."
        ) from error


def _escape(text: str) -> str:
    """Escape characters that XML cannot hold, or a terminal would obey."""
    return _NO_XML.sub("?", visible(text))


def add_step_summary(markdown: str) -> None:
    """Append a text without secrets to the file of ``GITHUB_STEP_SUMMARY``, if set.

    Warn if it cannot be written.
    """
    if not (name := os.environ.get(STEP_SUMMARY)):
        return
    try:
        with Path(name).open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{markdown.strip()}\n\n")
    except OSError as error:
        message = (
            f"{STEP_SUMMARY}: {name} cannot be written"
            f" ({error.strerror or error}); the step has no summary"
        )
        logging.getLogger("lightkit").warning(message)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Format a table in Markdown; characters that would end a cell are escaped."""

    def cell(value: object) -> str:
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        return " ".join(text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").split())

    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(cell, line))} |" for line in lines)


def add_fit_page(run: Run) -> None:
    """Add the result of a fit to the summary of the CI step.

    Run, best checkpoint, duration, error, metrics.
    """
    record = read_json(run.summary_path)
    if record is None:  # it has ended before training
        return
    code = f" (exit code {record['exit_code']})" if record.get("exit_code") else ""
    head = f"### lightkit fit: {record.get('run')} {record.get('status')}{code}"
    parts = [
        head,
        markdown_table(
            ["", ""], [("run", f"`{shown_path(run.folder)}`"), *_list_fit_facts(record)]
        ),
    ]
    of_best = find_value(record, "metrics", "best") or {}
    of_last = find_value(record, "metrics", "last") or {}
    names = [name for name in dict.fromkeys([*of_best, *of_last]) if name not in ("epoch", "step")]
    if names:
        rows = [(name, of_best.get(name, ""), of_last.get(name, "")) for name in names]
        parts.append(markdown_table(["metric", "best epoch", "last epoch"], rows))
    add_step_summary("\n\n".join(parts))


def _list_fit_facts(record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """List what a summary says of a fit: best checkpoint, epochs, steps, duration and error."""
    best = record.get("best") or {}
    paths = record.get("paths") or {}
    checkpoint = paths.get("best_checkpoint") or paths.get("last_checkpoint")
    if checkpoint:
        is_scored = isinstance(best.get("value"), (int, float))
        value = (
            f": {best['monitor']} {best['value']:.4g} in epoch {best['epoch']}" if is_scored else ""
        )
        yield "checkpoint", f"`{checkpoint}`{value}"
    yield "epochs", record.get("epochs")
    yield "steps", record.get("steps")
    seconds = find_value(record, "durations", "total")
    if isinstance(seconds, (int, float)):
        yield "time", format_duration(seconds)
    if record.get("error"):
        yield "error", record["error"]


def check_cases(files: Sequence[str], error: LightkitError | None, seconds: float) -> list[Case]:
    """Return a failed case for each error in a config, or one that passes.

    Args:
        files: The config files.
        error: The errors; None for none.
        seconds: Duration of the check.
    """
    subject = ", ".join(files) or "command line"
    if error is None:
        return [Case(subject, seconds)]
    mistakes = _list_mistakes(error)
    cases: list[Case] = []
    for text in mistakes:
        name = f"{subject}: {text.splitlines()[0].partition(': ')[0][:120]}"  # the key
        same = sum(case.name.partition(" (")[0] == name for case in cases)
        cases.append(
            Case(f"{name} ({same + 1})" if same else name, seconds / len(mistakes), failure=text)
        )
    return cases


def check_page(files: Sequence[str], error: LightkitError | None) -> str:
    """Format the result of a check in Markdown."""
    head = f"### lightkit check: {', '.join(files) or 'command line'}\n\n"
    if error is None:
        return f"{head}no mistakes found"
    mistakes = _list_mistakes(error)
    blocks = [f"```\n{text.replace('```', '` ` `')}\n```" for text in mistakes]
    return f"{head}{format_count(len(mistakes), 'mistake')}\n\n" + "\n".join(blocks)


def _list_mistakes(error: LightkitError) -> list[str]:
    return (
        [str(each) for each in error.problems]
        if isinstance(error, ConfigError)
        else str(error).split("\nerror: ")
    )
