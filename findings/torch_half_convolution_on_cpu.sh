#!/usr/bin/env bash
# torch 2.15.0 on x86: a convolution in float16 or bfloat16 may take 20 to 300 times as long as in float32, by the CPU.
#
# Seen, for nn.Conv2d(64, 64, 3) on 4 images of 40 x 40 under torch.autocast("cpu"), one thread, seconds of the processor:
#   held to AVX2 (any CPU of ten years):  float32 forward 0.007, backward 0.008; bfloat16 0.18 and 0.037; float16 0.23
#       and 0.039. No warning is given; `torch.ops.mkldnn._is_mkldnn_bf16_supported()` is the only sign.
#   with AVX512_FP16, without AMX:        float32 0.005 and 0.006; bfloat16 0.007 and 0.006; float16 0.0075 and 1.76.
# So the instructions for float16 make its forward pass fast and its backward pass 45 times as slow as on a CPU that lacks
# them: oneDNN's fast kernels for float16 are of inference, and the gradient of the weights falls to a reference kernel.
# A training of ResNet-18 in float16 did not end its sixth step in nine minutes, where float32 takes 0.8 s a step.
# And bfloat16 is no gain there either: with AVX512_BF16 on one of Intel's cores without AMX, a whole step of ResNet-18 took
# 1.2 s in bfloat16 and 0.83 s in float32 (channels_last); instructions in a list of flags are no promise of speed.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.15.0 numpy

cat > "$folder/show.py" <<'PYTHON'
import sys
import time

import torch

torch.set_num_threads(1)
layer = torch.nn.Conv2d(64, 64, 3, padding=1)
images = torch.randn(4, 64, 40, 40)


def measure(dtype):
    forward, backward = [], []
    for _ in range(3):
        started = time.process_time()
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            total = layer(images).float().sum()
        between = time.process_time()
        total.backward()
        forward.append(between - started)
        backward.append(time.process_time() - between)
    return min(forward), min(backward)


times = {str(dtype): measure(dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16)}
for dtype, (forward, backward) in times.items():
    print(f"{dtype}: forward {forward:.4f} s, backward {backward:.4f} s")
full = times["torch.float32"]
if sys.argv[1] == "avx2":
    is_as_seen = all(times[name][0] > 5 * full[0] for name in ("torch.bfloat16", "torch.float16"))
else:
    is_as_seen = times["torch.float16"][1] > 20 * full[1] and times["torch.float16"][0] < 5 * full[0]
sys.exit(not is_as_seen)
PYTHON

echo "held to AVX2"
ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 "$folder/venv/bin/python" "$folder/show.py" avx2
if grep -q avx512_fp16 /proc/cpuinfo && ! grep -q amx_tile /proc/cpuinfo; then
    echo "with AVX512_FP16"
    "$folder/venv/bin/python" "$folder/show.py" avx512_fp16
else
    echo "this CPU is not of the second kind"
fi
