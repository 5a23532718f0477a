#!/usr/bin/env bash
# torch 2.15.0 with gloo: whether all_reduce with MAX or MIN keeps a NaN depends on the rank that has it, and on the
# place in the tensor.
#
# Guess: NaN on any rank gives NaN on all, as torch.maximum and amax do, or is ignored throughout.
# Seen with two ranks, one with NaN throughout and the other with 1: of one number, the NaN of rank 0 is kept and that of
# rank 1 is lost. Of a tensor of 1,000 numbers, the first half has the NaN of rank 0 and loses that of rank 1, and the
# second half is the other way round, as the halves are reduced on different ranks, each with a comparison that NaN fails.
# So are float32, float64, float16 and bfloat16. The ranks agree on the result, and SUM is NaN in each case. A rank
# whose loss has diverged is so invisible in "the largest loss of all ranks", or in a maximum of gradient norms, and is
# seen again once the same numbers are sent in another order or in one tensor. The pages of torch.distributed say nothing
# of NaN. Sum the numbers, or a count of those that are not finite; lightkit does so.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.15.0 numpy==2.4.6

cat > "$folder/ranks.py" <<'PYTHON'
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def reduce_nan(rank, owner, name, length, dtype):
    """Return what one half and the other of the tensor hold, where one rank has NaN and the other 1."""
    own = torch.full((length,), float("nan") if rank == owner else 1.0, dtype=dtype)
    dist.all_reduce(own, op=getattr(dist.ReduceOp, name))
    halves = own[: (length + 1) // 2], own[length // 2 :]
    assert all(half.isnan().all() or not half.isnan().any() for half in halves)
    return tuple("NaN" if half.isnan().all() else half[0].item() for half in halves)


def compare(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    kept = ("NaN", "NaN")
    lost = (1.0, 1.0)
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        for name in ("MAX", "MIN", "SUM"):
            found = {
                (owner, length): reduce_nan(rank, owner, name, length, dtype)
                for owner in (0, 1)
                for length in (1, 1000)
            }
            if rank == 0:
                for (owner, length), halves in found.items():
                    print(f"{dtype}, {name} of {length}, NaN on rank {owner}: {halves}", flush=True)
            expected = dict.fromkeys(found, kept)
            if name != "SUM":
                expected = {
                    (0, 1): kept,
                    (0, 1000): ("NaN", 1.0),
                    (1, 1): lost,
                    (1, 1000): (1.0, "NaN"),
                }
            assert found == expected, (rank, dtype, name, found)
    dist.destroy_process_group()


if __name__ == "__main__":
    assert torch.maximum(torch.tensor(float("nan")), torch.tensor(1.0)).isnan()
    mp.spawn(compare, (sys.argv[1],), nprocs=2)
PYTHON

CUDA_VISIBLE_DEVICES= "$folder/venv/bin/python" "$folder/ranks.py" "$folder/store" 2> "$folder/errors" || {
    cat "$folder/errors"
    exit 1
}
