"""What `scripts/bench loader` makes of its passes: medians, ratios, a table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from importlib import metadata, util
from typing import Any

from benches.contest import comparison, unmeasured

__all__ = ["INSTALL_LITDATA", "NAMES", "REACHES", "compared", "report", "table", "workers_in_words"]

NAMES = {
    "torchvision": "torchvision ImageFolder",
    "uncached": "lightkit, uncached",
    "cached": "lightkit, cached",
    "litdata": "litdata, same pixels",
}
REACHES = (("uncached", "torchvision", 1.7), ("cached", "torchvision", 6.0), ("cached", "litdata", 1.0))
LITDATA_IS_GIVEN = (
    "litdata: the cache's pixels as tensors in local chunks of 64 MB, cropped by lightkit's code; batch_decode=0, as "
    "reading 256 records for one, its default, is 8 times slower here"
)
INSTALL_LITDATA = "litdata is not installed: pip install 'lightkit[bench]'"


def report(passes: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Give medians, spreads and ratios.

    Args:
        passes: By number of workers and by way: ``passes``, each with images, seconds and seconds of cores, and
            ``peak_bytes``.
        settings: What was loaded.
    """
    rows = [
        {
            "way": way,
            "num_workers": int(number),
            "images_per_s_of_a_core": _spread([each["images"] / each["cpu_s"] for each in found["passes"]]),
            "images_per_s": _spread([each["images"] / each["seconds"] for each in found["passes"]]),
            "peak_mb": round(found["peak_bytes"] / 1e6),
        }
        for number, ways in passes.items()
        for way, found in ways.items()
    ]
    names = ["torch", "torchvision", "pillow", *["litdata"] * (util.find_spec("litdata") is not None)]
    versions = {name: metadata.version(name) for name in names}
    return {"settings": dict(settings), "versions": versions, "rows": rows, "ratios": _ratios(rows)}


def compared(passes: Mapping[str, Any], settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Compare the ways pass by pass: lines of the table in docs/performance.md.

    Args:
        passes: As of `report`.
        settings: What was loaded.
    """
    lines = []
    for number, ways in passes.items():
        what = f"{settings['folder']}, one core, {workers_in_words(int(number))}"
        speeds = {
            NAMES[way]: [each["images"] / each["cpu_s"] for each in found["passes"]]
            for way, found in ways.items()
            if way in NAMES
        }
        for way, other, reach in REACHES:
            of, to = NAMES[way], NAMES[other]
            if to in speeds:
                lines.append(comparison(what, speeds, of=of, to=to, unit="images/s", at_least=reach))
            else:
                lines.append(unmeasured(what, of=of, to=to, why=f"{other} is not installed", at_least=reach))
    return lines


def _ratios(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    speeds = {(row["way"], row["num_workers"]): row["images_per_s_of_a_core"]["median"] for row in rows}
    numbers = sorted({row["num_workers"] for row in rows})
    return [
        {"of": of, "to": to, "reach": reach, "ratio": [round(speeds[of, n] / speeds[to, n], 2) for n in numbers]}
        for of, to, reach in REACHES
        if all((way, number) in speeds for way in (of, to) for number in numbers)
    ]


def table(found: Mapping[str, Any]) -> str:
    """Show a report as text.

    Args:
        found: What `report` gave.
    """
    rows = {(row["way"], row["num_workers"]): row for row in found["rows"]}
    numbers = sorted({row["num_workers"] for row in found["rows"]})
    settings, versions = found["settings"], found["versions"]
    sizes = (settings["image_size"], settings["cache_size"], settings["batch_size"])
    lines = [
        "images/s of one core: median of all passes in turn (least to most); crops of {} pixels, cache {}, batches of "
        "{}".format(*sizes),
        ", ".join(f"{name} {version}" for name, version in versions.items()) + f"; {settings['folder']}",
        "",
        _line("", [workers_in_words(number) for number in numbers], "reach"),
    ]
    for way, name in NAMES.items():
        shown = [_shown(rows[way, number]["images_per_s_of_a_core"]) for number in numbers if (way, number) in rows]
        lines.append(_line(name, shown) if shown else f"{name:32}{INSTALL_LITDATA}")
    for ratio in found["ratios"]:
        name = f"{NAMES[ratio['of']]} / {NAMES[ratio['to']].split()[0].rstrip(',')}"
        lines.append(_line(name, [f"{value:.2f}" for value in ratio["ratio"]], f"{ratio['reach']:g}"))
    lines += ["", _line("images/s on the clock", [""] * len(numbers))]
    lines += _block(rows, numbers, lambda row: f"{row['images_per_s']['median']:,.0f}")
    lines += ["", _line("peak memory, without mapped files", [""] * len(numbers))]
    lines += _block(rows, numbers, lambda row: f"{row['peak_mb']:,} MB")
    return "\n".join([*(line.rstrip() for line in lines), *_conversion(rows, numbers), *_litdata(rows)])


def workers_in_words(number: int) -> str:
    """Say how many workers there are."""
    return f"{number} worker{'' if number == 1 else 's'}"


def _block(rows: Mapping[Any, Any], numbers: Sequence[int], show: Any) -> list[str]:
    return [
        _line(f"  {name}", [show(rows[way, number]) for number in numbers])
        for way, name in NAMES.items()
        if (way, numbers[0]) in rows
    ]


def _conversion(rows: Mapping[Any, Any], numbers: Sequence[int]) -> list[str]:
    """Show what is left where the core that loads converts to float too, as torchvision's numbers have it."""
    if ("conversion", 0) not in rows:
        return []
    speeds = {key: row["images_per_s_of_a_core"]["median"] for key, row in rows.items()}
    lines = [
        "",
        f"images/s of one core that also converts to float and normalises ({1e3 / speeds['conversion', 0]:.2f} ms an "
        "image), as torchvision's does; a GPU does it in its own time",
    ]
    for way in ("uncached", "cached"):
        both = {number: 1 / (1 / speeds[way, number] + 1 / speeds["conversion", 0]) for number in numbers}
        cells = [f"{both[number]:,.0f} ({both[number] / speeds['torchvision', number]:.2f} x)" for number in numbers]
        lines.append(_line(f"  {NAMES[way]}", cells))
    return lines


def _litdata(rows: Mapping[Any, Any]) -> list[str]:
    return ["", LITDATA_IS_GIVEN] if ("litdata", 0) in rows else []


def _line(name: str, cells: Sequence[str], last: str = "") -> str:
    return f"{name:32}{''.join(f'{cell:>26}' for cell in cells)}{last:>8}"


def _spread(values: Sequence[float]) -> dict[str, float]:
    each = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: round(value, 1) for name, value in each.items()}


def _shown(spread: Mapping[str, float]) -> str:
    return f"{spread['median']:,.0f} ({spread['min']:,.0f} to {spread['max']:,.0f})"
