#!/usr/bin/env bash
# MLflow 3.17.2: search_logged_models() finds models by a value that their metric had once, where search_runs() goes by the
# newest.
#
# A logged model whose accuracy was 0.95 at step 0 and is 0.5 at step 1 is found by `metrics.accuracy > 0.9`, and by
# `metrics.accuracy < 0.6` too, as is one that went the other way. The order goes by the newest value, so that one call
# filters by one value and sorts by another; search_runs() filters and sorts by the newest. The documentation says that
# values of any data set count, and nothing of steps. A filter for "good enough" thus lets through each model that was so at
# any step, such as one that collapsed later.
#
# Seen with Python 3.11.7 on Linux: "models above 0.9 ['collapsed', 'good']", "models below 0.6 ['collapsed', 'good']",
# "runs above 0.9 ['good']". The script ends with 1 as soon as a version goes by the newest value.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet mlflow==3.17.2

cat > "$folder/search.py" <<'PYTHON'
import sys

from mlflow import MlflowClient

client = MlflowClient(f"sqlite:///{sys.argv[1]}/mlflow.db")
experiment = client.create_experiment("accuracies")
for name, values in (("good", (0.5, 0.95)), ("collapsed", (0.95, 0.5))):
    run_id = client.create_run(experiment, run_name=name).info.run_id
    model = client.create_logged_model(experiment, name=name, source_run_id=run_id)
    for step, value in enumerate(values):
        client.log_metric(
            run_id, "accuracy", value, timestamp=1000 + step, step=step, model_id=model.model_id
        )


def find_models(condition):
    return sorted(model.name for model in client.search_logged_models([experiment], condition))


def find_runs(condition):
    return sorted(run.info.run_name for run in client.search_runs([experiment], condition))


above = find_models("metrics.accuracy > 0.9")
below = find_models("metrics.accuracy < 0.6")
runs_above = find_runs("metrics.accuracy > 0.9")
print("models above 0.9", above)
print("models below 0.6", below)
print("runs above 0.9", runs_above)
assert runs_above == ["good"], "the search for runs has changed"
assert above == below == ["collapsed", "good"], "the search for models has changed"
PYTHON

"$folder/venv/bin/python" "$folder/search.py" "$folder"
