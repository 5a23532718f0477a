"""`lightkit reproduce`: train a run again, and compare the two. No torch before the training."""

from __future__ import annotations

import json
import logging
import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightkit import runs
from lightkit.cli.command_line import Invocation
from lightkit.cli.command_table import parse
from lightkit.cli.input_digests import compute_inputs
from lightkit.cli.stage_config import StageConfig
from lightkit.cli.stage_runner import open_command_config, run_stage
from lightkit.config import is_layer, shown_path
from lightkit.config.run_root import find_run_root
from lightkit.errors import ConfigError, DataError, format_count
from lightkit.hardware import describe_packages, this_machine
from lightkit.reports.text_table import format_table
from lightkit.runs.files import finite
from lightkit.runs.signals import SignalWatch
from lightkit.version import __version__

_SUFFIX = "-reproduced"
_NOT_COMPARED = {"epoch", "epoch_seconds", "samples_per_s"}
_MAX_ROWS = 20
_log = logging.getLogger("lightkit")


def reproduce(invocation: Invocation) -> int:
    """Train a run again, compare the two, and return the exit code.

    Args:
        invocation: The command line.

    Raises:
        ConfigError: If the arguments are wrong, there is no such run, it is no finished fit, it had
            no seed, or its code, packages or hardware differ from those here.
        DataError: If only its data differs.
    """
    is_json = invocation.has("json")
    is_quiet = invocation.has("quiet")
    is_trusting = invocation.has("trust")
    run = runs.find(invocation.get_run(), find_run_root(invocation.options.get("root")))
    manifest = _read_manifest(run)
    fit = parse(["fit", *_list_fit_args(run, manifest)])
    if is_quiet or is_json:
        fit = fit.with_options(quiet=True)
    if is_trusting:
        fit = fit.with_options(trust=True)
    _drop_variables()
    with SignalWatch() as watch:
        stage_config = open_command_config(fit)
        differences = _list_differences(run, manifest, stage_config)
        _refuse_differences(
            differences, shown_path(run.folder), is_allowed=invocation.has("anyway")
        )
        if (code := run_stage(fit, watch)) != 0:
            return code
    again = runs.list_runs(run.root, f"{run.name}{_SUFFIX}")[0]
    origin = {"parent": str(run.folder), "reproduces": run.id}
    runs.write_json(again.manifest_path, {**(runs.read_json(again.manifest_path) or {}), **origin})
    comparison = compare_runs(run, again, is_trusting=is_trusting)
    if is_json:
        print(json.dumps(finite(comparison), indent=2))
    elif not (is_quiet and comparison["equal"]):
        print(format_comparison(comparison))
    return 0 if comparison["equal"] else 1


def _drop_variables() -> None:
    """Unset the variables that are layers.

    The run's config has the values that they had when it was trained.
    """
    for name in filter(is_layer, [*os.environ]):
        del os.environ[name]


def _refuse_differences(
    differences: Mapping[str, Sequence[str]], where: str, *, is_allowed: bool
) -> None:
    """Refuse to train where not all is as it was, or warn of it.

    Args:
        differences: As from `_list_differences`.
        where: The run.
        is_allowed: Whether `--anyway` was given.

    Raises:
        ConfigError: If code, packages or hardware differ, and that is not allowed.
        DataError: If only the data differs.
    """
    if not differences:
        return
    listing = "\n".join(
        f"  {name:<9} {each}" for name, lines in differences.items() for each in lines
    )
    if not is_allowed:
        raise (DataError if list(differences) == ["data"] else ConfigError)(
            f"reproduce: {where} cannot be reproduced here, because this differs:\n{listing}\n"
            "Put it back as it was, or use --anyway to train nevertheless."
        )
    _log.warning("%s is trained again though not all is as it was:\n%s", where, listing)


def _read_manifest(run: runs.Run) -> dict[str, Any]:
    """Read the manifest of a run that can be repeated.

    Raises:
        ConfigError: If it is no fit, has not ended well, or had no seed.
    """
    manifest = runs.read_json(run.manifest_path)
    summary = runs.read_json(run.summary_path) or {}
    where = shown_path(run.folder)
    if manifest is None or not run.config_path.is_file():
        raise ConfigError(
            f"reproduce: {where} has no {run.manifest_path.name} or no {run.config_path.name}."
        )
    if manifest.get("subcommand") != "fit" or manifest.get("fast_dev_run"):
        raise ConfigError(f"reproduce: {where} is no fit that was trained to its end.")
    if summary.get("status") != "done":
        raise ConfigError(
            f"reproduce: {where} has not ended well (status: {summary.get('status')}), so there is"
            " nothing to compare with; `lightkit fit` goes on with it."
        )
    if manifest.get("seed") is None:
        raise ConfigError(
            f"reproduce: {where} was trained without a seed (seed_everything: false), and nobody"
            " can draw the same numbers again. Set seed_everything to a number for runs that are"
            " to be reproduced."
        )
    return manifest


def _list_fit_args(run: runs.Run, manifest: Mapping[str, Any]) -> list[str]:
    """Build the command line of ``fit`` that repeats a run.

    Raises:
        ConfigError: If the checkpoint that it started from is gone.
    """
    args = ["-c", str(run.config_path), f"--seed_everything={manifest['seed']}"]
    args += [f"--run.name={run.name}{_SUFFIX}", f"--run.root={run.root}", "--run.resume=auto"]
    hardware = manifest.get("hardware") or {}
    if (threads := hardware.get("threads")) and hardware.get("devices") in (None, 1):
        args.append(f"--launch.threads={threads}")  # the order of sums depends on it
    checkpoint = manifest.get("ckpt_path")
    if checkpoint in ("best", "last"):
        checkpoint = str(Path(str(manifest.get("parent")), "checkpoints", f"{checkpoint}.ckpt"))
    return args if checkpoint is None else [*args, f"--ckpt_path={checkpoint}"]


def _list_differences(
    run: runs.Run, manifest: Mapping[str, Any], stage_config: StageConfig
) -> dict[str, list[str]]:
    """List the differences from a run's records.

    Under ``code``, ``packages``, ``data`` and ``hardware``.
    """
    code, data = _list_changed_inputs(run, stage_config)
    differences = {
        "code": [*_list_changed_commits(manifest), *code],
        "packages": _list_changed_packages(manifest),
        "data": data,
        "hardware": _list_changed_hardware(manifest.get("hardware") or {}),
    }
    return {name: lines for name, lines in differences.items() if lines}


def _list_changed_commits(manifest: Mapping[str, Any]) -> list[str]:
    before = _describe_commit(manifest.get("git") or {})
    here = _describe_commit(runs.describe_git() or {})
    return [] if before == here else [f"git commit {before} -> {here}"]


def _describe_commit(git: Mapping[str, Any]) -> str:
    commit = str(git.get("commit") or "none")[:10]
    return f"{commit} with uncommitted files" if git.get("dirty") else commit


def _list_changed_packages(manifest: Mapping[str, Any]) -> list[str]:
    recorded: dict[str, Any] = {name: manifest.get(name) for name in ("lightkit", "python")}
    recorded.update(manifest.get("packages") or {})
    here = {"lightkit": __version__, "python": platform.python_version(), **describe_packages()}
    lines = []
    for name in {**recorded, **here}:
        if recorded.get(name) != here.get(name):
            lines.append(f"{name} {recorded.get(name) or '(none)'} -> {here.get(name) or '(none)'}")
    return lines


def _list_changed_inputs(run: runs.Run, stage_config: StageConfig) -> tuple[list[str], list[str]]:
    """Compare the files of code and data with those that the run was made from.

    Returns:
        The changes of the code, and those of the data.
    """
    before = runs.read_inputs(run.folder)
    if before is None:
        return ["the run has no record of its code and its data"], []
    now = compute_inputs(stage_config, salt=before.salt, asked=before.data is not None)
    code = []
    data = []
    for change in runs.list_changes(before, _select_comparable(now, before)):
        if change.startswith("code: "):
            code.append(change.removeprefix("code: "))
        else:
            data.append(change)
    data.extend(f"the data behind {key} cannot be seen" for key in before.unseen)
    return code, data


def _select_comparable(now: runs.Inputs, before: runs.Inputs) -> runs.Inputs:
    """Return what a run has recorded of its inputs, as it is now."""
    return replace(
        now,
        config=before.config,
        hidden={key: now.hidden.get(key, digest) for key, digest in before.hidden.items()},
        data={key: files for key, files in (now.data or {}).items() if key in (before.data or {})},
        code={file: digest for file, digest in now.code.items() if file in before.code},
    )


def _list_changed_hardware(before: Mapping[str, Any]) -> list[str]:
    here = runs.describe_hardware()
    lines = []
    for name in ("cpu", "cores"):
        if before.get(name) not in (None, here[name]):
            lines.append(f"{name} {before[name]} -> {here[name]}")
    gpus = [gpu.name for gpu in this_machine().gpus or ()]
    missing = [name for name in before.get("gpus") or () if name not in gpus]
    if missing:
        lines.append(f"GPU {', '.join(missing)} -> {', '.join(gpus) or 'none'}")
    return lines


def compare_runs(run: runs.Run, again: runs.Run, *, is_trusting: bool = False) -> dict[str, Any]:
    """Compare metrics.csv, and the weights of last.ckpt and best.ckpt.

    Args:
        run: The first run.
        again: The second.
        is_trusting: Load checkpoints that hold more than tensors and plain values.

    Returns:
        Plain values, NaN among them. `equal`; `data`: the difference of the data, if any;
        `metrics`: each value that differs; `weights`: of each checkpoint the number of tensors, of
            those that differ, and the tensor
        that differs most and by how much: None where its two versions cannot be subtracted.

    Raises:
        ConfigError: If a checkpoint cannot be read.
    """
    from lightkit.callbacks.checkpoint_io import read_checkpoint  # here: it loads torch

    old = _read_epochs(run)
    metrics = _compare_metrics(old, _read_epochs(again))
    weights = []
    with runs.trusting() if is_trusting else nullcontext():
        for name in ("last.ckpt", "best.ckpt"):
            if (run.checkpoints / name).is_file():
                states = [
                    read_checkpoint(each.checkpoints / name)["state_dict"] for each in (run, again)
                ]
                weights.append({"checkpoint": name, **_compare_weights(*states)})
    was = _read_fingerprint(run)
    now = _read_fingerprint(again)
    data = None if was in (None, now) else f"the fingerprint was {was}, is {now}"
    is_equal = not (metrics or data or any(each["num_different"] for each in weights))
    found = {
        "schema": 2,
        "run": str(run.folder),
        "again": str(again.folder),
        "equal": is_equal,
        "epochs": len(old),
    }
    return {**found, "data": data, "metrics": metrics, "weights": weights}


def _read_epochs(run: runs.Run) -> dict[int, dict[str, Any]]:
    """Read the metrics of a run by epoch."""
    return {int(row["epoch"]): row for row in runs.MetricsTable(run.metrics_path).rows}


def _read_fingerprint(run: runs.Run) -> str | None:
    """Read the fingerprint of a run's data; None where it has none."""
    manifest = runs.read_json(run.manifest_path) or {}
    fingerprint: str | None = runs.find_value(manifest, "data", "fingerprint")
    return fingerprint


def _compare_metrics(
    old: Mapping[int, Mapping[str, Any]], new: Mapping[int, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """List the metrics that differ between the epochs of two runs."""
    found = []
    for epoch in sorted({*old, *new}):
        before = old.get(epoch, {})
        again = new.get(epoch, {})
        for name in sorted({*before, *again} - _NOT_COMPARED):
            if str(before.get(name)) != str(again.get(name)):  # as text: NaN equals NaN
                found.append(
                    {
                        "metric": name,
                        "epoch": epoch,
                        "before": before.get(name),
                        "again": again.get(name),
                    }
                )
    return found


def format_comparison(found: Mapping[str, Any]) -> str:
    """Write one line where all is equal, else the differences."""
    before = shown_path(Path(found["run"]))
    again = shown_path(Path(found["again"]))
    if found["equal"]:
        counts = [
            f"{format_count(each['num_tensors'], 'tensor')} of {each['checkpoint']}"
            for each in found["weights"]
        ]
        equal = f"{', '.join(counts)}, bit for bit" if counts else "there are no weights to compare"
        return (
            f"reproduced: {again} equals {before}"
            f" ({format_count(found['epochs'], 'epoch')}; {equal})"
        )
    lines = [f"not reproduced: {again} differs from {before}"]
    if found["data"]:
        lines.append(f"data     {found['data']}")
    lines += _format_metrics(found["metrics"])
    for each in found["weights"]:
        text = (
            f"weights  {each['checkpoint']}: {each['num_different']} of {each['num_tensors']}"
            " tensors differ"
        )
        lines.append(
            f"{text}, {each['tensor']} by up to {each['largest']}"
            if each["num_different"]
            else text
        )
    return "\n".join([*lines, "On a GPU only trainer.deterministic: true promises equal numbers."])


def _format_metrics(metrics: Sequence[Mapping[str, Any]]) -> list[str]:
    """Write the first metrics that differ as a table, and how many more there are."""
    if not metrics:
        return ["metrics  equal"]
    columns = ("metric", "epoch", "before", "again")
    rows = [[str(each[column]) for column in columns] for each in metrics[:_MAX_ROWS]]
    more = len(metrics) - _MAX_ROWS
    return [format_table(columns, rows), *([f"and {more} more"] if more > 0 else [])]


def _compare_weights(before: Mapping[str, Any], again: Mapping[str, Any]) -> dict[str, Any]:
    """Compare two state dicts.

    Those that differ have the largest difference, or None where they have none.
    """
    gaps: dict[str, float | None] = {}
    for key in dict.fromkeys([*before, *again]):
        if not _are_equal(before.get(key), again.get(key)):
            gaps[key] = _measure_gap(before.get(key), again.get(key))
    tensor = max(gaps, key=lambda key: gaps[key] or 0.0, default=None)
    largest = None if tensor is None else gaps[tensor]
    return {
        "num_tensors": len(before),
        "num_different": len(gaps),
        "tensor": tensor,
        "largest": largest,
    }


def _are_equal(one: Any, other: Any) -> bool:
    """Compare two values of state dicts, tensors bit for bit."""
    import torch  # here: it takes seconds

    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return (
            not isinstance(one, torch.Tensor)
            and not isinstance(other, torch.Tensor)
            and bool(one == other)
        )
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    as_bytes = [tensor.flatten().contiguous().view(torch.uint8) for tensor in (one, other)]
    return torch.equal(*as_bytes)


def _measure_gap(one: Any, other: Any) -> float | None:
    """Return the largest difference of two tensors; None where they cannot be subtracted."""
    import torch  # here: it takes seconds

    if not (
        isinstance(one, torch.Tensor)
        and isinstance(other, torch.Tensor)
        and one.shape == other.shape
    ):
        return None
    return float((one.to(torch.complex128) - other.to(torch.complex128)).abs().max())
