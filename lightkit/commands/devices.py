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
    """List the rows of the table, each with its label.

    It is empty in rows that go on with the one above.
    """
    memory = (
        f"{_format_size(machine.memory_bytes)},"
        f" {_format_size(machine.memory_available_bytes)} available"
    )
    rows = [
        ("host", f"{machine.host}, {machine.platform}"),
        ("cpu", machine.cpu or "unknown"),
        (
            "cores",
            f"{machine.cores or 'unknown'} for this process; {' '.join(machine.instruction_sets)}",
        ),
        ("memory", memory),
        ("gpus", _describe_gpus(machine)),
    ]
    for gpu in machine.gpus or ():
        rows.append(("", f"{gpu.index}: {gpu.name}, {_format_size(gpu.memory_bytes)}, {gpu.uuid}"))
    xla = machine.xla
    rows += [
        (
            "xla",
            (
                f"{xla.tpu_chips} TPU chips, {xla.tpu_cores} cores; PJRT_DEVICE"
                f" {xla.device or 'not set'}"
            ),
        ),
        ("", f"torch-xla {xla.version or 'not installed: documentation, page Install'}"),
        ("horovod", _describe_horovod(horovod)),
        ("versions", f"Python {machine.python}"),
    ]
    for name, version in machine.versions.items():
        rows.append(("", f"{name} {version}"))
    return rows


def _describe_gpus(machine: Machine) -> str:
    """Describe how many GPUs there are, and the driver."""
    if machine.mps:
        return "Apple's, as mps"
    if machine.gpus is None:
        return "some, which only CUDA or ROCm itself can count"
    return (
        f"{len(machine.gpus) or 'none'} that CUDA shows to this process; driver"
        f" {machine.gpu_driver or 'none'}"
    )


def _describe_horovod(horovod: Horovod) -> str:
    """Describe Horovod's version and the libraries it was built with, or why it cannot be used."""
    if not horovod.version:
        return "not installed: make horovod"
    if horovod.problem is not None:
        return f"{horovod.version}, {horovod.problem}"
    built = [name for name, is_built in (horovod.built_with or {}).items() if is_built]
    return f"{horovod.version}, built with {', '.join(built) or 'nothing'}"


def _format_size(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else f"{size_bytes / 2**30:.1f} GiB"
