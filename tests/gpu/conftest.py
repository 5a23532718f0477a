"""Workspaces whose commands see one CUDA GPU, each in a Python process of its own."""

from __future__ import annotations

import os

import pytest

from tests.contract.conftest import workspace
from tests.contract.examples import PICTURES, write_pictures
from tests.contract.workspace import Workspace
from tests.gpu.gpu_jobs import MY_GPU

__all__ = ["pictures", "visible_gpu", "workspace"]


@pytest.fixture
def visible_gpu() -> dict[str, str | None]:
    """Environment in which a command sees the first GPU that this process may use, and no other."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    return {"CUDA_VISIBLE_DEVICES": first}


@pytest.fixture
def pictures(workspace: Workspace) -> Workspace:
    """A workspace with `pictures.yaml`, which says nothing of hardware, and `my_gpu.py`."""
    write_pictures(workspace.folder / "pictures")
    trainer = {key: value for key, value in PICTURES["trainer"].items() if key != "accelerator"}
    workspace.write("my_gpu.py", MY_GPU)
    workspace.write("pictures.yaml", {**PICTURES, "trainer": trainer})
    return workspace
