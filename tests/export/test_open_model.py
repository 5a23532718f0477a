"""Runtimes: an exported file as a function of arrays."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lightkit.export.formats import flatten, open_model, wrap_module
from lightkit.export.metadata import Metadata, TensorSpec
from tests.export.planted import onnx_bytes, subject_of


class Crossed(nn.Module):
    """Two inputs; two outputs in a mapping."""

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"sum": x + y, "difference": x - y}


ORDER = ("difference", "sum")
METADATA = Metadata(
    format="torchscript",
    model="Crossed",
    inputs=(TensorSpec("x", "float32", (None,)), TensorSpec("y", "float32", (None,))),
    outputs=tuple(TensorSpec(name, "float32", (None,)) for name in ORDER),
)


def scripted(path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch: deprecated
        module = torch.jit.trace(Crossed(), (torch.ones(2), torch.ones(2)), strict=False)  # type: ignore[no-untyped-call]
        torch.jit.save(module, path, _extra_files={"lightkit.json": METADATA.dumps()})
    return path


def exported(path: Path) -> Path:
    program = torch.export.export(Crossed(), (torch.ones(2), torch.ones(2)))
    torch.export.save(program, path, extra_files={"lightkit.json": METADATA.dumps()})
    return path


def by_hand(path: Path) -> Path:
    subject = subject_of()
    path.write_bytes(onnx_bytes(subject.model, replace(subject.metadata, format="onnx")))
    return path


@pytest.mark.parametrize(
    ("write", "name"), [(scripted, "model.ts"), (exported, "model.pt2")], ids=["torchscript", "torch_export"]
)
def test_outputs_of_a_mapping_come_in_the_order_of_the_metadata(
    tmp_path: Path, write: Callable[[Path], Path], name: str
) -> None:
    run = open_model(write(tmp_path / name))

    outputs = run([np.asarray([5, 6], np.float32), np.asarray([1, 2], np.float32)])

    assert [output.tolist() for output in outputs] == [[4, 4], [6, 8]]


def test_onnx_gives_what_the_module_gives(tmp_path: Path) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)

    (exported,) = open_model(by_hand(tmp_path / "model.onnx"), threads=1)([x])

    assert exported == pytest.approx(wrap_module(subject_of().model)([x])[0], abs=1e-5)


def test_outputs_are_laid_side_by_side() -> None:
    assert flatten({"a": (1, [2, 3]), "b": {"c": 4}}) == [1, 2, 3, 4]
    assert flatten({"a": 1, "b": 2}, ["b", "a"]) == [2, 1]


def test_numbers_that_numpy_lacks_become_float32() -> None:
    (output,) = wrap_module(lambda x: x.to(torch.bfloat16))([np.ones(2, np.float32)])

    assert output.dtype == np.float32


@pytest.mark.slow
def test_onnx_needs_neither_torch_nor_lightning(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys; from lightkit.export.formats import open_model; open_model(pathlib.Path(sys.argv[1])); "
        "print([name for name in ('torch', 'pytorch_lightning') if name in sys.modules])"
    )

    said = subprocess.run(
        [sys.executable, "-c", program, by_hand(tmp_path / "model.onnx")], capture_output=True, text=True, check=True
    )

    assert said.stdout == "[]\n"
