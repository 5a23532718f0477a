#!/usr/bin/env bash
# Importing mlflow.pytorch 3.17.2 sets the level of Python's root logger to ERROR.
#
# Seen: a warning of a logger without a level of its own is printed before `import mlflow.pytorch` and is lost after it, in
# the whole process; the root logger has the level 40 and a handler that keeps the standard error of that moment, where it
# had 30 and none. `import mlflow` alone, and mlflow.sklearn, leave both as they were. `logging.basicConfig(level=...)` that
# a program calls later does nothing, since the root logger has a handler by then. A program that imports it late, such as
# one that registers a model at its end, loses the warnings of its own modules from there on, unless their loggers have
# levels; lightkit's have.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet mlflow==3.17.2 torch==2.15.0 pytorch-lightning==2.6.6

cat > "$folder/levels.py" <<'PYTHON'
import importlib
import io
import logging
import sys

import pytorch_lightning  # of which mlflow.pytorch is not the first import
import torch

own = logging.getLogger("my_program")
root = logging.getLogger()


def warns():
    kept = sys.stderr
    sys.stderr = io.StringIO()
    try:
        own.warning("a warning")
        return "a warning" in sys.stderr.getvalue()
    finally:
        sys.stderr = kept


seen = {}
for name in ("logging", "mlflow", "mlflow.sklearn", "mlflow.pytorch"):
    try:
        importlib.import_module(name)
    except ImportError:
        continue
    seen[name] = (root.level, len(root.handlers), warns())
    print(f"after import {name}: level {root.level}, {len(root.handlers)} handlers, a warning is shown: {seen[name][2]}")
assert seen["mlflow"] == (30, 0, True), seen
assert seen["mlflow.pytorch"] == (40, 1, False), seen
logging.basicConfig(level=logging.INFO)
assert root.level == 40, root.level
PYTHON

CUDA_VISIBLE_DEVICES= "$folder/venv/bin/python" "$folder/levels.py"
