"""The manifests for Kubernetes and SkyPilot are what these read.

`tests/contract/test_hosts.py` runs them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
TRAIN_JOB = ROOT / "configs" / "kubernetes" / "train_job.yml"
TASK = ROOT / "configs" / "skypilot" / "task.yml"
PAGE = ROOT / "docs" / "kubernetes-and-skypilot.md"

FIELDS = {
    "TrainingRuntime": {"apiVersion", "kind", "metadata", "spec"},
    "TrainingRuntime.spec": {"mlPolicy", "podGroupPolicy", "template"},
    "ReplicatedJob": {"dependsOn", "groupName", "name", "replicas", "template"},
    "JobSpec": {
        *("activeDeadlineSeconds", "backoffLimit", "backoffLimitPerIndex", "completionMode"),
        *("completions", "managedBy", "manualSelector", "maxFailedIndexes", "parallelism"),
        *("podFailurePolicy", "podReplacementPolicy", "selector", "successPolicy", "suspend"),
        *("template", "ttlSecondsAfterFinished"),
    },
    "PodFailurePolicyRule": {"action", "onExitCodes", "onPodConditions"},
    "PodFailurePolicyOnExitCodesRequirement": {"containerName", "operator", "values"},
    "PodFailurePolicyOnPodConditionsPattern": {"status", "type"},
    "TrainJobSpec": {
        *(
            "activeDeadlineSeconds",
            "initializer",
            "managedBy",
            "runtimePatches",
            "runtimeRef",
            "suspend",
            "trainer",
        ),
    },
    "Trainer": {
        "args",
        "command",
        "env",
        "image",
        "numNodes",
        "numProcPerNode",
        "resourcesPerNode",
    },
}
"""Field names of trainer.kubeflow.org/v1alpha1 in Kubeflow Trainer 2.3, and of the batch/v1 that it
takes."""

LOAD_TRAIN_JOB = """\
import json, sys
from kubeflow_trainer_api import models

for manifest in json.loads(sys.argv[1]):
    loaded = getattr(models, "TrainerV1alpha1" + manifest["kind"]).from_dict(manifest)
    assert loaded.to_dict() == manifest, loaded  # a field of another name would be lost
"""

LOAD_TASK = """\
import json, sys
import sky

task = sky.Task.from_yaml_config(json.loads(sys.argv[1]))
(resources,) = task.resources
print(json.dumps([task.num_nodes, resources.job_recovery["recover_on_exit_codes"], task.run]))
"""


def load_manifests() -> tuple[dict[str, Any], dict[str, Any]]:
    runtime, job = yaml.safe_load_all(TRAIN_JOB.read_text(encoding="utf-8"))
    return runtime, job


def load_task() -> dict[str, Any]:
    task: dict[str, Any] = yaml.safe_load(TASK.read_text(encoding="utf-8"))
    return task


def check_fields(name: str, value: Mapping[str, Any]) -> None:
    assert value.keys() <= FIELDS[name], name


def test_the_job_of_kubernetes_fails_on_a_mistake_and_starts_again_on_75() -> None:
    runtime, _ = load_manifests()
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    pod = job["template"]["spec"]
    check_fields("TrainingRuntime", runtime)
    check_fields("TrainingRuntime.spec", runtime["spec"])
    check_fields("ReplicatedJob", replicated)
    check_fields("JobSpec", job)
    by_action: dict[str, set[int]] = {}
    for rule in job["podFailurePolicy"]["rules"]:
        check_fields("PodFailurePolicyRule", rule)
        for condition in rule.get("onPodConditions", []):
            check_fields("PodFailurePolicyOnPodConditionsPattern", condition)
        if (codes := rule.get("onExitCodes")) is not None:
            check_fields("PodFailurePolicyOnExitCodesRequirement", codes)
            assert codes["operator"] == "In"
            assert codes["containerName"] == pod["containers"][0]["name"]
            by_action.setdefault(rule["action"], set()).update(codes["values"])
    assert by_action == {"FailJob": {2, 3, 4, 5}, "Ignore": {75}}
    assert pod["restartPolicy"] == "Never"


def test_the_train_job_names_its_runtime_and_where_kubeflow_puts_the_variables() -> None:
    runtime, job = load_manifests()
    check_fields("TrainJobSpec", job["spec"])
    check_fields("Trainer", job["spec"]["trainer"])
    assert job["spec"]["runtimeRef"] == {
        "kind": runtime["kind"],
        "name": runtime["metadata"]["name"],
    }
    assert runtime["spec"]["mlPolicy"]["torch"] == {}
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    labels = replicated["template"]["metadata"]["labels"]
    assert labels == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    (container,) = replicated["template"]["spec"]["template"]["spec"]["containers"]
    assert (replicated["name"], container["name"]) == ("node", "node")


def test_both_clusters_run_the_same_command() -> None:
    _, job = load_manifests()
    task = load_task()
    assert task["run"].splitlines()[-1].split() == job["spec"]["trainer"]["command"]
    assert task["resources"]["job_recovery"] == {"recover_on_exit_codes": [75]}


@pytest.mark.parametrize("file", [TRAIN_JOB, TASK], ids=["kubernetes", "skypilot"])
def test_the_page_shows_the_manifest(file: Path) -> None:
    assert f"```yml\n{file.read_text(encoding='utf-8')}```\n" in PAGE.read_text(encoding="utf-8")


def load_with(package: str, program: str, content: object, folder: Path) -> str:
    """Run a program in an environment of its own with a package of the index."""
    python = folder / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    words = [str(python), "-m", "pip", "install", "--quiet", package]
    installed = subprocess.run(words, capture_output=True, text=True, check=False)
    if installed.returncode != 0:
        pytest.skip(f"{package} cannot be installed: {installed.stderr.strip().splitlines()[-1]}")
    loaded = subprocess.run(
        [str(python), "-c", program, json.dumps(content)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={"HOME": str(folder), "PATH": "/usr/bin:/bin"},
    )
    assert loaded.returncode == 0, loaded.stderr
    return loaded.stdout


@pytest.mark.long
@pytest.mark.timeout(900)
def test_kubeflow_takes_the_manifest(tmp_path: Path) -> None:
    load_with("kubeflow-trainer-api>=2.3,<3", LOAD_TRAIN_JOB, load_manifests(), tmp_path)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_skypilot_takes_the_task(tmp_path: Path) -> None:
    task = load_task()
    printed = load_with("skypilot>=0.14,<0.16", LOAD_TASK, task, tmp_path)
    assert json.loads(printed.splitlines()[-1]) == [2, [75], task["run"]]
