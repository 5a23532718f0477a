"""A small classifier, and files of it that are right or wrong in a known way, written by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from pytorch_lightning import LightningModule
from torch import Tensor

from lightkit.export.forward import run_model
from lightkit.export.metadata import Metadata, TensorSpec
from lightkit.export.samples import EvaluationSamples
from lightkit.export.target import ExportTarget

CLASSES = ("daisy", "rose", "tulip")
NUM = 20
MARKED = 5
"""The sample whose first value tells a planted fault that it is the one."""


class LineOfThree(LightningModule):
    """Logits of three classes from four numbers."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.layer = torch.nn.Linear(4, 3)
        self.layer.weight.data = torch.randn(3, 4, generator=generator)
        self.layer.bias.data = torch.randn(3, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layer(x)
        return logits

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        logits = self(batch[0])
        self.log("val/loss", torch.nn.functional.cross_entropy(logits, batch[1]))
        self.log("val/accuracy", (logits.argmax(1) == batch[1]).float().mean())


def subject_of(
    model: torch.nn.Module | None = None, samples: EvaluationSamples | None = None
) -> ExportTarget:
    model = (model or LineOfThree()).eval()
    names = (
        run_model(model, (torch.zeros(2, 4),)) if isinstance(model, LineOfThree) else ("output",)
    )
    metadata = Metadata(
        format="",
        model=type(model).__name__,
        inputs=(TensorSpec("x", "float32", (None, 4)),),
        outputs=tuple(
            TensorSpec("logits" if name == "output" else name, "float32", (None, 3))
            for name in names
        ),
        output_kind="logits",
        class_names=CLASSES,
        source={"checkpoint": "best.ckpt", "sha256": "ab12"},
    )
    return ExportTarget(model, (torch.zeros(2, 4),), metadata, samples or samples_of(LineOfThree()))


def samples_of(model: torch.nn.Module, num: int = NUM) -> EvaluationSamples:
    """Samples that the model gets right, in batches of eight."""
    x = torch.randn(num, 4, generator=torch.Generator().manual_seed(11))
    x[min(MARKED, num - 1), 0] = 100.0
    with torch.no_grad():
        labels = model(x).argmax(1)
    batches = list(zip(torch.split(x, 8), torch.split(labels, 8), strict=True))
    return EvaluationSamples((x,), [f"photos/{row:02}.jpg" for row in range(num)], batches)


def writer_of(fault: str = "none") -> Callable[..., Metadata]:
    """A writer of ONNX files by hand, in the place of `lightkit.export.onnx.write`."""

    def write(subject: ExportTarget, metadata: Metadata, path: Path) -> Metadata:
        path.write_bytes(onnx_bytes(subject.model, metadata, fault))
        return metadata

    return write


def onnx_bytes(model: Any, metadata: Metadata, fault: str = "none") -> bytes:
    """The model as ONNX; ``fault`` is what is wrong with it."""
    weight, bias = model.layer.weight.detach().numpy().T.copy(), model.layer.bias.detach().numpy()
    if fault == "swapped":
        weight, bias = weight[:, [1, 0, 2]].copy(), bias[[1, 0, 2]].copy()
    if fault == "scaled":
        weight = (weight * np.float32(1.01)).astype(np.float32)
    constants = {
        "weight": weight,
        "bias": bias,
        "zero": np.zeros(1, np.int64),
        "one": np.ones(1, np.int64),
        "seven": np.asarray([7], np.int64),
        "fifty": np.asarray([50], np.float32),
        "nothing": np.zeros(3, np.float32),
        "planted": np.asarray([0, np.nan if fault == "nan" else np.inf, 0], np.float32),
    }
    nodes = [helper.make_node("MatMul", ["x", "weight"], ["product"]), *_rest(fault)]
    graph = helper.make_graph(
        nodes,
        "line",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [
            helper.make_tensor_value_info(
                "logits", TensorProto.DOUBLE if fault == "double" else TensorProto.FLOAT, None
            )
        ],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    helper.set_model_props(proto, {"lightkit": metadata.dumps()})
    content: bytes = proto.SerializeToString()
    return content


def _rest(fault: str) -> list[onnx.NodeProto]:
    """From the product to the logits."""
    if fault in ("none", "swapped", "scaled"):
        return [helper.make_node("Add", ["product", "bias"], ["logits"])]
    add = helper.make_node("Add", ["product", "bias"], ["sum"])
    if fault == "double":
        return [add, helper.make_node("Cast", ["sum"], ["logits"], to=TensorProto.DOUBLE)]
    if fault == "at_seven":
        return [
            add,
            helper.make_node("Shape", ["x"], ["shape"], end=1),
            helper.make_node("Equal", ["shape", "seven"], ["is_seven"]),
            helper.make_node("Cast", ["is_seven"], ["offset"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["sum", "offset"], ["logits"]),
        ]
    return [  # nan, inf: in the middle class of the marked sample
        add,
        helper.make_node("Slice", ["x", "zero", "one", "one"], ["first"]),
        helper.make_node("Greater", ["first", "fifty"], ["is_marked"]),
        helper.make_node("Where", ["is_marked", "planted", "nothing"], ["offset"]),
        helper.make_node("Add", ["sum", "offset"], ["logits"]),
    ]
