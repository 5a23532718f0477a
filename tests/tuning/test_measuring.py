"""Measuring a model: what is chosen, what is refused and why, and that nothing is left behind."""

from __future__ import annotations

import itertools
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_lightning import Callback, LightningModule, Trainer, seed_everything
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.plugins.precision import DoublePrecision, MixedPrecision
from torch import Tensor, nn
from torch.utils.data import random_split

from lightkit.errors import ConfigError
from lightkit.tuning import allowance, candidates, measuring, search, sitting
from lightkit.tuning.allowance import Allowance
from lightkit.tuning.measuring import measure
from lightkit.tuning.search import Search
from lightkit.tuning.settings import TuneSettings
from lightkit.tuning.short_fits import precision_plugin
from lightkit.tuning.variant import Findings, Measurement, Variant
from tests.tuning.conftest import Pictures, Small

FAST_S, SLOW_S = 0.05, 0.6


class Ticking:
    """A clock that steps and looks at it move on: nothing depends on how busy the machine is."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 0.1
        return self.now


CLOCK = Ticking()


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
        CLOCK.now += SLOW_S if self.slow_in == self.trainer.precision else FAST_S
        return loss


@pytest.fixture(autouse=True)
def _bf16_is_tried_by_a_clock_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (sitting, search, allowance):
        monkeypatch.setattr(module, "time", CLOCK)
    monkeypatch.setattr(candidates, "lower_precision", lambda device: "bf16-mixed")


def measured(
    build: Callable[[], LightningModule], *, budget_s: float | None = None, num_steps: int | None = None, **values: Any
) -> Findings:
    settings = values.pop("settings", None) or TuneSettings(precision="auto", memory_format="auto")
    data = Pictures()
    return measure(
        build,
        [[data.images[:4], data.labels[:4]], [data.images[4:8], data.labels[4:8]]],
        settings=settings,
        base=values.pop("base", Variant()),
        trainer_values={"accelerator": "cpu", "max_epochs": 1, **values.pop("trainer_values", {})},
        seed=3,
        part=Allowance(budget_s, num_steps=lambda _: num_steps).next(),
        **values,
    )


def of(findings: Findings, **fields: Any) -> Measurement:
    return next(one for one in findings.measurements if one.variant == Variant(**fields))


@pytest.mark.parametrize("limits", [{}, {"max_steps": 1}, {"overfit_batches": 1}], ids=["epoch", "step", "batch"])
def test_the_faster_variant_is_chosen_where_its_losses_agree(limits: dict[str, Any]) -> None:
    findings = measured(Planted, datamodule=Pictures(), trainer_values=limits)
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
    settings = TuneSettings(precision="auto")
    findings = measured(lambda: Planted(slow_in="bf16-mixed"), settings=settings)
    lower = of(findings, precision="bf16-mixed")
    assert findings.chosen.precision == "32-true"
    assert lower.step_s == pytest.approx(SLOW_S, abs=0.3)
    assert lower.spread == 0.0
    assert len(lower.losses) == 2  # one to warm up, one that was timed


def test_float32_is_the_reference_of_a_precision_that_the_config_says() -> None:
    findings = measured(Planted, base=Variant("bf16-mixed"), settings=TuneSettings(precision="auto"))
    assert [one.variant.precision for one in findings.measurements] == ["32-true", "bf16-mixed"]
    assert findings.chosen.precision == "bf16-mixed"
    off = measured(lambda: Planted(fault="off in bf16"), base=Variant("bf16"), settings=TuneSettings(precision="auto"))
    assert off.chosen.precision == "32-true"
    hurried = measured(Planted, base=Variant("bf16-mixed"), budget_s=30, num_steps=10)
    assert hurried.chosen.precision == "bf16-mixed"  # there was no time to try it: it stays what the config says


def test_a_plugin_fixes_the_precision() -> None:
    class Halved(MixedPrecision):
        def __init__(self, device: str = "cpu") -> None:
            super().__init__("bf16-mixed", device)

    findings = measured(
        Planted,
        settings=TuneSettings(precision="auto", fused="auto"),
        trainer_values={"plugins": [Halved()], "precision": None},
    )
    assert [one.variant.precision for one in findings.measurements] == ["32-true", "32-true"]
    told = SimpleNamespace(class_path="pytorch_lightning.plugins.precision.DoublePrecision", init_args=None)
    assert isinstance(precision_plugin({"plugins": told}), DoublePrecision)
    assert precision_plugin({"plugins": None}) is None


def test_data_that_draws_when_it_is_set_up_does_so_once_and_in_no_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    class Splits(Pictures):
        def __init__(self) -> None:
            super().__init__()
            self.set_up: list[str] = []
            self.told: list[BaseException] = []

        def setup(self, stage: str) -> None:
            self.set_up.append(stage)
            random_split(range(10), [7, 3])  # type: ignore[arg-type]

        def on_exception(self, exception: BaseException) -> None:
            self.told.append(exception)

    class Late(Planted):
        def configure_model(self) -> None:
            self.head = nn.Linear(4, 3)

        def training_step(self, batch: list[Tensor]) -> Tensor:
            return super().training_step([batch[0] + torch.randn(()), batch[1]])

    data, begin = Splits(), Search.begin
    before: list[list[str]] = []

    def noting(self: Search) -> None:
        before.append([*data.set_up])
        begin(self)

    monkeypatch.setattr(Search, "begin", noting)
    findings = measured(Late, datamodule=data)
    assert before == [["fit"]]  # so that no estimate counts it
    assert data.set_up == ["fit"]
    assert data.told == []
    assert findings.chosen.precision == "bf16-mixed"
    assert [one.refused for one in findings.measurements] == [None] * 4


def test_models_that_log_by_themselves_bring_callbacks_and_clean_up_are_measured(tmp_path: Path) -> None:
    folders: list[Any] = []
    ended: list[str] = []

    class Own(Planted):
        def training_step(self, batch: list[Tensor]) -> Tensor:
            loss = super().training_step(batch)
            logger: Any = self.logger
            logger.experiment.add_scalar("mine", loss)
            folders.append((self.trainer.log_dir, logger.save_dir))
            return loss

        def configure_callbacks(self) -> list[Callback]:
            return [ModelCheckpoint(tmp_path / "checkpoints", every_n_train_steps=1)]

        def teardown(self, stage: str) -> None:
            ended.append(stage)

    findings = measured(Own, settings=TuneSettings(precision="auto"))
    assert [one.refused for one in findings.measurements] == [None, None]
    assert len({*folders}) == 1
    assert not Path(folders[0][0]).exists()
    assert [*tmp_path.iterdir()] == []
    assert {*ended} == {"fit"}
    assert len(ended) >= 2


def test_on_a_gpu_the_rule_gives_threads_and_the_gain_is_that_of_what_was_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(measuring, "_device_type", lambda *_: "cuda")
    settings = TuneSettings(precision="auto", threads="auto", num_workers="auto")
    findings = measured(Planted, settings=settings, cores=8, ranks=2)
    assert [one.variant.words for one in findings.measurements] == ["32-true, contiguous", "bf16-mixed, contiguous"]
    assert (findings.chosen, findings.num_workers) == (Variant("bf16-mixed", threads=1), 3)
    assert (findings.gain or 0) > 1.5
    assert findings.of_chosen is findings.measurements[1]


def test_threads_that_were_measured_are_kept_where_nobody_knows_how_long_loading_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    class Alone(Small):
        def training_step(self, batch: list[Tensor]) -> Tensor:
            CLOCK.now += FAST_S if torch.get_num_threads() == 1 else SLOW_S
            return super().training_step(batch)

    findings = measured(Alone, settings=TuneSettings(threads="auto", num_workers="auto"), cores=2)
    assert (findings.chosen.threads, findings.num_workers) == (1, 1)
    assert (findings.gain or 0) > 1.5


def test_what_does_not_repeat_is_refused_where_training_is_deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = measured(
        lambda: Planted(fault="never repeats"),
        settings=TuneSettings(precision="auto"),
        trainer_values={"deterministic": True},
    )
    assert findings.chosen.precision == "32-true"
    assert "do not repeat bit for bit" in (of(findings, precision="bf16-mixed").refused or "")
    with monkeypatch.context() as patched:
        needed = itertools.chain([0.0], itertools.repeat(99.0))
        patched.setattr(Search, "_needed_s", lambda *_: next(needed))
        hurried = measured(
            Planted,
            settings=TuneSettings(precision="auto"),
            trainer_values={"deterministic": True},
            budget_s=30,
        )
    assert "no time was left to see whether" in (of(hurried, precision="bf16-mixed").refused or "")
    assert [one for one in hurried.left_out if "to see whether its losses repeat" in one]  # so that it is tried again
    assert hurried.chosen.precision == "32-true"
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_baselines_own_error_is_the_users() -> None:
    class Wrong(Planted):
        def training_step(self, batch: list[Tensor]) -> Tensor:
            raise ConfigError("planted: a mistake in the config")

    with pytest.raises(ConfigError, match="planted"):
        measured(Wrong)


def test_what_there_is_no_time_for_is_told() -> None:
    findings = measured(Planted, budget_s=30, num_steps=10)  # 5 % of 10 steps of 0.6 s
    assert findings.chosen == Variant()
    assert [one.partition(":")[0] for one in findings.left_out] == [
        "bf16-mixed, channels_last",
        "bf16-mixed, contiguous",
        "32-true, channels_last",
    ]


def test_threads_and_loading_are_chosen_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    settings = TuneSettings(threads="auto", num_workers="auto")
    findings = measured(Planted, settings=settings, cores=2, load_s=0.4)
    assert [one.variant.threads for one in findings.measurements] == [2, 1]
    assert findings.chosen.threads == findings.num_workers == 1  # loading hides behind 0.6 s that need no second core
    assert torch.get_num_threads() == before
    alone = measured(Planted, settings=settings, cores=2, ranks=2, load_s=0.4)
    assert (alone.chosen.threads, alone.num_workers) == (1, 0)


def test_a_fused_optimizer_is_tried_and_one_that_has_none_is_refused() -> None:
    settings = TuneSettings(fused="auto")
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
