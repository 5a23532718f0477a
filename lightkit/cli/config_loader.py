"""The layers of a command line, laid over one another. No torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from lightkit import config, runs
from lightkit.config.credentials import HIDDEN
from lightkit.config.tree import Leaf, Table
from lightkit.errors import ConfigError
from lightkit.export.metadata import format_of

__all__ = [
    "NAMED_CLASSES",
    "OPTIONS",
    "STAGES",
    "WITH_MODEL",
    "LoadedConfig",
    "load_config",
    "options_of",
    "read_artefact_option",
]

Takes = Literal["value", "switch", "optional"]
STAGES = ("fit", "validate", "test", "predict")
WITH_MODEL = (*STAGES, "export")
"""Commands that build a config's model."""
OPTIONS: dict[str, Takes] = {
    "run": "value",
    "ckpt_path": "value",
    "quiet": "switch",
    "output": "value",
    "print_config": "optional",
    "trust": "switch",
}
"""Options of every stage."""
_FURTHER: dict[str, dict[str, Takes]] = {
    "fit": {"if-changed": "switch", "unchanged-ok": "switch", "deadline": "value"},
    "predict": {"artefact": "value", "contact-sheet": "value", "top-k": "value"},
    "export": {
        "format": "value",
        "with-preprocessing": "switch",
        "input-shape": "value",
        "opset": "value",
        "half": "switch",
        "int8": "switch",
        "num-samples": "value",
        "rtol": "value",
        "atol": "value",
    },
}
"""Options of one command."""
_TAKE_INPUTS = ("predict",)
LIGHTNING = "pytorch_lightning.callbacks."
NAMED_CLASSES = {
    "callbacks": {
        "checkpoint": "lightkit.callbacks.Checkpoint",
        "device_stats": LIGHTNING + "DeviceStatsMonitor",
        "early_stopping": LIGHTNING + "EarlyStopping",
        "ema": LIGHTNING + "EMAWeightAveraging",
        "gradient_accumulation": LIGHTNING + "GradientAccumulationScheduler",
        "lr_finder": LIGHTNING + "LearningRateFinder",
        "lr_monitor": LIGHTNING + "LearningRateMonitor",
        "pruning": LIGHTNING + "ModelPruning",
        "scale_lr": "lightkit.distributed.ScaledLearningRate",
        "slack": "lightkit.callbacks.SlackNotifier",
        "swa": LIGHTNING + "StochasticWeightAveraging",
        "timer": LIGHTNING + "Timer",
        "webhook": "lightkit.callbacks.WebhookNotifier",
    },
    "logger": {
        "comet": "lightkit.loggers.Comet",
        "csv": "lightkit.loggers.CSV",
        "mlflow": "lightkit.loggers.MLflow",
        "tensorboard": "lightkit.loggers.TensorBoard",
    },
}
"""What the name of an entry stands for where the entry has no class_path."""
_DEFAULT_ENTRIES: dict[str, Any] = {"callbacks": {"checkpoint": {}}, "logger": {"tensorboard": {}}}


@dataclass(frozen=True)
class LoadedConfig:
    """A command line and its config.

    Args:
        arguments: The command line, split.
        resolved: The config, before its hardware keys are turned into the trainer's.
        base: Run that `--run` names.
    """

    arguments: config.Arguments
    resolved: config.Resolved
    base: runs.Run | None


def options_of(command: str) -> dict[str, Takes]:
    """Give the options of a command, and whether each takes a value."""
    return {**OPTIONS, **_FURTHER.get(command, {})}


def read_artefact_option(words: Sequence[str]) -> list[str]:
    """Write ``--model FILE`` as ``--artefact=FILE`` where FILE is an exported model: elsewhere it names a class."""
    read: list[str] = []
    for word in words:
        if read and read[-1] == "--model" and format_of(word):
            read[-1] = f"--artefact={word}"
        elif word.startswith("--model=") and format_of(word):
            read.append(f"--artefact={word.removeprefix('--model=')}")
        else:
            read.append(word)
    return read


def load_config(
    command: str,
    words: Sequence[str],
    problems: config.Problems,
    *,
    options: Mapping[str, Takes] | None = None,
    class_sections: Sequence[str] = config.CLASS_SECTIONS,
    subcommands: Sequence[str] = STAGES,
    default_entries: Sequence[str] = ("callbacks", "logger"),
    environ: Mapping[str, str] = os.environ,
) -> LoadedConfig:
    """Read the words after a command and lay all layers that they name.

    Args:
        command: `fit`, `validate`, `test` or `predict`, whose block in a file counts; empty where there is none.
        words: The command line after the command.
        problems: Takes the mistakes, after which the config is what is left.
        options: Its options, and whether each takes a value; those of the command if None.
        class_sections: Top-level keys that hold one class each.
        subcommands: All commands.
        default_entries: Sections that get an entry of lightkit's own: the checkpoint, and a logger where there is none.
        environ: Environment variables.

    Raises:
        ConfigError: If `--run` names no run.
    """
    arguments = config.split_arguments(
        read_artefact_option(words) if command == "predict" else words,
        options=options_of(command) if options is None else options,
        takes_inputs=command in _TAKE_INPUTS,
        problems=problems,
    )

    def resolve(defaults: dict[str, Any], below: Sequence[Path] = ()) -> config.Resolved:
        return config.resolve(
            [*below, *map(Path, arguments.files)],
            flags=arguments.flags,
            environ=environ,
            defaults=defaults,
            subcommand=command,
            subcommands=subcommands,
            class_sections=class_sections,
            default_classes=NAMED_CLASSES,
            problems=problems,
        )

    if command == "predict" and not (arguments.files or "run" in arguments.options):
        arguments.options |= _run_of_weights(arguments)
    if "run" in arguments.options:
        base = _base_run(command, str(arguments.options["run"]), resolve({}).values.get("run") or {})
        resolved = _without_addresses(resolve({}, [base.config_path]))  # complete: no defaults of this version to add
        return LoadedConfig(arguments, resolved, base)
    defaults = {section: _DEFAULT_ENTRIES[section] for section in default_entries}
    resolved = resolve({section: entry for section, entry in defaults.items() if section != "logger"})
    if "logger" in defaults and not _has_logger(resolved.values):
        resolved = resolve(defaults)
    return LoadedConfig(arguments, resolved, None)


def _run_of_weights(arguments: config.Arguments) -> dict[str, str | bool]:
    """Name the run in whose ``export/`` the weights of ``--model`` are: by their place, never by what they say.

    Raises:
        ConfigError: If they are elsewhere, and no key says which module they are for.
    """
    artefact = str(arguments.options.get("artefact", ""))
    if format_of(artefact) != "safetensors":
        return {}
    folder = Path(artefact).resolve().parent
    if folder.name == "export" and (folder.parent / "config.yaml").is_file():
        return {"run": str(folder.parent)}
    if any(flag.key.partition(".")[0] == "model" for flag in arguments.flags):
        return {}
    raise ConfigError(f"--model {artefact}: this file has weights alone; say which module they are for: --run or -c.")


def _base_run(command: str, reference: str, section: Mapping[str, Any]) -> runs.Run:
    """Find the run that `--run` names, below the root and for the job that the other layers name."""
    if command == "fit":
        raise ConfigError("fit takes no --run; to go on in a run's folder, say --run.resume=RUN")
    run = runs.find(reference, section.get("root") or "runs", section.get("name"))
    if not run.config_path.is_file():
        raise ConfigError(f"--run {reference}: {run.folder} has no {run.config_path.name}; it is not a run of lightkit")
    return run


def _without_addresses(resolved: config.Resolved) -> config.Resolved:
    """Leave out the addresses that a run's training reported to, where the run does not know them any more."""
    callbacks = resolved.tree.entries.get("callbacks")
    names = callbacks.entries if isinstance(callbacks, Table) else ()
    tree = _without_hidden(resolved.tree, ("run", "heartbeat_url"))
    for name in names:
        tree = _without_hidden(tree, ("callbacks", name, "init_args", "webhook_url"))
    return replace(resolved, tree=tree)


def _without_hidden(table: Table, path: config.KeyPath) -> Table:
    """Put null in the place of a value that a run does not keep."""
    key, rest = path[0], path[1:]
    node = table.entries.get(key)
    if rest and isinstance(node, Table):
        return replace(table, entries={**table.entries, key: _without_hidden(node, rest)})
    if not rest and isinstance(node, Leaf) and node.value == HIDDEN:
        return replace(table, entries={**table.entries, key: Leaf(None, node.origin)})
    return table


def _has_logger(values: dict[str, Any]) -> bool:
    trainer = values.get("trainer") or {}
    return bool(values.get("logger")) or (
        isinstance(trainer, dict) and trainer.get("logger") not in (None, True, "true")
    )
