"""The files and folders that a config names: whether they are there, and can be written. No torch."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

from lightkit import runs
from lightkit.config import Problems, Resolved, error_at
from lightkit.errors import ConfigError, LightkitError
from lightkit.runs.resume import check_checkpoint_file, open_named_run

__all__ = ["check_paths", "explain_unwritable"]

_CHOICES = ("best", "last")


def check_paths(command: str, resolved: Resolved, option: Any, problems: Problems) -> None:
    """Check the run root, the run to resume and the checkpoint before anything is built.

    Args:
        command: Command that runs.
        resolved: The config.
        option: What `--ckpt_path` says; None where the config does.
        problems: Takes what is wrong.
    """
    section = resolved.values.get("run")
    section = section if isinstance(section, dict) else {}
    if isinstance(name := section.get("name"), str):
        with problems.noted():
            _at("run.name", resolved, lambda: runs.check_name(name))
    root = section.get("root") or "runs"
    if (
        command != "export" and isinstance(root, str) and (error := explain_unwritable(root)) is not None
    ):  # it makes no run
        problems.add(error_at(str(error), resolved.origin_of("run.root")))
    resume = section.get("resume")
    if command == "fit" and isinstance(resume, str) and resume not in ("auto", "never"):
        with problems.noted():
            _at("run.resume", resolved, lambda: _check_run(resume, str(root), name))
    named = resolved.values.get("ckpt_path") if option is None else option
    if named is not None and not isinstance(named, str):
        problems.add(error_at(f"ckpt_path: expected text or null, got {named!r}", resolved.origin_of("ckpt_path")))
    elif named and named not in _CHOICES:
        with problems.noted():
            _at("ckpt_path" if option is None else "", resolved, lambda: check_checkpoint_file(named))


def explain_unwritable(root: str | Path, *, setting: str = "run.root") -> ConfigError | None:
    """Explain why a folder, which may not exist yet, cannot be written; None where it can.

    Args:
        root: The folder.
        setting: Key or option that names it.
    """
    folder = Path(root).absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        return _cannot_write(root, errno.ENOTDIR, setting)
    if not os.access(folder, os.W_OK | os.X_OK):
        read_only = bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
        return _cannot_write(root, errno.EROFS if read_only else errno.EACCES, setting)
    return None


def _check_run(reference: str, root: str, name: Any) -> None:
    run = open_named_run(reference, root, name if isinstance(name, str) else None)
    if not run.config_path.is_file():
        says = f"expected auto, never, latest or a run's folder; {reference} is not a run: it has no config.yaml."
        raise ConfigError(f"run.resume: {says}")


def _cannot_write(root: str | Path, number: int, setting: str) -> ConfigError:
    says = f"{setting}: cannot write {root}: {os.strerror(number)}"
    return ConfigError(f"{says}. Set {setting} to a folder that can be written.")


def _at(key: str, resolved: Resolved, check: Any) -> None:
    try:
        check()
    except LightkitError as error:
        says = str(error).removeprefix("--") if key else str(error)
        raise error_at(says, resolved.origin_of(key) if key else None) from error
