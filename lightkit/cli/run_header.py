"""What a stage says for people when it begins and when it ends."""

from __future__ import annotations

import os
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.trainer.states import TrainerFn

from lightkit import runs
from lightkit.callbacks import PredictionTable, last_block
from lightkit.cli.console import OutputMode, print_line
from lightkit.cli.context import RunContext
from lightkit.config import Hardware, shown_path
from lightkit.runs.resume import locate_checkpoint
from lightkit.runs.retrain_state import RUN_FILE

__all__ = ["RunHeader", "print_run_end"]


class RunHeader(Callback):
    """Say what is about to run: folder, data, model, hardware.

    Args:
        mode: What the screen shows.
        run: The run.
        hardware: What `auto` has come to.
        shows_result: Whether the metrics of a validation or test are printed at its end.
    """

    def __init__(self, mode: OutputMode, run: runs.Run, hardware: Hardware, *, shows_result: bool = True) -> None:
        self._mode = mode
        self._run = run
        self._hardware = hardware
        self._shows_result = shows_result

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say it before the first epoch."""
        if not trainer.is_global_zero:
            return
        print_line(f"run   {shown_path(self._run.folder)}", self._mode)
        if described := _described_data(trainer):
            print_line(f"data  {described}", self._mode)
        print_line(f"model {_described_model(pl_module)}", self._mode)
        print_line(f"on    {_described_hardware(trainer)}", self._mode)
        if chosen := {key: value for key, value in self._hardware.chosen.items() if value is not None}:
            values = ", ".join(f"{key.rpartition('.')[2]} {_shown(value)}" for key, value in chosen.items())
            print_line(f"auto  {values} ({self._hardware.chosen_by})", self._mode)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say what the number of ranks makes of batch and learning rate, once they are known."""
        if trainer.is_global_zero and (described := _described_steps(trainer)):
            print_line(f"steps {described}", self._mode)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the metrics of ``lightkit validate``."""
        if trainer.state.fn == TrainerFn.VALIDATING:
            self._print_result("validate", trainer)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the metrics of ``lightkit test``."""
        self._print_result("test", trainer)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print that predictions are made."""
        self._print_result("predict", trainer)

    def _print_result(self, stage: str, trainer: Trainer) -> None:
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}  # of all ranks
        if not (trainer.is_global_zero and self._shows_result):
            return
        if self._mode == "terminal":
            width = max(map(len, metrics), default=0)
            lines = [f"  {name:<{width}}  {value:.4g}" for name, value in metrics.items()]
            print_line("\n".join([stage if lines else f"{stage}: done", *lines]), self._mode)
        else:
            print_line("  ".join([stage, *(f"{name} {value:.4g}" for name, value in metrics.items())]), self._mode)


def print_run_end(trainer: Trainer, run: runs.Run, session: RunContext) -> None:
    """Print where everything is and which command comes next."""
    if session.inputs:  # told when they were written
        return
    if session.mode not in ("terminal", "plain") or not trainer.is_global_zero:
        return
    in_retrain = RUN_FILE in os.environ  # which has a closing block of its own
    if session.command == "fit":
        best = (runs.read_json(run.summary_path) or {}).get("best") or {}
        block = last_block(
            folder=run.folder,
            best_checkpoint=locate_checkpoint(run, "best"),
            monitor=best.get("monitor"),
            value=best.get("value"),
            epoch=best.get("epoch"),
            commands=_next_commands(trainer, run),
            notices=_unsent(trainer),
        )
        if in_retrain:
            block = "\n".join(line for line in block.splitlines() if line.startswith(("best", "note")))
    else:
        tables = [callback.path for callback in trainer.callbacks if isinstance(callback, PredictionTable)]  # type: ignore[attr-defined]
        block = f"table {shown_path(tables[0])}" if tables else "" if in_retrain else f"run   {shown_path(run.folder)}"
    if block:
        print_line(block, session.mode)


def _next_commands(trainer: Trainer, run: runs.Run) -> list[list[str]]:
    left_a_checkpoint = any(run.checkpoints.glob("*.ckpt"))
    commands = [["lightkit", "test", "--run", shown_path(run.folder)]] if left_a_checkpoint else []
    views = [getattr(logger, "view_command", None) for logger in trainer.loggers]
    return [*commands, *(view for view in views if isinstance(view, list))]


def _unsent(trainer: Trainer) -> list[str]:
    counts = {type(logger).__name__: getattr(logger, "unsent", 0) for logger in trainer.loggers}
    return [
        f"{count} records have not reached {name}"
        for name, count in counts.items()
        if isinstance(count, int) and count  # Lightning's stand-in of a fast_dev_run has a method of every name
    ]


def _described_data(trainer: Trainer) -> str:
    describe = getattr(trainer.datamodule, "describe", None)  # type: ignore[attr-defined]
    if not callable(describe):
        return type(trainer.datamodule).__name__ if trainer.datamodule else ""  # type: ignore[attr-defined]
    said: dict[str, Any] = describe()
    counts = ", ".join(f"{count} {split}" for split, count in said.get("counts", {}).items())
    return f"{said.get('source', type(trainer.datamodule).__name__)}: {counts}"  # type: ignore[attr-defined]


def _described_model(module: LightningModule) -> str:
    total = sum(parameter.numel() for parameter in module.parameters())
    trained = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
    backbone = module.hparams.get("backbone")
    name = type(module).__name__ + (f" on {backbone}" if backbone else "")
    return f"{name}: {total:,} parameters" + (f", {trained:,} of them trained" if trained != total else "")


def _described_steps(trainer: Trainer) -> str:
    """Steps of an epoch, samples of a step and learning rate, all for the number of ranks in use."""
    parts = []
    ranks, accumulated = trainer.world_size, trainer.accumulate_grad_batches
    if isinstance(trainer.num_training_batches, int):
        parts.append(f"{-(-trainer.num_training_batches // accumulated)} an epoch")
    size = _batch_size(trainer)
    if size is not None:
        factors = [str(size)]
        factors += [f"{accumulated} accumulated"] if accumulated > 1 else []
        factors += [f"{ranks} ranks"] if ranks > 1 else []
        total = f" = {size * accumulated * ranks}" if len(factors) > 1 else ""
        parts.append(f"batch {' x '.join(factors)}{total}")
    rates = dict.fromkeys(f"{float(group['lr']):.6g}" for opt in trainer.optimizers for group in opt.param_groups)
    if rates:
        scaled = next((said for c in trainer.callbacks if (said := getattr(c, "described", ""))), "")  # type: ignore[attr-defined]
        parts.append(f"learning rate {', '.join(rates)}{f' ({scaled})' if scaled else ''}")
    return ", ".join(parts)


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _batch_size(trainer: Trainer) -> int | None:
    """Samples of a batch on one rank; None where the loader does not tell."""
    loader = trainer.train_dataloader
    for holder in (loader, getattr(loader, "batch_sampler", None), getattr(loader, "_loader", None)):
        size = getattr(holder, "batch_size", None)
        if isinstance(size, int):
            return size
    return None


def _described_hardware(trainer: Trainer) -> str:
    accelerator = type(trainer.accelerator).__name__.removesuffix("Accelerator")
    each = "" if trainer.world_size == 1 else f" on {trainer.world_size} devices"
    return f"{accelerator}{each}, precision {trainer.precision}"
