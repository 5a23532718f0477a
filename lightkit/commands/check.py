"""`lightkit check`: all that is wrong with a config, before anything is built or written."""

from __future__ import annotations

import json
import logging
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightkit.cli.command_line import Invocation
from lightkit.cli.command_table import COMMANDS
from lightkit.cli.console import configure_console, print_error
from lightkit.cli.monitors import list_mode_warnings
from lightkit.cli.row_check import check_rows_data
from lightkit.cli.session import join_ranks
from lightkit.cli.stage_config import StageConfig
from lightkit.cli.stage_runner import make_plan, open_stage_config, parse_config
from lightkit.cli.sweep_check import check_space, read_plan
from lightkit.cli.validation import check_inputs, find_missing_forward, require_export_hooks
from lightkit.config import Origin, Problems, Resolved, error_at
from lightkit.config.schedule import find_long_schedules
from lightkit.errors import ConfigError, LightkitError, OutputLost
from lightkit.export.options import ExportOptions, parse_formats
from lightkit.hardware import Machine, this_machine
from lightkit.hardware.gpus import Gpu
from lightkit.reports.smoke_report import format_smoke_report
from lightkit.runs.ci_report import CiReport, check_cases, check_page
from lightkit.sweep.settings import has_sweep

_MISTAKES = 2
_log = logging.getLogger("lightkit")


def check(invocation: Invocation) -> int:
    """Check the config that the command line names, and return the exit code.

    Args:
        invocation: The command line.
    """
    junit = invocation.options.get("junit")
    with CiReport("lightkit check", None if junit is None else Path(junit), case="check") as report:
        return _check(invocation, report)


def _check(invocation: Invocation, ci_report: CiReport) -> int:
    began_s = time.monotonic()
    if invocation.has("deep"):
        # which huggingface_hub reads when the config's modules import it
        os.environ["HF_HUB_OFFLINE"] = "1"
    error = None
    try:
        _find_mistakes(invocation)
    except OutputLost:  # no mistake of the config
        raise
    except LightkitError as raised:
        print_error(f"error: {raised}")
        error = raised
        if invocation.has("json"):
            print(json.dumps({"stage": _get_stage(invocation), "mistakes": _list_mistakes(raised)}))
    ci_report.add_page(check_page(invocation.files, error))
    ci_report.write(check_cases(invocation.files, error, time.monotonic() - began_s))
    return 0 if error is None else _MISTAKES


def _get_stage(invocation: Invocation) -> str:
    return invocation.inputs[0] if invocation.inputs else "fit"


def _find_mistakes(invocation: Invocation) -> None:
    """Check everything that is asked for, and print that there is no mistake.

    Raises:
        LightkitError: If there is one.
    """
    stage_config = open_stage_config(
        _make_stage_invocation(invocation),
        full=invocation.has("full"),
        machine=_choose_machine(invocation),
    )
    imports = invocation.has("full") or invocation.has("deep") or stage_config.needs_imports
    if stage_config.command == "fit" and has_sweep(stage_config.resolved):
        plan = read_plan(stage_config.resolved)
        check_space(stage_config.invocation, stage_config.resolved, plan, imports=imports)
    export = _read_export_options(invocation)
    _check_config(
        stage_config, imports=imports, plans=not invocation.has("no-hardware"), export=export
    )
    report: dict[str, Any] = {"stage": stage_config.command, "mistakes": []}
    lines = ["no mistakes found; --deep builds everything and runs a batch, too"]
    if invocation.has("deep"):
        # here: torch takes seconds
        from lightkit.cli.smoke_check import run_smoke_check

        try:
            report = run_smoke_check(stage_config)
        except LightkitError as raised:
            raise raised.reworded(stage_config.resolved.masked) from raised
        lines = [*format_smoke_report(report), "no mistakes found"]
    if stage_config.mode != "quiet":
        text = json.dumps(report) if stage_config.mode == "json" else "\n".join(lines)
        print(stage_config.resolved.masked(text))


def _make_stage_invocation(invocation: Invocation) -> Invocation:
    """Return the command line of the stage for which the config is checked.

    Raises:
        ConfigError: If the stage lacks an option that is given, or takes other values of it.
    """
    stage = _get_stage(invocation)
    known = {option.key for option in COMMANDS[stage].options}
    for name, value in invocation.options.items():
        option = COMMANDS["check"].find_option(f"--{name}")
        if name not in known and option is not None and option.is_hidden:
            of_stage = COMMANDS[stage].find_option(f"--{name}")
            if of_stage is not None:
                of_stage.read(str(value))
            raise ConfigError(
                f"check: --{name} is no option of {stage}; name the"
                " stage, as in lightkit check predict"
            )
    return invocation.for_stage(stage, keep=known)


def _choose_machine(invocation: Invocation) -> Machine | None:
    """Return the machine whose hardware the config must fit; None for any."""
    machine = (
        _assume_machine(invocation.options["for"]) if invocation.has("for") else this_machine()
    )
    return None if invocation.has("no-hardware") else machine


def _list_mistakes(error: LightkitError) -> list[dict[str, Any]]:
    """List the errors of a config for JSON: the message, and the first place in a file, if any."""
    mistakes = []
    for each in error.problems if isinstance(error, ConfigError) else (error,):
        place = next(
            (place for place in each.places if isinstance(place, Origin) and place.file), None
        )
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
        raise ConfigError(
            "check: --for: expected gpu=N, such as gpu=2, got"
            f" {text!r}; --no-hardware asks for none"
        )
    here = this_machine()
    gpus = tuple(Gpu(index, "assumed", 0, "", (8, 0)) for index in range(int(count)))
    versions = {**here.versions, "torch": here.versions.get("torch", "").partition("+")[0]}
    return replace(here, gpus=gpus, versions=versions)


def _read_export_options(invocation: Invocation) -> ExportOptions | None:
    """Return the formats of a later export; None where `--export-format` does not name any.

    Raises:
        ConfigError: If there is no such format, or its packages are missing.
    """
    if not invocation.has("export-format"):
        return None
    formats = parse_formats("export-format", invocation.options["export-format"])
    return ExportOptions.parse({"format": ",".join(formats)})


def _check_config(
    stage_config: StageConfig, *, imports: bool, plans: bool, export: ExportOptions | None
) -> None:
    """Check the launch and the data, and with imports let jsonargparse parse the config.

    Args:
        stage_config: Config of the stage.
        imports: Whether the classes are imported.
        plans: Whether the launch is planned for a machine.
        export: Formats of a later export, for which the module must have what they need.

    Raises:
        ConfigError: If there are errors in it.
        DataError: If only data is missing.
    """
    resolved = stage_config.resolved
    trains = stage_config.command == "fit"
    configure_console(stage_config.mode, resolved.masked)
    of_training = list_mode_warnings(resolved) if trains else []
    for notice in (*stage_config.hardware.notices, *of_training):
        logging.getLogger("lightkit").warning(notice)
    problems = Problems()
    with problems.noted():
        if plans:
            make_plan(stage_config)
    is_parsed = False
    with problems.noted():
        if imports:
            ranks = join_ranks(stage_config.command, stage_config.run_root)
            parse_config(stage_config, ranks)
        else:
            _check_without_imports(resolved, trains=trains, ckpt_path=stage_config.ckpt_path)
        is_parsed = True
    with problems.noted():
        if is_parsed and trains:
            check_rows_data(resolved)
    if is_parsed:  # else the class of the model may not be there
        with problems.noted():
            _check_later_use(resolved, promotes=imports and trains, export=export)
    problems.raise_any()


def _check_without_imports(resolved: Resolved, *, trains: bool, ckpt_path: str | None) -> None:
    """Check the inputs, and warn of schedules that outlast the training.

    Raises:
        ConfigError: If an input is missing.
    """
    if trains:
        for text, path in find_long_schedules(resolved):
            _log.warning(str(error_at(text, resolved.origin_of(path))))
    check_inputs(resolved, starts_training=trains and ckpt_path is None)


def _check_later_use(resolved: Resolved, *, promotes: bool, export: ExportOptions | None) -> None:
    """Check that the class of the model has what an export needs.

    Args:
        resolved: The config.
        promotes: Whether to warn where the class lacks what a promotion by its gate needs.
        export: Formats of the export.

    Raises:
        ConfigError: If the class cannot be imported, or lacks what an export needs.
    """
    if promotes and resolved.section("gate").get("metric") is not None:
        missing = find_missing_forward(resolved, is_registered=True)
        if missing is not None:  # `fit` and `gate` work without it
            _log.warning(str(missing))
    if export is not None:
        require_export_hooks(resolved, export.module_formats, option="export-format")
