"""Run a command; measure its time, processor time, memory and the moments of its epochs."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


class ToolFailed(Exception):
    """A tool did not end well; its log says why."""


@dataclass
class Measured:
    """What one process and its children took.

    Args:
        wall_s: From its start to its end.
        cpu_s: Of all its processes that it has waited for.
        peak_mb: Resident memory of its largest process.
        epochs_s: When each epoch had ended, since its start.
        output: Its output, line by line.
    """

    wall_s: float
    cpu_s: float
    peak_mb: float
    epochs_s: list[float] = field(default_factory=list)
    output: list[str] = field(default_factory=list)

    def compute_images_per_s(self, num_train: int) -> float | None:
        """Return the training images a second of the epochs after the first, validations included.

        None below two.
        """
        if len(self.epochs_s) < 2:
            return None
        return num_train * (len(self.epochs_s) - 1) / (self.epochs_s[-1] - self.epochs_s[0])


def run(
    command: Sequence[str],
    *,
    folder: Path,
    log: Path,
    epoch: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Measured:
    """Run a command to its end.

    Args:
        command: The words.
        folder: Its working directory.
        log: Gets its output.
        epoch: Expression that its line at the end of an epoch matches.
        environ: Variables in addition.

    Raises:
        ToolFailed: If it ends with another code than 0.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pattern = None if epoch is None else re.compile(epoch)
    variables = {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "CUDA_VISIBLE_DEVICES": "",
        **(environ or {}),
    }
    # else what pip has not compiled is compiled at each start
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    start_s = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    found = Measured(0.0, 0.0, 0.0)
    with log.open("w", encoding="utf-8") as file:
        file.write(f"$ {' '.join(map(str, command))}\n")
        for line in process.stdout:
            file.write(line)
            found.output.append(line.rstrip("\n"))
            if pattern is not None and pattern.search(line):
                found.epochs_s.append(time.monotonic() - start_s)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    found.wall_s = time.monotonic() - start_s
    found.cpu_s = usage.ru_utime + usage.ru_stime
    found.peak_mb = usage.ru_maxrss * 1024 / 1e6
    if process.returncode:
        raise ToolFailed(
            f"code {process.returncode}, see {log}: {' '.join(found.output[-1:])[:120]}"
        )
    return found
