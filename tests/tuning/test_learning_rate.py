from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import LightningDataModule, LightningModule, Trainer, seed_everything
from pytorch_lightning.callbacks import LearningRateFinder
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightkit.errors import ConfigError
from lightkit.tuning import allowance, range_test
from lightkit.tuning.allowance import Allowance
from lightkit.tuning.learning_rate import FoundRate, find_learning_rate, judged

_CPU = {"accelerator": "cpu", "max_epochs": 100}


class Points(LightningDataModule):
    """Three classes that a plane parts, or labels that mean nothing."""

    def __init__(self, *, means_something: bool = True) -> None:
        super().__init__()
        self.means_something = means_something

    def train_dataloader(self) -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(0)
        points, planes = torch.randn(320, 8, generator=generator), torch.randn(8, 3, generator=generator)
        classes = (points @ planes).argmax(1)
        labels = classes if self.means_something else torch.randint(0, 3, (320,), generator=generator)
        return DataLoader(TensorDataset(points, labels), batch_size=16, shuffle=True)


class Net(LightningModule):
    """Two layers; it has no attribute for the rate."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
        self.losses: list[float] = []

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-4)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=1e-3, total_steps=int(self.trainer.estimated_stepping_batches)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class ByHand(Net):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class NegativeLoss(Net):
    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return super().loss(batch) - 10


def trained(learning_rate: float) -> dict[str, Tensor]:
    seed_everything(3, workers=True, verbose=False)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=learning_rate)
    for batch in Points().train_dataloader():
        optimizer.zero_grad()
        net.loss(tuple(batch)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return net.state_dict()


def test_the_rate_trains_and_is_found_again() -> None:
    found = find_learning_rate(Net, Points(), trainer_values=_CPU, seed=1)
    assert found.learning_rate is not None
    assert 1e-3 <= found.learning_rate <= 5e-2
    assert f"learning_rate {found.learning_rate:.2g}" in found.words
    assert find_learning_rate(Net, Points(), trainer_values=_CPU, seed=1) == found


def test_losses_are_those_that_the_model_gave() -> None:
    nets: list[Net] = []

    def build() -> Net:
        nets.append(Net())
        return nets[0]

    found = find_learning_rate(build, Points(), trainer_values=_CPU, seed=1)
    assert found.losses == pytest.approx(nets[0].losses[: len(found.losses)])


def test_labels_that_mean_nothing_give_no_rate() -> None:
    found = find_learning_rate(Net, Points(means_something=False), trainer_values={**_CPU, "max_epochs": 1}, seed=1)
    assert found.learning_rate is None
    assert "the loss fell at no rate from 1e-07" in str(found.refused)
    assert found.words == f"no learning rate was found: {found.refused}"


def test_negative_losses_are_no_divergence() -> None:
    assert find_learning_rate(NegativeLoss, Points(), trainer_values=_CPU, seed=1).learning_rate is not None


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (lambda step: math.nan if step > 12 else 1.0, "after 13 steps it became NaN or infinite"),
        (lambda step: 1.0, "the loss fell at no rate"),
        (lambda step: 1.0 + (0.01 * (-1) ** step if step < 20 else step / 50), "the loss fell at no rate"),
        (lambda step: 0.2 if 10 <= step < 20 else 1.0, "is not within 1e-06 and 1"),
    ],
    ids=["nan", "flat", "diverging", "outside"],
)
def test_a_curve_without_a_rate_is_refused(loss: Any, says: str) -> None:
    found = judged([1e-7 * 1.2**step for step in range(90)], [loss(step) for step in range(90)])
    assert found.learning_rate is None
    assert says in str(found.refused)


def test_a_short_curve_is_refused() -> None:
    assert "after 5 steps the loss grew to four times its least" in str(judged([1e-7] * 5, [1.0] * 5).refused)


def test_a_training_after_the_search_is_that_without_it(capfd: pytest.CaptureFixture[str]) -> None:
    before = trained(0.1)
    seed_everything(3, workers=True, verbose=False)
    states = random.getstate(), torch.get_rng_state()
    find_learning_rate(Net, Points(), trainer_values={**_CPU, "deterministic": True}, seed=1)
    assert (random.getstate(), torch.get_rng_state().tolist()) == (states[0], states[1].tolist())
    assert not torch.are_deterministic_algorithms_enabled()
    after = trained(0.1)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert capfd.readouterr().err == ""  # not even Lightning's bar


def test_the_curve_is_written(tmp_path: Path) -> None:
    found = find_learning_rate(Net, Points(), trainer_values=_CPU, seed=1)
    found.write(tmp_path)
    lines = (tmp_path / "lr_find.csv").read_text().splitlines()
    assert lines[0] == "step,learning_rate,loss,smoothed_loss"
    assert len(lines) == len(found.losses) + 1
    assert lines[1].startswith("1,1e-07,")
    assert (tmp_path / "lr_find.png").read_bytes().startswith(b"\x89PNG")


def test_who_optimizes_by_hand_is_told_to_give_the_rate() -> None:
    with pytest.raises(ConfigError, match=r"accelerator\.learning_rate: auto .* ByHand, which optimizes by hand"):
        find_learning_rate(ByHand, Points(), trainer_values=_CPU, seed=1)


def test_nothing_is_written_where_the_training_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    values = {**_CPU, "default_root_dir": str(tmp_path), "logger": True, "callbacks": [object()]}

    class Interrupting(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            if len(self.losses) == 3:
                raise BrokenPipeError
            return super().training_step(batch, batch_idx)

    with pytest.raises(BrokenPipeError):
        find_learning_rate(Interrupting, Points(), trainer_values=values, seed=1)
    assert not [*tmp_path.iterdir()]


def test_lightnings_own_finder_is_as_it_was(tmp_path: Path) -> None:
    find_learning_rate(Net, Points(), trainer_values=_CPU, seed=1)
    finder = LearningRateFinder(num_training_steps=30, update_attr=False)
    net = Net()
    quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = Trainer(
        accelerator="cpu", max_epochs=2, callbacks=[finder], logger=False, default_root_dir=tmp_path, **quiet
    )
    trainer.fit(net, Points())
    assert finder.optimal_lr is not None
    assert len(finder.optimal_lr.results["lr"]) == 30


class Clock:
    """A clock that the steps of a model move on."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


def timed(
    monkeypatch: pytest.MonkeyPatch,
    step_s: Callable[[int], float],
    budget_s: float,
    *,
    num_batches: int | None = None,
    **values: Any,
) -> FoundRate:
    clock = Clock()
    for module in (range_test, allowance):
        monkeypatch.setattr(module, "time", clock)

    class Timed(Net):
        def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
            clock.now += step_s(len(self.losses))
            return super().training_step(batch, batch_idx)

    part = Allowance(budget_s, num_steps=lambda _: num_batches).next()
    return find_learning_rate(Timed, Points(), trainer_values={**_CPU, **values}, seed=1, part=part)


def test_as_many_steps_are_taken_as_there_is_time_for(monkeypatch: pytest.MonkeyPatch) -> None:
    found = timed(monkeypatch, lambda _: 1.0, budget_s=62.0)  # two of them are timed first
    assert len(found.rates) == 60
    assert found.learning_rate is not None
    assert found.words.endswith("in 60 steps from 1e-07 to 1 (there was no time for 100)")
    whole = timed(monkeypatch, lambda _: 1.0, budget_s=200.0)
    assert whole == find_learning_rate(Net, Points(), trainer_values=_CPU, seed=1)  # timing it changes nothing
    assert FoundRate.of_json(json.loads(json.dumps(found.as_json()))) == found


def test_no_more_than_a_share_of_the_training_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    found = timed(monkeypatch, lambda _: 1.0, budget_s=200.0, num_batches=1_040)  # 52 s, two of which time a step
    assert len(found.rates) == 50
    assert len(timed(monkeypatch, lambda _: 1.0, budget_s=200.0, num_batches=10).rates) == 40
    slower = timed(monkeypatch, lambda step: 1.0 if step < 45 else 2.0, budget_s=200.0, num_batches=1_040)
    assert len(slower.losses) == 47  # 43 steps of 1 s, and 4 of 2 s


def test_the_fewest_steps_are_taken_whatever_the_training_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = timed(monkeypatch, lambda step: 1.0 if step < 5 else 2.0, budget_s=200.0, num_batches=100)
    assert len(found.losses) == 40


def test_batches_that_are_accumulated_are_told_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    part = Allowance(1000.0).next()
    seen: list[tuple[float, int | None]] = []
    monkeypatch.setattr(part, "expect", lambda batch_s, per_epoch: seen.append((batch_s, per_epoch)))
    values = {**_CPU, "accumulate_grad_batches": 4, "limit_train_batches": 12}
    clock = Clock()
    monkeypatch.setattr(range_test, "time", clock)

    class Timed(Net):
        def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
            clock.now += 1.0
            return super().training_step(batch, batch_idx)

    find_learning_rate(Timed, Points(), trainer_values=values, seed=1, part=part)
    assert seen == [(1.0, 20)]  # those of the data


def test_a_slow_first_batch_is_no_pace_where_the_rest_of_an_epoch_is_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    rest: dict[str, Any] = {"accumulate_grad_batches": 4, "limit_train_batches": 6}
    found = timed(monkeypatch, lambda batch: 50.0 if batch == 0 else 1.0, budget_s=255.0, **rest)  # 55 s time a step
    assert found.left_out == ("there was no time for 100",)
    assert len(found.rates) == 25  # of 50 steps: 200 s for four batches each; Lightning sees those of four


def test_a_first_step_that_takes_all_the_time_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    found = timed(monkeypatch, lambda _: 40.0, budget_s=30.0)
    assert found.refused == "1 step was all that there was time for, and lightkit tune has more"
    assert found.left_out == ("there was no time for 100",)


def test_too_few_steps_for_a_rate_are_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    found = timed(monkeypatch, lambda _: 1.0, budget_s=30.0)
    assert found.learning_rate is None
    says = "40 steps take about 40 s, 28 s were left, and lightkit tune has more"
    assert found.words == f"no learning rate was found: {says}"
    assert found.left_out


@pytest.mark.parametrize(("slow_from", "num_steps"), [(10, 13), (50, 52)], ids=["at once", "late"])
def test_steps_that_become_slow_end_it_in_time(monkeypatch: pytest.MonkeyPatch, slow_from: int, num_steps: int) -> None:
    found = timed(monkeypatch, lambda step: 1.0 if step - 2 < slow_from else 60.0, budget_s=160.0)
    assert found.left_out == ("there was no time for 100",)
    if slow_from == 10:
        assert found.refused == f"{num_steps} steps were all that there was time for, and lightkit tune has more"
    else:
        assert len(found.losses) == num_steps
