"""The page of a gate's decision, made from gate.json and the other files of the run folder. No torch."""

from __future__ import annotations

import logging
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightkit.reports.facts import mask_secrets
from lightkit.reports.pages import PageSample, SampleGroup, format_number, limit_images, render_page, shorten
from lightkit.reports.predictions import Split, read_thumbnail
from lightkit.reports.significance import describe_significance
from lightkit.runs.files import read_json, write_text
from lightkit.runs.folder import Run
from lightkit.runs.index import PROMOTED

_MAX_ROWS, _MAX_SAMPLES = 100, 40
_GROUPS = {
    "lost": "Right by {baseline} alone",
    "won": "Right by this model alone",
    "wrong": "The worst errors",
}
_REGRESSION = {"lost": "Predicted worse than by {baseline}", "won": "Predicted better than by {baseline}"}


def write_gate_page(run: Run) -> Path | None:
    """Write ``gate.html`` in the run folder; None, with a warning, where that fails: no decision fails by its page."""
    path = run.folder / "gate.html"
    try:
        decision = mask_secrets(read_json(run.folder / "gate.json") or {})
        promoted = mask_secrets(read_json(run.folder / PROMOTED) or {})
        write_text(path, render_gate(run, decision, promoted), durable=False)
    except Exception as error:  # noqa: BLE001
        text = " ".join(f"{type(error).__name__}: {error}".split())
        logging.getLogger("lightkit").warning("gate.html was not written: %s", text)
        return None
    return path


def render_gate(run: Run, decision: Mapping[str, Any], promoted: Mapping[str, Any]) -> str:
    """Render the page.

    Args:
        run: The run; its thumbnails are read.
        decision: Content of ``gate.json``.
        promoted: Content of ``promoted.json``; empty if the run is not promoted.
    """
    metric, scores = decision.get("metric"), decision.get("scores") or {}
    mine, theirs = (scores.get(which) or {} for which in ("challenger", "baseline"))
    intervals = decision.get("intervals") or {}
    baseline = decision.get("baseline")
    checks = sorted(decision.get("checks") or [], key=lambda check: bool(check.get("passed")))
    slices = decision.get("slices") or {}
    verdicts = {check.get("name"): check for check in checks}
    rows = []
    for name, found in slices.items():
        check = verdicts.get(f"{metric} of {name}", {})
        rows.append({**found, "name": name, "asks": check.get("asks", ""), "passed": check.get("passed")})
    rows = sorted(rows, key=lambda row: row["passed"] is not False)
    bounds = [each for row in rows for each in (row.get("interval") or [])]
    bounds += [each for which in ("challenger", "baseline") for each in (intervals.get(which) or [])]
    names = list(dict.fromkeys([metric, *sorted({*mine, *theirs})])) if metric else []
    significance = decision.get("significance") or {}
    described = describe_significance(significance, str(metric), baseline)
    models = [
        {"name": name, "score": each.get(metric), "strip": _strip(each.get(metric), intervals.get(which), bounds)}
        for which, name, each in (
            ("challenger", f"This run, {run.name}/{run.id}", mine),
            ("baseline", baseline, theirs),
        )
        if name
    ]
    alias = str((decision.get("settings") or {}).get("baseline") or "champion")
    return render_page(
        "gate.html",
        title=f"{run.name}/{run.id}: gate",
        run=run,
        decision=decision,
        status="passed" if decision.get("passed") else "rejected",
        verdict=describe_decision(decision),
        significance=described,
        checks=checks[:_MAX_ROWS],
        num_checks=len(checks),
        models=models,
        metrics=[(name, format_number(mine.get(name)), format_number(theirs.get(name))) for name in names[:_MAX_ROWS]],
        slices=[
            {**row, "strip": _strip(row.get("challenger"), row.get("interval"), bounds)} for row in rows[:_MAX_ROWS]
        ],
        num_slices=len(rows),
        notices=[each for each in decision.get("notices") or [] if each != described],
        confidence=format((intervals.get("confidence") or 0.95) * 100, ".4g"),
        groups=_group_samples(run, decision, str(baseline)),
        moves=decision.get("history"),
        alias=alias,
        promoted=promoted if alias in (promoted.get("aliases") or []) else {},
        commands=_list_commands(run, decision, promoted, alias),
    )


def describe_decision(decision: Mapping[str, Any]) -> str:
    """Write in one or two sentences what the gate found."""
    metric = decision.get("metric")
    if metric is None:
        return "Nothing is judged: gate.metric is not set."
    scores, intervals = decision.get("scores") or {}, decision.get("intervals") or {}

    def describe(which: str) -> str:
        value, interval = (scores.get(which) or {}).get(metric), intervals.get(which)
        text = format_number(value) if value is not None else "no value"
        if interval:
            percent = (intervals.get("confidence") or 0.95) * 100
            text += f" ({percent:.4g} % interval {interval[0]:.3g} to {interval[1]:.3g})"
        return text

    num_failed = sum(not check.get("passed") for check in decision.get("checks") or [])
    num = len(decision.get("checks") or [])
    met = "Each condition is met."
    if num_failed:
        first = "; ".join(map(str, (decision.get("reasons") or ["no reason is recorded"])[:2]))
        met = f"{num_failed} of {num} conditions {'is' if num_failed == 1 else 'are'} not met: {first}."
    text = f"{met} {metric} is {describe('challenger')} on {decision.get('num_samples')} samples"
    return f"{text}; {decision.get('baseline')} has {describe('baseline')}." if decision.get("baseline") else f"{text}."


def _strip(score: Any, interval: Sequence[float] | None, bounds: Sequence[float]) -> dict[str, Any] | None:
    """Compute a score and its interval as places from 0 to 100 on an axis that all strips of the page share."""
    if not interval or not isinstance(score, (int, float)) or not math.isfinite(score):
        return None
    low, high = (0.0, 1.0) if min(bounds) >= 0 and max(bounds) <= 1 else (min(bounds), max(bounds))
    places = [round(100 * (each - low) / ((high - low) or 1), 1) for each in (interval[0], score, interval[1])]
    return {"places": places, "text": f"{interval[0]:.3g} to {interval[1]:.3g}"}


def _group_samples(run: Run, decision: Mapping[str, Any], baseline: str) -> list[SampleGroup]:
    """List the samples that decide by their kind."""
    split: Split = "validation" if (decision.get("data") or {}).get("split") == "val" else "test"
    significance = decision.get("significance") or {}
    totals = {"lost": significance.get("only_baseline"), "won": significance.get("only_challenger")}
    titles = _GROUPS if "only_baseline" in significance else {**_GROUPS, **_REGRESSION}
    if significance:
        titles = {**titles, "wrong": "The worst errors of classes that are not met"}
    groups = []
    for kind, title in titles.items():
        samples = [
            PageSample(
                path="/".join(Path(each.get("path") or f"sample {each['index']}").parts[-2:])[-120:],
                label=shorten(each["label"], 60),
                predicted={
                    name: shorten(each[key], 60)
                    for name, key in (("this run", "challenger"), ("baseline", "baseline"))
                    if each.get(key) is not None
                },
                image=read_thumbnail(run.folder, split, int(each["index"])),
            )
            for each in decision.get("samples") or []
            if each.get("kind") == kind
        ][:_MAX_SAMPLES]
        total = max(totals.get(kind) or 0, len(samples))
        count = f"{len(samples)} of {total}" if total > len(samples) else f"{len(samples)}"
        groups.append(SampleGroup(kind, f"{title.replace('{baseline}', shorten(baseline, 60))} ({count})", samples))
    return limit_images(groups)


def _list_commands(
    run: Run, decision: Mapping[str, Any], promoted: Mapping[str, Any], alias: str
) -> list[tuple[str, str]]:
    """List what to do next, and its commands."""
    name = shlex.quote(str((decision.get("settings") or {}).get("name") or run.name))
    where = shlex.quote(f"{run.name}/{run.id}")
    history = ("See who promoted what", f"lightkit history {name}")
    if alias in (promoted.get("aliases") or []):
        return [history, ("Go back to the one before", f"lightkit rollback {name}")]
    if decision.get("passed") and decision.get("metric"):
        return [("Make it the champion", f"lightkit promote {where}"), history]
    commands = [
        ("Look at the run", f"lightkit report {where}"),
        ("Judge it again, after a change", f"lightkit gate {where}"),
    ]
    if decision.get("metric"):
        forced = f"lightkit promote {where} --force --reason TEXT"
        commands.append(("Promote it all the same; the log records it", forced))
    return commands
