"""The one screen of a stage's help, 80 columns wide: its options, and the keys that are set most."""

from __future__ import annotations

from typing import Any, NamedTuple

from lightkit.cli.help.own_options import OWN_OPTIONS

__all__ = ["KEYS", "NO_DEFAULT", "Key", "screen"]

NO_DEFAULT = object()
_WORDS_WIDTH = 34  # columns of what is typed, before what it says


class Key(NamedTuple):
    """A key that is set often.

    Args:
        name: The key, from the top of a config.
        says: What it sets, in a few words.
        default: Its default, where it has one.
    """

    name: str
    says: str
    default: Any = NO_DEFAULT


KEYS = (
    Key("model", "ImageClassifier, Regressor, or my_module.Net"),
    Key("data", "Flowers, FashionMNIST, ..., my_module.Data"),
    Key("model.KEY, data.KEY", "its argument, as --model.backbone=small_cnn"),
    Key("trainer.max_epochs", "null: 1000 without max_steps; -1: no end", None),
    Key("trainer.gradient_clip_val", "longest gradient", None),
    Key("trainer.accumulate_grad_batches", "batches to a step of the optimizer", 1),
    Key("trainer.log_every_n_steps", "steps between records of metrics; null: 50", None),
    Key("trainer.limit_train_batches", "batches to an epoch, or a share such as 0.1", None),
    Key("trainer.fast_dev_run", "one batch of everything, to see if it runs", False),
    Key("accelerator", "auto, cpu, gpu or tpu; or the keys below"),
    Key("accelerator.gpus", "2, [0, 3], -1 for all; so too .tpu_cores"),
    Key("accelerator.strategy", "ddp, fsdp, deepspeed, horovod, ..."),
    Key("accelerator.precision", "32-true, bf16-mixed, ..., or auto: measured"),
    Key("launch.engine", "local, horovod, torchrun, spark, ray, slurm", None),
    Key("launch.processes", "number of processes, each with one device", None),
    Key("callbacks.NAME", "early_stopping, swa, ...; null takes it out"),
    Key("callbacks.checkpoint.monitor", "metric that decides which epoch is best", "auto"),
    Key("logger.NAME", "tensorboard, csv, mlflow, comet"),
    Key("optimizer, lr_scheduler", "a class: --optimizer=SGD --optimizer.lr=0.1"),
    Key("run.name", "name of the job; null: the last file's name", None),
    Key("run.root", "folder of all runs", "runs"),
    Key("run.resume", "auto, never, or a run's folder to go on in", "auto"),
    Key("seed_everything", "seed of all random numbers; true: any", True),
    Key("ckpt_path", "checkpoint to start from: path, last or best", None),
)
"""What the screen shows, in its order; a test holds names and defaults against the classes themselves."""

_USAGE = """\
usage: lightkit {command} {inputs}[-c FILE]... [--KEY=VALUE]... [KEY=VALUE]...

{does}.

"""
_DEEPER = """\
  --help SECTION [KEY]   trainer, run, launch, watchdog, gate, accelerator: keys
                         and defaults
  --help SECTION [CLASS] model, data, callbacks, logger, optimizer,
                         lr_scheduler: classes; the arguments of one, as in
                         --help model my_module.Net
  --help all             everything, as LightningCLI prints it (takes seconds)
"""


_INPUTS = {"predict": "[IMAGES]... "}
_WITH_OWN_RUN = ("fit", "export")
_OF_A_RUN = "the run's events"
_EVENTS = {"export": "each step and the proof"}
_OF_AN_EXPORT = ("model", "data", "model.KEY, data.KEY", "run.root", "seed_everything")


def screen(command: str, does: str) -> str:
    """Give the help of a stage.

    Args:
        command: Its name.
        does: What it does.
    """
    own = OWN_OPTIONS.get(command, ())
    options = [
        *own,
        ("-c FILE", "a layer of the config; later ones win over earlier ones"),
        *([] if command in _WITH_OWN_RUN else [("--run RUN", "a run folder, or latest; needs no -c")]),
        ("--print_config", "print the resolved config and stop"),
        ("--trust", "let checkpoints and weights run code as they load"),
        ("--quiet", "print warnings and errors only"),
        ("--output json", f"print {_EVENTS.get(command, _OF_A_RUN)}, one JSON object a line"),
    ]
    lines = [f"  {words:21}  {says}" for words, says in options]
    keys = [f"  {_typed(key):{_WORDS_WIDTH}}{key.says}" for key in KEYS if _applies(key, command)]
    heading = "keys and defaults; --KEY=VALUE or KEY=VALUE, in a file trainer: {max_epochs: 3}"
    usage = _USAGE.format(command=command, inputs=_INPUTS.get(command, ""), does=f"{does[0].upper()}{does[1:]}")
    return f"{usage}options:\n" + "\n".join([*lines, _DEEPER.rstrip(), "", heading, *keys]) + "\n"


def _applies(key: Key, command: str) -> bool:
    """Tell whether a key does anything in a stage."""
    training = ("trainer.", "callbacks", "optimizer", "run.resume")
    if command == "export":
        return key.name in _OF_AN_EXPORT
    return command == "fit" or not key.name.startswith(training) or key.name == "trainer.fast_dev_run"


def _typed(key: Key) -> str:
    words = {None: "null", True: "true", False: "false"}
    default = key.default
    if default is NO_DEFAULT:
        return key.name
    return f"{key.name}={words[default] if default is None or isinstance(default, bool) else default}"
