#!/usr/bin/env bash
# deltalake 1.6.6: to_pyarrow_dataset() gives a column the values of another one, without an error, after columns of a
# Delta table were renamed.
#
# A table with column mapping (delta.columnMapping.mode = name, reader version 2) keeps the names that its Parquet files
# have, and maps them in its log. After a rename of a to b and of b to a, as an engine with column mapping writes it into
# the log alone, deltalake's own query engine reads the columns by the map. DeltaTable.to_pyarrow_dataset() opens the
# files by the new names: b has the values that a query gives for a, and the other way round. Of a column that was
# renamed to a name that no file has, every value is null. It refuses tables by their list of reader features, which a
# table of reader version 2 does not have.
#
# Seen with Python 3.11.7 on Linux: "query {'b': [1, 2], 'a': [10, 20]}" and "dataset {'b': [10, 20], 'a': [1, 2]}". The
# script ends with 1 as soon as a version reads them alike, or refuses.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet deltalake==1.6.6 pyarrow==25.0.0

cat > "$folder/rename.py" <<'PYTHON'
import json
import sys
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake

table = Path(sys.argv[1])
write_deltalake(table, pa.table({"a": [1, 2], "b": [10, 20]}))

# the commit of the renames: the schema with the map from names to those in the files
first = (table / "_delta_log" / f"{0:020d}.json").read_text()
metadata = next(action["metaData"] for action in map(json.loads, first.splitlines()) if "metaData" in action)
schema = json.loads(metadata["schemaString"])
for number, (field, name) in enumerate(zip(schema["fields"], ["b", "a"]), 1):
    field["metadata"] = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": field["name"]}
    field["name"] = name
metadata["schemaString"] = json.dumps(schema)
metadata["configuration"] = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"}
actions = [
    {"commitInfo": {"timestamp": 1790000000000, "operation": "RENAME COLUMN"}},
    {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}},
    {"metaData": metadata},
]
(table / "_delta_log" / f"{1:020d}.json").write_text("\n".join(map(json.dumps, actions)))

renamed = DeltaTable(table)
query = pa.table(QueryBuilder().register("t", renamed).execute("SELECT * FROM t").read_all()).to_pydict()
dataset = renamed.to_pyarrow_dataset().to_table().to_pydict()
print("query  ", query)
print("dataset", dataset)
assert query == {"b": [1, 2], "a": [10, 20]}, "the query does not read the renamed columns"
assert dataset == {"b": [10, 20], "a": [1, 2]}, "to_pyarrow_dataset() has changed"
PYTHON

"$folder/venv/bin/python" "$folder/rename.py" "$folder/table"
