#!/usr/bin/env bash
# torch.onnx of torch 2.15.0 with onnxscript 0.7.2 exports three operators without the argument that makes the result, and
# says that the export has succeeded.
#
# Guess: what ONNX cannot express is computed by other nodes, or refused, as index_reduce with "mean" is.
# Seen with dynamo=True: `scatter_reduce(..., reduce="mean")` becomes ScatterElements with the reduction "none", so that
# of all values for one place the last one is kept: the means of (3, 1) and (5) are 1 and 5, where torch has 2 and 5. It
# is how a graph network averages messages, and how segments are pooled. `avg_pool2d(..., divisor_override=1)`, the sum
# of a window, becomes an AveragePool, a quarter of it for windows of 2 x 2. `cross_entropy(..., label_smoothing=0.1)`
# has no smoothing: 0.408 for 0.508. The order of the values decides the first, so that a check with one value a place
# passes. "sum", "amax", the usual divisor and no smoothing are right. The page of torch.onnx does not list them; comments
# in onnxscript's source say that they are not supported. An export is right only as far as its results were compared,
# which lightkit does for each.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.15.0 onnx==1.23.2 onnxscript==0.7.2 onnxruntime==1.31.1 numpy

cat > "$folder/arguments.py" <<'PYTHON'
import warnings

import onnxruntime
import torch
from torch.nn import functional

warnings.simplefilter("ignore")


class Call(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *tensors):
        return self.function(*tensors)


def compare(function, *tensors):
    """Return torch's result and the exported one, each as a list with three digits."""
    program = torch.onnx.export(Call(function), tensors, dynamo=True, verbose=False)
    model = program.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    given = {each.name: tensor.numpy() for each, tensor in zip(session.get_inputs(), tensors)}
    results = function(*tensors), torch.from_numpy(session.run(None, given)[0])
    return tuple([round(value, 3) for value in result.flatten().tolist()] for result in results)


def scatter(reduce):
    return lambda start, places, values: start.scatter_reduce(0, places, values, reduce, include_self=False)


messages = torch.zeros(2), torch.tensor([0, 0, 1]), torch.tensor([3.0, 1.0, 5.0])
window = (torch.arange(4.0).reshape(1, 1, 2, 2),)
logits = torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0])
found = {
    "mean of messages": compare(scatter("mean"), *messages),
    "sum of messages": compare(scatter("sum"), *messages),
    "largest message": compare(scatter("amax"), *messages),
    "sum of a window": compare(lambda x: functional.avg_pool2d(x, 2, divisor_override=1), *window),
    "mean of a window": compare(lambda x: functional.avg_pool2d(x, 2), *window),
    "loss, smoothed": compare(lambda x, y: functional.cross_entropy(x, y, label_smoothing=0.1), *logits),
    "loss": compare(lambda x, y: functional.cross_entropy(x, y), *logits),
}
for name, (eager, exported) in found.items():
    print(f"{name}: torch {eager}, exported {exported}")
assert found["mean of messages"] == ([2.0, 5.0], [1.0, 5.0])
assert found["sum of a window"] == ([6.0], [1.5])
assert found["loss, smoothed"] == ([0.508], [0.408])
for name in ("sum of messages", "largest message", "mean of a window", "loss"):
    eager, exported = found[name]
    assert eager == exported, name
PYTHON

CUDA_VISIBLE_DEVICES= "$folder/venv/bin/python" "$folder/arguments.py"
