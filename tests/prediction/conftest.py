"""Exported models that are made by hand, without torch, and images for them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lightkit.artefacts.metadata import KEY, Metadata, TensorSpec
from lightkit.images.preprocessing import Preprocessing

PREPROCESSING = Preprocessing(resize=8, crop=(8, 8), mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.5))
COLOURS = ("red", "green", "blue")
MakeOnnx = Callable[..., Path]


def metadata_of(*, in_graph: bool = False, **changes: Any) -> Metadata:
    """Of a model that takes the mean of each colour as the logit of its name."""
    images = TensorSpec("images", "uint8", (None, None, None, 3)) if in_graph else None
    plain = TensorSpec("x", "float32", (None, 3, 8, 8))
    told: dict[str, Any] = {
        "format": "onnx",
        "model": "by_hand.Colours",
        "inputs": (images or plain,),
        "outputs": (TensorSpec("output", "float32", (None, 3)),),
        "output_kind": "probabilities" if in_graph else "logits",
        "class_names": COLOURS,
        "preprocessing": PREPROCESSING,
        "in_graph": in_graph,
    }
    return Metadata(**{**told, **changes})


@pytest.fixture
def make_onnx(tmp_path: Path) -> MakeOnnx:
    """Writes such a model as ONNX."""
    onnx = pytest.importorskip("onnx", reason="needs the extra lightkit[onnx]")
    pytest.importorskip("onnxruntime", reason="needs the extra lightkit[onnx]")
    from onnx import TensorProto, helper

    def make(name: str = "model.onnx", *, in_graph: bool = False, **changes: Any) -> Path:
        axes = helper.make_tensor("axes", TensorProto.INT64, [2], [1, 2] if in_graph else [2, 3])
        source, cast = ("images", "pixels") if in_graph else ("x", "x")
        nodes = [helper.make_node("ReduceMean", [cast, "axes"], ["means"], keepdims=0)]
        last = "Softmax" if in_graph else "Identity"
        nodes.append(helper.make_node(last, ["means"], ["output"]))
        if in_graph:
            nodes.insert(0, helper.make_node("Cast", ["images"], ["pixels"], to=TensorProto.FLOAT))
        shape: list[str | int | None] = ["batch", "height", "width", 3] if in_graph else ["batch", 3, 8, 8]
        kind = TensorProto.UINT8 if in_graph else TensorProto.FLOAT
        graph = helper.make_graph(
            nodes,
            "colours",
            [helper.make_tensor_value_info(source, kind, shape)],
            [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", 3])],
            [axes],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
        if changes.pop("of_lightkit", True):
            helper.set_model_props(model, {KEY: metadata_of(in_graph=in_graph, **changes).dumps()})
        onnx.save(model, tmp_path / name)
        return tmp_path / name

    return make


def expected_of(path: Path) -> np.ndarray[Any, np.dtype[np.float32]]:
    """What the model by hand says of an image."""
    with Image.open(path) as image:
        means = PREPROCESSING(image.convert("RGB")).mean(axis=(1, 2))
    powers = np.exp(means - means.max())
    shares: np.ndarray[Any, np.dtype[np.float32]] = powers / powers.sum()
    return shares


@pytest.fixture
def colours(tmp_path: Path) -> Path:
    """A folder with images of one colour each, and one of many, in several sizes."""
    folder = tmp_path / "colours"
    for number, name in enumerate(COLOURS):
        (folder / name).mkdir(parents=True)
        pixels = np.full((12, 16 + number, 3), 60, dtype=np.uint8)
        pixels[..., number] = 200
        Image.fromarray(pixels).save(folder / name / "plain.png")
    noise = np.random.default_rng(0).integers(0, 256, (20, 14, 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "noise.png")
    return folder


def environment() -> dict[str, str]:
    """For processes that a test starts."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
