#!/usr/bin/env bash
# deltalake 1.6.6 reads the newest rows of a Delta table first, and a compaction makes that their order for good.
#
# Seen with a table to which 0, 1, 2, 3 were appended one after another: `to_pyarrow_table`, `to_pyarrow_dataset` and a
# `QueryBuilder` read 3, 2, 1, 0, so that "the last rows are the latest" holds for a file of Parquet and is the other way
# round here: a split that keeps the last tenth for the test takes the oldest rows. Each append moves every row that was
# there to another position. `optimize.compact()` writes the one new file in the order of reading, 3, 2, 1, 0; what is
# appended then comes before it. An update of one row of a file moves that whole file's rows to the front. Delta promises no
# order; a column of time, or a key, identifies rows (lightkit splits by those or by content, never by position).
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet deltalake==1.6.6 pyarrow==25.0.1

cat > "$folder/order.py" <<'PYTHON'
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake


def read():
    table = DeltaTable("rows")
    found = table.to_pyarrow_table()["n"].to_pylist()
    assert table.to_pyarrow_dataset().to_table()["n"].to_pylist() == found
    answer = QueryBuilder().register("rows", table).execute("select n from rows").read_all()
    assert pa.table(answer)["n"].to_pylist() == found
    return found


for number in range(4):
    write_deltalake("rows", pa.table({"n": [number]}), mode="append")
seen = {"appended": read()}
DeltaTable("rows").optimize.compact()
seen["compacted"] = read()
write_deltalake("rows", pa.table({"n": [4, 5]}), mode="append")
seen["appended again"] = read()
DeltaTable("rows").update(updates={"n": "n + 100"}, predicate="n = 2")
seen["updated"] = read()
for step, rows in seen.items():
    print(f"{step}: {rows}")
assert seen == {
    "appended": [3, 2, 1, 0],
    "compacted": [3, 2, 1, 0],
    "appended again": [4, 5, 3, 2, 1, 0],
    "updated": [3, 102, 1, 0, 4, 5],
}, seen
PYTHON

cd "$folder"
"$folder/venv/bin/python" "$folder/order.py"
