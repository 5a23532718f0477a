"""What a config comes to on this machine: its launch and its hardware, and all that is wrong with it. No torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial

from lightkit import config
from lightkit.cli.config_loader import STAGES, LoadedConfig
from lightkit.cli.resume import limit_to_this_machine
from lightkit.config import Hardware
from lightkit.config.loader import collect_errors, drop_paths
from lightkit.hardware import this_machine
from lightkit.launch import LaunchSettings, check_engine, read_settings, read_watchdog, this_rank
from lightkit.registry.gate import read_gate

__all__ = ["ResolvedSettings", "resolve_settings"]


@dataclass(frozen=True)
class ResolvedSettings:
    """A config on this machine.

    Args:
        hardware: What the hardware keys came to.
        launch: The config's `launch` block.
    """

    hardware: Hardware
    launch: LaunchSettings


def resolve_settings(command: str, laid: LoadedConfig, problems: config.Problems) -> ResolvedSettings:
    """Turn hardware keys into the trainer's and check the launch; what is wrong is told and left out.

    Args:
        command: `fit`, `validate`, `test` or `predict`; others launch nothing.
        laid: The command line and its config.
        problems: Takes the mistakes.
    """
    resolved = drop_paths(laid.resolved, laid.resolved.unresolved)
    if laid.base is not None:
        alone, resolved = collect_errors(
            resolved, partial(limit_to_this_machine, saved=laid.base.config_path), problems
        )
        resolved = alone or resolved
    _, resolved = collect_errors(
        resolved, read_settings, problems
    )  # a mistake in it is told before anybody reckons with it
    _, resolved = collect_errors(resolved, read_watchdog, problems)
    _, resolved = collect_errors(resolved, read_gate, problems)
    machine = None if command == "export" else this_machine()  # it runs on one CPU, wherever the model was trained
    read_hardware = partial(config.resolve_hardware, machine=machine, environ=os.environ)
    hardware, resolved = collect_errors(resolved, read_hardware, problems)
    if hardware is None:
        return ResolvedSettings(Hardware(resolved), LaunchSettings())
    launch, _ = collect_errors(hardware.resolved, read_settings, problems)
    if launch is not None and command in STAGES and this_rank(os.environ) is None:  # else the launcher has decided
        with problems.noted():
            check_engine(launch, hardware.resolved, strategy=hardware.strategy)
    return ResolvedSettings(hardware, launch or LaunchSettings())
