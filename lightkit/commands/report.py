"""`lightkit report`: the page of a run."""

from __future__ import annotations

from pathlib import Path

from lightkit import runs
from lightkit.cli.command_line import parse_options
from lightkit.config import shown_path
from lightkit.errors import ConfigError

__all__ = ["report"]

HELP = """\
usage: lightkit report RUN [--output FILE] [--root FOLDER] [--quiet]

Write the report of a run, report.html in its folder: one HTML file that needs no network and no other file. It is made
of the files in the run folder, also of a run that is training, has failed or was killed.

  --output FILE  where the page is written; default: report.html in the run folder
  --root FOLDER  folder of all runs; default: runs
  --quiet        print warnings and errors only

lightkit report latest
"""


def report(words: list[str]) -> int:
    """Write the page, and return the exit code.

    Raises:
        ConfigError: If a word is wrong, there is no such run, or the file cannot be written.
    """
    line = parse_options(HELP, words, most=1)
    root = Path(line.options.get("--root", "runs"))
    run = runs.find(line.get_positional("report", "a run", line.usage), root)
    from lightkit.reports.pages import write_run_report  # here: it loads numpy

    path = Path(line.options.get("--output") or run.folder / "report.html")
    try:
        write_run_report(run, path)
    except OSError as error:
        raise ConfigError(
            f"report: {path} cannot be written: {error.strerror or error}. Give --output FILE."
        ) from error
    if "--quiet" not in line.options:
        print(shown_path(path))
    return 0
