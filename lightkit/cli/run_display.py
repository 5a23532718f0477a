"""The screen of a recorded run: what is trained, and at the end what came of it."""

from __future__ import annotations

import math
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from pytorch_lightning import LightningDataModule, LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint

from lightkit import runs
from lightkit.callbacks import Checkpoint, PredictionTable
from lightkit.callbacks.descriptions import count_parameters, describe_data, describing
from lightkit.callbacks.prediction_recorder import PredictionRecorder
from lightkit.callbacks.recorder import list_rates
from lightkit.cli.console import OutputMode, print_line
from lightkit.cli.notifications import IN_RETRAIN
from lightkit.cli.session import Session
from lightkit.config import shown_path
from lightkit.reports.class_tables import format_class_tables
from lightkit.reports.facts import contradict
from lightkit.runs.resume import locate_checkpoint


def describe_training(session: Session, trainer: Trainer, module: LightningModule) -> str:
    """Describe what is trained: folder, data, model, hardware and steps, a line each."""
    accelerator = type(trainer.accelerator).__name__.removesuffix("Accelerator")
    devices = "" if trainer.world_size == 1 else f" on {trainer.world_size} devices"
    auto = ", ".join(
        f"{key.rpartition('.')[2]} {str(value).lower() if isinstance(value, bool) else value}"
        for key, value in session.stage_config.hardware.chosen.items()
        if value is not None
    )
    values = {
        "run": shown_path(session.run.folder),
        "data": _describe_source(trainer.datamodule),  # type: ignore[attr-defined]
        "model": _describe_model(module),
        "on": f"{accelerator}{devices}, precision {trainer.precision}",
        "auto": f"{auto} ({session.stage_config.hardware.chosen_by})" if auto else "",
    }
    with describing("the training loader"):
        values["steps"] = _describe_steps(trainer)
    values["best"] = _describe_best_to_come(trainer)
    return "\n".join(f"{name:5} {value}" for name, value in values.items() if value)


def _describe_source(data: LightningDataModule | None) -> str:
    """Describe the data and its splits; empty without a data module."""
    source = type(data).__name__ if data else ""
    facts = describe_data(data)
    counts = facts.get("counts")
    if not isinstance(counts, Mapping):
        return source
    listed = ", ".join(f"{count} {split}" for split, count in counts.items())
    return f"{facts.get('source', source)}: {listed}"


def _describe_model(module: LightningModule) -> str:
    """Describe the class of a model, its backbone, and its parameters."""
    total, trained, is_lazy = count_parameters(module)
    hparams = getattr(module, "hparams", None)
    backbone = hparams.get("backbone") if isinstance(hparams, Mapping) else None
    model = type(module).__name__ + (f" on {backbone}" if backbone else "")
    some = f", {trained:,} of them trained" if trained != total else ""
    some += ", and those of lazy layers" if is_lazy else ""
    return f"{model}: {total:,} parameters{some}"


def _describe_best_to_come(trainer: Trainer) -> str:
    """Return why the newest weights will be the best, where that is known before training.

    Else nothing.
    """
    keeper = trainer.checkpoint_callback
    newest = keeper.explain_newest(trainer) if isinstance(keeper, Checkpoint) else None
    return "" if newest is None else f"the newest weights: {newest}"


def _describe_steps(trainer: Trainer) -> str:
    """Describe steps of an epoch, samples of a step and learning rate.

    All for the number of ranks in use.
    """
    parts = []
    if isinstance(trainer.num_training_batches, int):
        num_steps = -(-trainer.num_training_batches // trainer.accumulate_grad_batches)
        parts.append(f"{num_steps} an epoch")
    loader = trainer.train_dataloader
    holders = (loader, getattr(loader, "batch_sampler", None), getattr(loader, "_loader", None))
    sizes = (getattr(each, "batch_size", None) for each in holders)
    size = next((size for size in sizes if isinstance(size, int)), None)
    if size is not None:
        parts.append(_describe_batch(size, trainer))
    rates = dict.fromkeys(f"{rate:.6g}" for rate in list_rates(trainer))
    if rates:
        parts.append(f"learning rate {', '.join(rates)}")
    return ", ".join(parts)


def _describe_batch(size: int, trainer: Trainer) -> str:
    """Describe the samples of a step by those of a batch, as ``batch 8 x 2 ranks = 16``."""
    factors = {" accumulated": trainer.accumulate_grad_batches, " ranks": trainer.world_size}
    parts = [f"{number}{unit}" for unit, number in factors.items() if number > 1]
    if not parts:
        return f"batch {size}"
    total = size * math.prod(factors.values())
    return f"batch {' x '.join([str(size), *parts])} = {total}"


def print_run_end(trainer: Trainer, session: Session) -> None:
    """Print the metrics of an evaluation, where everything is, and which command comes next."""
    run = session.run
    mode = session.stage_config.mode
    command = session.stage_config.command
    if (
        session.stage_config.images
        or mode not in ("terminal", "plain")
        or not trainer.is_global_zero
    ):
        return
    in_retrain = IN_RETRAIN in os.environ  # which has a closing block of its own
    if command == "fit":
        lines = _list_results(trainer, run, is_script=session.stage_config.is_script)
        lines = (
            [line for line in lines if line.startswith(("best", "note"))] if in_retrain else lines
        )
    else:
        _print_scores(trainer, command, mode)
        if not in_retrain:
            _print_class_tables(trainer, mode)
        lines = _list_places(trainer, run, in_retrain=in_retrain)
    if lines:
        print_line("\n".join(lines), mode)


def _list_places(trainer: Trainer, run: runs.Run, *, in_retrain: bool) -> list[str]:
    """Return where the table of predictions is, if there is one; else where the run is."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, PredictionTable):
            return [f"table {shown_path(callback.path)}"]
    return [] if in_retrain else [f"run   {shown_path(run.folder)}"]


def _print_scores(trainer: Trainer, command: str, mode: OutputMode) -> None:
    values = [f"{name} {float(value):.4g}" for name, value in trainer.callback_metrics.items()]
    if mode == "terminal":
        print_line("\n  ".join([command if values else f"{command}: done", *values]), mode)
    else:
        print_line("  ".join([command, *values]), mode)


def _print_class_tables(trainer: Trainer, mode: OutputMode) -> None:
    width = shutil.get_terminal_size((120, 24)).columns
    logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, PredictionRecorder) and callback.predictions is not None:
            texts = format_class_tables(callback.predictions, width=width)
            found = None
            if texts:
                found = contradict(callback.predictions, logged, num_ranks=trainer.world_size)
            if found is not None:
                print_line(
                    f"note  these tables are of predictions that give {found.predicted:.4g} for"
                    f" {found.metric}; the model may use another threshold or another mean",
                    mode,
                )
            for text in texts:
                print_line(text, mode)


def _list_results(trainer: Trainer, run: runs.Run, *, is_script: bool = False) -> list[str]:
    """List the best checkpoint, the folder, what a tracker has missed.

    Also list the next commands, a line each.
    """
    summary = runs.read_json(run.summary_path) or {}
    lines = []
    if (checkpoint := locate_checkpoint(run, "best")) is not None:
        lines.append(f"best  {shown_path(checkpoint)}{_explain_best(trainer, summary)}")
    lines.append(f"run   {shown_path(run.folder)}")
    lines += [f"note  {text}" for text in _list_notes(trainer, summary)]
    commands = []
    if any(run.checkpoints.glob("*.ckpt")):
        program = ["python", sys.argv[0]] if is_script else ["lightkit"]
        commands.append([*program, "test", "--run", shown_path(run.folder)])
    views = [getattr(logger, "view_command", None) for logger in trainer.loggers]
    commands += [view for view in views if isinstance(view, list)]
    head = "next"
    for words in commands:
        lines.append(f"{head:4}  {shlex.join(words)}")
        head = ""
    return lines


def _list_notes(trainer: Trainer, summary: Mapping[str, Any]) -> Iterator[str]:
    """List why training ended early, notes of callbacks, and what a tracker has missed."""
    if summary.get("stopped_early"):
        yield summary["stopped_early"]
    for text in summary.get("notes") or ():
        if not text.startswith("best.ckpt is the newest"):
            yield text
    for logger in trainer.loggers:
        unsent = getattr(logger, "unsent", 0)
        # Lightning's stand-in of a fast_dev_run has a method of every name
        if isinstance(unsent, int) and unsent:
            yield f"{unsent} records have not reached {type(logger).__name__}"


def _explain_best(trainer: Trainer, summary: Mapping[str, Any]) -> str:
    """Return in brackets what the best checkpoint was chosen by.

    Nothing where a user's callback does not say it.
    """
    best = summary.get("best") or {}
    keeper = trainer.checkpoint_callback
    if best.get("monitor") is None or best.get("value") is None:
        if isinstance(keeper, Checkpoint):
            newest = keeper.explain_newest(trainer)
        else:
            is_newest = isinstance(keeper, ModelCheckpoint) and keeper.monitor is None
            newest = f"{type(keeper).__name__} monitors nothing" if is_newest else None
        return "" if newest is None else f"  (the newest: {newest})"
    row = runs.find_value(summary, "metrics", "best") or {}
    is_epoch_end = "epoch_seconds" in row  # a row of metrics.csv
    where = (
        f"after epoch {best['epoch']}"
        if is_epoch_end
        else f"after step {best['step']}, in epoch {best['epoch']}"
    )
    return f"  ({best['monitor']} {best['value']:.4g} {where})"
