"""The flowers example on real photographs, to the accuracy that it promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.data_cases import SHARED
from tests.contract.workspace import Workspace, read_metrics

CHECKOUT = Path(__file__).parents[2]
WEIGHTS = SHARED / "weights" / "mobilenet_v2_in1k_torchvision.pth"


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.skipif(not WEIGHTS.is_file(), reason=f"needs the photos and weights in {SHARED}")
def test_a_frozen_mobilenet_knows_84_percent_of_the_flowers(workspace: Workspace) -> None:
    workspace.run(
        *("fit", "-c", str(CHECKOUT / "configs" / "flowers.yaml"), "-c"),
        str(CHECKOUT / "configs" / "model" / "mobilenet_v2.yaml"),
        f"--data.init_args.root={SHARED / 'flower_photos'}",
        f"--model.init_args.weights={WEIGHTS}",
        timeout_s=1400,
    ).ok()
    epochs = read_metrics(workspace.only_run)
    assert max(float(row["val/accuracy"]) for row in epochs) >= 0.84
    assert len(epochs) < 20 or float(epochs[-1]["val/loss"]) < 0.55
