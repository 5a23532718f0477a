"""The flowers example on real photographs, to the accuracy that it promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import rows, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

CHECKOUT = Path(__file__).parents[2]
DATA = CHECKOUT.parent / "shared" / "data"
WEIGHTS = DATA / "weights" / "mobilenet_v2_in1k_torchvision.pth"


@pytest.mark.skipif(not WEIGHTS.is_file(), reason=f"needs the photos and weights in {DATA}")
def test_a_frozen_mobilenet_knows_84_percent_of_the_flowers(tmp_path: Path) -> None:
    done = run(
        CHECKOUT,
        *("fit", "-c", "configs/flowers.yaml"),
        *("--data.init_args.root", "../shared/data/flower_photos"),
        *("--model.init_args.backbone", "mobilenet_v2"),
        *("--model.init_args.weights", "../shared/data/weights/mobilenet_v2_in1k_torchvision.pth"),
        *("--model.init_args.freeze", "backbone"),
        *("--run.root", str(tmp_path / "runs")),
        timeout_s=1400,
    )
    print(done.out)
    assert done.code == 0, done.err
    epochs = rows(tmp_path)
    assert max(float(row["val/accuracy"]) for row in epochs) >= 0.84
    assert len(epochs) < 20 or float(epochs[-1]["val/loss"]) < 0.55
