"""Modules of logged models: what runs code asks for trust first, whatever MLflow would do."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lightkit.errors import CheckpointError, ConfigError
from lightkit.registry.logged_model import load_module
from lightkit.runs.integrity import digest

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),  # 2026-11: of torch 2.15 to itself
    pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning"),
]
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
    program = torch.export.export(nn.Linear(3, 2).eval(), (torch.rand(4, 3),), dynamic_shapes=({0: batch},))
    torch.export.save(program, file)
    record = {"artefacts": {"model.pt2": {"sha256": digest(file)}}}
    file.with_name("export.json").write_text(json.dumps(record), encoding="utf-8")
    return tmp_path


def load(folder: Path, flavors: dict[str, Any] | None = None, *, trust: bool = False) -> nn.Module:
    return load_module("models:/net@best", folder, flavors or PYTORCH, trust=trust)


def test_a_recorded_graph_needs_no_trust(graph: Path) -> None:
    assert load(graph)(torch.rand(5, 3)).shape == (5, 2)


@pytest.mark.parametrize("variable", [None, "DATABRICKS_RUNTIME_VERSION", "MLFLOW_ALLOW_PICKLE_DESERIALIZATION"])
def test_a_graph_without_a_record_is_refused_wherever_it_is_loaded(
    graph: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None
) -> None:
    if variable is not None:
        monkeypatch.setenv(variable, "true")
    (graph / "data" / "export.json").unlink()
    with pytest.raises(ConfigError, match=r"^models:/net@best holds a graph that .* Give --trust") as raised:
        load(graph)
    assert raised.value.exit_code == 2


def test_so_is_one_that_was_altered(graph: Path) -> None:
    with (graph / "data" / "model.pt2").open("ab") as file:
        file.write(b"more")
    with pytest.raises(ConfigError, match="a graph that lightkit has not recorded"):
        load(graph)


def test_a_folder_with_two_models_is_refused_before_any_is_read(graph: Path) -> None:
    (graph / "data" / "model.pth").write_bytes(b"")
    (graph / "data" / "pickle_module_info.txt").write_text("antigravity")
    with pytest.raises(ConfigError, match=r"holds both model.pt2 and model.pth"):
        load(graph, trust=True)


@pytest.mark.parametrize(
    ("flavors", "says"),
    [
        ({"sklearn": {}}, "is no PyTorch model: it has the flavours sklearn"),
        ({"pytorch": {"model_data": "data", "code": "code"}}, "holds code of its own, .* Give --trust"),
    ],
    ids=["another flavour", "code"],
)
def test_what_is_not_loaded_is_told(graph: Path, flavors: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load(graph, flavors)


def test_a_pickled_module_is_refused_unread(graph: Path) -> None:
    (graph / "data" / "model.pt2").unlink()
    torch.save(Touches(graph / "sprung"), graph / "data" / "model.pth")
    with pytest.raises(ConfigError, match=r"holds a pickled module, .* Give --trust"):
        load(graph)
    assert not (graph / "sprung").exists()


def test_a_program_that_was_cut_is_told(graph: Path) -> None:
    (graph / "data" / "model.pt2").unlink()
    with zipfile.ZipFile(graph / "data" / "model.pth", "w") as archive:
        archive.writestr("model/constants.pkl", b"")
    with pytest.raises(CheckpointError, match=r"models:/net@best cannot be loaded: .* Log it again."):
        load(graph)
