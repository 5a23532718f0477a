"""What exported files say of themselves, and what is said of files that are none."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from lightkit.errors import ConfigError, DataError
from lightkit.export.formats import FORMATS, METADATA_KEY, format_of
from lightkit.export.metadata import Metadata, TensorSpec, read_metadata
from lightkit.images.preprocessing import Preprocessing

SAID = Metadata(
    format="safetensors",
    model="my_models.Net",
    inputs=(TensorSpec("images", "float32", (None, 3, 32, 32)),),
    outputs=(TensorSpec("output", "float32", (None, 2)),),
    output_kind="logits",
    class_names=("rose", "tulip é"),
    preprocessing=Preprocessing(
        resize=37, crop=(32, 32), mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.1)
    ),
    source={"checkpoint": "best.ckpt", "sha256": "ab"},
    versions={"torch": "2.15.0"},
)


def safetensors(path: Path, text: str) -> Path:
    save_file({"weight": np.zeros(100, dtype=np.float32)}, path, metadata={METADATA_KEY: text})
    return path


def torch_archive(path: Path, text: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/extra/lightkit.json", text)
    return path


def onnx_file(path: Path, text: str) -> Path:
    helper = pytest.importorskip("onnx.helper")
    shapes = [helper.make_tensor_value_info(name, 1, ["batch", 2]) for name in ("x", "y")]
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])], "g", shapes[:1], shapes[1:]
    )
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])
    helper.set_model_props(model, {METADATA_KEY: text})
    path.write_bytes(model.SerializeToString())
    return path


WRITERS = {
    ".safetensors": safetensors,
    ".pt2": torch_archive,
    ".ts": torch_archive,
    ".onnx": onnx_file,
}


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_file_gives_back_what_was_written_into_it(suffix: str, tmp_path: Path) -> None:
    assert read_metadata(WRITERS[suffix](tmp_path / f"model{suffix}", SAID.dumps())) == SAID


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: b"\x89PNG" + bytes(100),
        lambda data: b"text",
    ],
    ids=["cut short", "empty", "picture", "text"],
)
def test_a_file_that_is_no_export_is_reported_in_one_line(  # type: ignore[no-untyped-def]
    suffix: str, spoil, tmp_path: Path
) -> None:
    path = WRITERS[suffix](tmp_path / f"model{suffix}", SAID.dumps())
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(
        DataError, match=r"not an export of lightkit, or it is damaged or cut short \(.+\)"
    ) as raised:
        read_metadata(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[1]",
        "not json",
        json.dumps({**SAID.as_dict(), "inputs": [3]}),
        json.dumps({"format": "onnx"}),
    ],
    ids=["empty", "list", "no json", "input is a number", "fields missing"],
)
def test_a_file_that_says_something_else_of_itself_is_refused(
    suffix: str, text: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="not an export of lightkit"):
        read_metadata(WRITERS[suffix](tmp_path / f"model{suffix}", text))


def marked(offset: int, value: int) -> Callable[[bytes], bytes]:
    """Set a byte of the only record's entry in an archive's directory."""

    def change(data: bytes) -> bytes:
        at = data.rfind(b"PK\x01\x02") + offset
        return data[:at] + bytes([value]) + data[at + 1 :]

    return change


@pytest.mark.parametrize(
    "spoil", [marked(8, 1), marked(10, 97), marked(10, 8)], ids=["locked", "packed", "deflated"]
)
def test_an_archive_that_was_altered_is_reported_in_one_line(
    spoil: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path = torch_archive(tmp_path / "model.pt2", SAID.dumps())
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(
        DataError, match=r"not an export of lightkit, or it is damaged or cut short \(.+\)"
    ):
        read_metadata(path)


@pytest.mark.parametrize("suffix", WRITERS)
def test_metadata_without_an_end_are_reported_in_one_line(suffix: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not an export of lightkit"):
        read_metadata(WRITERS[suffix](tmp_path / f"model{suffix}", "[" * 100_000))


def test_fields_of_later_versions_are_left_out() -> None:
    record = {**SAID.as_dict(), "colour": "red"}
    record["preprocessing"]["colour"] = "red"
    assert Metadata.from_dict(record) == SAID


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_missing_file_is_reported(suffix: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no such file"):
        read_metadata(tmp_path / f"model{suffix}")


@pytest.mark.parametrize(
    ("name", "format_"), [(each.file, format_) for format_, each in FORMATS.items()]
)
def test_the_end_of_a_name_reports_the_format(name: str, format_: str) -> None:
    assert format_of(f"some/where/{name.upper()}") == format_
    assert format_of("model.ckpt") is None


@pytest.mark.slow
def test_without_the_package_of_a_format_its_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.onnx"
    path.touch()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError) as caught:
        read_metadata(path)
    assert str(caught.value) == (
        f"{path}: onnx is read by onnxruntime, which is not installed: pip install"
        " 'lightkit-train[onnx]'."
    )


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            ModuleNotFoundError("No module named 'torch'", name="torch"),
            "torch_export is read by torch, which is not installed: pip install torch.",
        ),
        (
            ImportError("libgomp.so.1: cannot open shared object file", name="onnxruntime"),
            "a package that reads torch_export does not load (libgomp.so.1: cannot open shared"
            " object file). Install it anew.",
        ),
    ],
    ids=["missing", "broken"],
)
def test_a_package_of_no_extra_is_named_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: ImportError, says: str
) -> None:
    def fail(path: Path) -> str:
        raise error

    monkeypatch.setitem(
        FORMATS, "torch_export", replace(FORMATS["torch_export"], read_metadata=fail)
    )
    path = tmp_path / "model.pt2"
    path.touch()
    with pytest.raises(ConfigError) as caught:
        read_metadata(path)
    assert str(caught.value) == f"{path}: {says}"


def test_metadata_are_read_without_torch(tmp_path: Path) -> None:
    files = [
        str(write(tmp_path / f"model{suffix}", SAID.dumps())) for suffix, write in WRITERS.items()
    ]
    script = (
        "import sys, pathlib; from lightkit.export.metadata import read_metadata\n"
        "for file in sys.argv[1:]: read_metadata(pathlib.Path(file))\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *files], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
