"""The page of a gate's decision, made from gate.json and the other files of the run folder.

No torch.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from lightkit.config.secrets import mask
from lightkit.reports.pages import PageSample, Thumbnails, render_page, shorten
from lightkit.reports.predictions import Split
from lightkit.reports.statistics import describe_significance, format_difference
from lightkit.runs.files import read_json, write_text
from lightkit.runs.folder import Run
from lightkit.runs.index import PROMOTED

_MAX_ROWS = 100
_MAX_SAMPLES = 40
_EMPTY: Mapping[str, Any] = {
    "checks": [],
    "intervals": {},
    "non_inferiority": {},
    "notices": [],
    "settings": {},
    "significance": {},
    "slices": {},
}
"""Parts of a decision that may be null, or missing in one of an earlier version."""


def write_gate_page(run: Run) -> None:
    """Write ``gate.html`` in the run folder.

    Where that fails, warn: no decision fails by its page.
    """
    try:
        decision = mask(read_json(run.folder / "gate.json") or {})
        promoted = mask(read_json(run.folder / PROMOTED) or {})
        write_text(run.folder / "gate.html", render_gate(run, decision, promoted), durable=False)
    except Exception as error:  # noqa: BLE001
        text = " ".join(f"{type(error).__name__}: {error}".split())
        logging.getLogger("lightkit").warning("gate.html was not written: %s", text)


def render_gate(run: Run, decision: Mapping[str, Any], promoted: Mapping[str, Any]) -> str:
    """Render the page.

    Args:
        run: The run; its thumbnails are read.
        decision: Content of ``gate.json``.
        promoted: Content of ``promoted.json``; empty if the run is not promoted.
    """
    parts = {**_EMPTY, **{key: value for key, value in decision.items() if value}}
    metric = decision.get("metric")
    checks = sorted(parts["checks"], key=lambda check: bool(check.get("passed")))
    slices = _list_slices(metric, checks, parts["slices"])
    intervals = [row.get("interval") for row in slices]
    intervals += [parts["intervals"].get(which) for which in ("challenger", "baseline")]
    significance = describe_significance(
        parts["significance"], str(metric), decision.get("baseline"), mode=decision.get("mode")
    )
    alias = str(parts["settings"].get("baseline") or "champion")
    return render_page(
        "gate.html",
        title=f"{run.name}/{run.id}: gate",
        run=run,
        decision=decision,
        significance=significance,
        difference=_describe_margin(parts["non_inferiority"]),
        checks=checks[:_MAX_ROWS],
        slices=slices[:_MAX_ROWS],
        axis=_choose_axis(intervals),
        notices=[each for each in parts["notices"] if each != significance],
        samples_by_kind=_describe_samples(run, decision),
        alias=alias,
        promoted=promoted if alias in (promoted.get("aliases") or []) else {},
    )


def _list_slices(
    metric: Any, checks: Sequence[Mapping[str, Any]], slices: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """List the classes with their scores and conditions, those that are not met first."""
    check_of = {check.get("name"): check for check in checks}
    rows = [
        {**check_of.get(f"{metric} of {name}", {}), **found, "name": name}
        for name, found in slices.items()
    ]
    rows.sort(key=lambda row: row.get("passed") is not False)
    return rows


def _choose_axis(intervals: Sequence[Sequence[float] | None]) -> tuple[float, float]:
    """Return the ends of the axis on which all intervals are drawn: 0 and 1 for shares."""
    bounds = [*chain.from_iterable(filter(None, intervals))]
    if all(0 <= bound <= 1 for bound in bounds):
        return 0, 1
    return min(bounds), max(bounds)


def _describe_margin(found: Mapping[str, Any]) -> str:
    """Write the difference that a margin judges.

    Empty where none was found, or an interval without a lower end.

    A decision of an earlier version has no upper end.
    """
    if not all(isinstance(found.get(key), (int, float)) for key in ("difference", "low")):
        return ""
    # positive is better
    return format_difference(found["difference"], found["low"], found.get("high"), mode="max")


def _describe_samples(run: Run, decision: Mapping[str, Any]) -> dict[str, list[PageSample]]:
    """List the samples that decide, by their kind: lost, won or wrong."""
    split: Split = "validation" if (decision.get("data") or {}).get("split") == "val" else "test"
    thumbnails = Thumbnails()
    found: dict[str, list[PageSample]] = {"lost": [], "won": [], "wrong": []}
    for each in decision.get("samples") or []:
        models = {"this run": each.get("challenger"), "baseline": each.get("baseline")}
        if len(found[each["kind"]]) < _MAX_SAMPLES:
            sample = PageSample(
                path="/".join(Path(each.get("path") or f"sample {each['index']}").parts[-2:])[
                    -120:
                ],
                label=shorten(each["label"], 60),
                predicted={
                    name: shorten(text, 60) for name, text in models.items() if text is not None
                },
                image=thumbnails.read(run.folder, split, int(each["index"])),
            )
            found[each["kind"]].append(sample)
    return found
