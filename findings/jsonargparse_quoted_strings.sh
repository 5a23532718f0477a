#!/usr/bin/env bash
# jsonargparse 4.53.0 reads a string that YAML has quoted once more where the type is Any, or a union with a number: a
# release "1.10" becomes the number 1.1, and a commit "4e999" infinity.
#
# Guess: quotes make a string of a value, in a config as in YAML.
# Seen in a config file, for `dict[str, Any]`: "1.10" is 1.1, "01067" 1067, "1e10" ten thousand million, "4e999" infinity,
# "12:30" the number 750 (sixty times twelve and thirty), "no" False, "null" None and "[1, 2]" a list. `Any` alone and
# `list[Any]` are alike; `int | str` reads "007" as 7 and "12:30" as 750, and `str | None` reads "null" as None. `dict`,
# `dict[str, str]`, `str | int` and `str` keep what is quoted, so that it is the annotation in somebody's code, and the
# order in a union, that decides. A second pair of quotes, '"1.10"', stays part of the string. A dump of the parsed
# config has the number, and so has the run that is reproduced from it. The documentation does not mention quotes. Tags,
# versions, postal codes, times and hashes of commits are such strings. LightningCLI reads its configs by these rules.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "jsonargparse[signatures]==4.53.0" PyYAML==6.0.3

cat > "$folder/quotes.py" <<'PYTHON'
import math
from typing import Any, Dict, List, Optional, Union

import yaml
from jsonargparse import ArgumentParser

TEXTS = ["1.10", "01067", "1e10", "4e999", "12:30", "no", "null", "[1, 2]"]


def read(kind, value):
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--config", action="config")
    parser.add_argument("--value", type=kind)
    with open("config.yaml", "w") as file:
        yaml.safe_dump({"value": value}, file, default_style='"')
    with open("config.yaml") as file:
        assert yaml.safe_load(file) == {"value": value}, "YAML keeps the strings"
    return parser.parse_args(["--config", "config.yaml"]).value


tags = {f"tag{number}": text for number, text in enumerate(TEXTS)}
again = [1.1, 1067, 1e10, math.inf, 750, False, None, [1, 2]]
found = {
    "dict[str, Any]": list(read(Dict[str, Any], tags).values()),
    "list[Any]": read(List[Any], TEXTS),
    "Any": [read(Any, text) for text in TEXTS],
    "dict": list(read(dict, tags).values()),
    "dict[str, str]": list(read(Dict[str, str], tags).values()),
}
for kind, values in found.items():
    print(f"{kind}: {values}")
assert found["dict[str, Any]"] == found["list[Any]"] == found["Any"] == again
assert found["dict"] == found["dict[str, str]"] == TEXTS

unions = {
    "int | str": [read(Union[int, str], text) for text in ("007", "12:30")],
    "str | None": [read(Optional[str], text) for text in ("007", "null")],
    "str | int": [read(Union[str, int], text) for text in ("007", "12:30")],
    "twice, Any": [read(Any, '"1.10"')],
}
print(unions)
assert unions == {
    "int | str": [7, 750],
    "str | None": ["007", None],
    "str | int": ["007", "12:30"],
    "twice, Any": ['"1.10"'],
}
PYTHON

cd "$folder"
"$folder/venv/bin/python" "$folder/quotes.py"
