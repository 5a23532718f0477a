#!/usr/bin/env bash
# MLflow 3.17.2: the digest by which a run records its data set covers the first 10,000 numbers of an array and the first
# 10,000 rows of a table, and leaves out whole columns.
#
# Guess: mlflow.data gives different data different digests, as a checksum does; the digest is what log_input records.
# Seen for ten pictures of 3 x 64 x 64: nine of them may be replaced by black ones, and the digest stays, since it is made
# of the first 10,000 numbers, the greater part of the first picture. Of a picture of 3 x 224 x 224 it is less than a
# fifth of the red channel. Of a table, rows after the 10,000th do not count, and no column of booleans or of dates, nor one
# of strings with a single missing value: the labels of such a table may be exchanged. Names of columns and numbers of rows
# count. So two runs on corrected labels are recorded as runs on the same data, and a search
# of runs by the digest finds both. It has eight hexadecimal digits, in which nothing shows that. The page of MLflow's
# data sets calls it a fingerprint that identifies a data set. lightkit records digests of all files, of its own.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet mlflow==3.17.2 pandas==3.1.1 numpy==2.4.6

cat > "$folder/digests.py" <<'PYTHON'
import mlflow
import numpy as np
import pandas as pd

draw = np.random.default_rng(0)


def hash_array(pictures, labels):
    return mlflow.data.from_numpy(pictures, targets=labels).digest


def hash_table(rows):
    return mlflow.data.from_pandas(rows, targets="label").digest


pictures = draw.integers(0, 256, (10, 3, 64, 64), dtype=np.uint8)
labels = np.arange(10)
black = pictures.copy()
black[1:] = 0
first = pictures.copy()
first[0, 0, 0, 0] += 1
large = draw.integers(0, 256, (2, 3, 224, 224), dtype=np.uint8)
without = np.zeros_like(large)
without[0, 0, :45] = large[0, 0, :45]  # 45 of the 224 rows of the first picture's red channel

names = pd.Series(["cat", "dog", None] * 4)
KINDS = {
    "numbers": pd.Series([1, 2, 3] * 4),
    "strings": pd.Series(["cat", "dog", "cow"] * 4),
    "strings, one missing": names.where(names.index < 3, "cat"),
    "booleans": pd.Series([True, False, False] * 4),
    "dates": pd.Series(pd.to_datetime(["2026-01-01", "2026-01-02", "2026-01-03"] * 4)),
    "categories": pd.Series(["cat", "dog", "cow"] * 4, dtype="category"),
}
numbers = pd.DataFrame({"x": np.arange(20_000.0), "label": 0})
late = numbers.copy()
late.loc[10_000:, "label"] = 1

same = {
    "nine of ten pictures black": hash_array(black, labels) == hash_array(pictures, labels),
    "one pixel of the first picture": hash_array(first, labels) == hash_array(pictures, labels),
    "large, all but a fifth of a channel black": hash_array(large, None) == hash_array(without, None),
    "labels of the rows after 10,000": hash_table(late) == hash_table(numbers),
}
for kind, column in KINDS.items():
    rows = pd.DataFrame({"x": np.arange(12.0), "label": column})
    exchanged = rows.assign(label=column.iloc[::-1].reset_index(drop=True))
    assert not rows.equals(exchanged)
    same[f"labels in the other order, {kind}"] = hash_table(rows) == hash_table(exchanged)
for change, is_same in same.items():
    print(f"{change}: {'the same digest' if is_same else 'another digest'}")
assert [change for change, is_same in same.items() if not is_same] == [
    "one pixel of the first picture",
    "labels in the other order, numbers",
    "labels in the other order, strings",
    "labels in the other order, categories",
]
PYTHON

cd "$folder"
"$folder/venv/bin/python" "$folder/digests.py"
