"""Measuring a model: what is chosen, what is refused and why, and that nothing is left behind."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_lightning import LightningModule, Trainer, seed_everything
from torch import Tensor, nn

from lightkit.config.hardware.settings import AcceleratorSettings
from lightkit.errors import ConfigError
from lightkit.tuning import candidates
from lightkit.tuning.measuring import measure
from lightkit.tuning.variant import Findings, Measurement, Variant
from tests.tuning.conftest import Pictures, Small

FAST_S, SLOW_S = 0.002, 0.03


class Planted(Small):
    """A model whose speed, and whose faults, depend on how it is computed."""

    def __init__(self, *, fault: str = "", slow_in: str = "32-true") -> None:
        super().__init__(width=4)
        self.fault, self.slow_in = fault, slow_in

    def training_step(self, batch: list[Tensor]) -> Tensor:
        loss = super().training_step(batch)
        weight = self.network.get_parameter("0.weight")
        is_last = not weight.is_contiguous()
        is_lower = self.trainer.precision == "bf16-mixed"
        if self.fault == "raises in channels_last" and is_last:
            raise RuntimeError("planted: no kernel\nfor this")
        if self.fault == "off in bf16" and is_lower:
            loss = loss * 1.2
        if self.fault == "nan in bf16" and is_lower:
            loss = loss * float("nan")
        if self.fault == "never repeats" and is_lower:
            loss = loss + time.perf_counter_ns() % 997 * 1e-6
        time.sleep(SLOW_S if self.slow_in == self.trainer.precision else FAST_S)
        return loss


@pytest.fixture(autouse=True)
def _bf16_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "lower_precision", lambda device: "bf16-mixed")


def measured(build: Callable[[], LightningModule], *, budget_s: float | None = None, **values: Any) -> Findings:
    settings = values.pop("settings", None) or AcceleratorSettings(precision="auto", memory_format="auto")
    data = Pictures()
    return measure(
        build,
        [[data.images[:4], data.labels[:4]], [data.images[4:8], data.labels[4:8]]],
        settings=settings,
        base=Variant(),
        trainer_values={"accelerator": "cpu", "max_epochs": 1, **values.pop("trainer_values", {})},
        seed=3,
        budget_s=budget_s,
        **values,
    )


def of(findings: Findings, **fields: Any) -> Measurement:
    return next(one for one in findings.measurements if one.variant == Variant(**fields))


def test_the_faster_variant_is_chosen_where_its_losses_agree() -> None:
    findings = measured(Planted, datamodule=Pictures())
    assert findings.measurements[0].variant == Variant()
    assert findings.chosen.precision == "bf16-mixed"
    assert len(findings.measurements) == 4
    lower = of(findings, precision="bf16-mixed")
    assert lower.refused is None
    assert lower.deviation is not None
    assert 0 < lower.deviation < 0.05
    assert (findings.gain or 0) > 1.5
    assert Findings.of_json(findings.as_json()) == findings


@pytest.mark.parametrize(
    ("fault", "fields", "says"),
    [
        (
            "off in bf16",
            {"precision": "bf16-mixed"},
            r"its loss of step \d is .* where the baseline's is .* is accepted",
        ),
        ("nan in bf16", {"precision": "bf16-mixed"}, "its loss, or the baseline's, is not finite"),
        ("raises in channels_last", {"memory_format": "channels_last"}, "^RuntimeError: planted: no kernel$"),
    ],
    ids=["another loss", "nan", "an error"],
)
def test_what_is_wrong_is_refused_in_a_line(fault: str, fields: dict[str, Any], says: str) -> None:
    findings = measured(lambda: Planted(fault=fault))
    assert (refused := of(findings, **fields).refused) is not None
    assert re.search(says, refused)
    if "bf16" in fault:
        assert findings.chosen.precision == "32-true"
    else:
        assert findings.chosen == Variant("bf16-mixed")


def test_what_is_slower_is_left_after_a_step() -> None:
    findings = measured(lambda: Planted(slow_in="bf16-mixed"))
    assert findings.chosen.precision == "32-true"
    assert of(findings, precision="bf16-mixed").spread == 0.0


def test_what_does_not_repeat_is_refused_where_training_is_deterministic() -> None:
    findings = measured(
        lambda: Planted(fault="never repeats"),
        settings=AcceleratorSettings(precision="auto"),
        trainer_values={"deterministic": True},
    )
    assert findings.chosen.precision == "32-true"
    assert "do not repeat bit for bit" in (of(findings, precision="bf16-mixed").refused or "")
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_baselines_own_error_is_the_users() -> None:
    class Wrong(Planted):
        def training_step(self, batch: list[Tensor]) -> Tensor:
            raise ConfigError("planted: a mistake in the config")

    with pytest.raises(ConfigError, match="planted"):
        measured(Wrong)


def test_what_there_is_no_time_for_is_told() -> None:
    findings = measured(Planted, budget_s=30, num_steps=10)  # 5 % of 10 steps of 30 ms
    assert findings.chosen == Variant()
    assert [one.partition(":")[0] for one in findings.left_out] == [
        "32-true, channels_last",
        "bf16-mixed, contiguous",
        "bf16-mixed, channels_last",
    ]


def test_threads_and_loading_are_chosen_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    settings = AcceleratorSettings(threads="auto", num_workers="auto")
    findings = measured(Planted, settings=settings, cores=2, load_s=0.02)
    assert [one.variant.threads for one in findings.measurements] == [2, 1]
    assert findings.chosen.threads == findings.num_workers == 1  # loading hides behind 30 ms that need no second core
    assert torch.get_num_threads() == before
    alone = measured(Planted, settings=settings, cores=2, ranks=2, load_s=0.02)
    assert (alone.chosen.threads, alone.num_workers) == (1, 0)


def test_a_fused_optimizer_is_tried_and_one_that_has_none_is_refused() -> None:
    settings = AcceleratorSettings(fused="auto")
    assert of(measured(Small, settings=settings), fused=True).refused is None
    refused = of(measured(lambda: Small("RMSprop"), settings=settings), fused=True).refused
    assert "RMSprop has no fused kernel" in (refused or "")


def state_of_process() -> list[Any]:
    cudnn = torch.backends.cudnn
    return [
        random.getstate(),
        repr(np.random.get_state()),
        torch.get_rng_state().tolist(),
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_default_dtype(),
        torch.backends.cuda.matmul.allow_tf32,
        (cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic),
    ]


def test_training_after_a_measurement_is_the_same_bit_for_bit(trainer_of: Callable[..., Trainer]) -> None:
    class Drawing(Small):
        def __init__(self) -> None:
            super().__init__()
            self.dropout = nn.Dropout(0.5)

        def forward(self, images: Tensor) -> Tensor:
            dropped: Tensor = self.dropout(super().forward(images))
            return dropped

    def trained(*, measures: bool) -> Tensor:
        seed_everything(5)
        before = state_of_process()
        if measures:
            measured(Drawing, datamodule=Pictures(), trainer_values={"deterministic": True})
        assert state_of_process() == before
        module = Drawing()
        trainer_of().fit(module, datamodule=Pictures())
        return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])

    assert torch.equal(trained(measures=False), trained(measures=True))
