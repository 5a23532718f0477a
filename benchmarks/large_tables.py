"""Time and memory of `TableData` by the size of a table.

From the file to the first step, and an epoch of loading.

    python benchmarks/large_tables.py 100000 300000 1000000

Each size is measured in a process of its own, on a table that is drawn: 15 numbers, 3 categories, a
date and a target, about 175 bytes a row of CSV. Memory is that of the process besides mapped files,
which the system may drop; its peak is looked for every 10 ms. `--limit-mb` sets a limit for it, so
that a table is larger than the memory that there is.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

_PART = 50_000  # rows
_PERIOD_S = 0.01


def write_table(path: Path, num_rows: int) -> None:
    """Draw a table, a part after the other."""
    random = np.random.default_rng(0)
    names = [*(f"n{at}" for at in range(15)), *(f"c{at}" for at in range(3)), "day", "y"]
    with path.open("w", encoding="utf-8") as file:
        file.write(",".join(names) + "\n")
        for first in range(0, num_rows, _PART):
            num = min(_PART, num_rows - first)
            numbers = random.normal(size=(num, 15)) * 100
            columns = [np.char.mod("%.5f", numbers[:, at]) for at in range(15)]
            columns += [
                np.char.mod("kind %d", random.integers(0, size, num)) for size in (3, 30, 300)
            ]
            columns.append(
                (np.datetime64("2020-01-01") + random.integers(0, 2000, num)).astype(str)
            )
            columns.append(
                np.char.mod("%.4f", numbers[:, :3].sum(axis=1) + random.normal(size=num))
            )
            file.writelines(
                f"{','.join(row)}\n"
                for row in zip(*(each.tolist() for each in columns), strict=True)
            )


class PeakMemory:
    """The most memory that this process had, besides mapped files, in bytes."""

    def __init__(self) -> None:
        self.peak = self.read()
        self._has_ended = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    @staticmethod
    def read() -> int:
        """Return the memory of now."""
        (line,) = (
            each
            for each in Path("/proc/self/status").read_text().splitlines()
            if each.startswith("RssAnon")
        )
        return int(line.split()[1]) * 1024

    def _watch(self) -> None:
        while not self._has_ended.wait(_PERIOD_S):
            self.peak = max(self.peak, self.read())

    def end(self) -> int:
        """Stop looking, and return the peak."""
        self._has_ended.set()
        return max(self.peak, self.read())


def measure(path: Path, limit_mb: int | None) -> dict[str, float]:
    """Measure one table in this process."""
    from lightkit.data import TableData  # here: in the process of the measurement

    begin_bytes = PeakMemory.read()
    if limit_mb is not None:
        size = begin_bytes + limit_mb * 1_000_000
        resource.setrlimit(resource.RLIMIT_DATA, (size, size))
    memory = PeakMemory()
    data = TableData(path=str(path), target="y")
    began_s = time.perf_counter()
    data.setup("fit")
    batches = iter(data.train_dataloader())
    next(batches)
    first_s = time.perf_counter() - began_s
    planned = memory.peak
    began_s = time.perf_counter()
    num_rows = sum(len(target) for _, target in batches)
    epoch_s = time.perf_counter() - began_s
    return {
        "csv_mb": round(path.stat().st_size / 1e6),
        "first_batch_s": round(first_s, 2),
        "rows_per_s": round(num_rows / epoch_s),
        "plan_mb": round((planned - begin_bytes) / 1e6),
        "epoch_mb": round((memory.end() - begin_bytes) / 1e6),
    }


def main() -> None:
    """Measure each size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", type=int, default=[100_000, 300_000, 1_000_000])
    parser.add_argument("--limit-mb", type=int)
    parser.add_argument("--table", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.table is not None:
        print(json.dumps(measure(given.table, given.limit_mb)))
        return
    for num_rows in given.rows:
        with tempfile.TemporaryDirectory(prefix="lightkit-large-") as folder:
            table = Path(folder) / "t.csv"
            write_table(table, num_rows)
            words = [sys.executable, __file__, "--table", str(table)]
            words += [] if given.limit_mb is None else ["--limit-mb", str(given.limit_mb)]
            variables = {
                **os.environ,
                "XDG_CACHE_HOME": folder,
                "OMP_NUM_THREADS": "1",
                "CUDA_VISIBLE_DEVICES": "",
            }
            done = subprocess.run(words, env=variables, capture_output=True, text=True, check=False)
            print(
                f"{num_rows:>10,} rows",
                done.stdout.strip() or done.stderr.strip().splitlines()[-1],
                flush=True,
            )


if __name__ == "__main__":
    main()
