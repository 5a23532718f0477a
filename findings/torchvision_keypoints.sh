#!/usr/bin/env bash
# torchvision 0.29.2: flips count KeyPoints by pixels and the other transforms v2 by their edges, so that two ways to
# turn a picture by 180 degrees give points one pixel apart, and a point in the corner is lost in one of them.
#
# Guess: a keypoint on a pixel stays on that pixel, by whichever transforms.
# Seen, for a picture of 20 x 10 with one lit pixel and a keypoint on it: a horizontal and a vertical flip move pixel and
# keypoint alike (x becomes 19 - x). RandomRotation and RandomAffine by 180 degrees give the same picture, and the
# keypoint is one pixel further right and down (x becomes 20 - x). Of pixel (0, 0) it is then (20, 10), outside the
# canvas: SanitizeKeyPoints drops it, and after the flips it does not. A rotation by 90 degrees with `expand` is off by
# one in y. Resize multiplies (x becomes 3 x where the middle of the pixel goes to 3 x + 1), so that a flip before a
# Resize by 3 and one after it give the same picture and keypoints two pixels apart. Boxes are measured by edges
# everywhere and agree. With keypoints of the edges (a pixel's middle at x + 0.5) the flips are those off by one; no
# offset suits both.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.15.0 torchvision==0.29.2 numpy

cat > "$folder/turn.py" <<'PYTHON'
import torch
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode, v2

HEIGHT, WIDTH = 10, 20
across, down = v2.RandomHorizontalFlip(1), v2.RandomVerticalFlip(1)
larger = v2.Resize((3 * HEIGHT, 3 * WIDTH), interpolation=InterpolationMode.NEAREST)
WAYS = {
    "flips": [across, down],
    "rotation": [v2.RandomRotation((180, 180))],
    "affine": [v2.RandomAffine((180, 180))],
    "quarter": [v2.RandomRotation((90, 90), expand=True)],
    "flip, resize": [across, larger],
    "resize, flip": [larger, across],
}


def move(x, y, way):
    """Return the middle of the lit pixels, the keypoint, and how many keypoints SanitizeKeyPoints leaves."""
    picture = torch.zeros(1, HEIGHT, WIDTH)
    picture[0, y, x] = 1
    point = tv_tensors.KeyPoints([[float(x), float(y)]], canvas_size=(HEIGHT, WIDTH))
    picture, point = v2.Compose(WAYS[way])(tv_tensors.Image(picture), point)
    middle = picture[0].nonzero().float().mean(0).flip(0)
    left = len(v2.SanitizeKeyPoints()({"points": point})["points"])
    return tuple(middle.tolist()), tuple(point[0].round().tolist()), left


found = {way: move(4, 3, way) for way in WAYS}
for way, (middle, point, _) in found.items():
    print(f"{way}: pixel at {middle}, keypoint at {point}")
assert found["flips"][:2] == ((15, 6), (15, 6))
assert found["rotation"][:2] == found["affine"][:2] == ((15, 6), (16, 7))
assert found["quarter"][:2] == ((3, 15), (3, 16))
assert found["flip, resize"][:2] == ((46, 10), (45, 9))
assert found["resize, flip"][:2] == ((46, 10), (47, 9))

corner = {way: move(0, 0, way) for way in ("flips", "rotation")}
print("of the corner:", corner)
assert corner == {"flips": ((19, 9), (19, 9), 1), "rotation": ((19, 9), (20, 10), 0)}

box = tv_tensors.BoundingBoxes([[4.0, 3.0, 5.0, 4.0]], format="XYXY", canvas_size=(HEIGHT, WIDTH))
turned = [v2.Compose(WAYS[way])(box).round().tolist() for way in ("flips", "rotation", "affine")]
assert turned == [[[15.0, 6.0, 16.0, 7.0]]] * 3, turned
PYTHON

CUDA_VISIBLE_DEVICES= "$folder/venv/bin/python" "$folder/turn.py"
