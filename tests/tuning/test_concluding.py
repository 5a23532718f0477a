"""Findings for more than is asked for: they answer where all that would be measured is among them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lightkit.tuning import candidates
from lightkit.tuning.choosing import choose
from lightkit.tuning.concluding import narrowed
from lightkit.tuning.settings import TuneSettings
from lightkit.tuning.variant import Findings, Measurement, Variant

ALL = ("precision", "memory_format", "fused", "threads", "num_workers")


@pytest.fixture(autouse=True)
def _two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "_LIGHTKIT_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(candidates, "lower_precision", lambda device: "bf16-mixed")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)


def _measured(step_s: float, precision: str = "32-true", refused: str | None = None, **fields: Any) -> Measurement:
    variant = Variant(precision, threads=fields.pop("threads", 2), **fields)
    return Measurement(variant, step_s, step_s, losses=(1.0,), refused=refused)


FOUND = Findings(
    (
        _measured(1.0),
        _measured(0.4, "bf16-mixed", memory_format="channels_last"),
        _measured(0.6, "bf16-mixed"),
        _measured(0.7, memory_format="channels_last"),
        _measured(0.3, "bf16-mixed", memory_format="channels_last", fused=True),
        _measured(0.5, "bf16-mixed", memory_format="channels_last", fused=True, threads=1),
    ),
    Variant("bf16-mixed", "channels_last", fused=True, threads=2),
    num_workers=0,
    load_s=0.1,
    autos=ALL,
    has_convolutions=True,
)


def _less(base: Variant | None = None, *, is_deterministic: bool = False, **settings: Any) -> Findings | None:
    asked = TuneSettings(**settings)
    return narrowed(FOUND, asked, base or Variant(), cores=2, ranks=1, is_deterministic=is_deterministic)


@pytest.mark.parametrize(
    ("settings", "chosen"),
    [
        ({"precision": "auto", "memory_format": "auto"}, Variant("bf16-mixed", "channels_last")),
        ({"precision": "auto"}, Variant("bf16-mixed")),
        ({"memory_format": "auto"}, Variant(memory_format="channels_last")),
    ],
    ids=["two", "precision", "memory format"],
)
def test_what_is_open_is_chosen_among_what_was_measured_with_what_is_fixed(settings: Any, chosen: Variant) -> None:
    less = _less(**settings)
    assert less is not None
    assert less.chosen == chosen
    assert less.autos == tuple(settings)
    assert less.of_chosen is not None
    assert (less.gain or 0) > 1


def test_all_of_it_answers_the_same() -> None:
    settings: dict[str, Any] = dict.fromkeys(ALL, "auto")
    less = _less(**settings)
    assert less is not None
    assert (less.chosen.but(threads=None), less.measurements) == (FOUND.chosen.but(threads=None), FOUND.measurements)
    assert less.num_workers is not None


@pytest.mark.parametrize(
    ("base", "settings"),
    [
        (Variant(), {"compile": "auto"}),
        (Variant(fused=True), {"precision": "auto"}),
        (Variant(threads=1), {"precision": "auto"}),
        (Variant("bf16-mixed"), {"memory_format": "auto"}),
        (Variant(), {"precision": "auto", "threads": "auto"}),
        (Variant("64-true"), {"precision": "auto"}),
    ],
    ids=["not open then", "fused", "other threads", "other baseline", "threads of another best", "other precision"],
)
def test_what_would_have_to_be_measured_is_not_guessed(base: Variant, settings: Any) -> None:
    assert _less(base, **settings) is None


@pytest.mark.parametrize(
    ("beside_fused", "has_time", "gain"),
    [(0.7, True, 2.0), (0.2, True, None), (0.2, False, 2.0), (None, True, None), (None, False, 2.0)],
    ids=["no faster", "faster", "faster, no time", "left out", "left out, no time"],
)
def test_what_was_compiled_beside_a_fused_optimizer_loses_no_other_gain(
    monkeypatch: pytest.MonkeyPatch, beside_fused: float | None, has_time: bool, gain: float | None
) -> None:
    """As `lightkit tune` measures all that a config leaves open, and a fit asks for all but `fused`."""
    monkeypatch.setattr(candidates, "missing_for_compiling", lambda device: None)
    measured = [
        _measured(1.0),
        _measured(0.5, memory_format="channels_last"),
        _measured(0.4, memory_format="channels_last", fused=True),
    ]
    if beside_fused is not None:
        measured.append(_measured(beside_fused, memory_format="channels_last", fused=True, compile=True))
    found = Findings(
        tuple(measured),
        choose(measured).variant,
        left_out=("compiled",) * (beside_fused is None),
        autos=("memory_format", "compile", "fused"),
        has_convolutions=True,
    )
    asked = TuneSettings(memory_format="auto", compile="auto")
    less = narrowed(found, asked, Variant(), cores=2, ranks=1, has_time=lambda: has_time)
    assert (None if less is None else less.gain) == gain
    assert less is None or less.chosen == Variant(memory_format="channels_last")
    assert less is None or len(less.left_out) == (beside_fused != 0.7)


def test_nobody_has_seen_another_choice_repeat() -> None:
    asked: dict[str, Any] = {"precision": "auto", "memory_format": "auto"}
    assert _less(**asked, is_deterministic=True) is None
    assert _less(**asked, fused="auto", is_deterministic=True) is not None
