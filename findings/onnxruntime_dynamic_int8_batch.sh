#!/usr/bin/env bash
# onnxruntime 1.31.1: in a model of quantize_dynamic the answer to a row depends on the other rows of its batch.
#
# Guess: quantization changes each row a little; a row's answer is its own, as before.
# Seen for a network of three layers: a row's outputs are within 6 % of their spread of the float model, alone and among
# rows like it. With one row in the batch that is a thousand times as large, as of a feature in other units, the other 31
# rows all get one and the same answer, 21 of them another class than alone: each layer rounds its input to 256
# steps between the least and the greatest number of the whole batch, and theirs all become zero. So whether a server
# answers a request rightly depends on whose request it collects with it, an evaluation on the batch size and the
# order of the rows, and a check with usual rows sees nothing. `quantize_static`, whose ranges come of a calibration,
# gives each row the answer that it has alone. lightkit exports that kind.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet onnxruntime==1.31.1 onnx==1.23.2 numpy==2.4.6

cat > "$folder/batches.py" <<'PYTHON'
import logging

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, quantize_dynamic, quantize_static

logging.disable(logging.WARNING)
draw = np.random.default_rng(0)
SIZES = [16, 64, 64, 3]


def build():
    nodes, weights, name = [], [], "x"
    for number, (inputs, outputs) in enumerate(zip(SIZES, SIZES[1:])):
        weight = draw.normal(size=(inputs, outputs), scale=(2 / inputs) ** 0.5).astype(np.float32)
        bias = draw.normal(size=outputs, scale=0.1).astype(np.float32)
        weights += [numpy_helper.from_array(weight, f"w{number}"), numpy_helper.from_array(bias, f"b{number}")]
        nodes.append(helper.make_node("MatMul", [name, f"w{number}"], [f"m{number}"]))
        nodes.append(helper.make_node("Add", [f"m{number}", f"b{number}"], [f"a{number}"]))
        name = f"a{number}"
        if outputs != SIZES[-1]:
            nodes.append(helper.make_node("Relu", [name], [f"r{number}"]))
            name = f"r{number}"
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", SIZES[0]])
    made = helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", SIZES[-1]])
    graph = helper.make_graph(nodes, "net", [given], [made], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


class Calibration(CalibrationDataReader):
    def __init__(self):
        self.batches = iter([{"x": draw.normal(size=(32, SIZES[0])).astype(np.float32)} for _ in range(8)])

    def get_next(self):
        return next(self.batches, None)


def load(path):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda rows: session.run(None, {"x": rows})[0]


onnx.save(build(), "float.onnx")
quantize_dynamic("float.onnx", "dynamic.onnx")
quantize_static("float.onnx", "static.onnx", Calibration())
rows = draw.normal(size=(32, SIZES[0])).astype(np.float32)
with_large = rows.copy()
with_large[0] *= 1000
exact = load("float.onnx")(rows)
found = {}
for kind in ("float", "dynamic", "static"):
    call = load(f"{kind}.onnx")
    alone = np.concatenate([call(row[None]) for row in rows])
    usual, beside = call(rows), call(with_large)[1:]
    found[kind] = {
        "error alone": np.abs(alone - exact).max() / exact.std(),
        "error among others": np.abs(usual - exact).max() / exact.std(),
        "moved by the large row": np.abs(beside - alone[1:]).max() / exact.std(),
        "other classes": int((beside.argmax(1) != alone[1:].argmax(1)).sum()),
        "different answers": len(np.unique(beside, axis=0)),
    }
    print(kind, {name: round(float(value), 3) for name, value in found[kind].items()})
dynamic, static = found["dynamic"], found["static"]
assert max(dynamic["error alone"], dynamic["error among others"]) < 0.2
assert dynamic["different answers"] == 1 and dynamic["other classes"] >= 5
assert static["moved by the large row"] < 1e-3 and static["different answers"] > 25
PYTHON

cd "$folder"
"$folder/venv/bin/python" "$folder/batches.py"
