"""Exports: files that give what their model gives, and the proof of it."""

from __future__ import annotations

import hashlib
import json
import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightkit.models import ImageClassifier
from tests.contract.conftest import copy_of
from tests.contract.examples import MY_PROJECT, SMALL
from tests.contract.export_examples import MY_EXPORTS
from tests.contract.workspace import ForkServer, Result, Workspace, load_checkpoint, read_json

pytestmark = pytest.mark.filterwarnings(
    # 2026-11, torch 2.15: its loader of TorchScript
    "ignore:`torch.jit.load` is deprecated:FutureWarning"
)
Array = np.ndarray[Any, Any]
FILES = {
    "onnx": "model.onnx",
    "torch_export": "model.pt2",
    "torchscript": "model.ts",
    "safetensors": "model.safetensors",
}
GRAPHS = ("onnx", "torch_export", "torchscript")
MARKED = 10
"""The one of the 48 points whose first number is above 2."""


def run_file(path: Path, *inputs: Array) -> list[Array]:
    """Run an exported file by its runtime alone.

    Outputs in the order of the file, those of a mapping by its order.
    """
    if path.suffix == ".onnx":
        import onnxruntime  # late: tests of other formats need it not

        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        names = [value.name for value in session.get_inputs()]
        return list(session.run(None, dict(zip(names, inputs, strict=True))))
    if path.suffix == ".pt2":
        module: Any = torch.export.load(path).module()
    else:
        module = torch.jit.load(path)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        outputs = module(*map(torch.from_numpy, inputs))
    tensors = outputs.values() if isinstance(outputs, dict) else [outputs]
    return [tensor.numpy() for tensor in tensors]


def metadata_of(path: Path) -> dict[str, Any]:
    """What an exported file says of itself."""
    text: Any
    if path.suffix == ".onnx":
        import onnxruntime  # as above

        text = (
            onnxruntime.InferenceSession(str(path)).get_modelmeta().custom_metadata_map["lightkit"]
        )
    elif path.suffix == ".safetensors":
        from safetensors import safe_open

        with safe_open(path, framework="np") as file:
            text = file.metadata()["lightkit"]
    else:
        extra = {"lightkit.json": ""}
        if path.suffix == ".pt2":
            torch.export.load(path, extra_files=extra)
        else:
            torch.jit.load(path, _extra_files=extra)  # type: ignore[no-untyped-call]
        text = extra["lightkit.json"]
    content: dict[str, Any] = json.loads(text)
    return content


def digest(path: Path) -> str:
    """Digest of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def entry_of(path: Path) -> dict[str, Any]:
    """Entry of a file in the export.json beside it."""
    entry: dict[str, Any] = read_json(path.with_name("export.json"))["artefacts"][path.name]
    return entry


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer) -> Iterator[Workspace]:
    """A workspace with `my_exports.py`, which the tests of this file share.

    Each writes to a folder of its own.
    """
    workspace = Workspace(tmp_path_factory.mktemp("exports") / "work", fork_server)
    workspace.write("my_project.py", MY_PROJECT)
    workspace.write("my_exports.py", MY_EXPORTS)
    workspace.write("small.yaml", SMALL)
    yield workspace
    workspace.close()


# -- the files -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def export_folder(exported_original: Path) -> Path:
    """The run's export folder, to be read only."""
    (folder,) = exported_original.glob("runs/pictures/2*/export")
    return folder


@pytest.fixture(scope="module")
def checkpoint(export_folder: Path) -> Path:
    """The checkpoint that was exported."""
    return export_folder.parent / "checkpoints" / "best.ckpt"


def model_of(checkpoint: Path) -> ImageClassifier:
    """The model of a checkpoint."""
    saved = load_checkpoint(checkpoint)
    model = ImageClassifier(
        **{k: v for k, v in saved["hyper_parameters"].items() if not k.startswith("_")}
    )
    model.on_load_checkpoint(saved)
    model.load_state_dict(saved["state_dict"])
    return model.eval()


@pytest.fixture(scope="module")
def eager(checkpoint: Path) -> ImageClassifier:
    """The model of that checkpoint."""
    return model_of(checkpoint)


@pytest.fixture
def no_lightkit(eager: ImageClassifier, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let imports of lightkit fail, but for what the test has already."""
    assert eager is not None
    for name in [name for name in sys.modules if name.partition(".")[0] == "lightkit"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lightkit", None)


@pytest.mark.usefixtures("no_lightkit")
@pytest.mark.parametrize("num", [1, 5, 40], ids=lambda num: f"batch_of_{num}")
@pytest.mark.parametrize("kind", GRAPHS)
def test_each_file_gives_without_lightkit_what_its_checkpoint_gives(
    export_folder: Path, eager: ImageClassifier, kind: str, num: int
) -> None:
    images = np.random.default_rng(num).normal(size=(num, 3, 32, 32)).astype(np.float32)
    with torch.no_grad():
        expected = eager(torch.from_numpy(images)).numpy()
    (given,) = run_file(export_folder / FILES[kind], images)
    np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-5)


def test_exported_weights_are_those_of_the_checkpoint(
    export_folder: Path, checkpoint: Path
) -> None:
    from safetensors.torch import load_file

    weights, saved = (
        load_file(export_folder / "model.safetensors"),
        load_checkpoint(checkpoint)["state_dict"],
    )
    assert weights.keys() == saved.keys()
    different = [name for name, tensor in saved.items() if not torch.equal(weights[name], tensor)]
    assert different == []


@pytest.mark.parametrize("kind", FILES)
def test_each_file_says_in_itself_its_classes_and_how_an_image_is_prepared(
    export_folder: Path, kind: str
) -> None:
    said = metadata_of(export_folder / FILES[kind])
    assert said["class_names"] == ["blues", "reds"]
    prepared = said["preprocessing"]
    assert (prepared["crop"], prepared["channel_order"]) == ([32, 32], "RGB")
    assert (prepared["mean"], prepared["std"]) == ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])


@pytest.mark.parametrize(
    ("kind", "runtime"),
    [("onnx", "onnxruntime"), ("torch_export", "torch"), ("torchscript", "torch")],
    ids=GRAPHS,
)
def test_each_file_is_proved_in_a_process_that_has_its_runtime_alone(
    export_folder: Path, kind: str, runtime: str
) -> None:
    assert entry_of(export_folder / FILES[kind])["loaded"] == [runtime]


@pytest.mark.parametrize("kind", FILES)
def test_export_json_records_the_proof_of_each_file(export_folder: Path, kind: str) -> None:
    entry = entry_of(export_folder / FILES[kind])
    assert entry["parity"].keys() == {"1", "7", "32"}
    assert max(of_size["max_abs"] for of_size in entry["parity"].values()) < 1e-4
    assert {of_size["outside"] for of_size in entry["parity"].values()} == {0}
    assert entry["samples"] == 15, "all of the validation split"
    assert entry["metrics"]["scored"] is True
    assert entry["metrics"]["exported"] == pytest.approx(entry["metrics"]["eager"], abs=1e-5)
    assert {"val/accuracy", "val/loss"} <= entry["metrics"]["eager"].keys()


@pytest.mark.parametrize("kind", FILES)
def test_export_json_records_what_a_file_is_and_where_it_is_from(
    export_folder: Path, checkpoint: Path, kind: str
) -> None:
    file = export_folder / FILES[kind]
    entry = entry_of(file)
    assert (entry["format"], entry["sha256"], entry["size_bytes"]) == (
        kind,
        digest(file),
        file.stat().st_size,
    )
    assert entry["source"]["sha256"] == digest(checkpoint)
    assert entry["source"]["run"] == f"pictures/{export_folder.parent.name}"
    assert [(spec["dtype"], spec["shape"]) for spec in entry["inputs"]] == [
        ("float32", [None, 3, 32, 32])
    ]
    assert [(spec["dtype"], spec["shape"]) for spec in entry["outputs"]] == [("float32", [None, 2])]
    assert {"lightkit", "torch"} <= entry["versions"].keys()


def test_export_json_says_how_a_torchscript_file_was_made(export_folder: Path) -> None:
    assert re.match(
        r"script$|trace, because it cannot be scripted", entry_of(export_folder / "model.ts")["how"]
    )


def test_export_json_has_the_latency_of_a_file_and_of_the_eager_model(export_folder: Path) -> None:
    latency = entry_of(export_folder / "model.onnx")["latency"]
    assert latency.keys() == {"exported", "eager"}
    assert all(
        0 < figures["1"]["median_s"] <= figures["1"]["p95_s"] for figures in latency.values()
    )


def test_an_export_leaves_the_run_as_it_is(
    exported_original: Path, classifier_original: Path
) -> None:
    before, after = (
        {
            str(path.relative_to(root)): digest(path)
            for path in root.glob("runs/pictures/2*/**/*")
            if path.is_file()
        }
        for root in (classifier_original, exported_original)
    )
    assert {name: found for name, found in after.items() if "/export/" not in name} == before


def test_an_export_is_left_without_files_that_are_not_whole(export_folder: Path) -> None:
    assert {path.name for path in export_folder.iterdir() if path.name[0] != "."} == {
        *FILES.values(),
        "export.json",
    }
    assert [path.name for path in export_folder.glob(".*") if path.is_dir()] == []


# -- half, int8, preprocessing in the graph
# ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reduced(
    tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer, exported_original: Path
) -> Path:
    """Folder of ONNX files of the last checkpoint, with --half, --int8 and an opset."""
    workspace = copy_of(
        exported_original, Workspace(tmp_path_factory.mktemp("reduced") / "work", fork_server)
    )
    words = (
        *("--ckpt_path", "last", "--format", "onnx", "--half", "--int8", "--opset", "19"),
        *("--output", "small"),
    )
    workspace.run("export", "--run", "latest", *words, timeout_s=280).ok()
    workspace.close()
    return workspace.folder / "small"


def weights_of(path: Path) -> dict[str, Array]:
    """Tensors that an ONNX file holds."""
    onnx = pytest.importorskip("onnx", reason="needs the extra lightkit-train[onnx]")
    return {
        tensor.name: onnx.numpy_helper.to_array(tensor)
        for tensor in onnx.load(path).graph.initializer
    }


@pytest.fixture(scope="module")
def last_checkpoint(reduced: Path) -> Path:
    """The checkpoint of these files."""
    (file,) = reduced.parent.glob("runs/pictures/2*/checkpoints/last.ckpt")
    return file


def test_ckpt_path_names_the_checkpoint_that_is_exported(
    reduced: Path, last_checkpoint: Path
) -> None:
    assert entry_of(reduced / "model.onnx")["source"]["sha256"] == digest(last_checkpoint)


def test_half_has_weights_in_float16_and_inputs_and_outputs_in_float32(
    reduced: Path, last_checkpoint: Path
) -> None:
    weights = [
        values for values in weights_of(reduced / "model.half.onnx").values() if values.size > 8
    ]
    assert {values.dtype for values in weights if values.dtype.kind == "f"} == {
        np.dtype(np.float16)
    }
    images = np.random.default_rng(3).normal(size=(5, 3, 32, 32)).astype(np.float32)
    (given,) = run_file(reduced / "model.half.onnx", images)
    with torch.no_grad():
        expected = model_of(last_checkpoint)(torch.from_numpy(images)).numpy()
    assert given.dtype == np.float32
    np.testing.assert_allclose(given, expected, rtol=0.01, atol=0.02 * np.abs(expected).max())


def test_int8_has_whole_weights_with_a_scale_for_each_channel(reduced: Path) -> None:
    weights = weights_of(reduced / "model.int8.onnx")
    kernels = [values for values in weights.values() if values.ndim == 4]
    assert {values.dtype for values in kernels} == {np.dtype(np.int8)}
    scales = {values.size for name, values in weights.items() if "scale" in name}
    assert {len(kernel) for kernel in kernels} <= scales
    (given,) = run_file(reduced / "model.int8.onnx", np.zeros((2, 3, 32, 32), np.float32))
    assert (given.dtype, given.shape) == (np.float32, (2, 2))


def test_int8_weights_do_not_saturate_on_any_processor(reduced: Path) -> None:
    kernels = [
        values
        for values in weights_of(reduced / "model.int8.onnx").values()
        if values.dtype == np.int8
    ]
    largest = max(int(np.abs(values.astype(int)).max()) for values in kernels if values.ndim > 1)
    assert 2 * 255 * largest < 2**15, "two products are added in 16 bits where there is no VNNI"
    verified = entry_of(reduced / "model.int8.onnx")["verified_on"]
    assert set(verified) == {"processor", "instruction_sets"}
    assert isinstance(verified["instruction_sets"], list)


@pytest.mark.parametrize(
    ("name", "precision"),
    [("model.onnx", "float32"), ("model.half.onnx", "float16"), ("model.int8.onnx", "int8")],
    ids=["full", "half", "int8"],
)
def test_a_file_of_less_precision_is_proved_and_reported_next_to_the_full_one(
    reduced: Path, name: str, precision: str
) -> None:
    entry = entry_of(reduced / name)
    assert entry["precision"] == precision
    assert entry["metrics"]["scored"] is True
    assert entry["size_bytes"] == (reduced / name).stat().st_size


def test_the_opset_is_that_which_was_asked_for(reduced: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="needs the extra lightkit-train[onnx]")
    assert {
        entry.version
        for entry in onnx.load(reduced / "model.onnx").opset_import
        if not entry.domain
    } == {19}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("onnx", marks=pytest.mark.long),
        pytest.param("torch_export", marks=pytest.mark.long),
        "torchscript",
    ],
)
def test_with_preprocessing_a_file_takes_photos_of_any_size_and_gives_probabilities(
    exported: Workspace, kind: str
) -> None:
    exported.run(
        "export", "--run", "latest", "--format", kind, "--with-preprocessing", "--output", "whole"
    ).ok()
    file = exported.folder / "whole" / FILES[kind]
    (spec,) = entry_of(file)["inputs"]
    assert (spec["dtype"], spec["shape"]) == ("uint8", [None, None, None, 3])
    from PIL import Image

    images = []
    for number, (width, height) in enumerate([(40, 40), (57, 33), (31, 90)]):
        pixels = np.random.default_rng(number).integers(0, 256, (height, width, 3), dtype=np.uint8)
        (exported.folder / "new").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(exported.folder / "new" / f"{number}.png")
        images.append(pixels)
    exported.run("predict", "--run", "latest", "new", "--output", "table.jsonl").ok()
    rows = [
        json.loads(line)
        for line in (exported.folder / "table.jsonl").read_text("utf-8").splitlines()
    ]
    for pixels, row in zip(images, rows, strict=True):
        (given,) = run_file(file, pixels[None])
        by_name = {row["label"]: row["probability"], row["label_2"]: row["probability_2"]}
        assert given[0].tolist() == pytest.approx([by_name["blues"], by_name["reds"]], abs=1e-5)
    exported.run("predict", "--model", str(file), "new", "--output", "again.jsonl").ok()
    again = [
        json.loads(line)
        for line in (exported.folder / "again.jsonl").read_text("utf-8").splitlines()
    ]
    assert again == [
        {k: pytest.approx(v, abs=1e-5) if "prob" in k else v for k, v in row.items()}
        for row in rows
    ]


# -- files that are no match -----------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """A command that ended, and the folder that it wrote to."""

    result: Result
    folder: Path


@pytest.fixture(
    scope="module",
    params=["torchscript", pytest.param("onnx,torch_export,safetensors", marks=pytest.mark.long)],
)
def formats(request: pytest.FixtureRequest) -> str:
    """Formats that are exported together."""
    given: str = request.param
    return given


@pytest.fixture(scope="module")
def mismatched(place: Workspace, formats: str) -> Ended:
    """An export of a module of which each file gives something else for one sample."""
    output = f"mismatched-{formats}"
    folder = place.folder / output
    folder.mkdir()
    for name in FILES.values():
        (folder / name).write_bytes(b"of an earlier export")
    words = (
        "export",
        "-c",
        "small.yaml",
        "--model=my_exports.Changed",
        "--format",
        formats,
        "--output",
        output,
    )
    return Ended(place.run(*words, timeout_s=280), folder)


def test_an_export_that_is_no_match_ends_with_5(mismatched: Ended) -> None:
    assert mismatched.result.code == 5
    assert "Traceback" not in mismatched.result.err


def test_a_file_that_is_no_match_is_removed_with_the_one_of_an_earlier_export(
    mismatched: Ended, formats: str
) -> None:
    record = mismatched.folder / "export.json"
    for kind in formats.split(","):
        assert not (mismatched.folder / FILES[kind]).exists()
        assert not record.exists() or FILES[kind] not in read_json(record)["artefacts"]


def test_an_error_of_a_mismatch_names_the_sample_the_gap_and_the_batch_sizes(
    mismatched: Ended, formats: str
) -> None:
    for kind in formats.split(","):
        (line,) = [
            line
            for line in mismatched.result.err.splitlines()
            if line.startswith(f"error: {FILES[kind]} ")
        ]
        assert f"val/{MARKED:05d}" in line
        assert "1 of 48" in line
        assert "1.00e+00" in line
        assert "batch size 1 (at batch 7 and 32 too)" in line
        assert "--atol" in line


def test_what_is_no_match_in_its_metrics_is_refused_whatever_the_tolerance_of_outputs(
    place: Workspace,
) -> None:
    words = (
        "--model=my_exports.Changed",
        "--format",
        "torchscript",
        "--atol",
        "10",
        "--output",
        "drifted",
    )
    result = place.run("export", "-c", "small.yaml", *words)
    assert result.code == 5, result.err
    assert "val/loss is" in result.err
    assert not (place.folder / "drifted" / "model.ts").exists()


def test_a_gap_that_is_allowed_for_passes_and_is_recorded(place: Workspace) -> None:
    words = (
        "--model=my_exports.Changed",
        "--model.by=0.0005",
        "--format",
        "torchscript",
        "--output",
        "allowed",
    )
    place.run("export", "-c", "small.yaml", *words, "--atol", "0.001").ok()
    entry = entry_of(place.folder / "allowed" / "model.ts")
    assert entry["tolerance"]["atol"] == 0.001
    assert entry["parity"]["1"]["max_abs"] == pytest.approx(0.0005, rel=0.01)


# -- any LightningModule ---------------------------------------------------------------------------

SCRIPT = """\
from lightkit import LightkitCLI
from my_exports import Rows, Two

if __name__ == "__main__":
    LightkitCLI(Two, Rows)
"""


@pytest.fixture(scope="module")
def scripted(place: Workspace) -> Ended:
    """An export by a script of a module with two inputs and a mapping as output."""
    place.write("train.py", SCRIPT)
    words = ("export", "--format", "onnx,safetensors", "--output", "two", "--seed_everything=1")
    return Ended(place.run(*words, script="train.py", timeout_s=280).ok(), place.folder / "two")


def test_a_script_with_lightkit_cli_exports_a_module_with_two_inputs_and_a_mapping(
    scripted: Ended,
) -> None:
    from safetensors.numpy import load_file

    weights = load_file(scripted.folder / "model.safetensors")
    image, extra = (
        np.random.default_rng(1).normal(size=(6, size)).astype(np.float32) for size in (3, 2)
    )
    features = np.maximum(image @ weights["body.weight"].T + weights["body.bias"], 0)
    logits = np.concatenate([features, extra], 1) @ weights["head.weight"].T + weights["head.bias"]
    given = run_file(scripted.folder / "model.onnx", image, extra)
    np.testing.assert_allclose(given[0], logits, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(given[1], features, rtol=1e-4, atol=1e-5)


def test_inputs_and_outputs_are_called_as_in_the_module(scripted: Ended) -> None:
    entry = entry_of(scripted.folder / "model.onnx")
    assert [spec["name"] for spec in entry["inputs"]] == ["image", "extra"]
    assert [(spec["name"], spec["shape"]) for spec in entry["outputs"]] == [
        ("logits", [None, 2]),
        ("features", [None, 4]),
    ]


def test_an_export_shows_what_it_is_of_its_proof_and_each_file(scripted: Ended) -> None:
    out = scripted.result.out
    assert "proof 9 samples: validation split\n" in out
    assert all(f"{name}: proved\n" in out for name in ("model.onnx", "model.safetensors"))
    table = [line.partition("  ")[0] for line in out.partition("\nfile ")[2].splitlines()[:4]]
    assert table[1:] == ["eager model", "model.onnx", "model.safetensors"]
    assert "untrained" in scripted.result.err
    assert "\r" not in out
    assert "\x1b" not in out


def test_without_data_the_proof_is_on_random_inputs_and_a_warning_says_so(place: Workspace) -> None:
    elsewhere = ("--trainer.accelerator=gpu", "--trainer.devices=8", "--trainer.strategy=ddp")
    shapes = ("--input-shape", "1x3; 1,2")
    words = (
        "--model=my_exports.Two",
        "--data=null",
        *elsewhere,
        *shapes,
        "--num-samples=8",
        "--format",
        "torchscript",
    )
    result = place.run("export", "-c", "small.yaml", *words, "--output", "json").ok()
    assert "the proof is weaker" in result.err
    first, *_, last = (event for event in result.json_lines if event["event"] != "step")
    assert (first["event"], first["samples"]) == ("start", 8)
    assert last["event"] == "export"
    assert [spec["name"] for spec in last["artefacts"][0]["inputs"]] == ["image", "extra"]
    assert (place.folder / "export" / "model.ts").is_file()
    assert place.runs == []


# -- what cannot be exported -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (
            ["--model=my_exports.Failing"],
            5,
            r"Failing.*ValueError: numbers are out of stock \(my_exports\.py:\d+\)",
        ),
        (["--model=my_exports.Texts"], 5, r"Texts\.forward gives a str"),
        (["--model=my_exports.Nans"], 5, r"Nans itself gives NaN"),
        (["--model=my_exports.Random"], 5, r"Random itself gives something else each time"),
        (
            ["--model=my_exports.Deciding"],
            5,
            r"model\.pt2: Deciding cannot be exported: .*my_exports\.py:\d+",
        ),
        (
            ["--model=my_exports.FixedBatch"],
            5,
            r"model\.pt2: FixedBatch cannot be exported: .*my_exports\.py:\d+",
        ),
        (
            ["--model=my_exports.Two", "--data=my_exports.Rows", "--with-preprocessing"],
            2,
            r"--with-preprocessing: .*image \(batch, 3\) and extra \(batch, 2\)",
        ),
        (
            ["--input-shape", "1,3;1,3"],
            2,
            r"--input-shape: forward\(x\) of Net does not take 2 shapes",
        ),
        (["--data=null"], 2, r"what forward takes is unknown.*--input-shape"),
        (
            ["--data=null", "--input-shape=1,3", "--format=onnx", "--int8"],
            2,
            r"--int8.*no training",
        ),
        (["--half"], 2, r"--half: only for ONNX files"),
        (["--format=onnx", "--opset=17"], 2, r"--opset: expected 18 to 23.*17"),
        (["--ckpt_path=none.ckpt"], 2, r"none\.ckpt"),
        (["--output", "small.yaml/there"], 2, r"--output: cannot write small\.yaml/there"),
        (
            ["--format", "onx", "--input-shape", "1,3:int46", "--num-samples", "0", "--rtol=-1"],
            2,
            (
                r"(?s)'onx'; did you mean 'onnx'\?.*'int46'; did you mean"
                r" 'int64'.*--num-samples: .*--rtol: "
            ),
        ),
    ],
    ids=[
        *("forward_raises", "no_tensor", "nan", "random", "decides_by_values", "fixed_batch"),
        *(
            "no_image",
            "other_shapes",
            "unknown_inputs",
            "int8_without_samples",
            "half_without_onnx",
            "old_opset",
        ),
        *("no_checkpoint", "folder_below_a_file", "all_wrong_options"),
    ],
)
def test_what_cannot_be_exported_is_reported_in_a_line_and_leaves_no_file(
    place: Workspace, words: list[str], code: int, says: str, request: pytest.FixtureRequest
) -> None:
    folder = [] if "--output" in words else ["--output", f"none-{request.node.callspec.id}"]
    result = place.run("export", "-c", "small.yaml", *words, *folder)
    assert result.code == code, result.err
    assert_matches(says, result)
    assert [path for path in place.folder.glob("none-*/*") if path.name[0] != "."] == []


def assert_matches(says: str, result: Result) -> None:
    """Assert that an error is told, without a traceback."""
    assert re.search(says, result.err), result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    ("words", "says"),
    [([], "--run"), (["--run", "latest"], "There is no run")],
    ids=["nothing_named", "no_run"],
)
def test_an_export_of_nothing_is_reported(place: Workspace, words: list[str], says: str) -> None:
    result = place.run("export", *words)
    assert result.code == 2
    assert says in result.err


def test_a_preprocessing_that_the_loader_does_not_do_is_refused(classifier: Workspace) -> None:
    classifier.write("my_exports.py", MY_EXPORTS)
    given = {"root": "pictures", "image_size": 32, "batch_size": 8, "num_workers": 0}
    words = [f"--data.init_args.{key}={value}" for key, value in given.items()]
    result = classifier.run(
        "export", "--run", "latest", "--data=my_exports.Brighter", *words, "--output", "none"
    )
    assert result.code == 2, result.err
    assert_matches(r"`?preprocessing`? is not what its loader does: .*\.png differs", result)
    assert not (classifier.folder / "none").exists()


def test_a_missing_extra_is_named_with_its_command(place: Workspace) -> None:
    place.write(
        "without_onnx.py",
        "import sys\nfrom lightkit.main import main\nsys.modules['onnxruntime'] ="
        " None\nsys.exit(main())\n",
    )
    words = ("export", "-c", "small.yaml", "--format", "onnx", "--output", "none")
    result = place.run(*words, script="without_onnx.py")
    assert result.code == 2, result.err
    assert "pip install 'lightkit-train[onnx]'" in result.err


# -- interrupted, and at once ----------------------------------------------------------------------


@dataclass(frozen=True)
class Interrupted:
    """An export that is killed, one that is started beside it, and one that comes after it."""

    beside: Result
    left: dict[str, bytes]
    after: Result
    folder: Path


@pytest.fixture(scope="module")
def interrupted_export(place: Workspace) -> Interrupted:
    """A file is written and not yet proved when its export is killed."""
    folder = place.folder / "interrupted"
    folder.mkdir()
    (folder / "model.ts").write_bytes(b"of an earlier export")
    (place.folder / "hold").touch()
    words = (
        "-c",
        "small.yaml",
        "--format",
        "torchscript",
        "--output",
        "interrupted",
        "--model=my_exports.Held",
    )
    process = place.start("export", *words)
    process.wait_for((place.folder / "scoring").exists)
    beside = place.run("export", *words)
    process.signal_group(signal.SIGKILL)
    process.wait()
    left = {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.is_file() and path.name[0] != "."
    }
    (place.folder / "hold").unlink()
    return Interrupted(beside, left, place.run("export", *words), folder)


def test_a_second_export_to_a_folder_is_reported_to_try_again_later(
    interrupted_export: Interrupted,
) -> None:
    assert interrupted_export.beside.code == 75
    assert "Another export is writing to" in interrupted_export.beside.err


def test_a_killed_export_leaves_the_earlier_file_and_no_half_one(
    interrupted_export: Interrupted,
) -> None:
    assert interrupted_export.left == {"model.ts": b"of an earlier export"}


def test_the_next_export_cleans_up_after_a_killed_one(interrupted_export: Interrupted) -> None:
    interrupted_export.after.ok()
    names = {
        path.name
        for path in interrupted_export.folder.iterdir()
        if path.name[0] != "." or path.is_dir()
    }
    assert names == {"model.ts", "export.json"}


@pytest.mark.parametrize(
    "moment",
    [
        "before model.ts",
        pytest.param("after model.ts", marks=pytest.mark.long),
        pytest.param("before export.json", marks=pytest.mark.long),
        pytest.param("after export.json", marks=pytest.mark.long),
    ],
)
def test_a_kill_while_a_file_gets_its_name_leaves_the_old_or_the_new_one_whole(
    exported: Workspace, moment: str
) -> None:
    exported.write("my_exports.py", MY_EXPORTS)
    folder = exported.only_run / "export"
    before = {path.name: digest(path) for path in folder.glob("model.*")}
    words = (
        "-c",
        "small.yaml",
        "--model=my_exports.Held",
        "--format",
        "torchscript",
        "--output",
        str(folder),
    )
    result = exported.run("export", *words, environ={"KILL_AT": moment})
    assert result.code == -signal.SIGKILL, result.err
    after = {path.name: digest(path) for path in folder.glob("model.*")}
    changed = {name for name in before if after.get(name) != before[name]}
    assert changed <= {"model.ts"}
    entry = read_json(folder / "export.json")["artefacts"].get("model.ts")
    assert entry is None or entry["sha256"] == after["model.ts"]
    if changed:
        (given,) = run_file(folder / "model.ts", np.zeros((2, 3), np.float32))
        assert given.shape == (2, 1)


# -- models that are logged in MLflow --------------------------------------------------------------

LOG = """\
import mlflow
import torch

torch.manual_seed(5)
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
mlflow.set_tracking_uri("sqlite:///runs/mlflow.db")
mlflow.create_experiment("by-hand", artifact_location="runs/mlflow-artifacts")
mlflow.set_experiment("by-hand")
with mlflow.start_run():
    mlflow.pytorch.log_model(
        model, name="model", registered_model_name="net", input_example=torch.zeros(2, 3).numpy(),
        pip_requirements=["torch", "numpy"], serialization_format="pickle",
    )
mlflow.MlflowClient().set_registered_model_alias("net", "champion", "1")
torch.save(model.state_dict(), "weights.pt")
"""


@pytest.fixture(scope="module")
def logged(place: Workspace) -> Workspace:
    """The shared workspace with a model that an MLflow user logged, pickled, as net@champion."""
    (place.folder / "runs").mkdir()
    place.write("log.py", LOG)
    place.run(script="log.py").ok()
    return place


def test_a_logged_model_that_is_pickled_is_refused_without_trust(logged: Workspace) -> None:
    words = (
        "export",
        "--run",
        "models:/net@champion",
        "--format",
        "torchscript",
        "--output",
        "refused",
    )
    result = logged.run(*words)
    assert result.code == 2, result.err
    assert "--trust" in result.err
    assert not (logged.folder / "refused" / "model.ts").exists()


def test_a_logged_model_is_exported_as_what_it_is(logged: Workspace) -> None:
    words = (
        "export",
        "--run",
        "models:/net@champion",
        "--format",
        "torchscript",
        "--output",
        "logged",
        "--trust",
    )
    logged.run(*words).ok()
    weights = torch.load(logged.folder / "weights.pt", weights_only=True)
    points = torch.randn(9, 3, generator=torch.Generator().manual_seed(2))
    expected = (points @ weights["0.weight"].T + weights["0.bias"]).relu() @ weights[
        "2.weight"
    ].T + weights["2.bias"]
    (given,) = run_file(logged.folder / "logged" / "model.ts", points.numpy())
    np.testing.assert_allclose(given, expected.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["-c", "small.yaml"], "-c small.yaml"),
        (["--model.k=3"], "--model.k=3"),
        (["--input-shape", "1,3"], "--input-shape"),
        (["--tracking-uri=sqlite:///x.db"], "MLFLOW_TRACKING_URI"),
    ],
    ids=["file", "key", "shape", "tracking"],
)
def test_what_has_no_effect_on_a_logged_model_is_refused(
    place: Workspace, words: list[str], says: str
) -> None:
    result = place.run("export", "--run", "models:/net@champion", *words)
    assert result.code == 2
    assert says in result.err
    assert "has no effect on models:/net@champion" in result.err


def test_a_logged_model_is_looked_for_in_the_run_root(place: Workspace) -> None:
    result = place.run("export", "--run", "models:/net@champion", "--run.root=elsewhere")
    assert result.code == 2
    assert "elsewhere/mlflow.db" in result.err
    assert not (place.folder / "elsewhere").exists()
