from __future__ import annotations

import argparse
import collections
import enum
import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonargparse
import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from lightkit.callbacks.checkpoint_io import ordinary, plain

NESTED: Any = vars(jsonargparse)["Namespace"](a=argparse.Namespace(b=Path("c")))


class Kind(enum.Enum):
    ROUND = "r"


class Word(str, enum.Enum):  # noqa: UP042 - a mixed enum, as users write them
    YES = "y"


@dataclass
class Options:
    width: int = 3
    where: Path = field(default_factory=lambda: Path("a/b"))


def loaded_again(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Path("a/b"), "a/b"),
        (Kind.ROUND, "ROUND"),
        (Word.YES, "YES"),
        (Options(), {"width": 3, "where": "a/b"}),
        (NESTED, {"a": {"b": "c"}}),
        (argparse.Namespace(a=1), {"a": 1}),
        (np.float32(1.5), 1.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.arange(3), [0, 1, 2]),
        (OmegaConf.create({"a": [1, {"b": "${a.0}"}]}), {"a": [1, {"b": 1}]}),
        (collections.defaultdict(list, a=[Path("x")]), {"a": ["x"]}),
        ({"a": (1, [Kind.ROUND])}, {"a": (1, ["ROUND"])}),
        (frozenset({1}), [1]),
        (range(3), [0, 1, 2]),
        (Options, f"{__name__}.Options"),
        (loaded_again, f"{__name__}.loaded_again"),
        (torch.float16, torch.float16),
        (torch.Size([2]), torch.Size([2])),
        (None, None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_is_written_as_a_config_writes_it_and_loads_without_code(
    value: Any, expected: Any
) -> None:
    written = plain(value)
    assert written == expected
    assert type(written) is type(expected)
    assert loaded_again(written) == expected


def test_what_has_no_plain_form_is_left() -> None:
    module = torch.nn.ReLU()
    assert plain({"a": [module]})["a"][0] is module


def test_numbers_of_numpy_become_pythons_and_tensors_stay_the_same_objects() -> None:
    same = {"lr": 0.1, "betas": (0.9, 0.99), "tensor": torch.ones(1)}
    other = {"groups": [same, {"lr": np.float64(0.1), "betas": (np.float32(0.5), 1)}]}
    changed = ordinary(other)
    assert changed["groups"][0] == same
    assert changed["groups"][0]["tensor"] is same["tensor"]
    assert changed["groups"][1] == {"lr": 0.1, "betas": (0.5, 1)}
    assert type(changed["groups"][1]["lr"]) is float
