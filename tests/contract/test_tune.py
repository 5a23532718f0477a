"""`lightkit tune`: variants are measured in short fits, and no run is left."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
import yaml

from tests.contract.examples import MY_PROJECT, SMALL
from tests.contract.workspace import ForkServer, Result, Workspace

QUICK = {**SMALL, "accelerator": {"precision": "32-true", "compile": False, "threads": 1}}
"""Fixes what takes long to try; `memory_format` and `fused` are left."""


@pytest.fixture(scope="module")
def tuned(
    tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer
) -> Iterator[tuple[Workspace, Result]]:
    """`lightkit tune` of a small config."""
    workspace = Workspace(tmp_path_factory.mktemp("tuned") / "work", fork_server)
    workspace.write("my_project.py", MY_PROJECT)
    workspace.write(
        "quick.yaml", {key: value for key, value in QUICK.items() if key != "accelerator"}
    )
    workspace.write(
        "fixed.yaml", {"trainer": {"precision": "32-true"}, "accelerator": QUICK["accelerator"]}
    )
    yield workspace, workspace.run("tune", "-c", "quick.yaml", "-c", "fixed.yaml")
    workspace.close()


def test_tune_ends_with_0_and_prints_a_number_for_each_variant(
    tuned: tuple[Workspace, Result],
) -> None:
    _, result = tuned
    table = [line for line in result.ok().out.splitlines() if re.match(r"32-true\b", line)]
    assert len(table) >= 2
    assert any("fused" in line for line in table)
    assert all(re.search(r"\s\d+(\.\d+)?\s", line) for line in table)


def test_tune_writes_a_layer_with_what_gains_and_each_number(
    tuned: tuple[Workspace, Result],
) -> None:
    workspace, result = tuned
    layer = (workspace.folder / "tuned.yaml").read_text(encoding="utf-8")
    assert layer in result.out
    assert layer.startswith("# lightkit tune -c quick.yaml -c fixed.yaml\n")
    block = yaml.safe_load(layer)["accelerator"]
    assert {*block} <= {"memory_format", "fused"}
    assert len(
        re.findall(r"^  \w+: .*  # [\d.]+ ms a step, before [\d.]+$", layer, re.MULTILINE)
    ) == len(block)
    workspace.run("check", "-c", "quick.yaml", "-c", "fixed.yaml", "-c", "tuned.yaml").ok()


def test_tune_leaves_no_run_and_changes_no_config(tuned: tuple[Workspace, Result]) -> None:
    workspace, _ = tuned
    assert workspace.runs == []
    assert not list(workspace.folder.rglob("*.ckpt"))
    assert "memory_format" not in (workspace.folder / "quick.yaml").read_text(encoding="utf-8")


def test_a_batch_size_and_a_learning_rate_come_from_lightnings_tuner(
    tuned: tuple[Workspace, Result],
) -> None:
    workspace, _ = tuned
    fixed = [
        f"--accelerator.{key}" for key in ("memory_format=contiguous", "fused=false", "tf32=false")
    ]
    fixed += ["--optimizer.class_path=SGD", "--optimizer.init_args.lr=0.01"]
    words = ("-c", "quick.yaml", "-c", "fixed.yaml", *fixed, "--output", "sizes.yaml", "--json")
    found = json.loads(workspace.run("tune", *words, "--batch-size", "--learning-rate").ok().out)
    block = yaml.safe_load((workspace.folder / "sizes.yaml").read_text(encoding="utf-8"))[
        "accelerator"
    ]
    assert block == found["chosen"]
    assert {*block} <= {"batch_size", "learning_rate"}
    assert block["batch_size"] > 4
    workspace.run("check", *words[:4], *fixed, "-c", "sizes.yaml").ok()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--budget", "soon"), r"--budget.*'soon'"),
        (("--run", "latest"), r"--run.*-c"),
        (("--learning-rate",), r"learning_rate: auto: Net has no argument learning_rate or lr"),
        (("--output", "no/such/folder.yaml"), r"--output no/such/folder\.yaml"),
        (("--trainer.precision=atuo",), r"precision.*atuo"),
    ],
    ids=["budget", "run", "rate", "output", "value"],
)
def test_an_error_is_reported_before_anything_is_measured(
    words: tuple[str, ...], says: str, tuned: tuple[Workspace, Result]
) -> None:
    result = tuned[0].run("tune", "-c", "quick.yaml", *words)
    assert (result.code, result.out) == (2, "")
    assert re.search(says, result.err)


def test_an_exception_in_the_model_ends_tune_with_1(workspace: Workspace) -> None:
    result = workspace.run(
        "tune", "-c", "small.yaml", "--model=my_project.FailsInStep", "--accelerator.compile=false"
    )
    assert result.code == 1
    assert "batches are out of stock" in result.err
