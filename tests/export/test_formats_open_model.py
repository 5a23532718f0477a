"""Runtimes: an exported file as a function of arrays."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lightkit.export.formats import flatten, open_model, wrap_module
from tests.export.planted import onnx_bytes, subject_of


def by_hand(path: Path) -> Path:
    subject = subject_of()
    path.write_bytes(onnx_bytes(subject.model, replace(subject.metadata, format="onnx")))
    return path


def test_onnx_gives_what_the_module_gives(tmp_path: Path) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)

    (exported,) = open_model(by_hand(tmp_path / "model.onnx"), threads=1)([x])

    assert exported == pytest.approx(wrap_module(subject_of().model)([x])[0], abs=1e-5)


def test_outputs_are_laid_side_by_side() -> None:
    assert flatten({"a": (1, [2, 3]), "b": {"c": 4}}) == [1, 2, 3, 4]


def test_numbers_that_numpy_lacks_become_float32() -> None:
    (output,) = wrap_module(lambda x: x.to(torch.bfloat16))([np.ones(2, np.float32)])

    assert output.dtype == np.float32


@pytest.mark.slow
def test_onnx_needs_neither_torch_nor_lightning(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys; from lightkit.export.formats import open_model;"
        " open_model(pathlib.Path(sys.argv[1])); print([name for name in ('torch',"
        " 'pytorch_lightning') if name in sys.modules])"
    )

    said = subprocess.run(
        [sys.executable, "-c", program, by_hand(tmp_path / "model.onnx")],
        capture_output=True,
        text=True,
        check=True,
    )

    assert said.stdout == "[]\n"
