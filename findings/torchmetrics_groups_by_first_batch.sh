#!/usr/bin/env bash
# torchmetrics 1.9.0: a MetricCollection takes metrics for one whose counts agree after the first batch, and gives all of
# them the value of one from then on.
#
# Guess: metrics share a state where their class and arguments make it the same; each has its own value otherwise.
# Seen for the recall at the thresholds 0.1, 0.5 and 0.9, the usual way to look for an operating point: a network that has
# just begun and says 0.01 to 0.04 for the whole first batch has the same counts at each threshold. The three are then one
# group, which counts for the first of them. A later epoch with 0.3, 0.6 and 0.95 for its three positives has recalls of 1,
# 2/3 and 1/3; the collection says 1, 1 and 1, in that epoch and in all that follow, since reset() and clone() keep the
# groups. A first batch that differs in the counts gives the right values for the whole training, so that one seed shows a
# trade-off and the next one none. Compared are the shapes and numbers of states, not the arguments: accuracies with and
# without ignore_index are the same case where the first batch lacks that label, 0.25 for 1.0. Reports about metrics of
# one's own (torchmetrics' issue 2596) and BLEU scores (2916) are closed; these are torchmetrics' own classes with documented
# arguments. `compute_groups=False`, or groups by name, are right. lightkit names the groups.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.15.0 torchmetrics==1.9.0 numpy==2.4.6

cat > "$folder/groups.py" <<'PYTHON'
import torch
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryRecall, MulticlassAccuracy

LABELS = torch.tensor([1, 1, 1, 0])
LATER = torch.tensor([0.3, 0.6, 0.95, 0.04])
FIRST = {
    "unsure of all": torch.tensor([0.01, 0.02, 0.03, 0.04]),
    "sure of one": torch.tensor([0.01, 0.02, 0.93, 0.04]),
    "between": torch.tensor([0.3, 0.02, 0.93, 0.04]),
}


def build(**settings):
    return MetricCollection({f"at {part}0 %": BinaryRecall(threshold=part / 10) for part in (1, 5, 9)}, **settings)


def score_later_epochs(collection, first):
    """Return the recalls of two epochs that follow one with the predictions `first`."""
    collection.update(first, LABELS)
    collection.compute()
    epochs = []
    for _ in range(2):
        collection.reset()
        collection.update(LATER, LABELS)
        epochs.append({name: round(value.item(), 3) for name, value in collection.compute().items()})
    assert epochs[0] == epochs[1]
    return epochs[0]


right = score_later_epochs(build(compute_groups=False), FIRST["unsure of all"])
found = {name: score_later_epochs(build(), first) for name, first in FIRST.items()}
print(f"apart: {right}")
for name, values in found.items():
    print(f"first batch {name}: {values}")
assert list(right.values()) == [1.0, 0.667, 0.333]
assert list(found["unsure of all"].values()) == [1.0, 1.0, 1.0]
assert list(found["sure of one"].values()) == [1.0, 1.0, 1.0]
assert list(found["between"].values()) == [1.0, 0.667, 0.667]

source = build()
source.update(FIRST["unsure of all"], LABELS)
copied = source.clone(prefix="test ")
copied.reset()
copied.update(LATER, LABELS)
print("a clone:", {name: value.item() for name, value in copied.compute().items()})
assert {value.item() for value in copied.compute().values()} == {1.0}

# the label 2 is to be ignored, and the first batch has none
settings = {"of all": {}, "without 2": {"ignore_index": 2}}
accuracies = MetricCollection({name: MulticlassAccuracy(3, average="micro", **each) for name, each in settings.items()})
accuracies.update(torch.tensor([0, 1, 1, 0]), torch.tensor([0, 1, 0, 0]))
accuracies.reset()
accuracies.update(torch.tensor([0, 1, 1, 0]), torch.tensor([0, 2, 2, 2]))
values = {name: value.item() for name, value in accuracies.compute().items()}
print("first batch without the label to ignore:", values)
assert values == {"of all": 0.25, "without 2": 0.25}
PYTHON

"$folder/venv/bin/python" "$folder/groups.py"
