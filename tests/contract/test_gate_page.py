"""`gate.html`: the decision in one file.

The decision in words, the samples that decide, the history and the next step.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.contract.conftest import Once, copy_of
from tests.contract.test_report import HOSTILE, check_page
from tests.contract.workspace import Workspace, read_json

pytestmark = pytest.mark.timeout(900)  # on a busy machine


@pytest.fixture(scope="session")
def judged_original(made_once: Once, planted_original: Path) -> Path:
    """The workspace `planted`: the worse run is refused, then promoted by looser rules."""

    def judge(workspace: Workspace) -> None:
        copy_of(planted_original, workspace)
        run = workspace.runs[1]
        words = (
            "--run.report=true",
            "--gate.confidence=0.95",
            "--gate.slices={greens: 0.9, reds: 0.1}",
        )
        assert workspace.run("gate", str(run), *words).code == 4
        (run / "gate.html").rename(workspace.folder / "refused.html")
        loose = (
            "--gate.max_drop=null",
            "--gate.slices=null",
            "--run.report=true",
            f"--reason={HOSTILE}",
        )
        workspace.run("promote", str(run), *loose).ok()

    return made_once("judged", judge)


def text_of(path: Path) -> str:
    """The text of a page that holds what every page holds."""
    return check_page(path.read_text(encoding="utf-8")).text


def test_the_page_of_a_refusal_says_in_words_what_decides(judged_original: Path) -> None:
    text = text_of(judged_original / "refused.html")
    assert re.search(
        r"rejected 2 of 4 conditions are not met: test/accuracy is 0\.8, expected .*; test/accuracy"
        r" of greens is .*\. "
        r"test/accuracy is 0\.8 \(95 % interval 0\.711 to 0\.867\) on 100 samples; net version 1"
        r" \(champion\) has 0\.9",
        text,
    )
    parts = ("What was asked", "What was found", "What decides", "Slices",
             "The samples that decide",
             "History of the champion", "Next step", "Details")  # fmt: skip
    places = [text.rindex(part) for part in parts]
    assert places == sorted(places)
    assert "test/accuracy of greens is" in text
    assert "this model alone is right on 0 and net version 1 (champion) alone on 10" in text
    assert "beyond the noise of the samples (McNemar's exact test, p = 0.002)" in text
    assert "lightkit gate net/" in text


def test_the_page_has_intervals_of_slices_and_the_samples_that_decide(
    judged_original: Path,
) -> None:
    text = text_of(judged_original / "refused.html")
    assert re.search(r"greens 16 0\.\d+ 0\.\d+ to 0\.\d+ 0\.9375 at least 0\.9 not met", text)
    assert "Right by net version 1 (champion) alone (10)" in text
    assert "sample 83" in text


def test_the_page_of_a_promoted_run_says_so(judged_original: Path) -> None:
    (run,) = (path.parent for path in judged_original.glob("runs/net/2*/gate.html"))
    page = (run / "gate.html").read_text(encoding="utf-8")
    text = check_page(page).text
    assert "The alias champion points to this model: version 2 of net" in text
    assert re.search(r"passed Each condition is met", text)
    assert "the first" in text, "the history"
    assert "lightkit rollback net" in text
    assert len(page.encode()) <= 500_000


def decision(*, num_slices: int, num_samples: int) -> dict[str, Any]:
    """The content of a gate.json with hostile texts."""
    interval = [0.1, 0.4]
    sample = {
        "kind": "wrong",
        "path": HOSTILE,
        "label": HOSTILE,
        "challenger": HOSTILE,
        "baseline": HOSTILE,
    }
    asks = {"challenger": 0.3, "baseline": None, "asks": HOSTILE, "passed": False}
    names = [f"{HOSTILE} {index}" for index in range(num_slices)]
    move = {"kind": "promote", "alias": "champion", "from": None, "to": "1", "by": HOSTILE,
            "reason": HOSTILE,
            "metric": HOSTILE, "scores": {"challenger": 0.5}, "time": HOSTILE}  # fmt: skip
    return {
        "schema": 1, "passed": False, "metric": "test/accuracy", "baseline": HOSTILE,
        "num_samples": 9,
        "scores": {"challenger": {"test/accuracy": 0.3},
                   "baseline": {"test/accuracy": 0.4, HOSTILE: 1.0}},
        "intervals": {"confidence": 0.95, "challenger": interval, "baseline": interval},
        "slices": {name: {**asks, "num_samples": 5, "interval": interval} for name in names},
        "significance": {"test": "bootstrap", "p_value": 0.2, "counts": False, "difference": -0.1,
                         "low": -0.2,
                         "high": 0.0, "num_samples": 9, "only_challenger": 3, "only_baseline": 4},
        "checks": [{"name": f"test/accuracy of {name}", **asks} for name in names],
        "reasons": [HOSTILE] * num_slices,
        "samples": [{**sample, "index": index} for index in range(num_samples)],
        "history": [move] * 20,
        "settings": {"name": HOSTILE, "metric": HOSTILE, "baseline": "champion"},
        "notices": [HOSTILE],
        "against": {"run": HOSTILE}, "checkpoint": {"path": HOSTILE, "sha256": HOSTILE},
        "time": HOSTILE, "data": {"fingerprint": HOSTILE, "split": "test"}, "lightkit": HOSTILE,
        "run": HOSTILE,
    }  # fmt: skip


def write_page(workspace: Workspace, content: str) -> str:
    """Write the page of a run folder that has this gate.json."""
    folder = workspace.runs[1]
    (folder / "gate.json").write_text(content, encoding="utf-8")
    workspace.run("report", str(folder)).ok()
    return (folder / "gate.html").read_text(encoding="utf-8")


def test_hostile_texts_stay_texts_on_the_page_of_a_gate(planted: Workspace) -> None:
    page = write_page(planted, json.dumps(decision(num_slices=2, num_samples=3)))
    tags = check_page(page)
    assert [name for name, _ in tags.tags].count("script") == 1
    assert "img" not in [name for name, _ in tags.tags]
    assert "<script>alert(1)</script>" in tags.text


def test_a_thousand_slices_and_pictures_make_no_large_page(planted: Workspace) -> None:
    thumbnails = planted.runs[1] / "thumbnails"
    thumbnails.mkdir(exist_ok=True)
    random = np.random.default_rng(3)
    for index in range(60):
        # noise: no photo of that size is larger
        pixels = random.integers(0, 255, (160, 160, 3), np.uint8)
        Image.fromarray(pixels).save(thumbnails / f"test-{index}.jpg", quality=80)
    page = write_page(planted, json.dumps(decision(num_slices=1000, num_samples=1000)))
    check_page(page)
    assert 500_000 < len(page.encode()) <= 3_000_000
    assert len(re.sub(r"base64,[^\"]*", "", page).encode()) <= 500_000


@pytest.mark.parametrize(
    "content", ["{}", '{"schema": 1, "passed": true, "metric": null, "checks": []}', "torn {"]
)
def test_an_old_or_torn_gate_json_has_a_page(content: str, planted: Workspace) -> None:
    assert "Nothing is judged" in check_page(write_page(planted, content)).text


def test_a_gate_without_reports_leaves_no_page(planted_original: Path) -> None:
    assert not list(planted_original.glob("runs/net/2*/gate.html"))
    judged = read_json(planted_original / "gate.json")
    assert judged["intervals"]["challenger"] == pytest.approx([0.8256, 0.9448], abs=1e-3)
