#!/usr/bin/env bash
# MLflow 3.17.2 with SQLite: of two values of a metric with one step and one millisecond the larger is the run's
# value, not the later; there NaN counts as 0.
#
# Guess: the value that was logged last is the one in run.data.metrics, by which the page of runs sorts and
# search_runs filters.
# Seen: the latest of a metric is the largest by step, then time, then value. 1.0 and then 0.5 at step 5 in one
# millisecond leave 1.0, and the history lists them as 0.5, 1.0. 2.0 at step 3 logged a second after 1.0 at step 5
# leaves 1.0. After 0.5 a NaN of the same moment is not seen; after -0.5 it is, for it is stored as 0 and a mark. Two
# equal values are one row. Infinity is 1.7976931348623157e+308, a finite number for whoever reads it: a filter `loss
# > -1` finds it. NaN is last in either order and in no filter. A loop that logs twice at one step, as a metric of a
# training and one of its summary under one name, so keeps the larger where the machine is quick, and the later where
# it is slow.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet mlflow==3.17.2

cat > "$folder/moment.py" <<'PYTHON'
import math
import sys

from mlflow import MlflowClient

client = MlflowClient(f"sqlite:///{sys.argv[1]}/mlflow.db")
experiment = client.create_experiment("moments", artifact_location=sys.argv[1])


def log(*values):
    """Log (value, step, timestamp in ms) in this order, and return the run's value and its history."""
    run = client.create_run(experiment).info.run_id
    for value, step, moment in values:
        client.log_metric(run, "loss", value, step=step, timestamp=moment)
    history = [metric.value for metric in client.get_metric_history(run, "loss")]
    latest = client.get_run(run).data.metrics["loss"]
    print(values, "->", latest, history)
    return latest, history


assert log((1.0, 5, 1000), (0.5, 5, 1000)) == (1.0, [0.5, 1.0])
assert log((1.0, 5, 1000), (0.5, 5, 1001))[0] == 0.5
assert log((1.0, 5, 1000), (2.0, 3, 2000))[0] == 1.0
assert log((1.0, 5, 1000), (1.0, 5, 1000)) == (1.0, [1.0])
assert log((0.5, 1, 1000), (math.nan, 1, 1000))[0] == 0.5
assert math.isnan(log((-0.5, 1, 1000), (math.nan, 1, 1000))[0])

experiment = client.create_experiment("sizes", artifact_location=sys.argv[1])
for value in (0.3, math.nan, math.inf, -math.inf, 0.1):
    log((value, 1, 1000))


def search(**options):
    return [run.data.metrics["loss"] for run in client.search_runs([experiment], **options)]


ascending, descending = (search(order_by=[f"metrics.loss {order}"]) for order in ("ASC", "DESC"))
print(ascending, descending, search(filter_string="metrics.loss > -1"))
largest = sys.float_info.max
assert ascending[:4] == [-largest, 0.1, 0.3, largest] and math.isnan(ascending[4])
assert descending[:4] == [largest, 0.3, 0.1, -largest] and math.isnan(descending[4])
assert sorted(search(filter_string="metrics.loss > -1")) == [0.1, 0.3, largest]
assert search(filter_string="metrics.loss = 0") == []
PYTHON

"$folder/venv/bin/python" "$folder/moment.py" "$folder"
