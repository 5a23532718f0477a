"""`lightkit report`: the page of a run, or of a comparison of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lightkit import runs
from lightkit.cli.command_line import Invocation
from lightkit.config import shown_path
from lightkit.errors import ConfigError
from lightkit.runs.files import write_text


def report(invocation: Invocation) -> int:
    """Write the page, and return the exit code.

    Raises:
        ConfigError: If a word is wrong, there is no such run, or the file cannot be written.
    """
    found = _find_runs(invocation)
    given = invocation.options.get("output")
    output = Path(given) if given else None
    path = output or found[0].folder / ("comparison.html" if len(found) > 1 else "report.html")
    try:
        if len(found) > 1:
            _write_comparison(found, path)
        else:
            _write_report(found[0], output)
    except OSError as error:
        raise ConfigError(
            f"report: {path} cannot be written: {error.strerror or error}. Give --output FILE."
        ) from error
    if not invocation.has("quiet"):
        print(shown_path(path))
    return 0


def _find_runs(invocation: Invocation) -> list[runs.Run]:
    """Return the runs that the command line names.

    Raises:
        ConfigError: If there is none, or two are the same.
    """
    names = invocation.inputs
    if not names:
        raise invocation.error("expected at least one run, got none; say latest, or the folder of one")
    root = Path(invocation.options.get("root", "runs"))
    found = [runs.find(name, root) for name in names]
    if len({run.folder.resolve() for run in found}) < len(found):
        raise invocation.error(f"expected different runs, got {' and '.join(names)}, of which two are the same")
    return found


def _write_comparison(found: Sequence[runs.Run], path: Path) -> None:
    from lightkit.reports.comparison import render_comparison  # here: they load numpy
    from lightkit.reports.facts import read_facts

    write_text(path, render_comparison([read_facts(run) for run in found]), durable=False)


def _write_report(run: runs.Run, output: Path | None) -> None:
    from lightkit.reports.gate_page import write_gate_page  # here: they load numpy
    from lightkit.reports.pages import write_run_report

    if output is None and (run.folder / "gate.json").exists():  # whose page the report refers to
        write_gate_page(run)
    write_run_report(run, output)
