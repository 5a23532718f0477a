"""Steps pass over what does nothing, and over nothing else."""

from __future__ import annotations

import sys
from copy import deepcopy
from typing import Any

import pytest
import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import LambdaCallback
from pytorch_lightning.profilers import PassThroughProfiler, SimpleProfiler
from pytorch_lightning.strategies import SingleDeviceStrategy
from pytorch_lightning.trainer.connectors.logger_connector.logger_connector import _LoggerConnector
from pytorch_lightning.trainer.connectors.logger_connector.result import _ResultCollection, _ResultMetric
from torch.utils.data import DataLoader

from lightkit.callbacks import LeanSteps, lean_steps

pytestmark = pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")


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

    def validation_step(self, batch: list[torch.Tensor]) -> None:
        """Log a loss for the epoch."""
        self.log("val_loss", self.layer(batch[0]).square().mean(), prog_bar=True)

    def on_after_backward(self) -> None:
        """Say so."""
        self.called.append("on_after_backward")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Give one that changes little."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Watching(Callback):
    """Has some of the hooks of a step."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        """Say so."""
        self.called.append("on_train_batch_start")

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        """Call Lightning's empty one, as subclasses do."""
        super().on_train_batch_end(trainer, pl_module, *args)
        self.called.append("on_train_batch_end")

    def on_validation_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        """Say so."""
        self.called.append("on_validation_batch_end")


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
    trainer.fit(net, DataLoader(batches, batch_size=None), DataLoader(batches[:1], batch_size=None))
    return net, trainer


def is_as_lightning_made_it(trainer: Any) -> bool:
    """Whether nothing of the short ways is left on a trainer."""
    kept = trainer.fit_loop.epoch_loop._results, trainer.fit_loop.epoch_loop.val_loop._results
    metrics = {type(each) for results in kept for each in results.values()}
    return (
        "batch_to_device" not in vars(trainer.strategy)
        and type(trainer.profiler) is PassThroughProfiler
        and type(trainer._logger_connector) is _LoggerConnector
        and {type(each) for each in kept} == {_ResultCollection}
        and metrics <= {_ResultMetric}
    )


def test_what_is_trained_and_logged_is_the_same() -> None:
    lean, with_it = fitted(LeanSteps())
    plain, without = fitted()
    assert torch.equal(lean.layer.weight, plain.layer.weight)
    assert with_it.callback_metrics == without.callback_metrics
    assert set(with_it.callback_metrics) == {"loss", "loss_step", "loss_epoch", "val_loss"}
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


@pytest.mark.parametrize("lean", [[LeanSteps()], []], ids=["lean", "plain"])
def test_hooks_that_somebody_has_are_called_in_their_order(lean: list[Callback]) -> None:
    watching, told = Watching(), list[int]()
    late = LambdaCallback(on_before_backward=lambda *_: told.append(len(watching.called)))
    net, _ = fitted(watching, late, *lean, num_sanity_val_steps=0)
    assert watching.called == [*["on_train_batch_start", "on_train_batch_end"] * 3, "on_validation_batch_end"]
    assert told == [1, 3, 5]
    assert net.called == ["on_after_backward"] * 3


def test_empty_hooks_are_not_called() -> None:
    called: list[str] = []

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code in (Callback.on_after_backward.__code__, Callback.on_fit_end.__code__):
            called.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        fitted(LeanSteps())
    finally:
        sys.setprofile(None)
    assert called == ["on_fit_end"]


def test_hooks_that_are_given_at_any_time_are_called_and_can_call_the_empty_ones() -> None:
    told: list[str] = []

    def wrap(owner: Any, hook: str, name: str) -> None:
        original = getattr(owner, hook)

        def wrapped(*args: Any) -> None:
            original(*args)
            told.append(name)

        setattr(owner, hook, wrapped)

    class Wrapped(Net):
        def setup(self, stage: str) -> None:
            wrap(self, "on_train_batch_end", "module's")

        def on_train_start(self) -> None:
            self.on_before_zero_grad(self.optimizers())  # type: ignore[arg-type]

    class Composite(Callback):
        inner = Callback()

        def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            wrap(self, "on_before_backward", "callback's")

        def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
            self.inner.on_train_batch_start(trainer, pl_module, *args)
            if args[1] == 1:
                wrap(trainer.callbacks[-1], "on_after_backward", "late one's")  # type: ignore[attr-defined]

    fitted(Composite(), LeanSteps(), net=Wrapped())
    assert told.count("module's") == told.count("callback's") == 3
    assert told.count("late one's") == 2


def test_a_patched_class_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    patch = LambdaCallback(
        on_train_start=lambda *_: monkeypatch.setattr(Callback, "on_after_backward", lambda *_: told.append(1))
    )
    fitted(patch, LeanSteps())
    assert len(told) == 3 * 2  # LambdaCallback is one too


def test_neither_the_model_nor_callbacks_are_touched() -> None:
    seen: list[Any] = []

    def copy(trainer: Any, module: Net, *_: Any) -> None:
        seen.extend([deepcopy(module), *map(deepcopy, trainer.callbacks)])

    fitted(Watching(), LambdaCallback(on_train_batch_end=copy), LeanSteps())
    assert all(callable(getattr(each, "on_before_zero_grad")) for each in seen)  # noqa: B009
    assert not any("on_before_zero_grad" in vars(each) for each in seen)


def test_nothing_of_it_is_left_after_one_fit_or_two() -> None:
    lean = LeanSteps()
    net, trainer = fitted(lean)
    assert is_as_lightning_made_it(trainer)
    trainer.fit_loop.max_epochs = 2
    batches: Any = [[torch.ones(4, 2), torch.zeros(4)]]
    trainer.fit(net, DataLoader(batches, batch_size=None), DataLoader(batches, batch_size=None))
    assert is_as_lightning_made_it(trainer)
    assert trainer.progress_bar_metrics.keys() == {"loss_step", "loss_epoch", "val_loss"}


def test_an_error_puts_everything_back_even_where_another_callback_fails_at_it() -> None:
    def fails(trainer: Trainer, *_: Any) -> None:
        seen.append(trainer)
        raise ZeroDivisionError

    seen: list[Trainer] = []
    with pytest.raises(ZeroDivisionError):
        fitted(LambdaCallback(on_train_batch_end=fails, on_exception=fails), LeanSteps())
    assert len(seen) == 2
    assert is_as_lightning_made_it(seen[0])


def test_a_way_to_the_device_of_somebody_else_is_not_taken_away() -> None:
    def own(batch: Any, *_: Any, **__: Any) -> Any:
        return batch

    class Own(Net):
        def setup(self, stage: str) -> None:
            self.trainer.strategy.batch_to_device = own  # type: ignore[method-assign]

    _, trainer = fitted(LeanSteps(), net=Own())
    assert vars(trainer.strategy)["batch_to_device"] is own


def test_another_lightning_keeps_its_own_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lean_steps, "version", "2.7.0")
    seen: list[bool] = []
    look = LambdaCallback(on_train_batch_end=lambda trainer, *_: seen.append(is_as_lightning_made_it(trainer)))
    fitted(look, LeanSteps())
    assert seen == [True] * 3


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


def test_what_somebody_does_with_a_batch_on_its_way_is_done() -> None:
    def double(batch: Any, *_: Any, **__: Any) -> Any:
        return [part * 2 for part in batch]

    class Doubling(Net):
        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            return double(batch)

    class Later(Net):
        def on_fit_start(self) -> None:
            self.on_after_batch_transfer = double  # type: ignore[method-assign]

    class Strategy(SingleDeviceStrategy):
        def batch_to_device(self, batch: Any, device: Any = None, dataloader_idx: int = 0) -> Any:
            return double(batch)

    data = [[torch.ones(4, 2), torch.zeros(4)]]
    for net, arguments in [(Doubling(), {}), (Later(), {}), (Net(), {"strategy": Strategy("cpu")})]:
        fitted(LeanSteps(), net=net, data=data, **arguments)
        assert torch.equal(net.seen[0][0], torch.full((4, 2), 2.0))
