"""How opening, splitting and dividing a table grow with its rows.

Seconds and memory of one of 1,024 ranks.

Tables of equally many files and more and more rows are written into a temporary folder, with a
Delta log. A process looks at all rows (filter, split by hash); another, as the ranks do, opens the
table, loads what was found, reads its share of an epoch with four workers, and resumes it in the
middle. All ranks together must have each row once.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

RANKS, WORKERS, BATCH_SIZE, BUFFER = 1024, 4, 32, 2048
FILTER = [["height", ">=", 100]]
_CODE = "import sys; from benches.scale import measure; measure(*sys.argv[1:])"


def run(words: Sequence[str]) -> int:
    """Write the tables one after another, measure, and print the table of growth.

    Args:
        words: See `--help`.
    """
    parser = argparse.ArgumentParser(
        prog="benchmarks/bench scale", description=__doc__, allow_abbrev=False
    )
    parser.add_argument(
        "--files", type=int, default=20_000, help="files of each table (default: 20000)"
    )
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[10**6, 10**7, 10**8], help="rows of the tables"
    )
    parser.add_argument(
        "--formats", nargs="+", default=["delta", "parquet"], choices=["delta", "parquet"]
    )
    parser.add_argument(
        "--folder", type=Path, help="folder for the temporary tables (default: that of TMPDIR)"
    )
    options = parser.parse_args(words)
    names = [
        *("rows", "format", "open", "look", "MB", "open", "load", "epoch", "resume"),
        *("MB of a rank", "divide"),
    ]
    print(" | ".join(names), flush=True)
    for rows in options.rows:
        with tempfile.TemporaryDirectory(prefix="lightkit-scale-", dir=options.folder) as folder:
            write_table(Path(folder, "delta"), options.files, rows // options.files)
            for kind in options.formats:
                result = [_measure_apart(Path(folder), kind, step) for step in ("look", "rank")]
                cells = [f"{value:.3g}" for of_step in result for value in of_step]
                print(" | ".join([f"{rows:,}", kind, *cells]), flush=True)
    return 0


def write_table(folder: Path, num_files: int, rows_per_file: int) -> None:
    """Write a Delta table of tiny rows.

    A row group a file, with its number as two columns, a class and a height.
    """
    import deltalake
    from deltalake.transaction import AddAction

    folder.mkdir()
    with ProcessPoolExecutor() as pool:
        list(
            pool.map(
                _write_file,
                *zip(*((folder, n, rows_per_file) for n in range(num_files)), strict=True),
                chunksize=200,
            )
        )
    table = deltalake.DeltaTable.create(
        str(folder), schema=deltalake.Schema.from_arrow(_create_columns(0, 1).schema)
    )
    stats = json.dumps({"numRecords": rows_per_file})
    actions = [
        AddAction(path.name, path.stat().st_size, {}, 0, True, stats)
        for path in folder.glob("*.parquet")
    ]
    table.create_write_transaction(actions, mode="append", schema=table.schema())


def _create_columns(first: int, num: int) -> pa.Table:
    numbers = np.arange(first, first + num)
    heights = (numbers * 7919 % 200).astype(np.int32)
    pair = {
        "thousands": (numbers // 1000).astype(np.float32),
        "ones": (numbers % 1000).astype(np.float32),
    }
    return pa.table(
        {"key": numbers, **pair, "label": (numbers % 10).astype(np.int8), "height": heights}
    )


def _write_file(folder: Path, number: int, num_rows: int) -> None:
    pq.write_table(
        _create_columns(number * num_rows, num_rows),
        folder / f"{number:06}.parquet",
        compression="zstd",
    )


def _measure_apart(folder: Path, kind: str, step: str) -> list[float]:
    """Measure in a process of its own, with a cache of its own."""
    if kind == "parquet" and (folder / "delta").is_dir():
        (folder / "delta" / "_delta_log").rename(folder / "log")
        (folder / "delta").rename(folder / "parquet")
    environ = {
        **os.environ,
        "XDG_CACHE_HOME": str(folder / "cache"),
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }
    command = [sys.executable, "-W", "ignore", "-c", _CODE, str(folder / kind), step]
    return list(
        json.loads(
            subprocess.run(command, check=True, capture_output=True, text=True, env=environ).stdout
        )
    )


def measure(folder: str, step: str) -> None:
    """Print seconds and MB of one step as a JSON list."""
    from lightkit.data.tables.columns import find_columns
    from lightkit.data.tables.index import index_table
    from lightkit.rows.parquet_table import open_table

    before, clock = _read_memory_mb("VmRSS"), _Clock()
    table = open_table(folder)
    seconds = [clock.lap()]
    columns = find_columns(table.schema, features=["thousands", "ones"], key="key")
    index = index_table({None: table}, columns, filter=FILTER, val_fraction=0.2, test_fraction=0.1)
    seconds.append(clock.lap())
    if step == "look":
        print(json.dumps([*seconds, _read_memory_mb("VmHWM") - before]))
        return
    clock.lap()
    loader = create_rank_loader(index, rank=RANKS // 2)
    epoch = [batch[0].tolist() for batch in loader]
    seconds.append(clock.lap())
    loader = create_rank_loader(index, rank=RANKS // 2)
    loader.sampler.resume(epoch=0, batches=len(epoch) // 2)
    rest = iter(loader)
    assert next(rest)[0].tolist() == epoch[len(epoch) // 2]
    seconds += [clock.lap(), _read_memory_mb("VmHWM") - before]
    assert [batch[0].tolist() for batch in rest] == epoch[len(epoch) // 2 + 1 :]
    print(json.dumps([*seconds, check_all_ranks(index.counts["train"])]))


def check_all_ranks(num_rows: int) -> float:
    """Check that the batches of all workers of all ranks have each row of an epoch once.

    Return a rank's seconds.
    """
    from lightkit.data.tables.loader import RankPlan

    clock, spans = _Clock(), []
    for rank in range(RANKS):
        plan = RankPlan(num_rows, BATCH_SIZE, RANKS, rank, WORKERS)
        lanes = [plan.lane(lane) for lane in range(WORKERS)]
        within = [plan.within_lane(number) for number in range(plan.num_batches)]
        firsts = [lanes[number % WORKERS].start for number in range(len(within))]
        spans.append(
            [
                (first + rows.start, first + rows.stop)
                for first, rows in zip(firsts, within, strict=True)
            ]
        )
    seconds = clock.lap() / RANKS
    starts, stops = np.sort(np.concatenate(spans), axis=0).T
    assert (starts[0], stops[-1]) == (0, num_rows)
    assert (starts[1:] == stops[:-1]).all()
    return seconds


def create_rank_loader(
    index: Any, *, rank: int, num_ranks: int = RANKS, num_workers: int = WORKERS
) -> Any:
    """Make the training loader of one of many ranks."""
    from lightkit.data.tables.loader import BatchMaker, BatchRows, TableBatches, table_loader

    rows = BatchRows(
        index.rows("train"),
        partial(index.read, "train"),
        batch_size=BATCH_SIZE,
        num_replicas=num_ranks,
        rank=rank,
        seed=0,
    )
    batches = TableBatches(rows, BatchMaker(None, row_bytes=8), buffer_rows=BUFFER)
    return table_loader(batches, seed=0, num_workers=num_workers)


class _Clock:
    """Seconds since the last look."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap(self) -> float:
        """Return them, and begin anew."""
        last, self._last = self._last, time.perf_counter()
        return self._last - last


def _read_memory_mb(name: str) -> float:
    line = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name)
    )
    return int(line.split()[1]) / 1e3
