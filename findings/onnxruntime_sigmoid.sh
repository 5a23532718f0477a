#!/usr/bin/env bash
# onnxruntime 1.31.1 on a CPU: Sigmoid is 0 from -18 down and wrong by a half at -16, and torch's exporter writes
# logsigmoid by it, so that a log-probability of -20 is minus infinity.
#
# Guess: Sigmoid is right to float32's seven digits, down to 1e-38, as torch's and as 1 / (1 + Exp(-x)) is.
# Seen: the error is 2e-4 of the value at -10, 7 % at -14, 47 % at -16, and from -18 on the result is exactly 0; the error
# is one of 1e-7 of the whole, which an absolute tolerance of a check passes. The four operators Neg, Exp, Add and Div,
# and a Softmax with a logit of 0 beside, are right to 1e-6 in the same runtime. So of a detector of rare events all
# candidates below 1.5e-8 tie, and their order, and an average precision, is that of the rows; a logarithm of such a
# probability is minus infinity, and a log loss infinite. torch.onnx 2.15.0 writes functional.logsigmoid, and so
# binary_cross_entropy_with_logits, as Log of Sigmoid, the form that logsigmoid exists to avoid; onnx's reference
# evaluator gives -50 where onnxruntime gives minus infinity. The pages of onnxruntime state no accuracy.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet onnx==1.23.2 onnxruntime==1.31.1 numpy==2.4.6

cat > "$folder/sigmoid.py" <<'PYTHON'
import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

FORMS = {
    "Sigmoid": "y = Sigmoid(x)",
    "by Exp": "one = Constant <value_float = 1.0> () n = Neg(x) e = Exp(n) s = Add(one, e) y = Div(one, s)",
    "Softmax": "zero = Sub(x, x) both = Concat <axis = 1> (x, zero) p = Softmax <axis = 1> (both)"
    " i = Constant <value_ints = [0]> () y = Gather <axis = 1> (p, i)",
    "Log": "s = Sigmoid(x) y = Log(s)",
}
logits = np.array([[-10], [-14], [-16], [-18], [-20], [-50]], np.float32)
exact = 1 / (1 + np.exp(-logits.astype(np.float64)))
found, reference = {}, {}
for name, nodes in FORMS.items():
    text = f'<ir_version: 10, opset_import: ["": 20]> g (float[n, 1] x) => (float[n, 1] y) {{ {nodes} }}'
    model = onnx.parser.parse_model(text)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found[name] = session.run(None, {"x": logits})[0].reshape(-1)
    reference[name] = ReferenceEvaluator(model).run(None, {"x": logits})[0].reshape(-1)

errors = {}
for name in ("Sigmoid", "by Exp", "Softmax"):
    errors[name] = np.abs(found[name] / exact.reshape(-1) - 1)
    print(f"{name}: {found[name]}, error of the value {np.round(errors[name], 6)}")
print("Log of Sigmoid:", found["Log"], "by the reference evaluator:", reference["Log"])
assert 0.03 < errors["Sigmoid"][1] < 0.2
assert errors["Sigmoid"][2] > 0.2
assert not found["Sigmoid"][3:].any()
assert np.abs(found["Sigmoid"] - exact.reshape(-1)).max() < 1e-7
assert max(errors["by Exp"].max(), errors["Softmax"].max()) < 1e-6
assert np.isneginf(found["Log"][3:]).all()
assert np.allclose(reference["Log"], np.log(exact.reshape(-1)), rtol=1e-5)
PYTHON

"$folder/venv/bin/python" "$folder/sigmoid.py"
