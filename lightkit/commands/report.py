"""`lightkit report`: the page of a run, or of a comparison of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lightkit import runs
from lightkit.cli.command_line import CommandLine, parse_options
from lightkit.config import shown_path
from lightkit.config.run_root import find_run_root
from lightkit.errors import ConfigError
from lightkit.runs.files import write_text

HELP = """\
usage: lightkit report RUN... [--output FILE] [--root FOLDER] [--quiet]

Write the report of a run, report.html in its folder: one HTML file that needs no network and no other file. It is made
of the files in the run folder, also of a run that is training, has failed or was killed; the gate's decision, if there
is one, has a page of its own, gate.html. Of several runs a comparison, comparison.html in the first one's folder: what
differs in config, data, code and versions; metrics with intervals and curves; and by their predictions whether each is
better than the first beyond noise.

  --output FILE  where the page is written; the run folder, which may be read-only, is left as it is
  --root FOLDER  folder of all runs; default: LIGHTKIT_RUN__ROOT, else runs
  --quiet        print warnings and errors only

lightkit report latest
lightkit report latest flowers/20261123-184026-270b
"""


def report(words: list[str]) -> int:
    """Write the page, and return the exit code.

    Raises:
        ConfigError: If a word is wrong, there is no such run, or the file cannot be written.
    """
    line = parse_options(HELP, words, most=26)
    if not line.positionals:
        raise line.error("expected at least one run, got none; say latest, or the folder of one")
    found = _find_runs(line)
    output = Path(line.options["--output"]) if line.options.get("--output") else None
    path = output or found[0].folder / ("comparison.html" if found[1:] else "report.html")
    try:
        if found[1:]:
            _write_comparison(found, path)
        else:
            _write_report(found[0], output)
    except OSError as error:
        raise ConfigError(
            f"report: {path} cannot be written: {error.strerror or error}. Give --output FILE."
        ) from error
    if "--quiet" not in line.options:
        print(shown_path(path))
    return 0


def _find_runs(line: CommandLine) -> list[runs.Run]:
    root = find_run_root(line.options.get("--root"))
    found = [runs.find(name, root) for name in line.positionals]
    if len({run.folder.resolve() for run in found}) < len(found):
        raise line.error(f"expected different runs, got {' and '.join(line.positionals)}, of which two are the same")
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
