"""What torch-xla would find, without importing it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Xla", "find_xla"]

_GOOGLE = "0x1ae0"
_CORES_PER_CHIP = {
    "0x0027": 2,  # v2, v3
    "0x005e": 1,  # v4
    "0x0063": 1,  # v5e
    "0x006f": 1,  # v6e
    "0x0056": 1,
    "0x0062": 1,
    "0x0076": 1,  # 7x
}
"""PCI ids of TPUs, from `torch_xla._internal.tpu` (2.9), and `num_logical_cores_per_chip` there: two up to v3."""


@dataclass(frozen=True)
class Xla:
    """XLA's side of a machine.

    Args:
        version: Version of torch-xla; None where it is not installed.
        device: What ``PJRT_DEVICE`` says that XLA runs on: ``TPU``, ``CPU``; None where it says nothing.
        tpu_chips: TPU chips on this host's PCI bus.
        tpu_cores: Their cores, each a device for Lightning.
    """

    version: str | None = None
    device: str | None = None
    tpu_chips: int = 0
    tpu_cores: int = 0


def find_xla(environ: Mapping[str, str], version: str | None, pci: Path = Path("/sys/bus/pci/devices")) -> Xla:
    """Count TPUs as torch-xla itself does, on the PCI bus.

    Args:
        environ: Environment variables.
        version: Version of torch-xla, if it is installed.
        pci: Folder with an entry for each device on the bus.
    """
    cores = [
        _CORES_PER_CHIP[device]
        for place in (sorted(pci.iterdir()) if pci.is_dir() else ())
        if _read(place / "vendor") == _GOOGLE and (device := _read(place / "device")) in _CORES_PER_CHIP
    ]
    return Xla(version, environ.get("PJRT_DEVICE") or None, len(cores), sum(cores))


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:  # a device that was just taken away
        return ""
