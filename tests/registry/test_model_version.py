from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lightkit import __version__, runs
from lightkit.errors import RunLocked
from lightkit.export.exporter import lock_folder
from lightkit.export.metadata import Metadata
from lightkit.loggers.mlflow_address import find_address
from lightkit.registry.model_version import collect_exports, origin_tags, write_version
from lightkit.registry.store import list_versions, open_registry, read_aliases, tracked_run

METADATA = Metadata("torch_export", "Net", (), (), "probabilities", ("daisy", "roses"))


@pytest.fixture
def run(tmp_path: Path) -> runs.Run:
    """A run with a checkpoint and what is said of it."""
    folder = tmp_path / "runs" / "daisies" / "20261120-101112-ab12"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / "best.ckpt").write_bytes(b"weights")
    manifest = {
        "git": {"commit": "ab12cd", "dirty": False},
        "data": {"fingerprint": "f00d", "source": "photos"},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    summary = {
        "best": {"monitor": "val/loss", "value": 0.25},
        "metrics": {"best": {"val/loss": 0.25}},
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    return runs.open_run(folder)


def test_tags_lead_back_to_the_run(run: runs.Run) -> None:
    checkpoint = run.checkpoints / "best.ckpt"
    assert origin_tags(run, checkpoint, METADATA) == {
        "run": f"daisies/{run.id}",
        "run_folder": str(run.folder),
        "git_commit": "ab12cd",
        "git_dirty": "False",
        "data_fingerprint": "f00d",
        "data_source": "photos",
        "checkpoint": "checkpoints/best.ckpt",
        "checkpoint_sha256": runs.digest(checkpoint),
        "lightkit": __version__,
        "output_kind": "probabilities",
        "best.val/loss": "0.25",
        "class_names": '["daisy", "roses"]',
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # as in test_store.py
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_registration_that_ends_midway_leaves_no_version_of_the_checkpoint(
    database: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run: runs.Run = request.getfixturevalue("run")  # beside the database
    model = tmp_path / "model"
    model.mkdir()
    (model / "MLmodel").write_text("flavors: {}\n")
    exports = tmp_path / "exports"
    exports.mkdir()
    (exports / "export.json").write_text("{}")
    with open_registry(find_address(database)) as registry:

        def register() -> None:
            write_version(
                registry,
                run,
                "daisies",
                ["challenger"],
                files=model,
                exports=exports,
                tags=origin_tags(run, run.checkpoints / "best.ckpt", METADATA),
                description="",
                on_step=lambda _: None,
            )

        def end(*_args: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(registry.client, "log_artifact", end)  # the exports are sent with it
            with pytest.raises(KeyboardInterrupt):
                register()
        (partial,) = list_versions(registry, "daisies")
        assert "checkpoint_sha256" not in partial.tags
        assert not read_aliases(registry, "daisies")
        register()
        whole = list_versions(registry, "daisies")[-1]
        digest = runs.digest(run.checkpoints / "best.ckpt")
        assert whole.tags["checkpoint_sha256"] == digest
        assert whole.tags["exports"].endswith("export/daisies-2")
        assert read_aliases(registry, "daisies") == {"challenger": "2"}


def test_a_checkpoint_from_elsewhere_has_its_whole_path_and_no_score(
    run: runs.Run, tmp_path: Path
) -> None:
    (tmp_path / "other.ckpt").write_bytes(b"others")
    tags = origin_tags(run, tmp_path / "other.ckpt", METADATA)
    assert tags["checkpoint"] == str(tmp_path / "other.ckpt")
    assert "best.val/loss" not in tags


def test_class_names_that_are_too_long_for_a_tag_are_left_to_the_metadata(run: runs.Run) -> None:
    many = replace(METADATA, class_names=tuple(f"class {number}" for number in range(1000)))
    assert "class_names" not in origin_tags(run, run.checkpoints / "best.ckpt", many)


@pytest.fixture
def exports(run: runs.Run) -> Path:
    """Exports of the weights ``abc``, with what has come beside them since."""
    folder = run.folder / "export"
    folder.mkdir()
    for name, content in {
        "model.onnx": "graph",
        "model.onnx.data": "weights",
        "model.pt2": "x",
        "notes.txt": "?",
    }.items():
        (folder / name).write_text(content)
    digest = {file.name: runs.digest(file) for file in folder.iterdir()}
    data = {"file": "model.onnx.data", "sha256": digest["model.onnx.data"]}
    artefacts = {
        "model.onnx": {"source": {"sha256": "abc"}, "sha256": digest["model.onnx"], "data": data},
        "model.pt2": {
            "source": {"sha256": "def", "run": "abc"},
            "sha256": digest["model.pt2"],
            "data": None,
        },
    }
    (folder / "export.json").write_text(json.dumps({"schema": 1, "artefacts": artefacts}))
    return folder


def test_exports_of_the_weights_alone_are_gathered(
    run: runs.Run, exports: Path, tmp_path: Path
) -> None:
    left = collect_exports(run, "abc", tmp_path / "to")
    assert {file.name for file in (tmp_path / "to").iterdir()} == {
        "model.onnx",
        "model.onnx.data",
        "export.json",
    }
    assert list(json.loads((tmp_path / "to" / "export.json").read_text())["artefacts"]) == [
        "model.onnx"
    ]
    assert left == [
        f"{exports / 'model.pt2'} is not this checkpoint's, and is left"
        " out; `lightkit export` renews it"
    ]


@pytest.mark.parametrize("name", ["model.onnx", "model.onnx.data"])
@pytest.mark.parametrize("change", ["altered", "removed"])
def test_a_file_that_is_not_what_was_proved_is_left_out(
    run: runs.Run, exports: Path, tmp_path: Path, name: str, change: str
) -> None:
    (exports / name).unlink() if change == "removed" else (exports / name).write_text("others")
    left = collect_exports(run, "abc", tmp_path / "to")
    assert "model.onnx is not this checkpoint's" in left[0]
    assert not (tmp_path / "to").exists()


def test_a_run_without_exports_gives_none(run: runs.Run, tmp_path: Path) -> None:
    assert collect_exports(run, "abc", tmp_path / "to") == []
    assert not (tmp_path / "to").exists()
    assert not (run.folder / "export").exists()


@pytest.mark.usefixtures("exports")
def test_a_running_export_is_not_gathered_from(run: runs.Run, tmp_path: Path) -> None:
    with (
        lock_folder(run.folder / "export"),
        pytest.raises(RunLocked, match=r"export is writing to .*/export\. Try again"),
    ):
        collect_exports(run, "abc", tmp_path / "to")


@pytest.mark.parametrize(
    ("noted", "known"),
    [
        (
            {"tracking_uri": "http://host", "run_id": "r1"},
            {"tracking_uri": "http://host", "run_id": "r1"},
        ),
        ({"tracking_uri": "http://***@host", "run_id": "r1"}, {"run_id": "r1"}),
        (None, {}),
    ],
    ids=["noted", "masked", "not tracked"],
)
def test_the_mlflow_run_of_the_training_is_found(
    run: runs.Run, noted: dict[str, str] | None, known: dict[str, str]
) -> None:
    if noted is not None:
        (run.folder / "mlflow.json").write_text(json.dumps(noted))
    assert tracked_run(run) == known
