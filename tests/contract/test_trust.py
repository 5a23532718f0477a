"""What a file can make a command do: nothing that the user's own words do not name."""

from __future__ import annotations

import hashlib
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.contract.workspace import Workspace, load_checkpoint

CANARY = "ran"
DEEP = """
import pathlib

import torch
from my_project import Net

pathlib.Path("imported").touch()


class Deep(Net):
    pass


class Layer(torch.nn.Module):
    pass
"""
KEEPS_A_PATH = """
import pathlib

from my_project import Net


class Kept(Net):
    def __init__(self):
        super().__init__()
        self.save_hyperparameters({"where": pathlib.Path("a")})
"""


class Touches:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, (f"touch {CANARY}",)


class Prints:
    """Would print when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("printed",)


@pytest.fixture(scope="session")
def content(finished_original: Path) -> dict[str, Any]:
    """The content of a checkpoint of `small.yaml`'s network, which tests must not change."""
    (path,) = finished_original.glob("runs/small/2*/checkpoints/last.ckpt")
    return load_checkpoint(path)


@pytest.fixture
def hostile(content: dict[str, Any], workspace: Workspace) -> Workspace:
    """A workspace with `a.ckpt`, which fits `small.yaml` and runs code when it is unpickled."""
    torch.save({**content, "more": Touches()}, workspace.folder / "a.ckpt")
    return workspace


def assert_refused(workspace: Workspace, code: int, err: str, file: str) -> None:
    assert code == 2, err
    assert re.search(rf"error: .*{re.escape(file)} holds \w+\.system\b", err)
    assert "--trust" in err
    assert not (workspace.folder / CANARY).exists()


# -- code in files ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [("fit",), ("test",), ("predict",), ("check", "--deep")],
    ids=["fit", "test", "predict", "check --deep"],
)
def test_a_checkpoint_that_runs_code_is_refused_and_its_code_does_not_run(
    words: tuple[str, ...], hostile: Workspace
) -> None:
    result = hostile.run(*words, "-c", "small.yaml", "--ckpt_path=a.ckpt")
    assert_refused(hostile, result.code, result.err, "a.ckpt")
    assert hostile.runs == []


@pytest.mark.parametrize(
    "words",
    [("test",), ("export", "--format", "safetensors")],
    ids=["test", "export"],
)
def test_a_run_whose_checkpoint_runs_code_is_refused_even_with_a_true_digest(
    words: tuple[str, ...], finished: Workspace, content: dict[str, Any]
) -> None:
    path = finished.only_run / "checkpoints" / "best.ckpt"
    torch.save({**content, "more": Touches()}, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    path.with_name("best.ckpt.sha256").write_text(f"{digest}  best.ckpt\n", encoding="utf-8")
    result = finished.run(*words, "--run", "latest")
    assert_refused(finished, result.code, result.err, "best.ckpt")


def test_weights_that_run_code_are_refused_and_their_code_does_not_run(
    workspace: Workspace,
) -> None:
    torch.save({"weight": Touches()}, workspace.folder / "weights.pt")
    words = ("--model=ImageClassifier", "--model.num_classes=2", "--model.weights=weights.pt")
    result = workspace.run("fit", "-c", "small.yaml", *words)
    assert_refused(workspace, result.code, result.err, "weights.pt")


def test_trust_on_the_command_line_allows_it_and_one_warning_says_what(hostile: Workspace) -> None:
    result = hostile.run("test", "-c", "small.yaml", "--ckpt_path=a.ckpt", "--trust").ok()
    assert (hostile.folder / CANARY).exists()
    assert len(re.findall(r"--trust.*a\.ckpt.*\w+\.system", result.err)) == 1


@pytest.mark.parametrize(
    ("words", "environ", "says"),
    [
        (("-c", "more.yaml"), {}, r"trust.*command line"),
        ((), {"LIGHTKIT_TRUST": "1"}, r"(?i)trust.*command line"),
        (("--weights_only=false",), {}, r"a\.ckpt holds"),
        ((), {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}, r"a\.ckpt holds"),
    ],
    ids=["config", "variable", "weights_only", "torch's variable"],
)
def test_nothing_but_the_command_line_allows_code(
    words: tuple[str, ...], environ: dict[str, str], says: str, hostile: Workspace
) -> None:
    hostile.write("more.yaml", "trust: true\n")
    result = hostile.run("test", "-c", "small.yaml", *words, "--ckpt_path=a.ckpt", environ=environ)
    assert result.code == 2
    assert re.search(says, result.err)
    assert not (hostile.folder / CANARY).exists()


@pytest.mark.parametrize("kind", ["function", "pickle"])
def test_no_error_advises_to_load_weights_as_code(workspace: Workspace, kind: str) -> None:
    if kind == "function":
        torch.save({"weight": Prints()}, workspace.folder / "weights.pt")
    else:
        (workspace.folder / "weights.pt").write_bytes(pickle.dumps({"weight": 1}, protocol=5))
    words = (
        "--model=ImageClassifier",
        "--model.num_classes=2",
        "--model.weights=weights.pt",
        "--input-shape=1,3,32,32",
    )
    result = workspace.run("export", *words, "--output", "none")
    assert (result.code, result.out) == (2, "")
    assert re.search(r"weights\.pt.*--trust", result.err)
    assert not re.search(r"weights_only`? set|do those steps|Re-running", result.err)


def test_weights_only_false_is_reported_to_have_no_effect(
    content: dict[str, Any], workspace: Workspace
) -> None:
    torch.save(content, workspace.folder / "a.ckpt")
    result = workspace.run(
        "test", "-c", "small.yaml", "--weights_only=false", "--ckpt_path=a.ckpt"
    ).ok()
    assert len(re.findall(r"weights_only: false .*no effect", result.err)) == 1


@pytest.mark.parametrize(
    "changes_weights",
    [
        {"ema": {"init_args": {"decay": 0.9}}},
        {"pruning": {"init_args": {"pruning_fn": "l1_unstructured", "amount": 0.3}}},
    ],
    ids=["ema", "pruning"],
)
def test_what_a_run_writes_loads_as_tensors_and_plain_values_whatever_models_and_callbacks_keep(
    changes_weights: dict[str, Any],
    workspace: Workspace,
) -> None:
    workspace.write("my_kept.py", KEEPS_A_PATH)
    callbacks = {
        "early_stopping": {"init_args": {"monitor": "val/loss"}},
        "timer": {"init_args": {"duration": "00:01:00:00"}},
        "lr_monitor": {},
        **changes_weights,
    }
    workspace.write("callbacks.yaml", {"callbacks": callbacks})
    words = ("--model=my_kept.Kept", "--logger.csv={}", "--trainer.logger=null")
    run = workspace.fit("-c", "small.yaml", "-c", "callbacks.yaml", *words)
    written = load_checkpoint(run / "checkpoints" / "last.ckpt")
    assert written["hyper_parameters"]["where"] == "a"
    kept = " ".join(written["callbacks"])
    expected = {"EarlyStopping", "Timer", *(["EMA"] if "ema" in changes_weights else [])}
    assert {name for name in expected if name not in kept} == set()


# -- classes that only a checkpoint names ----------------------------------------------------------


@pytest.fixture
def named(content: dict[str, Any], workspace: Workspace) -> Workspace:
    """A workspace with `a.ckpt`, which names classes of `my_deep.py`.

    The file `imported` tells of its import.
    """
    workspace.write("my_deep.py", DEEP)
    layer = {"class_path": "my_deep.Layer", "init_args": {}}
    parameters = {
        "_class_path": "my_deep.Deep",
        "_instantiator": "my_deep.make",
        "layer": layer,
        "hidden": 8,
    }
    torch.save({**content, "hyper_parameters": parameters}, workspace.folder / "a.ckpt")
    return workspace


def test_the_users_class_is_taken_and_the_checkpoints_is_not_imported(named: Workspace) -> None:
    named.run("test", "-c", "small.yaml", "--ckpt_path=a.ckpt").ok()
    assert not (named.folder / "imported").exists()


def test_without_a_model_the_checkpoints_class_is_not_imported(named: Workspace) -> None:
    result = named.run(
        "test", "--data=my_project.Points", "--trainer.accelerator=cpu", "--ckpt_path=a.ckpt"
    )
    assert result.code == 2
    assert re.search(r"error: model\b", result.err)
    assert not (named.folder / "imported").exists()


# -- files that are something else -----------------------------------------------------------------

Damage = Callable[[bytes], bytes]


@pytest.mark.parametrize(
    "damage",
    [lambda content: content[: len(content) // 2], lambda content: b"\x89PNG\r\n\x1a\n"],
    ids=["half", "picture"],
)
def test_a_damaged_checkpoint_ends_with_2_and_one_line(
    damage: Damage, content: dict[str, Any], workspace: Workspace
) -> None:
    path = workspace.folder / "a.ckpt"
    torch.save(content, path)
    path.write_bytes(damage(path.read_bytes()))
    result = workspace.run("test", "-c", "small.yaml", "--ckpt_path=a.ckpt")
    assert result.code == 2
    assert re.search(r"error: .*a\.ckpt is ", result.err)
    assert "Traceback" not in result.err


def test_a_checkpoint_that_is_not_what_its_digest_promises_ends_with_2(finished: Workspace) -> None:
    path = finished.only_run / "checkpoints" / "best.ckpt"
    path.write_bytes(path.read_bytes()[:-1])
    result = finished.run("test", "--run", "latest")
    assert result.code == 2
    assert re.search(r"best\.ckpt .*digest|best\.ckpt\.sha256", result.err)


@pytest.mark.parametrize(
    ("stage", "change", "says"),
    [
        ("test", lambda content: content["state_dict"], r"a\.ckpt .*state dict"),
        (
            "test",
            lambda content: {**content, "state_dict": {"other": torch.ones(1)}},
            r"does not fit the model",
        ),
        (
            "fit",
            lambda content: {
                key: value for key, value in content.items() if key != "optimizer_states"
            },
            r"a\.ckpt has the model only",
        ),
    ],
    ids=["state dict", "another model", "fit without optimizer"],
)
def test_a_checkpoint_that_does_not_fit_is_reported_and_leaves_no_run(
    stage: str,
    change: Callable[[dict[str, Any]], Any],
    says: str,
    content: dict[str, Any],
    workspace: Workspace,
) -> None:
    torch.save(change(content), workspace.folder / "a.ckpt")
    result = workspace.run(
        stage, "-c", "small.yaml", "--ckpt_path=a.ckpt", "--trainer.max_epochs=3"
    )
    assert (result.code, workspace.runs) == (2, [])
    assert re.search(says, result.err)
