"""`lightkit devices`: what this machine has to train on."""

from __future__ import annotations

import json
from dataclasses import asdict

from lightkit.cli.command_line import Invocation
from lightkit.hardware import Horovod, Machine, find_horovod, this_machine


def devices(invocation: Invocation) -> int:
    """Print a table, or JSON, and return the exit code.

    Args:
        invocation: The command line.
    """
    machine = this_machine()
    horovod = find_horovod()
    if invocation.has("json"):
        print(json.dumps({"schema": 1, **asdict(machine), "horovod": asdict(horovod)}, indent=2))
    else:
        for label, text in _list_rows(machine, horovod):
            print(f"{label:10}{text}")
    return 0


def _list_rows(machine: Machine, horovod: Horovod) -> list[tuple[str, str]]:
    memory = f"{_format_size(machine.memory_bytes)}, {_format_size(machine.memory_available_bytes)} available"
    driver = machine.gpu_driver or "none"
    xla = machine.xla
    gpus = machine.gpus or ()
    counted = f"{len(gpus) or 'none'} that CUDA shows to this process; driver {driver}"
    unknown = "Apple's, as mps" if machine.mps else "some, which only CUDA or ROCm itself can count"
    built = [name for name, is_built in (horovod.built_with or {}).items() if is_built]
    horovod_build = f"built with {', '.join(built) or 'nothing'}" if horovod.problem is None else horovod.problem
    return [
        ("host", f"{machine.host}, {machine.platform}"),
        ("cpu", machine.cpu or "unknown"),
        ("cores", f"{machine.cores or 'unknown'} for this process; {' '.join(machine.instruction_sets)}"),
        ("memory", memory),
        ("gpus", unknown if machine.mps or machine.gpus is None else counted),
        *(("", f"{gpu.index}: {gpu.name}, {_format_size(gpu.memory_bytes)}, {gpu.uuid}") for gpu in gpus),
        ("xla", f"{xla.tpu_chips} TPU chips, {xla.tpu_cores} cores; PJRT_DEVICE {xla.device or 'not set'}"),
        ("", f"torch-xla {xla.version or 'not installed: documentation, page Install'}"),
        ("horovod", f"{horovod.version}, {horovod_build}" if horovod.version else "not installed: make horovod"),
        ("versions", f"Python {machine.python}"),
        *(("", f"{name} {version}") for name, version in machine.versions.items()),
    ]


def _format_size(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else f"{size_bytes / 2**30:.1f} GiB"
