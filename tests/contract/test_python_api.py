"""`lightkit.fit`, `load_run`, `list_runs` and `load_config` in a script that goes on afterwards.

As a notebook does.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.contract.workspace import Result, Workspace

ROOT = Path(__file__).parents[2]


def run_script(workspace: Workspace, text: str, *, cold: bool = False) -> tuple[Result, Any]:
    """Run a script to its end, and return what it gave to `show` last."""
    head = "import json\ndef show(value):\n    print('shown ' + json.dumps(value, default=str))\n"
    workspace.write("script.py", head + text)
    result = workspace.run(script="script.py", cold=cold).ok()
    shown = [
        line.removeprefix("shown ") for line in result.out.splitlines() if line.startswith("shown ")
    ]
    return result, json.loads(shown[-1])


def test_the_python_api_reads_configs_and_runs_without_torch(finished: Workspace) -> None:
    script = """\
import sys
import lightkit
config = lightkit.load_config(
    ["lightkit:base", "small.yaml"], {"trainer.max_epochs": 3, "run.name": "other"}
)
run = lightkit.load_run("latest")
assert {"fit", "load_run", "list_runs", "load_config", "LightkitCLI"} <= set(dir(lightkit))
show(
    {
        "config": config,
        "folder": run.folder,
        "metrics": run.metrics,
        "summary": run.summary,
        "saved": run.config,
        "runs": lightkit.list_runs(),
        "report": run.report(),
        "torch": "torch" in sys.modules,
    }
)
"""
    shown = run_script(finished, script, cold=True)[1]
    assert not shown["torch"]
    assert shown["config"]["trainer"]["max_epochs"] == 3
    assert shown["config"]["trainer"]["num_sanity_val_steps"] == 0
    assert shown["folder"] == str(finished.only_run)
    assert [row["epoch"] for row in shown["metrics"]] == [0, 1]
    assert shown["summary"]["status"] == "done"
    assert shown["saved"]["trainer"]["max_epochs"] == 2
    assert [record["folder"] for record in shown["runs"]] == [str(finished.only_run)]
    assert shown["report"] == str(finished.only_run / "report.html")
    assert "<html" in (finished.only_run / "report.html").read_text(encoding="utf-8")


def test_fit_in_a_script_returns_its_run_and_leaves_the_process_as_it_was(
    workspace: Workspace,
) -> None:
    script = """\
import signal, sys, threading, warnings
import lightkit
def state():
    handlers = [
        signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    ]
    return [
        handlers,
        sys.excepthook,
        threading.excepthook,
        warnings.showwarning,
        sys.path[:],
        warnings.filters[:],
    ]
import pytorch_lightning  # adds filters of its own
before = state()
run = lightkit.fit(
    "small.yaml", {"trainer": {"max_epochs": 1}, "model.tags": ["a", "b"]}, quiet=True
)
assert state() == before
again = lightkit.fit(["small.yaml"], {"trainer.max_epochs": 1})
tags = run.config["model"]["init_args"]["tags"]
show({"folder": run.folder, "again": again.folder, "metrics": run.metrics, "tags": tags})
"""
    result, shown = run_script(workspace, script)
    assert [shown["folder"], shown["again"]] == [str(folder) for folder in workspace.runs]
    assert len(shown["metrics"]) == 1
    assert shown["tags"] == ["a", "b"]
    assert result.out.count("best ") == 1  # the second is not quiet


def test_errors_are_exceptions_with_the_text_of_the_command(workspace: Workspace) -> None:
    script = """\
import lightkit
from lightkit.errors import LightkitError
texts = []
for call in (
    lambda: lightkit.fit("small.yaml", {"trainer.max_epoch": 3}),
    lambda: lightkit.load_config("small.yaml", {"trainer.max_epoch": 3}),
    lambda: lightkit.fit("small.yaml", {"ckpt_path": "none.ckpt"}),
    lambda: lightkit.load_run("nothing"),
):
    try:
        call()
    except LightkitError as error:
        texts.append([type(error).__name__, error.exit_code, str(error)])
show(texts)
"""
    fit, config, checkpoint, run = run_script(workspace, script)[1]
    command = workspace.run("fit", "-c", "small.yaml", "trainer.max_epoch=3")
    assert fit == ["ConfigError", command.code, command.err.strip().removeprefix("error: ")]
    assert config == fit
    command = workspace.run("fit", "-c", "small.yaml", "ckpt_path=none.ckpt")
    assert checkpoint[1:] == [command.code, command.err.strip().removeprefix("error: ")]
    assert run[:2] == ["ConfigError", 2]
    assert "There is no run 'nothing'" in run[2]


def test_arguments_of_another_type_are_errors_and_numbers_of_numpy_are_numbers(
    workspace: Workspace,
) -> None:
    script = """\
from pathlib import Path
import lightkit, numpy, torch
from lightkit.errors import ConfigError
texts = []
for config, overrides in (
    ({"trainer": {"max_epochs": 3}}, None),
    ("small.yaml", ["trainer.max_epochs=3"]),
    ("small.yaml", {"trainer.max_epochs": object()}),
):
    try:
        lightkit.load_config(config, overrides)
    except ConfigError as error:
        texts.append(str(error))
numbers = {"trainer.max_epochs": numpy.int64(3), "trainer.gradient_clip_val": numpy.float32(0.5)}
found = lightkit.load_config("small.yaml", numbers)["trainer"]
arrays = {"data.init_args.a": numpy.array([3]), "data.init_args.b": torch.tensor([0.5, 1.0])}
lists = lightkit.load_config("small.yaml", arrays)["data"]["init_args"]
show([*texts, found["max_epochs"], found["gradient_clip_val"], [lists["a"], lists["b"]]])
"""
    no_files, no_mapping, no_value, epochs, clip, lists = run_script(workspace, script)[1]
    assert no_files.startswith("config: expected a file")
    assert "overrides" in no_files
    assert no_mapping.startswith("overrides: expected a dictionary by dotted key")
    assert no_value.startswith("trainer.max_epochs: expected text")
    assert no_value.endswith("got a object")
    assert (epochs, clip, lists) == (3, 0.5, [[3], [0.5, 1.0]])


def test_a_run_in_python_gives_its_model_and_its_predictions(classifier: Workspace) -> None:
    script = """\
import lightkit, torch
run = lightkit.load_run("pictures")
module = run.model()
best = torch.load(run.folder / "checkpoints" / "best.ckpt", weights_only=True)["state_dict"]
same = all(torch.equal(value, best[name]) for name, value in module.state_dict().items())
show({"class": type(module).__name__, "training": module.training, "same": same,
      "rows": run.predict(["pictures/reds/0.png", "pictures/blues"], top_k=1)})
"""
    _, shown = run_script(classifier, script)
    assert (shown["class"], shown["training"], shown["same"]) == ("ImageClassifier", False, True)
    words = [
        "predict",
        "--run",
        "pictures",
        "pictures/reds/0.png",
        "pictures/blues",
        "--top-k=1",
        "-o",
        "table.jsonl",
    ]
    classifier.run(*words).ok()
    table = (classifier.folder / "table.jsonl").read_text(encoding="utf-8").splitlines()
    assert shown["rows"] == [json.loads(line) for line in table]
    assert set(shown["rows"][0]) == {"path", "label", "probability", "error"}


@pytest.mark.parametrize(
    ("signum", "expected"),
    [("SIGINT", "KeyboardInterrupt"), ("SIGTERM", "own handler")],
    ids=["SIGINT", "SIGTERM"],
)
def test_a_signal_reaches_the_script_once_the_run_is_recorded_and_the_same_call_resumes(
    signum: str, expected: str, workspace: Workspace
) -> None:
    script = f"""\
import signal
import lightkit
class Stopped(Exception): pass
def handler(number, frame): raise Stopped("own handler")
signal.signal(signal.SIGTERM, handler)
sender = {{"class_path": "my_project.SendSignal",
          "init_args": {{"hook": "on_train_batch_start", "step": 9,
                        "signum": int(signal.{signum})}}}}
try:
    lightkit.fit("small.yaml", {{"callbacks.sender": sender}})
except (KeyboardInterrupt, Stopped) as error:
    raised = str(error) or type(error).__name__
status = lightkit.load_run("small").summary["status"]
run = lightkit.fit("small.yaml", {{"callbacks.sender": sender}})
show([raised, status, run.summary["status"], len(lightkit.list_runs()), len(run.metrics)])
"""
    assert run_script(workspace, script)[1] == [expected, "preempted", "done", 1, 2]


@pytest.mark.long
def test_a_launch_of_two_processes_returns_its_run_or_raises_its_error(
    workspace: Workspace,
) -> None:
    script = """\
import lightkit
from lightkit.errors import LightkitError
run = lightkit.fit("small.yaml", {"accelerator.num_processes": 2, "trainer.max_epochs": 1})
try:
    lightkit.fit(
        "small.yaml", {"accelerator.num_processes": 2, "model.class_path": "my_project.FailsInStep"}
    )
except LightkitError as error:
    show([str(run.folder), str(error)])
"""
    folder, text = run_script(workspace, script, cold=True)[1]
    assert folder == str(workspace.runs[0])
    assert "batches are out of stock" in text


def test_mypy_knows_the_types_of_the_python_api(tmp_path: Path) -> None:
    script = """\
import lightkit

run = lightkit.fit("small.yaml", {"trainer.max_epochs": 1})
reveal_type(run.metrics[0]["val/loss"])
reveal_type(lightkit.load_run("latest").predict("photos")[0])
reveal_type(lightkit.list_runs(metric="test/accuracy"))
lightkit.fitt("small.yaml")
lightkit.fit(3)
"""
    (tmp_path / "script.py").write_text(script, encoding="utf-8")
    inside = (  # it takes a minute
        "[mypy]\n[mypy-lightkit.cli.*,torch.*,pytorch_lightning.*]\nfollow_imports = skip\n"
    )
    (tmp_path / "mypy.ini").write_text(inside, encoding="utf-8")
    words = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file=mypy.ini",
        "--no-error-summary",
        "script.py",
    ]
    output = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, check=False
    ).stdout.splitlines()
    types = [
        line.partition("Revealed type is ")[2].replace("builtins.", "")
        for line in output
        if "Revealed" in line
    ]
    assert types == ['"float"', '"dict[str, Any]"', '"list[dict[str, Any]]"']
    errors = [line for line in output if ": error: " in line]
    assert 'script.py:7: error: Module has no attribute "fitt"' in errors[0]
    assert errors[1].startswith(
        'script.py:8: error: Argument 1 to "fit" has incompatible type "int"'
    )
    assert len(errors) == 2
    assert (ROOT / "lightkit" / "py.typed").is_file()
