"""The places of a config's data are known from the config alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightkit.cli.input_places import places_of
from lightkit.cli.inputs import inputs_of
from lightkit.cli.session import Session, open_session
from lightkit.config import resolve
from lightkit.images.flower_photos import CLASSES
from lightkit.runs.signals import SignalWatch

SOURCE = """\
from pathlib import Path
from lightkit.callbacks import SlackNotifier
from lightkit.data import Flowers, ImageFolder, Table

TABLE = "rows.csv"

class Mine(ImageFolder):
    def __init__(self, extra="extra.txt", **kwargs): ...


class Lone:
    def __init__(self, table="rows.csv", **kwargs): ...


class Moved:
    def __init__(self, root: Path = Path("photos"), table=TABLE, num_workers: int = cores()): ...


class Asking:
    def __init__(self, root=settings.root, table="rows.csv"): ...


class Silent:
    def __init__(self, size=3): ...


class Drawn(Silent):
    input_places = ()


class Declaring(Asking):
    input_places = ("root",)


class Net:
    def __init__(self, weights="photos", out_dir="photos"): ...


class Sure(Net):
    input_places = ("weights",)


class Chat(SlackNotifier): ...
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("LIGHTKIT_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "sources.py").write_text(SOURCE)
    (tmp_path / "photos").mkdir()
    for name in ("rows.csv", "extra.txt", "photos/a.jpg", "weights.pt"):
        (tmp_path / name).write_text(name)
    return tmp_path


def keys(data: dict[str, Any], **others: Any) -> tuple[list[str], list[str]]:
    found = places_of(resolve(defaults={"data": data, **others}, environ={}))
    return [f"{each.key}={each.path}" for each in found.found], found.unseen


@pytest.mark.parametrize(
    ("class_path", "given", "found", "unseen"),
    [
        ("ImageFolder", {"root": "photos"}, ["root=photos"], []),
        ("lightkit.data.ImageFolder", {"root": "photos"}, ["root=photos"], []),
        ("Flowers", {}, [], []),
        ("Flowers", {"root": "photos"}, ["root=photos"], []),
        ("DrawnFlowers", {"num_images": 10}, [], []),
        ("Temperatures", {}, [], []),
        ("FashionMNIST", {}, ["root=data/FashionMNIST/raw"], []),
        ("Table", {"path": "photos"}, ["path=photos"], []),
        ("Table", {"train": "a", "val": "b"}, ["train=a", "val=b"], []),
        ("Table", {"path": "s3://bucket/table"}, [], ["path"]),
        ("sources.Mine", {"root": "photos"}, ["root=photos", "extra=extra.txt"], []),
        ("sources.Lone", {}, ["table=rows.csv"], []),
        ("sources.Lone", {"table": "extra.txt"}, ["table=extra.txt"], []),
        ("sources.Lone", {"deep": {"list": ["photos", "http://127.0.0.1/x"]}},
         ["table=rows.csv", "deep.list.0=photos"], ["deep.list.1"]),
        ("sources.Lone", {"table": "", "text": "x" * 5000, "null": "a\0b"}, [], []),
    ],
    ids=[
        "folder", "full-name", "drawn-default", "flowers", "drawn", "temperatures", "fashion", "table", "tables",
        "remote", "subclass", "default", "given", "nested", "no-paths",
    ],
)  # fmt: skip
def test_places_of(class_path: str, given: dict[str, Any], found: list[str], unseen: list[str]) -> None:
    said = keys({"class_path": class_path, "init_args": given})
    assert said == ([f"data.init_args.{each}" for each in found], [f"data.init_args.{each}" for each in unseen])


@pytest.mark.parametrize(
    ("class_path", "given", "found", "unsure"),
    [
        ("sources.Moved", {}, ["root=photos", "table=rows.csv"], []),
        ("sources.Asking", {}, ["table=rows.csv"], [".init_args.root"]),
        ("sources.Asking", {"root": "photos"}, ["root=photos", "table=rows.csv"], []),
        ("sources.Declaring", {}, [], [".init_args.root"]),
        ("sources.Declaring", {"root": "photos"}, ["root=photos"], []),
        ("sources.Silent", {}, [], [""]),
        ("sources.Drawn", {}, [], []),
        ("installed.Data", {}, [], [""]),
        ("sources.Mine", {"root": "photos"}, ["root=photos", "extra=extra.txt"], []),
        ("Temperatures", {}, [], []),
    ],
    ids=[
        "plain", "unknown", "unknown-given", "declared-unknown", "declared-given", "silent", "declared-none",
        "of-others", "subclass", "lightkit",
    ],
)  # fmt: skip
def test_what_nothing_tells_is_known(
    class_path: str, given: dict[str, Any], found: list[str], unsure: list[str]
) -> None:
    said = places_of(resolve(defaults={"data": {"class_path": class_path, "init_args": given}}, environ={}))
    assert [f"{each.key}={each.path}" for each in said.found] == [f"data.init_args.{each}" for each in found]
    assert (said.unsure, said.unseen) == ([f"data{each}" for each in unsure], [])


@pytest.mark.parametrize(
    ("class_path", "given", "found", "unseen"),
    [
        ("x.Net", {"weights": "weights.pt", "folder": "photos"}, ["weights=weights.pt", "folder=photos"], []),
        ("x.Net", {"deep": {"list": ["photos"]}, "head": {"class_path": "x.Head", "init_args": {"f": "photos"}}},
         ["deep.list.0=photos", "head.init_args.f=photos"], []),
        ("x.Net", {"weights": "s3://bucket/w", "code": "file://photos"}, ["code=photos"], ["weights"]),
        ("x.Net", {"out_dir": "photos", "dirpath": "photos", "cache_dir": "s3://x"}, [], []),
        ("x.Net", {"a": ".", "b": "..", "c": "/", "d": "~", "e": "runs", "f": "logged", "g": "gone"}, [], []),
        ("sources.Net", {}, ["weights=photos"], []),
        ("sources.Sure", {"hub": "https://hub/x"}, ["weights=photos"], []),
    ],
    ids=["arguments", "nested", "addresses", "written", "surroundings", "default", "declared"],
)  # fmt: skip
def test_what_the_model_reads_counts(
    place: Path, class_path: str, given: dict[str, Any], found: list[str], unseen: list[str]
) -> None:
    for folder in ("runs", "logged"):
        (place / folder).mkdir()
    model = {"class_path": class_path, "init_args": given}
    said = keys({"class_path": "Temperatures"}, model=model, trainer={"default_root_dir": "logged"})
    assert said == ([f"model.init_args.{each}" for each in found], [f"model.init_args.{each}" for each in unseen])


@pytest.mark.parametrize(
    "name", ["lightkit.callbacks.SlackNotifier", "lightkit.callbacks.WebhookNotifier", "sources.Chat"]
)
def test_whom_a_notifier_tells_is_no_input(place: Path, name: str) -> None:
    entry = {"class_path": name, "init_args": {"webhook_url": "http://127.0.0.1:9/x"}}
    reading = {"class_path": "x.Reader", "init_args": {"table": "rows.csv"}}
    logger = {"mlflow": {"class_path": "x.Logger", "init_args": {"tracking_uri": "http://127.0.0.1:9/"}}}
    said = keys({"class_path": "Temperatures"}, callbacks={"told": entry, "reads": reading}, logger=logger)
    assert said == (["callbacks.reads.init_args.table=rows.csv"], [])


def test_the_photos_count_once_they_are_fetched(place: Path) -> None:
    for name in CLASSES:
        (place / "data/flower_photos" / name).mkdir(parents=True)
    assert keys({"class_path": "Flowers"})[0] == ["data.init_args.root=data/flower_photos"]


def session_of(**given: Any) -> Session:
    words = [f"--data.init_args.{name}={value}" for name, value in given.items()]
    return open_session("fit", ["--model=ImageClassifier", "--data=Table", *words], SignalWatch())


def commit(place: Path, number: int, text: str = "") -> None:
    (place / "table/_delta_log").mkdir(parents=True, exist_ok=True)
    (place / f"table/_delta_log/{number:020}.json").write_text(text or f"commit {number}")


def test_of_a_delta_table_its_state_counts(place: Path) -> None:
    for number in (0, 1):
        commit(place, number)
    newest, pinned = session_of(path="table"), session_of(path="table", version=1)
    before = [inputs_of(session, salt="", asked=True).data for session in (newest, pinned)]
    (place / "table/_delta_log/00000000000000000001.checkpoint.parquet").write_text("the same, summed up")
    (place / "table/_delta_log/_last_checkpoint").write_text("{}")
    assert [inputs_of(session, salt="", asked=True).data for session in (newest, pinned)] == before
    commit(place, 2)
    after = [inputs_of(session, salt="", asked=True).data for session in (newest, pinned)]
    assert after[0] != before[0]
    assert after[1] == before[1]


def test_links_in_a_circle_and_the_runs_themselves_are_left_out(place: Path) -> None:
    (place / "photos/again").symlink_to(place / "photos")
    (place / "photos/runs").mkdir()
    (place / "photos/runs/x.json").write_text("written by the last run")
    words = ["--model=ImageClassifier", "--data=ImageFolder", "--data.init_args.root=photos", "--run.root=photos/runs"]
    inputs = inputs_of(open_session("fit", words, SignalWatch()), salt="", asked=True)
    assert list((inputs.data or {})["data.init_args.root"]) == ["a.jpg"]
