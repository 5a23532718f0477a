"""`lightkit runs` and `lightkit gc`: the table of the runs, and their end."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.batch import Answer, Command, run_batch
from tests.contract.conftest import Once, copy_of
from tests.contract.workspace import ForkServer, Workspace, read_json

Change = Callable[[Path], None]


def run_id(day: int) -> str:
    """The id of a run of that day of January 2026."""
    return f"202601{day:02}-030000-00{day:02}"


def edit(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**read_json(path), **values}), encoding="utf-8")


def plant(
    original: Path, workspace: Workspace, job: str, day: int, *, value: float = 0.5, **summary: Any
) -> Path:
    """Copy a run under the name of another job and day.

    With another best value and more changes of its summary.
    """
    (source,) = original.glob("runs/small/2*")
    run = workspace.folder / "runs" / job / run_id(day)
    shutil.copytree(source, run)
    best = {"monitor": "val/accuracy", "mode": "max", "value": value, "epoch": 1}
    if "stages" in summary:  # of the best checkpoint, as a test records it
        digest, *_ = (run / "checkpoints" / "best.ckpt.sha256").read_text(encoding="utf-8").split()
        summary["scores"] = [
            {"stage": stage, "metrics": metrics, "sha256": digest}
            for stage, metrics in summary["stages"].items()
        ]
    edit(run / "summary.json", **{"run": f"{job}/{run.name}", "best": best, **summary})
    edit(run / "manifest.json", run=f"{job}/{run.name}")
    return run


def ids(text: str) -> list[str]:
    return re.findall(r"\d{8}-\d{6}-[0-9a-f]{4,}", text)


def days(text: str) -> list[int]:
    return [int(each[6:8]) for each in ids(text)]


def left(workspace: Workspace, job: str = "job") -> list[int]:
    return [int(path.name[6:8]) for path in workspace.runs if path.parent.name == job]


# -- the table -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def table(
    finished_original: Path, tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer
) -> Iterator[Workspace]:
    """Runs of two jobs, which tests must not change: the newest failed, the second is largest."""
    workspace = Workspace(tmp_path_factory.mktemp("table") / "work", fork_server)
    plant(
        finished_original,
        workspace,
        "roses",
        1,
        value=0.75,
        stages={"test": {"test/loss": 0.125, "val/mae": 0.4}},
    )
    plant(
        finished_original,
        workspace,
        "roses",
        3,
        value=0.9,
        status="failed",
        stages={"test": {"val/mae": 0.3}},
    )
    tulips = plant(
        finished_original, workspace, "tulips", 2, value=0.25, stages={"test": {"val/mae": 0.2}}
    )
    (tulips / "notes.bin").write_bytes(bytes(50_000))
    for day, run in enumerate(sorted(workspace.runs, key=lambda path: path.name), 1):
        config = run / "config.yaml"
        config.write_text(config.read_text().replace("hidden: 8", f"hidden: {8 * day}"))
    yield workspace
    workspace.close()


LISTED: dict[str, tuple[tuple[str, ...], list[int]]] = {
    "one job": (("roses",), [3, 1]),
    "metric": (("--sort", "metric"), [3, 1, 2]),
    "metric and mode": (("--sort=metric", "--mode=min"), [2, 1, 3]),
    "size": (("--sort=size", "tulips"), [2]),
    "name": (("--sort", "name"), [3, 1, 2]),
    "status": (("--filter", "status=done"), [2, 1]),
    "two": (("--filter=status=done", "--filter", "name=roses"), [1]),
    "locked": (("--filter=locked=true",), []),
    "the root of fit": (("--run.root=runs", "tulips"), [2]),
    "a metric": (("--sort", "val/accuracy"), [3, 1, 2]),
    "a metric, worst first": (("--sort", "-val/accuracy"), [2, 1, 3]),
    "a metric that one lacks": (("--sort=-test/loss",), [1, 3, 2]),
    "a small one is best": (("--sort", "val/mae"), [2, 3, 1]),
    "a key of the config": (("--sort", "model.hidden"), [1, 2, 3]),
    "a key, the largest first": (("--sort=-model.init_args.hidden",), [3, 2, 1]),
    "the oldest first": (("--sort=-age",), [1, 2, 3]),
}
WRONG: dict[str, tuple[tuple[str, ...], str]] = {
    "sort": (("runs", "--sort=loss"), r"--sort: .*age, name, status, metric, size.*'loss'"),
    "sort by what is near": (
        ("runs", "--sort=-val/los"),
        r"--sort: .*'val/los'; did you mean 'val/loss'",
    ),
    "a metric of two": (
        ("runs", "--metric=val/loss,val/accurcy"),
        r"--metric: .*'val/accurcy'; did you mean 'val/acc",
    ),
    "a column": (
        ("runs", "--columns=model.hiden"),
        r"--columns: .*'model.hiden'; did you mean 'model.hidden'",
    ),
    "output": (
        ("runs", "--output=cvs"),
        r"--output: expected csv or json, got 'cvs'; did you mean 'csv'",
    ),
    "filter": (("runs", "--filter=stats=done"), r"--filter: .*did you mean 'status'"),
    "a filter's value": (
        ("runs", "--filter=status=don"),
        r"--filter status: .*'don'; did you mean 'done'",
    ),
    "a metric": (
        ("runs", "--metric=val/los"),
        r"--metric: no run has 'val/los'; did you mean 'val/loss'",
    ),
    "a metric of gc": (("gc", "--keep-best=1", "--metric=val/los"), r"did you mean 'val/loss'"),
    "job": (("runs", "rose"), r"no job 'rose'.*did you mean 'roses'"),
    "root": (("runs", "--root=none"), r"\bnone\b"),
    "gc without a rule": (("gc",), r"--keep-last, --keep-best, --max-size, --older-than"),
    "gc word": (("gc", "--keep-last=few"), r"--keep-last: .*'few'"),
    "gc negative": (("gc", "--keep-last=-1"), r"--keep-last: .*'-1'"),
    "gc size": (("gc", "--max-size=50X"), r"--max-size: .*50G.*'50X'"),
    "gc age": (("gc", "--older-than=soon"), r"--older-than: .*30d.*'soon'"),
    "gc job": (("gc", "--keep-last=1", "rose"), r"no job 'rose'.*did you mean 'roses'"),
    "gc option": (("gc", "--keep-lst=1"), r"did you mean '--keep-last'"),
}


@pytest.fixture(scope="module")
def said(table: Workspace) -> dict[str, Answer]:
    """What the commands of `LISTED` and `WRONG` print."""
    commands = {name: Command(("runs", *words)) for name, (words, _) in LISTED.items()}
    commands |= {f"wrong {name}": Command(words) for name, (words, _) in WRONG.items()}
    return run_batch(table, commands)


def test_the_table_has_a_line_a_run_the_newest_first(table: Workspace) -> None:
    result = table.run("runs").ok()
    head, *lines = result.out.splitlines()
    assert head.split() == ["name", "id", "status", "metric", "size", "age"]
    assert days(result.out) == [3, 2, 1]
    assert re.fullmatch(
        rf"tulips +{run_id(2)} +done +val/accuracy 0\.25 +[\d.]+ kB +\d+ \w+ *", lines[1]
    )
    assert result.err == ""


@pytest.mark.parametrize("name", LISTED)
def test_runs_are_sorted_and_filtered(name: str, said: dict[str, Answer]) -> None:
    assert days(said[name].ok().out) == LISTED[name][1]


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_word_is_reported_and_deletes_nothing(
    name: str, said: dict[str, Answer], table: Workspace
) -> None:
    answer = said[f"wrong {name}"]
    assert (answer.code, answer.out, len(table.runs)) == (2, "", 3)
    assert re.search(WRONG[name][1], answer.err)


def test_metrics_and_keys_of_the_config_can_be_shown(table: Workspace) -> None:
    words = (
        "--metric=test/loss,val/accuracy",
        "--columns",
        "model.init_args.hidden,model,manifest.seed",
    )
    head, *lines = table.run("runs", *words).ok().out.splitlines()
    keys = ["model.init_args.hidden", "model", "manifest.seed"]
    assert head.split() == [
        "name",
        "id",
        "status",
        "test/loss",
        "val/accuracy",
        *keys,
        "size",
        "age",
    ]
    assert [line.split()[3:-4] for line in lines] == [
        ["0.9", "24", "Net", "7"],
        ["0.25", "16", "Net", "7"],
        ["0.125", "0.75", "8", "Net", "7"],
    ]


def test_programs_get_the_table_as_csv(table: Workspace) -> None:
    words = (
        "--output",
        "csv",
        "--metric",
        "test/loss",
        "--columns",
        "model.hidden",
        "--sort",
        "age",
    )
    rows = list(csv.DictReader(io.StringIO(table.run("runs", *words).ok().out)))
    record, *_ = json.loads(table.run("runs", "--metric", "test/loss", "--json").ok().out)
    assert [*rows[0]] == [*(key for key in record if key != "metrics"), "test/loss", "model.hidden"]
    assert [(row["id"], row["test/loss"], row["model.hidden"]) for row in rows] == [
        (run_id(3), "", "24"),
        (run_id(2), "", "16"),
        (run_id(1), "0.125", "8"),
    ]
    assert {row["locked"] for row in rows} == {"false"}


def test_programs_get_the_table_as_json(table: Workspace) -> None:
    first = json.loads(table.run("runs", "--json").ok().out)[0]
    assert json.loads(table.run("runs", "--output", "json").ok().out)[0].keys() == first.keys()
    words = ("--metric=val/accuracy,test/loss", "--columns=model.hidden")
    more = json.loads(table.run("runs", "--json", *words).ok().out)[0]
    assert more.keys() - first.keys() == {"metrics", "columns"}
    assert (more["metrics"], more["columns"]) == (
        {"val/accuracy": 0.9, "test/loss": None},
        {"model.hidden": 24},
    )
    expected = {
        "name": "roses",
        "id": run_id(3),
        "status": "failed",
        "metric": "val/accuracy",
        "value": 0.9,
        "locked": False,
        "promoted": False,
    }
    assert expected.items() <= first.items()
    assert min(first["size_bytes"], first["age_s"]) > 1000


def test_a_run_that_a_process_works_on_is_locked_and_one_that_was_killed_is_called_so(
    finished_original: Path, workspace: Workspace
) -> None:
    plant(finished_original, workspace, "tulips", 2, status="running")
    workspace.write("hold", "0")
    process = workspace.start(
        "fit", "-c", "small.yaml", "callbacks.hold.class_path=my_project.Hold"
    )
    process.wait_for((workspace.folder / "held").exists)
    (running,) = (path for path in workspace.runs if path.parent.name == "small")
    table = workspace.run("runs").ok()
    deleted = workspace.run("gc", "--keep-last", "0", "--dry-run").ok()
    (workspace.folder / "hold").unlink()
    process.result().ok()
    assert re.search(rf"{running.name} +running .* locked *$", table.out, re.MULTILINE)
    assert re.search(rf"{run_id(2)} +killed ", table.out)
    assert running.name not in deleted.out


# -- gc --------------------------------------------------------------------------------------------


@pytest.fixture
def four(finished_original: Path, workspace: Workspace) -> Workspace:
    """Four finished runs of one job, of days 1 to 4; the first is the best."""
    plant_four(finished_original, workspace)
    return workspace


def plant_four(original: Path, workspace: Workspace) -> None:
    for day, value in enumerate((0.9, 0.1, 0.2, 0.3), 1):
        plant(original, workspace, "job", day, value=value)


def test_a_dry_run_says_what_would_be_deleted_and_deletes_nothing(four: Workspace) -> None:
    result = four.run("gc", "--keep-last", "1", "--dry-run").ok()
    assert [line.split()[:3] for line in result.out.splitlines()[:3]] == [
        ["would", "delete", f"job/{run_id(day)}"] for day in (1, 2, 3)
    ]
    assert re.search(r"^would free +3 runs, .*; 1 run left", result.out, re.MULTILINE)
    assert left(four) == [1, 2, 3, 4]


def _fail(day: int) -> Change:
    return lambda root: edit(
        root / "job" / run_id(day) / "summary.json", status="failed", exit_code=1
    )


def _begin_from(day: int, other: int) -> Change:
    def change(root: Path) -> None:
        edit(root / "job" / run_id(day) / "manifest.json", parent=str(root / "job" / run_id(other)))

    return change


def _name_weights(day: int, other: int) -> Change:
    def change(root: Path) -> None:
        weights = root / "job" / run_id(other) / "checkpoints" / "best.ckpt"
        with (root / "job" / run_id(day) / "config.yaml").open("a", encoding="utf-8") as config:
            config.write(f"teacher: {weights}\n")

    return change


def _cut_manifest(day: int) -> Change:
    def change(root: Path) -> None:
        manifest = root / "job" / run_id(day) / "manifest.json"
        manifest.write_bytes(manifest.read_bytes()[:-20])

    return change


COLLECTED: dict[str, tuple[tuple[str, ...], Change | None, list[int]]] = {
    "newest": (("--keep-last=2",), None, [3, 4]),
    "best": (("--keep-last=1", "--keep-best=1"), None, [1, 4]),
    "newest good one": (("--keep-last=0",), None, [4]),
    "what the next start resumes": (("--keep-last=0",), _fail(4), [3, 4]),
    "what a kept run began from": (("--keep-last=0",), _begin_from(4, 2), [2, 4]),
    "what the config of a kept run names": (("--keep-last=0",), _name_weights(4, 2), [2, 4]),
    "what an unreadable one may have begun from": (("--keep-last=0",), _cut_manifest(2), [1, 2, 4]),
    "older": (("--older-than=1d",), None, [4]),
    "younger": (("--older-than=9000d",), None, [1, 2, 3, 4]),
    "nothing fits": (("--max-size=1k",), None, [4]),
    "oldest first": (("--max-size=200k",), None, [3, 4]),
}


@pytest.fixture(scope="module")
def collected(
    finished_original: Path, tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer
) -> dict[str, tuple[Answer, Path]]:
    """How the commands of `COLLECTED` ended, each on four runs of its own, and its runs' folder."""
    workspace = Workspace(tmp_path_factory.mktemp("collected") / "work", fork_server)
    commands = {}
    for name, (words, change, _) in COLLECTED.items():
        own = Workspace(workspace.folder / name.replace(" ", "-"), fork_server)
        plant_four(finished_original, own)
        if change is not None:
            change(own.folder / "runs")
        commands[name] = Command(("gc", *words), folder=own.folder)
    answers = run_batch(workspace, commands)
    return {
        name: (answers[name], workspace.folder / name.replace(" ", "-") / "runs" / "job")
        for name in COLLECTED
    }


@pytest.mark.parametrize("name", COLLECTED)
def test_gc_deletes_what_no_rule_keeps(
    name: str, collected: dict[str, tuple[Answer, Path]]
) -> None:
    answer, job = collected[name]
    answer.ok()
    assert {path.name for path in job.iterdir()} == {run_id(day) for day in COLLECTED[name][2]}


def test_gc_names_the_file_for_which_it_keeps_every_older_run(
    collected: dict[str, tuple[Answer, Path]],
) -> None:
    answer, _ = collected["what an unreadable one may have begun from"]
    assert (
        f"{run_id(2)}/manifest.json cannot be read, so that it is not known from which run"
        in answer.err
    )
    assert "all that are older are kept. Repair the file, or delete the folder." in answer.err


def test_programs_get_what_was_deleted_and_why_others_were_kept(four: Workspace) -> None:
    said = json.loads(four.run("gc", "--keep-last=2", "--json").ok().out)
    assert [each["id"] for each in said["deleted"]] == [run_id(1), run_id(2)]
    assert said["kept"].keys() == {f"job/{run_id(3)}", f"job/{run_id(4)}"}
    assert said["freed_bytes"] == sum(each["size_bytes"] for each in said["deleted"])


def test_a_registry_that_does_not_answer_deletes_nothing(four: Workspace) -> None:
    words = ("gc", "--keep-last=1", "--tracking-uri=http://127.0.0.1:9")
    result = four.run(*words, environ={"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"})
    assert (result.code, left(four)) == (75, [1, 2, 3, 4]), result.err


@pytest.fixture
def promoted(made_once: Once, finished_original: Path, workspace: Workspace) -> Workspace:
    """Three runs of a job: the first is promoted in MLflow's registry below the run root."""

    def promote(other: Workspace) -> None:
        for day in (1, 2, 3):
            plant(finished_original, other, "job", day)
        other.run("promote", f"job/{run_id(1)}", "--name", "flowers", "--force").ok()

    return copy_of(made_once("promoted", promote), workspace)


def test_a_promoted_run_is_marked_and_kept_while_the_alias_points_to_it(
    promoted: Workspace,
) -> None:
    assert days(promoted.run("runs", "--filter=promoted=true").ok().out) == [1]
    promoted.run("gc", "--keep-last=0").ok()
    assert left(promoted) == [1, 3]


def test_a_run_that_was_promoted_in_a_registry_that_is_not_asked_is_kept(
    promoted: Workspace, tmp_path: Path
) -> None:
    for path in promoted.folder.glob("runs/mlflow*"):
        shutil.rmtree(path) if path.is_dir() else path.rename(tmp_path / path.name)
    promoted.run("gc", "--keep-last=0")
    assert left(promoted)[:1] == [1]


@pytest.mark.parametrize("option", ["--root", "--run.root"])
@pytest.mark.parametrize(
    "words",
    [
        ["runs"],
        ["gc", "--keep-last", "1"],
        ["history", "n"],
        ["rollback", "n"],
        ["gate", "latest"],
        ["promote", "latest"],
    ],
    ids=lambda words: words[0],
)
def test_the_folder_of_the_runs_has_the_same_options_in_each_command(
    words: list[str], option: str, workspace: Workspace
) -> None:
    failed = workspace.run(*words, option, "elsewhere")
    assert failed.code == 2
    assert "elsewhere" in failed.err
    assert "unexpected" not in failed.err
