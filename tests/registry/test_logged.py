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
from lightkit.registry.logged_model import load_logged_model

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
        load_logged_model(address, trust=False)
    assert raised.value.exit_code == 2


@pytest.mark.slow
@pytest.mark.usefixtures("database")
def test_a_loaded_graph_can_be_scripted_for_every_batch_size(resnet: Callable[[int], nn.Module]) -> None:
    logged = load_logged_model(log(resnet(1), pictures(1), serialization_format="pt2"), trust=True)
    with warnings.catch_warnings():  # 2026-11: torch 2.15 on its own modules, and on TorchScript itself
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(logged.model)
    for size in (1, 7, 32):
        batch = torch.rand(size, 1, 28, 28)
        torch.testing.assert_close(scripted(batch), resnet(1)(batch))


@pytest.mark.slow
@pytest.mark.usefixtures("database")
def test_a_signature_alone_gives_an_example(resnet: Callable[[int], nn.Module]) -> None:
    signature = mlflow.models.infer_signature(pictures(1), resnet(1)(torch.from_numpy(pictures(1))).detach().numpy())
    uri = log(resnet(1), signature=signature, serialization_format="pickle")
    assert load_logged_model(uri, trust=True).example[0].shape == (2, 1, 28, 28)


@pytest.mark.slow
@pytest.mark.usefixtures("database")
def test_a_model_that_says_nothing_of_its_inputs_is_refused_with_what_to_do(resnet: Callable[[int], nn.Module]) -> None:
    uri = log(resnet(1), serialization_format="pickle")
    with pytest.raises(ConfigError, match=r"without input example and signature.*input_example="):
        load_logged_model(uri, trust=True)
