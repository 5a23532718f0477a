"""`lightkit check`: all that is wrong with a config, before anything is built or written."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from lightkit.cli.ci_report import check_cases, check_page
from lightkit.cli.config_loader import STAGES, options_of
from lightkit.cli.console import configure_console, quiet_libraries
from lightkit.cli.context import RunContext
from lightkit.cli.data_paths import check_known_data
from lightkit.cli.full_validation import open_context
from lightkit.cli.light_imports import import_lightning
from lightkit.cli.supervision import make_plan
from lightkit.config import Problems, split_arguments
from lightkit.errors import ConfigError, LightkitError
from lightkit.runs.ci_report import add_step_summary, write_junit
from lightkit.runs.signals import SignalWatch

if TYPE_CHECKING:
    from lightkit.cli.smoke_check import SmokeReport

__all__ = ["check"]

_HELP = """\
usage: lightkit check [STAGE] -c FILE... [--full | --deep] [--junit FILE] [--key=value]... [key=value]...

Tell everything that is wrong with a config, each mistake with its place, and build and write nothing. Every other
command does the same before it begins. Where lightkit's schema describes every class that the config names, nothing is
imported and the answer comes at once. Other classes, such as your own, are imported, and torch with them: seconds.

  STAGE          the stage that the config is for: fit (the default), validate, test, predict; with --run RUN too
  --full         import all classes and let jsonargparse parse the config, whatever the schema describes
  --deep         also build everything on one CPU and run the first batch of training and of validation (of the stage,
                 where it is another) from the config's data; find metrics that are monitored and never logged; and
                 compare what checkpoints and the batch take with the disk and the memory that are free
  --trust        let checkpoints and weights run code as they load
  --output json  print what a deep check has seen as one JSON object
  --junit FILE   write each mistake as a test case of JUnit, which CI systems read
  --quiet        print mistakes and warnings only

A deep check runs the config's own code, its callbacks included: what that code writes or sends, it writes and sends.
Nothing else is kept: no run folder, no checkpoint, no record of a logger, no download. The values of `accelerator` and
`launch`, progress bars, profilers and plugins are left out, as are callbacks that train by themselves.

Where GITHUB_STEP_SUMMARY is set, the mistakes are added to that file too.
Exit code 0: no mistakes; 2: mistakes.

lightkit check -c configs/flowers.yaml
lightkit check -c configs/flowers.yaml --deep
"""
_MISTAKES = 2


def check(words: list[str]) -> int:
    """Check the config that the words name, and return the exit code.

    Args:
        words: The command line after the command.
    """
    if {"-h", "--help"} & {*words}:
        print(_HELP, end="")
        return 0
    is_deep, is_full = "--deep" in words, "--full" in words
    junit, words = _junit_in([word for word in words if word not in ("--deep", "--full")])
    stage = words.pop(0) if words and words[0] in STAGES else "fit"
    began = time.monotonic()
    found = None
    try:
        session = open_context(stage, words, SignalWatch(), full=is_full)
        _check_session(session, imports=is_deep or is_full or session.needs_imports)
        _tell(session, _check_deeply(session) if is_deep else None)
    except LightkitError as error:
        print(f"error: {error}", file=sys.stderr)
        found = error
    files = _files_in(words)
    add_step_summary(check_page(files, found))
    if junit is not None:
        write_junit(junit, "lightkit check", check_cases(files, found, time.monotonic() - began))
    return 0 if found is None else _MISTAKES


def _junit_in(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Take out the file for JUnit."""
    junit, rest, left = None, [], [*words]
    while left:
        word = left.pop(0)
        option, equals, value = word.partition("=")
        if option != "--junit":
            rest.append(word)
            continue
        junit = value if equals else left.pop(0) if left else ""
        if not junit:
            raise ConfigError("check: --junit: expected a file after it")
    return junit, rest


def _files_in(words: Sequence[str]) -> list[str]:
    """List the config files, also where the words could not all be read."""
    options = options_of("fit")
    return split_arguments(words, options=options, problems=Problems()).files


def _tell(session: RunContext, report: SmokeReport | None) -> None:
    if session.mode == "json":
        fields = {"stage": session.command, "mistakes": []} if report is None else report.fields()
        print(session.resolved.masked(json.dumps(fields)))
    elif session.mode != "quiet":
        lines = [] if report is None else report.lines()
        hint = "; --deep builds everything and runs a batch, too" if report is None else ""
        print(session.resolved.masked("\n".join([*lines, f"no mistakes found{hint}"])))


def _check_session(session: RunContext, *, imports: bool) -> None:
    configure_console(session.mode, session.resolved.masked)
    for notice in session.hardware.notices:
        logging.getLogger("lightkit").warning(notice)
    problems = Problems()
    with problems.noted():
        make_plan(session)
    if not imports:
        with problems.noted():
            check_known_data(session.resolved)
        problems.raise_any()
        return
    # Here, not above: from this import on torch and Lightning are loaded, which takes seconds.
    import_lightning()
    from lightkit.cli.lightning_cli import Checked, LightkitCLI

    quiet_libraries()
    with session.stack, problems.noted(), suppress(Checked):
        LightkitCLI(session=replace(session, only_checks=True))
    problems.raise_any()


def _check_deeply(session: RunContext) -> SmokeReport:
    """Build everything and run one batch of each split."""
    from lightkit.cli.smoke_check import run_smoke_check  # late as above

    try:
        return run_smoke_check(session)
    except LightkitError as error:
        raise error.reworded(session.resolved.masked) from error
