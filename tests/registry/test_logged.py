from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import mlflow.pytorch
import numpy as np
import pytest
import torch
from torch import nn

from lightkit.errors import ConfigError
from lightkit.registry.logged import load_logged

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred:UserWarning"),  # 2026-11: of mlflow 3.17 to itself
    # 2026-11: mlflow 3.17 leaves connections to the garbage collector, and advises on pickle.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
REQUIREMENTS = ["torch", "numpy"]


def log(module: nn.Module, example: Any = None, **more: Any) -> str:
    """Log a module as people do, and give the address of it in its run."""
    logging.getLogger("mlflow").setLevel(logging.ERROR)
    with mlflow.start_run() as run:
        mlflow.pytorch.log_model(module, name="model", input_example=example, pip_requirements=REQUIREMENTS, **more)  # type: ignore[no-untyped-call, unused-ignore]
    return f"runs:/{run.info.run_id}/model"


def pictures(channels: int, number: int = 2) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(3).random((number, channels, 28, 28), dtype=np.float32)


@pytest.mark.parametrize("address", ["runs:/", "runs:/ab12", "models:/", "models:/a@b@c", "models:/a/b/c"])
def test_an_address_that_mlflow_cannot_have_is_told_before_it_is_asked(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"--run: expected models:/NAME@ALIAS, .* got ") as raised:
        load_logged(address, trust=False)
    assert raised.value.exit_code == 2


def test_to_read_makes_no_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ConfigError, match=r"no database of MLflow at .*/elsewhere/mlflow.db; .* MLFLOW_TRACKING_URI\."):
        load_logged("models:/net@best", trust=False, root="elsewhere")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("channels", [1, 3], ids=["grey", "coloured"])
def test_a_logged_graph_gives_the_answers_of_its_module(resnet: Callable[[int], nn.Module], channels: int) -> None:
    module = resnet(channels)
    uri = log(module, pictures(channels), serialization_format="pt2")
    logged = load_logged(uri, trust=False)
    assert logged.metadata.source["model"] == uri
    assert [(spec.dtype, spec.shape) for spec in logged.metadata.inputs] == [("float32", (None, channels, 28, 28))]
    assert [(spec.dtype, spec.shape) for spec in logged.metadata.outputs] == [("float32", (None, 10))]
    assert torch.equal(logged.example[0], torch.from_numpy(pictures(channels)))
    assert len(logged.samples.inputs[0]) == len(logged.samples.names) == 32
    for size in (1, 7, 32):
        batch = logged.samples.inputs[0][:size]
        torch.testing.assert_close(logged.model(batch), module(batch))


@pytest.mark.slow
@pytest.mark.usefixtures("database")
def test_a_loaded_graph_can_be_scripted_for_every_batch_size(resnet: Callable[[int], nn.Module]) -> None:
    logged = load_logged(log(resnet(1), pictures(1), serialization_format="pt2"), trust=False)
    with warnings.catch_warnings():  # 2026-11: torch 2.15 on its own modules, and on TorchScript itself
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(logged.model)
    for size in (1, 7, 32):
        batch = torch.rand(size, 1, 28, 28)
        torch.testing.assert_close(scripted(batch), resnet(1)(batch))


@pytest.mark.slow
@pytest.mark.usefixtures("database")
def test_a_pickled_module_is_loaded_only_with_trust(resnet: Callable[[int], nn.Module]) -> None:
    uri = log(resnet(1), pictures(1, number=1), serialization_format="pickle")
    with pytest.raises(ConfigError, match=r"holds a pickled module, and to load it is to run .*--trust"):
        load_logged(uri, trust=False)
    logged = load_logged(uri, trust=True)
    assert len(logged.example[0]) == 2  # a batch of one would be taken for a constant
    assert logged.metadata.model == "SmallResNet"
    assert logged.metadata.inputs[0].name == "x"
    torch.testing.assert_close(logged.model(logged.example[0]), resnet(1)(logged.example[0]))


@pytest.mark.slow
@pytest.mark.usefixtures("database")
def test_torchscript_needs_no_trust(resnet: Callable[[int], nn.Module]) -> None:
    uri = log(torch.jit.script(resnet(1)), pictures(1), serialization_format="pickle")
    logged = load_logged(uri, trust=False)
    torch.testing.assert_close(logged.model(logged.example[0]), resnet(1)(logged.example[0]))


@pytest.mark.slow
@pytest.mark.usefixtures("database")
def test_a_signature_alone_gives_an_example(resnet: Callable[[int], nn.Module]) -> None:
    signature = mlflow.models.infer_signature(pictures(1), resnet(1)(torch.from_numpy(pictures(1))).detach().numpy())
    uri = log(resnet(1), signature=signature, serialization_format="pickle")
    assert load_logged(uri, trust=True).example[0].shape == (2, 1, 28, 28)


@pytest.mark.slow
@pytest.mark.usefixtures("database")
def test_a_model_that_says_nothing_of_its_inputs_is_refused_with_what_to_do(resnet: Callable[[int], nn.Module]) -> None:
    uri = log(resnet(1), serialization_format="pickle")
    with pytest.raises(ConfigError, match=r"without input example and signature.*input_example="):
        load_logged(uri, trust=True)


@pytest.mark.slow
@pytest.mark.usefixtures("database")
def test_a_model_that_is_not_there_is_told_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"cannot give models:/flowers@champion: .*flowers") as raised:
        load_logged("models:/flowers@champion", trust=False)
    assert "\n" not in str(raised.value)


@pytest.mark.slow
@pytest.mark.usefixtures("database")
def test_files_that_are_no_model_are_told() -> None:
    with mlflow.start_run() as run:
        mlflow.log_text("hello", "notes/hello.txt")
    with pytest.raises(ConfigError, match=r"holds no model of MLflow"):
        load_logged(f"runs:/{run.info.run_id}/notes", trust=False)
