"""What the screen shows while Lightning runs: bars on a terminal, plain lines in a pipe."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import ProgressBar, RichProgressBar
from pytorch_lightning.callbacks.progress.rich_progress import RichProgressBarTheme
from pytorch_lightning.trainer.states import TrainerFn
from rich.text import Text

from lightkit.callbacks.recorder import Epoch, EpochMeter

_THEME = RichProgressBarTheme(
    progress_bar="green",
    progress_bar_finished="green",
    progress_bar_pulse="green",
    time="dim",
    processing_speed="dim",
    metrics="cyan",
    metrics_text_delimiter="  ",
    metrics_format=".3g",
)
_MOST_METRICS = 6
_REFRESHES_PER_S = 4  # each takes some milliseconds of a thread beside the training's
_READ_EVERY_S = 1.0
_TELLING = ("train/loss", "val/loss", "val/accuracy")


def progress_for(mode: Literal["terminal", "plain", "quiet", "json"], *, tells_end: bool = True) -> ProgressBar:
    """Give the progress that belongs on a screen of this kind.

    Args:
        mode: Of the screen.
        tells_end: Whether a pipe gets a line when a stage is done, which somebody else may tell.
    """
    if mode == "terminal":
        return RichProgress()
    return PlainProgress(tells_end=tells_end) if mode == "plain" else SilentProgress()


class _EpochWatch(Callback):
    """Measures each epoch, and shows it once everything about it is logged."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._meter = EpochMeter()
        self._chosen: list[str] = []

    def show_epoch(self, trainer: Trainer, epoch: Epoch, names: Sequence[str]) -> None:
        """Show a complete epoch.

        Args:
            trainer: The trainer.
            epoch: What it measured.
            names: The metrics to show.
        """
        raise NotImplementedError

    def show_result(self, stage: str, metrics: Mapping[str, float]) -> None:
        """Show the metrics of a validate or test stage, or that a predict stage is done."""
        raise NotImplementedError

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock of an epoch that is resumed in its middle."""
        super().on_train_start(trainer, pl_module)
        self._meter.start_epoch(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the epoch before, and start the clock."""
        self._flush(trainer)
        self._meter.start_epoch(trainer)
        super().on_train_epoch_start(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the samples."""
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        self._meter.count(batch)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Validation does not count in the throughput of training."""
        super().on_validation_start(trainer, pl_module)
        self._meter.pause()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take what the epoch measured."""
        super().on_train_epoch_end(trainer, pl_module)
        if self._meter.batches:  # Lightning calls this without any when it resumes at an epoch's end
            self._meter.end_epoch(trainer)
            self._chosen = list(trainer.progress_bar_metrics)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the last epoch."""
        self._flush(trainer)
        super().on_train_end(trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the metrics of ``lightkit validate``."""
        super().on_validation_end(trainer, pl_module)
        self._meter.go_on()
        if trainer.state.fn == TrainerFn.VALIDATING:
            self._result("validate", trainer)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the metrics of ``lightkit test``."""
        super().on_test_end(trainer, pl_module)
        self._result("test", trainer)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say that predictions are made."""
        super().on_predict_end(trainer, pl_module)
        self._result("predict", trainer)

    def _flush(self, trainer: Trainer) -> None:
        self._meter.add_late_metrics(trainer)
        epoch = self._meter.take()
        if epoch is not None and trainer.is_global_zero:
            self.show_epoch(trainer, epoch, _worth_showing(epoch.metrics, self._chosen))

    def _result(self, stage: str, trainer: Trainer) -> None:
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        if trainer.is_global_zero:
            self.show_result(stage, metrics)


class SilentProgress(ProgressBar):
    """Shows nothing, and keeps Lightning from adding a bar of its own."""

    def disable(self) -> None:
        """Nothing to do."""

    def enable(self) -> None:
        """Nothing to do."""

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print nothing."""


class PlainProgress(_EpochWatch, ProgressBar):
    """One line an epoch on standard output, for pipes and files: no carriage return, no colour.

    Args:
        tells_end: Whether there is a line with the metrics when a stage is done.
    """

    def __init__(self, *, tells_end: bool = True) -> None:
        super().__init__()
        self._enabled, self._tells_end = True, tells_end

    def disable(self) -> None:
        """Show nothing from here on."""
        self._enabled = False

    def enable(self) -> None:
        """Show lines again."""
        self._enabled = True

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print a line of the model's."""
        self._say(str(kwargs.get("sep") or " ").join(map(str, args)))

    def show_epoch(self, trainer: Trainer, epoch: Epoch, names: Sequence[str]) -> None:
        """Print the line of an epoch."""
        metrics = [f"{name} {epoch.metrics[name]:.3g}" for name in names]
        self._say("  ".join([f"epoch {_count(trainer, epoch.epoch)}", *metrics, *_speed(epoch)]))

    def show_result(self, stage: str, metrics: Mapping[str, float]) -> None:
        """Print the metrics in one line."""
        if self._tells_end:
            self._say("  ".join([stage, *(f"{name} {value:.4g}" for name, value in metrics.items())]))

    def _say(self, line: str) -> None:
        if self._enabled:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


class RichProgress(_EpochWatch, RichProgressBar):
    """Bars on a terminal, above them a table that grows by one row an epoch.

    They move with the time, not with each batch, and the metrics beside them are read from their device once a second.
    """

    def __init__(self) -> None:
        super().__init__(refresh_rate=_REFRESHES_PER_S, theme=_THEME)
        self._columns: list[str] = []
        self._moved_s = self._read_s = -math.inf
        self._left_out: tuple[Any, int] | None = None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Move the bar, where it has not moved for a while."""
        if trainer.is_last_batch:
            self._moved_s = -math.inf
        if time.monotonic() - self._moved_s >= 1 / _REFRESHES_PER_S:
            super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        else:
            self._meter.count(batch)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Move the bar to its end."""
        self._move_to_end()
        super().on_validation_epoch_end(trainer, pl_module)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Move the bar to its end."""
        self._move_to_end()

    def on_predict_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Move the bar to its end."""
        self._move_to_end()

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        """Give what stands beside the bar, without the number that Lightning gives a logger's folder."""
        metrics: dict[str, Any] = dict(super().get_metrics(trainer, pl_module))
        metrics.pop("v_num", None)
        return metrics

    def show_epoch(self, trainer: Trainer, epoch: Epoch, names: Sequence[str]) -> None:
        """Add a row to the table; its head comes again where other metrics are measured."""
        first = f"{_count(trainer, epoch.epoch):>9}"
        width = (self.progress.console.width if self.progress is not None else 80) - 32
        while names and sum(max(len(name), 8) + 2 for name in names) > width:
            names = names[:-1]
        if list(names) != self._columns:
            self._columns = list(names)
            head = "".join(f"  {name:>8}" for name in names)
            self._put(f"{'epoch':>9}{head}  {'time':>8}  {'samples/s':>9}", style="bold")
        cells = "".join(f"  {f'{epoch.metrics[name]:.3g}':>{max(len(name), 8)}}" for name in names)
        time, speed = [*_speed(epoch), ""][:2]
        self._put(f"{first}{cells}  {time:>8}  {speed.removesuffix(' samples/s'):>9}")

    def show_result(self, stage: str, metrics: Mapping[str, float]) -> None:
        """Put the metrics below one another."""
        width = max(map(len, metrics), default=0)
        self._put(f"{stage}: done" if not metrics else stage, style="bold")
        for name, value in metrics.items():
            self._put(f"  {name:<{width}}  {value:.4g}")

    def _put(self, line: str, style: str = "") -> None:
        if self.progress is not None and self.is_enabled:
            self.progress.console.print(Text(line, style=style, no_wrap=True, overflow="ellipsis"))

    def _update(self, progress_bar_id: Any, current: int, visible: bool = True, hard: bool = False) -> None:
        # Lightning 2.6 moves the bar with each batch
        now = time.monotonic()
        if not hard and now - self._moved_s < 1 / _REFRESHES_PER_S:
            self._left_out = progress_bar_id, current
            return
        self._moved_s, self._left_out = now, None
        super()._update(progress_bar_id, current, visible=visible, hard=hard)

    def _move_to_end(self) -> None:
        if self._left_out is not None:
            super()._update(*self._left_out)
        self._left_out = None

    def _update_metrics(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # after each batch in Lightning 2.6, which waits for the device
        now = time.monotonic()
        if trainer.is_last_batch or now - self._read_s >= _READ_EVERY_S:
            self._read_s = now
            super()._update_metrics(trainer, pl_module)

    def _get_train_description(self, current_epoch: int) -> str:
        # Lightning 2.6 counts from 0 up to the last number; here "3/20" is the third of twenty, as in the table.
        return f"{'epoch ' + _count(self.trainer, current_epoch):{len(self.validation_description)}}"


def _count(trainer: Trainer, epoch: int) -> str:
    return f"{epoch + 1}/{trainer.max_epochs}" if (trainer.max_epochs or -1) > 0 else f"{epoch + 1}"


def _speed(epoch: Epoch) -> list[str]:
    speed = epoch.speed.get("samples_per_s")
    return [f"{epoch.seconds:.1f} s", *([] if speed is None else [f"{speed:.0f} samples/s"])]


def _worth_showing(metrics: Mapping[str, float], chosen: Sequence[str]) -> list[str]:
    """What the model logs for its bar, and the losses; all of it where that is nothing. At most six."""
    names = sorted(name for name in metrics if not name.endswith("_step"))
    telling = [name for name in names if name in chosen or name in _TELLING]
    return (telling or names)[:_MOST_METRICS]
