#!/usr/bin/env bash
# deltalake 1.6.6: which rows of NaN a query reads, and which a delete removes, depends on how rows are spread over
# files.
#
# Guess: a predicate goes by the values of a row alone.
# Seen with four rows whose losses are 0.5, NaN and, in a second file, 0.7 and 9: its query engine takes NaN for greater
# than all numbers, so that `loss > 1` is true of it; but the statistics of a file leave NaN out, and a file with the
# greatest loss 0.5 is not opened. With two files the query finds the 9 alone, and `delete("loss > 1")` leaves the NaN.
# After `optimize.compact()`, which changes no row, the same query finds both, and the same delete removes both. So the
# rows that a clean-up such as `delete("loss > 1000")` removes of a table with diverged runs depend on the writers'
# batches. pyarrow 25.0.1 alone has the other half: in a row group of NaN and a single other value, it takes the column
# for constant, and `is_nan()`, `!= 0.5` and `~(loss <= 1)` find no row of it in a Parquet file, where the same filters
# find the NaN in memory. So does `pandas.read_parquet(filters=...)`. The format says that readers must ignore the least
# and the greatest value when they look for NaN; Arrow heeds that only where these are NaN themselves.
# lightkit's `filter` reads such row groups.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet deltalake==1.6.6 pyarrow==25.0.1 pandas==3.1.1

cat > "$folder/losses.py" <<'PYTHON'
import math

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder, write_deltalake

BATCHES = [pa.table({"n": [0, 1], "loss": [0.5, math.nan]}), pa.table({"n": [2, 3], "loss": [0.7, 9.0]})]


def query(path):
    engine = QueryBuilder().register("t", DeltaTable(path))
    return sorted(pa.table(engine.execute("SELECT n FROM t WHERE loss > 1").read_all())["n"].to_pylist())


def delete(path):
    DeltaTable(path).delete("loss > 1")
    return sorted(DeltaTable(path).to_pyarrow_table()["n"].to_pylist())


for path in ("two files", "compacted"):
    for batch in BATCHES:
        write_deltalake(path, batch, mode="append")
DeltaTable("compacted").optimize.compact()
found = {path: {"query": query(path), "left": delete(path)} for path in ("two files", "compacted")}
print(found)
assert found == {
    "two files": {"query": [3], "left": [0, 1, 2]},
    "compacted": {"query": [1, 3], "left": [0, 2]},
}, found

pq.write_table(BATCHES[0], "losses.parquet")
loss = ds.field("loss")
for where in (loss.is_nan(), loss != 0.5, ~(loss <= 1)):
    stored = ds.dataset("losses.parquet").to_table(filter=where).num_rows
    in_memory = BATCHES[0].filter(where).num_rows
    print(f"{where}: {stored} rows of the file, {in_memory} in memory")
    assert (stored, in_memory) == (0, 1)
assert pd.read_parquet("losses.parquet", filters=[("loss", "!=", 0.5)]).empty
assert len(pd.read_parquet("losses.parquet").query("loss != 0.5")) == 1
PYTHON

cd "$folder"
"$folder/venv/bin/python" "$folder/losses.py"
