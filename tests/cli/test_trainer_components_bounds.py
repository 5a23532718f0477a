"""The numbers that the schema refuses for the trainer are those that the trainer refuses itself."""

from __future__ import annotations

import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from lightning_fabric.utilities.exceptions import MisconfigurationException

from tests.trainers import quiet_trainer

BOUNDS: Mapping[str, Mapping[str, int]] = runpy.run_path(
    str(Path(__file__).parents[2] / "scripts" / "catalogue.py")
)["_TRAINER_BOUNDS"]


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.filterwarnings("ignore")
def test_the_trainer_takes_a_bound_and_refuses_what_is_below(name: str, tmp_path: Path) -> None:
    least = BOUNDS[name]["minimum"]
    taken: dict[str, Any] = {name: least}
    quiet_trainer(tmp_path, **taken)
    with pytest.raises((MisconfigurationException, ValueError)):
        quiet_trainer(tmp_path, **{name: least - 1})
