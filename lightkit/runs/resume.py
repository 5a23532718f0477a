"""Which run folder a fit writes to, and which checkpoint it starts from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lightkit import runs
from lightkit.config.bounds import NonNegativeFloat, PositiveFloat
from lightkit.errors import ConfigError
from lightkit.runs.index import flatten, read_config


@dataclass
class RunSettings:
    """Where a run's folder is, and whether an interrupted run goes on in its own.

    Args:
        name: Name of the job. `null`: the name of the first config file.
        root: Folder of all runs.
        resume: `auto`: go on in the newest run of this name if it was interrupted and its config is the same;
            `never`: always begin a new run; or a run to go on in with this config: its folder, its id, or `latest`, the
            newest of this name.
        wait_s: Seconds to wait for another process that runs this job, before it ends with exit code 75.
        stale_s: Seconds without a heartbeat after which a process on another host that holds the job counts as dead.
        heartbeat_url: Address of a dead-man switch: it is asked for with `/start` added when the command begins, as it
            is when it ends well, and with `/fail` when it fails.
        report: Whether `fit`, `test` and `retrain` write `report.html` into the run folder at their end.
    """

    name: str | None = None
    root: str = "runs"
    resume: str = "auto"
    wait_s: NonNegativeFloat = 0.0
    stale_s: PositiveFloat = 300.0
    heartbeat_url: str | None = None
    report: bool = True


@dataclass(frozen=True)
class RunStart:
    """How a fit begins.

    Args:
        run: Its folder.
        checkpoint: What to restore before training, if anything.
        parent: Run that the checkpoint is from, where that is another one.
        notice: What to tell the user about the choice.
        is_old: Whether the run was there before.
        passed_over: Checkpoints that are not what was written, each with its fault, so that an older one is restored.
    """

    run: runs.Run
    checkpoint: Path | None = None
    parent: runs.Run | None = None
    notice: str | None = None
    is_old: bool = False
    passed_over: Sequence[tuple[Path, str]] = ()


def choose_start(
    settings: RunSettings,
    *,
    config: Mapping[str, Any],
    ckpt_path: str | None,
    fresh: bool,
    environment: Callable[[str], Mapping[str, str]] | None = None,
    by_rule: Collection[str] = (),
) -> RunStart:
    """Choose the run and the checkpoint of a fit. The caller holds the job's lock.

    Args:
        settings: The config's `run` section, with its name filled in.
        config: The resolved config as it would be saved.
        ckpt_path: Checkpoint that the user names: a path, `last`, `best`, or nothing.
        fresh: Begin a new run unless the user names one, as a `fast_dev_run` does.
        environment: Computes the digests of secrets and values from the environment, salted with the id of a run.
        by_rule: Dotted keys that `auto` has chosen by the hardware: on other hardware the run goes on all the same.

    Raises:
        ConfigError: If the user names something to resume from that is not there.
    """
    assert settings.name is not None
    if settings.resume not in ("auto", "never"):
        start = resume_run(open_named_run(settings.resume, settings.root, settings.name))
        if start.checkpoint is None:
            faults = "".join(f" {path} is not used: {fault}." for path, fault in start.passed_over)
            raise ConfigError(f"run.resume: {start.run.folder} has no checkpoint to resume from.{faults}")
        return start
    found = None if fresh or settings.resume == "never" else runs.newest_interrupted(settings.root, settings.name)
    notice = None
    if found is not None:
        manifest = runs.read_json(found.manifest_path) or {}
        changed = [key for key in compare_configs(read_config(found), config) if key not in by_rule]
        if manifest and manifest.get("ckpt_path") != ckpt_path:
            changed.append("ckpt_path")
        if environment is not None and manifest.get("environment") not in (None, environment(found.id)):
            changed.append("a value from the environment")
        if not changed:
            start = resume_run(found)
            return start if start.checkpoint else replace(start, checkpoint=_new_checkpoint(settings, ckpt_path)[0])
        notice = (
            f"begins a new run: {found.folder} was interrupted, but had another config "
            f"({', '.join(changed[:5])}{', ...' if len(changed) > 5 else ''}); "
            f"--run.resume={found.folder} goes on there with this one"
        )
    checkpoint, parent = _new_checkpoint(settings, ckpt_path)
    return RunStart(runs.create(settings.root, settings.name), checkpoint=checkpoint, parent=parent, notice=notice)


def locate_checkpoint(run: runs.Run, choice: str) -> Path | None:
    """Return the `best` or `last` checkpoint of a run, which a `ModelCheckpoint` of the user's may have named."""
    recorded = ((runs.read_json(run.summary_path) or {}).get("paths") or {}).get(f"{choice}_checkpoint")
    named = run.checkpoints / f"{choice}.ckpt"
    return next((path for path in (named, run.folder / (recorded or named)) if path.exists()), None)


def find_checkpoint(run: runs.Run, choice: str) -> Path:
    """Return the checkpoint of a run that `best`, `last` or a path names; a folder where a strategy writes shards.

    Raises:
        ConfigError: If it is not there, or is not what was written.
    """
    if choice not in ("best", "last"):
        return check_checkpoint_file(choice)
    path = locate_checkpoint(run, choice)
    there = sorted(other.name for other in run.checkpoints.glob("*.ckpt"))
    if path is None:
        raise ConfigError(f"{run.folder} has no {choice} checkpoint; it has {', '.join(there) or 'none at all'}.")
    if (fault := runs.find_fault(path)) is not None:
        raise ConfigError(f"{path} is not what was written: {fault}. Checkpoints there: {', '.join(there)}.")
    return path


def compare_configs(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """List the dotted keys whose values differ, leaving out those that the weights do not depend on."""
    old, new = ({".".join(map(str, path)): value for path, value in flatten(each)} for each in (saved, now))
    return sorted(key for key in {*old, *new} if old.get(key) != new.get(key) and not _is_irrelevant(key))


def _is_irrelevant(key: str) -> bool:
    """Check whether a key decides the begin, the end or a promotion, and not the training itself."""
    section, _, name = key.partition(".")
    if section == "run":
        return name in ("resume", "wait_s", "stale_s", "heartbeat_url", "report")
    return section == "gate" or (section == "watchdog" and name != "on_nonfinite")


def _new_checkpoint(settings: RunSettings, ckpt_path: str | None) -> tuple[Path | None, runs.Run | None]:
    """Find the checkpoint that a new run starts from, and the run that it is from."""
    assert settings.name is not None
    if ckpt_path is None:
        return None, None
    if ckpt_path not in ("best", "last"):
        checkpoint = check_checkpoint_file(ckpt_path)
        folder = checkpoint.resolve().parent.parent
        return checkpoint, runs.open_run(folder) if (folder / "manifest.json").is_file() else None
    parent = next(
        (run for run in runs.list_runs(settings.root, settings.name) if any(run.checkpoints.glob("*.ckpt"))), None
    )
    if parent is None:
        raise ConfigError(f"--ckpt_path {ckpt_path}: no run of {settings.name!r} in {settings.root} has a checkpoint.")
    return find_checkpoint(parent, ckpt_path), parent


def resume_run(run: runs.Run, *, first: str | None = None) -> RunStart:
    """Go on with a run from its newest good checkpoint.

    Args:
        run: The run.
        first: Checkpoint that it began from, which counts until it has one of its own.
    """
    checkpoint, passed_over = runs.choose_good(run.checkpoints)
    whence = f"from {checkpoint.name}" if checkpoint else "from the start, since no checkpoint had been written"
    notice = f"resumes {run.folder} {whence}"
    notice += "".join(f"; {path} is not used: {fault}." for path, fault in passed_over)
    if checkpoint is None and first is not None:
        checkpoint = Path(first)
    return RunStart(replace(run, resumed=True), checkpoint, notice=notice, is_old=True, passed_over=passed_over)


def open_named_run(reference: str, root: Path | str, name: str | None) -> runs.Run:
    """Open the run that `run.resume` names, in the words of `--run`.

    Args:
        reference: The run, as `runs.find` takes it.
        root: Folder of all runs.
        name: Name of the job; all jobs if None.

    Raises:
        ConfigError: If there is none.
    """
    try:
        return runs.find(reference, root, name)
    except ConfigError as error:
        raise ConfigError(f"run.resume: expected auto, never, latest or a run's folder; {error}") from error


_OF_SHARDS = ("meta.pt", "checkpoint")
"""What the folder of a checkpoint has that FSDP or ModelParallel (Lightning 2.6), or DeepSpeed, has written."""


def check_checkpoint_file(path: str) -> Path:
    """Return a file, or a folder of shards, that the user names as a checkpoint.

    Raises:
        ConfigError: If there is none, or it is none.
    """
    file = Path(path)
    if file.is_dir() and any((file / name).exists() for name in _OF_SHARDS):
        if runs.sidecar(file).exists() and (fault := runs.find_fault(file)) is not None:
            raise ConfigError(f"--ckpt_path: {path} is not a valid checkpoint: {fault}.")
        return file
    if not file.is_file():
        raise ConfigError(f"--ckpt_path: {path} is {'a folder' if file.is_dir() else 'not a file'}. {_there(file)}")
    try:
        fault = runs.find_fault(file)
    except OSError as error:
        raise ConfigError(f"--ckpt_path: {path} cannot be read: {error.strerror or error}.") from error
    if fault is not None:
        raise ConfigError(f"--ckpt_path: {path} is not a valid checkpoint: {fault}.")
    return file


def _there(file: Path) -> str:
    """Say which checkpoints there are where a file is not."""
    folder = file if file.is_dir() else file.parent
    found = sorted(str(other.relative_to(folder)) for other in (*folder.glob("*.ckpt"), *folder.glob("checkpoints/*")))
    found = [name for name in found if name.endswith(".ckpt")]
    where = "in it" if file.is_dir() else "beside it"
    return f"Checkpoints {where}: {', '.join(found)}." if found else "Expected best, last or a checkpoint."
