#!/usr/bin/env bash
# MLflow 3.17.2: a metric that is NaN is 0.0 in a logged model, so that the search for the smallest loss finds the model
# that has diverged.
#
# log_metric(..., model_id=...) records a metric in the run and in the logged model. The database keeps a NaN of the run as
# 0 with a mark (is_nan), and gives NaN back. The table of a logged model's metrics has no such mark: the 0 stays, and is
# what get_logged_model() and search_logged_models() return. Ordered by metrics.loss, the diverged model is the first;
# `metrics.loss < 0.1` finds it alone. search_runs() on the same runs puts NaN last, and finds none. That is so with
# each database, SQLite included, the default.
#
# Seen with Python 3.11.7 on Linux: "run nan, model 0.0", "models by loss ['diverged', 'good']", "models below 0.1
# ['diverged']", "runs below 0.1 []". The script ends with 1 as soon as a version keeps the NaN, or leaves such a model out.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet mlflow==3.17.2

cat > "$folder/search.py" <<'PYTHON'
import math
import sys

from mlflow import MlflowClient

client = MlflowClient(f"sqlite:///{sys.argv[1]}/mlflow.db")
experiment = client.create_experiment("losses")
models = {}
for name, loss in (("good", 0.5), ("diverged", math.nan)):
    run = client.create_run(experiment, run_name=name)
    model = client.create_logged_model(experiment, name=name, source_run_id=run.info.run_id)
    client.log_metric(run.info.run_id, "loss", loss, model_id=model.model_id)
    models[name] = (run.info.run_id, model.model_id)

run_id, model_id = models["diverged"]
of_run = client.get_run(run_id).data.metrics["loss"]
(of_model,) = [metric.value for metric in client.get_logged_model(model_id).metrics]
print(f"run {of_run}, model {of_model}")

by_loss = [{"field_name": "metrics.loss", "ascending": True}]
ordered = [model.name for model in client.search_logged_models([experiment], order_by=by_loss)]
below = [model.name for model in client.search_logged_models([experiment], "metrics.loss < 0.1")]
runs_below = [run.info.run_name for run in client.search_runs([experiment], "metrics.loss < 0.1")]
print("models by loss", ordered)
print("models below 0.1", below)
print("runs below 0.1", runs_below)
assert math.isnan(of_run), "the run has another value"
assert of_model == 0.0, "the model has another value"
assert ordered == ["diverged", "good"], "the order has changed"
assert below == ["diverged"], "the search for models has changed"
assert runs_below == [], "the search for runs has changed"
PYTHON

"$folder/venv/bin/python" "$folder/search.py" "$folder"
