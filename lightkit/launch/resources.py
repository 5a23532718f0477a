"""resources.csv: use of cores, memory and GPUs over a run, which the watchdog's thread samples."""

from __future__ import annotations

import csv
import logging
import time
from pathlib import Path

from lightkit.hardware.usage import UsageMeter
from lightkit.runs.files import write_text

COLUMNS = ("seconds", "cpu_cores", "memory_bytes", "gpu_percent", "gpu_memory_bytes")
_FIRST_EVERY_S = 2.0
_LAST_EVERY_S = 60.0
# of the time so far: 100 rows at first, and then as many for each time that the run becomes e times
# as long
_SHARE = 0.005
# of a core: each page of processes that share memory is looked at
_LARGEST_COST = 0.002
_log = logging.getLogger("lightkit")


class ResourceLog:
    """Samples of one process tree, a row each.

    Every two seconds at first, then more rarely, at least each minute. Where a measurement takes
    long, as it does of much memory, they are rarer, so that it does not slow the training down.

    The file is replaced as a whole, so that a process which has lost its job's lock adds no row to
    the run of another.

    Args:
        path: The file. Rows of an earlier process of the run stay, and the seconds go on after
            them.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._text = ""
        self._meter: UsageMeter | None = None
        self._start_s = 0.0
        self._next_s = 0.0

    def sample(self) -> None:
        """Write a row if it is time for one.

        What fails is one warning, and there are no rows any more.
        """
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        try:
            self._write(now_s)
        except Exception as error:  # noqa: BLE001 (no training fails by its records of memory)
            _log.warning(
                "%s is not written any more: %s: %s", self._path.name, type(error).__name__, error
            )
            self._next_s = float("inf")

    def close(self) -> None:
        """Write no further row."""
        self._next_s = float("inf")

    def _write(self, now_s: float) -> None:
        if self._meter is None:
            self._meter = UsageMeter()
            self._meter.measure()
            before_s = max((row["seconds"] for row in read_resources(self._path)), default=0.0)
            self._start_s = now_s - before_s
            self._next_s = now_s + _FIRST_EVERY_S
            self._text = self._read_rows()
            return
        began_s = time.thread_time()
        usage = self._meter.measure()
        cost_s = time.thread_time() - began_s
        gpu_percent = "" if usage.gpu_percent is None else f"{usage.gpu_percent:.0f}"
        gpu_memory_bytes = "" if usage.gpu_memory_bytes is None else f"{usage.gpu_memory_bytes}"
        seconds = now_s - self._start_s
        cells = (
            f"{seconds:.1f}",
            f"{usage.cpu_cores:.2f}",
            f"{usage.memory_bytes}",
            gpu_percent,
            gpu_memory_bytes,
        )
        self._text += ",".join(cells) + "\n"
        # `write_text` would make a run folder that was deleted anew
        if not self._path.parent.is_dir():
            raise FileNotFoundError(f"there is no folder {self._path.parent}")
        write_text(self._path, self._text, durable=False)
        every_s = max(_FIRST_EVERY_S, _SHARE * seconds, cost_s / _LARGEST_COST)
        self._next_s = now_s + min(every_s, _LAST_EVERY_S)

    def _read_rows(self) -> str:
        """Return the whole lines of an earlier process of the run.

        Without them, return the first line with the names of the columns.
        """
        head = ",".join(COLUMNS) + "\n"
        if not self._path.is_file():
            return head
        text = self._path.read_text(encoding="utf-8", errors="replace")
        return text[: text.rfind("\n") + 1] or head


def read_resources(path: Path) -> list[dict[str, float]]:
    """Read the rows.

    A value that was not measured is not in its row, and a line that was cut off is no row.
    """
    if not path.is_file():
        return []
    rows = []
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        for line in csv.DictReader(file):
            try:
                row = {name: float(line[name]) for name in COLUMNS if line.get(name)}
            except ValueError:
                continue
            if {"seconds", "cpu_cores", "memory_bytes"} <= row.keys():
                rows.append(row)
    return rows
