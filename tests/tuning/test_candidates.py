"""What is tried, in which order."""

from __future__ import annotations

from typing import Any

import pytest

from lightkit.tuning import candidates as module
from lightkit.tuning.candidates import candidates, lower_precision
from lightkit.tuning.settings import TuneSettings
from lightkit.tuning.variant import Variant

ALL = TuneSettings("auto", "auto", "auto", "auto", "auto", "auto")


def tried(settings: TuneSettings, base: Variant, best: Variant, **values: Any) -> list[str]:
    facts = {"device": "cpu", "has_convolutions": True, "threads": [1], **values}
    return [each.words for each in candidates(settings, base, lambda: best, **facts)]


@pytest.fixture(autouse=True)
def _has_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "lower_precision", lambda device: "bf16-mixed")
    monkeypatch.setattr(module, "missing_for_compiling", lambda device: None)


def test_formats_and_precisions_come_first_and_the_rest_is_tried_on_the_best() -> None:
    best = Variant("bf16-mixed", "channels_last", threads=2)
    assert tried(ALL, Variant(threads=2), best) == [
        "bf16-mixed, channels_last, 2 threads",
        "bf16-mixed, contiguous, 2 threads",
        "32-true, channels_last, 2 threads",
        "bf16-mixed, channels_last, fused, 2 threads",
        "bf16-mixed, channels_last, compiled, 2 threads",
        "bf16-mixed, channels_last, 1 thread",
    ]


def test_tf32_is_tried_on_cuda_where_products_are_of_float32() -> None:
    settings = TuneSettings(tf32="auto")
    assert tried(settings, Variant(), Variant(), device="cuda") == ["32-true, contiguous, TF32"]
    assert tried(settings, Variant(), Variant("bf16-mixed"), device="cuda") == []
    assert tried(settings, Variant(), Variant()) == []


def test_what_is_fixed_is_in_all_of_them() -> None:
    base = Variant("64-true", "channels_last")
    assert tried(TuneSettings(fused="auto"), base, base) == ["64-true, channels_last, fused"]
    assert tried(TuneSettings(memory_format="auto"), Variant(), Variant(), has_convolutions=False) == []


def test_the_configs_precision_is_tried_before_the_devices() -> None:
    settings = TuneSettings(precision="auto")
    assert tried(settings, Variant(), Variant(), configured="16-mixed", threads=[]) == [
        "16-mixed, contiguous",
        "bf16-mixed, contiguous",
    ]
    assert tried(settings, Variant(), Variant(), configured="bf16-mixed") == ["bf16-mixed, contiguous"]


@pytest.mark.parametrize(
    ("sets", "precision"),
    [(("avx512f", "avx512_bf16"), "bf16-mixed"), (("avx2",), None), (("neon", "bf16"), "bf16-mixed")],
    ids=["avx512", "avx2", "arm"],
)
def test_a_cpu_has_a_lower_precision_where_it_has_instructions_for_it(
    sets: tuple[str, ...], precision: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "instruction_sets", lambda: sets)
    assert lower_precision("cpu") == precision
