#!/usr/bin/env bash
# deltalake 1.6.6 does not find, and does not delete, rows by a decimal of more than 16 digits: the statistics of its
# files are rounded to a double.
#
# Guess: a decimal is exact, so that a row is found by its value.
# Seen, with 20 prices of decimal(38, 18), Spark's type for Python's Decimal, appended one after another: a query with
# `price = ...` finds none of the 20, a filter of `to_pyarrow_dataset` neither, and `delete` with that predicate reports
# 0 deleted rows and leaves all. The log has the least and the greatest price of a file as a number of JSON with 16
# digits (1.259023674760142 for 1.259023674760142153), and a file whose bounds do not hold the value is not opened. After
# `optimize.compact()`, which changes no row, all 20 are found, as the bounds of the one file are those of other rows.
# With 16 digits, decimal(16, 2), all are found in both cases.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet deltalake==1.6.6 pyarrow==25.0.1

cat > "$folder/prices.py" <<'PYTHON'
import random
from decimal import Decimal

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable, QueryBuilder, write_deltalake


def literal(price, kind):
    return f"CAST('{price}' AS DECIMAL({kind.precision}, {kind.scale}))"


def find(path, prices, kind):
    table = DeltaTable(path)
    engine = QueryBuilder().register("t", table)
    rows = table.to_pyarrow_dataset()
    found = {"query": 0, "dataset": 0}
    for price in prices:
        answer = engine.execute(f"SELECT 1 FROM t WHERE price = {literal(price, kind)}").read_all()
        found["query"] += pa.table(answer).num_rows
        found["dataset"] += rows.to_table(filter=ds.field("price") == pa.scalar(price, kind)).num_rows
    return found


def append_and_find(path, kind):
    draw = random.Random(0)
    least = 10 ** kind.scale
    prices = [Decimal(draw.randrange(least, 100 * least)).scaleb(-kind.scale) for _ in range(20)]
    for price in prices:
        write_deltalake(path, pa.table({"price": pa.array([price], kind)}), mode="append")
    apart = find(path, prices, kind)
    table = DeltaTable(path)
    table.optimize.compact()
    compacted = find(path, prices, kind)
    table.restore(len(prices) - 1)
    deleted = sum(
        DeltaTable(path).delete(f"price = {literal(price, kind)}")["num_deleted_rows"] for price in prices
    )
    print(f"{kind}: found in 20 files {apart}, compacted {compacted}; deleted in 20 files: {deleted}")
    return apart, compacted, deleted


none = {"query": 0, "dataset": 0}
every = {"query": 20, "dataset": 20}
assert append_and_find("long", pa.decimal128(38, 18)) == (none, every, 0)
assert append_and_find("short", pa.decimal128(16, 2)) == (every, every, 20)
PYTHON

cd "$folder"
"$folder/venv/bin/python" "$folder/prices.py"
