from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import Trainer, seed_everything
from pytorch_lightning.callbacks import LearningRateFinder
from torch import Tensor

from lightkit.errors import ConfigError
from lightkit.tuning.learning_rate import find_learning_rate, judged
from tests.tuning.planes import CPU, Net, Points


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
    found = find_learning_rate(Net, Points(), trainer_values=CPU, seed=1)
    assert found.learning_rate is not None
    assert 1e-3 <= found.learning_rate <= 5e-2
    assert f"learning_rate {found.learning_rate:.2g}" in found.words
    assert find_learning_rate(Net, Points(), trainer_values=CPU, seed=1) == found


def test_losses_are_those_that_the_model_gave() -> None:
    nets: list[Net] = []

    def build() -> Net:
        nets.append(Net())
        return nets[0]

    found = find_learning_rate(build, Points(), trainer_values=CPU, seed=1)
    assert found.losses == pytest.approx(nets[0].losses[: len(found.losses)])


def test_labels_that_mean_nothing_give_no_rate() -> None:
    found = find_learning_rate(Net, Points(means_something=False), trainer_values={**CPU, "max_epochs": 1}, seed=1)
    assert found.learning_rate is None
    assert "the loss fell at no rate from 1e-07" in str(found.refused)
    assert found.words == f"no learning rate was found: {found.refused}"


def test_negative_losses_are_no_divergence() -> None:
    assert find_learning_rate(NegativeLoss, Points(), trainer_values=CPU, seed=1).learning_rate is not None


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


@pytest.mark.parametrize(
    ("loss", "rate"),
    [
        (lambda step: 10.0 - step / 10, None),
        (lambda step: 10.0 - step / 10 + (30.0 if step == 79 else 0.0), None),
        (lambda step: 10.0 - step / 10 + max(0, step - 70) * 0.1, None),
        (lambda step: 10.0 - step / 10 + max(0, step - 70) * 0.15, None),
        (lambda step: 10.0 - step / 10 + max(0, step - 60) * 0.2, 1e-8 * 1.2**60),
        (lambda step: 10.0 - step / 10 if step < 70 else math.nan, 1e-8 * 1.2**69),
    ],
    ids=["falling", "one hard batch", "halting", "hardly risen", "risen", "nan"],
)
def test_a_curve_that_time_has_cut_tells_a_rate_if_its_loss_has_risen(loss: Any, rate: float | None) -> None:
    rates, losses = [1e-7 * 1.2**step for step in range(80)], [loss(step) for step in range(80)]
    found = judged(rates, losses, is_cut=True)
    if rate is not None:
        assert found.learning_rate == pytest.approx(rate, rel=0.3)
    else:
        assert found.learning_rate is None
        says = "time ended after 80 steps, at a rate of 0.18, and the loss had not clearly risen by then"
        assert found.refused == f"{says}; let lightkit tune find it without a budget, or give the rate"
        assert judged(rates, losses).learning_rate is not None


def test_a_training_after_the_search_is_that_without_it(capfd: pytest.CaptureFixture[str]) -> None:
    before = trained(0.1)
    seed_everything(3, workers=True, verbose=False)
    states = random.getstate(), torch.get_rng_state()
    find_learning_rate(Net, Points(), trainer_values={**CPU, "deterministic": True}, seed=1)
    assert (random.getstate(), torch.get_rng_state().tolist()) == (states[0], states[1].tolist())
    assert not torch.are_deterministic_algorithms_enabled()
    after = trained(0.1)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert capfd.readouterr().err == ""  # not even Lightning's bar


def test_the_curve_is_written(tmp_path: Path) -> None:
    found = find_learning_rate(Net, Points(), trainer_values=CPU, seed=1)
    found.write(tmp_path)
    lines = (tmp_path / "lr_find.csv").read_text().splitlines()
    assert lines[0] == "step,learning_rate,loss,smoothed_loss"
    assert len(lines) == len(found.losses) + 1
    assert lines[1].startswith("1,1e-07,")
    assert (tmp_path / "lr_find.png").read_bytes().startswith(b"\x89PNG")


def test_who_optimizes_by_hand_is_told_to_give_the_rate() -> None:
    with pytest.raises(ConfigError, match=r"accelerator\.learning_rate: auto .* ByHand, which optimizes by hand"):
        find_learning_rate(ByHand, Points(), trainer_values=CPU, seed=1)


def test_nothing_is_written_where_the_training_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    values = {**CPU, "default_root_dir": str(tmp_path), "logger": True, "callbacks": [object()]}

    class Interrupting(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            if len(self.losses) == 3:
                raise BrokenPipeError
            return super().training_step(batch, batch_idx)

    with pytest.raises(BrokenPipeError):
        find_learning_rate(Interrupting, Points(), trainer_values=values, seed=1)
    assert not [*tmp_path.iterdir()]


def test_lightnings_own_finder_is_as_it_was(tmp_path: Path) -> None:
    find_learning_rate(Net, Points(), trainer_values=CPU, seed=1)
    finder = LearningRateFinder(num_training_steps=30, update_attr=False)
    net = Net()
    quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = Trainer(
        accelerator="cpu", max_epochs=2, callbacks=[finder], logger=False, default_root_dir=tmp_path, **quiet
    )
    trainer.fit(net, Points())
    assert finder.optimal_lr is not None
    assert len(finder.optimal_lr.results["lr"]) == 30
