"""TPUs on a PCI bus like the kernel's."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.hardware.gpus import Xla, find_xla


def plug(bus: Path, *devices: tuple[str, str]) -> Path:
    for index, (vendor, device) in enumerate(devices):
        place = bus / f"0000:00:0{index}.0"
        place.mkdir()
        (place / "vendor").write_text(f"{vendor}\n")
        (place / "device").write_text(f"{device}\n")
    return bus


@pytest.mark.parametrize(
    ("device", "cores"),
    [("0x0027", 8), ("0x005e", 4), ("0x0063", 4), ("0x006f", 4)],
    ids=["v3", "v4", "v5e", "v6e"],
)
def test_cores_are_counted_by_the_kind_of_chip(device: str, cores: int, tmp_path: Path) -> None:
    bus = plug(tmp_path, *[("0x1ae0", device)] * 4, ("0x1ae0", "0x9999"), ("0x10de", device))
    assert find_xla({"PJRT_DEVICE": "TPU"}, "2.9.0", bus) == Xla("2.9.0", "TPU", 4, cores)


def test_without_a_bus_there_are_none(tmp_path: Path) -> None:
    assert find_xla({"PJRT_DEVICE": ""}, None, tmp_path / "missing") == Xla()
    (tmp_path / "0000:00:01.0").mkdir()
    assert find_xla({}, None, tmp_path) == Xla()
