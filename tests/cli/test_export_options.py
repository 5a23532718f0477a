"""The options of export, as the command line says them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightkit.cli.export_options import ExportOptions, options_in
from lightkit.errors import ConfigError

ALL = ("torch_export", "onnx", "torchscript", "safetensors")


@pytest.mark.parametrize(
    ("said", "field", "expected"),
    [
        ({}, "formats", ("torch_export",)),
        ({"format": "onnx,torchscript"}, "formats", ("onnx", "torchscript")),
        ({"format": "onnx, onnx"}, "formats", ("onnx",)),
        ({"format": "all"}, "formats", ALL),
        ({"input-shape": "1,3,8,8"}, "input_shapes", ((None, (1, 3, 8, 8), "float32"),)),
        ({"input-shape": "1x3x8x8"}, "input_shapes", ((None, (1, 3, 8, 8), "float32"),)),
        ({"input-shape": "1,3;1,5"}, "input_shapes", ((None, (1, 3), "float32"), (None, (1, 5), "float32"))),
        ({"input-shape": "a:1,3; b=1,5"}, "input_shapes", (("a", (1, 3), "float32"), ("b", (1, 5), "float32"))),
        ({"input-shape": "tokens:1,128:int64"}, "input_shapes", (("tokens", (1, 128), "int64"),)),
        ({"input-shape": "1x8 : uint8;2,2"}, "input_shapes", ((None, (1, 8), "uint8"), (None, (2, 2), "float32"))),
        ({"num-samples": "7"}, "num_samples", 7),
        ({"rtol": "1e-3"}, "rtol", 1e-3),
        ({"atol": "0"}, "atol", 0.0),
        ({"output": "there"}, "output", Path("there")),
        ({"output": "json"}, "output", None),
        ({"run": "models:/flowers@champion"}, "logged", "models:/flowers@champion"),
        ({"run": "latest"}, "logged", None),
        ({"half": True, "int8": True}, "int8", True),
    ],
    ids=[
        *("default", "formats", "twice", "all", "shape", "shape_with_x", "shapes", "named_shapes", "dtype", "dtypes"),
        *("samples", "rtol", "atol", "folder", "events", "logged", "run", "switch"),
    ],
)
def test_an_option_is_read(said: dict[str, str | bool], field: str, expected: Any) -> None:
    assert getattr(ExportOptions.of(said), field) == expected


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"format": "onx"}, r"--format: expected torch_export, .*, got 'onx'; did you mean 'onnx'\?"),
        ({"format": ""}, r"--format: expected torch_export, .*, got ''"),
        ({"input-shape": "3xx8"}, r"--input-shape: expected sizes with the batch first, .* got '3xx8'"),
        ({"input-shape": "1,0,3"}, r"--input-shape: expected sizes"),
        (
            {"input-shape": "1,3:int46"},
            r"--input-shape: expected one of float32, .*, got 'int46'; did you mean 'int64'",
        ),
        ({"input-shape": "1,3;b:1,5"}, r"--input-shape: expected a name before each shape or before none"),
        ({"num-samples": "0"}, r"--num-samples: expected a whole number of at least 1, got '0'"),
        ({"opset": "new"}, r"--opset: expected a whole number of at least 1, got 'new'"),
        ({"rtol": "-1"}, r"--rtol: expected a number of at least 0, got '-1'"),
        ({"atol": "nan"}, r"--atol: expected a number of at least 0, got 'nan'"),
        ({"output": ""}, r"--output: expected a folder, got nothing"),
    ],
    ids=["format", "none", "shape", "empty", "dtype", "half_named", "samples", "opset", "rtol", "nan", "folder"],
)
def test_a_wrong_value_says_what_was_expected(said: dict[str, str | bool], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ExportOptions.of(said)


def test_all_wrong_options_are_told_together() -> None:
    with pytest.raises(ConfigError, match=r"(?s)--format: .*--num-samples: "):
        ExportOptions.of({"format": "tflite", "num-samples": "many"})


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ConfigError, match=r"--output: cannot write .*/file/there: Not a directory"):
        options_in(["--output", str(file / "there")])


def test_words_that_ask_for_help_have_no_options() -> None:
    assert options_in(["--format", "onx", "--help"])[0] is None
