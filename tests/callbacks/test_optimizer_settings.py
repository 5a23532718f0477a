"""A resumed training has the optimizer's settings and the schedule of its config.

Not those of the checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import LearningRateFinder, StochasticWeightAveraging
from pytorch_lightning.plugins.precision import MixedPrecision
from torch.optim import SGD, Adam, Optimizer
from torch.optim import lr_scheduler as schedules
from torch.utils.data import DataLoader, TensorDataset

from lightkit.callbacks.optimizer_settings import OptimizerSettings
from lightkit.models import WarmupCosineLR
from tests.trainers import quiet_trainer

pytestmark = pytest.mark.filterwarnings("ignore")
Make = Callable[[Optimizer], Any]
STEPS, EPOCHS, CUT = 3, 6, 2


class Net(pl.LightningModule):
    """Notes the rate of each step."""

    def __init__(
        self, optimizer: Callable[[Any], Optimizer], schedule: Make | None, **stepping: Any
    ) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.made, self.schedule, self.stepping = optimizer, schedule, stepping
        self.rates: list[float] = []

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        (group,) = self.trainer.optimizers[0].param_groups
        self.rates.append(float(group["lr"]))
        loss: torch.Tensor = self.layer(batch[0]).square().mean()
        self.log("loss", loss.detach(), on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = self.made(self.parameters())
        if self.schedule is None:
            return optimizer
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": self.schedule(optimizer), **self.stepping},
        }


def fit(
    folder: Path,
    net: Net,
    *,
    epochs: int,
    start: Path | None = None,
    settings: bool = True,
    callbacks: Any = (),
) -> tuple[Net, pl.Trainer, Path]:
    """Train, from a checkpoint or from the beginning, and save the end."""
    torch.manual_seed(3)
    torch.nn.init.constant_(net.layer.weight, 0.5)
    torch.nn.init.constant_(net.layer.bias, 0.25)
    data = DataLoader(TensorDataset(torch.arange(12.0).reshape(6, 2) / 10), batch_size=2)
    added = [OptimizerSettings()] if settings else []
    trainer = quiet_trainer(folder, max_epochs=epochs, callbacks=[*added, *callbacks])
    trainer.fit(net, data, ckpt_path=start, weights_only=False)
    saved = folder / f"{len(list(folder.glob('*.ckpt')))}.ckpt"
    trainer.save_checkpoint(saved)
    return net, trainer, saved


def sgd(lr: float = 0.1, **options: Any) -> Callable[[Any], Optimizer]:
    return lambda parameters: SGD(parameters, lr=lr, **options)


def sequence(optimizer: Optimizer, warm: int, last: int) -> Any:
    parts = [
        schedules.LinearLR(optimizer, 0.1, total_iters=warm),
        schedules.CosineAnnealingLR(optimizer, T_max=last),
    ]
    return schedules.SequentialLR(optimizer, parts, milestones=[warm])


CHANGES: dict[str, tuple[Make, Make]] = {
    "T_max": (
        lambda each: schedules.CosineAnnealingLR(each, T_max=2),
        lambda each: schedules.CosineAnnealingLR(each, T_max=6),
    ),
    "step_size": (
        lambda each: schedules.StepLR(each, 1),
        lambda each: schedules.StepLR(each, 2, gamma=0.5),
    ),
    "gamma": (
        lambda each: schedules.ExponentialLR(each, 0.9),
        lambda each: schedules.ExponentialLR(each, 0.5),
    ),
    "milestones": (
        lambda each: schedules.MultiStepLR(each, [1, 2]),
        lambda each: schedules.MultiStepLR(each, [4]),
    ),
    "total_steps": (
        lambda each: schedules.OneCycleLR(each, 1.0, total_steps=19),
        lambda each: schedules.OneCycleLR(each, 1.0, total_steps=25),
    ),
    "warmup": (lambda each: WarmupCosineLR(each, 6, 2), lambda each: WarmupCosineLR(each, 18, 4)),
    "sequence": (lambda each: sequence(each, 2, 4), lambda each: sequence(each, 3, 8)),
    "a function": (
        lambda each: schedules.LambdaLR(each, lambda step: 0.5**step),
        lambda each: schedules.LambdaLR(each, lambda step: 0.5**step),
    ),
    "another class": (
        lambda each: schedules.StepLR(each, 1),
        lambda each: schedules.ExponentialLR(each, 0.5),
    ),
}


class LogText(logging.Handler):
    """Keeps what lightkit warns of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text += f"{record.getMessage()}\n"


@pytest.fixture
def log_text() -> Iterator[LogText]:
    handler, logger = LogText(), logging.getLogger("lightkit")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


@pytest.mark.parametrize("interval", ["epoch", "step"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_schedule_goes_on_as_if_it_had_been_that_one(
    name: str, interval: str, tmp_path: Path
) -> None:
    before, after = CHANGES[name]
    lr = 0.2 if name == "a function" else 0.1
    whole, _, _ = fit(tmp_path, Net(sgd(lr), after, interval=interval), epochs=EPOCHS)
    _, _, start = fit(tmp_path, Net(sgd(), before, interval=interval), epochs=CUT)
    resumed, _, _ = fit(
        tmp_path, Net(sgd(lr), after, interval=interval), epochs=EPOCHS, start=start
    )
    assert len(resumed.rates) == STEPS * (EPOCHS - CUT)
    assert resumed.rates == whole.rates[STEPS * CUT :]
    assert len(set(whole.rates)) > 1


@pytest.mark.parametrize("interval", ["epoch", "step"])
@pytest.mark.parametrize("name", CHANGES)
def test_what_is_not_changed_goes_on_bit_for_bit(
    name: str, interval: str, tmp_path: Path, log_text: LogText
) -> None:
    _, schedule = CHANGES[name]
    made = sgd(momentum=0.9, weight_decay=0.1)
    whole, _, _ = fit(tmp_path, Net(made, schedule, interval=interval), epochs=EPOCHS)
    _, _, start = fit(tmp_path, Net(made, schedule, interval=interval), epochs=CUT)
    resumed, _, _ = fit(
        tmp_path, Net(made, schedule, interval=interval), epochs=EPOCHS, start=start
    )
    assert resumed.rates == whole.rates[STEPS * CUT :]
    assert torch.equal(resumed.layer.weight, whole.layer.weight)
    assert log_text.text == ""


def test_a_changed_rate_is_that_of_the_resumed_training(tmp_path: Path, log_text: LogText) -> None:
    _, _, start = fit(tmp_path, Net(sgd(1.0), None), epochs=CUT)
    resumed, _, again = fit(tmp_path, Net(sgd(0.25), None), epochs=3, start=start)
    assert set(resumed.rates) == {0.25}
    assert "the optimizer's lr 0.25 in place of 1" in log_text.text
    log_text.text = ""
    resumed, _, _ = fit(tmp_path, Net(sgd(0.25), None), epochs=4, start=again)
    assert (set(resumed.rates), log_text.text) == ({0.25}, "")


def test_a_rate_that_the_code_has_lowered_stays(tmp_path: Path) -> None:
    class Lowers(Net):
        def on_train_epoch_end(self) -> None:
            self.trainer.optimizers[0].param_groups[0]["lr"] /= 2

    _, _, start = fit(tmp_path, Lowers(sgd(1.0), None), epochs=CUT)
    resumed, _, _ = fit(tmp_path, Lowers(sgd(1.0), None), epochs=3, start=start)
    assert set(resumed.rates) == {0.25}


def test_other_settings_of_an_optimizer_are_those_of_the_config_and_its_state_stays(
    tmp_path: Path,
) -> None:
    _, _, start = fit(tmp_path, Net(sgd(0.1, momentum=0.9), None), epochs=CUT)
    _, trainer, _ = fit(
        tmp_path, Net(sgd(0.1, momentum=0.5, weight_decay=0.25), None), epochs=3, start=start
    )
    (group,) = trainer.optimizers[0].param_groups
    assert (group["momentum"], group["weight_decay"]) == (0.5, 0.25)
    assert all("momentum_buffer" in state for state in trainer.optimizers[0].state.values())


def test_another_optimizer_begins_without_a_state(tmp_path: Path, log_text: LogText) -> None:
    _, _, start = fit(tmp_path, Net(sgd(0.1, momentum=0.9), None), epochs=CUT)
    made = lambda parameters: Adam(parameters, lr=0.5)  # noqa: E731
    resumed, trainer, _ = fit(tmp_path, Net(made, None), epochs=3, start=start)
    assert set(resumed.rates) == {0.5}
    assert {float(state["step"]) for state in trainer.optimizers[0].state.values()} == {STEPS}
    assert "Adam in place of SGD" in log_text.text


def test_a_schedule_that_is_left_out_leaves_the_rate_of_the_optimizer(tmp_path: Path) -> None:
    _, _, start = fit(tmp_path, Net(sgd(1.0), lambda each: schedules.StepLR(each, 1)), epochs=CUT)
    resumed, _, _ = fit(tmp_path, Net(sgd(1.0), None), epochs=3, start=start)
    assert set(resumed.rates) == {1.0}


def test_a_schedule_that_is_new_stands_where_the_training_does(tmp_path: Path) -> None:
    _, _, start = fit(tmp_path, Net(sgd(1.0), None), epochs=CUT)
    resumed, _, _ = fit(
        tmp_path,
        Net(sgd(1.0), lambda each: schedules.ExponentialLR(each, 0.5)),
        epochs=4,
        start=start,
    )
    assert list(dict.fromkeys(resumed.rates)) == [0.25, 0.125]


def test_a_plateau_schedule_keeps_what_it_has_reached(tmp_path: Path) -> None:
    # no loss is 10 below the one before, so that each epoch is a bad one
    def plateau(**options: Any) -> Make:
        return lambda each: schedules.ReduceLROnPlateau(
            each, threshold=10, threshold_mode="abs", **options
        )

    before = Net(sgd(0.5), plateau(patience=0, factor=0.5), monitor="loss")
    before, trainer, start = fit(tmp_path, before, epochs=3)
    reached = trainer.optimizers[0].param_groups[0]["lr"]
    resumed = Net(sgd(1.0), plateau(patience=5, factor=0.5), monitor="loss")
    resumed, trainer, _ = fit(tmp_path, resumed, epochs=5, start=start)
    assert reached < 0.5
    assert set(resumed.rates) == {2 * reached}
    schedule: Any = trainer.lr_scheduler_configs[0].scheduler
    assert schedule.patience == 5


def test_a_checkpoint_without_settings_keeps_its_own_with_a_warning(
    tmp_path: Path, log_text: LogText
) -> None:
    _, _, start = fit(
        tmp_path,
        Net(sgd(1.0), lambda each: schedules.CosineAnnealingLR(each, 2)),
        epochs=CUT,
        settings=False,
    )
    net = Net(sgd(0.5), lambda each: schedules.CosineAnnealingLR(each, 8))
    for epochs in (3, 4):  # and so does the checkpoint of such a training
        log_text.text = ""
        _, _, start = fit(tmp_path, net, epochs=epochs, start=start)
        assert "the optimizer's lr: 0.5 has no effect: the checkpoint has 1" in log_text.text
        assert "the schedule's T_max: 8 has no effect: the checkpoint has 2" in log_text.text


def test_an_unchanged_checkpoint_without_settings_gives_no_warning(
    tmp_path: Path, log_text: LogText
) -> None:
    for schedule in (None, lambda each: schedules.OneCycleLR(each, 1.0, total_steps=19)):
        made = sgd(momentum=0.9)
        _, _, start = fit(tmp_path, Net(made, schedule), epochs=CUT, settings=False)
        fit(tmp_path, Net(made, schedule), epochs=3, start=start)
    assert log_text.text == ""


def test_a_callback_that_sets_the_rate_itself_keeps_the_checkpoints(
    tmp_path: Path, log_text: LogText
) -> None:
    class Finds(LearningRateFinder):
        def on_fit_start(self, *_: Any) -> None:
            """Find nothing."""

    _, _, start = fit(tmp_path, Net(sgd(1.0), None), epochs=CUT)
    resumed, _, _ = fit(tmp_path, Net(sgd(0.5), None), epochs=3, start=start, callbacks=[Finds()])
    assert set(resumed.rates) == {1.0}
    assert "the optimizer's lr: 0.5 has no effect: the checkpoint has 1" in log_text.text


def test_the_warm_up_rises_evenly_and_the_cosine_falls_to_its_end() -> None:
    optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    schedule = WarmupCosineLR(optimizer, total_steps=8, warmup_steps=3, end_factor=0.5)
    rates = []
    for _ in range(10):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    cosine = [1.0, 0.9045085, 0.6545085, 0.3454915, 0.0954915, 0.0, 0.0]  # (1 + cos(pi k / 5)) / 2
    assert rates == pytest.approx([0.5, 1.0, 1.5, *(2 * (0.5 + 0.5 * each) for each in cosine)])


class StepCounter(pl.Callback):
    """Counts the steps that the optimizer takes."""

    num_steps = 0

    def on_before_optimizer_step(self, *_args: Any, **_kwargs: Any) -> None:
        self.num_steps += 1


class Normed(Net):
    """Has a BatchNorm, and notes the weight at the start of each epoch."""

    def __init__(self, optimizer: Callable[[Any], Optimizer]) -> None:
        super().__init__(optimizer, None)
        self.norm = torch.nn.BatchNorm1d(1)
        self.starts: list[torch.Tensor] = []

    def on_train_epoch_start(self) -> None:
        self.starts.append(self.layer.weight.detach().clone())

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        loss: torch.Tensor = (self.norm(self.layer(batch[0])) - batch[0][:, :1]).square().mean()
        return loss


@pytest.mark.parametrize("kind", [SGD, Adam])
@pytest.mark.parametrize("precision", ["32-true", "16-mixed"])
def test_the_average_of_swa_is_the_mean_of_the_weights_beside_a_batch_norm(
    tmp_path: Path, kind: Callable[..., Optimizer], precision: Any
) -> None:
    net = Normed(lambda parameters: kind(parameters, lr=0.1))
    averaging = StochasticWeightAveraging(0.1, swa_epoch_start=2, annealing_epochs=1)
    plugin = MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu"))
    trainer = quiet_trainer(
        tmp_path,
        max_epochs=EPOCHS,
        callbacks=[OptimizerSettings(), averaging],
        plugins=[plugin] if precision == "16-mixed" else [],
    )
    data = DataLoader(TensorDataset(torch.arange(12.0).reshape(6, 2) / 10), batch_size=2)
    trainer.fit(net, data)
    assert len(net.starts) == EPOCHS + 1  # the last one is for the statistics of BatchNorm
    assert not torch.equal(net.starts[EPOCHS - 1], net.starts[EPOCHS - 2])  # steps were taken
    mean = torch.stack(net.starts[1:EPOCHS]).mean(dim=0)
    torch.testing.assert_close(net.layer.weight.detach(), mean)
    assert "optimizer_step" not in vars(net)


def test_the_last_epoch_of_swa_without_a_batch_norm_takes_its_steps(tmp_path: Path) -> None:
    net = Net(lambda parameters: SGD(parameters, lr=0.1), None)
    averaging = StochasticWeightAveraging(0.1, swa_epoch_start=2, annealing_epochs=1)
    counter = StepCounter()
    _, trainer, _ = fit(tmp_path, net, epochs=EPOCHS, callbacks=[averaging, counter])
    assert counter.num_steps == STEPS * EPOCHS == trainer.global_step
