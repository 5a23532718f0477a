#!/usr/bin/env bash
# torch.onnx of torch 2.15.0: logaddexp, log1p and expm1, which exist for their precision, are exported in the forms
# that they replace.
#
# Guess: they become what operators of ONNX compute as precisely (Softplus, Tanh), or the exporter refuses.
# Seen with dynamo=True, opset 20, in onnxruntime 1.31.1: logaddexp is Log(Exp(x) + Exp(y)): inf from 89 on and -inf
# below -104, where torch has 89.7 and -103.3. log1p(1e-8) and expm1(1e-8) are 0, as Log(1 + x) and Exp(x) - 1 are.
# logcumsumexp subtracts the maximum of all first: 0 and then 200 give -inf where 0 is right. log_softmax, logsumexp
# and softplus are right. With ordinary inputs all agree to 1e-5, so that a comparison passes; what fails are
# log-probabilities of a confident model and small rates. The argument custom_translation_table takes better forms:
# tanh(x / 2) * (exp(x) + 1) for expm1 agrees with torch to 1e-6. lightkit hands its own forms over.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.15.0 onnx==1.23.2 onnxscript==0.7.2 onnxruntime==1.31.1 numpy

cat > "$folder/functions.py" <<'PYTHON'
import sys
import warnings

import numpy as np
import onnxruntime
import torch
from onnxscript import opset18 as op
from torch import nn
from torch.nn import functional

warnings.simplefilter("ignore")


class Function(nn.Module):
    def __init__(self, compute):
        super().__init__()
        self.compute = compute

    def forward(self, x):
        return self.compute(x)


def export_and_run(compute, x, **options):
    """Return the operators of the exported function, and what it returns."""
    program = torch.onnx.export(
        Function(compute), (x,), dynamo=True, opset_version=20, verbose=False, **options
    )
    program.save(f"{sys.argv[1]}/model.onnx")
    session = onnxruntime.InferenceSession(f"{sys.argv[1]}/model.onnx")
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    return {node.op_type for node in program.model.graph}, found


def double(x):
    return torch.logaddexp(x, x)


far = torch.tensor([-120.0, -110.0, 100.0, 120.0])
near = torch.tensor([1e-8, -1e-8, 1e-4])
usual = torch.linspace(0.1, 5, 100)
for compute, x in [(double, far), (torch.log1p, near), (torch.expm1, near)]:
    operators, found = export_and_run(compute, x)
    print(compute.__name__, sorted(operators), found, compute(x).numpy())
    np.testing.assert_allclose(export_and_run(compute, usual)[1], compute(usual), rtol=1e-5)
    if x is far:
        assert np.isinf(found).all() and compute(x).isfinite().all(), found
    else:
        assert (found[:2] == 0).all() and (compute(x) != 0).all(), found

rising = torch.tensor([0.0, 200.0])
_, found = export_and_run(lambda x: x.logcumsumexp(0), rising)
print("logcumsumexp", found, rising.logcumsumexp(0).numpy())
assert np.isneginf(found[0]) and found[1] == 200

for compute in (lambda x: functional.log_softmax(x, 0), lambda x: x.logsumexp(0), functional.softplus):
    _, found = export_and_run(compute, far)
    np.testing.assert_allclose(found, compute(far), rtol=1e-6)

table = {
    torch.ops.aten.expm1.default: lambda x: op.Mul(
        op.Tanh(op.Div(x, op.Constant(value_float=2.0))), op.Add(op.Exp(x), op.Constant(value_float=1.0))
    )
}
for x in (near, usual, -usual):
    operators, found = export_and_run(torch.expm1, x, custom_translation_table=table)
    np.testing.assert_allclose(found, torch.expm1(x), rtol=1e-6)
print("expm1 in a form of one's own:", sorted(operators))
PYTHON

CUDA_VISIBLE_DEVICES= "$folder/venv/bin/python" "$folder/functions.py" "$folder"
