#!/usr/bin/env bash
# torch 2.15.0: the generator of a CPU uses the lower 32 bits of a seed, so that seeds which differ above them are one,
# and a seed packed as (seed << 32) | epoch is the epoch alone.
#
# Guess: manual_seed takes 64 bits, as its documented range is, and different seeds give different numbers.
# Seen: seeds 1 and 1 + 2**32 give the same rand, randperm and dropout; of five runs whose seeds are
# `(run << 32) | epoch` all have the same orders of samples and the same random_split, so that "five seeds" are one, and a
# mean over them has no spread. `initial_seed()` returns the full number, different for each, and the states differ in
# the bytes that hold it, so that a record or a check of seeds sees nothing. -1 and 2**32 - 1 are one seed, too. numpy's
# default_rng gives five different numbers; Python's random gives four, as 3 and 3 + 2 * 2**32 are one seed there: it adds
# each word of 32 bits and its position, and 3 + 0 is 2 + 1. seed_everything of Lightning refuses more than 32 bits, a
# torch.Generator takes them. A digest of the parts has the difference in its lower bits: lightkit seeds by a hash of
# (seed, epoch, sample).
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.15.0 numpy==2.4.6

cat > "$folder/seeds.py" <<'PYTHON'
import random

import numpy as np
import torch
from torch.utils.data import RandomSampler, random_split


def build(seed):
    return torch.Generator().manual_seed(seed)


def draw(seed):
    """Return numbers, an order and a dropout."""
    torch.manual_seed(seed)
    return [torch.rand(5).tolist(), torch.randperm(9).tolist(), torch.dropout(torch.ones(40), 0.5, True).tolist()]


print("seeds 1 and 1 + 2**32:", draw(1)[1], draw(1 + 2**32)[1])
assert draw(1) == draw(1 + 2**32) != draw(2)
assert draw(-1) == draw(2**32 - 1)
assert build(1 + 2**32).initial_seed() == 1 + 2**32
assert not torch.equal(build(1 + 2**32).get_state(), build(1).get_state())

epoch = 3
seeds = [(run << 32) | epoch for run in range(5)]
assert len({build(seed).initial_seed() for seed in seeds}) == 5
orders = {tuple(RandomSampler(range(1000), generator=build(seed))) for seed in seeds}
splits = {tuple(random_split(range(1000), [0.9, 0.1], generator=build(seed))[1].indices) for seed in seeds}
print(f"five runs: {len(orders)} order of samples, {len(splits)} split")
assert len(orders) == len(splits) == 1

in_numpy = {np.random.default_rng(seed).random() for seed in seeds}
in_python = {random.Random(seed).random() for seed in seeds}
print(f"numpy: {len(in_numpy)} different numbers, Python: {len(in_python)}")
assert len(in_numpy) == 5
assert len(in_python) == 4
assert random.Random(3).random() == random.Random(3 + (2 << 32)).random()
PYTHON

"$folder/venv/bin/python" "$folder/seeds.py"
