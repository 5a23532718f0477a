#!/usr/bin/env bash
# torch 2.15.0 on x86-64 CPUs with AMX, bfloat16: a sample of NaN makes the sample before it in the batch NaN.
#
# Guess: a row of the output of nn.Linear depends on its own row of the input alone.
# Seen for batches of 64 rows whose row 5 is NaN, under torch.autocast in bfloat16: with 100 features row 4 of the output
# is NaN too, and so it is with 33 and 1,000; with 64, 96 and 1,024 it is not. Infinity, the usual mark of what is to be
# ignored, does the same. AMX reads blocks of 32 features; oneDNN 3.13.3 fills the last one up with what follows in memory,
# the next row, and multiplies that by zero, which is right for numbers and NaN for NaN and infinity. Which rows it hits
# depends on the numbers of rows and of features. So one bad sample spoils the result of a good one, which one depends on
# the order of the batch, and a search for the sample that has NaN finds two. float32 and float16, an output of one
# feature, and AMX held off (ONEDNN_MAX_CPU_ISA) are right. oneDNN's issue 5717 reports it for a batched product; torch's
# pages do not mention it.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.15.0 numpy==2.4.6

cat > "$folder/rows.py" <<'PYTHON'
import sys

import torch

torch.set_num_threads(1)
torch.manual_seed(0)
BAD = 5


def find_spoilt(num_features, value=float("nan"), dtype=torch.bfloat16, num_outputs=64):
    """Return the rows of the output that are not finite, without the row of the bad input."""
    layer = torch.nn.Linear(num_features, num_outputs)
    rows = torch.randn(64, num_features)
    rows[BAD] = value
    with torch.no_grad(), torch.autocast("cpu", dtype, enabled=dtype is not torch.float32):
        output = layer(rows)
    return [row for row in range(64) if row != BAD and not output[row].isfinite().all()]


found = {num: find_spoilt(num) for num in (33, 64, 96, 100, 1000, 1024)}
others = {
    "float32": find_spoilt(100, dtype=torch.float32),
    "float16": find_spoilt(100, dtype=torch.float16),
    "one output": find_spoilt(100, num_outputs=1),
    "a large number": find_spoilt(100, value=1e30),
}
infinite = find_spoilt(100, value=float("inf"))
print(f"{sys.argv[1]}: by features {found}, of infinity {infinite}, {others}")
assert not any(others.values())
if sys.argv[1] == "AMX":
    assert found == {33: [4], 64: [], 96: [], 100: [4], 1000: [4], 1024: []}
    assert infinite == [4]
else:
    assert not any(found.values())
    assert not infinite
PYTHON

if grep -q amx_bf16 /proc/cpuinfo; then
    "$folder/venv/bin/python" "$folder/rows.py" AMX
    ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 "$folder/venv/bin/python" "$folder/rows.py" "without AMX"
else
    echo "this CPU has no AMX"
fi
