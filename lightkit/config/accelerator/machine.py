"""What a config asks of the machine: enough devices, the packages for them, and the variables that they need."""

from __future__ import annotations

from collections.abc import Mapping

from lightkit.config.accelerator.counts import ALL
from lightkit.config.accelerator.devices import Devices
from lightkit.config.accelerator.said import Said
from lightkit.config.origins import Origin, mistake
from lightkit.errors import ConfigError
from lightkit.hardware import Machine

__all__ = ["check_devices", "check_xla", "found_by_lightning", "num_visible", "xla_environment"]

_INSTALL = "make an environment of its own for it, in lightkit's sources: pip install '.[tpu]' -c constraints-tpu.txt"


def num_visible(devices: Devices, machine: Machine | None) -> int | None:
    """Count the machine's devices of the kind that is asked for; None where that is not known, or without limit."""
    if machine is None or devices.kind in (None, "cpu"):
        return None
    if devices.kind == "tpu":
        on_chips = machine.xla.device in (None, "TPU")
        return machine.xla.tpu_cores if on_chips else None  # XLA on the CPU has what it is told to have
    if machine.mps:
        return 1
    if devices.kind == "mps":
        return 0
    return None if machine.gpus is None else len(machine.gpus)


def found_by_lightning(machine: Machine | None) -> str | None:
    """Give the kind of device that Lightning chooses where nothing is said; None where that is not known."""
    if machine is None:
        return None
    if machine.xla.version and machine.xla.tpu_cores and machine.xla.device in (None, "TPU"):
        return "tpu"
    if machine.mps:
        return "mps"
    if machine.gpus is None:
        return None
    return "gpu" if machine.gpus and "+cpu" not in machine.versions.get("torch", "") else "cpu"


def check_devices(devices: Devices, machine: Machine, environ: Mapping[str, str]) -> None:
    """Check that the machine has what is asked of it.

    Args:
        devices: What is asked for, of the kind that Lightning will find where none is said.
        machine: The machine.
        environ: Environment variables.

    Raises:
        ConfigError: If it has fewer devices, and says which there are; or if its torch cannot use them.
    """
    there = num_visible(devices, machine)
    by = devices.count_by or devices.kind_by
    if there is None or devices.kind not in ("gpu", "mps", "tpu") or by is None:
        return
    count = devices.count
    wanted = max(count) + 1 if isinstance(count, tuple) else abs(count) if isinstance(count, int) else 1
    if there == 0 or (count not in (None, ALL, "auto") and wanted > there):
        raise _too_few(by, devices, machine, environ)
    torch = machine.versions.get("torch", "")
    if devices.kind == "gpu" and machine.gpus and "+cpu" in torch:
        says = f"{by}: torch {torch} is built for CPUs only; install one that is built with CUDA"
        raise mistake(f"{says}, or say {_cpu(by)}", by.origin)


def _too_few(by: Said, devices: Devices, machine: Machine, environ: Mapping[str, str]) -> ConfigError:
    if devices.kind == "tpu":
        chips = machine.xla.tpu_chips
        found = f"this machine has {chips or 'no'} TPU chip{'s' if chips != 1 else ''}"
        found += f" with {machine.xla.tpu_cores} cores in all" if chips else ""
        return mistake(f"{by}: {found}; ask for what is there, or say {_instead(by, devices)}", by.origin)
    if devices.kind == "mps" or machine.mps:
        found = "this machine has one GPU, Apple's" if machine.mps else "this machine has no GPU of Apple's"
        return mistake(f"{by}: {found}; ask for what is there, or say {_instead(by, devices)}", by.origin)
    hidden = environ.get("CUDA_VISIBLE_DEVICES")
    why = f" (CUDA_VISIBLE_DEVICES is {hidden!r})" if hidden is not None else ""
    fewer = f"at most {len(machine.gpus)}, or " if machine.gpus else ""
    auto = "trainer.accelerator: auto and trainer.devices: auto" if by.path[0] == "trainer" else "leave it out"
    what_to_do = f"say {fewer}{_cpu(by)}{'' if devices.kind_by is None else f', or {auto}'}"
    return mistake(f"{by}: {_gpus(machine)}{why}; {what_to_do}", by.origin)


def _instead(by: Said, devices: Devices) -> str:
    """Write how to leave the choice to Lightning, or to take CPUs where it was left, in the keys that are in use."""
    if devices.kind_by is None:
        return _cpu(by)
    return "trainer.accelerator: auto and trainer.devices: auto" if by.path[0] == "trainer" else "accelerator: auto"


def _cpu(by: Said) -> str:
    """Write how to take the CPU instead, so that it goes together with whatever else the block says."""
    if by.path[0] == "trainer":
        return "trainer.accelerator: cpu"
    return f"{'accelerator: {gpus: 0}' if by.path[0] == 'launch' else 'gpus: 0'}, which is the CPU"


def _gpus(machine: Machine) -> str:
    gpus = machine.gpus or ()
    if not gpus:
        return "this machine shows no GPU"
    names = ", ".join(f"{gpu.index}: {gpu.name} ({gpu.memory_bytes / 2**30:.0f} GiB)" for gpu in gpus)
    return f"this machine shows {len(gpus)} GPU{'s' if len(gpus) > 1 else ''}, {names}"


def check_xla(devices: Devices, versions: Mapping[str, str]) -> None:
    """Check, where TPUs are asked for, that torch-xla is there in the version that goes with torch.

    Args:
        devices: The devices that are asked for.
        versions: Versions of the packages that are installed.

    Raises:
        ConfigError: If not; it says how to install them.
    """
    if devices.kind != "tpu" or devices.kind_by is None:
        return
    xla, torch = versions.get("torch-xla"), versions.get("torch", "none")
    if xla is None:
        says = f"{devices.kind_by}: TPUs need torch-xla, which is not installed; its last version, 2.9, needs torch 2.9"
        raise mistake(f"{says}, and here is torch {torch}; {_INSTALL}", devices.kind_by.origin)
    if _minor(xla) != _minor(torch):
        says = f"{devices.kind_by}: torch-xla {xla} needs torch {_minor(xla)}, and here is torch {torch}"
        raise mistake(f"{says}; {_INSTALL}", devices.kind_by.origin)


def xla_environment(devices: Devices, environ: Mapping[str, str]) -> dict[str, str]:
    """Give the variables to set before torch-xla is imported.

    Raises:
        ConfigError: If there is one of XRT's, which torch-xla no longer has.
    """
    if "XRT_TPU_CONFIG" in environ:
        by = devices.kind_by
        raise mistake(
            "XRT_TPU_CONFIG is set, but torch-xla 2.1 dropped XRT; PJRT replaced it, whose PJRT_DEVICE=TPU lightkit"
            " sets where it is missing; unset XRT_TPU_CONFIG",
            Origin("variable", "XRT_TPU_CONFIG"),
            None if by is None else by.origin,
        )
    return {} if environ.get("PJRT_DEVICE") else {"PJRT_DEVICE": "TPU"}


def _minor(version: str) -> str:
    return ".".join(version.partition("+")[0].split(".")[:2])
