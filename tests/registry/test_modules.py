"""Modules of logged models: what runs code asks for trust first, whatever MLflow would do."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lightkit.errors import CheckpointError, ConfigError
from lightkit.registry.modules import load_module
from tests.export.test_archives import Touches, altered, pickled

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),  # 2026-11: of torch 2.15 to itself
    pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning"),
]
PYTORCH = {"pytorch": {"model_data": "data"}}


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """A model's folder with a graph."""
    (tmp_path / "data").mkdir()
    batch = torch.export.Dim("batch", min=2)
    torch.manual_seed(0)
    program = torch.export.export(nn.Linear(3, 2).eval(), (torch.rand(4, 3),), dynamic_shapes=({0: batch},))
    torch.export.save(program, tmp_path / "data" / "model.pt2")
    return tmp_path


def load(folder: Path, flavors: dict[str, Any] | None = None, *, trust: bool = False) -> nn.Module:
    return load_module("models:/net@best", folder, flavors or PYTORCH, trust=trust)


def trapped(folder: Path, trap: Path) -> None:
    change: Callable[[str, bytes], bytes] = lambda name, content: (  # noqa: E731
        pickled(((Touches(trap),), {})) if "sample_inputs" in name else content
    )
    altered(folder / "data" / "model.pt2", change)


def test_a_graph_needs_no_trust(graph: Path) -> None:
    assert load(graph)(torch.rand(5, 3)).shape == (5, 2)


@pytest.mark.parametrize("variable", [None, "DATABRICKS_RUNTIME_VERSION", "MLFLOW_ALLOW_PICKLE_DESERIALIZATION"])
def test_a_graph_with_pickled_objects_is_refused_wherever_it_is_loaded(
    graph: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None
) -> None:
    if variable is not None:
        monkeypatch.setenv(variable, "true")
    trapped(graph, graph / "sprung")
    with pytest.raises(
        ConfigError, match=r"^models:/net@best holds builtins.getattr.* Loading that .*--trust"
    ) as raised:
        load(graph)
    assert raised.value.exit_code == 2
    assert not (graph / "sprung").exists()


def test_a_folder_with_two_models_is_refused_before_any_is_read(graph: Path) -> None:
    (graph / "data" / "model.pth").write_bytes(b"")
    (graph / "data" / "pickle_module_info.txt").write_text("antigravity")
    with pytest.raises(ConfigError, match=r"holds both model.pt2 and model.pth"):
        load(graph, trust=True)


@pytest.mark.parametrize(
    ("flavors", "says"),
    [
        ({"sklearn": {}}, "is no PyTorch model: it has the flavours sklearn"),
        ({"pytorch": {"model_data": "data", "code": "code"}}, "holds code of its own, .* Say --trust"),
    ],
    ids=["another flavour", "code"],
)
def test_what_is_not_loaded_is_told(graph: Path, flavors: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load(graph, flavors)


def test_a_pickled_module_is_refused_unread(graph: Path) -> None:
    (graph / "data" / "model.pt2").unlink()
    (graph / "data" / "model.pth").write_bytes(pickled(Touches(graph / "sprung")))
    with pytest.raises(ConfigError, match=r"holds a pickled module, .* Say --trust"):
        load(graph)
    assert not (graph / "sprung").exists()


def test_a_program_that_was_cut_is_told(graph: Path) -> None:
    (graph / "data" / "model.pt2").unlink()
    with zipfile.ZipFile(graph / "data" / "model.pth", "w") as archive:
        archive.writestr("model/constants.pkl", b"")
    with pytest.raises(CheckpointError, match=r"models:/net@best cannot be loaded: .* Log it again."):
        load(graph)
