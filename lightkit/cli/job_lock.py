"""The lock of the job that a command works on. No torch."""

from __future__ import annotations

from pathlib import Path

from lightkit import runs
from lightkit.cli.context import RunContext
from lightkit.errors import RunLocked
from lightkit.runs.resume import RunSettings, open_named_run

__all__ = ["create_job_lock", "find_job"]


def find_job(settings: RunSettings) -> tuple[Path, str]:
    """Give the run root and the name of a job: that of the run to go on in, where one is named.

    Raises:
        ConfigError: If the name cannot be a folder's, or there is no such run.
    """
    if settings.resume not in ("auto", "never"):
        named = open_named_run(settings.resume)
        return named.root, named.name
    return Path(settings.root), runs.check_name(str(settings.name))


def create_job_lock(session: RunContext, settings: RunSettings) -> runs.Lock:
    """Make the lock of a job; this process ends once another has taken it over.

    Raises:
        ConfigError: If the name cannot be a folder's, there is no such run, or the seconds are none.
    """
    return runs.Lock(
        *find_job(settings),
        wait_s=settings.wait_s,
        stale_s=settings.stale_s,
        tell=session.tell,
        lost=lambda words: session.watch.cut(RunLocked.exit_code, f"error: this process has lost its job. {words}"),
    )
