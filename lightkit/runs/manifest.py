"""Origin of a run: code, packages, data, seed, hardware, command."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lightkit.hardware import describe_packages, processor
from lightkit.version import __version__


def build_manifest(
    *,
    subcommand: str,
    command: Sequence[str],
    run: str,
    seed: int | None = None,
    parent: str | None = None,
    previous: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what manifest.json holds before the data and the devices are known.

    Args:
        subcommand: ``fit``, ``validate``, ``test`` or ``predict``.
        command: The command line, program first, without secrets.
        run: ``NAME/ID`` of the run.
        seed: What ``seed_everything`` came to; None if nothing was seeded.
        parent: Folder of the run that this one continues or evaluates.
        previous: The run's manifest so far, where this process resumes it; what was different then
            stays under ``earlier``.
    """
    kept = (
        *("created", "command", "lightkit", "python", "packages", "git", "data", "seed"),
        *("hardware", "auto"),
    )
    earlier = (
        []
        if previous is None
        else [*previous.get("earlier", []), {name: previous.get(name) for name in kept}]
    )
    return {
        "schema": 1,
        "run": run,
        "subcommand": subcommand,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": list(command),
        "working_directory": str(Path.cwd()),
        "lightkit": __version__,
        "python": platform.python_version(),
        "packages": describe_packages(),
        "platform": platform.platform(),
        "git": describe_git(),
        "data": None,
        "seed": seed,
        "hardware": describe_hardware(),
        "parent": parent,
        "earlier": earlier,
    }


def describe_git() -> dict[str, Any] | None:
    """Return commit, branch and whether files differ from it.

    None outside a repository or without git.
    """
    commit = git_output("rev-parse", "HEAD")
    if commit is None:
        return None
    changed = git_output("status", "--porcelain", "--untracked-files=no")
    return {
        "commit": commit,
        "branch": git_output("rev-parse", "--abbrev-ref", "HEAD"),
        "dirty": None if changed is None else bool(changed),
    }


def describe_hardware(gpus: Iterable[str] = ()) -> dict[str, Any]:
    """Return the CPU's model, this process's cores, the memory, and the given names of GPUs."""
    return {
        "host": platform.node(),
        "cpu": processor.cpu_model(),
        "cores": processor.num_cores(),
        "memory_bytes": processor.memory_bytes(),
        "gpus": list(gpus),
    }


def git_output(*arguments: str) -> str | None:
    """Run git in the working directory and give its output, stripped.

    None if that fails, as outside a repository.
    """
    # Without optional locks: asking must not disturb a commit that somebody makes at the same time.
    command = ["git", "--no-optional-locks", *arguments]
    try:
        answer = subprocess.run(command, capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return os.fsdecode(answer.stdout).strip() if answer.returncode == 0 else None
