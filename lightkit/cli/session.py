"""One invocation: its arguments, its config, and what must be undone at its end. No torch yet."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lightkit import config, runs
from lightkit.cli.joining import Seat, seat_of
from lightkit.cli.resuming import checkpoint_of, on_this_machine
from lightkit.cli.screen import Mode, choose_mode
from lightkit.config import Hardware
from lightkit.errors import ConfigError
from lightkit.launch import LaunchSettings, check_engine, read_settings, this_rank
from lightkit.machine import this_machine
from lightkit.runs.signals import SignalWatch

__all__ = ["OPTIONS", "STAGES", "Session", "open_session"]

STAGES = ("fit", "validate", "test", "predict")
OPTIONS: dict[str, Literal["value", "switch", "optional"]] = {
    "run": "value",
    "ckpt_path": "value",
    "quiet": "switch",
    "output": "value",
    "print_config": "optional",
}
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
        "swa": LIGHTNING + "StochasticWeightAveraging",
        "timer": LIGHTNING + "Timer",
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


@dataclass
class Session:
    """What a stage needs to know about its invocation.

    Args:
        command: `fit`, `validate`, `test` or `predict`.
        words: The command line after the command.
        resolved: The config.
        ckpt_path: Checkpoint that the user names: a path, `last`, `best`, or nothing.
        base: Run that `--run` names.
        mode: What the screen shows.
        watch: Handler of SIGINT and SIGTERM.
        passthrough: Arguments that only print help.
        print_config: What to leave out of the config that is printed instead of a run: `skip_default`, `skip_unset`
            or `skip_null`, the first two as in LightningCLI; None runs the stage.
        hardware: What the hardware keys came to.
        launch: The config's `launch` block.
        seat: This process's place among several ranks, if it is one of them.
        stack: Closed at the end of the invocation: lock, current run.
    """

    command: str
    words: list[str]
    resolved: config.Resolved
    ckpt_path: str | None
    base: runs.Run | None
    mode: Mode
    watch: SignalWatch
    passthrough: list[str]
    print_config: tuple[str, ...] | None = None
    hardware: Hardware = field(kw_only=True)
    launch: LaunchSettings = field(default_factory=LaunchSettings)
    seat: Seat | None = None
    stack: ExitStack = field(default_factory=ExitStack)

    def environment_digest(self, salt: str) -> str:
        """Tell apart, without showing them, the values that came from the environment.

        Args:
            salt: Anything that differs from run to run, so that equal values do not look equal.
        """
        values = sorted(
            (config.dotted(path), str(_at(self.resolved.values, path))) for path in self.resolved.references
        )
        return hashlib.sha256(json.dumps([salt, *values]).encode()).hexdigest()

    def tell(self, text: str) -> None:
        """Say something on standard error that the user did not ask for but should know."""
        logging.getLogger("lightkit").info(text)

    @property
    def default_name(self) -> str:
        """Name of the job where the config has none: that of the run in hand, or of the last config file."""
        if self.base is not None:
            return self.base.name
        files = config.split_arguments(self.words, options=OPTIONS).files
        return Path(files[-1]).stem if files else "default"


def open_session(
    command: str,
    words: Sequence[str],
    watch: SignalWatch,
    *,
    class_sections: Sequence[str] = config.CLASS_SECTIONS,
    subcommands: Sequence[str] = STAGES,
    default_entries: Sequence[str] = ("callbacks", "logger"),
) -> Session:
    """Read the arguments and lay all layers over one another.

    Args:
        command: `fit`, `validate`, `test` or `predict`; empty where a script runs no command.
        words: The command line after the command.
        watch: Handler of SIGINT and SIGTERM.
        class_sections: Top-level keys that hold one class each.
        subcommands: All commands.
        default_entries: Sections that get an entry of lightkit's own: the checkpoint, and a logger where there is none.

    Raises:
        ConfigError: If anything in them is wrong.
    """
    arguments = config.split_arguments(words, options=OPTIONS)
    options = arguments.options

    def resolve(defaults: dict[str, Any], below: Sequence[Path] = ()) -> config.Resolved:
        return config.resolve(
            [*below, *map(Path, arguments.files)],
            flags=arguments.flags,
            defaults=defaults,
            subcommand=command,
            subcommands=subcommands,
            class_sections=class_sections,
            default_classes=NAMED_CLASSES,
        )

    base = None
    if "run" in options:
        base = _base_run(command, str(options["run"]), resolve({}).values.get("run") or {})
        resolved = resolve({}, [base.config_path])  # it is complete: defaults of this version must not add to it
    else:
        defaults = {section: _DEFAULT_ENTRIES[section] for section in default_entries}
        resolved = resolve({section: entry for section, entry in defaults.items() if section != "logger"})
        if "logger" in defaults and not _has_logger(resolved.values):
            resolved = resolve(defaults)
    try:
        if base is not None:
            resolved = on_this_machine(resolved, base.config_path)
        read_settings(resolved)  # a mistake in it is told before anybody reckons with it
        hardware = config.resolve_hardware(resolved, this_machine(), environ=os.environ)
        launch = read_settings(hardware.resolved)
        if command in STAGES and this_rank(os.environ) is None:  # else the launcher has decided
            check_engine(launch, hardware.resolved, strategy=hardware.strategy)
    except ConfigError as error:
        raise ConfigError(resolved.masked(str(error))) from error
    resolved = hardware.resolved
    ckpt_path = options.get("ckpt_path", resolved.values.get("ckpt_path"))
    if ckpt_path is None and base is not None:
        ckpt_path = "best"
    return Session(
        command=command,
        words=list(words),
        resolved=resolved,
        ckpt_path=str(checkpoint_of(base, str(ckpt_path))) if base else (str(ckpt_path) if ckpt_path else None),
        base=base,
        mode=choose_mode(options, sys.stdout),
        watch=watch,
        passthrough=arguments.passthrough,
        print_config=_print_flags(options.get("print_config")),
        hardware=hardware,
        launch=launch,
        seat=seat_of(os.environ, (resolved.values.get("run") or {}).get("root") or "runs") if command else None,
    )


def _print_flags(said: str | bool | None) -> tuple[str, ...] | None:
    if said is None:
        return None
    flags = tuple(said.split(",")) if isinstance(said, str) and said else ()
    known = ("skip_default", "skip_null", "skip_unset")
    if unknown := [flag for flag in flags if flag not in known]:
        raise ConfigError(f"--print_config: expected {', '.join(known)}, got {unknown[0]!r}")
    return flags


def _base_run(command: str, reference: str, section: Mapping[str, Any]) -> runs.Run:
    """Find the run that `--run` names, below the root and for the job that the other layers name."""
    if command == "fit":
        raise ConfigError("fit takes no --run; to go on in a run's folder, say --run.resume=RUN")
    run = runs.find(reference, section.get("root") or "runs", section.get("name"))
    if not run.config_path.is_file():
        raise ConfigError(f"--run {reference}: {run.folder} has no {run.config_path.name}; it is not a run of lightkit")
    return run


def _at(values: Any, path: config.KeyPath) -> Any:
    for part in path:
        values = values[part]
    return values


def _has_logger(values: dict[str, Any]) -> bool:
    trainer = values.get("trainer") or {}
    return bool(values.get("logger")) or (
        isinstance(trainer, dict) and trainer.get("logger") not in (None, True, "true")
    )
