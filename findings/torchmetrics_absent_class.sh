#!/usr/bin/env bash
# torchmetrics 1.9.0: a class that no sample of an epoch has is left out of most macro averages, but counts as 0 in
# that of the AUROC.
#
# Guess: one rule for the library, either of the two.
# Seen for three classes, labels of the first two alone, and scores that separate these perfectly: MulticlassAUROC(3)
# is 0.667 = (1 + 1 + 0) / 3, MulticlassAveragePrecision(3) of the same scores 1.0, whose third class is NaN and left
# out; accuracy, precision, recall, F1, Jaccard index and specificity are 1.0, too. average=None gives 0 for the third
# class's recall and F1, NaN for its average precision and 1 for its specificity, so that a mean of these is another
# number than average="macro". The AUROC warns once a process ("No positive samples in targets"), which a training of
# 100 epochs shows in the first. A validation split of 118 photos with a rare class so has an AUROC that cannot pass 1
# - 1/classes, and folds with and without that class cannot be compared. average="weighted" is 1.0 for both.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.15.0 torchmetrics==1.9.0 numpy==2.4.6

cat > "$folder/absent.py" <<'PYTHON'
import math
import warnings

import torch
from torchmetrics import classification

labels = torch.tensor([0, 0, 0, 1, 1, 1])
scores = torch.tensor([[0.8, 0.1, 0.1]] * 3 + [[0.1, 0.8, 0.1]] * 3)


def compute(name, **options):
    metric = getattr(classification, f"Multiclass{name}")(3, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        value = metric(scores, labels)
    return value, [str(each.message) for each in caught]


macro = {}
for name in (
    "AUROC", "AveragePrecision", "Accuracy", "Precision", "Recall", "F1Score", "JaccardIndex", "Specificity"
):
    value, messages = compute(name, average="macro")
    macro[name] = value.item()
    each, _ = compute(name, average=None)
    print(name, round(macro[name], 3), each.tolist(), messages)
assert abs(macro.pop("AUROC") - 2 / 3) < 1e-6
assert all(abs(value - 1) < 1e-6 for value in macro.values()), macro

assert compute("AUROC", average=None)[0].tolist() == [1, 1, 0]
precisions = compute("AveragePrecision", average=None)[0].tolist()
assert precisions[:2] == [1, 1] and math.isnan(precisions[2])
assert compute("F1Score", average=None)[0].tolist() == [1, 1, 0]
for name in ("AUROC", "AveragePrecision"):
    assert abs(compute(name, average="weighted")[0].item() - 1) < 1e-6
PYTHON

"$folder/venv/bin/python" "$folder/absent.py"
