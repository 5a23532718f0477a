"""Model cards: their metadata is what the Hub takes, and their text shows hostile names as such."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from lightkit.reports.facts import RunFacts, Setting
from lightkit.reports.pages import render_card
from tests.reports.examples import facts_of, predict

TEXT = {"type": "string", "minLength": 1}
SLUG = {"type": "string", "pattern": r"^[\w.-]+$"}


def _object(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    properties = {**required, **optional}
    return {
        "type": "object",
        "properties": properties,
        "required": [*required],
        "additionalProperties": False,
    }


METRIC = _object({"type": SLUG, "value": {"type": "number"}}, name=TEXT)
RESULT = _object(
    {
        "task": _object({"type": {"const": "image-classification"}}, name=TEXT),
        "dataset": _object({"type": SLUG, "name": TEXT}, split=TEXT),
        "metrics": {"type": "array", "items": METRIC, "minItems": 1},
    }
)
INDEX = _object({"name": TEXT, "results": {"type": "array", "items": RESULT, "minItems": 1}})
HUB = _object(
    {"library_name": SLUG, "tags": {"type": "array", "items": SLUG}},
    pipeline_tag={"const": "image-classification"},
    metrics={"type": "array", "items": {"enum": ["accuracy", "f1", "precision", "recall"]}},
    **{"model-index": {"type": "array", "items": INDEX, "minItems": 1}},
)
"""The part of https://github.com/huggingface/hub-docs/blob/main/modelcard.md that cards use."""


def split_card(card: str) -> tuple[dict[str, Any], str]:
    """The metadata, checked, and the text."""
    start, block, text = card.split("---\n", 2)
    assert start == ""
    metadata = yaml.safe_load(block)
    jsonschema.validate(metadata, HUB)
    return metadata, text


def classifier(folder: Path, **changes: Any) -> RunFacts:
    data = {
        "root": "/home/me/my photos",
        "class_names": ["cat", "dog"],
        "counts": {"val": 10, "test": 4},
    }
    summary = {
        "metrics": {"best": {"val/accuracy": 0.5, "val/loss": 0.7}},
        "stages": {"test": {"test/f1": 0.25}},
    }
    facts: dict[str, Any] = {"manifest": {"data": data}, "summary": summary, **changes}
    return facts_of(folder, predict([0, 1, 1, 1], [0, 1, 1, 0]), **facts)


def test_the_metadata_of_a_card_is_what_the_hub_takes(tmp_path: Path) -> None:
    metadata, text = split_card(render_card(classifier(tmp_path)))
    (index,) = metadata["model-index"]
    values = {
        (result["dataset"]["split"], metric["type"]): metric["value"]
        for result in index["results"]
        for metric in result["metrics"]
    }
    assert values == {
        ("test", "accuracy"): 0.75,
        ("test", "f1"): 0.25,
        ("validation", "accuracy"): 0.5,
    }
    assert index["results"][0]["dataset"] == {
        "name": "my photos",
        "type": "my-photos",
        "split": "test",
    }
    assert metadata["metrics"] == ["accuracy", "f1"]
    assert "license" not in metadata
    assert "| test/accuracy | 0.75 | 0.301 to 0.954 | 4 |" in text
    assert "| dog | 3 | 1.000 | 0.667 | 0.800 |" in text


def test_the_hubs_own_library_reads_the_results_of_a_card(tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub comes with the extra timm")
    card = hub.ModelCard(render_card(classifier(tmp_path)))
    accuracy, *_ = card.data.eval_results
    assert (accuracy.metric_type, accuracy.metric_value, accuracy.dataset_split) == (
        "accuracy",
        0.75,
        "test",
    )
    assert card.data.pipeline_tag == "image-classification"


def test_a_model_of_an_unknown_task_has_no_results_in_its_metadata(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, summary={"metrics": {"best": {"val/loss": 0.5}}})
    metadata, text = split_card(render_card(facts))
    assert {*metadata} == {"library_name", "tags"}
    assert "| val/loss | 0.5 |" in text


def test_a_run_that_left_nothing_has_a_card(tmp_path: Path) -> None:
    _, text = split_card(render_card(facts_of(tmp_path)))
    assert "has logged no metric" in text


def test_hostile_names_stay_texts_in_a_card(tmp_path: Path) -> None:
    hostile = "a|b <script>alert(1)</script>\n---\n[x](javascript:y) `c`: {"
    data = {"root": f"/x/{hostile}", "class_names": [hostile, "dog"]}
    settings = [Setting("data.root", hostile, "a.yaml:1")]
    predictions = predict([0, 1], [0, 1], class_names=(hostile, "dog"))
    facts = facts_of(tmp_path, predictions, manifest={"data": data}, settings=settings)
    metadata, text = split_card(render_card(facts))
    assert metadata["model-index"][0]["results"][0]["dataset"]["name"]
    assert "<script>" not in text
    assert "](" not in text.replace("\\](", "")
    rows = [line for line in text.splitlines() if "alert" in line]
    assert len(rows) == 3
    assert {line.replace("\\|", "").count("|") for line in rows} == {3, 6}
