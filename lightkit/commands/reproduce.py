"""`lightkit reproduce`: train a run again, and compare the two. No torch before the training."""

from __future__ import annotations

import json
import logging
import os
import platform
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightkit import runs
from lightkit.cli.command_line import get_run_argument, parse_options
from lightkit.cli.console import configure_console
from lightkit.cli.context import RunContext
from lightkit.cli.stage_runner import open_context, run_stage
from lightkit.cli.up_to_date import compute_inputs
from lightkit.config import PREFIX, RESERVED_VARIABLES, shown_path
from lightkit.errors import ConfigError, DataError
from lightkit.hardware import describe_packages, this_machine
from lightkit.launch.plan import THREADS
from lightkit.runs.files import finite
from lightkit.runs.signals import SignalWatch
from lightkit.version import __version__

HELP = """\
usage: lightkit reproduce RUN [--anyway] [--root DIR] [--json] [--quiet] [--trust]

Train a run again, with its config and its seed, and compare the two: the metrics of each epoch, and the weights of
last.ckpt and best.ckpt, bit for bit. Before that, code (git commit, lightkit, Python files), packages, data and
hardware are compared with the run's records; if any differs, nothing is trained and all differences are listed.

  RUN          a run: its folder, its id, NAME, NAME/ID or latest
  --run RUN    the same
  --anyway     train all the same, with a warning
  --root DIR   folder of the runs; default: runs
  --json       print the result as one JSON object
  --quiet      print nothing but warnings, errors and differences
  --trust      load checkpoints that hold more than tensors and plain values, and so may run code

The new run has a name of its own, NAME-reproduced, so that the job's newest run stays what it was. If this command is
interrupted, the same command goes on. LIGHTKIT_ variables do not count: the run's config has their values.
Exit code 0: equal; 1: it differs, or has crashed; 2: the run cannot be reproduced here, or wrong arguments; 3: only the
data differs, or is missing; 75: interrupted, the same command goes on.

lightkit reproduce flowers/latest
"""
_SUFFIX = "-reproduced"
_log = logging.getLogger("lightkit")


def reproduce(args: list[str]) -> int:
    """Train a run again, compare the two, and return the exit code.

    Args:
        args: The command line after the command.

    Raises:
        ConfigError: If the arguments are wrong, there is no such run, it is no finished fit, it had no seed, or its
            code, packages or hardware differ from those here.
        DataError: If only its data differs.
    """
    line = parse_options(HELP, args, most=1)
    is_json, is_quiet, is_trusting = (option in line.options for option in ("--json", "--quiet", "--trust"))
    run = runs.find(get_run_argument(line), line.options.get("--root", "runs"))
    manifest = _read_manifest(run)
    fit_args = _list_fit_args(run, manifest) + ["--quiet"] * (is_quiet or is_json) + ["--trust"] * is_trusting
    for name in [*os.environ]:
        if name.startswith(PREFIX) and name not in RESERVED_VARIABLES:
            del os.environ[name]  # the run's config has the values that they had when it was trained
    with SignalWatch() as watch:
        context = open_context("fit", fit_args, watch)
        configure_console(context.mode, context.resolved.masked)
        where = shown_path(run.folder)
        if differences := _list_differences(run, manifest, context):
            listing = "\n".join(f"  {name:<9} {each}" for name, lines in differences.items() for each in lines)
            if "--anyway" not in line.options:
                raise (DataError if list(differences) == ["data"] else ConfigError)(
                    f"reproduce: {where} cannot be reproduced here, because this differs:\n{listing}\n"
                    "Put it back as it was, or say --anyway to train all the same."
                )
            _log.warning("%s is trained again though not all is as it was:\n%s", where, listing)
        hardware = manifest.get("hardware") or {}
        if (threads := hardware.get("threads")) and hardware.get("devices") in (None, 1):
            os.environ[THREADS] = str(threads)  # the order of sums depends on it
        if (code := run_stage("fit", fit_args, watch)) != 0:
            return code
    again = runs.list_runs(run.root, f"{run.name}{_SUFFIX}")[0]
    origin = {"parent": str(run.folder), "reproduces": run.id}
    runs.write_json(again.manifest_path, {**(runs.read_json(again.manifest_path) or {}), **origin})

    from lightkit.cli.run_comparison import compare_runs, format_comparison  # here: it loads torch

    comparison = compare_runs(run, again, is_trusting=is_trusting)
    if is_json:
        print(json.dumps(finite(comparison), indent=2))
    elif not (is_quiet and comparison["equal"]):
        print(format_comparison(comparison))
    return 0 if comparison["equal"] else 1


def _read_manifest(run: runs.Run) -> dict[str, Any]:
    """Read the manifest of a run that can be repeated.

    Raises:
        ConfigError: If it is no fit, has not ended well, or had no seed.
    """
    manifest, summary = runs.read_json(run.manifest_path), runs.read_json(run.summary_path) or {}
    where = shown_path(run.folder)
    if manifest is None or not run.config_path.is_file():
        raise ConfigError(f"reproduce: {where} has no {run.manifest_path.name} or no {run.config_path.name}.")
    if manifest.get("subcommand") != "fit" or manifest.get("fast_dev_run"):
        raise ConfigError(f"reproduce: {where} is no fit that was trained to its end.")
    if summary.get("status") != "done":
        raise ConfigError(
            f"reproduce: {where} has not ended well (status: {summary.get('status')}), so there is nothing to compare "
            "with; `lightkit fit` goes on with it."
        )
    if manifest.get("seed") is None:
        raise ConfigError(
            f"reproduce: {where} was trained without a seed (seed_everything: false), and nobody can draw the same "
            "numbers again. Set seed_everything to a number for runs that are to be reproduced."
        )
    return manifest


def _list_fit_args(run: runs.Run, manifest: Mapping[str, Any]) -> list[str]:
    """Build the command line of ``fit`` that repeats a run.

    Raises:
        ConfigError: If the checkpoint that it started from is gone.
    """
    args = ["-c", str(run.config_path), f"--seed_everything={manifest['seed']}"]
    args += [f"--run.name={run.name}{_SUFFIX}", f"--run.root={run.root}", "--run.resume=auto"]
    checkpoint = manifest.get("ckpt_path")
    if checkpoint in ("best", "last"):
        checkpoint = str(Path(str(manifest.get("parent")), "checkpoints", f"{checkpoint}.ckpt"))
    return args if checkpoint is None else [*args, f"--ckpt_path={checkpoint}"]


def _list_differences(run: runs.Run, manifest: Mapping[str, Any], context: RunContext) -> dict[str, list[str]]:
    """List the differences from a run's records, under ``code``, ``packages``, ``data`` and ``hardware``."""
    recorded = {name: manifest.get(name) for name in ("lightkit", "python")} | (manifest.get("packages") or {})
    here = {"lightkit": __version__, "python": platform.python_version(), **describe_packages()}
    commits = [
        f"{str(each.get('commit') or 'none')[:10]}{' with uncommitted files' * bool(each.get('dirty'))}"
        for each in (manifest.get("git") or {}, runs.describe_git() or {})
    ]
    code = [f"git commit {commits[0]} -> {commits[1]}"] if commits[0] != commits[1] else []
    packages = [
        f"{name} {recorded.get(name) or '(none)'} -> {here.get(name) or '(none)'}"
        for name in {**recorded, **here}
        if recorded.get(name) != here.get(name)
    ]
    data = []
    if (before := runs.read_inputs(run.folder)) is None:
        code.append("the run has no record of its code and its data")
    else:
        now = compute_inputs(context, salt=before.salt, asked=before.data is not None)
        known = {file: digest for file, digest in now.code.items() if file in before.code}
        code += [
            change.removeprefix("code: ")
            for change in runs.list_changes(runs.Inputs(code=before.code), runs.Inputs(code=known))
        ]
        places = {key: (now.data or {}).get(key) for key in before.data or ()}
        found = {key: files for key, files in places.items() if files is not None}
        hidden = {key: now.hidden.get(key, digest) for key, digest in before.hidden.items()}
        old, new = replace(before, config={}, code={}), replace(now, config={}, code={}, data=found, hidden=hidden)
        data = [*runs.list_changes(old, new), *(f"the data behind {key} cannot be seen" for key in before.unseen)]
    hardware_before, hardware_here = manifest.get("hardware") or {}, runs.describe_hardware()
    hardware = [
        f"{name} {hardware_before[name]} -> {hardware_here[name]}"
        for name in ("cpu", "cores")
        if hardware_before.get(name) is not None and hardware_before[name] != hardware_here[name]
    ]
    gpus = [gpu.name for gpu in this_machine().gpus or ()]
    if missing := [name for name in hardware_before.get("gpus") or () if name not in gpus]:
        hardware.append(f"GPU {', '.join(missing)} -> {', '.join(gpus) or 'none'}")
    differences = {"code": code, "packages": packages, "data": data, "hardware": hardware}
    return {name: lines for name, lines in differences.items() if lines}
