"""The screen of a run: bars on a terminal, plain lines in a pipe, and the closing block."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import ProgressBar
from pytorch_lightning.trainer.states import RunningStage
from rich.console import Console
from rich.progress import BarColumn, Progress, Task, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from lightkit.callbacks.recorder import Epoch, find_unit
from lightkit.runs.metrics import STEP_SUFFIX, is_of_last_step

_MOST_METRICS = 6
_BAR_WIDTH = 20
_REFRESHES_PER_S = 4  # each takes some milliseconds of the training
_READ_EVERY_S = 1.0  # metrics: the training waits for the device then
_BARS: Mapping[Any, tuple[str, str]] = {
    RunningStage.SANITY_CHECKING: ("sanity check", "num_sanity_val_batches"),
    RunningStage.VALIDATING: ("validation", "num_val_batches"),
    RunningStage.TESTING: ("test", "num_test_batches"),
    RunningStage.PREDICTING: ("predict", "num_predict_batches"),
}
"""Names of the bars besides that of training, and the trainer's attributes with their totals, by
loader."""
_ALWAYS_SHOWN = ("train/loss", "val/loss", "val/accuracy")


def create_progress(mode: Literal["terminal", "plain", "quiet", "json"]) -> ProgressBar:
    """Make the progress for a kind of screen."""
    return {"terminal": RichProgress, "plain": PlainProgress}.get(mode, SilentProgress)()


class SilentProgress(ProgressBar):
    """Shows nothing, and keeps Lightning from adding a bar of its own."""

    _enabled = True

    def disable(self) -> None:
        """Show nothing from here on."""
        self._enabled = False

    def enable(self) -> None:
        """Show progress again."""
        self._enabled = True

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print a line of the model's, as far as there is progress."""
        self.put(str(kwargs.get("sep") or " ").join(map(str, args)))

    def put(self, line: str, style: str = "") -> None:
        """Print nothing."""


class PlainProgress(SilentProgress):
    """One line an epoch on standard output, for pipes and files: no carriage return, no colour."""

    def on_epoch_recorded(self, trainer: Trainer, epoch: Epoch) -> None:
        """Print the line of an epoch."""
        metrics = [f"{name} {epoch.metrics[name]:.3g}" for name in _choose_metrics(trainer, epoch)]
        self.put(
            "  ".join([f"epoch {_count(trainer, epoch.epoch)}", *metrics, *_speed(trainer, epoch)])
        )

    def put(self, line: str, style: str = "") -> None:
        """Print a line."""
        if self._enabled:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


class RichProgress(SilentProgress):
    """One line with a bar on a terminal, above it a table that grows by one row an epoch.

    The bar moves four times a second at most, and its metrics are read from their device once a
    second. Beside it is the time left for all epochs, or for all batches of an evaluation; what the
    line has no room for is left out. The bar is removed at the end, so that the table and what
    follows it stay.
    """

    def __init__(self) -> None:
        super().__init__()
        self._progress: Progress | None = None
        self._bars: dict[str, TaskID] = {}
        # moment, and the part that was done then
        self._began: dict[str, tuple[float, float | None]] = {}
        self._columns: list[str] = []
        self._metrics: dict[str, float] = {}
        self._moved_s = self._read_s = -math.inf

    def on_epoch_recorded(self, trainer: Trainer, epoch: Epoch) -> None:
        """Add a row to the table; its head comes again where other metrics are measured."""
        names = _choose_metrics(trainer, epoch)
        width = (80 if self._progress is None else self._progress.console.width) - 38
        while names and sum(max(len(name), 8) + 2 for name in names) > width:
            names = names[:-1]
        if names != self._columns:
            self._columns = names
            head = "".join(f"  {name:>8}" for name in names)
            self.put(
                f"{'epoch':>14}{head}  {'time':>8}  {f'{find_unit(trainer)}/s':>10}", style="bold"
            )
        cells = "".join(f"  {f'{epoch.metrics[name]:.3g}':>{max(len(name), 8)}}" for name in names)
        seconds, speed = [*_speed(trainer, epoch), ""][:2]
        first = f"{_count(trainer, epoch.epoch):>14}"
        self.put(f"{first}{cells}  {seconds:>8}  {speed.partition(' ')[0]:>10}")

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin the bar of an epoch."""
        self._open(
            "train", f"epoch {_count(trainer, trainer.current_epoch)}", self.total_train_batches
        )

    on_train_start = on_train_epoch_start  # of a fit that is resumed within an epoch

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Move the bar."""
        now = time.monotonic()
        if trainer.is_last_batch or now - self._read_s >= _READ_EVERY_S:
            self._read_s = now
            self._metrics = trainer.progress_bar_metrics
        self._move("train", batch_idx + 1, is_last=trainer.is_last_batch)

    def on_validation_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Begin the bar of a loader."""
        bar, num_batches = _BARS[trainer.state.stage]
        if batch_idx == 0:
            self._open(bar, bar, getattr(trainer, num_batches)[dataloader_idx])

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        """Move the bar."""
        self._move(_BARS[trainer.state.stage][0], batch_idx + 1)

    on_test_batch_start = on_predict_batch_start = on_validation_batch_start
    on_test_batch_end = on_predict_batch_end = on_validation_batch_end

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remove the bar."""
        if (
            self._progress is not None
            and (bar := self._bars.pop(_BARS[trainer.state.stage][0], None)) is not None
        ):
            self._progress.remove_task(bar)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Remove all bars."""
        if self._progress is not None:
            self._progress.stop()
        self._progress = None
        self._bars = {}

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Remove all bars."""
        self.teardown(trainer, pl_module, "fit")

    def put(self, line: str, style: str = "") -> None:
        """Print a line above the bar."""
        if self._progress is not None:
            self._progress.console.print(Text(line, style=style, no_wrap=True, overflow="ellipsis"))

    def _open(self, bar: str, description: str, total: float) -> None:
        """Begin a bar, or begin it again."""
        if not self._enabled:
            return
        if self._progress is None:
            self._progress = Progress(
                TextColumn(
                    "{task.description:10}", markup=False, table_column=Column(no_wrap=True)
                ),
                BarColumn(
                    _BAR_WIDTH, complete_style="green", finished_style="green", pulse_style="green"
                ),
                TextColumn(
                    "{task.fields[text]}",
                    markup=False,
                    table_column=Column(no_wrap=True, overflow="ellipsis"),
                ),
                console=Console(),
                auto_refresh=False,
                transient=True,
            )
            self._progress.start()
        known = total if math.isfinite(total) else None
        if bar in self._bars:
            self._progress.reset(self._bars[bar], total=known, description=description, text="")
        else:
            self._began[bar] = time.monotonic(), self._share(bar, 0, known)
            self._bars[bar] = self._progress.add_task(description, total=known, text="")
        self._move(bar, 0)

    def _move(self, bar: str, done: int, *, is_last: bool = False) -> None:
        now = time.monotonic()
        if self._progress is None or not (is_last or now - self._moved_s >= 1 / _REFRESHES_PER_S):
            return
        self._moved_s = now
        self._progress.update(self._bars[bar], completed=done)
        task = next(each for each in self._progress.tasks if each.id == self._bars[bar])
        parts = self._describe_task(bar, done, task, now)
        room = self._progress.console.width - max(10, len(task.description)) - _BAR_WIDTH - 2
        while parts[1:] and len("  ".join(parts)) > room:
            parts.pop()
        self._progress.update(self._bars[bar], text="  ".join(parts))
        self._progress.refresh()

    def _describe_task(self, bar: str, done: int, task: Task, now: float) -> list[str]:
        """List the texts next to a bar, the most important first.

        Batches, time that is left, speed and metrics.
        """
        parts = [f"{done}" if task.total is None else f"{done}/{task.total:.0f}"]
        began_s, first = self._began[bar]
        share = self._share(bar, done, task.total)
        if first is not None and share is not None and share > first:
            left_s = round((now - began_s) * (1 - share) / (share - first))
            parts.append(f"{timedelta(seconds=left_s)} left")
        if task.speed:
            parts.append(f"{task.speed:.3g} batches/s")
        if bar == "train":
            parts += [
                f"{name} {value:.3g}" for name, value in self._metrics.items() if name != "v_num"
            ]
        return parts

    def _share(self, bar: str, done: int, total: float | None) -> float | None:
        """Compute the part of the work that is done, of a fit that of all its epochs.

        None if it is unknown.
        """
        if not total:
            return None
        max_epochs = (self.trainer.max_epochs or -1) if bar == "train" else 1
        before = self.trainer.current_epoch if bar == "train" else 0
        return (before + done / total) / max_epochs if max_epochs > 0 else None


def _choose_metrics(trainer: Trainer, epoch: Epoch) -> list[str]:
    """Choose what the model logs for its bar, and the losses; all of it where that is nothing.

    The value of a step is left out where there is one of the epoch.
    """
    found = epoch.metrics
    names = sorted(
        name for name in found if not name.endswith(STEP_SUFFIX) or is_of_last_step(name, found)
    )
    wanted = {*trainer.progress_bar_metrics, *_ALWAYS_SHOWN}
    chosen = [name for name in names if name in wanted or name.removesuffix(STEP_SUFFIX) in wanted]
    return (chosen or names)[:_MOST_METRICS]


def _count(trainer: Trainer, epoch: int) -> str:
    return (
        f"{epoch} ({epoch + 1} of {trainer.max_epochs})"
        if (trainer.max_epochs or -1) > 0
        else f"{epoch}"
    )


def _speed(trainer: Trainer, epoch: Epoch) -> list[str]:
    speed = epoch.speed.get("samples_per_s")
    rate = [] if speed is None else [f"{speed:.0f} {find_unit(trainer)}/s"]
    return [f"{epoch.speed['epoch_seconds']:.1f} s", *rate]
