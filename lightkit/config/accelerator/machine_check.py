"""Check that the machine has the devices that a config asks for, and the packages and variables that they need."""

from __future__ import annotations

from collections.abc import Mapping

from lightkit.config.accelerator.devices import Devices
from lightkit.config.accelerator.vocabulary import ALL
from lightkit.config.origins import Origin, mistake
from lightkit.hardware import Machine

_INSTALL = "make an environment of its own for it, in lightkit's sources: pip install '.[tpu]' -c constraints-tpu.txt"


def count_visible(devices: Devices, machine: Machine | None) -> int | None:
    """Count the machine's devices of the kind that is asked for; None where that is not known, or without limit."""
    if machine is None or devices.kind in (None, "cpu"):
        return None
    if devices.kind == "tpu":
        on_chips = machine.xla.device in (None, "TPU")
        return machine.xla.tpu_cores if on_chips else None  # XLA on the CPU has any number
    if machine.mps:
        return 1
    if devices.kind == "mps":
        return 0
    return None if machine.gpus is None else len(machine.gpus)


def find_default_kind(machine: Machine | None) -> str | None:
    """Give the kind of device that Lightning chooses where no key names one; None where that is not known."""
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
        devices: What is asked for, of the kind that Lightning will find where none is set.
        machine: The machine.
        environ: Environment variables.

    Raises:
        ConfigError: If it has fewer devices, and says which there are; or if its torch cannot use them.
    """
    num_there, count, kind = count_visible(devices, machine), devices.count, devices.kind
    by = devices.count_source or devices.kind_source
    if num_there is None or kind not in ("gpu", "mps", "tpu") or by is None:
        return
    cpu = "gpus: 0, which is the CPU"  # goes together with whatever else the block sets
    if by.path[0] != "accelerator":
        cpu = "trainer.accelerator: cpu" if by.path[0] == "trainer" else "accelerator: {gpus: 0}, which is the CPU"
    torch = machine.versions.get("torch", "")
    wanted = max(count) + 1 if isinstance(count, tuple) else abs(count) if isinstance(count, int) else 1
    if num_there and (count in (None, ALL, "auto") or wanted <= num_there):
        if kind == "gpu" and machine.gpus and "+cpu" in torch:
            says = f"{by}: torch {torch} is built for CPUs only; install one that is built with CUDA, or say {cpu}"
            raise mistake(says, by.origin)
        return
    all_auto = "accelerator: auto"
    if by.path[0] == "trainer":
        all_auto = "trainer.accelerator: auto and trainer.devices: auto"
    advice = f"ask for what is there, or say {cpu if devices.kind_source is None else all_auto}"
    if kind == "tpu":
        chips = machine.xla.tpu_chips
        found = f"this machine has {chips or 'no'} TPU chip{'s' if chips != 1 else ''}"
        found += f" with {machine.xla.tpu_cores} cores in all" if chips else ""
    elif kind == "mps" or machine.mps:
        found = "this machine has one GPU, Apple's" if machine.mps else "this machine has no GPU of Apple's"
    else:
        gpus, hidden = machine.gpus or (), environ.get("CUDA_VISIBLE_DEVICES")
        names = ", ".join(f"{gpu.index}: {gpu.name} ({gpu.memory_bytes / 2**30:.0f} GiB)" for gpu in gpus)
        found = f"this machine shows {len(gpus)} GPU{'s' if len(gpus) > 1 else ''}, {names}"
        found = found if gpus else "this machine shows no GPU"
        found += f" (CUDA_VISIBLE_DEVICES is {hidden!r})" if hidden is not None else ""
        auto = "" if devices.kind_source is None else f", or {all_auto if by.path[0] == 'trainer' else 'leave it out'}"
        advice = f"say {f'at most {len(gpus)}, or ' if gpus else ''}{cpu}{auto}"
    raise mistake(f"{by}: {found}; {advice}", by.origin)


def check_xla(devices: Devices, versions: Mapping[str, str]) -> None:
    """Check, where TPUs are asked for, that torch-xla is there in the version that goes with torch.

    Args:
        devices: The devices that are asked for.
        versions: Versions of the packages that are installed.

    Raises:
        ConfigError: If not; it says how to install them.
    """
    if devices.kind != "tpu" or devices.kind_source is None:
        return
    xla, torch = versions.get("torch-xla"), versions.get("torch", "none")
    if xla is None:
        says = f"{devices.kind_source}: TPUs need torch-xla, which is not installed; its last version, 2.9, needs"
        raise mistake(f"{says} torch 2.9, and here is torch {torch}; {_INSTALL}", devices.kind_source.origin)
    needed = ".".join(xla.partition("+")[0].split(".")[:2])
    if needed != ".".join(torch.partition("+")[0].split(".")[:2]):
        says = f"{devices.kind_source}: torch-xla {xla} needs torch {needed}, and here is torch {torch}"
        raise mistake(f"{says}; {_INSTALL}", devices.kind_source.origin)


def xla_environment(devices: Devices, environ: Mapping[str, str]) -> dict[str, str]:
    """Give the variables to set before torch-xla is imported.

    Raises:
        ConfigError: If there is one of XRT's, which torch-xla no longer has.
    """
    if "XRT_TPU_CONFIG" in environ:
        by = devices.kind_source
        raise mistake(
            "XRT_TPU_CONFIG is set, but torch-xla 2.1 dropped XRT; PJRT replaced it, whose PJRT_DEVICE=TPU lightkit"
            " sets where it is missing; unset XRT_TPU_CONFIG",
            Origin("variable", "XRT_TPU_CONFIG"),
            None if by is None else by.origin,
        )
    return {} if environ.get("PJRT_DEVICE") else {"PJRT_DEVICE": "TPU"}
