"""``lightkit fit --if-changed``: whether a training would only repeat the last one. No torch."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from lightkit import runs
from lightkit.cli.console import print_line
from lightkit.cli.context import RunContext
from lightkit.config import KeyPath, Resolved, dotted, read_scalar, shown_path
from lightkit.config.display import RedactedConfig, iterate_leaves
from lightkit.config.schema import load_schema
from lightkit.config.tree import plain
from lightkit.errors import ConfigError
from lightkit.hardware import describe_packages
from lightkit.images.flower_photos import flower_photos
from lightkit.images.verdicts import compute_file_digests
from lightkit.runs import Inputs, Run, git_output
from lightkit.runs.index import promoted_aliases
from lightkit.version import __version__

__all__ = [
    "NOTHING_TO_DO",
    "check_options",
    "check_up_to_date",
    "compute_code_digests",
    "compute_input_digests",
    "describe_unseen_data",
    "hidden_values",
    "record_inputs",
    "warn_unchecked_rank",
]

NOTHING_TO_DO = 6
_log = logging.getLogger("lightkit")


def check_options(context: RunContext) -> None:
    """Refuse ``--unchanged-ok`` where nobody asks whether anything has changed.

    Raises:
        ConfigError: Then.
    """
    if "unchanged-ok" in context.options and "if-changed" not in context.options:
        raise ConfigError("--unchanged-ok: says something only together with --if-changed; add that, or leave it out")


def check_up_to_date(context: RunContext) -> int | None:
    """Compare config, data and code with those of the last successful fit of the job, if the user wants that.

    The config counts as it was said: all but the `run` section, the patience of the watchdog and of the launch. Of the
    data the content of files counts, of the code the Python files of the working directory, and versions. Nothing is
    locked: what was equal when it was looked at is told; what is not meets the job's lock when it trains.

    Args:
        context: The invocation. Where it is to train, what was found is left with it, for the run's records.

    Returns:
        The exit code where nothing has changed; None where it is to train, which is told with the reason.

    Raises:
        DataError: If LIGHTKIT_DATA names a folder without the photos that it should hold.
    """
    if context.command != "fit" or context.passthrough or context.print_config is not None:
        return None
    check_options(context)
    if "if-changed" not in context.options:
        return None
    run, reason = _last_fit(context)
    if run is None:
        context.tell(f"trains: {reason}")
        return None
    promoted = [each for each in runs.list_runs(run.root, run.name) if each != run and promoted_aliases(each)]
    reasons = []
    for each in (run, *promoted):  # after an experiment that was rejected, the champion's inputs are no news
        now = compute_input_digests(context, salt=each.id, asked=True)
        if (found := _reason(context, each, runs.read_inputs(each.folder), now)) is None:
            _tell_unchanged(context, each, now)
            return 0 if context.options.get("unchanged-ok") else NOTHING_TO_DO
        context.began_with = context.began_with or now
        reasons.append(found)
    context.tell(f"trains: {reasons[0]}")
    return None


def warn_unchecked_rank(context: RunContext) -> None:
    """Say that a rank which another launcher has started trains whatever ``--if-changed`` asks: it cannot decide alone.

    Raises:
        ConfigError: If ``--unchanged-ok`` stands alone.
    """
    check_options(context)
    if "if-changed" in context.options and context.rank_context is not None and context.rank_context.rank.rank == 0:
        _log.warning(
            "--if-changed has no effect in a rank that %s has started; ask before that, or let lightkit start the "
            "ranks (launch.processes)",
            context.rank_context.rank.engine,
        )


def _last_fit(context: RunContext) -> tuple[runs.Run | None, str]:
    """Find the newest fit of the job, if it has ended well; else say why there is nothing to compare with."""
    section: dict[str, Any] = context.resolved.values.get("run") or {}
    trainer = context.resolved.values.get("trainer") or {}
    if _scalar(trainer.get("fast_dev_run")):
        return None, "a fast_dev_run always does"
    if (resume := _scalar(section.get("resume"))) not in (None, "auto", "never"):
        return None, f"run.resume names {resume}"
    root, name = str(section.get("root") or "runs"), str(section.get("name") or context.default_name)
    for run in runs.list_runs(root, name):
        manifest, summary = runs.read_json(run.manifest_path), runs.read_json(run.summary_path) or {}
        if manifest is None and not any(run.checkpoints.glob("*.ckpt")):
            continue  # killed before it had begun
        if manifest is not None and (manifest.get("subcommand") != "fit" or manifest.get("fast_dev_run")):
            continue
        if summary.get("status") != "done" or summary.get("exit_code") != 0:
            return None, f"{shown_path(run.folder)}, the last run of {name!r}, has not ended well"
        if stopped_by := summary.get("stopped_by"):
            return None, f"{shown_path(run.folder)}, the last run of {name!r}, was cut short by its {stopped_by}"
        if gone := _gone(run, summary):
            return None, f"{shown_path(run.folder)} has lost its {gone}"
        return run, ""
    return None, f"there is no earlier run of {name!r} in {root}"


def _gone(run: runs.Run, summary: dict[str, Any]) -> str | None:
    """Name a checkpoint that a run has written and that is not there any more."""
    paths: dict[str, str] = summary.get("paths") or {}
    promised = [paths[name] for name in ("best_checkpoint", "last_checkpoint") if paths.get(name)]
    return next((path for path in promised if not Path(run.folder, path).exists()), None)


def _reason(context: RunContext, run: runs.Run, before: runs.Inputs | None, now: runs.Inputs) -> str | None:
    """Say why a training would not only repeat that run; None where it would."""
    where = shown_path(run.folder)
    if before is None:
        return f"{where} has not recorded what it was made from; from this run on it is"
    if before.mixed:
        return f"{where} was interrupted and went on with other inputs, so that nothing equals what it was made from"
    if before.data is None:
        return f"{where} has not recorded its data, for there is much of it and nobody had asked; this run does"
    if changes := runs.changes_between(before, now):
        return f"changed since {where}: {runs.join_changes(changes)}"
    hidden = describe_unseen_data(context, now)
    return None if hidden is None else f"--if-changed {hidden}"


def _tell_unchanged(context: RunContext, run: runs.Run, now: runs.Inputs) -> None:
    where = shown_path(run.folder)
    if context.mode == "json":
        described = {"files": now.num_files, "size_bytes": now.size_bytes}
        line = runs.event_line("unchanged", run=f"{run.name}/{run.id}", folder=str(run.folder), data=described)
        sys.stdout.write(line)
        sys.stdout.flush()
    print_line(f"nothing has changed since {where} ({now.description})", context.mode)


def _scalar(value: Any) -> Any:
    return read_scalar(value) if isinstance(value, str) else value


# They say where and when a job runs and how patiently it is watched, not what it trains.
_NOT_COMPARED = ("run", "watchdog.factor", "watchdog.floor_s", "launch.timeout_s", "launch.stall_timeout_s")
_PACKAGE = Path(__file__).parents[1]
_CHEAP_BYTES = 1_000_000_000
_CHEAP_FILES = 20_000
_COMMIT = re.compile(r"(\d{20})(\.json|\.checkpoint.*\.parquet)")
_ADDRESS = re.compile(r"(?!file:)[A-Za-z][\w+.-]*://")


def compute_input_digests(context: RunContext, *, salt: str, asked: bool) -> Inputs:
    """Compute the digests of what this fit would be made from.

    Files that have not changed since they were last read are not read again. Where nobody asks for it with
    ``--if-changed``, data of more than a gigabyte or 20,000 files is left out.

    Args:
        context: The invocation.
        salt: Goes into the digests of values that must not be seen.
        asked: Whether the data counts however much it is.

    Raises:
        DataError: If LIGHTKIT_DATA names a folder without the photos that it should hold.
    """
    resolved, texts = context.resolved, _data_texts(context)
    is_own = _lightkit_class(resolved) is not None  # only `lightkit fetch` uses its http addresses
    addresses = [key for key, text in texts.items() if _ADDRESS.match(text)]
    inputs = Inputs(
        config=_config_of(context),
        hidden=hidden_values(resolved, salt),
        unseen=tuple(key for key in addresses if not (is_own and texts[key].startswith("http"))),
        code=compute_code_digests(resolved),
        versions=_versions(),
        salt=salt,
    )
    places = {key: path for key, text in texts.items() if (path := _existing(text)) is not None}
    files = ((key, *file) for key, path in places.items() for file in _files_of(path, _run_root(resolved)))
    listed = list(islice(files, None if asked else _CHEAP_FILES + 1))
    if not asked and (len(listed) > _CHEAP_FILES or sum(_size_of(path) for _, _, path in listed) > _CHEAP_BYTES):
        return inputs
    digests: dict[str, dict[str, str]] = {key: {} for key in places}
    size_bytes = 0
    for (key, name, _), found in zip(listed, compute_file_digests(path for _, _, path in listed), strict=True):
        digests[key][_printable(name)] = found.digest[:32]
        size_bytes += found.size_bytes
    return replace(inputs, data=digests, num_files=len(listed), size_bytes=size_bytes)


def describe_unseen_data(context: RunContext, inputs: Inputs) -> str | None:
    """Say which data can change without a trace in the digests, and what to do; None where there is none."""
    if inputs.unseen:
        return f"cannot see what is behind {', '.join(inputs.unseen)}; name local files or folders there"
    data = context.resolved.values.get("data")
    if not data or _lightkit_class(context.resolved) or any(key.startswith("data") for key in inputs.data or ()):
        return None
    return "cannot see what the data module reads; name the file or folder as an argument of the data module"


def compute_code_digests(resolved: Resolved) -> dict[str, str]:
    """Compute the digests of the Python files of the working directory, by their paths in it.

    Within a git work tree they are the files that git knows or would add; else all but those in hidden folders, virtual
    environments and the folder of runs.
    """
    listed = git_output(None, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "*.py") or ""
    names = sorted({name for name in listed.split("\0") if Path(name).is_file()})
    names = names or [name for name, _ in _walk(os.curdir, _run_root(resolved)) if name.endswith(".py")]
    return {_printable(name): found.digest for name, found in zip(names, compute_file_digests(names), strict=True)}


def hidden_values(resolved: Resolved, salt: str) -> dict[str, str]:
    """Give salted digests of the values that came from the environment, or hold a secret in another way."""
    found = {}
    for path, node in iterate_leaves(resolved.tree, ()):
        value = json.dumps(plain(node), default=str, ensure_ascii=False)
        is_hidden = resolved.masked(value) != value or _is_from_environment(resolved, path)
        if is_hidden and not _is_left_out(path):
            found[dotted(path)] = hashlib.sha256(json.dumps([salt, value]).encode()).hexdigest()[:32]
    return found


def record_inputs(context: RunContext, run: Run, previous: Mapping[str, Any] | None) -> dict[str, Any]:
    """Write down what a fit begins with, and give what its manifest says of that.

    A run that goes on after an interruption keeps what it had begun with; where that has changed, it is made from a
    mixture, which equals nothing.

    Args:
        context: The invocation.
        run: Its run.
        previous: The run's manifest so far, where this process resumes it.
    """
    asked = "if-changed" in context.options
    inputs = context.began_with or compute_input_digests(context, salt=run.id, asked=asked)
    inputs = replace(inputs, salt=run.id, hidden=hidden_values(context.resolved, run.id))
    before = (previous or {}).get("inputs")
    if previous is not None and (before is None or before != inputs.digests):
        inputs = replace(inputs, mixed=True)
    inputs.write(run.folder)
    return inputs.digests


def _config_of(context: RunContext) -> dict[str, Any]:
    """Give the values as they were said, by dotted key, fit to be shown."""
    resolved = context.resolved
    presented = RedactedConfig(resolved)
    said = {
        # what the hardware has chosen is no change of the config on other hardware
        dotted(path): "auto" if dotted(path) in context.hardware.chosen else _plain(presented.value(node, path))
        for path, node in iterate_leaves(resolved.tree, ())
        if not _is_left_out(path)
    }
    return said if context.ckpt_path is None else {**said, "ckpt_path": resolved.masked(context.ckpt_path)}


def _is_left_out(path: KeyPath) -> bool:
    key = dotted(path)
    return any(key == name or key.startswith(f"{name}.") for name in (*_NOT_COMPARED, "ckpt_path"))


def _is_from_environment(resolved: Resolved, path: KeyPath) -> bool:
    """Tell whether a value, what it is part of, or a part of it came from there."""
    return any(path[: len(other)] == other[: len(path)] for other in resolved.references)


def _plain(value: Any) -> Any:
    """Give a value as JSON gives it back."""
    if isinstance(value, Mapping):
        return {str(key): _plain(child) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(child) for child in value]
    if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)


def _versions() -> dict[str, str]:
    sources = sorted(str(file) for file in _PACKAGE.rglob("*.py"))
    content = "".join(found.digest for found in compute_file_digests(sources))
    version = f"{__version__} ({hashlib.sha256(content.encode()).hexdigest()[:12]})"
    return {"lightkit": version, "python": platform.python_version(), **describe_packages()}


def _lightkit_class(resolved: Resolved) -> str | None:
    """Give the path of the data module's class if it is one of lightkit's."""
    data = resolved.values.get("data")
    named = data.get("class_path") if isinstance(data, dict) else None
    catalogue = load_schema()
    path = catalogue.path_of(str(named), catalogue.data["bases"]["data"])
    return path if path is not None and path.startswith("lightkit.") else None


def _data_texts(context: RunContext) -> dict[str, str]:
    """Give the texts that may name data by their dotted keys, those of lightkit's default arguments included."""
    data, path = context.resolved.values.get("data"), _lightkit_class(context.resolved)
    texts = dict(_texts("ckpt_path", context.ckpt_path))
    if path is not None:
        arguments = load_schema().classes[path]["arguments"]
        texts |= _texts("data.init_args", {name: argument.get("default") for name, argument in arguments.items()})
    texts |= _texts("data", data)
    if path == "lightkit.data.Flowers" and "data.init_args.root" not in texts:
        texts["data.init_args.root"] = str(flower_photos() or "")
    return texts


def _texts(key: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, (Mapping, list, tuple)):
        for name, child in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _texts(f"{key}.{name}", child)


def _existing(text: str) -> Path | None:
    try:
        path = Path(text.removeprefix("file://")).expanduser()
        return path if text.strip() and path.exists() else None
    except (OSError, ValueError, RuntimeError):  # too long for a name, with a null in it, or of an unknown user
        return None


def _size_of(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116 (pathlib would make an object of each of very many)
    except OSError:
        return 0


def _files_of(path: Path, run_root: Path) -> Iterable[tuple[str, str]]:
    """List the files of a folder, the newest commit of a Delta table, or a file: the name within, and the path."""
    if not path.is_dir():
        return [(path.name, str(path))]
    if (log := path / "_delta_log").is_dir():  # each state of the table has a new commit, and its files never change
        names = (entry.name for entry in log.iterdir() if _COMMIT.fullmatch(entry.name))
        newest = max(names, key=lambda name: (name[:20], name.endswith(".json")), default=None)
        return [] if newest is None else [(f"_delta_log/{newest}", str(log / newest))]
    return _walk(str(path), run_root)


def _walk(top: str, run_root: Path) -> Iterator[tuple[str, str]]:
    """List the visible files below a folder in the order of their names, also where links lead, but not in a circle."""
    waiting: list[tuple[str, str, tuple[tuple[int, int], ...]]] = [(top, "", ())]
    while waiting:
        folder, prefix, above = waiting.pop()
        status = os.stat(folder)  # noqa: PTH116
        this = (status.st_dev, status.st_ino)
        if this in above or Path(folder).absolute() == run_root:  # what is written there is no data
            continue
        try:
            with os.scandir(folder) as entries:
                visible = sorted((e.name, e.is_dir()) for e in entries if e.name[0] != "." and e.name != "__pycache__")
        except OSError:  # reading the data reports it
            continue
        if ("pyvenv.cfg", False) in visible:  # a virtual environment
            continue
        for name, is_folder in visible:
            path = os.path.join(folder, name)  # noqa: PTH118
            if is_folder:
                waiting.append((path, f"{prefix}{name}/", (*above, this)))
            else:
                yield f"{prefix}{name}", path


def _run_root(resolved: Resolved) -> Path:
    return Path(str((resolved.values.get("run") or {}).get("root") or "runs")).absolute()


def _printable(name: str) -> str:
    return name.encode("utf-8", "backslashreplace").decode()
