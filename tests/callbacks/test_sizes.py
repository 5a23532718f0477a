from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lightkit.callbacks.checkpoint_io import estimate_first_size, estimate_size

_SHARED = torch.zeros(50_000)
CONTENTS: dict[str, Any] = {
    "nothing": {},
    "one large": {"state_dict": {"weight": torch.zeros(100_000)}},
    "a thousand small": {"state_dict": {f"layer.{n}.weight_of_it": torch.zeros(3) for n in range(1000)}},
    "shared": {"a": _SHARED, "b": [_SHARED, (_SHARED[:3], {"c": _SHARED.view(5, -1)})]},
    "a view": {"a": torch.zeros(100_000)[:1]},
    "half": {"a": torch.zeros(100_000, dtype=torch.float16)},
    "words": {"hyper_parameters": {f"key{n}": "value" * 5 for n in range(500)}},
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_the_size_is_what_torch_writes_or_a_little_more(content: dict[str, Any], tmp_path: Path) -> None:
    torch.save(content, tmp_path / "a.ckpt")
    written = (tmp_path / "a.ckpt").stat().st_size
    assert written <= estimate_size(content) <= written * 1.5 + 70_000


@pytest.mark.parametrize(
    ("kind", "settings", "values"),
    [(torch.optim.AdamW, {}, 2), (torch.optim.SGD, {"momentum": 0.9}, 1), (torch.optim.SGD, {}, 0)],
    ids=["AdamW", "SGD with a momentum", "SGD"],
)
def test_the_first_size_is_that_after_the_first_step(kind: Any, settings: Any, values: int, tmp_path: Path) -> None:
    module = nn.Linear(300, 300)
    optimizer = kind(module.parameters(), lr=0.1, **settings)
    estimate = estimate_first_size(module.state_dict(), [optimizer])
    module(torch.ones(1, 300)).sum().backward()
    optimizer.step()
    torch.save({"state_dict": module.state_dict(), "optimizer_states": [optimizer.state_dict()]}, tmp_path / "a.ckpt")
    assert abs(estimate - (tmp_path / "a.ckpt").stat().st_size) < 75_000
    assert estimate - estimate_first_size(module.state_dict(), []) == values * 300 * 301 * 4
