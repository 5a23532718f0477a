"""The bench of the loaders: what it runs, and what it makes of the numbers."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
SETTINGS = {"folder": "photos", "work": "aside", "batch_size": 32, "image_size": 224, "cache_size": 256}


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("benches.loader")


@pytest.fixture
def loader_report(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("benches.loader_report")


def _passes(*speeds: float, peak_mb: int = 500) -> dict[str, Any]:
    each = [{"images": 100 * speed, "seconds": 200.0, "cpu_s": 100.0} for speed in speeds]
    return {"passes": each, "peak_bytes": peak_mb * 1_000_000}


def _found(report: Any, **others: Any) -> Any:
    ways = {"torchvision": _passes(100, 90, 110), "uncached": _passes(200), "cached": _passes(650), **others}
    return report.report({"0": {**ways, "conversion": _passes(1000)}, "1": ways}, SETTINGS)


def test_images_are_counted_by_the_seconds_of_cores_and_of_the_clock(loader_report: Any) -> None:
    row = _found(loader_report)["rows"][0]
    assert (row["way"], row["num_workers"], row["peak_mb"]) == ("torchvision", 0, 500)
    assert row["images_per_s_of_a_core"] == {"median": 100.0, "min": 90.0, "max": 110.0}
    assert row["images_per_s"] == {"median": 50.0, "min": 45.0, "max": 55.0}


def test_each_ratio_stands_beside_its_reach(loader_report: Any) -> None:
    found = _found(loader_report, litdata=_passes(500))
    assert found["ratios"] == [
        {"of": "uncached", "to": "torchvision", "reach": 1.7, "ratio": [2.0, 2.0]},
        {"of": "cached", "to": "torchvision", "reach": 6.0, "ratio": [6.5, 6.5]},
        {"of": "cached", "to": "litdata", "reach": 1.0, "ratio": [1.3, 1.3]},
    ]


def test_each_way_stands_in_the_readmes_table_with_its_reach(loader_report: Any) -> None:
    ways = {"torchvision": _passes(100, 100), "uncached": _passes(200, 160), "cached": _passes(650, 650)}
    rows = loader_report.compared({"1": ways}, SETTINGS)
    assert {row["what"] for row in rows} == {"photos, one core, 1 worker"}
    assert [(row["of"], row["to"], row["reached"]) for row in rows] == [
        ("lightkit, uncached", "torchvision ImageFolder", None),
        ("lightkit, cached", "torchvision ImageFolder", True),
        ("lightkit, cached", "litdata, same pixels", None),
    ]
    assert rows[-1]["unmeasured"] == "litdata is not installed"


def test_the_table_tells_how_to_install_what_is_not_there(loader_report: Any) -> None:
    lines = loader_report.table(_found(loader_report)).splitlines()
    assert "litdata, same pixels            litdata is not installed: pip install 'lightkit[bench]'" in lines
    assert not any("/ litdata" in line for line in lines)


def test_the_table_tells_what_the_conversion_costs(loader_report: Any) -> None:
    lines = loader_report.table(_found(loader_report, litdata=_passes(500))).splitlines()
    start = next(number for number, line in enumerate(lines) if "(1.00 ms an image)" in line)
    assert lines[start + 1].split() == ["lightkit,", "uncached", *["167", "(1.67", "x)"] * 2]
    assert lines[start + 2].split() == ["lightkit,", "cached", *["394", "(3.94", "x)"] * 2]
    assert any(line.split() == ["lightkit,", "cached", "/", "litdata", "1.30", "1.30", "1"] for line in lines)


def test_what_litdata_was_given_is_told_where_it_was_measured(loader_report: Any) -> None:
    last = [
        loader_report.table(_found(loader_report, **more)).splitlines()[-1] for more in ({}, {"litdata": _passes(5)})
    ]
    assert [line.startswith("litdata: the cache's pixels as tensors") for line in last] == [False, True]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--repeat", "0"], "--repeat: expected 1 or more, got 0"),
        (["--cache-size", "0"], "--cache-size: expected 1 or more, got 0"),
        (["--seconds", "-1"], "--seconds: expected 0 or more, got -1"),
        (["--data", "nowhere"], "--data: nowhere is no folder"),
    ],
    ids=["repeat", "cache size", "seconds", "data"],
)
def test_a_mistake_in_the_options_is_told(words: list[str], says: str) -> None:
    done = subprocess.run(
        [SCRIPTS / "bench", "loader", *words], capture_output=True, text=True, check=False, env=ENVIRONMENT
    )
    assert done.returncode == 2
    assert says in done.stderr


def test_a_way_that_fails_is_told_in_its_own_words(
    loader: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = loader.Settings(str(tmp_path / "nowhere"), str(tmp_path), 4, 32, 36)
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit('no such way')", encoding="utf-8")
    monkeypatch.setattr(loader, "_WAYS", broken)
    with pytest.raises(loader.BenchError, match="torchvision ImageFolder ended with 1:\nno such way"):
        loader.measure(settings, repeat=1, seconds=0.0, workers=[0])


@pytest.mark.slow
def test_every_way_loads_every_image(loader: Any, tmp_path: Path) -> None:
    """On a few images; how fast is no matter here."""
    folder = loader._drawn(tmp_path / "drawn", num_images=10, size=64)
    settings = loader.Settings(str(folder), str(tmp_path), 4, 32, 36)
    passes = loader.measure(settings, repeat=1, seconds=0.0, workers=[0])
    for number, ways in passes.items():
        expected = {"torchvision", "uncached", "cached", *["conversion"] * (number == "0")}
        assert set(ways) - {"litdata"} == expected
        assert {found["passes"][0]["images"] for way, found in ways.items() if way != "conversion"} == {10}
        assert all(found["peak_bytes"] > 0 for found in ways.values())
    assert json.loads(json.dumps(passes)) == passes
