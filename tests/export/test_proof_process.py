"""Fresh processes: what they are asked, what they may load, and the message when they fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.errors import ExportError
from lightkit.export import formats, safetensors
from lightkit.export.proof import Proof
from tests.export.planted import LineOfThree, onnx_bytes, samples_of, subject_of

pytestmark = pytest.mark.slow  # each starts a process


def asked(
    tmp_path: Path, *, kind: str = "onnx", model: torch.nn.Module | None = None
) -> tuple[Any, Any]:
    """The answer of a fresh process on a file of the model."""
    target = subject_of(model)
    metadata = replace(target.metadata, format=kind)
    file = tmp_path / metadata.file_name
    if kind == "onnx":
        file.write_bytes(onnx_bytes(target.model, metadata))
    else:
        safetensors.write(target, metadata, file)
    return Proof(target, tmp_path / "inputs")._run_file(file, metadata)


def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    """Put another program in the place of the fresh process's."""
    file = tmp_path / "other.py"
    file.write_text(text)
    monkeypatch.setattr(formats, "__file__", str(file))


def test_onnx_is_run_without_torch_and_lightkit(tmp_path: Path) -> None:
    answer = asked(tmp_path)

    assert {size: outputs[0].shape for size, outputs in answer[0].items()} == {
        1: (20, 3),
        7: (21, 3),
        32: (32, 3),
    }
    assert answer[1]["loaded"] == ["onnxruntime"]
    assert set(answer[1]["latency"]) == {"1", "32"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "import os; os.abort()",
            r"model.onnx cannot be run .* was ended by SIGABRT. Its last words: nothing",
        ),
        ("import sys; sys.exit(7)", r"which failed with code 7. Its last words: nothing"),
        (
            "raise OSError(28, 'No space left')",
            r"code 1. Its last words: OSError: \[Errno 28\] No space left$",
        ),
        (
            "import signal; signal.setitimer(signal.ITIMER_REAL, 0.1); signal.pause()",
            r"SIGALRM, after half an hour",
        ),
    ],
    ids=["abort", "exit", "exception", "hang"],
)
def test_a_process_that_fails_is_reported_in_a_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, says: str
) -> None:
    script(monkeypatch, tmp_path, text)

    with pytest.raises(ExportError, match=says) as caught:
        asked(tmp_path)

    assert "\n" not in str(caught.value)


def test_weights_are_loaded_into_a_module_that_had_none_as_they_lie_in_memory(
    tmp_path: Path,
) -> None:
    class OfThisFunction(torch.nn.Module):
        """A class that no other process can import: it goes by value, as one of a notebook does."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 3)
            self.convolution = torch.nn.Conv2d(3, 4, 3)
            self.to(memory_format=torch.channels_last)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = -self.layer(x)
            is_last = self.convolution.weight.is_contiguous(memory_format=torch.channels_last)
            return out + 100.0 * float(is_last)

    model = OfThisFunction()

    answer = asked(tmp_path, kind="safetensors", model=model)

    assert answer[1]["loaded"] == ["torch"]
    expected = model(samples_of(LineOfThree()).inputs[0]).detach().numpy()
    assert expected.mean() > 50
    assert answer[0][1][0] == pytest.approx(expected, rel=1e-5, abs=1e-5)


class HoldsAGenerator(LineOfThree):
    """It cannot be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: Any = (row for row in range(3))


def test_a_module_that_cannot_be_pickled_is_reported(tmp_path: Path) -> None:
    with pytest.raises(
        ExportError,
        match=r"HoldsAGenerator cannot be pickled \(TypeError: cannot pickle 'generator'",
    ):
        asked(tmp_path, kind="safetensors", model=HoldsAGenerator())
