"""Modules of logged models: what runs code asks for trust first, whatever MLflow would do."""

from __future__ import annotations

import json
import logging
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import mlflow.pytorch
import numpy as np
import pytest
import torch
from torch import nn

from lightkit.errors import CheckpointError, ConfigError
from lightkit.export.samples import extend_example
from lightkit.registry.logged_model import load_logged_model, load_module
from lightkit.runs.checkpoints import digest

pytestmark = [
    # 2026-11: of mlflow 3.17 to itself
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred:UserWarning"),
    # 2026-11: mlflow 3.17 leaves connections to the garbage collector, and advises on pickle.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    # 2026-11: of torch 2.15 to itself
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
REQUIREMENTS = ["torch", "numpy"]


def log(module: nn.Module, example: Any = None, **more: Any) -> str:
    """Log a module as people do, and give the address of it in its run."""
    logging.getLogger("mlflow").setLevel(logging.ERROR)
    with mlflow.start_run() as run:
        mlflow.pytorch.log_model(  # type: ignore[no-untyped-call, unused-ignore]
            module, name="model", input_example=example, pip_requirements=REQUIREMENTS, **more
        )
    return f"runs:/{run.info.run_id}/model"


def pictures(channels: int, number: int = 2) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(3).random((number, channels, 28, 28), dtype=np.float32)


@pytest.mark.parametrize(
    "address", ["runs:/", "runs:/ab12", "models:/", "models:/a@b@c", "models:/a/b/c"]
)
def test_an_address_that_mlflow_cannot_have_is_reported_before_it_is_asked(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"--run: expected models:/NAME@ALIAS, .* got ") as raised:
        load_logged_model(address, trust=False, root=Path("runs"), num_samples=32)
    assert raised.value.exit_code == 2


@pytest.mark.slow
@pytest.mark.usefixtures("database")
def test_a_model_that_says_nothing_of_its_inputs_is_refused_with_what_to_do(
    resnet: Callable[[int], nn.Module],
) -> None:
    uri = log(resnet(1), serialization_format="pickle")
    with pytest.raises(ConfigError, match=r"without an input example.*input_example="):
        load_logged_model(uri, trust=True, root=Path("runs"), num_samples=32)


PYTORCH = {"pytorch": {"model_data": "data"}}


class Touches:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """A model's folder with a graph, and the record that `lightkit register` writes beside it."""
    file = tmp_path / "data" / "model.pt2"
    file.parent.mkdir()
    batch = torch.export.Dim("batch", min=2)
    torch.manual_seed(0)
    program = torch.export.export(
        nn.Linear(3, 2).eval(), (torch.rand(4, 3),), dynamic_shapes=({0: batch},)
    )
    torch.export.save(program, file)
    record = {"artefacts": {"model.pt2": {"sha256": digest(file)}}}
    file.with_name("export.json").write_text(json.dumps(record), encoding="utf-8")
    return tmp_path


def load(folder: Path, flavors: dict[str, Any] | None = None, *, trust: bool = False) -> nn.Module:
    return load_module("models:/net@best", folder, flavors or PYTORCH, trust=trust)


def test_a_recorded_graph_needs_no_trust(graph: Path) -> None:
    assert load(graph)(torch.rand(5, 3)).shape == (5, 2)


@pytest.mark.parametrize(
    "variable", [None, "DATABRICKS_RUNTIME_VERSION", "MLFLOW_ALLOW_PICKLE_DESERIALIZATION"]
)
def test_a_graph_without_a_record_is_refused_wherever_it_is_loaded(
    graph: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None
) -> None:
    if variable is not None:
        monkeypatch.setenv(variable, "true")
    (graph / "data" / "export.json").unlink()
    with pytest.raises(
        ConfigError, match=r"^models:/net@best holds a graph that .* Give --trust"
    ) as raised:
        load(graph)
    assert raised.value.exit_code == 2


def test_so_is_one_that_was_altered(graph: Path) -> None:
    with (graph / "data" / "model.pt2").open("ab") as file:
        file.write(b"more")
    with pytest.raises(ConfigError, match="a graph that lightkit has not recorded"):
        load(graph)


@pytest.mark.parametrize(
    ("flavors", "says"),
    [
        ({"sklearn": {}}, "is not a PyTorch model: it has the flavours sklearn"),
        (
            {"pytorch": {"model_data": "data", "code": "code"}},
            "holds code of its own, .* Give --trust",
        ),
    ],
    ids=["another flavour", "code"],
)
def test_what_is_not_loaded_is_reported(graph: Path, flavors: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load(graph, flavors)


def test_a_pickled_module_is_refused_unread(graph: Path) -> None:
    (graph / "data" / "model.pt2").unlink()
    torch.save(Touches(graph / "sprung"), graph / "data" / "model.pth")
    with pytest.raises(ConfigError, match=r"holds a pickled module, .* Give --trust"):
        load(graph)
    assert not (graph / "sprung").exists()


def test_a_program_that_was_cut_is_reported(graph: Path) -> None:
    (graph / "data" / "model.pt2").unlink()
    with zipfile.ZipFile(graph / "data" / "model.pth", "w") as archive:
        archive.writestr("model/constants.pkl", b"")
    with pytest.raises(
        CheckpointError, match=r"models:/net@best cannot be loaded: .* Log a damaged file again."
    ):
        load(graph)


@pytest.mark.parametrize(
    "example",
    [torch.randn(2, 3), torch.zeros(1, 4, dtype=torch.uint8), torch.tensor([[1, 5]]),
     torch.tensor([[True, False]])],
    ids=["floats", "bytes", "whole numbers", "booleans"],
)  # fmt: skip
def test_the_example_comes_first_and_more_of_its_kind_after_it(example: torch.Tensor) -> None:
    samples = extend_example(example, 20)
    assert samples.shape == (20, *example.shape[1:])
    assert samples.dtype == example.dtype
    assert torch.equal(samples[: len(example)], example)
    assert torch.equal(samples, extend_example(example, 20))
    assert len(set(samples.flatten().tolist())) > 1


# others may be beyond a table of embeddings
def test_whole_numbers_are_those_of_the_example() -> None:
    assert set(extend_example(torch.tensor([[3, 9]]), 30).flatten().tolist()) == {3, 9}


def test_fewer_samples_than_the_example_has_are_its_first() -> None:
    assert torch.equal(extend_example(torch.arange(5.0), 2), torch.tensor([0.0, 1.0]))
