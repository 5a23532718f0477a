"""Steps pass over what does nothing, and over nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import LambdaCallback
from pytorch_lightning.profilers import PassThroughProfiler, SimpleProfiler
from pytorch_lightning.trainer.connectors.logger_connector.result import _ResultMetric
from torch.utils.data import DataLoader

from lightkit.callbacks import LeanSteps

pytestmark = pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers")


class Net(LightningModule):
    """Logs, and has one hook."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.called: list[str] = []
        self.seen: list[list[torch.Tensor]] = []

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Give a loss that is logged each step and each epoch."""
        self.seen.append(batch)
        loss: torch.Tensor = self.layer(batch[0]).square().mean()
        self.log("loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        return loss

    def on_after_backward(self) -> None:
        """Say so."""
        self.called.append("on_after_backward")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Give one that changes little."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Watching(Callback):
    """Has two of the hooks of a step."""

    def __init__(self) -> None:
        self.called: list[str] = []
        self.is_passed_over = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """See what stands in the place of a hook that it does not have."""
        self.is_passed_over = not callable(self.on_before_backward)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        """Say so."""
        self.called.append("on_train_batch_start")

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        """Call Lightning's empty one, as subclasses do."""
        super().on_train_batch_end(trainer, pl_module, *args)
        self.called.append("on_train_batch_end")


def fitted(*callbacks: Callback, net: Net | None = None, data: Any = None, **arguments: Any) -> tuple[Net, Trainer]:
    """Train three batches."""
    torch.manual_seed(0)
    net = Net() if net is None else net
    batches: Any = data or [[torch.ones(4, 2) * number, torch.zeros(4)] for number in range(3)]
    trainer = Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
        **arguments,
    )
    trainer.fit(net, DataLoader(batches, batch_size=None))
    return net, trainer


def test_what_is_trained_and_logged_is_the_same() -> None:
    lean, with_it = fitted(LeanSteps())
    plain, without = fitted()
    assert torch.equal(lean.layer.weight, plain.layer.weight)
    assert with_it.callback_metrics == without.callback_metrics
    assert set(with_it.callback_metrics) == {"loss", "loss_step", "loss_epoch"}
    assert with_it.progress_bar_metrics == without.progress_bar_metrics


def test_bars_get_numbers_and_only_when_they_ask() -> None:
    seen: list[dict[str, float]] = []
    late = LambdaCallback(on_train_batch_start=lambda trainer, *_: seen.append(dict(trainer.progress_bar_metrics)))
    kept: list[Any] = []
    ends = LambdaCallback(
        on_before_zero_grad=lambda trainer, *_: kept.extend(trainer._logger_connector._progress_bar_metrics.values())
    )
    _, trainer = fitted(late, LeanSteps())
    _, plain = fitted(late)
    assert seen[1:3] == seen[4:6]
    assert all(type(value) is float for values in seen for value in values.values())
    fitted(ends, LeanSteps())
    assert {type(value) for value in kept} == {torch.Tensor}
    assert trainer.progress_bar_metrics == plain.progress_bar_metrics


def test_hooks_that_somebody_has_are_called_in_their_order() -> None:
    watching, told = Watching(), list[int]()
    late = LambdaCallback(on_before_backward=lambda *_: told.append(len(watching.called)))
    net, _ = fitted(watching, late, LeanSteps())
    assert watching.is_passed_over
    assert watching.called == ["on_train_batch_start", "on_train_batch_end"] * 3
    assert told == [1, 3, 5]
    assert net.called == ["on_after_backward"] * 3


def test_nothing_of_it_is_left_after_the_stage() -> None:
    watching, before = Watching(), _ResultMetric.to
    net, trainer = fitted(watching, LeanSteps())
    assert callable(watching.on_before_backward)
    assert callable(net.on_before_backward)
    assert "batch_to_device" not in vars(trainer.strategy)
    assert type(trainer.profiler) is PassThroughProfiler  # type: ignore[attr-defined]
    assert _ResultMetric.to is before


def test_an_error_puts_everything_back_too() -> None:
    def fails(*_: Any) -> None:
        raise ZeroDivisionError

    watching, before = Watching(), _ResultMetric.to
    with pytest.raises(ZeroDivisionError):
        fitted(watching, LambdaCallback(on_train_batch_end=fails), LeanSteps())
    assert callable(watching.on_before_backward)
    assert _ResultMetric.to is before


def test_a_profiler_that_was_asked_for_measures() -> None:
    profiler = SimpleProfiler()
    fitted(LeanSteps(), profiler=profiler)
    assert len(profiler.recorded_durations["run_training_batch"]) == 3


def test_a_model_that_changes_its_batch_does_not_change_the_data() -> None:
    class Popping(Net):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            batch.clear()

    data = [[torch.ones(4, 2), torch.zeros(4)]]
    fitted(LeanSteps(), net=Popping(), data=data)
    assert len(data[0]) == 2


def test_what_a_model_does_with_a_batch_on_its_way_is_done() -> None:
    class Doubling(Net):
        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            return [part * 2 for part in batch]

    net = Doubling()
    fitted(LeanSteps(), net=net, data=[[torch.ones(4, 2), torch.zeros(4)]])
    assert torch.equal(net.seen[0][0], torch.full((4, 2), 2.0))
