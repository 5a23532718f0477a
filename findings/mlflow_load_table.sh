#!/usr/bin/env bash
# MLflow 3.17.2: mlflow.log_table and mlflow.load_table do not give a table back as it was, and logging a second row
# changes the first one in the artifact.
#
# Guess: load_table gives the DataFrame that was logged.
# Seen, with pandas 3.1.1: postal codes "01067" and "00501" come back as 1067 and 501, a serial number of 20 digits as a
# double, a probability of 2e-11 as 0.0 and 1/3 with ten digits, an infinite loss as NaN. Whole numbers in a column that
# is called `timestamp` become dates, months in one called `date` too, and real dates in one called `day` become strings.
# The numbers are lost in the artifact (pandas writes ten decimal places), the strings when it is read, as pandas guesses
# the types of a table of JSON anew. A second call of log_table with the same name appends: it reads the artifact, adds
# its rows and writes all again. After "01067" the file holds "01067", and after a call with "SW1A" it holds the number
# 1067, so that the zero is lost for good.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet mlflow==3.17.2 pandas==3.1.1

cat > "$folder/tables.py" <<'PYTHON'
import math
from pathlib import Path

import mlflow
import pandas as pd

mlflow.set_tracking_uri("sqlite:///runs.db")
ROWS = pd.DataFrame(
    {
        "postcode": ["01067", "00501"],
        "serial": ["12345678901234567890", "2"],
        "probability": [2e-11, 1 / 3],
        "loss": [math.inf, 1.0],
        "timestamp": [1600000000, 1600000001],
        "date": ["2020-01", "2021-01"],
        "day": pd.to_datetime(["2020-01-01", "2021-01-01"]),
    }
)
stored = []
with mlflow.start_run() as run:
    run_id = run.info.run_id
    mlflow.log_table(ROWS, "rows.json")
    for postcode in ("01067", "SW1A"):
        mlflow.log_table({"postcode": [postcode]}, "postcodes.json")
        path = mlflow.artifacts.download_artifacts(run_id=run_id, artifact_path="postcodes.json")
        stored.append(Path(path).read_text())
loaded = mlflow.load_table("rows.json", run_ids=[run_id])
for name in ROWS:
    print(f"{name}: {ROWS[name].tolist()} -> {loaded[name].tolist()}")
print("after one call and after two:", stored)
assert loaded["postcode"].tolist() == [1067, 501]
assert loaded["serial"].tolist() == [12345678901234567890.0, 2.0]
assert loaded["probability"][0] == 0.0 and 1e-11 < abs(loaded["probability"][1] - 1 / 3) < 1e-10
assert math.isnan(loaded["loss"][0])
assert [loaded[name].dtype.kind for name in ("timestamp", "date")] == ["M", "M"]
assert loaded["day"].tolist() == ["2020-01-01T00:00:00.000", "2021-01-01T00:00:00.000"]
assert '"01067"' in stored[0]
assert "01067" not in stored[1] and "1067" in stored[1]
PYTHON

cd "$folder"
MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR=false "$folder/venv/bin/python" "$folder/tables.py"
