"""Reports.

The layout that all pages share, and the page, the figures and the model card of one run. No torch.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import math
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from html import unescape
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from lightkit.config.yaml_reader import dump_yaml
from lightkit.errors import format_count, visible
from lightkit.reports import figures
from lightkit.reports.curves import Chart, Curve, choose_log_axis, dump_charts
from lightkit.reports.facts import (
    SPLITS,
    RunFacts,
    describe_verdict,
    is_metric,
    list_scores,
    read_facts,
)
from lightkit.reports.predictions import (
    Predictions,
    Split,
    confusion_counts,
    least_certain,
    list_confusions,
    score_classes,
    thumbnail_path,
    worst_errors,
)
from lightkit.reports.statistics import compute_calibration
from lightkit.reports.thresholds import (
    Thresholds,
    compute_class_thresholds,
    compute_thresholds,
    draw_thresholds,
    dump_thresholds,
)
from lightkit.reports.usage import draw_usage
from lightkit.runs.deadline import format_duration
from lightkit.runs.files import atomic_write, find_value, in_bytes, write_text
from lightkit.runs.folder import Run
from lightkit.runs.metrics import is_of_last_step
from lightkit.task import CLASSIFICATION

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.figure import Figure as MatplotlibFigure

_TEMPLATES = Path(__file__).with_name("templates")
_SECTION = re.compile(r'<section id="([^"]+)"[^>]*>\s*<h2>(.*?)</h2>', re.DOTALL)
_LONGEST_TEXT = 300
_MAX_EVENTS = 200
_MAX_CLASSES = 1000
_MAX_CARD_CLASSES = 50
_MAX_CURVES = 16
_NUM_SAMPLES = 20
_MAX_OTHERS = 60
_MAX_MOSAIC_BYTES = 150_000
_MAX_THUMBNAILS_BYTES = 1_500_000  # a third more in the page, which is to stay below 3 MB
_PHASES = {
    "start": "start",  # of runs before its parts were measured
    "setup": "setup of model and data",
    "fit_start": "start on the device",
    "sanity_check": "sanity check",
    "load": "load",
    "step": "step",
    "validation": "validation",
    "checkpoint": "checkpoint",
    "other": "other",
}
"""Phases of a fit, each with its name in the figure."""
_HUB_METRICS = ("accuracy", "f1", "precision", "recall")
"""Metrics of classifiers that have the same name on the Hub of Hugging Face:
https://hf.co/metrics."""
_SHARES = ("accuracy", "f1", "precision", "recall")
"""Metrics of classifiers that are nearly the same over the epochs, so that one figure has them
all."""
_SPLIT_PREFIX = re.compile(r"^(?:train|training|val|valid|validation|test)[/_]")


@dataclass(frozen=True)
class PageFigure:
    """A figure of a page.

    Args:
        name: Of its file in ``figures/``, and prefix of its ids in the page.
        drawing: What is drawn.
        caption: Text below it.
        label: Description for those who do not see it.
        chart: The same for the script of the page, where it is of curves.
    """

    name: str
    drawing: MatplotlibFigure
    caption: str
    label: str
    chart: Chart | None = None

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
        image: Address that holds its thumbnail; empty where there is none.
        note: More about it.
    """

    path: str
    label: str
    predicted: Mapping[str, str]
    image: str
    note: str = ""


class Thumbnails:
    """The thumbnails of one page, up to a size that keeps it below 3 MB."""

    def __init__(self) -> None:
        self._left_bytes = _MAX_THUMBNAILS_BYTES

    def read(self, folder: Path, split: Split, index: int) -> str:
        """Return an address that holds the thumbnail of a sample.

        Empty where there is none, or it is too large.

        Args:
            folder: The run folder.
            split: Split of the sample.
            index: Its position in the split.
        """
        path = thumbnail_path(folder, split, index)
        if not path.is_file() or path.stat().st_size > self._left_bytes:
            return ""
        content = path.read_bytes()
        self._left_bytes -= len(content)
        return f"data:image/jpeg;base64,{base64.b64encode(content).decode()}"


@cache
def environment() -> Environment:
    """Make the Jinja2 environment; every text of an HTML page is escaped."""
    from jinja2 import ChainableUndefined, Environment, FileSystemLoader, select_autoescape

    env = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=select_autoescape(),
        undefined=ChainableUndefined,  # a run that was killed lacks what it had not written yet
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # names of the user's, not markup
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    env.filters |= {
        "number": format_number,
        "value": format_value,
        "duration": format_duration,
        "size": in_bytes,
        "moment": format_moment,
        "shorten": shorten,
        "quote": shlex.quote,
        "markdown": escape_markdown,
    }
    return env


def render_page(
    template: str,
    *,
    title: str,
    charts: Sequence[Chart] = (),
    rates: Markup | None = None,
    **values: Any,
) -> str:
    """Render a template into the layout of all pages.

    One HTML file with its style, scripts and table of contents.

    Args:
        template: File in ``templates/`` with the content of ``<main>``. Each ``<section id=...>``
            that begins with an ``<h2>`` is in the table of contents.
        title: Of the page.
        charts: Curves that the script draws over the figures of their names; with them the page
            holds uPlot.
        rates: Those of each class, which the script draws over the figure of the thresholds, see
            `dump_thresholds`.
        values: What the template needs.
    """
    body = environment().get_template(template).render(**values)
    style = _read_part("style.css")
    names = ["script.js"]
    if rates:
        names.insert(0, "rates.js")
    if charts:
        names.insert(0, "curves.js")
    has_plots = bool(charts or rates)
    if has_plots:
        names.insert(0, "uplot/uPlot.iife.min.js")
        style += _read_part("uplot/uPlot.min.css")
    scripts = [_read_part(name) for name in names]
    uplot_license = Markup(_read_part("uplot/LICENSE").strip()) if has_plots else ""  # noqa: S704 - as below
    return (
        environment()
        .get_template("base.html")
        .render(
            title=title,
            body=Markup(body),  # noqa: S704 - rendered with escapes
            contents=[
                (name, unescape(re.sub("<[^>]*>", "", head)).strip())
                for name, head in _SECTION.findall(body)
            ],
            style=Markup(style),  # noqa: S704 - lightkit's own
            style_digest=_digest(style),
            scripts=[Markup(script) for script in scripts],  # noqa: S704 - as above
            script_digests=[_digest(script) for script in scripts],
            charts=dump_charts(charts),
            rates=rates,
            uplot_license=uplot_license,
            now=format_moment(datetime.now(UTC).isoformat()),
        )
    )


@cache
def _read_part(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


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
        return f"{datetime.fromisoformat(str(text)).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return str(text)


def shorten(text: Any, length: int = _LONGEST_TEXT) -> str:
    """Leave out the end of a text that is too long for a page."""
    text = str(text)
    return text if len(text) <= length else f"{text[: length - 1]}…"


def escape_markdown(value: Any) -> str:
    """Write a value on one line, so that Markdown and HTML show it as it is."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = shorten(" ".join(text.split()))
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|$~])", r"\\\1", text)


def read_image(path: Path) -> str:
    """Return an address that holds a JPEG file; empty where there is none, or it is large."""
    if not path.is_file() or path.stat().st_size > _MAX_MOSAIC_BYTES:
        return ""
    return f"data:image/jpeg;base64,{base64.b64encode(path.read_bytes()).decode()}"


def write_run_report(run: Run, path: Path | None = None) -> Path:
    """Write the page of a run and return its path.

    Args:
        run: The run.
        path: Of the page, and nothing is written in the run folder; None for ``report.html``,
            ``figures/`` and ``card.md`` in the folder.
    """
    facts = read_facts(run)
    drawn = draw_figures(facts)
    if path is not None:
        write_text(path, render_run(facts, drawn), durable=False)
        return path
    for each in drawn.values():
        picture = figures.to_png(each.drawing)
        with atomic_write(run.folder / "figures" / f"{each.name}.png", durable=False) as aside:
            aside.write_bytes(picture)
    path = run.folder / "report.html"
    write_text(path, render_run(facts, drawn), durable=False)
    write_text(run.folder / "card.md", render_card(facts), durable=False)
    return path


def try_run_report(run: Run) -> Path | None:
    """Write the report of a run and return its path.

    Where that fails, warn: no training fails by its report.
    """
    try:
        return write_run_report(run)
    except Exception as error:  # noqa: BLE001
        text = " ".join(f"{type(error).__name__}: {error}".split())
        logging.getLogger("lightkit").warning(
            "report.html was not written: %s. `lightkit report` tries again.", text
        )
        return None


def render_run(facts: RunFacts, drawn: Mapping[str, PageFigure]) -> str:
    """Render the page of a run."""
    described = _describe(facts, _MAX_CLASSES)
    folder = facts.run.folder
    predictions: Predictions | None = described["predictions"]
    class_rates = {} if predictions is None else compute_class_thresholds(predictions)
    began_in = str(facts.manifest.get("working_directory") or "")
    warnings = Counter(
        str(each.get("message")) for each in facts.events if each["event"] == "warning"
    )
    shown = [
        each for each in facts.events if each["event"] not in ("epoch", "checkpoint", "warning")
    ]
    return render_page(
        "run.html",
        title=f"{facts.name}: report",
        charts=[each.chart for each in drawn.values() if each.chart is not None],
        rates=dump_thresholds(_list_choices(described["thresholds"], class_rates)),
        **described,
        class_rates=class_rates,
        figures=drawn,
        confusions=_list_confusions(predictions),
        groups=_choose_samples(facts, predictions),
        bad_reasons=Counter(each.reason for each in facts.bad_images).most_common(20),
        warnings=warnings.most_common(_MAX_EVENTS),
        others=_list_other_scores(facts),
        events=shown[-_MAX_EVENTS:],
        num_events=len(shown),
        where=str(folder).removeprefix(f"{began_in}/") if began_in else str(folder),
        has_gate_page=(folder / "gate.html").is_file(),
        mosaic=read_image(folder / "figures" / "train-batch.jpg"),
    )


def _describe(facts: RunFacts, max_classes: int) -> dict[str, Any]:
    """Collect what both the page and the card of a run show."""
    predictions = next(iter(facts.predictions.values()), None)
    blocks = frozenset() if predictions is None else predictions.task.report_blocks
    return {
        "facts": facts,
        "verdict": describe_verdict(facts),
        "predictions": predictions,
        "scores": list_scores(facts).values(),
        "classes": (
            score_classes(predictions, max_classes)
            if predictions is not None and "classes" in blocks
            else []
        ),
        "calibration": compute_calibration(predictions) if "calibration" in blocks else None,
        "thresholds": None if predictions is None else compute_thresholds(predictions),
    }


def _list_choices(
    overall: Thresholds | None, classes: Mapping[str, Thresholds]
) -> list[Thresholds]:
    """List the curves of which a page shows one: that of its figure first, maybe of a class."""
    if overall is None:
        return []
    return [overall, *(each for each in classes.values() if each.name != overall.name)]


def _list_other_scores(facts: RunFacts) -> list[tuple[str, str, str, str]]:
    """List the metrics of other weights, data or settings than the best checkpoint's.

    The newest test first.
    """
    rows = []
    for score in reversed(facts.other_scores):
        origin = score.describe_origin(data=facts.fingerprint)
        num_samples = "" if score.num_samples is None else format_number(score.num_samples)
        for metric, value in sorted(score.metrics.items()):
            if is_metric(metric):
                rows.append((metric, format_number(value), shorten(origin), num_samples))
    return rows[:_MAX_OTHERS]


def _list_confusions(predictions: Predictions | None) -> list[tuple[str, str, int]]:
    if predictions is None or "confusions" not in predictions.task.report_blocks:
        return []
    return list_confusions(predictions, 10)


def _choose_samples(
    facts: RunFacts, predictions: Predictions | None
) -> list[tuple[str, str, list[PageSample]]]:
    """Choose the samples that are worth a look, in groups with an id and a title."""
    if predictions is None:
        return []
    thumbnails = Thumbnails()

    def describe(at: int) -> PageSample:
        return PageSample(
            path=shorten(predictions.name_sample(at, facts.data.get("root")), 120),
            label=shorten(predictions.describe(predictions.target[at]), 60),
            predicted={"predicted": shorten(predictions.describe(predictions.prediction[at]), 60)},
            image=thumbnails.read(facts.run.folder, predictions.split, int(predictions.index[at])),
            note=predictions.task.form.describe_certainty(predictions, at),
        )

    chosen = [("worst", "The worst errors", worst_errors(predictions, _NUM_SAMPLES))]
    if "uncertain" in predictions.task.report_blocks:
        chosen.append(("uncertain", "The least certain", least_certain(predictions, _NUM_SAMPLES)))
    return [
        (name, title, [describe(at) for at in positions.tolist()])
        for name, title, positions in chosen
    ]


def render_card(facts: RunFacts) -> str:
    """Write the model card of a run in the format of the Hugging Face Hub.

    Metadata in YAML, and a text in Markdown.

    The metadata follows https://github.com/huggingface/hub-docs/blob/main/modelcard.md. It names no
    license, for a run does not know that of its data and weights.
    """
    return f"---\n{dump_yaml(make_card_metadata(facts))}---\n\n{describe_model(facts)}"


def make_card_metadata(facts: RunFacts) -> dict[str, Any]:
    """Make the metadata; ``pipeline_tag`` and ``model-index`` for classifiers alone.

    Their task is known.
    """
    metadata: dict[str, Any] = {
        "library_name": "lightkit",
        "tags": ["lightkit", "pytorch-lightning", "pytorch"],
    }
    if not facts.data.get("class_names"):
        return metadata
    predictions = next(iter(facts.predictions.values()), None)
    tag, title = (CLASSIFICATION if predictions is None else predictions.task).form.hub_task
    metadata["pipeline_tag"] = tag
    name = (
        PurePath(str(facts.data.get("root") or facts.data.get("source") or facts.run.name)).name
        or "data"
    )
    dataset = {
        "name": " ".join(name.split()),
        "type": re.sub(r"[^\w.-]+", "-", name).strip("-.") or "data",
    }
    results: list[dict[str, Any]] = []
    for split, metrics in _list_hub_scores(facts).items():
        task = {"type": tag, "name": title}
        results.append({"task": task, "dataset": {**dataset, "split": split}, "metrics": metrics})
    if results:
        found = {each["type"] for result in results for each in result["metrics"]}
        metadata["metrics"] = [metric for metric in _HUB_METRICS if metric in found]
        metadata["model-index"] = [{"name": facts.run.name, "results": results}]
    return metadata


def _list_hub_scores(facts: RunFacts) -> dict[str, list[dict[str, Any]]]:
    """Return the scores that the Hub knows, of each split that has some."""
    scores = list_scores(facts)
    results: dict[str, list[dict[str, Any]]] = {}
    for split, prefix in SPLITS.items():
        for metric in _HUB_METRICS:
            score = scores.get(f"{prefix}/{metric}")
            if score is not None:
                entry = {
                    "type": metric,
                    "value": round(score.value, 6),
                    "name": f"{split} {metric}",
                }
                results.setdefault(split, []).append(entry)
    return results


def describe_model(facts: RunFacts) -> str:
    """Write the text of a model card, without its metadata."""
    settings = {each.key: each.value for each in facts.settings}
    return (
        environment()
        .get_template("card.md")
        .render(_describe(facts, _MAX_CARD_CLASSES), settings=settings)
    )


def draw_metric_curves(facts: RunFacts) -> list[PageFigure]:
    """Draw the metrics of a run over its epochs.

    A figure each, and one for those shares that are nearly the same.
    """
    latest: dict[str, float] = {}
    for row in facts.rows:
        latest |= row
    stems: dict[str, list[str]] = {}
    for name in filter(is_metric, latest):
        stem = _remove_split(name)
        stems.setdefault(_SHARES[0] if stem in _SHARES else stem, []).append(name)
    order = sorted(stems, key=lambda stem: (stem != "loss", stem != "accuracy"))
    best = find_value(facts.summary, "best", "epoch")
    resumed_at = _list_epochs(facts, "resume")
    skipped_at = _list_epochs(facts, "nonfinite")

    drawn: dict[str, PageFigure] = {}
    for index, stem in enumerate(order[:_MAX_CURVES]):
        names = sorted(stems[stem])
        drawing = figures.draw_curves(
            facts.rows,
            names,
            best_epoch=best,
            resumed_at=resumed_at,
            skipped_at=skipped_at,
            with_learning_rate=index == 0,
            has_log_axis=choose_log_axis(
                [row[name] for row in facts.rows for name in names if name in row]
            ),
        )
        file = f"curve-{name_file(stem) or index}"
        if file in drawn:
            file = f"{file}-{index}"
        caption = _describe_metrics(names, latest)
        ends = ", ".join(f"{name} {format_number(latest[name])}" for name in names)
        label = f"{caption} over {format_count(len(facts.rows), 'epoch')}; at the end: {ends}"
        lines = [
            Curve(name, facts.rows, name, color=at, dash=at // len(figures.SERIES))
            for at, name in enumerate(names)
        ]
        drawn[file] = PageFigure(file, drawing, caption, label, Chart(file, lines, best=best))
    return [*drawn.values()]


def _remove_split(metric: str) -> str:
    """Return the name of a metric without its split."""
    return _SPLIT_PREFIX.sub("", metric) or metric


def _list_epochs(facts: RunFacts, event: str) -> list[int]:
    """List the epochs in which an event occurred."""
    return sorted(
        {int(each["epoch"]) for each in facts.events if each["event"] == event and "epoch" in each}
    )


def _describe_metrics(names: Sequence[str], latest: Mapping[str, float]) -> str:
    """Write the caption of the curves of some metrics."""
    caption = ", ".join(dict.fromkeys(map(_remove_split, names)))
    if all(is_of_last_step(name, latest) for name in names):
        caption += " (the value of the last step of each epoch)"
    return caption


def name_file(metric: str) -> str:
    """Return the part of a figure's name that a metric gives it.

    Empty without a letter or digit.
    """
    return re.sub("[^a-z0-9]+", "-", metric.lower()).strip("-")[:40]


def draw_figures(facts: RunFacts) -> dict[str, PageFigure]:
    """Draw every figure of a run for which there is data, by its name."""
    drawn = draw_metric_curves(facts)
    for found in [*facts.predictions.values()][:1]:
        drawn += draw_predictions(found)
    spent = facts.summary.get("phases") or {}
    phases = {label: float(spent[name]) for name, label in _PHASES.items() if spent.get(name)}
    if phases:
        label = ", ".join(f"{name} {format_duration(value)}" for name, value in phases.items())
        drawn.append(
            PageFigure(
                "time", figures.draw_durations(phases), "where the time of training went", label
            )
        )
    drawn += [PageFigure(*each) for each in draw_usage(facts.usage)]
    return {each.name: each for each in drawn}


def draw_predictions(found: Predictions) -> list[PageFigure]:
    """Draw the confusion matrix and reliability diagram of a classifier.

    Draw predictions over targets of a regressor.
    """
    about = f"{format_count(len(found), 'sample')} of the {found.split} split"
    if "scatter" in found.task.report_blocks:
        has_log_axes = choose_log_axis([*found.target.tolist(), *found.prediction.tolist()])
        drawing = figures.draw_scatter(found.target, found.prediction, has_log_axes=has_log_axes)
        residuals = figures.draw_residuals(
            found.target, found.prediction, has_log_axis=has_log_axes
        )
        return [
            PageFigure("scatter", drawing, "prediction over target", f"Predictions for {about}"),
            PageFigure(
                "residuals",
                residuals,
                "prediction minus target, over target",
                f"Residuals of {about}",
            ),
        ]
    drawn = []
    if "confusions" in found.task.report_blocks:
        counts = confusion_counts(found)
        num_right = int(counts.diagonal().sum())
        label = (
            f"Confusion matrix of {len(counts)} classes, {about}, of which {num_right} are right"
        )
        matrix = figures.draw_confusion_matrix(counts, found.class_names)
        drawn.append(
            PageFigure("confusion-matrix", matrix, "labels in rows, predictions in columns", label)
        )
    if (calibration := compute_calibration(found)) is not None:
        label = (
            f"Reliability diagram of {about}; expected calibration error {calibration.error:.3f}"
        )
        drawn.append(
            PageFigure("reliability", figures.draw_reliability(calibration), "reliability", label)
        )
    thresholds = compute_thresholds(found)
    if thresholds is not None:
        label = (
            f"Precision over recall, average precision {thresholds.average_precision:.3f}, and true"
            f" over false positive rate, area {thresholds.area:.3f}, {about}"
        )
        drawn.append(
            PageFigure("thresholds", draw_thresholds(thresholds), thresholds.subject, label)
        )
    return drawn
