"""Files of a run that were cut, or hold something else.

Each kind of damage, in each file, before each command.

The runs are one of `test_earlier_version.py` that was exported, judged and promoted, and one that
was interrupted.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.batch import Command, run_batch
from tests.contract.conftest import Once, copy_of
from tests.contract.test_earlier_version import unpack
from tests.contract.workspace import Workspace, read_events, read_metrics

pytestmark = pytest.mark.timeout(3600)

CODES = {0, 1, 2, 3, 4, 5, 6, 75}
"""Exit codes that are documented."""
FILES = (
    "summary.json",
    "manifest.json",
    "inputs.json",
    "events.jsonl",
    "metrics.csv",
    "bad_images.csv",
    "config.yaml",
    "gate.json",
    "promoted.json",
    "retrain.json",
    "mlflow.json",
    "export/export.json",
    "../lock.json",
)
INDEXED = ("summary.json", "manifest.json", "promoted.json", "retrain.json", "mlflow.json")
"""Files without which nobody knows what a run is, and who needs it."""


def replace_values(path: Path, change: Callable[[Any], Any]) -> None:
    """Replace each value of a JSON file, or of each line of one, that is no object."""

    def walk(value: Any) -> Any:
        return (
            {key: walk(child) for key, child in value.items()}
            if isinstance(value, dict)
            else change(value)
        )

    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        path.write_text(json.dumps(walk(json.loads(text)), indent=2), encoding="utf-8")
    elif path.suffix == ".jsonl":
        lines = [
            walk(json.loads(line)) | {"event": json.loads(line)["event"]}
            for line in text.splitlines()
        ]
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    else:
        path.write_text(
            "\n".join(f"{line},{json.dumps(change(line))}" for line in text.splitlines()),
            encoding="utf-8",
        )


def put_at_each_key(path: Path, value: str) -> None:
    """Put a text of JSON in the place of the value of each key of the file."""
    keys = (
        list(json.loads(path.read_text(encoding="utf-8")))
        if path.suffix == ".json"
        else ["event", "epoch"]
    )
    members = ", ".join(f"{json.dumps(key)}: {value}" for key in keys)
    path.write_text(f"{{{members}}}\n", encoding="utf-8")


def become_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def become_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def flip_bytes(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for at in range(len(content) // 3, len(content), 7):
        content[at] ^= 0x80
    path.write_bytes(content)


KINDS: dict[str, Callable[[Path], object]] = {
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path: path.write_bytes(b""),
    "bytes": flip_bytes,
    "list": lambda path: path.write_text("[1, 2]", encoding="utf-8"),
    "object": lambda path: path.write_text("{}", encoding="utf-8"),
    "null": lambda path: replace_values(path, lambda _: None),
    "types": lambda path: replace_values(path, lambda value: {"found": value}),
    "texts": lambda path: replace_values(path, lambda _: "ab/" * 3000),
    "control": lambda path: replace_values(path, lambda _: "a\0b\ud800"),
    "digits": lambda path: put_at_each_key(path, "7" * 400),
    "nesting": lambda path: put_at_each_key(path, "[" * 2000 + "]" * 2000),
    "folder": become_folder,
    "pipe": become_pipe,
}
ROOT = ("--run.root", "damaged")
COMMANDS: dict[str, tuple[str, ...]] = {
    "runs": ("runs", "--json", "--root", "damaged"),
    "runs-columns": (
        "runs",
        "--root",
        "damaged",
        "--columns",
        "trainer.max_epochs,manifest.seed",
        "--sort",
        "metric",
    ),
    "report": ("report", "damaged/train/latest"),
    "gc": ("gc", "--keep-last", "0", "--root", "damaged", "--json"),
    "diff": ("diff", "damaged/train/latest", "damaged/other/latest"),
    "history": ("history", "train", *ROOT),
    "rollback": ("rollback", "train", *ROOT),
    "gate": ("gate", "damaged/train/latest"),
    "promote": ("promote", "damaged/train/latest", "--reason", "after the damage"),
    "predict": ("predict", "--run", "damaged/train/latest"),
    "test": ("test", "--run", "damaged/train/latest"),
    "reproduce": ("reproduce", "damaged/train/latest", "--root", "damaged", "--anyway"),
    "fit": ("fit", "-c", "train.yaml", *ROOT, "--trainer.max_epochs=1"),
    "retrain": (
        "retrain",
        "-c",
        "train.yaml",
        "-c",
        "gate.yaml",
        *ROOT,
        "--trainer.max_epochs=1",
        "--skip=export",
    ),
}
ROWS = {file: list(KINDS)[number % len(KINDS)] for number, file in enumerate(FILES)}
"""The kind of damage of each file that `make test` looks at."""


@pytest.fixture
def nightly(workspace: Workspace) -> Iterator[Path]:
    """A folder with a job whose run has each file, and a second job, both below `damaged`."""
    unpack(workspace)
    folder = workspace.folder / "nightly"
    (folder / "runs").rename(folder / "damaged")
    (run,) = (folder / "damaged" / "train").glob("2*")
    config = (run / "config.yaml").read_text(encoding="utf-8")
    # `reproduce` trains it for each file
    for long, short in (("max_epochs: 20", "max_epochs: 2"), ("report: true", "report: false")):
        assert long in config
        config = config.replace(long, short)
    (run / "config.yaml").write_text(config, encoding="utf-8")
    (run / "bad_images.csv").write_text(
        "path,reason,found\na.png,Truncated File Read,scan\n", encoding="utf-8"
    )
    ids = {
        "tracking_uri": f"sqlite:///{folder}/damaged/mlflow.db",
        "run_id": "0" * 32,
        "keys": {"a b": "a_b"},
    }
    (run / "mlflow.json").write_text(json.dumps(ids), encoding="utf-8")
    process = {"host": "night", "kernel": "", "pid": 1, "process_started": "1"}
    lock = {"started": "2026-11-28", "folder": str(run), "token": "0" * 16, "processes": [process]}
    (run.parent / "lock.json").write_text(json.dumps(lock), encoding="utf-8")
    os.utime(run.parent / "lock.json", (0, 0))
    shutil.copytree(folder / "damaged" / "train", folder / "damaged" / "other", symlinks=True)
    yield folder
    for copy in workspace.folder.glob("copy-*"):
        shutil.rmtree(copy)


def read_files(folder: Path) -> dict[str, bytes]:
    """Read all files below a folder, by their names."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def damage_and_run(
    workspace: Workspace, nightly: Path, file: str, kind: str, commands: dict[str, Any]
) -> None:
    """Damage a file in a copy for each command, run them, and check what each promises."""
    (undamaged,) = (nightly / "damaged" / "train").glob("2*")
    checkpoints = read_files(undamaged / "checkpoints")
    other = read_files(nightly / "damaged" / "other")
    folders = {}
    for name in commands:
        folder = folders[name] = workspace.folder / f"copy-{name}"
        shutil.copytree(nightly, folder, symlinks=True)
        (run,) = (folder / "damaged" / "train").glob("2*")
        KINDS[kind](run / file)
    answers = run_batch(
        workspace, {name: Command(words, folders[name]) for name, words in commands.items()}
    )
    for name, answer in answers.items():
        said = f"{file} {kind} {name}: {answer.code}\n{answer.out[-2000:]}\n{answer.err[-4000:]}"
        assert "Traceback" not in answer.err, said
        assert answer.code in CODES, said
        run = min((folders[name] / "damaged" / "train").glob("2*-*"))
        if name == "runs":
            found = {each["name"]: each["status"] for each in json.loads(answer.out)}
            assert found["other"] == "done", said
            assert found.keys() == {"train", "other"}, said
            if file in INDEXED and found["train"] == "unreadable":
                assert f"{file} cannot be read: " in answer.err, said
        if name in ("runs", "runs-columns", "report", "gc"):
            assert answer.code == 0, said
        assert read_files(run / "checkpoints") == checkpoints, f"lost: {said}"
        assert read_files(folders[name] / "damaged" / "other") == other, f"lost: {said}"
        shutil.rmtree(folders[name])


@pytest.mark.parametrize("file", FILES, ids=lambda file: Path(file).name)
def test_a_damaged_file_stops_no_command_with_a_traceback(
    file: str, nightly: Path, workspace: Workspace
) -> None:
    commands = {name: words for name, words in COMMANDS.items() if name != "retrain"}
    damage_and_run(workspace, nightly, file, ROWS[file], commands)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("file", FILES, ids=lambda file: Path(file).name)
def test_no_damage_of_any_file_stops_a_command_with_a_traceback(
    file: str, kind: str, nightly: Path, workspace: Workspace
) -> None:
    damage_and_run(workspace, nightly, file, kind, COMMANDS)


def cut_at(share: float) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(path.read_bytes()[: round(path.stat().st_size * share)])


RESUMED = ("fit", "-c", "small.yaml", "-c", "long.yaml")
CUTS = {f"cut-{percent}": cut_at(percent / 100) for percent in range(1, 100, 8)}
"""13 lengths of a table."""
TABLE_KINDS = {
    name: KINDS[name]
    for name in ("empty", "bytes", "list", "types", "digits", "nesting", "folder", "pipe")
}


def interrupt_in_the_fifth_epoch(workspace: Workspace) -> None:
    """Train four of six epochs, and be interrupted."""
    callback = {
        "class_path": "my_project.SendSignal",
        "init_args": {"hook": "on_train_batch_start", "step": 27},
    }
    workspace.write("long.yaml", {"trainer": {"max_epochs": 6}, "callbacks": {"sender": callback}})
    first = workspace.run(*RESUMED)
    assert first.code == 75, first.err


def check_resume(workspace: Workspace, damage: Callable[[Path], object]) -> None:
    """Damage the table of an interrupted training, test it, resume it.

    Compare the rows with those of before.
    """
    run = workspace.only_run
    before = read_metrics(run)
    assert len(before) == 4
    damage(run / "metrics.csv")
    workspace.run("test", "--run", str(run)).ok()
    resumed = workspace.run(*RESUMED).ok()
    assert "resumes" in resumed.err
    assert "metrics.csv" in resumed.err, "there is a warning"

    rows = read_metrics(run)
    assert rows[:4] == before
    assert [row["epoch"] for row in rows] == [str(epoch) for epoch in range(6)]
    assert [row["step"] for row in rows] == [
        str(event["step"]) for event in read_events(run, "epoch")
    ]
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    losses = {int(row["epoch"]): float(row["val/loss"]) for row in rows}
    best = min(losses, key=lambda epoch: losses[epoch])
    assert (summary["best"]["epoch"], summary["epochs"]) == (best, 6)
    assert summary["metrics"]["best"]["val/loss"] == pytest.approx(losses[best])


@pytest.fixture
def four_epochs(made_once: Once, workspace: Workspace) -> Workspace:
    """A training that was interrupted in its fifth epoch of six."""
    return copy_of(made_once("four-epochs", interrupt_in_the_fifth_epoch), workspace)


@pytest.mark.parametrize("kind", ["cut-57", "bytes", "folder"])
def test_a_damaged_table_is_made_again_from_the_events(kind: str, four_epochs: Workspace) -> None:
    check_resume(four_epochs, {**CUTS, **TABLE_KINDS}[kind])


@pytest.mark.long
@pytest.mark.parametrize("kind", [*CUTS, *TABLE_KINDS])
def test_no_damage_of_a_table_loses_or_changes_a_row(kind: str, four_epochs: Workspace) -> None:
    check_resume(four_epochs, {**CUTS, **TABLE_KINDS}[kind])


def test_a_training_whose_summary_is_damaged_has_ended_as_its_events_say(
    four_epochs: Workspace,
) -> None:
    run = four_epochs.only_run
    summary = run / "summary.json"
    summary.write_bytes(summary.read_bytes()[:-20])
    assert "resumes" in four_epochs.run(*RESUMED).ok().err, "it was interrupted"
    assert four_epochs.runs == [run]
    assert (run / "summary.json.damaged").is_file()

    summary.write_text('{"status": 3}', encoding="utf-8")
    four_epochs.run(*RESUMED).ok()
    assert len(four_epochs.runs) == 2, "it was done"
    run, _ = four_epochs.runs
    assert summary.read_text(encoding="utf-8") == '{"status": 3}'
