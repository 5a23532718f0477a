from __future__ import annotations

from pathlib import Path

from lightkit import runs


def _run(folder: Path) -> runs.Run:
    return runs.Run(folder=folder / "job" / "1", name="job", id="1", root=folder)


def test_there_is_no_current_run_outside_a_block(tmp_path: Path) -> None:
    with runs.activate(_run(tmp_path)) as run:
        assert runs.current() == run
    assert runs.current() is None


def test_the_inner_block_decides(tmp_path: Path) -> None:
    outer, inner = _run(tmp_path), _run(tmp_path / "other")
    with runs.activate(outer):
        with runs.activate(inner):
            assert runs.current() == inner
        assert runs.current() == outer


def test_the_files_of_a_run_have_the_names_of_the_design(tmp_path: Path) -> None:
    run = _run(tmp_path)
    files = [
        run.config_path,
        run.manifest_path,
        run.events_path,
        run.metrics_path,
        run.summary_path,
        run.checkpoints,
    ]
    assert [path.name for path in files] == [
        "config.yaml",
        "manifest.json",
        "events.jsonl",
        "metrics.csv",
        "summary.json",
        "checkpoints",
    ]
    assert {path.parent for path in files} == {run.folder}
