#!/usr/bin/env bash
# MLflow 3.17.2 takes whole numbers of 64 bits for a column of `double` only where each of them is 0 or 1.
#
# Seen, for a signature with one column of `double` and DataFrames whose column is int64, as pandas.read_csv makes of whole
# numbers: [0, 1] is converted, [0, 2] is refused ("Can not safely convert int64 to float64"). A column of int32 is taken
# with any numbers, and one that pandas has turned into float64 because a cell is missing too. So whether a table is accepted
# depends on its rows. A column of the type `any` is taken as it is.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet mlflow==3.17.2

cat > "$folder/columns.py" <<'PYTHON'
import io

import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.models import validate_schema
from mlflow.types.schema import AnyType, ColSpec, Schema


def is_taken(text, kind, **options):
    frame = pd.read_csv(io.StringIO(text), **options)
    try:
        validate_schema(frame, Schema([ColSpec(kind, "age")]))
    except MlflowException as error:
        print(f"{frame['age'].dtype} {frame['age'].tolist()} refused: {str(error).splitlines()[0]}")
        return False
    print(f"{frame['age'].dtype} {frame['age'].tolist()} taken as {kind}")
    return True


assert is_taken("age\n0\n1\n", "double")
assert not is_taken("age\n0\n2\n", "double")
assert is_taken("age\n0\n2\n", "double", dtype="int32")
assert is_taken("age,b\n0,1\n2,1\n,1\n", "double")
assert is_taken("age\n0\n2\n", AnyType())
PYTHON

"$folder/venv/bin/python" "$folder/columns.py"
