#!/usr/bin/env bash
# onnxruntime 1.31.1 on a CPU: a float16 graph is not computed in float16, and optimisations off do not change that.
#
# Seen: x = 1, then * 300, * 300, * 0.00001, all in float16. 90000 is above float16's largest number (65504), so that
# numpy and the ONNX reference evaluator give infinity. onnxruntime's CPU provider gives 0.9012: its cast insertion runs
# operators without a float16 kernel in float32, and drops the casts between two of them. With all graph
# optimisations off the result is the same. One Identity behind each value, an operator which has a float16 kernel, is
# "isolated" and goes to float32 as well; only two in a row, and optimisations off, make each value pass through float16.
# What does not depend on the runtime's choices: the same graph in float32 with a Cast to float16 and back behind each
# value. So a model that overflows on a GPU passes every check that is made with the CPU provider.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet onnxruntime==1.31.1 onnx numpy

cat > "$folder/show.py" <<'PYTHON'
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto as T
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

FACTORS = [np.float16(300), np.float16(300), np.float16(1e-5)]
X = np.ones((1,), np.float32)


def build(*, barriers: int = 0, emulated: bool = False) -> onnx.ModelProto:
    """Build the graph: in float16 with Identity nodes behind each product, or in float32 with explicit rounding."""
    kind = np.float32 if emulated else np.float16
    nodes, value, at = [helper.make_node("Cast", ["x"], ["v"], to=T.FLOAT if emulated else T.FLOAT16)], "v", 0
    for number in range(len(FACTORS)):
        steps = [("Mul", f"c{number}", {})] + [("Identity", None, {})] * barriers
        if emulated:
            steps += [("Cast", None, {"to": T.FLOAT16}), ("Cast", None, {"to": T.FLOAT})]
        for operator, constant, attributes in steps:
            at += 1
            nodes.append(helper.make_node(operator, [value, *filter(None, [constant])], [f"v{at}"], **attributes))
            value = f"v{at}"
    nodes.append(helper.make_node("Cast", [value], ["y"], to=T.FLOAT))
    ends = [helper.make_tensor_value_info(name, T.FLOAT, [1]) for name in "xy"]
    constants = [numpy_helper.from_array(np.asarray(c, kind), f"c{n}") for n, c in enumerate(FACTORS)]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    return model


def run(model: onnx.ModelProto, *, optimised: bool = True) -> float:
    options = ort.SessionOptions()
    if not optimised:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return float(session.run(None, {"x": X})[0][0])


with np.errstate(over="ignore"):
    reference = float(ReferenceEvaluator(build()).run(None, {"x": X})[0][0])
found = {
    "reference": reference,
    "cpu": run(build()),
    "cpu, optimisations off": run(build(), optimised=False),
    "one Identity, off": run(build(barriers=1), optimised=False),
    "two Identities, off": run(build(barriers=2), optimised=False),
    "float32 with casts": run(build(emulated=True)),
}
for name, value in found.items():
    print(f"{name:24}{value:.4f}")
expected = [np.isinf, np.isfinite, np.isfinite, np.isfinite, np.isinf, np.isinf]
sys.exit(0 if all(is_so(value) for is_so, value in zip(expected, found.values())) else 1)
PYTHON
"$folder/venv/bin/python" "$folder/show.py"
