"""Pages of reports: the Jinja2 environment, the layout that all pages share, and the page of one run. No torch."""

from __future__ import annotations

import base64
import hashlib
import logging
import math
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cache
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from markupsafe import Markup

from lightkit.reports import figures
from lightkit.reports.card import render_card
from lightkit.reports.facts import NO_METRICS, RunFacts, describe_verdict, list_scores, read_facts
from lightkit.reports.predictions import (
    Predictions,
    class_scores,
    confusion_counts,
    least_certain,
    list_confusions,
    read_thumbnail,
    worst_classes,
    worst_errors,
)
from lightkit.reports.statistics import CalibrationBins, expected_calibration_error, reliability_bins
from lightkit.runs.deadline import format_duration
from lightkit.runs.files import in_bytes, write_text
from lightkit.runs.folder import Run

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.figure import Figure as MatplotlibFigure

_TEMPLATES = Path(__file__).with_name("templates")
_SECTION = re.compile(r'<section id="([^"]+)"[^>]*>\s*<h2>(.*?)</h2>', re.DOTALL)
_LONGEST_TEXT = 300
_MAX_EVENTS = 200
_MAX_CLASSES = 1000
_MAX_CURVES = 16
_NUM_SAMPLES = 20
_MAX_THUMBNAILS_BYTES = 1_700_000  # a third more in the page, which is to stay below 3 MB
_PHASES = ("start", "load", "step", "validation", "checkpoint", "other")
_SPLIT_PREFIX = re.compile(r"^(?:train|training|val|valid|validation|test)[/_]")


@dataclass(frozen=True)
class PageFigure:
    """A figure of a page.

    Args:
        name: Of its file in ``figures/``, and prefix of its ids in the page.
        drawing: What is drawn.
        caption: Text below it.
        label: Description for those who do not see it.
    """

    name: str
    drawing: MatplotlibFigure
    caption: str
    label: str

    @property
    def svg(self) -> Markup:
        """The ``<svg>`` element."""
        return Markup(figures.to_svg(self.drawing, name=self.name, label=self.label))  # noqa: S704 - it is escaped there


@dataclass(frozen=True)
class PageSample:
    """A sample of a page.

    Args:
        path: Its file, or its number.
        label: Its label or target in words.
        predicted: By the name of each model, what it predicted.
        note: More about it.
        image: Its thumbnail as JPEG; empty where there is none.
    """

    path: str
    label: str
    predicted: Mapping[str, str]
    note: str = ""
    image: bytes = b""

    @property
    def address(self) -> str:
        """The thumbnail as an address that holds it; empty where there is none."""
        return f"data:image/jpeg;base64,{base64.b64encode(self.image).decode()}" if self.image else ""


class SampleGroup(NamedTuple):
    """Samples of a page under one heading."""

    id: str
    title: str
    samples: list[PageSample]


def limit_images(groups: Iterable[SampleGroup], max_bytes: int = _MAX_THUMBNAILS_BYTES) -> list[SampleGroup]:
    """Leave out the groups without samples, and the thumbnails that make a page larger than ``max_bytes``."""
    left_bytes, limited = max_bytes, []
    for group in groups:
        samples = []
        for each in group.samples:
            fits = len(each.image) <= left_bytes
            left_bytes -= len(each.image) if fits else 0
            samples.append(each if fits else replace(each, image=b""))
        if samples:
            limited.append(group._replace(samples=samples))
    return limited


@cache
def environment() -> Environment:
    """Make the Jinja2 environment; every text is escaped."""
    from jinja2 import ChainableUndefined, Environment, FileSystemLoader

    env = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=ChainableUndefined,  # a run that was killed lacks what it had not written yet
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= {
        "number": format_number,
        "value": format_value,
        "duration": format_duration,
        "size": in_bytes,
        "moment": format_moment,
        "shorten": shorten,
    }
    return env


def render_page(template: str, *, title: str, **values: Any) -> str:
    """Render a template into the layout of all pages: one HTML file with its style, script and table of contents.

    Args:
        template: File in ``templates/`` with the content of ``<main>``. Each ``<section id=...>`` that begins with an
            ``<h2>`` is in the table of contents.
        title: Of the page.
        values: What the template needs.
    """
    body = environment().get_template(template).render(**values)
    style, script = ((_TEMPLATES / name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    return (
        environment()
        .get_template("base.html")
        .render(
            title=title,
            body=Markup(body),  # noqa: S704 - rendered with escapes
            contents=[(name, unescape(re.sub("<[^>]*>", "", head)).strip()) for name, head in _SECTION.findall(body)],
            style=Markup(style),  # noqa: S704 - lightkit's own
            script=Markup(script),  # noqa: S704
            digests=digests,
            now=format_moment(datetime.now(timezone.utc).isoformat()),
        )
    )


def format_number(value: Any) -> str:
    """Write a number with four significant digits; a dash where there is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return "-" if value is None else str(value)
    if isinstance(value, int) or (float(value).is_integer() and abs(value) >= 1e4):
        return f"{int(value):,}".replace(",", "\u202f")
    return f"{value:.4g}"


def format_value(value: Any) -> str:
    """Write a value of the config as YAML would, on one line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return f"[{', '.join(map(format_value, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {format_value(child)}' for key, child in value.items())}}}"
    return str(value) if value != "" else "''"


def format_moment(text: Any) -> str:
    """Write an ISO 8601 time as ``2026-11-23 18:31 UTC``; another text as it is."""
    try:
        return f"{datetime.fromisoformat(str(text)).astimezone(timezone.utc):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return str(text)


def shorten(text: Any, length: int = _LONGEST_TEXT) -> str:
    """Leave out the end of a text that is too long for a page."""
    text = str(text)
    return text if len(text) <= length else f"{text[: length - 1]}…"


def write_run_report(run: Run, path: Path | None = None) -> Path:
    """Write the page of a run and return its path.

    Args:
        run: The run.
        path: Of the page, and nothing is written in the run folder; None for ``report.html``, ``figures/`` and
            ``card.md`` in the folder.
    """
    facts = read_facts(run)
    drawn = draw_figures(facts)
    if path is not None:
        write_text(path, render_run(facts, drawn), durable=False)
        return path
    (run.folder / "figures").mkdir(exist_ok=True)
    for each in drawn.values():
        (run.folder / "figures" / f"{each.name}.png").write_bytes(figures.to_png(each.drawing))
    path = run.folder / "report.html"
    write_text(path, render_run(facts, drawn), durable=False)
    write_text(run.folder / "card.md", render_card(facts), durable=False)
    return path


def try_run_report(run: Run) -> Path | None:
    """Write the report of a run and return its path; where that fails, warn: no training fails by its report."""
    try:
        return write_run_report(run)
    except Exception as error:  # noqa: BLE001
        text = " ".join(f"{type(error).__name__}: {error}".split())
        logging.getLogger("lightkit").warning("report.html was not written: %s. `lightkit report` tries again.", text)
        return None


def render_run(facts: RunFacts, drawn: Mapping[str, PageFigure]) -> str:
    """Render the page of a run."""
    predictions = next(iter(facts.predictions.values()), None)
    classes = confusions = None
    if predictions is not None and predictions.is_classifier:
        classes, names = _list_classes(predictions), [shorten(name, 60) for name in predictions.class_names]
        pairs = list_confusions(confusion_counts(predictions), 10)
        confusions = [(names[label], names[predicted], number) for label, predicted, number in pairs]
    folder = facts.run.folder
    began_in = str(facts.manifest.get("working_directory") or "")
    where = str(folder).removeprefix(f"{began_in}/") if began_in else str(folder)
    warnings = Counter(str(each.get("message")) for each in facts.events if each["event"] == "warning")
    shown = [each for each in facts.events if each["event"] not in ("epoch", "checkpoint", "warning")]
    return render_page(
        "run.html",
        title=f"{facts.name}: report",
        facts=facts,
        verdict=describe_verdict(facts),
        figures=drawn,
        predictions=predictions,
        scores=list(list_scores(facts).values()),
        classes=classes,
        confusions=confusions,
        ece=None if "reliability" not in drawn else _calibrate(predictions)[1],
        groups=[] if predictions is None else _list_samples(facts, predictions),
        bad_reasons=Counter(each.reason for each in facts.bad_images).most_common(20),
        warnings=warnings.most_common(_MAX_EVENTS),
        events=[_describe_event(each) for each in shown[-_MAX_EVENTS:]],
        num_events=len(shown),
        commands=_list_commands(facts, where),
        where=where,
        has_gate_page=(folder / "gate.html").is_file(),
        num_resumes=sum(each["event"] == "resume" for each in facts.events),
    )


def _list_classes(predictions: Predictions) -> list[tuple[Any, ...]]:
    """List name, samples, precision, recall, F1 and the most frequent wrong prediction; of many, those of least F1."""
    counts = confusion_counts(predictions)
    scores = class_scores(counts)
    wrong = counts - np.diag(counts.diagonal())
    rows = []
    for index in sorted(worst_classes(scores, _MAX_CLASSES)):
        other = int(wrong[index].argmax())
        mistaken = (
            f"{shorten(predictions.class_names[other], 60)} ({wrong[index, other]})" if wrong[index, other] else ""
        )
        numbers = (f"{each[index]:.3f}" for each in (scores.precision, scores.recall, scores.f1))
        rows.append((shorten(predictions.class_names[index], 60), int(scores.support[index]), *numbers, mistaken))
    return rows


def _calibrate(predictions: Predictions | None) -> tuple[CalibrationBins, float]:
    assert predictions is not None
    bins = reliability_bins(np.clip(predictions.probability, 0, 1), predictions.is_correct)
    return bins, expected_calibration_error(bins)


def _list_samples(facts: RunFacts, predictions: Predictions) -> list[SampleGroup]:
    """List the samples that are worth a look, in two groups."""
    groups = [("worst", "The worst errors", worst_errors(predictions, _NUM_SAMPLES))]
    if predictions.is_classifier:
        groups.append(("uncertain", "The least certain", least_certain(predictions, _NUM_SAMPLES)))
    return limit_images(
        SampleGroup(name, title, [_describe_sample(facts, predictions, at) for at in positions.tolist()])
        for name, title, positions in groups
    )


def _describe_sample(facts: RunFacts, predictions: Predictions, at: int) -> PageSample:
    note = ""
    if predictions.is_classifier:
        note = f"{predictions.probability[at]:.2f}, label {predictions.label_probability[at]:.2f}"
    return PageSample(
        path=shorten(predictions.name_sample(at, facts.data.get("root")), 120),
        label=shorten(predictions.describe(predictions.target[at]), 60),
        predicted={"predicted": shorten(predictions.describe(predictions.prediction[at]), 60)},
        note=note,
        image=read_thumbnail(facts.run.folder, predictions.split, int(predictions.index[at])),
    )


def _describe_event(event: Mapping[str, Any]) -> tuple[str, str, str]:
    """Write the time, the kind and the other fields of an event."""
    fields = {key: value for key, value in event.items() if key not in ("time", "event") and not key.endswith("_bytes")}
    text = ", ".join(f"{key} {format_value(value)}" for key, value in fields.items() if value is not None)
    return format_moment(event.get("time", "")), str(event["event"]), shorten(text)


def _list_commands(facts: RunFacts, where: str) -> list[tuple[str, str]]:
    """List what to do with a run and its commands, to be typed in the folder that it was started in."""
    run, first = shlex.quote(where), shlex.join(map(str, facts.manifest.get("command") or ()))
    commands = []
    if first:
        is_open = facts.status in ("preempted", "killed", "failed", "interrupted")
        commands.append(("Resume it" if is_open else "Train with the same config", first))
    if facts.status == "done" and facts.manifest.get("subcommand") == "fit":
        commands.append(("Repeat it and compare", f"lightkit reproduce {run}"))
    commands += [
        ("Test it", f"lightkit test --run {run}"),
        ("Label images", f"lightkit predict --run {run} IMAGES"),
        ("Export it", f"lightkit export --run {run} --format onnx"),
        ("Write this page again", f"lightkit report {run}"),
    ]
    return commands


def draw_figures(facts: RunFacts) -> dict[str, PageFigure]:
    """Draw every figure of a run for which there is data, by its name."""
    drawn: list[PageFigure] = []
    stems: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for row in facts.rows for name in row):
        if name not in NO_METRICS and not name.startswith("lr/"):
            stems.setdefault(_SPLIT_PREFIX.sub("", name) or name, []).append(name)
    best = (facts.summary.get("best") or {}).get("epoch")
    marks = {
        kind: sorted({int(each["epoch"]) for each in facts.events if each["event"] == event and "epoch" in each})
        for kind, event in (("resumed_at", "resume"), ("skipped_at", "nonfinite"))
    }
    order = sorted(stems, key=lambda stem: (stem != "loss", stem != "accuracy"))
    for index, stem in enumerate(order[:_MAX_CURVES]):
        drawing = figures.draw_curves(
            facts.rows, sorted(stems[stem]), best_epoch=best, **marks, with_learning_rate=index == 0
        )
        last = ", ".join(
            f"{name} {format_number(value)}"
            for name in sorted(stems[stem])
            if (value := next((row[name] for row in reversed(facts.rows) if name in row), None)) is not None
        )
        file = re.sub("[^a-z0-9]+", "-", stem.lower()).strip("-")[:40] or str(index)
        name = f"curve-{file}" if f"curve-{file}" not in {each.name for each in drawn} else f"curve-{file}-{index}"
        label = f"{stem} over {len(facts.rows)} epochs; at the end: {last}"
        drawn.append(PageFigure(name, drawing, stem, label))
    for found in [*facts.predictions.values()][:1]:
        drawn += draw_predictions(found)
    spent = facts.summary.get("phases") or {}
    phases = {name: float(spent[name]) for name in _PHASES if spent.get(name)}
    if phases:
        label = ", ".join(f"{name} {format_duration(value)}" for name, value in phases.items())
        drawn.append(PageFigure("time", figures.draw_durations(phases), "where the time of training went", label))
    return {each.name: each for each in drawn}


def draw_predictions(found: Predictions) -> list[PageFigure]:
    """Draw the confusion matrix and reliability diagram of a classifier, or predictions over targets of a regressor."""
    about = f"{len(found)} samples of the {found.split} split"
    if not found.is_classifier:
        drawing = figures.draw_scatter(found.target, found.prediction)
        return [PageFigure("scatter", drawing, "prediction over target", f"Predictions for {about}")]
    counts = confusion_counts(found)
    label = f"Confusion matrix of {len(counts)} classes, {about}, of which {found.is_correct.sum()} are right"
    matrix = figures.draw_confusion_matrix(counts, found.class_names)
    drawn = [PageFigure("confusion-matrix", matrix, "labels in rows, predictions in columns", label)]
    if np.isfinite(found.probability).all():
        bins, error = _calibrate(found)
        label = f"Reliability diagram of {about}; expected calibration error {error:.3f}"
        drawn.append(PageFigure("reliability", figures.draw_reliability(bins), "reliability", label))
    return drawn
