#!/usr/bin/env bash
# deltalake 1.6.6 answers a query that filters by a column with the statistics of a file in place of its values, and an
# update or a delete writes them to the table: NaN becomes a number.
#
# Guess: a filter decides which rows are read, not what stands in them.
# Seen for a file whose log has one number for the least and the greatest value of a column: the engine takes the column
# for constant there as soon as the condition names it. NaN does not count in these statistics, so that [2.0, NaN] has
# 2.0 twice: `SELECT x WHERE n > 0` gives 2.0 and NaN, `SELECT x WHERE x >= 1` gives 2.0 and 2.0. And decimals are
# rounded to 16 digits in the log: 8.758176404715800194 is read as 8.758176404715801000. `update(updates={"n": "n + 10"},
# predicate="x >= 1")` writes the rows anew as it has read them: x, which it does not name, is 2.0 and 2.0 in the new
# file, the loss of a diverged run is a good one, and the decimal has lost its digits. `delete("x >= 1 AND n = 1")`
# leaves n = 2 with 2.0, too. Without a condition on the column, and in a file with two different numbers, values are
# those that were written.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet deltalake==1.6.6 pyarrow==25.0.1

cat > "$folder/read.py" <<'PYTHON'
import math
from decimal import Decimal

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake

PRICE = Decimal("8.758176404715800194")
ROUNDED = Decimal("8.758176404715801000")
KIND = pa.decimal128(38, 18)


def write(path, values, kind):
    write_deltalake(path, pa.table({"n": range(1, len(values) + 1), "x": pa.array(values, kind)}))


def query(path, where):
    engine = QueryBuilder().register("t", DeltaTable(path))
    return pa.table(engine.execute(f"SELECT x FROM t WHERE {where} ORDER BY n").read_all())["x"].to_pylist()


def change(path):
    """Return the values that are stored after an update of the other column."""
    DeltaTable(path).update(updates={"n": "n + 10"}, predicate="x >= 1")
    rows = DeltaTable(path).to_pyarrow_table().sort_by("n")
    assert rows["n"].to_pylist() == list(range(11, 11 + rows.num_rows))
    return rows["x"].to_pylist()


def delete_first(path):
    """Return the values that are stored after the row n = 1 was deleted."""
    write(path, [2.0, math.nan], pa.float64())
    assert DeltaTable(path).delete("x >= 1 AND n = 1")["num_deleted_rows"] == 1
    rows = DeltaTable(path).to_pyarrow_table()
    assert rows["n"].to_pylist() == [2]
    return rows["x"].to_pylist()


write("losses", [2.0, math.nan], pa.float64())
write("prices", [PRICE], KIND)
write("two", [2.0, math.nan, 3.0], pa.float64())
found = {
    path: {"by n": query(path, "n > 0"), "by x": query(path, "x >= 1"), "updated": change(path)}
    for path in ("losses", "prices", "two")
}
for path, values in found.items():
    print(path, {step: list(map(str, each)) for step, each in values.items()})
losses, prices, two = found.values()
assert math.isnan(losses["by n"][1])
assert losses["by x"] == losses["updated"] == [2.0, 2.0], losses
assert prices == {"by n": [PRICE], "by x": [ROUNDED], "updated": [ROUNDED]}, prices
assert all(math.isnan(values[1]) for values in two.values()), two
left = delete_first("deleted")
print("left by a delete of the first row", left)
assert left == [2.0], left
PYTHON

cd "$folder"
"$folder/venv/bin/python" "$folder/read.py"
