#!/usr/bin/env bash
# torch 2.15.0 on a CPU, bfloat16: of two ways to write the same sum by index one ends at 256, and the gradient of an
# embedding is of that kind.
#
# Guess: sums are of float32 and are rounded once, as those of sum, cumsum, mean and a matrix product are.
# Seen for a thousand ones that all go to one place: scatter_add and scatter_reduce give 1000. index_add of one dimension
# and index_put(accumulate=True) give 256, as each addition is rounded and 256 + 1 is 256; index_add of rows is right again.
# Gradients follow: of `weight.gather(0, index)` and `weight.index_select(0, index)` it is 1000, of `weight[index]`,
# nn.Embedding and nn.EmbeddingBag 256. So where weights are bfloat16 themselves (`model.bfloat16()`, Lightning's
# bf16-true) a word, a category or a padding token that a batch has 4,000 times learns by 256 uses, as one with 256 uses
# does, and a rare one by all of them. Embeddings in float32 under autocast are right, and so is float32. Nothing warns.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.15.0 numpy==2.4.6

cat > "$folder/sums.py" <<'PYTHON'
import torch
from torch import nn

index = torch.zeros(1000, dtype=torch.long)
ones = torch.ones(1000, dtype=torch.bfloat16)


def zero():
    return torch.zeros(1, dtype=torch.bfloat16)


sums = {
    "sum": ones.sum(),
    "cumsum": ones.cumsum(0)[-1],
    "scatter_add": zero().scatter_add_(0, index, ones),
    "scatter_reduce": zero().scatter_reduce_(0, index, ones, "sum"),
    "index_add": zero().index_add_(0, index, ones),
    "index_add of rows": zero()[:, None].index_add_(0, index, ones[:, None]),
    "index_put": zero().index_put_((index,), ones, accumulate=True),
}
sums = {name: value.item() for name, value in sums.items()}
print("a thousand ones:", sums)
assert {name for name, value in sums.items() if value == 256} == {"index_add", "index_put"}
assert sorted(sums.values()) == [256, 256, 1000, 1000, 1000, 1000, 1000]

ways = {
    "gather": lambda weight: weight[:, 0].gather(0, index),
    "weight[index]": lambda weight: weight[index],
    "index_select": lambda weight: weight.index_select(0, index),
    "embedding": lambda weight: nn.functional.embedding(index, weight),
    "embedding_bag": lambda weight: nn.functional.embedding_bag(index[None], weight, mode="sum"),
}
gradients = {}
for dtype in (torch.bfloat16, torch.float32):
    for name, way in ways.items():
        weight = torch.zeros(4, 1, dtype=dtype, requires_grad=True)
        way(weight).sum().backward()
        gradients[name, dtype] = weight.grad[0].item()
in_bf16 = {name: value for (name, dtype), value in gradients.items() if dtype == torch.bfloat16}
print("gradient of a row that is used a thousand times:", in_bf16)
assert in_bf16.pop("gather") == in_bf16.pop("index_select") == 1000
assert set(in_bf16.values()) == {256}
assert {value for (_, dtype), value in gradients.items() if dtype == torch.float32} == {1000}

# a frequent word beside a rare one: the same gradient for each use
words = torch.tensor([0] * 4000 + [1] * 200)
embedding = nn.Embedding(2, 1).bfloat16()
embedding(words).sum().backward()
print("4000 uses and 200:", embedding.weight.grad.flatten().tolist())
assert embedding.weight.grad.flatten().tolist() == [256, 200]

with torch.autocast("cpu", torch.bfloat16):
    mixed = nn.Embedding(2, 1)
    mixed(words).bfloat16().sum().backward()
assert mixed.weight.grad.flatten().tolist() == [4000, 200]
PYTHON

"$folder/venv/bin/python" "$folder/sums.py"
