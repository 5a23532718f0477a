from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.callbacks.checkpoint import estimate_size

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
