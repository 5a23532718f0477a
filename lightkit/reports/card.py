"""`card.md`: a model card in the format of the Hugging Face Hub, from the files of a run folder. No torch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import numpy as np

from lightkit.config.yaml_reader import dump_yaml
from lightkit.reports.facts import (
    SPLITS,
    RunFacts,
    describe_verdict,
    list_scores,
)
from lightkit.reports.predictions import class_scores, confusion_counts, worst_classes
from lightkit.reports.statistics import expected_calibration_error, reliability_bins

_HUB_METRICS = ("accuracy", "f1", "precision", "recall")
"""Metrics of classifiers that have the same name on the Hub: https://hf.co/metrics."""
_MAX_CLASSES = 50
_MAX_SETTINGS = 60


def render_card(facts: RunFacts) -> str:
    """Write the card: a block of metadata in YAML, and a text in Markdown.

    The metadata follows https://github.com/huggingface/hub-docs/blob/main/modelcard.md. It names no license, for a run
    does not know that of its data and weights.
    """
    return f"---\n{dump_yaml(make_metadata(facts))}---\n\n{describe_model(facts)}"


def make_metadata(facts: RunFacts) -> dict[str, Any]:
    """Make the metadata; ``pipeline_tag`` and ``model-index`` for classifiers alone, whose task is known."""
    metadata: dict[str, Any] = {"library_name": "lightkit", "tags": ["lightkit", "pytorch-lightning", "pytorch"]}
    if not facts.data.get("class_names"):
        return metadata
    metadata["pipeline_tag"] = "image-classification"
    scores = list_scores(facts)
    name = PurePath(str(facts.data.get("root") or facts.data.get("source") or facts.run.name)).name or "data"
    dataset = {"name": " ".join(name.split()), "type": re.sub(r"[^\w.-]+", "-", name).strip("-.") or "data"}
    results: list[dict[str, Any]] = []
    for split, prefix in SPLITS.items():
        metrics = [
            {"type": metric, "value": round(score.value, 6), "name": f"{split} {metric}"}
            for metric in _HUB_METRICS
            if (score := scores.get(f"{prefix}/{metric}")) is not None
        ]
        if metrics:
            task = {"type": "image-classification", "name": "Image Classification"}
            results.append({"task": task, "dataset": {**dataset, "split": split}, "metrics": metrics})
    if results:
        found = {each["type"] for result in results for each in result["metrics"]}
        metadata["metrics"] = [metric for metric in _HUB_METRICS if metric in found]
        metadata["model-index"] = [{"name": facts.run.name, "results": results}]
    return metadata


def describe_model(facts: RunFacts) -> str:
    """Write the card's text, without its metadata."""
    return "\n".join(_list_lines(facts)) + "\n"


def _list_lines(facts: RunFacts) -> Iterator[str]:
    manifest, data = facts.manifest, facts.data
    git, hardware, packages = (manifest.get(key) or {} for key in ("git", "hardware", "packages"))
    predictions = next(iter(facts.predictions.values()), None)
    commit = f"{git.get('commit') or ''}{', with changes that are not committed' if git.get('dirty') else ''}"
    device = f"{len(hardware['gpus'])} x {hardware['gpus'][0]}" if hardware.get("gpus") else hardware.get("cpu")
    yield f"# {_plain(facts.run.name)}"
    yield ""
    yield _plain(describe_verdict(facts))
    yield ""
    settings = {each.key: each.value for each in facts.settings}
    yield from _table(
        ("", ""),
        [
            (title, value)
            for title, value in (
                ("Run", facts.name),
                ("Model", settings.get("model")),
                ("Backbone", settings.get("model.backbone")),
                ("Checkpoint (SHA-256)", None if predictions is None else predictions.sha256),
                ("Trained", manifest.get("created")),
                ("Epochs", facts.summary.get("epochs")),
                ("Hardware", device),
                ("Code", commit),
                ("lightkit", manifest.get("lightkit")),
                ("torch", packages.get("torch")),
            )
            if value not in (None, "")
        ],
    )
    prefixes = tuple(f"{prefix}/" for prefix in SPLITS.values())
    if scores := [score for score in list_scores(facts).values() if score.metric.startswith(prefixes)]:
        yield "## Results"
        yield ""
        yield from _table(
            ("metric", "value", "95 % interval", "samples"),
            [
                (
                    score.metric,
                    f"{score.value:.4g}",
                    "" if score.low is None or score.high is None else f"{score.low:.3g} to {score.high:.3g}",
                    "" if score.num_samples is None else score.num_samples,
                )
                for score in scores
            ],
        )
    if predictions is not None and predictions.is_classifier and len(predictions):
        counts = confusion_counts(predictions)
        found = class_scores(counts)
        shown = sorted(worst_classes(found, _MAX_CLASSES))
        left_out = len(counts) - len(shown)
        yield f"## Classes of the {predictions.split} split"
        yield ""
        yield from _table(
            ("class", "samples", "precision", "recall", "F1"),
            [
                (
                    predictions.class_names[at],
                    int(found.support[at]),
                    *(f"{each[at]:.3f}" for each in (found.precision, found.recall, found.f1)),
                )
                for at in shown
            ],
        )
        if left_out:
            yield f"These are the {len(shown)} classes of least F1; {left_out} more are left out."
            yield ""
        if np.isfinite(predictions.probability).all():
            bins = reliability_bins(np.clip(predictions.probability, 0, 1), predictions.is_correct)
            yield f"Expected calibration error: {expected_calibration_error(bins):.3f} (15 bins of equal width)."
            yield ""
    if data:
        counted = data.get("counts") or {}
        yield "## Data"
        yield ""
        yield from _table(
            ("", ""),
            [
                (title, value)
                for title, value in (
                    ("Source", data.get("source")),
                    *((f"Samples to {verb}", counted.get(key)) for verb, key in _COUNTS.items()),
                    ("Classes", ", ".join(map(str, data.get("class_names") or ()))),
                    ("Images left out", data.get("bad_images")),
                    ("Fingerprint", data.get("fingerprint")),
                )
                if value not in (None, "")
            ],
        )
    if changed := [each for each in facts.settings if each.place is not None]:
        yield "## Settings"
        yield ""
        yield "Those that are not defaults."
        yield ""
        yield from _table(("key", "value"), [(each.key, each.value) for each in changed[:_MAX_SETTINGS]])
    yield "## Use"
    yield ""
    yield "In the folder that it was trained in:"
    yield ""
    yield "```"
    if data.get("class_names"):
        yield f"lightkit predict --run {facts.name} IMAGES"
    yield f"lightkit export --run {facts.name} --format onnx"
    yield "```"
    yield ""
    yield "## Limits"
    yield ""
    yield (
        "The intervals are for samples drawn like those above; on other data the model may be worse. Intended uses, "
        "biases, and the licenses of the data and of pretrained weights are not recorded in a run: add them before "
        "you publish the model."
    )


_COUNTS = {"train": "train", "validate": "val", "test": "test"}


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(map(_plain, row))} |"
    yield ""


def _plain(value: Any) -> str:
    """Write a value on one line, so that Markdown and HTML show it as it is."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = " ".join(text.split())
    text = text if len(text) <= 300 else f"{text[:299]}…"
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|$~])", r"\\\1", text)
