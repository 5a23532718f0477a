#!/usr/bin/env bash
# torchmetrics 1.9.0: under autocast in bfloat16 the AUROC of a network's logits depends on which class is called positive,
# and is far lower than the logits' own where they are large.
#
# Guess: AUROC goes by the order of the scores, which logits of bfloat16 keep almost entirely; exchanging the classes
# gives the same number.
# Seen for 5,000 negatives with logits around 6 and 500 positives around 8, as of a network that has learned a frequent
# class: 0.764 in float32, 0.764 too if the logits are rounded to bfloat16 and handed over as float32, and 0.699 handed over
# as they leave the autocast. torchmetrics takes the sigmoid in the type that it is given; between 0.5 and 1 bfloat16 has
# 128 numbers, and all logits above 6.2 are 1.0 and tie. With the classes exchanged, and all signs with them, it is 0.764,
# as there are numbers enough near zero. The average precision of the positives falls from 0.25 to 0.15, where a random
# order has 0.09. A perfect order of logits from 7 to 20 has an AUROC of 0.5. In float16 the ties begin at 8.3. The loss of
# the rounded logits is right to a thousandth, so that its curve shows nothing. `metric(logits.float(), target)` is the way
# around. lightkit's metrics are of float32.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.15.0 torchmetrics==1.9.0 numpy==2.4.6

cat > "$folder/auroc.py" <<'PYTHON'
import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from torchmetrics.classification import BinaryAUROC, BinaryAveragePrecision

torch.manual_seed(0)
logits = torch.cat([6 + 2 * torch.randn(5000), 8 + 2 * torch.randn(500)])
labels = torch.cat([torch.zeros(5000), torch.ones(500)]).long()


def score(metric, logits, labels):
    """Return a metric of batches of 100, in any order."""
    for rows in torch.randperm(len(labels)).split(100):
        metric.update(logits[rows], labels[rows])
    return round(metric.compute().item(), 3)


def score_in_autocast(metric, logits, labels, dtype=torch.bfloat16):
    """Return a metric of the outputs of a Linear, which hands the logits on in the type of the autocast."""
    layer = torch.nn.Linear(1, 1)
    torch.nn.init.ones_(layer.weight)
    torch.nn.init.zeros_(layer.bias)
    with torch.no_grad(), torch.autocast("cpu", dtype):
        outputs = layer(logits[:, None])[:, 0]
    assert outputs.dtype == dtype
    return score(metric, outputs, labels)


rounded = logits.bfloat16()
areas = {
    "float32": score(BinaryAUROC(), logits, labels),
    "rounded to bfloat16, then float32": score(BinaryAUROC(), rounded.float(), labels),
    "bfloat16": score(BinaryAUROC(), rounded, labels),
    "bfloat16, in an autocast": score_in_autocast(BinaryAUROC(), logits, labels),
    "bfloat16, classes exchanged": score(BinaryAUROC(), -rounded, 1 - labels),
    "float16": score(BinaryAUROC(), logits.half(), labels),
}
precisions = {
    "float32": score(BinaryAveragePrecision(), logits, labels),
    "bfloat16": score(BinaryAveragePrecision(), rounded, labels),
}
print("AUROC:", areas)
print("average precision:", precisions)
exact = areas["float32"]
assert abs(areas["rounded to bfloat16, then float32"] - exact) < 0.002
assert abs(areas["bfloat16, classes exchanged"] - exact) < 0.002
assert areas["bfloat16"] < exact - 0.05
assert areas["bfloat16, in an autocast"] < exact - 0.05
assert areas["bfloat16"] < areas["float16"] < exact - 0.005
assert precisions["bfloat16"] < 0.7 * precisions["float32"]

perfect = torch.linspace(7, 20, 1000)
halves = (torch.arange(1000) >= 500).long()
orders = {str(dtype): score(BinaryAUROC(), perfect.to(dtype), halves) for dtype in (torch.float32, torch.bfloat16)}
print("a perfect order:", orders)
assert list(orders.values()) == [1.0, 0.5]

losses = [binary_cross_entropy_with_logits(each, labels.float()).item() for each in (logits, rounded.float())]
assert abs(losses[0] - losses[1]) < 1e-3 * losses[0]
PYTHON

"$folder/venv/bin/python" "$folder/auroc.py"
