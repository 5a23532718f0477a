"""Nothing changed, nothing done: what is compared, what is told, and that nothing heavy is loaded for it."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightkit import __version__, runs
from lightkit.cli import main
from lightkit.cli.inputs import record_inputs
from lightkit.cli.own_code import sources_of
from lightkit.cli.session import Session, open_session
from lightkit.cli.unchanged import code_if_unchanged
from lightkit.errors import ConfigError
from lightkit.runs.signals import SignalWatch

OWN = """\
from pytorch_lightning import LightningDataModule, LightningModule

from parts.heads import Head


class Net(LightningModule):
    head = Head


class Rows(LightningDataModule):
    def __init__(self, table: str = "rows.csv", server: str | None = None):
        super().__init__()


class Declared(Rows):
    input_places = ("table",)


class Hidden(LightningDataModule):
    def __init__(self, root=Head.root): ...


class Drawn(Hidden):
    input_places = ()
"""
JOB: dict[str, Any] = {
    "seed_everything": 7,
    "model": {"class_path": "own.Net"},
    "data": {"class_path": "ImageFolder", "init_args": {"root": "photos", "batch_size": 4}},
    "trainer": {"max_epochs": 20, "logger": False},
}
ROWS: dict[str, Any] = {**JOB, "data": {"class_path": "own.Rows"}}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with photos, a table, and modules of the user's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("KEPT_SECRET", "first")
    (tmp_path / "lightkit.py").write_text("its own source\n")
    monkeypatch.setattr("lightkit.cli.inputs.sources_of", lambda: [tmp_path / "lightkit.py"])
    folder = tmp_path / "work"
    for kind in ("roses", "tulips"):
        for number in range(3):
            path = folder / "photos" / kind / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{kind} {number}")
    (folder / "parts").mkdir()
    (folder / "parts" / "__init__.py").write_text("")
    (folder / "parts" / "heads.py").write_text("class Head:\n    width = 3\n")
    (folder / "own.py").write_text(OWN)
    (folder / "beside.py").write_text("nobody imports this\n")
    (folder / "rows.csv").write_text("1,2\n")
    write(folder, JOB)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    return folder


def write(folder: Path, job: dict[str, Any]) -> None:
    (folder / "job.yaml").write_text(yaml.safe_dump(job))


def session_of(*words: str) -> Session:
    return open_session("fit", ["-c", "job.yaml", *words], SignalWatch())


def trained(*words: str, status: str = "done", asked: bool = True, **manifest: Any) -> runs.Run:
    """Leave what a training leaves in its folder."""
    session = session_of(*(["--if-changed"] if asked else []), *words)
    run = runs.create("runs", "job")
    said = {"subcommand": "fit", "fast_dev_run": False, **manifest}
    runs.write_json(run.manifest_path, {**said, "inputs": record_inputs(session, run, None)})
    ended = {"status": status, "exit_code": 0 if status == "done" else 1}
    run.checkpoints.mkdir()
    (run.checkpoints / "last.ckpt").touch()
    runs.write_json(run.summary_path, {**ended, "paths": {"last_checkpoint": "checkpoints/last.ckpt"}})
    runs.point_latest(run)
    return run


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int | None, str]]:
    """Ask whether anything has changed; the code, and why it trains."""
    logger = logging.getLogger("lightkit")
    monkeypatch.setattr(logger, "propagate", True)

    def ask(*words: str) -> tuple[int | None, str]:
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="lightkit"):
            code = code_if_unchanged(session_of("--if-changed", *words))
        return code, " ".join(record.getMessage() for record in caplog.records)

    return ask


Ask = Callable[..., tuple["int | None", str]]


def test_nothing_has_changed(place: Path, told: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained()
    assert told() == (6, "")
    where = run.folder.relative_to(place)
    size = sum(path.stat().st_size for path in place.glob("photos/*/*"))
    assert capsys.readouterr().out == (
        f"nothing has changed since {where} (data: 6 files, {size} B; config; "
        "code: own.py, parts/__init__.py, parts/heads.py)\n"
    )
    assert told("--unchanged-ok") == (0, "")
    assert told("--quiet") == (6, "")
    assert capsys.readouterr().out.count("\n") == 1


def test_a_program_reads_it_as_an_event(place: Path, told: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained()
    assert told("--output", "json")[0] == 6
    event = json.loads(capsys.readouterr().out)
    assert (event["event"], event["run"], event["data"]["files"]) == ("unchanged", f"job/{run.id}", 6)
    assert not run.events_path.exists()


def _lose(path: Path) -> None:
    path.unlink()


def _cut_short(run: runs.Run) -> runs.Run:
    runs.write_json(run.summary_path, {**(runs.read_json(run.summary_path) or {}), "stopped_by": "deadline"})
    return run


def _edit(file: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / file).write_text(text)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_edit("photos/roses/1.jpg", "other"), "data: 1 of 6 files differs (roses/1.jpg)"),
        (_edit("photos/roses/1.jpg", "roses X"), "data: 1 of 6 files differs (roses/1.jpg)"),
        (_edit("photos/roses/9.jpg", "new"), "data: 1 new (roses/9.jpg)"),
        (lambda folder: (folder / "photos/roses/1.jpg").unlink(), "data: 1 of 6 files gone (roses/1.jpg)"),
        (
            lambda folder: (folder / "photos/roses/1.jpg").rename(folder / "photos/roses/7.jpg"),
            "data: 1 of 6 files renamed (roses/1.jpg -> roses/7.jpg)",
        ),
        (
            lambda folder: (folder / "photos/roses/1.jpg").rename(folder / "photos/tulips/7.jpg"),
            "data: 1 of 6 files renamed (roses/1.jpg -> tulips/7.jpg)",
        ),
        (lambda folder: shutil.rmtree(folder / "photos/roses"), "data: 3 of 6 files gone (roses/0.jpg, roses/1.jpg"),
        (_edit("own.py", OWN + "\n"), "code: 1 of 3 files differs (own.py)"),
        (_edit("parts/heads.py", "class Head:\n    width = 4\n"), "code: 1 of 3 files differs (parts/heads.py)"),
        (lambda folder: write(folder, {**JOB, "seed_everything": 8}), "seed_everything 7 -> 8"),
        (
            lambda folder: write(folder, {**JOB, "trainer": {"logger": False}}),
            "trainer.max_epochs 20 -> (not set)",
        ),
        (
            lambda folder: write(folder, {**JOB, "callbacks": {"early_stopping": {"init_args": {"monitor": "x"}}}}),
            "callbacks.early_stopping.init_args.monitor (not set) -> x",
        ),
    ],
    ids=[
        "photo", "photo-of-same-size", "added", "removed", "renamed", "moved-to-another-class", "class-gone", "module",
        "imported-module", "value", "value-gone", "value-added",
    ],
)  # fmt: skip
def test_what_has_changed_is_told(place: Path, told: Ask, change: Callable[[Path], object], says: str) -> None:
    run = trained()
    change(place)
    code, words = told()
    assert code is None
    assert words.startswith(f"trains: changed since {run.folder.relative_to(place)}: ")
    assert says in words


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: os.utime(folder / "photos/roses/1.jpg", (10, 10)),
        _edit("beside.py", "nobody cares\n"),
        _edit("photos/.hidden", "left by a file manager"),
        lambda folder: write(folder, {**JOB, "run": {"wait_s": 5, "heartbeat_url": "http://127.0.0.1:9/x"}}),
        lambda folder: write(folder, {**JOB, "watchdog": {"floor_s": 100}}),
        lambda folder: shutil.rmtree(folder.parent / "cache"),
        lambda folder: (folder.parent / "cache/lightkit/image-verdicts.sqlite").write_bytes(b"damaged" * 100),
    ],
    ids=["times", "other-module", "hidden", "run-section", "patience", "index-gone", "index-damaged"],
)
def test_what_does_not_train_does_not_count(place: Path, told: Ask, change: Callable[[Path], object]) -> None:
    trained()
    change(place)
    assert told() == (6, "")


def test_a_value_counts_wherever_it_is_said(place: Path, told: Ask) -> None:
    trained()
    assert told("--trainer.max_epochs=20") == (6, "")
    assert told("trainer.max_epochs=21")[1].endswith("trainer.max_epochs 20 -> 21")


def test_many_changes_are_shortened(place: Path, told: Ask) -> None:
    trained()
    for path in place.glob("photos/*/*.jpg"):
        path.write_text("x" + path.name + path.parent.name)
    words = told()[1]
    assert words.endswith("data: 6 of 6 files differ (roses/0.jpg, roses/1.jpg, roses/2.jpg and 3 more)")


def test_values_from_the_environment_count_and_are_never_written(
    place: Path, told: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(place, {**JOB, "model": {"class_path": "own.Net", "init_args": {"key": "${oc.env:KEPT_SECRET}"}}})
    run = trained()
    assert told() == (6, "")
    monkeypatch.setenv("KEPT_SECRET", "second")
    assert told()[1].endswith("model.init_args.key has another value, which is not shown")
    kept = b"".join(path.read_bytes() for path in run.folder.rglob("*") if path.is_file())
    assert b"first" not in kept
    assert b"second" not in told()[1].encode()


@pytest.mark.parametrize(
    ("versions", "says"),
    [
        ({"torch": "2.9.0"}, "torch 2.9.0 -> "),
        ({"pytorch-lightning": "2.5.0"}, "pytorch-lightning 2.5.0 -> "),
        ({"lightkit": "0.0.1 (0123)"}, "lightkit 0.0.1 (0123) -> "),
        ({"python": "3.9.1"}, "python 3.9.1 -> "),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_another_version_trains(place: Path, told: Ask, versions: dict[str, str], says: str) -> None:
    run = trained()
    kept = runs.read_json(run.folder / runs.INPUTS) or {}
    runs.write_json(run.folder / runs.INPUTS, {**kept, "versions": {**kept["versions"], **versions}})
    assert says in told()[1]


@pytest.mark.parametrize(
    ("before", "says"),
    [
        (lambda: None, "there is no earlier run of 'job' in runs"),
        (lambda: trained(status="failed"), "has not ended well"),
        (lambda: (trained(), trained(status="preempted")), "has not ended well"),
        (lambda: (trained(), trained(status="running")), "has not ended well"),
        (lambda: (trained(), _cut_short(trained())), "the last run of 'job', was cut short by its deadline"),
        (lambda: _lose(trained().checkpoints / "last.ckpt"), "has lost its checkpoints/last.ckpt"),
        (lambda: _lose(trained().folder / runs.INPUTS), "has not recorded what it was made from"),
        (lambda: (trained().folder / runs.INPUTS).write_text("{"), "has not recorded what it was made from"),
    ],
    ids=["none", "failed", "interrupted", "running", "cut-short", "checkpoint-lost", "old-run", "torn"],
)
def test_it_trains_where_there_is_nothing_to_compare_with(
    place: Path, told: Ask, before: Callable[[], object], says: str
) -> None:
    before()
    code, words = told()
    assert code is None
    assert says in words


@pytest.mark.parametrize(
    "manifest", [{"subcommand": "test"}, {"fast_dev_run": True}], ids=["other-stage", "fast-dev-run"]
)
def test_only_fits_count(place: Path, told: Ask, manifest: dict[str, Any]) -> None:
    trained()
    trained("--trainer.max_epochs=3", status="failed", **manifest)
    assert told() == (6, "")


def test_a_fast_dev_run_always_trains_and_a_new_run_only_where_something_has_changed(place: Path, told: Ask) -> None:
    trained()
    assert told("--trainer.fast_dev_run=true") == (None, "trains: a fast_dev_run always does")
    assert told("--run.resume=never") == (6, "")


def test_a_user_module_is_read_by_what_its_arguments_name(place: Path, told: Ask) -> None:
    write(place, ROWS)
    trained()
    assert told() == (6, "")
    (place / "rows.csv").write_text("1,3\n")
    assert told()[1].endswith("data.init_args.table: 1 of 1 file differs (rows.csv)")


def test_data_that_nobody_can_see_trains_unless_the_class_declares_what_it_reads(place: Path, told: Ask) -> None:
    given = {"init_args": {"server": "postgresql://127.0.0.1/rows"}}
    write(place, {**ROWS, "data": {"class_path": "own.Rows", **given}})
    trained()
    assert "--if-changed cannot see what is behind data.init_args.server" in told()[1]
    write(place, {**ROWS, "data": {"class_path": "own.Declared", **given}})
    trained()
    assert told() == (6, "")
    (place / "rows.csv").write_text("1,3\n")
    assert "rows.csv" in told()[1]


def test_data_of_which_nothing_tells_trains_until_the_class_does(place: Path, told: Ask) -> None:
    write(place, {**JOB, "data": {"class_path": "own.Hidden"}})
    trained()
    assert "cannot see what is behind data.init_args.root; name files or folders there, or list" in told()[1]
    assert told("--data.init_args.root=photos")[1].endswith("data.init_args.root (not set) -> photos")
    write(place, {**JOB, "data": {"class_path": "own.Drawn"}})
    assert trained() is not None
    assert told() == (6, "")


def test_weights_in_a_folder_that_the_model_names_count(place: Path, told: Ask) -> None:
    (place / "weights").mkdir()
    (place / "weights/b.bin").write_text("1")
    write(place, {**JOB, "model": {"class_path": "own.Net", "init_args": {"weights": "weights"}}})
    trained()
    assert told() == (6, "")
    (place / "weights/b.bin").write_text("2")
    assert told()[1].endswith("model.init_args.weights: 1 of 1 file differs (b.bin)")


def test_a_run_that_went_on_with_other_inputs_equals_nothing(place: Path, told: Ask) -> None:
    run = trained()
    manifest = runs.read_json(run.manifest_path)
    assert "mixed" not in record_inputs(session_of("--if-changed"), run, manifest)
    (place / "rows.csv").write_text("unread")
    (place / "photos/roses/1.jpg").write_text("changed in between")
    assert record_inputs(session_of("--if-changed"), run, manifest)["mixed"] is True
    assert "went on with other inputs" in told()[1]


def test_much_data_is_read_only_for_who_asks(place: Path, told: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightkit.cli.inputs._CHEAP_FILES", 5)
    assert (runs.read_json(trained(asked=False).manifest_path) or {})["inputs"]["data"] is None
    assert "has not recorded its data" in told()[1]
    trained()
    assert told() == (6, "")


def test_data_that_changes_while_it_trains_has_changed(place: Path, told: Ask) -> None:
    session = session_of("--if-changed")
    assert code_if_unchanged(session) is None  # it looks, where there is no run to compare with, when it begins
    trained()
    session = session_of("--if-changed", "--trainer.max_epochs=3")
    assert code_if_unchanged(session) is None
    (place / "photos/roses/1.jpg").write_text("while torch is loaded")
    run = runs.create("runs", "job")
    runs.write_json(run.manifest_path, {"subcommand": "fit", "inputs": record_inputs(session, run, None)})
    runs.write_json(run.summary_path, {"status": "done", "exit_code": 0})
    assert "data: 1 of 6 files differs (roses/1.jpg)" in told("--trainer.max_epochs=3")[1]


def test_unchanged_ok_alone_is_a_mistake(place: Path) -> None:
    with pytest.raises(ConfigError, match="--unchanged-ok: says something only together with --if-changed"):
        code_if_unchanged(session_of("--unchanged-ok"))
    assert main(["fit", "-c", "job.yaml", "--unchanged-ok"]) == 2


def test_without_the_option_nothing_is_compared(place: Path) -> None:
    trained()
    assert code_if_unchanged(session_of()) is None


def test_another_source_of_lightkit_trains(place: Path, told: Ask) -> None:
    trained()
    (place.parent / "lightkit.py").write_text("somebody has changed it\n")
    assert f"lightkit {__version__} (" in told()[1]


def test_it_is_told_of_thousands_of_photos_without_torch(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightkit.cli.inputs.sources_of", sources_of)
    for number in range(3664):
        (place / "photos" / "tulips" / f"n{number}.jpg").write_text(str(number))
    trained()
    script = (
        "import sys; from lightkit.cli import main; code = main(sys.argv[1:]);"
        "heavy = {'torch', 'pytorch_lightning', 'mlflow', 'numpy', 'PIL'} & set(sys.modules);"
        "print(sorted(heavy)); sys.exit(code)"
    )
    words = ["fit", "-c", "job.yaml", "--if-changed"]
    ended = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=False)
    assert ended.returncode == 6, ended.stderr
    assert "data: 3,670 files, " in ended.stdout
    assert ended.stdout.splitlines()[-1] == "[]"
