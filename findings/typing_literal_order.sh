#!/usr/bin/env bash
# In CPython 3.11 the order of the values of an optional Literal depends on which module was imported first.
#
# Seen with 3.11.7: `Literal["min", "max"]` and `Literal["max", "min"]` keep their own order, but are equal, and `typing`
# caches unions by equality: `Literal["max", "min"] | None`, evaluated after `Literal["min", "max"] | None` anywhere in the
# process, is the same object as that, with the values `("min", "max")`. jsonargparse 4.53 and other readers of annotations
# then list the choices of the second argument in the order of the first. A JSON schema or a help text that is generated
# from the signatures of several modules so changes when their imports change places; lightkit's did, until all its
# modules wrote the two values in one order.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "jsonargparse[signatures]==4.53.0"

cat > "$folder/one.py" <<'PYTHON'
from __future__ import annotations

from typing import Literal


def best(mode: Literal["min", "max"] | None = None): ...
PYTHON
cat > "$folder/other.py" <<'PYTHON'
from __future__ import annotations

from typing import Literal


def judge(mode: Literal["max", "min"] | None = None): ...
PYTHON
cat > "$folder/order.py" <<'PYTHON'
import importlib
import sys
from typing import get_args, get_type_hints

from jsonargparse import ArgumentParser

functions = {"one": "best", "other": "judge"}
for name in sys.argv[1:]:
    function = getattr(importlib.import_module(name), functions[name])
    literal = get_args(get_type_hints(function)["mode"])[0]
    parser = ArgumentParser()
    parser.add_function_arguments(function)
    words = " ".join(parser.format_help().split())
    shown = words.partition("(type: ")[2].partition(",  default")[0].partition("], default")[0]
    print(name, get_args(literal), f"help: {shown}")
PYTHON

cd "$folder"
first=$(venv/bin/python order.py one other)
second=$(venv/bin/python order.py other one)
printf '%s\n\n%s\n' "$first" "$second"
test "$(grep -c "('min', 'max')" <<< "$first")" = 2
test "$(grep -c "('max', 'min')" <<< "$second")" = 2
test "$(grep -c "help: Optional\[Literal\['min', 'max'\]" <<< "$first")" = 2
test "$(grep -c "help: Optional\[Literal\['max', 'min'\]" <<< "$second")" = 2
