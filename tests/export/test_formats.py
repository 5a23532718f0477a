"""Every format gives back what the model gives, at any batch size, and says what it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.errors import ConfigError, ExportError
from lightkit.export.formats import FORMATS
from lightkit.export.metadata import read_metadata
from lightkit.export.options import ExportOptions
from tests.export import specimens
from tests.export.specimens import SUBJECTS, largest_gap, odd_subject, write_file


@pytest.mark.parametrize("kind", ["torch_export", "torchscript"])
# see test_in_graph.py
@pytest.mark.parametrize("name", [name for name in SUBJECTS if name != "images"])
def test_torchs_own_formats_give_what_the_model_gives(tmp_path: Path, name: str, kind: str) -> None:
    subject = SUBJECTS[name]()
    written = write_file(kind, subject, tmp_path / FORMATS[kind].file)
    assert largest_gap(subject, tmp_path / FORMATS[kind].file) == 0
    assert read_metadata(tmp_path / FORMATS[kind].file) == written
    assert written.format == kind
    assert written.versions["torch"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tuple", "tied", "any number"])
def test_onnx_gives_what_the_model_gives(tmp_path: Path, name: str) -> None:
    subject = SUBJECTS[name]()
    written = write_file("onnx", subject, tmp_path / "model.onnx")
    assert largest_gap(subject, tmp_path / "model.onnx") < 2e-6
    assert read_metadata(tmp_path / "model.onnx") == written


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (specimens.DoublesInPlace, "torch_export"),
        (specimens.DoublesInPlace, "onnx"),
        (specimens.DoublesInPlace, "torchscript"),
        (specimens.LambdaInPlace, "torchscript"),
    ],
    ids=["torch_export", "onnx", "script", "trace"],
)
def test_a_forward_that_changes_its_input_gives_what_it_gives(
    tmp_path: Path, model: Any, kind: str
) -> None:
    subject = odd_subject(model())
    before = subject.example[0].clone()
    write_file(kind, subject, tmp_path / FORMATS[kind].file)
    assert torch.equal(subject.example[0], before)
    assert largest_gap(subject, tmp_path / FORMATS[kind].file) == 0


def test_writing_leaves_one_file_and_a_quiet_screen(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for kind in FORMATS:
        write_file(kind, specimens.double_and_sum(), tmp_path / FORMATS[kind].file)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        each.file for each in FORMATS.values()
    )
    assert capfd.readouterr() == ("", "")


DEPENDS = r"You marked batch as dynamic but your code specialized it to be a constant \({}\)"
ODD: dict[str, tuple[Any, int, str]] = {
    "reshape": (specimens.ForEight, 8, DEPENDS.format(8)),
    "loop": (specimens.RowByRow, 2, DEPENDS.format(2)),
    "branch on values": (
        specimens.OnlyIfPositive,
        2,
        "Could not guard on data-dependent expression",
    ),
    "item": (specimens.UpToItsMaximum, 2, "data-dependent expression"),
}


@pytest.mark.parametrize("kind", ["torch_export", "onnx"])
@pytest.mark.parametrize(("model", "num", "says"), ODD.values(), ids=list(ODD))
def test_what_has_no_graph_is_reported_in_one_line_with_its_place(
    tmp_path: Path, model: Any, num: int, says: str, kind: str
) -> None:
    file = FORMATS[kind].file
    with pytest.raises(ExportError, match=says) as raised:
        write_file(kind, odd_subject(model(), num), tmp_path / file)
    message = str(raised.value)
    assert message.startswith(f"{file}: {model.__name__} cannot be exported: ")
    assert "\n" not in message
    line = int(message.rpartition("specimens.py:")[2].rstrip(")."))
    source = Path(specimens.__file__).read_text(encoding="utf-8").splitlines()
    assert any(
        word in source[line - 1]
        for word in ("reshape", "for row", "if values", "item()", "ones(99")
    )
    assert not (tmp_path / file).exists()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"half": True}, r"--half: only for ONNX files, and --format is torch_export"),
        (
            {"format": "safetensors", "opset": "20", "int8": True},
            r"--int8, --opset: .* leave the option out",
        ),
        ({"format": "onnx", "opset": "17"}, r"--opset: expected 18 to 23, .* got '17'"),
        ({"format": "onnx", "opset": "new"}, r"--opset: expected 18 to 23, .* got 'new'"),
    ],
    ids=["half without onnx", "two without onnx", "old opset", "no number"],
)
def test_options_that_fit_nothing_are_refused(given: dict[str, str | bool], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ExportOptions.parse(given)
