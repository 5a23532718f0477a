#!/usr/bin/env bash
# fastai 2.8.12: vision_learner ignores its documented argument `cut`, in silence; create_vision_model obeys it.
#
# Seen with torchvision's ResNet-18 and 5 classes: create_vision_model has 8 layers in the body as it is, and 6 with
# `cut=-4`. vision_learner has 8 in both cases, and so 11.7 million parameters where the shorter network has 0.8: `cut` is
# in the signature, but not among the arguments that are handed on. For a network that only a cut makes usable, such as
# torchvision's MobileNetV2, which has no pooling layer to cut at, vision_learner ends with StopIteration for every value of `cut`.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.15.0 torchvision==0.29.2 fastai==2.8.12

cat > "$folder/cut.py" <<'PYTHON'
import warnings
from pathlib import Path

import numpy as np
from fastai.vision.all import ImageDataLoaders, create_vision_model, vision_learner
from PIL import Image
from torchvision.models import mobilenet_v2, resnet18

warnings.simplefilter("ignore")
root = Path("images")
draw = np.random.default_rng(0)
for kind in "abcde":
    (root / kind).mkdir(parents=True)
    for number in range(4):
        Image.fromarray(draw.integers(0, 256, (48, 48, 3), np.uint8)).save(root / kind / f"{number}.png")
loaders = ImageDataLoaders.from_folder(root, valid_pct=0.2, seed=0, bs=4, num_workers=0)


def describe(network):
    return len(network[0]), round(sum(each.numel() for each in network.parameters()) / 1e6, 1)


found = {}
for cut in (None, -4):
    found["model", cut] = describe(create_vision_model(resnet18, 5, pretrained=False, cut=cut))
    found["learner", cut] = describe(vision_learner(loaders, resnet18, pretrained=False, cut=cut).model)
print("layers of the body and million parameters:", found)
assert found["model", None][0] == 8 and found["model", -4][0] == 6, found
assert found["learner", -4] == found["learner", None] == found["model", None], found

create_vision_model(mobilenet_v2, 5, pretrained=False, cut=-1)
try:
    vision_learner(loaders, mobilenet_v2, pretrained=False, cut=-1)
except StopIteration:
    print("vision_learner(mobilenet_v2, cut=-1): StopIteration")
else:
    raise AssertionError("vision_learner obeys cut")
PYTHON

cd "$folder"
CUDA_VISIBLE_DEVICES= "$folder/venv/bin/python" "$folder/cut.py"
