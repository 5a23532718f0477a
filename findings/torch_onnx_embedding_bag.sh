#!/usr/bin/env bash
# torch.onnx of torch 2.15.0 writes nn.EmbeddingBag as a Loop over the bags.
#
# Seen, for `EmbeddingBag(mode="sum")` with `per_sample_weights` and input of two dimensions, exported with dynamo=True and
# open sizes: the graph has one Loop, which appends the sum of each bag to a sequence (SequenceEmpty, ConcatFromSequence).
# The numbers agree with torch to 1e-5. `embedding` and a matrix product of the weights with its result, which compute the
# same, are Gather, Unsqueeze, MatMul and a Gather that drops the axis: no Loop. For 32 bags of 3,000 numbers the loop took
# about six times as long as torch; lightkit's bag of n-grams is written in the second way for that reason.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.15.0 onnx==1.23.2 onnxscript==0.7.2 onnxruntime==1.31.1 numpy

cat > "$folder/bag.py" <<'PYTHON'
import sys
import warnings
from collections import Counter

import numpy as np
import onnxruntime
import torch
from torch import nn

warnings.simplefilter("ignore")


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(1000, 16, mode="sum")

    def forward(self, ids, weights):
        return self.bag(ids, per_sample_weights=weights)


class Product(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.table = table

    def forward(self, ids, weights):
        return (weights[:, None] @ nn.functional.embedding(ids, self.table))[:, 0]


torch.manual_seed(0)
bag = Bag().eval()
ids = torch.randint(1000, (4, 50))
weights = torch.rand(4, 50)
sizes = {0: torch.export.Dim("bags"), 1: torch.export.Dim("numbers")}
found = {}
for module in (bag, Product(bag.bag.weight)):
    program = torch.onnx.export(
        module, (ids, weights), dynamo=True, dynamic_shapes={"ids": sizes, "weights": sizes}, verbose=False
    )
    name = type(module).__name__
    found[name] = Counter(node.op_type for node in program.model.graph)
    program.save(f"{sys.argv[1]}/{name}.onnx")
    session = onnxruntime.InferenceSession(f"{sys.argv[1]}/{name}.onnx")
    for parts in ((ids, weights), (ids[:1, :7], weights[:1, :7])):
        given = {each.name: part.numpy() for each, part in zip(session.get_inputs(), parts)}
        np.testing.assert_allclose(session.run(None, given)[0], module(*parts).detach().numpy(), atol=1e-5)
    print(name, " ".join(sorted(found[name])))
assert found["Bag"]["Loop"] == found["Bag"]["ConcatFromSequence"] == 1, found
assert set(found["Product"]) == {"Gather", "Unsqueeze", "MatMul"}, found
PYTHON

CUDA_VISIBLE_DEVICES= "$folder/venv/bin/python" "$folder/bag.py" "$folder"
