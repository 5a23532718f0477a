"""`lightkit report`: the page of a run, or of a comparison of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from string import ascii_uppercase

from lightkit import runs
from lightkit.cli.command_line import Invocation
from lightkit.config import shown_path
from lightkit.config.run_root import find_run_root
from lightkit.errors import ConfigError, pass_on_full_disk
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
    verdicts: list[tuple[str, str]] = []
    try:
        if len(found) > 1:
            verdicts = _write_comparison(found, path)
        else:
            _write_report(found[0], output)
    except OSError as error:
        pass_on_full_disk(error, path)
        raise ConfigError(
            f"report: {path} cannot be written: {error.strerror or error}. Give --output FILE."
        ) from error
    if not invocation.has("quiet"):
        print(shown_path(path))
        if found[1:]:
            _print_verdicts(found, verdicts)
    return 0


def _find_runs(invocation: Invocation) -> list[runs.Run]:
    """Return the runs that the command line names.

    Raises:
        ConfigError: If there is none, or two are the same.
    """
    names = invocation.inputs
    if not names:
        raise invocation.error(
            "expected at least one run, got none; expected latest, or the folder of one"
        )
    root = find_run_root(invocation.options.get("root"))
    found = [runs.find(name, root) for name in names]
    if len({run.folder.resolve() for run in found}) < len(found):
        raise invocation.error(
            f"expected different runs, got {' and '.join(names)}, of which two are the same"
        )
    return found


def _write_comparison(found: Sequence[runs.Run], path: Path) -> list[tuple[str, str]]:
    """Write the comparison, and return the verdict on each run but the first, with its details."""
    # here: they load numpy
    from lightkit.reports.comparison import list_verdicts, render_comparison
    from lightkit.reports.facts import read_facts

    facts = [read_facts(run) for run in found]
    write_text(path, render_comparison(facts), durable=False)
    return list_verdicts(facts)


def _print_verdicts(compared: Sequence[runs.Run], verdicts: Sequence[tuple[str, str]]) -> None:
    """Print which run has which letter, and whether each differs from the first."""
    for letter, run in zip(ascii_uppercase, compared, strict=False):
        print(f"{letter}     {run.name}/{run.id}")
    for verdict, detail in verdicts:
        print(verdict)
        print("\n".join(f"      {line}" for line in detail.splitlines()))
    if len(verdicts) < len(compared) - 1:
        print(
            "Whether a run without predictions of the same samples differs is unknown; lightkit"
            " test --run RUN records"
        )
        print("them.")


def _write_report(run: runs.Run, output: Path | None) -> None:
    from lightkit.reports.gate_page import write_gate_page  # here: they load numpy
    from lightkit.reports.pages import write_run_report

    if output is None and (run.folder / "gate.json").exists():  # whose page the report refers to
        write_gate_page(run)
    write_run_report(run, output)
