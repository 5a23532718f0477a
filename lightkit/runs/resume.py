"""Which run folder a fit writes to, and which checkpoint it starts from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lightkit import runs
from lightkit.config.bounds import NonNegativeFloat, PositiveFloat
from lightkit.config.display import format_inline
from lightkit.config.identity import is_in_identity, select_identity
from lightkit.config.resolved import DEFAULT_ROOT
from lightkit.errors import ConfigError
from lightkit.runs.index import flatten, read_config

_MOST_SHOWN = 5
"""Keys of a config that a notice names at most."""
_LONGEST_VALUE = 40


@dataclass
class RunSettings:
    """Where a run's folder is, and whether an interrupted run goes on in its own.

    Args:
        name: Name of the job. `null`: the name of the first config file.
        root: Folder of all runs.
        resume: `auto`: go on in the newest run of this name if it was interrupted and its config is
            the same; `never`: always begin a new run; or a run to go on in with this config: its
            folder, its id, or `latest`, the newest of this name.
        wait_s: Seconds to wait for another process that runs this job, before it ends with exit
            code 75.
        stale_s: Seconds without a heartbeat after which a process on another host that holds the
            job counts as dead.
        heartbeat_url: Address of a monitor such as healthchecks.io: it is requested with `/start`
            added when the command begins, as it is when it ends well, and with `/fail` when it
            fails.
        report: Whether `fit`, `test` and `retrain` write `report.html` into the run folder at their
            end.
    """

    name: str | None = None
    root: str = DEFAULT_ROOT
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
        passed_over: Checkpoints that are not what was written, each with its fault, so that an
            older one is restored.
    """

    run: runs.Run
    checkpoint: Path | None = None
    parent: runs.Run | None = None
    notice: str | None = None
    is_old: bool = False
    passed_over: Sequence[tuple[Path, str]] = ()


def _resume_named(run: runs.Run) -> RunStart:
    """Resume a run that the config names.

    Raises:
        ConfigError: If it has no checkpoint.
    """
    start = resume_run(run)
    if start.checkpoint is None:
        faults = "".join(f" {path} is not used: {fault}." for path, fault in start.passed_over)
        raise ConfigError(
            f"run.resume: {start.run.folder} has no checkpoint to resume from.{faults}"
        )
    return start


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
        environment: Computes the digests of secrets and values from the environment, salted with
            the id of a run.
        by_rule: Dotted keys that `auto` has chosen by the hardware: on other hardware the run goes
            on all the same.

    Raises:
        ConfigError: If the user names something to resume from that is not there.
    """
    assert settings.name is not None
    if settings.resume not in ("auto", "never"):
        named = open_named_run(settings.resume, settings.root, settings.name)
        start = _resume_named(named)
        other = _describe_values(named, config, lambda key: key not in by_rule)
        return _add_notice(start, "with this config", other)
    found = (
        None
        if fresh or settings.resume == "never"
        else runs.newest_interrupted(settings.root, settings.name)
    )
    notice = None
    if found is not None:
        changed = _list_changes(
            found, config=config, ckpt_path=ckpt_path, environment=environment, by_rule=by_rule
        )
        if not changed:
            other = _describe_values(found, config, lambda key: key in by_rule)
            start = _add_notice(resume_run(found), "auto chooses otherwise on this machine", other)
            return (
                start
                if start.checkpoint
                else replace(start, checkpoint=_new_checkpoint(settings, ckpt_path)[0])
            )
        notice = _describe_changes(found, changed)
    checkpoint, parent = _new_checkpoint(settings, ckpt_path)
    return RunStart(
        runs.create(settings.root, settings.name),
        checkpoint=checkpoint,
        parent=parent,
        notice=notice,
    )


def _describe_changes(run: runs.Run, changed: Sequence[str]) -> str:
    shown = changed[:_MOST_SHOWN]
    keys = ", ".join([*shown, *(["..."] if len(changed) > _MOST_SHOWN else [])])
    return (
        f"begins a new run: {run.folder} was interrupted, but had another config ({keys}); "
        f"--run.resume={run.folder} goes on there with this one"
    )


def _add_notice(start: RunStart, what: str, values: str) -> RunStart:
    """Add the values of the config that differ to the notice of a start, if there are any."""
    return replace(start, notice=f"{start.notice}; {what}: {values}") if values else start


def _describe_values(
    run: runs.Run, config: Mapping[str, Any], is_described: Callable[[str], bool]
) -> str:
    """Write the values of the identity that differ from those of the run's config.

    Args:
        run: The run; nothing can be said where its config cannot be read.
        config: The resolved config as it would be saved.
        is_described: Whether a dotted key is written.

    Returns:
        Each key with its value, and the run's; of more than five the first ones. Empty if no value
        differs.
    """
    saved = read_config(run)
    if not saved:
        return ""
    before = _flatten(saved)
    now = _flatten(config)
    keys = [key for key in compare_configs(saved, config) if is_described(key)]
    shown = [
        f"{key} {_write_value(now.get(key))} (was {_write_value(before.get(key))})"
        for key in keys[:_MOST_SHOWN]
    ]
    return ", ".join([*shown, *(["..."] if len(keys) > _MOST_SHOWN else [])])


def _write_value(value: Any) -> str:
    return format_inline(value, longest=_LONGEST_VALUE)


def _list_changes(
    run: runs.Run,
    *,
    config: Mapping[str, Any],
    ckpt_path: str | None,
    environment: Callable[[str], Mapping[str, str]] | None,
    by_rule: Collection[str],
) -> list[str]:
    """List what gives another model than the training of an interrupted run.

    The arguments are as in `choose_start`.
    """
    saved = read_config(run)
    changed = [key for key in compare_configs(saved, config) if key not in by_rule]
    manifest = runs.read_json(run.manifest_path) or {}
    if manifest and manifest.get("ckpt_path") != ckpt_path:
        changed.append("ckpt_path")

    recorded = manifest.get("environment")
    if environment is None or recorded is None:
        return changed
    if _select_digests(recorded, _flatten(saved)) != environment(run.id):
        changed.append("a value from the environment")
    return changed


def _select_digests(recorded: Mapping[str, str], values: Mapping[str, Any]) -> dict[str, str]:
    """Select the digests of the identity; a run of an earlier version has others, too."""
    return {key: digest for key, digest in recorded.items() if is_in_identity(key, values)}


def locate_checkpoint(run: runs.Run, choice: str) -> Path | None:
    """Return the `best` or `last` checkpoint of a run.

    A `ModelCheckpoint` of the user's may have named it.
    """
    recorded = runs.find_value(runs.read_json(run.summary_path), "paths", f"{choice}_checkpoint")
    named = run.checkpoints / f"{choice}.ckpt"
    return next((path for path in (named, run.folder / (recorded or named)) if path.exists()), None)


def find_checkpoint(run: runs.Run, choice: str) -> Path:
    """Return the checkpoint of a run that `best`, `last` or a path names.

    A folder where a strategy writes shards.

    Raises:
        ConfigError: If it is not there, or is not what was written.
    """
    if choice not in ("best", "last"):
        return check_checkpoint_file(choice)
    path = locate_checkpoint(run, choice)
    there = sorted(other.name for other in run.checkpoints.glob("*.ckpt"))
    if path is None:
        raise ConfigError(
            f"{run.folder} has no {choice} checkpoint; it has {', '.join(there) or 'none at all'}."
        )
    if (fault := runs.find_fault(path)) is not None:
        raise ConfigError(
            f"{path} is not what was written: {fault}. Checkpoints there: {', '.join(there)}."
        )
    return path


def compare_configs(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """List the dotted keys of the identity whose values differ.

    1 and 1.0 do: `limit_train_batches: 1` is one batch, 1.0 all of them. NaN and NaN do not.
    """
    old = select_identity(_flatten(saved))
    new = select_identity(_flatten(now))
    return sorted(key for key in {*old, *new} if repr(old.get(key)) != repr(new.get(key)))


def _flatten(config: Mapping[str, Any]) -> dict[str, Any]:
    return {".".join(map(str, path)): value for path, value in flatten(config)}


def _new_checkpoint(
    settings: RunSettings, ckpt_path: str | None
) -> tuple[Path | None, runs.Run | None]:
    """Find the checkpoint that a new run starts from, and the run that it is from."""
    assert settings.name is not None
    if ckpt_path is None:
        return None, None
    if ckpt_path not in ("best", "last"):
        checkpoint = check_checkpoint_file(ckpt_path)
        folder = checkpoint.resolve().parent.parent
        return checkpoint, runs.open_run(folder) if (folder / "manifest.json").is_file() else None
    parent = next(
        (
            run
            for run in runs.list_runs(settings.root, settings.name)
            if any(run.checkpoints.glob("*.ckpt"))
        ),
        None,
    )
    if parent is None:
        raise ConfigError(
            f"--ckpt_path {ckpt_path}: no run of {settings.name!r} in {settings.root} has a"
            " checkpoint."
        )
    return find_checkpoint(parent, ckpt_path), parent


def resume_run(run: runs.Run, *, first: str | None = None) -> RunStart:
    """Go on with a run from its newest good checkpoint.

    Args:
        run: The run.
        first: Checkpoint that it began from, which counts until it has one of its own.
    """
    checkpoint, passed_over = runs.choose_good(run.checkpoints)
    whence = (
        f"from {checkpoint.name}"
        if checkpoint
        else "from the start, since no checkpoint had been written"
    )
    notice = f"resumes {run.folder} {whence}"
    notice += "".join(f"; {path} is not used: {fault}." for path, fault in passed_over)
    if checkpoint is None and first is not None:
        checkpoint = Path(first)
    return RunStart(
        replace(run, resumed=True), checkpoint, notice=notice, is_old=True, passed_over=passed_over
    )


def open_named_run(reference: str, root: Path | str, name: str | None) -> runs.Run:
    """Open the run that `run.resume` names, in the words of `--run`.

    Args:
        reference: The run, as `runs.find` takes it.
        root: Folder of all runs.
        name: Name of the job; all jobs if None.

    Raises:
        ConfigError: If there is none, or its folder is a copy under another kind of name, in which
            a training would be seen by no later command.
    """
    try:
        run = runs.find(reference, root, name)
    except ConfigError as error:
        raise ConfigError(
            f"run.resume: expected auto, never, latest or a run's folder; {error}"
        ) from error
    if not run.has_valid_id:
        raise ConfigError(
            f"run.resume: {run.folder} has no run's id as its name, such as"
            " 20261120-113859-3fa1, so `lightkit runs` would not list it. To begin a new run from"
            f" its checkpoint, give --ckpt_path={run.checkpoints / 'last.ckpt'}; to go on in this"
            " folder, rename it to an id that its job does not have."
        )
    return run


_OF_SHARDS = ("meta.pt", "checkpoint")
"""What the folder of a checkpoint has that FSDP or ModelParallel (Lightning 2.6), or DeepSpeed, has
written."""


def check_checkpoint_file(path: str) -> Path:
    """Return a file, or a folder of shards, that the user names as a checkpoint.

    Raises:
        ConfigError: If there is none, or it is none.
    """
    file = Path(path)
    is_of_shards = file.is_dir() and any((file / name).exists() for name in _OF_SHARDS)
    if is_of_shards and not runs.sidecar(file).exists():
        return file
    if not is_of_shards and not file.is_file():
        raise ConfigError(
            f"--ckpt_path: {path} is {'a folder' if file.is_dir() else 'not a file'}."
            f" {_there(file)}"
        )
    try:
        fault = runs.find_fault(file)
    except OSError as error:
        raise ConfigError(
            f"--ckpt_path: {path} cannot be read: {error.strerror or error}."
        ) from error
    if fault is not None:
        raise ConfigError(f"--ckpt_path: {path} is not a valid checkpoint: {fault}.")
    return file


def _there(file: Path) -> str:
    """Say which checkpoints there are where a file is not."""
    folder = file if file.is_dir() else file.parent
    found = sorted(
        str(other.relative_to(folder))
        for other in (*folder.glob("*.ckpt"), *folder.glob("checkpoints/*"))
    )
    found = [name for name in found if name.endswith(".ckpt")]
    where = "in it" if file.is_dir() else "beside it"
    return (
        f"Checkpoints {where}: {', '.join(found)}."
        if found
        else "Expected best, last or a checkpoint."
    )
