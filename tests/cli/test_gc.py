"""`lightkit gc`: what is deleted, what is printed, and what the registry keeps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lightkit import runs
from tests.cli.conftest import House
from tests.runs.trees import plant, run_id


def left(root: Path, name: str = "job") -> list[str]:
    return sorted(path.name for path in (root / name).iterdir() if path.is_dir() and not path.is_symlink())


@pytest.fixture
def root(house: House) -> Path:
    folder = house.folder / "runs"
    for day, value in enumerate([0.9, 0.1, 0.2, 0.3]):
        plant(folder, day=day, value=value)
    return folder


def test_what_no_rule_keeps_is_deleted_and_told(root: Path, house: House) -> None:
    words = ["gc", "--keep-last", "1", "--keep-best=1"]
    dry = house(*words, "--dry-run")
    assert (dry.code, dry.err, len(left(root))) == (0, "", 4)
    assert [line.split()[:3] for line in dry.out.splitlines()[:2]] == [
        ["would", "delete", f"job/{run_id(1)}"],
        ["would", "delete", f"job/{run_id(2)}"],
    ]
    done = house(*words)
    assert (done.code, done.err) == (0, "")
    assert left(root) == [run_id(0), run_id(3)]
    assert done.out.splitlines()[-1].startswith("freed  2 runs, ")
    assert "; 2 runs left, " in done.out
    assert not list(root.glob("*/.deleting-*"))
    assert house(*words).out.startswith("nothing to delete: 2 runs, ")


def test_programs_get_the_reasons(root: Path, house: House) -> None:
    told = json.loads(house("gc", "job", "--keep-last=2", "--json").out)
    assert [each["id"] for each in told["deleted"]] == [run_id(0), run_id(1)]
    assert told["kept"] == {f"job/{run_id(2)}": "one of the newest", f"job/{run_id(3)}": "the newest good one"}
    assert told["dry_run"] is False
    assert told["freed_bytes"] == sum(each["size_bytes"] for each in told["deleted"])


def test_what_is_kept_and_does_not_fit_is_warned_of(root: Path, house: House) -> None:
    done = house("gc", "--max-size=1k", "--keep-last=4", "--quiet")
    assert (done.code, done.out, len(left(root))) == (0, "", 4)
    assert done.err == "warning: what is left is larger than --max-size, and all of it is kept by other rules\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "say what is kept: --keep-last, --keep-best, --max-size, --older-than"),
        (["--keep-last=few"], "--keep-last: expected a whole number, got 'few'"),
        (["--keep-last=-1"], "--keep-last: expected a whole number, got '-1'"),
        (["--max-size=50X"], "--max-size: expected a size such as 50G or 500M, got '50X'"),
        (["--older-than=soon"], "--older-than: expected a time such as 30d or 12h, got 'soon'"),
        (["--keep-best=1", "--mode=best"], "--mode: expected min or max, got 'best'"),
        (["--keep-last=1", "jb"], "there is no job 'jb' in runs; did you mean 'job'?"),
        (["--keep-last=1", "../runs"], "there is no job '../runs' in runs"),
        (["--keep-lst=1"], "unexpected argument '--keep-lst=1'; did you mean '--keep-last'"),
    ],
    ids=["none", "word", "negative", "size", "age", "mode", "job", "outside", "option"],
)
def test_a_wrong_word_deletes_nothing(words: list[str], says: str, root: Path, house: House) -> None:
    done = house("gc", *words)
    assert (done.code, len(left(root))) == (2, 4)
    assert says in done.err


def test_a_registry_that_cannot_be_asked_deletes_nothing(root: Path, house: House) -> None:
    noted = {"tracking_uri": "http://me:***@mlflow.example.org", "run_id": "1"}
    runs.write_json(
        root / "job" / run_id(1) / "mlflow.json", {**noted, "tracking_uri": "http://***@mlflow.example.org"}
    )
    done = house("gc", "--keep-last=1")
    assert (done.code, len(left(root))) == (2, 4)
    assert "Say --tracking-uri or set MLFLOW_TRACKING_URI" in done.err


def test_a_promoted_run_whose_registry_is_not_asked_stays(root: Path, house: House) -> None:
    mark = {"name": "flowers", "to": "1"}
    runs.write_json(root / "job" / run_id(0) / "promoted.json", mark)
    runs.write_json(root / "job" / run_id(1) / "promoted.json", {**mark, "registries": ["sqlite:////gone/mlflow.db"]})
    away = {**mark, "registries": ["http://***@mlflow.example.org"]}
    runs.write_json(root / "job" / run_id(2) / "promoted.json", away)
    told = json.loads(house("gc", "--keep-last=0", "--json").out)
    assert told["deleted"] == []
    assert told["kept"] == {
        **{f"job/{run_id(day)}": "promoted" for day in range(3)},
        f"job/{run_id(3)}": "the newest good one",
    }


def test_when_a_promoted_run_stays_the_one_that_goes_for_its_size_is_looked_at_too(root: Path, house: House) -> None:
    for day in (0, 1):
        runs.write_json(root / "job" / run_id(day) / "promoted.json", {"name": "flowers", "to": "1"})
    size_bytes = sum(each["size_bytes"] for each in json.loads(house("runs", "--json").out))
    assert house("gc", f"--max-size={size_bytes - 1}").code == 0
    assert left(root) == [run_id(0), run_id(1), run_id(3)]


@pytest.mark.slow
def test_a_server_that_does_not_answer_deletes_nothing(
    root: Path, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    done = house("gc", "--keep-last=1", "--tracking-uri=http://127.0.0.1:9")
    assert (done.code, len(left(root))) == (75, 4), done.err


@pytest.mark.slow
def test_what_an_alias_points_to_and_a_rollback_would_bring_back_stays(root: Path, house: House) -> None:
    from mlflow.tracking import MlflowClient

    from lightkit.registry.promotion import Move, PromotionLog

    client = MlflowClient(f"sqlite:///{root / 'mlflow.db'}")
    client.create_registered_model("flowers")
    for day in range(3):
        tags = {"run": f"job/{run_id(day)}"}
        client.create_model_version("flowers", source=str(root), tags=tags)
    log = PromotionLog(client, "flowers")
    for before, to in ((None, "1"), ("1", "2"), ("2", "3")):
        log.move(Move("promote", "champion", before, to))
    registries = [f"sqlite:///{root / 'mlflow.db'}"]
    for day in range(3):
        runs.write_json(root / "job" / run_id(day) / "promoted.json", {"name": "flowers", "registries": registries})
    done = house("gc", "--keep-last=0")
    assert done.code == 0, done.err
    assert left(root) == [run_id(1), run_id(2), run_id(3)]  # version 1 is neither in use nor next to it
