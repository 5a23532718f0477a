"""The page of a decision: rows that are not met come first, and all intervals have one axis."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from lightkit.reports.gate_page import render_gate
from lightkit.runs.folder import Run


def render(folder: Path, **decision: Any) -> str:
    run = Run(folder / "job" / "1", "job", "1", folder)
    return render_gate(
        run, {"metric": "test/loss", "mode": "min", "num_samples": 5, **decision}, {}
    )


def list_strips(page: str) -> list[tuple[float, ...]]:
    """Low end, score and high end of each strip, in percent of the axis."""
    strips = re.findall(
        r'x1="([\d.]+)" x2="([\d.]+)" y1="7" y2="7" stroke-width="3"/><circle[^>]* cx="([\d.]+)"',
        page,
    )
    return [(float(low), float(score), float(high)) for low, high, score in strips]


def slice_of(value: float, interval: list[float] | None) -> dict[str, Any]:
    return {"challenger": value, "baseline": None, "num_samples": 2, "interval": interval}


def test_what_is_not_met_comes_first(tmp_path: Path) -> None:
    page = render(
        tmp_path,
        checks=[
            {
                "name": "test/loss",
                "challenger": 2.0,
                "baseline": None,
                "asks": "at most 3",
                "passed": True,
            },
            {
                "name": "test/loss of cats",
                "challenger": 5.0,
                "baseline": None,
                "asks": "at most 4",
                "passed": False,
            },
        ],
        slices={"dogs": slice_of(1.0, None), "cats": slice_of(5.0, [4.0, 6.0])},
    )
    assert re.findall(
        r'<tr><th scope="row">([^<]*)</th><td class="num" data-label="found">', page
    ) == ["test/loss of cats", "test/loss"]
    rows = re.findall(
        r'<tr><th scope="row">([^<]*)</th><td class="num"'
        r' data-label="samples">2</td>.*?data-label="expected">([^<]*)<',
        page,
        re.DOTALL,
    )
    assert rows == [("cats", "at most 4"), ("dogs", "")]


@pytest.mark.parametrize(
    ("score", "intervals", "of_cats", "strips"),
    [
        (
            2.0,
            {"challenger": [1.0, 3.0], "baseline": None},
            [4.0, 6.0],
            [(0.0, 20.0, 40.0), (60.0, 80.0, 100.0)],
        ),
        (0.6, {"challenger": [0.5, 0.75]}, [0.25, 1.0], [(50.0, 60.0, 75.0), (25.0, 80.0, 100.0)]),
    ],
    ids=["of all bounds", "of shares"],
)
def test_all_intervals_are_drawn_on_one_axis(
    tmp_path: Path,
    score: float,
    intervals: dict[str, Any],
    of_cats: list[float],
    strips: list[tuple[float, ...]],
) -> None:
    value = 5.0 if of_cats[1] > 1 else 0.8
    page = render(
        tmp_path,
        scores={"challenger": {"test/loss": score}},
        intervals=intervals,
        slices={"cats": slice_of(value, of_cats)},
    )
    assert list_strips(page) == strips


@pytest.mark.parametrize("value", [None, "missing"])
def test_parts_that_are_null_or_missing_are_empty(tmp_path: Path, value: str | None) -> None:
    names = (
        "intervals",
        "non_inferiority",
        "notices",
        "settings",
        "significance",
        "slices",
        "samples",
    )
    page = render(tmp_path, **({} if value == "missing" else dict.fromkeys(names)))
    assert "No condition was set." in page
    assert "History of the champion" in page
    assert 'id="slices"' not in page
    assert 'class="banner"' not in page


def test_a_notice_that_the_page_has_as_significance_is_shown_once(tmp_path: Path) -> None:
    found = {"test": None, "reason": "nothing was tested"}
    text = "Whether the difference to net version 1 is noise is unknown: nothing was tested."
    page = render(tmp_path, baseline="net version 1", significance=found, notices=[text, "another"])
    assert page.count(text) == 1
    assert '<p class="banner">another</p>' in page


@pytest.mark.parametrize(("alias", "is_shown"), [("champion", True), ("staging", False)])
def test_the_alias_of_the_settings_is_the_one_that_may_point_here(
    tmp_path: Path, alias: str, is_shown: bool
) -> None:
    run = Run(tmp_path / "job" / "1", "job", "1", tmp_path)
    promoted = {
        "aliases": ["champion"],
        "to": "3",
        "name": "net",
        "by": "ann",
        "time": "2026-11-23T05:30:00+00:00",
    }
    page = render_gate(run, {"metric": "test/loss", "settings": {"baseline": alias}}, promoted)
    assert (f"The alias {alias} points to this model: version 3 of net" in page) is is_shown
