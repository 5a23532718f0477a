"""Whenever a training validates and wherever it is killed: best.ckpt holds the scored weights.

The weight of the model is a number that depends on the step alone, and the validation loss is the
weight, so that a score says which weights it is of.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from hypothesis import given, note, settings
from hypothesis import strategies as st
from pytorch_lightning.callbacks import (
    Callback,
    EarlyStopping,
    ModelCheckpoint,
    StochasticWeightAveraging,
    Timer,
    WeightAveraging,
)
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from lightkit import runs
from lightkit.callbacks import Checkpoint, ResumeState, RunRecorder, VerifiedCheckpointIO
from lightkit.callbacks.checkpoint import rank_as_best
from lightkit.callbacks.interruption import StopOnTime
from lightkit.data.loader import train_loader

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
NUM_DRAWS = 200 if os.environ.get("HYPOTHESIS_PROFILE") == "long" else 20
MONITOR = {1: "val/loss", 2: "val/loss/dataloader_idx_0"}


class Killed(BaseException):
    """Stands for kill -9: nothing in the process reacts to it by saving."""


@dataclass(frozen=True)
class Plan:
    """One training.

    Args:
        data: ``sized``, ``resumable`` (a sampler with `resume`), ``endless``, or ``short``
            (announces too much).
        num_batches: Batches of an epoch, of data that end.
        interval: Of `val_check_interval`.
        every_n_epochs: Of `check_val_every_n_epoch`.
        max_epochs: Epochs; None where steps end it.
        max_steps: Optimizer steps; -1 where epochs end it.
        limit: Of `limit_train_batches`.
        accumulate: Of `accumulate_grad_batches`.
        num_loaders: Loaders of the validation.
        own: Checkpoint callbacks of the user's.
        averaging: None, ``step`` or ``epoch``, after which an average is updated.
        kill: Hook in which the process is killed, and in which of its calls; None without a kill.
        factor: Decides the weights.
    """

    data: str
    num_batches: int
    interval: int | float
    every_n_epochs: int | None
    max_epochs: int | None
    max_steps: int
    limit: int | None
    accumulate: int
    num_loaders: int
    own: tuple[str, ...]
    averaging: str | None
    kill: tuple[str, int] | None
    factor: int

    @property
    def length(self) -> int | None:
        """Batches of an epoch that Lightning expects; None where it knows no number."""
        if self.data == "endless":
            return self.limit
        announced = self.num_batches + (self.data == "short")
        return announced if self.limit is None else min(announced, self.limit)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Draw a training that Lightning accepts."""
    data = draw(st.sampled_from(["sized", "resumable", "endless", "short"]))
    num_batches = draw(st.integers(2, 6))
    limit = draw(st.none() | st.integers(2, 6))
    has_end = data != "endless" or limit is not None
    every_n_epochs = draw(st.sampled_from([1, 2, None]))
    plan = Plan(
        data=data,
        num_batches=num_batches,
        interval=1.0,
        every_n_epochs=every_n_epochs,
        max_epochs=draw(st.integers(1, 3)) if has_end else None,
        max_steps=-1 if has_end else draw(st.integers(4, 14)),
        limit=limit,
        accumulate=draw(st.sampled_from([1, 1, 2, 3])),
        num_loaders=draw(st.sampled_from([1, 1, 2])),
        own=draw(
            st.sampled_from(
                [(), (), (), ("validation",), ("step",), ("time",), ("epoch", "validation")]
            )
        ),
        averaging=draw(st.sampled_from([None, None, "step", "epoch"])),
        kill=draw(st.none() | st.tuples(st.sampled_from(HOOKS), st.integers(1, 5))),
        factor=draw(st.integers(1, 100)),
    )
    if plan.max_epochs is not None and draw(st.booleans()):
        plan = replace(plan, max_epochs=None, max_steps=draw(st.integers(3, 12)))
    # Lightning takes no step for what is left of an epoch, and would never reach its steps
    if data == "short":
        plan = replace(plan, accumulate=min(plan.accumulate, num_batches))

    # whole numbers within the epoch, or across epochs; fractions of data with a length
    most = 8 if every_n_epochs is None else (plan.length or 8)
    whole = st.integers(1, most)
    fraction = st.sampled_from([0.25, 0.5, 1.0])
    if every_n_epochs is None:
        return replace(plan, interval=draw(whole))
    return replace(plan, interval=draw(whole | (fraction if data != "endless" else st.just(1.0))))


class Rows(IterableDataset[torch.Tensor]):
    """A stream of rows; endless without a number of them."""

    def __init__(self, num: int | None) -> None:
        self.num = num

    def __iter__(self) -> Iterator[torch.Tensor]:
        count = 0
        while self.num is None or count < self.num:
            yield torch.zeros(1)
            count += 1


class ShortRows(Rows):
    """A stream that gives a row less than it announces."""

    def __len__(self) -> int:
        assert self.num is not None
        return self.num + 1


class Zeros(torch.utils.data.Dataset[torch.Tensor]):
    def __init__(self, num: int) -> None:
        self.num = num

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, key: Any) -> torch.Tensor:
        return torch.zeros(1)


class Data(pl.LightningDataModule):
    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan

    def train_dataloader(self) -> Any:
        num = self.plan.num_batches
        if self.plan.data == "resumable":
            return train_loader(Zeros(num), batch_size=1, seed=1, trainer=self.trainer)
        if self.plan.data == "sized":
            return DataLoader(TensorDataset(torch.zeros(num, 1)), batch_size=1, shuffle=True)
        return DataLoader(ShortRows(num) if self.plan.data == "short" else Rows(None), batch_size=1)

    def val_dataloader(self) -> Any:
        return [
            DataLoader(TensorDataset(torch.zeros(2, 1)), batch_size=1)
            for _ in range(self.plan.num_loaders)
        ]


HOOKS = ("batch", "validation", "validated", "epoch_end", "epoch_start", "link")


class Net(pl.LightningModule):
    """Its weight after n steps is one of a hundred different numbers; each validation is noted."""

    def __init__(self, plan: Plan, *, can_be_killed: bool) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(50.0))
        self.plan, self.left = plan, plan.kill if can_be_killed else None
        self.scored: list[tuple[float, int]] = []

    def reach(self, hook: str) -> None:
        """Count a hook, and end the process where it is time."""
        if self.left is None or self.left[0] != hook or self.trainer.sanity_checking:
            return
        self.left = (hook, self.left[1] - 1)
        if self.left[1] == 0:
            raise Killed

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return 0 * self.weight

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.reach("batch")

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        super().optimizer_step(*args, **kwargs)
        with torch.no_grad():  # Lightning counts the step after this hook
            self.weight.fill_(float((self.global_step + 1) * 37 * self.plan.factor % 101))

    def on_train_epoch_start(self) -> None:
        self.reach("epoch_start")

    def on_train_epoch_end(self) -> None:
        self.reach("epoch_end")

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.reach("validation")
        self.log("val/loss", self.weight.detach() + dataloader_idx)

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            loss = self.trainer.callback_metrics[MONITOR[self.plan.num_loaders]]
            self.scored.append((float(loss), self.global_step))

    def on_validation_end(self) -> None:
        self.reach("validated")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0)


class Averaging(WeightAveraging):
    """Averages after each step, or after each epoch.

    Then what is saved at its end is not what was scored in it.
    """

    def __init__(self, every: str) -> None:
        super().__init__()
        self.every = every

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        return (step_idx is not None) if self.every == "step" else (epoch_idx is not None)


class KilledBetween(VerifiedCheckpointIO):
    """Ends the process when last.ckpt is written and best.ckpt is not."""

    module: Net

    def link_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        self.module.reach("link")
        super().link_checkpoint(*args, **kwargs)


def own_checkpoint(kind: str, monitor: str) -> ModelCheckpoint:
    if kind == "epoch":
        return ModelCheckpoint(filename="all-{epoch}", save_top_k=-1, every_n_epochs=1)
    more: dict[str, Any] = {
        "step": {"every_n_train_steps": 3},
        "time": {"train_time_interval": timedelta(0)},
    }
    return ModelCheckpoint(monitor=monitor, **more.get(kind, {}))


def train(
    run: runs.Run,
    plan: Plan,
    *,
    can_be_killed: bool,
    more: Sequence[Callback] = (),
    kind: type[Net] = Net,
) -> Net:
    """Train as a recorded run does, in this process."""
    checkpoint = runs.choose_good(run.checkpoints)[0] if run.resumed else None
    recorder = RunRecorder(run, events=runs.EventStream(run.events_path))
    module = kind(plan, can_be_killed=can_be_killed)
    plugin = KilledBetween(on_saved=recorder.checkpoint_saved)
    plugin.module = module
    keepers: list[Any] = [own_checkpoint(kind, MONITOR[plan.num_loaders]) for kind in plan.own]
    keepers.append(Checkpoint.for_resume() if keepers else Checkpoint())
    for keeper in keepers:
        keeper.dirpath = str(run.checkpoints)
    average: list[Callback] = [] if plan.averaging is None else [Averaging(plan.averaging)]
    trainer = pl.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[
            *average,
            *more,
            recorder,
            ResumeState(),
            StopOnTime(),
            *sorted(keepers, key=rank_as_best),
        ],
        plugins=[plugin],
        max_epochs=plan.max_epochs,
        max_steps=plan.max_steps,
        val_check_interval=plan.interval,
        check_val_every_n_epoch=plan.every_n_epochs,
        limit_train_batches=plan.limit,
        accumulate_grad_batches=plan.accumulate,
        num_sanity_val_steps=0,
    )
    try:
        trainer.fit(module, Data(plan), ckpt_path=None if checkpoint is None else str(checkpoint))
    except Killed:
        pass
    else:
        assert module.left is None or module.left[1] > 0
        recorder.close()
    return module


def read(path: Path) -> dict[str, Any]:
    assert runs.find_fault(path) is None
    content: dict[str, Any] = torch.load(path, weights_only=True)
    return content


def assert_names_are_right(run: runs.Run) -> None:
    """Check what a kill leaves.

    Each checkpoint is whole, and best.ckpt holds the weight that it says is its score.
    """
    for path in run.checkpoints.glob("*.ckpt"):
        read(path)
    best = run.checkpoints / "best.ckpt"
    if best.is_file():
        content = read(best)
        score = content["callbacks"]["lightkit.callbacks.Checkpoint"]["best_model_score"]
        assert score is None or content["state_dict"]["weight"] == score


@settings(max_examples=NUM_DRAWS)
@given(plan=plans())
def test_the_best_checkpoint_holds_the_weights_that_were_scored(plan: Plan) -> None:
    if plan.averaging == "epoch" and plan.own:
        # Lightning's callback writes behind the epoch's update
        plan = replace(plan, averaging="step")
    with tempfile.TemporaryDirectory() as folder:
        run = runs.create(folder, "job")
        module = train(run, plan, can_be_killed=True)
        earlier: list[tuple[float, int]] = []
        was_killed = module.left is not None and module.left[1] == 0
        if was_killed:
            assert_names_are_right(run)
            earlier = module.scored
            module = train(replace(run, resumed=True), plan, can_be_killed=False)
        assert_names_are_right(run)
        check_best(run, plan, earlier=earlier, scored=module.scored, was_killed=was_killed)


def check_best(
    run: runs.Run,
    plan: Plan,
    *,
    earlier: list[tuple[float, int]],
    scored: list[tuple[float, int]],
    was_killed: bool,
) -> None:
    summary = runs.read_summary(run.summary_path)
    assert summary is not None
    note(f"scored {earlier} {scored}, best {summary['best']}, notes {summary['notes']}")

    # each epoch has its row, once
    rows = runs.MetricsTable(run.metrics_path).rows
    assert [row["epoch"] for row in rows] == list(range(len(rows)))
    newest = read(run.checkpoints / ("resume.ckpt" if plan.own else "last.ckpt"))
    assert newest["global_step"] == summary["steps"]

    best = summary["best"]
    # nothing was validated before the end, or not when a callback of the user's asked
    if best is None:
        assert plan.own or not (earlier or scored)
        return
    path = run.folder / summary["paths"]["best_checkpoint"]
    content = read(path)
    weight = float(content["state_dict"]["weight"])
    assert (content["global_step"], content["epoch"]) == (best["step"], best["epoch"])
    if weight != best["value"]:  # Lightning's callback takes the newest score there is
        assert {"step", "time"} & set(plan.own)
        assert any("by which ModelCheckpoint has chosen it" in text for text in summary["notes"])
        return
    assert summary["metrics"]["best"][best["monitor"]] == best["value"]
    assert weight in {value for value, _ in (*earlier, *scored)}
    # Lightning's callback passes some validations over, such as one before the first step
    if not plan.own:
        assert weight <= min((value for value, _ in scored), default=weight)
        assert was_killed or (weight, best["step"]) == min(scored)


class Shadow(Callback):
    """Keeps a weight of its own, puts it in place for validations and at the end.

    It leaves no checkpoint alone.
    """

    def __init__(self) -> None:
        self.own: torch.Tensor | None = None

    def swap(self, module: pl.LightningModule) -> None:
        before = module.weight.detach().clone()  # type: ignore[operator]
        module.weight.data.copy_(torch.full_like(before, -1.0) if self.own is None else self.own)  # type: ignore[operator]
        self.own = before

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.sanity_checking:
            self.swap(pl_module)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.sanity_checking:
            self.swap(pl_module)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.swap(pl_module)


class Logging(Net):
    """Has the hooks of a validation without changing a weight."""

    def on_validation_start(self) -> None:
        self.begun = True

    def on_validation_end(self) -> None:
        self.begun = False


class SwappingNet(Net):
    """Puts another weight in place for a validation itself."""

    def on_validation_start(self) -> None:
        self.kept = self.weight.detach().clone()
        self.weight.data.fill_(-1.0)

    def on_validation_end(self) -> None:
        self.weight.data.copy_(self.kept)


PLAIN = Plan("sized", 4, 1.0, 1, 2, -1, None, 1, 1, (), None, None, 1)


@pytest.mark.parametrize("interval", [1.0, 2], ids=["epochs", "within"])
def test_weights_that_a_callback_puts_in_place_for_the_validation_are_those_of_the_best(
    tmp_path: Path, interval: float
) -> None:
    run = runs.create(tmp_path, "job")
    module = train(run, replace(PLAIN, interval=interval), can_be_killed=False, more=[Shadow()])
    assert {value for value, _ in module.scored} == {-1.0}
    best, last = read(run.checkpoints / "best.ckpt"), read(run.checkpoints / "last.ckpt")
    trained = 8 * 37 % 101
    assert (float(best["state_dict"]["weight"]), float(last["state_dict"]["weight"])) == (
        -1.0,
        trained,
    )
    final = read(run.checkpoints / "final.ckpt")
    assert float(final["state_dict"]["weight"]) == -1.0
    assert runs.choose_good(run.checkpoints) == (run.checkpoints / "last.ckpt", [])
    summary = runs.read_summary(run.summary_path) or {}
    assert summary["best"]["value"] == -1.0
    assert any(
        text.startswith("final.ckpt holds the weights that a callback") for text in summary["notes"]
    )


@pytest.mark.parametrize("interval", [1.0, 2], ids=["epochs", "within"])
def test_a_model_with_hooks_of_a_validation_has_one_file_where_it_scores_its_own_weights(
    tmp_path: Path, interval: float
) -> None:
    run = runs.create(tmp_path, "job")
    plan = replace(PLAIN, interval=interval, max_epochs=1)
    train(run, plan, can_be_killed=False, kind=Logging)
    scores = {2: 2 * 37 % 101, 4: 4 * 37 % 101}
    best, last = run.checkpoints / "best.ckpt", run.checkpoints / "last.ckpt"
    assert float(read(best)["state_dict"]["weight"]) == (
        min(scores.values()) if interval == 2 else scores[4]
    )
    assert best.samefile(last) == (interval == 1.0 or scores[4] < scores[2])


@pytest.mark.parametrize("interval", [1.0, 2], ids=["epochs", "within"])
def test_weights_that_a_model_puts_in_place_for_the_validation_are_those_of_the_best_alone(
    tmp_path: Path, interval: float
) -> None:
    run = runs.create(tmp_path, "job")
    train(run, replace(PLAIN, interval=interval), can_be_killed=False, kind=SwappingNet)
    assert float(read(run.checkpoints / "best.ckpt")["state_dict"]["weight"]) == -1.0
    for name in ("last.ckpt", "last-1.ckpt"):
        assert float(read(run.checkpoints / name)["state_dict"]["weight"]) != -1.0


@pytest.mark.parametrize("stops_at", [None, 2], ids=["done", "early"])
def test_the_average_of_stochastic_weight_averaging_is_kept_and_said(
    tmp_path: Path, stops_at: int | None
) -> None:
    run = runs.create(tmp_path, "job")
    averaging = StochasticWeightAveraging(swa_lrs=0.1, swa_epoch_start=1)
    plan = replace(PLAIN, max_epochs=3)
    more: list[Callback] = [averaging]
    if stops_at is not None:
        more.append(EarlyStopping("val/loss", patience=1, mode="max", stopping_threshold=0.0))
    train(run, plan, can_be_killed=False, more=more)
    (text,) = (runs.read_summary(run.summary_path) or {})["notes"]
    final = run.checkpoints / "final.ckpt"
    if stops_at is not None:
        assert text.startswith(
            "training ended before StochasticWeightAveraging put its average in place"
        )
        assert not final.exists()
        return
    assert text.startswith(
        "final.ckpt holds the weights that StochasticWeightAveraging has put in place"
    )
    # what it averages: the weights at the begin of each epoch
    starts = [50.0, 4 * 37 % 101, 8 * 37 % 101]
    assert float(read(final)["state_dict"]["weight"]) == pytest.approx(sum(starts) / 3)
    assert float(read(run.checkpoints / "last.ckpt")["state_dict"]["weight"]) == 12 * 37 % 101


def test_averaged_weights_that_were_scored_are_said_to_be_in_the_checkpoints(
    tmp_path: Path,
) -> None:
    run = runs.create(tmp_path, "job")
    train(run, replace(PLAIN, averaging="step"), can_be_killed=False)
    (text,) = (runs.read_summary(run.summary_path) or {})["notes"]
    assert text.startswith(
        "the checkpoints hold the averaged weights of Averaging, which validation scores"
    )


def test_early_stopping_is_a_line_in_the_summary_and_cuts_no_training_short(tmp_path: Path) -> None:
    run = runs.create(tmp_path, "job")
    stopping = EarlyStopping("val/loss", patience=2, mode="max", min_delta=1000.0)
    train(run, replace(PLAIN, max_epochs=9), can_be_killed=False, more=[stopping])
    summary = runs.read_summary(run.summary_path) or {}
    assert summary["stopped_early"] == "stopped early after epoch 2: val/loss has not risen for 2"
    assert summary["stopped_by"] is None


def test_a_time_that_ends_within_a_validation_trains_no_batch_more(tmp_path: Path) -> None:
    class Over(Timer):
        """Its time is over once a validation has begun."""

        def on_validation_start(self, trainer: pl.Trainer, *_: Any) -> None:
            self._duration = 0.0

    run = runs.create(tmp_path, "job")
    module = train(
        run,
        replace(PLAIN, max_epochs=9),
        can_be_killed=False,
        more=[Over(duration=timedelta(days=1))],
    )
    assert [step for _, step in module.scored] == [4]
    assert module.trainer.global_step == 4
    summary = runs.read_summary(run.summary_path) or {}
    assert summary["stopped_early"].startswith(
        "stopped early after epoch 0: the time of trainer.max_time"
    )


@pytest.mark.parametrize("kind", ["short", "sized"])
def test_data_that_announce_more_than_they_give_are_warned_about(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = runs.create(tmp_path, "job")
    with caplog.at_level("WARNING", logger="lightkit"):
        train(run, replace(PLAIN, data=kind), can_be_killed=False)
    text = "the training data announce 5 batches and gave 4 in epoch 0"
    notes = (runs.read_summary(run.summary_path) or {})["notes"]
    assert caplog.text.count(text) == (kind == "short")
    assert [note.startswith(text) for note in notes[:1]] == [True] * (kind == "short")
    assert ("no validation has run" in str(notes)) == (kind == "short")
