"""`report.html`: one file that needs nothing else, whatever a run folder holds."""

from __future__ import annotations

import base64
import hashlib
import io
import itertools
import json
import re
import shutil
import signal
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import html5lib
import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from tests.contract.conftest import Once, copy_of
from tests.contract.workspace import Workspace

HOSTILE = "<script>alert(1)</script>\"'&$x$ ${oc.env:HOME} {{ 1234 * 5678 }}"
UPLOT = "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"
"""SHA-256 of `dist/uPlot.iife.min.js` in uPlot 1.6.32 on npm."""
RUN_ID = "20261123-120000-abcd"


@pytest.fixture(scope="session")
def reported_original(made_once: Once, tested_original: Path) -> Path:
    """A trained, tested classifier with its report."""

    def report(workspace: Workspace) -> None:
        copy_of(tested_original, workspace)
        workspace.write("report.out", workspace.run("report", "latest").ok().out)

    return made_once("reported", report)


@pytest.fixture(scope="session")
def page(reported_original: Path) -> str:
    """The report of a trained, tested classifier."""
    (run,) = reported_original.glob("runs/pictures/2*")
    return (run / "report.html").read_text(encoding="utf-8")


def write_run(
    workspace: Workspace,
    *,
    num_epochs: int = 3,
    class_names: tuple[str, ...] = (),
    num_samples: int = 60,
    name: str = "job",
    thumbnail_side: int = 0,
    **summary: Any,
) -> Path:
    """Write the folder of a run as a fit and a test leave it.

    With hostile texts in every place that takes texts.
    """
    run = workspace.folder / "runs" / name / RUN_ID
    (run / "thumbnails").mkdir(parents=True)
    row = {"train/loss": 0.5, "val/loss": 0.6, "val/accuracy": 0.7, "lr": 0.01}
    rows = [",".join(map(str, (epoch, epoch * 9, *row.values()))) for epoch in range(num_epochs)]
    (run / "metrics.csv").write_text("\n".join([",".join(["epoch", "step", *row]), *rows]) + "\n")
    counts = {"train": 100, "val": 30, "test": num_samples}
    data = {
        "source": HOSTILE,
        "root": HOSTILE,
        "counts": counts,
        "class_names": list(class_names),
        "bad_images": 1,
    }
    manifest = {
        "schema": 1,
        "subcommand": "fit",
        "created": "2026-11-23T12:00:00+00:00",
        "command": ["lightkit", "fit", "-c", HOSTILE],
        "working_directory": f"/home/{HOSTILE}",
        "data": data,
        "hardware": {"host": HOSTILE, "cpu": HOSTILE, "cores": 2, "gpus": [HOSTILE]},
        "git": {"commit": HOSTILE, "dirty": True},
        "origins": {"data.root": HOSTILE},
    }
    status = {
        "status": "done",
        "durations": {"fit": 12.5},
        "phases": {"load": 3.0, "step": 8.0, "validation": 1.0},
    }
    best = {"monitor": "val/loss", "mode": "min", "value": 0.6, "epoch": 1}
    record = {
        "schema": 1,
        "run": f"{name}/{RUN_ID}",
        "best": best,
        "metrics": {"best": row, "last": row},
    }
    warning = {
        "time": "2026-11-23T12:00:00.000+00:00",
        "event": "warning",
        "message": HOSTILE,
        "source": HOSTILE,
    }
    resume = {
        "time": HOSTILE,
        "event": "resume",
        "run": HOSTILE,
        "epoch": 1,
        "step": 9,
        "checkpoint": HOSTILE,
    }
    skipped = {
        "time": "2026-11-23T12:00:00Z",
        "event": "nonfinite",
        "epoch": 2,
        "step": 9,
        "batch": 1,
        "action": "skip",
    }
    config = {
        "model": {
            "class_path": HOSTILE,
            "init_args": {HOSTILE: HOSTILE, "api_key": "hunter2-secret"},
        }
    }
    config["data"] = {
        "class_path": "ImageFolder",
        "init_args": {"root": "https://me:hunter2-secret@example.org/x"},
    }
    files = {
        "manifest.json": json.dumps(manifest),
        "summary.json": json.dumps({**record, **status, **summary}),
        "events.jsonl": "\n".join(map(json.dumps, (warning, resume, skipped))),
        "config.yaml": json.dumps(config),
        "bad_images.csv": f'"{HOSTILE.replace(chr(34), "")}",cut,scan\n',
        "gate.json": json.dumps(
            {"passed": False, "reasons": [HOSTILE], "metric": HOSTILE, "baseline": HOSTILE}
        ),
        "export/export.json": json.dumps(
            {"schema": 1, "artefacts": {HOSTILE: {"file": HOSTILE, "format": HOSTILE}}}
        ),
    }
    for file, text in files.items():
        (run / file).parent.mkdir(exist_ok=True)
        (run / file).write_text(text, encoding="utf-8")
    if class_names:
        random = np.random.default_rng(3)
        labels, predicted = (random.integers(0, len(class_names), num_samples) for _ in range(2))
        columns = {
            "index": pa.array(range(num_samples), pa.int64()),
            "path": pa.array([f"{HOSTILE}/{index}.jpg" for index in range(num_samples)]),
            "label": pa.array([class_names[label] for label in labels]),
            "predicted": pa.array([class_names[label] for label in predicted]),
            "probability": pa.array(random.random(num_samples), pa.float32()),
            "label_probability": pa.array(random.random(num_samples), pa.float32()),
        }
        about = {
            "schema": 1,
            "split": "test",
            "class_names": class_names,
            "fingerprint": "f",
            "sha256": "s",
            "epoch": 1,
        }
        table = pa.table(columns).replace_schema_metadata({"lightkit": json.dumps(about)})
        parquet.write_table(table, run / "test_predictions.parquet")
        for index in range(num_samples if thumbnail_side else 0):
            pixels = random.integers(0, 255, (thumbnail_side, thumbnail_side, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(run / "thumbnails" / f"test-{index}.jpg", quality=80)
    return run


def report(workspace: Workspace, run: Path) -> str:
    """Write the report of a run and return it."""
    workspace.run("report", str(run)).ok()
    return (run / "report.html").read_text(encoding="utf-8")


class Tags(HTMLParser):
    """A page's start tags, each with its attributes, and text outside of styles and scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self._raw = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        self._raw = tag if tag in ("style", "script") else self._raw

    def handle_endtag(self, tag: str) -> None:
        self._raw = "" if tag == self._raw else self._raw

    def handle_data(self, data: str) -> None:
        self.texts += [] if self._raw else [data]

    @property
    def text(self) -> str:
        """All text, with single spaces."""
        return " ".join(" ".join(self.texts).split())


def check_page(page: str) -> Tags:
    """Assert what holds for every page.

    Valid, one file without network, and made for screen readers too.
    """
    html5lib.HTMLParser(strict=True).parse(page)
    tags = Tags(page)
    (policy,) = (
        each["content"]
        for name, each in tags.tags
        if each.get("http-equiv") == "Content-Security-Policy"
    )
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    for kind, element in (("style-src", "style"), ("script-src", "script")):
        contents = re.findall(rf"<{element}>(.*?)</{element}>", page, re.DOTALL)
        digests = [
            base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
            for content in contents
        ]
        assert rules[kind].split() == [f"'sha256-{digest}'" for digest in digests]
        for content in contents:
            code = content.removeprefix("/*! https://github.com/leeoniya/uPlot (v1.6.32) */")
            assert not re.search(r"url\(|@import|https?:|fetch\(|XMLHttp|import\(", code)
    addresses = [
        value
        for _, each in tags.tags
        for name, value in each.items()
        if name in ("src", "href", "xlink:href", "srcset", "action", "data", "poster", "background")
    ]
    assert all(
        value.startswith(("#", "data:image/")) or value == "gate.html" for value in addresses
    )
    assert not [
        each
        for _, each in tags.tags
        if "style" in each or any(name.startswith("on") for name in each)
    ]
    ids = [each["id"] for _, each in tags.tags if "id" in each]
    assert len(ids) == len({*ids})
    assert {value[1:] for value in addresses if value.startswith("#")} <= {*ids}
    levels = [int(name[1]) for name, _ in tags.tags if re.fullmatch("h[1-6]", name)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later <= level + 1 for level, later in itertools.pairwise(levels))
    assert all(each["alt"] for name, each in tags.tags if name == "img")
    assert all(
        each["role"] == "img" and each["aria-label"] for name, each in tags.tags if name == "svg"
    )
    names = [name for name, _ in tags.tags]
    assert names.count("caption") == names.count("table")
    assert all("scope" in each for name, each in tags.tags if name == "th")
    assert ("html", {"lang": "en"}) in tags.tags
    return tags


def test_the_report_of_a_run_is_one_valid_page_that_screen_readers_read(page: str) -> None:
    tags = check_page(page)
    for part in (
        "Curves",
        "Metrics",
        "Classes",
        "Confusion matrix",
        "Calibration",
        "The least certain",
        "Commands",
    ):
        assert part in tags.text


def test_the_verdict_has_an_interval_and_chance(page: str, reported_original: Path) -> None:
    (run,) = reported_original.glob("runs/pictures/2*")
    table = parquet.read_table(run / "test_predictions.parquet").to_pydict()
    right = sum(map(str.__eq__, table["label"], table["predicted"]))
    found = re.search(
        r"test/accuracy is ([\d.]+) \(95 % interval ([\d.]+) to ([\d.]+), (\d+) samples\).*chance",
        Tags(page).text,
    )
    assert found
    value, low, high, num = map(float, found.groups())
    assert num == len(table["label"])
    assert value == pytest.approx(right / num, abs=1e-3)
    assert 0 <= low <= value <= high <= 1
    assert low < high


def test_the_report_names_the_place_of_each_value_changed_ones_first(page: str) -> None:
    text = Tags(page).text
    assert re.search(r"model\.learning_rate 0\.01 pictures\.yaml:\d+:\d+", text)
    assert (
        text.index("model.learning_rate 0.01")
        < text.index("defaults")
        < text.index("data.val_fraction")
    )


def test_the_report_says_where_the_time_went(page: str, reported_original: Path) -> None:
    (run,) = reported_original.glob("runs/pictures/2*")
    phases = json.loads((run / "summary.json").read_text())["phases"]
    assert {"load", "step", "validation", "checkpoint"} <= {*phases}
    assert all(seconds >= 0 for seconds in phases.values())
    assert "load is the wait for batches" in Tags(page).text


def test_each_figure_of_the_report_is_a_png_file_too(reported_original: Path) -> None:
    (run,) = reported_original.glob("runs/pictures/2*")
    names = {path.name for path in (run / "figures").iterdir()}
    assert {
        "curve-loss.png",
        "curve-accuracy.png",
        "confusion-matrix.png",
        "reliability.png",
        "time.png",
    } <= names
    for path in (run / "figures").iterdir():
        with Image.open(path) as image:
            assert min(image.size) > 80


def test_the_figures_of_a_test_are_in_the_trackers_too(
    workspace: Workspace, classifier_original: Path
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
        EventAccumulator,  # here, because it takes a second to import
    )

    copy_of(classifier_original, workspace)
    workspace.run(
        "test", "--run", "latest", "--trainer.logger=null", "--logger.tensorboard={}"
    ).ok()
    (folder,) = workspace.folder.glob("runs/pictures/2*/tensorboard/test")
    images = EventAccumulator(str(folder)).Reload().Tags()["images"]
    assert {"test/confusion_matrix", "test/reliability"} <= {*images}


def test_report_prints_the_path_of_the_page(reported_original: Path) -> None:
    assert (reported_original / "report.out").read_text().strip().endswith("report.html")


def test_fit_and_test_write_the_report_unless_it_is_switched_off(workspace: Workspace) -> None:
    run = workspace.fit("-c", "small.yaml", "--run.report=true")
    first = report_text(run)
    assert "val/loss" in first
    assert "test/loss" not in first
    (run / "report.html").unlink()
    workspace.run("test", "--run", str(run)).ok()
    assert "test" in report_text(run)
    assert not (workspace.fit("-c", "small.yaml") / "report.html").exists()
    workspace.run(
        "fit", "-c", "small.yaml", "--run.report=true", "--trainer.fast_dev_run=true"
    ).ok()
    assert not (workspace.runs[-1] / "report.html").exists()


def report_text(run: Path) -> str:
    """The text of a run's report."""
    return check_page((run / "report.html").read_text(encoding="utf-8")).text


def test_a_report_that_cannot_be_made_warns_and_fails_no_training(workspace: Workspace) -> None:
    workspace.write("my_block.py", BLOCK)
    workspace.write("block.yaml", {"callbacks": {"block": {"class_path": "my_block.BlockReport"}}})
    result = workspace.run("fit", "-c", "small.yaml", "-c", "block.yaml", "--run.report=true").ok()
    assert re.search(r"report\.html was not written: \w+", result.out + result.err)
    assert json.loads((workspace.only_run / "summary.json").read_text())["status"] == "done"


BLOCK = '''\
from pathlib import Path

from pytorch_lightning import Callback


class BlockReport(Callback):
    """Puts a folder where the report goes."""

    def on_train_end(self, trainer, module):
        run = Path(trainer.checkpoint_callback.dirpath).parent
        (run / "report.html" / "x").mkdir(parents=True)
'''


def test_hostile_texts_stay_texts(workspace: Workspace) -> None:
    names = (HOSTILE, "</svg></style><img src=x onerror=alert(1)>", "\u202eclass", "<!-- c", "]]>")
    page = report(workspace, write_run(workspace, class_names=names, error=HOSTILE))
    tags = check_page(page)
    assert [name for name, _ in tags.tags].count("script") == 4, (
        "those of lightkit, uPlot and its data"
    )
    assert "img" not in [name for name, _ in tags.tags]
    assert HOSTILE in tags.text
    assert "7006652" not in tags.text


def test_secrets_are_masked(workspace: Workspace) -> None:
    page = report(workspace, write_run(workspace))
    assert "hunter2" not in page
    assert "api_key" in page


@pytest.mark.parametrize("status", ["running", "failed", "interrupted", "preempted"])
def test_a_run_in_each_state_has_a_report(status: str, workspace: Workspace) -> None:
    page = report(
        workspace,
        write_run(workspace, status=status, error="it broke" if status == "failed" else None),
    )
    text = check_page(page).text
    shown = "killed" if status == "running" else status  # nobody holds the lock of this job
    assert re.search(rf"\b{shown}\b", text)
    assert ("it broke" in text) == (status == "failed")


@pytest.mark.parametrize(
    "left",
    [
        (),
        ("config.yaml",),
        ("config.yaml", "manifest.json"),
        ("config.yaml", "manifest.json", "events.jsonl"),
        ("config.yaml", "manifest.json", "events.jsonl", "summary.json"),
        ("metrics.csv", "test_predictions.parquet"),
    ],
    ids=lambda left: f"{len(left)}-{left[-1] if left else 'nothing'}",
)
def test_a_run_that_was_killed_in_any_phase_has_a_report(
    left: tuple[str, ...], workspace: Workspace
) -> None:
    run = write_run(workspace, class_names=("a", "b"), status="running")
    for path in run.iterdir():
        if path.name not in left:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    (run / "checkpoints").mkdir()
    check_page(report(workspace, run))


FILES = (
    "config.yaml",
    "manifest.json",
    "events.jsonl",
    "summary.json",
    "metrics.csv",
    "test_predictions.parquet",
)


@pytest.mark.parametrize("cut", [0, 0.5])
def test_a_torn_file_is_named_and_the_rest_is_shown(cut: float, workspace: Workspace) -> None:
    run = write_run(workspace, class_names=("a", "b"))
    for name in FILES:
        content = (run / name).read_bytes()
        (run / name).write_bytes(content[: int(len(content) * cut)])
    text = check_page(report(workspace, run)).text
    assert "summary.json cannot be read" in text
    assert "test_predictions.parquet cannot be read" in text


def test_a_run_folder_alone_is_enough_without_torch(workspace: Workspace, tmp_path: Path) -> None:
    run = write_run(workspace, class_names=("a", "b"))
    moved = tmp_path / "elsewhere" / run.name
    shutil.copytree(run, moved)
    shutil.rmtree(workspace.folder / "runs")
    for package in ("torch", "pytorch_lightning", "torchmetrics", "mlflow"):
        workspace.write(f"blocked/{package}/__init__.py", "raise ImportError('not here')\n")
    environ = {"PYTHONPATH": str(workspace.folder / "blocked")}
    workspace.run_cold("report", str(moved), environ=environ).ok()
    check_page((moved / "report.html").read_text(encoding="utf-8"))


def test_a_long_run_of_many_classes_has_a_small_page(workspace: Workspace) -> None:
    names = tuple(f"a class with quite a long name, {index}" for index in range(1000))
    run = write_run(workspace, num_epochs=500, class_names=names, num_samples=5000)
    page = report(workspace, run)
    check_page(page)
    assert len(page.encode()) <= 500_000


def test_thumbnails_make_no_page_of_more_than_3_mb(workspace: Workspace) -> None:
    run = write_run(workspace, class_names=("a", "b"), num_samples=60, thumbnail_side=260)
    page = report(workspace, run)
    shown = re.findall(r'src="data:image/jpeg;base64,([^"]+)"', page)
    assert shown
    assert Image.open(io.BytesIO(base64.b64decode(shown[0]))).size == (260, 260)
    assert 1_000_000 < len(page.encode()) <= 3_000_000
    assert len(re.sub(r"base64,[^\"]*", "", page).encode()) <= 500_000


def test_output_names_another_file_and_wrong_words_are_errors(workspace: Workspace) -> None:
    run = write_run(workspace)
    (run / "gate.json").write_text("{}", encoding="utf-8")
    before = sorted(run.rglob("*"))
    workspace.run("report", str(run), "-o", "pages/one.html").ok()
    assert (workspace.folder / "pages" / "one.html").is_file()
    assert sorted(run.rglob("*")) == before
    assert workspace.run("report").code == 2
    missing = workspace.run("report", "jop")
    assert missing.code == 2
    assert "'job'" in missing.err


def test_the_script_is_small_and_nothing_needs_it(page: str) -> None:
    library, *own = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert hashlib.sha256(library.encode()).hexdigest() == UPLOT, (
        "the library is as its authors have published it"
    )
    assert sum(len(script.encode()) for script in own) <= 16_000
    assert "Permission is hereby granted, free of charge" in page, "its licence is in the page"
    shown = re.sub(r"<script.*?</script>|<style.*?</style>", "", page, flags=re.DOTALL)
    tags = Tags(shown)
    assert not [name for name, attributes in tags.tags if "hidden" in attributes]
    assert "<svg" in shown, "the figures of the curves"
    assert {"blues", "reds"} <= {*tags.text.split()}


def _luminance(color: str) -> float:
    """Relative luminance of WCAG 2.2."""
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: str, other: str) -> float:
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _mix(color: str, paper: str, alpha: float) -> str:
    pairs = ((int(color[at : at + 2], 16), int(paper[at : at + 2], 16)) for at in (1, 3, 5))
    return "#" + "".join(f"{round(alpha * one + (1 - alpha) * other):02x}" for one, other in pairs)


def _themes(page: str) -> Iterator[tuple[str, dict[str, str]]]:
    colors: dict[str, str] = {}
    for name, block in zip(
        ("light", "dark", "print"), re.findall(r":root \{(.*?)\}", page, re.DOTALL), strict=True
    ):
        colors = {**colors, **dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))}
        yield name, colors


def test_contrast_is_enough_in_each_theme(page: str) -> None:
    themes = dict(_themes(page))
    assert [*themes] == ["light", "dark", "print"]
    for name, colors in themes.items():
        for role in ("ink", "dim", "accent", "good", "warn", "bad"):
            for ground in ("paper", "panel"):
                assert _contrast(colors[role], colors[ground]) >= 4.5 or name == "print", (
                    name,
                    role,
                    ground,
                )
        assert all(_contrast(colors[f"c{index}"], colors["paper"]) >= 4.5 for index in range(6)), (
            name
        )
        for alpha in np.linspace(0, 1, 11):
            assert (
                _contrast(colors["ink"], _mix(colors["heat"], colors["paper"], float(alpha))) >= 4.5
            ), (name, alpha)


def test_a_fit_records_its_memory_and_cores_and_the_report_draws_them(workspace: Workspace) -> None:
    process = workspace.start("fit", "-c", "small.yaml", "--trainer.max_epochs=100000")

    def list_rows() -> list[list[str]]:
        found = [*workspace.folder.glob("runs/*/2*/resources.csv")]
        return [line.split(",") for line in found[0].read_text().splitlines()[1:]] if found else []

    process.wait_for(list_rows)
    process.signal(signal.SIGTERM)
    process.wait()
    seconds, cores, memory_bytes = map(float, list_rows()[0][:3])
    assert seconds > 0
    assert 0 <= cores <= 1000
    assert 50e6 < memory_bytes < 50e9
    text = Tags(report(workspace, workspace.only_run)).text
    assert "Memory, cores and GPUs over the time" in text
    assert {"resource-memory.png", "resource-cpu.png"} <= {
        path.name for path in (workspace.only_run / "figures").iterdir()
    }
