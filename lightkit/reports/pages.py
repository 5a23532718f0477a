"""Pages of reports: the Jinja2 environment, the layout that all pages share, and the page of one run. No torch."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from lightkit.reports import figures
from lightkit.reports.facts import RunFacts, describe_verdict, find_score, read_facts
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


@cache
def environment() -> Environment:
    """Make the Jinja2 environment; every text is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    env = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
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
    """Write the page of a run and ``figures/`` in its folder, and return the page's path.

    Args:
        run: The run.
        path: Of the page; ``report.html`` in the folder if None.
    """
    facts = read_facts(run)
    drawn = draw_figures(facts)
    (run.folder / "figures").mkdir(exist_ok=True)
    for each in drawn.values():
        (run.folder / "figures" / f"{each.name}.png").write_bytes(figures.to_png(each.drawing))
    path = path or run.folder / "report.html"
    write_text(path, render_run(facts, drawn), durable=False)
    return path


def render_run(facts: RunFacts, drawn: Mapping[str, PageFigure]) -> str:
    """Render the page of a run."""
    return render_page(
        "run.html",
        title=f"{facts.name}: report",
        facts=facts,
        score=find_score(facts),
        verdict=describe_verdict(facts),
        figures=drawn,
    )


def draw_figures(facts: RunFacts) -> dict[str, PageFigure]:
    """Draw every figure of a run for which there is data, by its name."""
    stems: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for row in facts.rows for name in row):
        if "/" in name and not name.startswith("lr/"):
            stems.setdefault(name.partition("/")[2], []).append(name)
    best = (facts.summary.get("best") or {}).get("epoch")
    marks = {
        "resumed_at": [each["epoch"] for each in facts.events if each["event"] == "resume"],
        "skipped_at": [each["epoch"] for each in facts.events if each["event"] == "nonfinite"],
    }
    drawn = []
    for stem in sorted(stems, key=lambda stem: (stem != "loss", stem != "accuracy")):
        drawing = figures.draw_curves(
            facts.rows, sorted(stems[stem]), best_epoch=best, **marks, with_learning_rate=stem == "loss"
        )
        label = f"{stem} over {len(facts.rows)} epochs"
        drawn.append(PageFigure(f"curve-{re.sub('[^a-z0-9]+', '-', stem.lower())}", drawing, stem, label))
    return {each.name: each for each in drawn}
