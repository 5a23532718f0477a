"""`lightkit devices`: what this machine has to train on."""

from __future__ import annotations

import json
from dataclasses import asdict

from lightkit.cli.command_line import parse_options
from lightkit.hardware import Horovod, Machine, find_horovod, this_machine

HELP = """\
usage: lightkit devices [--json]

Print what this machine has to train on: cores and instruction sets, memory, CUDA devices, XLA devices, what Horovod was
built with, and versions. CUDA_VISIBLE_DEVICES and PJRT_DEVICE count.

  --json   one JSON object
"""


def devices(args: list[str]) -> int:
    """Print a table, or JSON, and return the exit code.

    Args:
        args: The command line after the command.

    Raises:
        ConfigError: If a word is no option of this command.
    """
    line = parse_options(HELP, args)
    machine, horovod = this_machine(), find_horovod()
    if "--json" in line.options:
        print(json.dumps({"schema": 1, **asdict(machine), "horovod": asdict(horovod)}, indent=2))
    else:
        for label, text in _list_rows(machine, horovod):
            print(f"{label:10}{text}")
    return 0


def _list_rows(machine: Machine, horovod: Horovod) -> list[tuple[str, str]]:
    cores = "unknown" if machine.cores is None else str(machine.cores)
    return [
        ("host", f"{machine.host}, {machine.platform}"),
        ("cpu", machine.cpu or "unknown"),
        ("cores", f"{cores} for this process; {' '.join(machine.instruction_sets) or 'no known instruction sets'}"),
        ("memory", f"{_format_size(machine.memory_bytes)}, {_format_size(machine.memory_available_bytes)} available"),
        *_list_gpus(machine),
        ("xla", _describe_xla(machine)),
        ("horovod", _describe_horovod(horovod)),
        ("versions", f"Python {machine.python}"),
        *[("", f"{name} {version}") for name, version in machine.versions.items()],
    ]


def _list_gpus(machine: Machine) -> list[tuple[str, str]]:
    if machine.mps:
        return [("gpus", "Apple's, as mps")]
    if machine.gpus is None:
        return [("gpus", "there are some, which only CUDA or ROCm itself can count")]
    if not machine.gpus:
        driver = f"; driver {machine.gpu_driver}" if machine.gpu_driver else ", or no driver for them"
        return [("gpus", f"none that CUDA shows to this process{driver}")]
    rows = [("", f"{gpu.index}: {gpu.name}, {_format_size(gpu.memory_bytes)}, {gpu.uuid}") for gpu in machine.gpus]
    return [("gpus", f"{len(rows)}, driver {machine.gpu_driver}"), *rows]


def _describe_xla(machine: Machine) -> str:
    xla = machine.xla
    chips = f"{xla.tpu_chips or 'no'} TPU chip{'s' if xla.tpu_chips != 1 else ''}"
    cores = f" with {xla.tpu_cores} cores in all" if xla.tpu_chips else ""
    if xla.version is None and not xla.tpu_chips:
        return f"{chips}, no torch-xla"
    if xla.version is None:
        how = "in lightkit's sources and an environment of its own, pip install -c constraints-tpu.txt '.[tpu]'"
        return f"{chips}{cores}; torch-xla is not installed: {how}"
    return f"{chips}{cores}; torch-xla {xla.version}, PJRT_DEVICE {xla.device or 'not set'}"


def _describe_horovod(horovod: Horovod) -> str:
    if horovod.version is None:
        return "not installed: make horovod"
    if horovod.built_with is None:
        return f"{horovod.version}, but {horovod.problem}; to build it again: make horovod"
    has = [name for name, is_built in horovod.built_with.items() if is_built]
    lacks = [name for name, is_built in horovod.built_with.items() if not is_built]
    return f"{horovod.version}, built with {', '.join(has) or 'nothing'}; without {', '.join(lacks) or 'nothing'}"


def _format_size(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else f"{size_bytes / 2**30:.1f} GiB"
