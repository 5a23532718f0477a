#!/usr/bin/env bash
# onnxruntime 1.31.1 on a CPU: the maximum of values of which one is NaN is a number, from MaxPool, GlobalMaxPool and
# ReduceMax alike, and which places of the NaN are seen depends on the operator and on the number of values.
#
# Guess: a maximum with a NaN among its values is NaN, as of torch.amax, max_pool2d, numpy and of the operator Max.
# Seen for 16 values in float32: ReduceMax and ReduceMin see a NaN in the first place only, MaxPool and GlobalMaxPool in
# the last only; of 3 values the pools see it nowhere, of 17 in the last place but one. Three NaN and nothing else pool
# to -3.4028235e38, the lowest number of float32, where eight give NaN. Of a pool of 3 by 3 with stride 2, the one at the
# start of a ResNet, each place of a plane of 16 by 16 had the NaN in turn: of the 529 windows with a NaN 64 gave NaN, so
# that a picture that is no picture gets an answer like any other. onnx's own evaluator gives NaN for ReduceMax and
# GlobalMaxPool. The pages of the operators do not mention NaN.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet onnx==1.23.2 onnxruntime==1.31.1 numpy==2.4.6

cat > "$folder/maxima.py" <<'PYTHON'
import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator


def make(op, shape, reduces=False, **attributes):
    """Return a model of one operator that takes the maximum of its last axis, or pools."""
    axes = [numpy_helper.from_array(np.array([len(shape) - 1]), "axes")] if reduces else []
    node = helper.make_node(op, ["x", *(each.name for each in axes)], ["y"], **attributes)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "maximum", [x], [y], axes)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def run(model, x):
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"x": x})[0].ravel()


def make_all(num):
    return {
        "ReduceMax": make("ReduceMax", (1, num), reduces=True, keepdims=0),
        "ReduceMin": make("ReduceMin", (1, num), reduces=True, keepdims=0),
        "GlobalMaxPool": make("GlobalMaxPool", (1, 1, num)),
        "MaxPool": make("MaxPool", (1, 1, num), kernel_shape=[num]),
    }


def find_seen(model, num):
    """Return the places at which a NaN makes the result NaN."""
    shape = [each.dim_value for each in model.graph.input[0].type.tensor_type.shape.dim]
    seen = []
    for place in range(num):
        values = np.arange(1, num + 1, dtype=np.float32)
        values[place] = np.nan
        assert np.isnan(values.max())
        if np.isnan(run(model, values.reshape(shape))[0]):
            seen.append(place)
    return seen


seen = {(op, num): find_seen(model, num) for num in (3, 16, 17) for op, model in make_all(num).items()}
print("places at which a NaN is seen:", seen)
assert all(seen[op, num] == [0] for op in ("ReduceMax", "ReduceMin") for num in (3, 16, 17))
assert all(seen[op, 3] == [] and seen[op, 16] == [15] for op in ("MaxPool", "GlobalMaxPool"))
assert all(seen[op, 17] == [15] for op in ("MaxPool", "GlobalMaxPool"))

lowest = np.finfo(np.float32).min
nothing = {num: run(make_all(num)["MaxPool"], np.full((1, 1, num), np.nan, np.float32))[0] for num in (3, 8)}
print("MaxPool of nothing but NaN:", nothing)
assert nothing[3] == lowest and np.isnan(nothing[8])

SIZE = 16
pool = make("MaxPool", (1, 1, SIZE, SIZE), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
windows = [{2 * first - 1, 2 * first, 2 * first + 1} for first in range(SIZE // 2)]
with_nan = seen_nan = 0
for row in range(SIZE):
    for column in range(SIZE):
        plane = np.random.default_rng(0).random((1, 1, SIZE, SIZE), np.float32)
        plane[0, 0, row, column] = np.nan
        with_nan += sum(row in each for each in windows) * sum(column in each for each in windows)
        seen_nan += int(np.isnan(run(pool, plane)).sum())
print(f"a pool of 3 by 3: {seen_nan} of {with_nan} windows with a NaN give NaN")
assert (seen_nan, with_nan) == (64, 529)

some = np.array([[1, np.nan, 2]], np.float32)
assert run(make_all(3)["ReduceMax"], some)[0] == 2
assert np.isnan(ReferenceEvaluator(make_all(3)["ReduceMax"]).run(None, {"x": some})[0]).all()
assert np.isnan(ReferenceEvaluator(make_all(3)["GlobalMaxPool"]).run(None, {"x": some[None]})[0]).all()
PYTHON
"$folder/venv/bin/python" "$folder/maxima.py"
