"""The files and folders that a config names: whether they are there, and can be written. No torch."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightkit import runs
from lightkit.config import Problems, Resolved, error_at
from lightkit.errors import ConfigError, LightkitError
from lightkit.runs.resume import check_checkpoint_file, open_named_run


def check_paths(command: str, resolved: Resolved, option: Any, problems: Problems) -> None:
    """Check the run root, the run to resume and the checkpoint before anything is built.

    Args:
        command: Command that runs.
        resolved: The config.
        option: What `--ckpt_path` says; None where the config does.
        problems: Takes what is wrong.
    """

    @contextmanager
    def noted_at(key: str) -> Iterator[None]:
        try:
            yield
        except LightkitError as error:
            says = str(error).removeprefix("--") if key else str(error)
            problems.add(error_at(says, resolved.origin_of(key) if key else None))

    section = resolved.values.get("run")
    section = section if isinstance(section, dict) else {}
    name, root, resume = section.get("name"), section.get("root") or "runs", section.get("resume")
    name = name if isinstance(name, str) else None
    with noted_at("run.name"):
        if name is not None:
            runs.check_name(name)
    with noted_at("run.root"):
        if command != "export" and isinstance(root, str) and (error := explain_unwritable(root)) is not None:
            raise error  # an export makes no run
    with noted_at("run.resume"):
        if command == "fit" and isinstance(resume, str) and resume not in ("auto", "never"):
            run = open_named_run(resume, str(root), name)
            if not run.config_path.is_file():
                says = f"expected auto, never, latest or a run's folder; {resume} is not a run: it has no config.yaml."
                raise ConfigError(f"run.resume: {says}")
    named = resolved.values.get("ckpt_path") if option is None else option
    with noted_at("ckpt_path" if option is None else ""):
        if named is not None and not isinstance(named, str):
            raise ConfigError(f"ckpt_path: expected text or null, got {named!r}")
        if named and named not in ("best", "last"):
            check_checkpoint_file(named)


def explain_unwritable(root: str | Path, *, setting: str = "run.root") -> ConfigError | None:
    """Explain why a folder, which may not exist yet, cannot be written; None where it can.

    Args:
        root: The folder.
        setting: Key or option that names it.
    """
    folder = Path(root).absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK):
        return None
    number = errno.ENOTDIR
    if folder.is_dir():
        number = errno.EROFS if os.statvfs(folder).f_flag & os.ST_RDONLY else errno.EACCES
    says = f"{setting}: cannot write {root}: {os.strerror(number)}"
    return ConfigError(f"{says}. Set {setting} to a folder that can be written.")
