"""The help of lightkit and of its commands, from the table.

`help_topics` explains sections, keys and classes.

Apart from it, because this help loads neither torch nor the package that reads configs.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from lightkit.cli.command_line import Command
from lightkit.cli.command_table import COMMANDS, GENERAL, WITH_MODEL

_WIDTH = 100  # columns, of a command that is no stage
_SCREEN = 80  # of a stage, and of lightkit itself
_MAX_NAME = 24  # columns; a longer name pushes its text to the right
_KEYS = {
    "model": "ImageClassifier, Regressor, or my_module.Net",
    "data": "Flowers, FashionMNIST, ..., my_module.Data",
    "model.KEY, data.KEY": "its argument, as --model.backbone=small_cnn",
    "trainer.max_epochs=null": "null: 1000 without max_steps; -1: no end",
    "trainer.gradient_clip_val=null": "longest gradient",
    "trainer.accumulate_grad_batches=1": "batches to a step of the optimizer",
    "trainer.log_every_n_steps=null": "steps between records of metrics; null: 50",
    "trainer.limit_train_batches=null": "batches to an epoch, or a share such as 0.1",
    "trainer.fast_dev_run=false": "one batch of everything, to see if it runs",
    "accelerator": "auto, cpu, gpu or tpu; or the keys below",
    "accelerator.gpus": "2, [0, 3], -1 for all; so too .tpu_cores",
    "accelerator.strategy": "ddp, fsdp, deepspeed, horovod, ...",
    "accelerator.precision": "32-true, bf16-mixed, ...; auto: a rule",
    "launch.engine=null": "local, horovod, torchrun, spark, ray, slurm",
    "launch.processes=null": "number of processes, each with one device",
    "callbacks.NAME": "early_stopping, swa, ...; null takes it out",
    "callbacks.checkpoint.monitor=auto": "metric that decides which epoch is best",
    "logger.NAME": "tensorboard, csv, mlflow, comet, wandb",
    "optimizer, lr_scheduler": "a class: --optimizer=SGD --optimizer.lr=0.1",
    "run.name=null": "name of the job; null: the first file's name",
    "run.root=runs": "folder of all runs",
    "run.resume=auto": "auto, never, latest, or the folder of a run",
    "seed_everything=true": "seed of all random numbers; true: any",
    "ckpt_path=null": "checkpoint to start from: path, last or best",
}
"""Keys that are set often, with their defaults."""
_TRAINING_KEYS = ("trainer.", "callbacks", "optimizer", "run.resume")
_ALWAYS_SHOWN = "trainer.fast_dev_run=false"
_EXPORT_KEYS = ("model", "data", "model.KEY, data.KEY", "run.root=runs", "seed_everything=true")
_TOPICS = """\
  --help SECTION [KEY]   trainer, run, launch, watchdog, gate, sweep,
                         accelerator: keys and defaults
  --help SECTION [CLASS] model, data, callbacks, logger, optimizer,
                         lr_scheduler: classes; the arguments of one, as in
                         --help model my_module.Net
  --help all             everything, as LightningCLI prints it (takes seconds)
"""


def format_general_help() -> str:
    """Write the help of lightkit: its commands and the options that most of them have."""
    commands = "\n".join(f"  {command.name:13}{command.summary}" for command in COMMANDS.values())
    shown = (
        (option.describe(), option.explain()) for option in GENERAL.options if not option.is_hidden
    )
    options = _format_rows(shown, column=21, width=_SCREEN)
    return (
        "usage: lightkit COMMAND [-c FILE]... [--key=value]... [key=value]...\n\n"
        "Train PyTorch Lightning models from layered YAML files.\n\n"
        f"commands:\n{commands}\n\n{options}\nlightkit fit -c lightkit:flowers\n"
    )


def format_command_help(command: Command) -> str:
    """Write the help of a command; of a stage on one screen, with the keys that are set most."""
    if command.name in WITH_MODEL:
        return _format_stage_help(command)
    rows = _list_rows(command)
    parts = [f"usage: {command.usage}", command.about]
    if rows:
        column = min(_MAX_NAME, 2 + max(len(name) for name, _ in rows)) + 2
        parts.append(_format_rows(rows, column=column, width=_WIDTH).rstrip("\n"))
    if command.ending:
        parts.append(command.ending)
    return "\n\n".join(parts) + "\n"


def _format_stage_help(command: Command) -> str:
    options = _format_rows(_list_rows(command), column=25, width=_SCREEN)
    keys = "".join(f"  {key:34}{_KEYS[key]}\n" for key in _choose_keys(command.name))
    return (
        f"usage: {command.usage}\n\n{command.about}\n\noptions:\n{options}{_TOPICS}\n"
        f"keys and defaults; --KEY=VALUE or KEY=VALUE, in a file trainer: {{max_epochs: 3}}\n{keys}"
    )


def _choose_keys(stage: str) -> list[str]:
    if stage == "fit":
        return list(_KEYS)
    if stage == "export":
        return list(_EXPORT_KEYS)
    return [key for key in _KEYS if key == _ALWAYS_SHOWN or not key.startswith(_TRAINING_KEYS)]


def _list_rows(command: Command) -> list[tuple[str, str]]:
    """List what the help shows in columns: inputs, options and keys, each with its text."""
    rows = [(each.name, each.help) for each in command.inputs]
    for option in command.options:
        if not option.is_hidden:
            rows.append((option.describe(), option.explain()))
    rows += [(each.name, each.help) for each in command.keys]
    return rows


def _format_rows(rows: Iterable[tuple[str, str]], *, column: int, width: int) -> str:
    """Write names and texts in two columns, the second of which begins at ``column``."""
    lines = []
    for name, text in rows:
        head = f"  {name}".ljust(column - 1) + " "
        lines += textwrap.wrap(
            text,
            width,
            initial_indent=head,
            subsequent_indent=" " * column,
            break_long_words=False,
            break_on_hyphens=False,
            drop_whitespace=True,
        )
    return "".join(f"{line}\n" for line in lines)
