"""When a fit validates two batches before its first step, and when there is nothing to find."""

from __future__ import annotations

from typing import Any

import pytest
from pytorch_lightning import Callback
from pytorch_lightning.callbacks import EarlyStopping
from torch import nn

from lightkit.cli.sanity import needs_no_sanity_check
from lightkit.data import FashionMNIST
from lightkit.models import ImageClassifier


class Own(Callback):
    """Somebody's callback."""


class OwnModel(ImageClassifier):
    """Somebody's model."""


def _parts() -> tuple[Any, Any]:
    return ImageClassifier(), FashionMNIST()


def test_there_is_nothing_to_find_in_lightkits_own_parts() -> None:
    given = {"num_sanity_val_steps": None, "callbacks": [EarlyStopping("val/loss")], "logger": True, "strategy": "auto"}
    assert needs_no_sanity_check(given, *_parts())


@pytest.mark.parametrize(
    "given", [{"num_sanity_val_steps": 2}, {"num_sanity_val_steps": 0}, {"callbacks": Own()}, {"callbacks": [Own()]}]
)
def test_whoever_asks_or_has_code_of_their_own_gets_lightnings_default(given: dict[str, Any]) -> None:
    assert not needs_no_sanity_check(given, *_parts())


def test_a_model_of_ones_own_is_checked_and_one_with_such_a_layer_too() -> None:
    assert not needs_no_sanity_check({}, OwnModel(), FashionMNIST())
    assert not needs_no_sanity_check({}, ImageClassifier(), None)
    model = ImageClassifier()
    model.extra = type("Layer", (nn.Module,), {})()
    assert not needs_no_sanity_check({}, model, FashionMNIST())
