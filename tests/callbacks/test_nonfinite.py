from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import LambdaCallback, ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torchmetrics import CatMetric, SumMetric

from lightkit import runs
from lightkit.callbacks import Checkpoint, FiniteLoss, ResumeState, VerifiedCheckpointIO
from lightkit.data import train_loader
from lightkit.errors import ConfigError, NonfiniteLoss

SIZE = 4


class Numbers(Dataset[tuple[Tensor, Tensor]]):
    """Six batches of numbers, of which some are NaN or infinite.

    Args:
        bad: Values by index.
    """

    def __init__(self, bad: dict[int, float]) -> None:
        self.x = torch.linspace(-1, 1, 24).unsqueeze(1)
        self.y = 2 * self.x + 0.5
        for index, value in bad.items():
            self.x[index] = value

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """The same without indices."""

    def __init__(self, bad: dict[int, float]) -> None:
        self.numbers = Numbers(bad)

    def __iter__(self) -> Any:
        return (self.numbers[index] for index in range(len(self.numbers)))


class Slope(LightningModule):
    """A line behind a normalisation, with a schedule and with metrics that only grow."""

    def __init__(
        self, *, by_hand: bool = False, as_dict: bool = False, has_schedule: bool = True
    ) -> None:
        super().__init__()
        self.automatic_optimization = not by_hand
        self.as_dict, self.has_schedule = as_dict, has_schedule
        torch.manual_seed(3)
        self.layers = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 1))
        self.total, self.seen = SumMetric(nan_strategy=0.0), CatMetric(nan_strategy=0.0)
        self.losses: list[float] = []

    def training_step(self, batch: Any, index: int) -> Any:
        loss = nn.functional.mse_loss(self.layers(batch[0]), batch[1])
        self.log("train/loss", loss, on_step=False, on_epoch=True)
        self.total.update(len(batch[0]))
        self.seen.update(batch[1])
        self.losses.append(loss.item())
        if not self.automatic_optimization:
            optimizer: Any = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return {"loss": loss, "more": 1} if self.as_dict else loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        if not self.has_schedule:
            return optimizer
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Training:
    """A training with the callback, and what it leaves behind."""

    def __init__(self, folder: Path, action: Any, bad: dict[int, float], **settings: Any) -> None:
        self.folder, self.action = folder, action
        own = {
            name: settings.pop(name)
            for name in ("by_hand", "as_dict", "has_schedule")
            if name in settings
        }
        self.module = Slope(**own)
        self.data = settings.pop("data", Numbers)(bad)
        self.loader: Any = DataLoader(
            self.data, **{"batch_size": SIZE, **settings.pop("loader", {})}
        )
        self.own = settings.pop("callbacks", [])
        self.settings = {"max_epochs": 1, **settings}

    def fit(self, **more: Any) -> Training:
        events = runs.EventStream(self.folder / "events.jsonl")
        checkpoints = self.folder / "checkpoints"
        watch = FiniteLoss(
            self.action, events=events, last_good=lambda: runs.last_good(checkpoints)
        )
        keep = Checkpoint(monitor=None, dirpath=str(checkpoints))
        self.trainer = Trainer(
            accelerator="cpu",
            callbacks=[watch, *self.own, ResumeState(), keep],
            plugins=[VerifiedCheckpointIO()],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            **self.settings,
        )
        self.trainer.fit(self.module, self.loader, **more)
        return self

    def spoil(self, trainer: Trainer, _module: LightningModule) -> None:
        """Let all that comes after the first epoch be NaN."""
        if trainer.current_epoch:
            self.data.x.fill_(math.nan)

    @property
    def events(self) -> list[dict[str, Any]]:
        found = list(runs.read_events(self.folder / "events.jsonl"))
        return [event for event in found if event["event"] == "nonfinite"]


@pytest.mark.parametrize(
    ("value", "as_dict"),
    [(math.nan, False), (math.inf, True)],
    ids=["nan as a tensor", "infinite in a dict"],
)
def test_by_default_the_run_stops_before_the_weights_know_of_it(
    tmp_path: Path, value: float, as_dict: bool
) -> None:
    clean = Training(tmp_path / "clean", "stop", {}, limit_train_batches=2).fit()
    training = Training(tmp_path / "bad", "stop", {9: value}, as_dict=as_dict)
    with pytest.raises(
        NonfiniteLoss,
        match=r"epoch 0, step 2, batch 2 is nan \(samples 8, 9, 10, 11 of the training",
    ):
        training.fit()
    for one, other in zip(clean.module.parameters(), training.module.parameters(), strict=True):
        assert torch.equal(one, other)
    (event,) = training.events
    assert (event["indices"], event["action"], event["loss"]) == ([8, 9, 10, 11], "stop", "nan")
    assert (event["epoch"], event["step"], event["batch"]) == (0, 2, 2)


def test_the_error_names_the_last_good_checkpoint_which_is_from_before(tmp_path: Path) -> None:
    training = Training(tmp_path, "stop", {}, max_epochs=2)
    training.own = [LambdaCallback(on_train_epoch_start=training.spoil)]
    with pytest.raises(
        NonfiniteLoss, match=rf"the last good checkpoint is {tmp_path}/checkpoints/last\.ckpt"
    ):
        training.fit()
    kept = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)
    assert kept["global_step"] == 6
    assert all(bool(value.isfinite().all()) for value in kept["state_dict"].values())


@pytest.mark.parametrize(
    ("precision", "says"),
    [
        ("bf16-mixed", "computes in bf16-mixed: accelerator.precision=32-true turns that off"),
        ("32-true", ""),
    ],
    ids=["bf16", "float32"],
)
def test_a_lower_precision_is_named_with_the_key_that_turns_it_off(
    tmp_path: Path, precision: Any, says: str
) -> None:
    with pytest.raises(NonfiniteLoss) as caught:
        Training(tmp_path, "stop", {0: math.nan}, precision=precision).fit()
    assert says in str(caught.value)
    assert says or "accelerator.precision" not in str(caught.value)


def test_without_any_checkpoint_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(NonfiniteLoss, match="there is no checkpoint yet"):
        Training(tmp_path, "stop", {0: math.nan}).fit()


def test_a_skipped_batch_leaves_no_trace_in_weights_statistics_and_metrics(tmp_path: Path) -> None:
    without = torch.utils.data.Subset(Numbers({}), [*range(8), *range(12, 24)])
    clean = Training(
        tmp_path / "clean", "stop", {}, data=lambda _: without, has_schedule=False
    ).fit()
    bad = Training(tmp_path / "bad", "skip", {9: math.inf}, has_schedule=False).fit()
    for (name, one), other in zip(
        clean.module.state_dict().items(), bad.module.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other) or name.endswith("num_batches_tracked"), name
    logged = float(clean.trainer.callback_metrics["train/loss"])
    assert float(bad.trainer.callback_metrics["train/loss"]) == pytest.approx(logged)
    assert (float(bad.module.total.compute()), len(bad.module.seen.compute())) == (20, 20)
    (event,) = bad.events
    assert (event["action"], event["count"], event["indices"]) == ("skip", 1, [8, 9, 10, 11])


def test_an_accumulation_is_left_out_with_its_bad_batch(tmp_path: Path) -> None:
    training = Training(tmp_path, "skip", {5: math.nan}, accumulate_grad_batches=3).fit()
    clean = Training(tmp_path / "clean", "stop", {}).fit()
    assert all(bool(value.isfinite().all()) for value in training.module.state_dict().values())
    assert training.trainer.global_step == 2
    assert [math.isfinite(loss) for loss in training.module.losses] == [
        True,
        False,
        True,
        True,
        True,
        True,
    ]
    assert float(training.module.total.compute()) == float(clean.module.total.compute()) - SIZE


def test_ten_bad_batches_in_a_row_are_the_end(tmp_path: Path) -> None:
    training = Training(tmp_path, "skip", {}, loader={"batch_size": 2})
    training.data.x.fill_(math.nan)
    with pytest.raises(NonfiniteLoss, match="So were those of the 9 batches before it"):
        training.fit()
    assert [event["action"] for event in training.events] == ["skip"] * 9 + ["stop"]


def test_good_batches_in_between_begin_the_count_again(tmp_path: Path) -> None:
    training = Training(
        tmp_path, "skip", {0: math.nan, 4: math.nan, 12: math.nan, 16: math.nan}, max_epochs=4
    ).fit()
    assert [event["count"] for event in training.events] == list(range(1, 17))


def test_the_screen_shows_ten_and_the_events_have_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training(tmp_path, "skip", {0: math.nan, 12: math.nan}, max_epochs=6).fit()
    said = [
        record.getMessage()
        for record in caplog.records
        if "the batch is left out" in record.getMessage()
    ]
    assert (len(said), len(training.events)) == (10, 12)


def test_a_model_that_steps_by_itself_can_only_stop(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"watchdog\.on_nonfinite: skip needs automatic optimization, but Slope"
    ):
        Training(tmp_path / "skip", "skip", {}, by_hand=True).fit()
    training = Training(tmp_path / "stop", "stop", {9: math.nan}, by_hand=True)
    with pytest.raises(NonfiniteLoss, match="batch 2 is nan"):
        training.fit()


def test_spoilt_weights_get_into_no_checkpoint(tmp_path: Path) -> None:
    class Stubborn(LambdaCallback):
        """Saves when something has gone wrong, as Lightning's OnExceptionCheckpoint does."""

        def on_exception(self, trainer: Trainer, *_: Any) -> None:
            trainer.save_checkpoint(tmp_path / "checkpoints" / "wrong.ckpt")

    training = Training(tmp_path, "stop", {9: math.nan}, by_hand=True, callbacks=[Stubborn()])
    with pytest.raises(NonfiniteLoss):
        training.fit()
    assert not list(tmp_path.rglob("*.ckpt"))


@pytest.mark.parametrize(
    "settings", [{"data": Stream}, {"loader": {"shuffle": True}}], ids=["stream", "shuffled"]
)
def test_the_indices_of_other_loaders_are_unknown(tmp_path: Path, settings: dict[str, Any]) -> None:
    training = Training(tmp_path, "stop", {9: math.nan}, **settings)
    with pytest.raises(NonfiniteLoss, match="its samples are unknown: the loader is shuffled"):
        training.fit()
    assert training.events[0]["indices"] is None


def test_a_resumable_sampler_reports_indices_and_names(tmp_path: Path) -> None:
    class Named:
        """Samples with names."""

        def name(self, index: int) -> str:
            return f"{index}.png"

    class Keyed(Numbers):
        """Numbers by the keys of a `ResumableSampler`."""

        source = Named()

        def __getitem__(self, key: Any) -> tuple[Tensor, Tensor]:
            return super().__getitem__(key[0])

    training = Training(tmp_path, "stop", {7: math.nan}, data=Keyed)
    training.loader = train_loader(training.data, batch_size=SIZE, seed=3)
    with pytest.raises(NonfiniteLoss, match=r"samples (\d+\.png, )*7\.png"):
        training.fit()
    (event,) = training.events
    assert event["names"] == [f"{index}.png" for index in event["indices"]]
    assert 7 in training.loader.sampler.indices_of(epoch=0, batch=event["batch"])


def test_losses_that_wait_are_judged_before_a_checkpoint(tmp_path: Path) -> None:
    """On a GPU nobody waits for a loss; here the same way is taken on the CPU."""
    training = Training(tmp_path, "stop", {9: math.nan})
    training.own = [
        LambdaCallback(on_train_start=lambda *_: setattr(watched(training), "_interval", 16))
    ]
    with pytest.raises(NonfiniteLoss, match="epoch 0, step 2, batch 2 is nan"):
        training.fit()
    assert not list(tmp_path.rglob("*.ckpt"))
    assert [event["batch"] for event in training.events] == [2]


def watched(training: Training) -> FiniteLoss:
    callbacks = training.trainer.callbacks  # type: ignore[attr-defined]
    (found,) = [callback for callback in callbacks if isinstance(callback, FiniteLoss)]
    return found


class Root(Slope):
    """Its loss is finite, and from one batch on the gradient of its loss is not."""

    def __init__(self, at: tuple[int, int], **more: Any) -> None:
        super().__init__(**more)
        self.at = at

    def training_step(self, batch: Any, index: int) -> Any:
        loss = super().training_step(batch, index)
        return (
            loss + torch.sqrt((next(self.layers[1].parameters()) * 0).sum())
            if (self.current_epoch, index) == self.at
            else loss
        )


def rooted(folder: Path, action: Any, at: tuple[int, int] = (1, 5), **settings: Any) -> Training:
    training = Training(folder, action, {}, **{"max_epochs": 3, **settings})
    training.module = Root(at)
    return training


@pytest.mark.parametrize("action", ["stop", "skip"])
def test_no_checkpoint_has_weights_that_a_finite_loss_has_spoilt(
    tmp_path: Path, action: str
) -> None:
    training = rooted(tmp_path, action)
    with pytest.raises(
        NonfiniteLoss,
        match=(
            r"After epoch 1, step 12 weights are NaN or infinite \(layers.*last good checkpoint is"
            rf" {tmp_path}/ch"
        ),
    ):
        training.fit()
    assert_all_finite(tmp_path)
    assert torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)["global_step"] == 6
    (event,) = training.events
    assert (event["action"], event["indices"], event["weights"]) == (
        "stop",
        None,
        ["layers.1.weight"],
    )


def test_a_run_of_one_epoch_does_not_end_well_with_spoilt_weights(tmp_path: Path) -> None:
    own = ModelCheckpoint(dirpath=tmp_path / "own", every_n_train_steps=6)
    training = rooted(tmp_path, "stop", (0, 5), max_epochs=1, callbacks=[own])
    with pytest.raises(
        NonfiniteLoss, match=r"weights are NaN or infinite .* there is no checkpoint yet"
    ):
        training.fit()
    assert not list(tmp_path.rglob("*.ckpt"))


def test_what_is_infinite_on_purpose_gets_into_checkpoints(tmp_path: Path) -> None:
    training = Training(tmp_path, "stop", {})
    training.module.register_buffer("mask", torch.full((2, 2), -math.inf))
    training.module.bound = nn.Parameter(torch.tensor(math.inf))
    training.fit()
    assert (tmp_path / "checkpoints" / "last.ckpt").is_file()


def test_a_running_statistic_that_becomes_infinite_gets_into_no_checkpoint(tmp_path: Path) -> None:
    training = Training(tmp_path, "stop", {})
    statistics: Any = training.module.layers[0].running_var
    training.own = [LambdaCallback(on_train_epoch_end=lambda *_: statistics.fill_(math.inf))]
    with pytest.raises(
        NonfiniteLoss, match=r"weights are NaN or infinite \(layers.0.running_var\)"
    ):
        training.fit()
    assert not list(tmp_path.rglob("*.ckpt"))


@pytest.mark.parametrize("is_late", [False, True], ids=["at once", "late"])
def test_a_model_that_steps_by_itself_and_returns_nothing_is_watched_too(
    tmp_path: Path, is_late: bool
) -> None:
    class Silent(Slope):
        """Returns no loss, as models with two optimizers do."""

        def training_step(self, batch: Any, index: int) -> None:
            super().training_step(batch, index)

    training = Training(tmp_path, "stop", {9: math.nan})
    training.module = Silent(by_hand=True)
    if is_late:
        training.own = [
            LambdaCallback(on_train_start=lambda *_: setattr(watched(training), "_interval", 16))
        ]
    with pytest.raises(NonfiniteLoss, match="epoch 0, step 2, batch 2 is nan"):
        training.fit()
    assert not list(tmp_path.rglob("*.ckpt"))


def assert_all_finite(folder: Path) -> None:
    paths = list(folder.rglob("*.ckpt"))
    assert {"last.ckpt", "best.ckpt"} <= {path.name for path in paths}
    for path in paths:
        state = torch.load(path, weights_only=True)["state_dict"]
        assert all(bool(value.isfinite().all()) for value in state.values())
