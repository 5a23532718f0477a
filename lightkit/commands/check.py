"""`lightkit check`: all that is wrong with a config, before anything is built or written."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightkit.cli.config_loader import STAGES, Takes, options_of
from lightkit.cli.console import configure_console
from lightkit.cli.context import RunContext
from lightkit.cli.monitors import list_mode_warnings
from lightkit.cli.stage_runner import make_plan, open_context, parse_config
from lightkit.cli.validation import check_inputs, require_forward
from lightkit.config import Arguments, Origin, Problems, error_at, split_arguments
from lightkit.config.schedule import find_long_schedules
from lightkit.errors import ConfigError, LightkitError
from lightkit.hardware import Machine, this_machine
from lightkit.hardware.gpus import Gpu
from lightkit.runs.ci_report import CiReport, check_cases, check_page
from lightkit.runs.signals import SignalWatch

HELP = """\
usage: lightkit check [STAGE] -c FILE... [--full | --deep] [--no-hardware | --for gpu=N] [--key=value]... [key=value]...

List all errors of a config, each with its place; build and write nothing. Every other
command does the same before it begins. Where lightkit's schema describes every class that the config names, nothing is
imported and the answer comes at once. Other classes, such as your own, are imported, and torch with them: seconds.

  STAGE          the stage that the config is for: fit (the default), validate, test, predict
  --run RUN      the config of a run, in the place of files
  --full         import all classes and let jsonargparse parse the config too
  --deep         also build everything on one CPU and run the first batch of training, validation and test (of the
                 stage, where it is another) from the config's data; find metrics that are monitored, or judged by the
                 gate, and never logged; say the smallest drop that the gate's samples can show; and compare what
                 checkpoints and the batch take with the disk and the memory that are free
  --no-hardware  do not ask whether this machine has the devices of the config
  --for gpu=N    check for a machine with N GPUs in place of this one
  --trust        let checkpoints and weights run code as they load
  --output json  print one JSON object: the errors with their places, and the findings of a deep check
  --junit FILE   write each error as a test case of JUnit, which CI systems read
  --quiet        print errors and warnings only

A deep check runs the config's own code, its callbacks included: what that code writes or sends, it writes and sends.
Nothing else is kept: no run folder, no checkpoint (one is written to the temporary folder, to measure it), no record of
a logger, no download. The values of `accelerator` and `launch`, progress bars, profilers and plugins are left out, as
are callbacks that train by themselves.

Where GITHUB_STEP_SUMMARY is set, the errors are added to that file too.
Exit code 0: no errors; 2: errors.

lightkit check -c configs/flowers.yaml
lightkit check -c configs/flowers.yaml --deep
"""
_OPTIONS: Mapping[str, Takes] = {
    "full": "switch",
    "deep": "switch",
    "no-hardware": "switch",
    "for": "value",
    "junit": "value",
}
_MISTAKES = 2
_log = logging.getLogger("lightkit")


def check(args: list[str]) -> int:
    """Check the config that the arguments name, and return the exit code.

    Args:
        args: The command line after the command.
    """
    stage, args = (args[0], args[1:]) if args[:1] and args[0] in STAGES else ("fit", args)
    options = {**options_of(stage), **_OPTIONS}
    arguments = split_arguments(args, options=options, problems=Problems())
    junit = arguments.options.get("junit")
    with CiReport("lightkit check", None if junit is None else Path(str(junit)), case="check") as report:
        return _check(stage, args, options, arguments, report)


def _check(stage: str, args: list[str], options: Mapping[str, Takes], arguments: Arguments, ci_report: CiReport) -> int:
    began = time.monotonic()
    files, own = arguments.files, arguments.options
    if "deep" in own:
        os.environ["HF_HUB_OFFLINE"] = "1"  # which huggingface_hub reads when the config's modules import it
    error = None
    try:
        machine: Machine | None = _assume_machine(str(own["for"])) if "for" in own else this_machine()
        machine = None if "no-hardware" in own else machine
        context = open_context(stage, args, SignalWatch(), options=options, full="full" in own, machine=machine)
        imports = "full" in own or "deep" in own or context.needs_imports
        _check_config(context, imports=imports, plans=machine is not None)
        report: dict[str, Any] = {"stage": context.command, "mistakes": []}
        lines = ["no mistakes found; --deep builds everything and runs a batch, too"]
        if "deep" in own:
            from lightkit.cli.smoke_check import format_smoke_report, run_smoke_check  # here: torch takes seconds

            try:
                report = run_smoke_check(context)
            except LightkitError as raised:
                raise raised.reworded(context.resolved.masked) from raised
            lines = [*format_smoke_report(report), "no mistakes found"]
        if context.mode != "quiet":
            print(context.resolved.masked(json.dumps(report) if context.mode == "json" else "\n".join(lines)))
    except LightkitError as raised:
        print(f"error: {raised}", file=sys.stderr)
        error = raised
        if own.get("output") == "json":
            print(json.dumps({"stage": stage, "mistakes": _list_mistakes(raised)}))
    ci_report.add_page(check_page(files, error))
    ci_report.write(check_cases(files, error, time.monotonic() - began))
    return 0 if error is None else _MISTAKES


def _list_mistakes(error: LightkitError) -> list[dict[str, Any]]:
    """List the errors of a config for JSON: the message, and the first place in a file, if there is one."""
    mistakes = []
    for each in error.problems if isinstance(error, ConfigError) else (error,):
        place = next((place for place in each.places if isinstance(place, Origin) and place.file), None)
        where = {key: None if place is None else getattr(place, key) for key in ("line", "column")}
        file = None if place is None else str(place.file)
        mistakes.append({"message": str(each), "exit_code": each.exit_code, "file": file, **where})
    return mistakes


def _assume_machine(text: str) -> Machine:
    """Describe a machine like this one with another number of GPUs.

    Raises:
        ConfigError: If the text is not ``gpu=N``.
    """
    kind, _, count = text.partition("=")
    if kind != "gpu" or not count.isdecimal():
        raise ConfigError(f"check: --for: expected gpu=N, such as gpu=2, got {text!r}; --no-hardware asks for none")
    here = this_machine()
    gpus = tuple(Gpu(index, "assumed", 0, "", (8, 0)) for index in range(int(count)))
    versions = {**here.versions, "torch": here.versions.get("torch", "").partition("+")[0]}
    return replace(here, gpus=gpus, versions=versions)


def _check_config(context: RunContext, *, imports: bool, plans: bool) -> None:
    """Check the launch and the data, and with imports let jsonargparse parse the config.

    Raises:
        ConfigError: If there are errors in it.
        DataError: If only data is missing.
    """
    configure_console(context.mode, context.resolved.masked)
    of_training = list_mode_warnings(context.resolved) if context.command == "fit" else []
    for notice in (*context.hardware.notices, *of_training):
        logging.getLogger("lightkit").warning(notice)
    problems = Problems()
    with problems.noted():
        if plans:
            make_plan(context)
    with problems.noted():
        if imports:
            parse_config(context)
            if context.command == "fit" and context.resolved.section("gate").get("metric") is not None:
                require_forward(context.resolved)
        else:
            if context.command == "fit":
                for text, path in find_long_schedules(context.resolved):
                    _log.warning(str(error_at(text, context.resolved.origin_of(path))))
            check_inputs(context.resolved, starts_training=context.command == "fit" and context.ckpt_path is None)
    problems.raise_any()
