"""`lightkit check`: all that is wrong with a config, before anything is built or written."""

from __future__ import annotations

import json
import logging
import sys
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from lightkit.cli.config_loader import STAGES, options_of
from lightkit.cli.console import configure_console, quiet_libraries
from lightkit.cli.context import RunContext
from lightkit.cli.data_paths import check_known_data
from lightkit.cli.full_validation import open_context
from lightkit.cli.stage_runner import import_lightning
from lightkit.cli.supervision import make_plan
from lightkit.config import Problems, split_arguments
from lightkit.errors import ConfigError, LightkitError
from lightkit.runs.ci_report import add_step_summary, check_cases, check_page, write_junit
from lightkit.runs.signals import SignalWatch

if TYPE_CHECKING:
    from lightkit.cli.smoke_check import SmokeReport

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

    Raises:
        ConfigError: If `--junit` has no file.
    """
    if {"-h", "--help"} & {*words}:
        print(_HELP, end="")
        return 0
    began = time.monotonic()
    left, config_words = list(words), list[str]()
    stage = left.pop(0) if left and left[0] in STAGES else "fit"
    junit, switches = None, set[str]()
    while left:
        option, equals, value = (word := left.pop(0)).partition("=")
        if word in ("--deep", "--full"):
            switches.add(word)
        elif option == "--junit":
            junit = value if equals else left.pop(0) if left else ""
            if not junit:
                raise ConfigError("check: --junit: expected a file after it")
        else:
            config_words.append(word)
    error = None
    try:
        context = open_context(stage, config_words, SignalWatch(), full="--full" in switches)
        _check_config(context, imports=bool(switches) or context.needs_imports)
        report = _run_smoke_check(context) if "--deep" in switches else None
        if context.mode == "json":
            fields = {"stage": context.command, "mistakes": []} if report is None else report.fields()
            print(context.resolved.masked(json.dumps(fields)))
        elif context.mode != "quiet":
            lines = ["no mistakes found; --deep builds everything and runs a batch, too"]
            lines = lines if report is None else [*report.lines(), "no mistakes found"]
            print(context.resolved.masked("\n".join(lines)))
    except LightkitError as raised:
        print(f"error: {raised}", file=sys.stderr)
        error = raised
    files = split_arguments(config_words, options=options_of("fit"), problems=Problems()).files
    add_step_summary(check_page(files, error))
    if junit is not None:
        write_junit(junit, "lightkit check", check_cases(files, error, time.monotonic() - began))
    return 0 if error is None else _MISTAKES


def _check_config(context: RunContext, *, imports: bool) -> None:
    """Check the launch and the data, and with imports let jsonargparse parse the config.

    Raises:
        ConfigError: If there are mistakes in it.
        DataError: If only data is missing.
    """
    configure_console(context.mode, context.resolved.masked)
    for notice in context.hardware.notices:
        logging.getLogger("lightkit").warning(notice)
    problems = Problems()
    with problems.noted():
        make_plan(context)
    if imports:
        import_lightning()
        from lightkit.cli.lightning_cli import Checked, LightkitCLI  # late: torch and Lightning take seconds

        quiet_libraries()
        with context.stack, problems.noted(), suppress(Checked):
            LightkitCLI(context=replace(context, only_checks=True))
    else:
        with problems.noted():
            check_known_data(context.resolved)
    problems.raise_any()


def _run_smoke_check(context: RunContext) -> SmokeReport:
    """Build everything and run one batch of each split."""
    from lightkit.cli.smoke_check import run_smoke_check  # late, as above

    try:
        return run_smoke_check(context)
    except LightkitError as error:
        raise error.reworded(context.resolved.masked) from error
