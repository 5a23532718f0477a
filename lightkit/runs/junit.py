"""JUnit XML: what CI systems read to show which check failed, and why."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from lightkit.errors import ConfigError, LightkitError, visible
from lightkit.runs.files import write_text

__all__ = ["Case", "failure_told", "write_junit"]

_NO_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Case:
    """One thing that was checked.

    Args:
        name: What it is, unique in its file.
        seconds: Time that it took.
        failure: Why it failed, the first line being the shortest account; None where it passed.
        output: What else there is to read about it.
        skipped: Why it was not checked; None where it was.
    """

    name: str
    seconds: float
    failure: str | None = None
    output: str = ""
    skipped: str | None = None


@contextmanager
def failure_told(path: Path | None, suite: str, case: str) -> Iterator[None]:
    """Within it, let the file tell this command: that of an earlier one goes, and what ends it early is a failed case.

    Args:
        path: The file; None where none is asked for.
        suite: Name of the suite.
        case: Name of the case.
    """
    is_file = path is not None and path.is_file() and not path.is_symlink()  # and no device
    if path is not None and is_file:
        with suppress(OSError):  # which writing it tells
            path.unlink()
    began_s = time.monotonic()
    try:
        yield
    except BaseException as error:
        if path is not None and not path.exists():
            says = str(error) if isinstance(error, LightkitError) else f"ended by {type(error).__name__}"
            with suppress(ConfigError):  # the error that is raised says more
                write_junit(path, suite, [Case(case, time.monotonic() - began_s, failure=says)])
        raise


def write_junit(path: Path | str, name: str, cases: Sequence[Case]) -> None:
    """Write one test suite, replacing the file as a whole.

    Args:
        path: The file; its folder is made.
        name: Of the suite, such as ``lightkit check``. A case's class is this name with dots for spaces.
        cases: In the order in which they were checked.

    Raises:
        ConfigError: If the file cannot be written.
    """
    suite = ET.Element("testsuite", {"name": _text(name), **_counts(cases)})
    for case in cases:
        suite.append(_element(case, classname=_text(name).replace(" ", ".")))
    suites = ET.Element("testsuites", _counts(cases))
    suites.append(suite)
    ET.indent(suites)
    document = ET.tostring(suites, encoding="unicode")
    try:
        write_text(Path(path), f'<?xml version="1.0" encoding="utf-8"?>\n{document}\n', durable=False)
    except OSError as error:
        raise ConfigError(f"--junit: {path} cannot be written: {error.strerror or error}. Say another file.") from error


def _counts(cases: Sequence[Case]) -> dict[str, str]:
    return {
        "tests": str(len(cases)),
        "failures": str(sum(case.failure is not None for case in cases)),
        "errors": "0",
        "skipped": str(sum(case.skipped is not None for case in cases)),
        "time": f"{sum(case.seconds for case in cases):.3f}",
    }


def _element(case: Case, *, classname: str) -> ET.Element:
    attributes = {"classname": classname, "name": _text(case.name), "time": f"{case.seconds:.3f}"}
    element = ET.Element("testcase", attributes)
    if case.failure is not None:
        message = case.failure.strip().split("\n", 1)[0]
        ET.SubElement(element, "failure", {"message": _text(message)}).text = _text(case.failure)
    if case.skipped is not None:
        ET.SubElement(element, "skipped", {"message": _text(case.skipped)})
    if case.output:
        ET.SubElement(element, "system-out").text = _text(case.output)
    return element


def _text(text: str) -> str:
    """Write what XML cannot hold, and a terminal would obey, as escape sequences."""
    return _NO_XML.sub("?", visible(text))
