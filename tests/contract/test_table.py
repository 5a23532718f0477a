"""Training from a Delta table or a folder of Parquet.

Which rows are read, in which order, and what is refused.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from lightkit.data import Table
from lightkit.errors import ConfigError, DataError
from tests.contract.data_cases import module_workspace, pictures_config, png, read_bad_images
from tests.contract.examples import MY_PROJECT
from tests.contract.workspace import (
    ForkServer,
    Workspace,
    assert_equal,
    load_checkpoint,
    read_json,
    read_metrics,
)

SPLITS = ["val" if number % 4 == 3 else "train" for number in range(40)]
ROWS = {"x": [float(x) for x in range(40)], "y": [2.0 * x for x in range(40)], "split": SPLITS}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write_parquet(path: Path, columns: Mapping[str, Any], *, group_rows: int = 5) -> Path:
    """Write a file of Parquet, and return its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(dict(columns)), path, row_group_size=group_rows)
    return path.parent


def write_delta(path: Path, columns: Mapping[str, Any], **options: Any) -> Path:
    """Write a Delta table, or add a version to it."""
    deltalake = pytest.importorskip("deltalake", reason="needs the extra delta (deltalake)")
    deltalake.write_deltalake(str(path), pa.table(dict(columns)), **options)
    return path


def numbers_of(path: Path | str | None, **options: Any) -> Table:
    """A table of one number, all rows of which are for training unless they say otherwise."""
    given = {
        "features": "x",
        "label": "y",
        "target": "value",
        "val_fraction": 0,
        "test_fraction": 0,
        "num_workers": 0,
    }
    return Table(**{"path": path and str(path), **given, **options})


def xs(data: Table) -> list[float]:
    """Numbers of the training rows, sorted."""
    data.setup("fit")
    return sorted(x for batch in data.train_dataloader() for x in batch[0].flatten().tolist())


MONEY = [Decimal("1.00"), Decimal("1.50"), Decimal("2.25"), None]
MIDNIGHT = datetime(2024, 1, 15, tzinfo=UTC)
FILTERED = {
    "x": [0.0, 1.0, 2.0, 3.0],
    "y": [0.0] * 4,
    "whole": [1, 2, None, 4],
    "real": [5.0, float("nan"), None, 1.0],
    "name": ["a", "b", "c", None],
    "money": MONEY,
    "at": pa.array(
        [MIDNIGHT.replace(day=day) for day in (14, 15, 16, 17)], pa.timestamp("us", "UTC")
    ),
    "yes": [True, False, None, True],
}


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ([["whole", ">", 1]], [1, 3]),
        ([["whole", "!=", 1]], [1, 3]),
        ([["whole", "in", [1, 4, 7]]], [0, 3]),
        ([["whole", "not in", [1]]], [1, 3]),
        ([["whole", "<=", 2], ["name", "==", "b"]], [1]),
        ([[["whole", "==", 1]], [["name", "==", "c"]]], [0, 2]),
        ([["real", "!=", 5.0]], [1, 3]),
        ([["real", "not in", [5.0]]], [1, 3]),
        ([["real", ">", 0]], [0, 3]),
        ([["money", ">", 1.4]], [1, 2]),
        ([["money", "==", 1]], [0]),
        ([["at", ">=", "2024-01-15"]], [1, 2, 3]),
        ([["at", "<", "2024-01-15T02:00+02:00"]], [0]),
        ([["yes", "==", True]], [0, 3]),
    ],
    ids=str,
)
@pytest.mark.parametrize("group_rows", [1, 4], ids=["a row each", "one group"])
def test_a_filter_takes_the_rows_that_pass_and_no_nulls(
    where: list[Any], rows: list[int], group_rows: int, tmp_path: Path
) -> None:
    table = write_parquet(tmp_path / "table" / "a.parquet", FILTERED, group_rows=group_rows)
    assert xs(numbers_of(table, filter=where)) == rows


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ([["whole", "like", 1]], "'like'"),
        ([["whole", ">", "high"]], "'whole'.*'high'"),
        ([["whole", ">", None]], "None"),
        ([["whole", "in", 1]], "list"),
        ([["whole", ">"]], r"\[column, operator, value\]"),
        ([["nam", "==", "a"]], "'nam'.*'name'"),
    ],
    ids=["operator", "type", "null", "no list", "no value", "column"],
)
def test_a_filter_that_cannot_be_meant_is_refused(
    where: list[Any], says: str, tmp_path: Path
) -> None:
    table = write_parquet(tmp_path / "table" / "a.parquet", FILTERED)
    with pytest.raises((ConfigError, DataError), match=rf"data\.init_args\.filter: .*{says}"):
        xs(numbers_of(table, filter=where))


def _commit(table: Path, *actions: Mapping[str, Any]) -> None:
    log = table / "_delta_log"
    lines = [{"commitInfo": {"timestamp": 1_790_000_000_000, "operation": "TEST"}}, *actions]
    path = log / f"{len(list(log.glob('*.json'))):020d}.json"
    path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")


def _actions(table: Path) -> list[dict[str, Any]]:
    logs = sorted((table / "_delta_log").glob("*.json"))
    return [
        json.loads(line) for log in logs for line in log.read_text(encoding="utf-8").splitlines()
    ]


def delete_by_vector(table: Path, rows: list[int]) -> None:
    """Delete rows of a Delta table of one file by a deletion vector, which deltalake cannot write.

    The vector stands in the log: a Roaring bitmap with one container, in Z85 (Delta protocol,
    "Deletion Vector Format").
    """
    add = next(action["add"] for action in reversed(_actions(table)) if "add" in action)
    bitmap = struct.pack("<IQIIIHHI", 1681511377, 1, 0, 12346, 1, 0, len(rows) - 1, 16)
    bitmap += struct.pack(f"<{len(rows)}H", *rows)
    digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    words = struct.iter_unpack(">I", bitmap + b"\0" * (-len(bitmap) % 4))
    text = "".join(
        digits[word // 85**place % 85] for (word,) in words for place in range(4, -1, -1)
    )
    vector = {
        "storageType": "i",
        "pathOrInlineDv": text,
        "sizeInBytes": len(bitmap),
        "cardinality": len(rows),
    }
    features = ["deletionVectors"]
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": features,
        "writerFeatures": features,
    }
    remove = {"path": add["path"], "dataChange": True, "deletionTimestamp": 1, "size": add["size"]}
    _commit(
        table,
        {"protocol": protocol},
        {"remove": remove},
        {"add": {**add, "deletionVector": vector}},
    )


def test_a_delta_table_is_read_at_its_newest_or_a_named_version(tmp_path: Path) -> None:
    table = write_delta(tmp_path / "table", {"x": [0.0], "y": [0.0]})
    write_delta(table, {"x": [1.0], "y": [0.0]}, mode="append")
    write_delta(table, {"x": [2.0], "y": [0.0]}, mode="overwrite")
    newest, first, second = (numbers_of(table, version=version) for version in (None, 0, 1))
    assert (xs(newest), xs(first), xs(second)) == (
        [2],
        [0],
        [0, 1],
    ), "no file is read that the log no longer lists"
    assert [data.describe()["version"] for data in (newest, first, second)] == [2, 0, 1]


def test_a_timestamp_chooses_the_version_of_its_moment(tmp_path: Path) -> None:
    table = write_delta(tmp_path / "table", {"x": [0.0], "y": [0.0]})
    write_delta(table, {"x": [1.0], "y": [0.0]}, mode="append")
    for version, seconds in enumerate([1_700_000_000, 1_800_000_000]):
        log = table / "_delta_log" / f"{version:020d}.json"
        log.write_text(re.sub(r'"timestamp":\d+', f'"timestamp":{seconds * 1000}', log.read_text()))
        os.utime(log, (seconds, seconds))
    assert xs(numbers_of(table, timestamp="2024-05-01T12:00:00Z")) == [0]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"version": 7}, "no version 7.*version 0"),
        ({"timestamp": "yesterday"}, r"data\.init_args\.timestamp.*'yesterday'"),
        ({"timestamp": "2020-01-01"}, r"data\.init_args\.timestamp"),
    ],
    ids=["version", "no moment", "before the first"],
)
def test_a_state_that_a_delta_table_does_not_have_is_refused(
    options: dict[str, Any], says: str, tmp_path: Path
) -> None:
    table = write_delta(tmp_path / "table", {"x": [0.0], "y": [0.0]})
    with pytest.raises((ConfigError, DataError), match=says):
        xs(numbers_of(table, **options))


def test_rows_that_a_deletion_vector_deletes_are_left_out(tmp_path: Path) -> None:
    table = write_delta(tmp_path / "table", {"x": [float(x) for x in range(6)], "y": [0.0] * 6})
    delete_by_vector(table, [1, 4])
    assert xs(numbers_of(table)) == [0, 2, 3, 5]
    assert xs(numbers_of(table, version=0)) == [0, 1, 2, 3, 4, 5]


def test_columns_that_were_added_later_are_null_in_older_files(tmp_path: Path) -> None:
    table = write_delta(tmp_path / "table", {"x": [0.0], "y": [0.0]})
    write_delta(table, {"x": [1.0], "y": [0.0], "w": [1]}, mode="append", schema_mode="merge")
    assert xs(numbers_of(table)) == [0, 1]
    assert xs(numbers_of(table, filter=[["w", "==", 1]])) == [1]


def test_column_mapping_is_refused_with_what_to_do(tmp_path: Path) -> None:
    table = write_delta(tmp_path / "table", {"x": [0.0], "y": [0.0]})
    meta = next(action["metaData"] for action in _actions(table) if "metaData" in action)
    schema = json.loads(meta["schemaString"])
    for number, column in enumerate(schema["fields"], 1):
        column["metadata"] = {
            "delta.columnMapping.id": number,
            "delta.columnMapping.physicalName": f"c{number}",
        }
    meta = {**meta, "schemaString": json.dumps(schema)}
    meta["configuration"] = {
        "delta.columnMapping.mode": "name",
        "delta.columnMapping.maxColumnId": "2",
    }
    _commit(table, {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}, {"metaData": meta})
    with pytest.raises(DataError, match=r"(?i)column ?mapping.*Copy it"):
        xs(numbers_of(table))


def test_a_folder_of_parquet_is_read_with_its_folders_of_columns_but_no_hidden_files(
    tmp_path: Path,
) -> None:
    for name in ("split=train/a", "split=val/b", "split=train/_old", ".hidden/c"):
        x = float(ord(name[-1]))
        write_parquet(tmp_path / "table" / f"{name}.parquet", {"x": [x], "y": [0.0]})
    data = numbers_of(tmp_path / "table")
    assert xs(data) == [ord("a")]
    assert data.describe()["counts"] == {"train": 1, "val": 1, "test": 0}


def test_rows_with_the_same_key_are_in_the_same_split(tmp_path: Path) -> None:
    columns = {
        "x": [float(x) for x in range(200)],
        "y": [0.0] * 200,
        "who": [x % 40 for x in range(200)],
    }
    data = numbers_of(
        write_parquet(tmp_path / "t" / "a.parquet", columns),
        key="who",
        val_fraction=0.3,
        test_fraction=0.2,
    )
    data.setup()
    loaders: dict[str, Any] = {
        "train": data.train_dataloader(),
        "val": data.val_dataloader(),
        "test": data.test_dataloader(),
    }
    keys = [
        {int(x) % 40 for batch in loader for x in batch[0].flatten()} for loader in loaders.values()
    ]
    assert sorted(key for of_split in keys for key in of_split) == list(range(40))
    assert all(keys)


def test_each_split_may_have_a_table_of_its_own_and_the_same_one_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = write_parquet(tmp_path / "one" / "a.parquet", {"x": [1.0, 2.0], "y": [0.0] * 2})
    other = write_parquet(tmp_path / "other" / "a.parquet", {"x": [3.0], "y": [0.0]})
    data = numbers_of(None, train=str(one), val=str(one), test=str(other))
    assert xs(data) == [1, 2]
    assert data.describe()["counts"] == {"train": 2, "val": 2, "test": 1}
    assert re.search(
        r"data\.init_args\.train and data\.init_args\.val read the same rows", caplog.text
    )


@pytest.mark.parametrize(
    ("labels", "dtype", "shape"),
    [
        (["b", "a"] * 2, torch.int64, (4,)),
        ([7, 3] * 2, torch.int64, (4,)),
        ([0.5, 0.25] * 2, torch.float32, (4, 1)),
    ],
    ids=["text", "whole numbers", "floating point"],
)
def test_text_and_whole_numbers_are_classes_and_floating_point_is_a_value(
    labels: list[Any], dtype: torch.dtype, shape: tuple[int, ...], tmp_path: Path
) -> None:
    columns = {"x": [0.0] * 4, "more": [[1.0, 2.0]] * 4, "y": labels, "w": [1.0, 2.0, 3.0, 4.0]}
    table = write_parquet(tmp_path / "t" / "a.parquet", columns)
    data = numbers_of(table, target="auto", features=["x", "more"], weight="w")
    data.setup("fit")
    (batch,) = data.train_dataloader()
    assert batch[0].shape == (4, 3)
    assert (batch[1].dtype, tuple(batch[1].shape)) == (dtype, shape)
    assert sorted(batch[2].tolist()) == [1, 2, 3, 4]
    assert data.num_classes == (2 if dtype == torch.int64 else 0)


def test_rows_are_mixed_the_same_way_for_the_same_seed_and_epoch(tmp_path: Path) -> None:
    columns = {"x": [float(x) for x in range(60)], "y": [0.0] * 60}
    table = write_parquet(tmp_path / "t" / "a.parquet", columns)
    data = numbers_of(table, shuffle_buffer=20, batch_size=60, seed=1)
    data.setup("fit")
    orders = []
    for _ in range(2):
        loader = data.train_dataloader()
        orders.append([x for batch in loader for x in batch[0].flatten().tolist()])
    assert sorted(orders[0]) == columns["x"] != orders[0]
    assert orders[0] == orders[1], "the same epoch is the same order"


def test_a_fingerprint_is_that_of_a_copy_elsewhere_and_not_of_other_rows(tmp_path: Path) -> None:
    table = write_delta(tmp_path / "table", {"x": [0.0, 1.0], "y": [0.0] * 2})
    shutil.copytree(table, tmp_path / "copy")
    before = numbers_of(table).describe()["fingerprint"]
    assert numbers_of(tmp_path / "copy").describe()["fingerprint"] == before
    delete_by_vector(table, [1])
    assert numbers_of(table).describe()["fingerprint"] != before


@pytest.fixture
def object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """A stand-in for S3 (see `s3_stub.py`) whose `bucket` is `tmp_path`; the options that reach it.

    It is a process of its own, because deltalake (1.6.6) holds the interpreter's lock while it
    waits for an answer.
    """
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    command = [sys.executable, "-S", str(Path(__file__).with_name("s3_stub.py")), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield {
                "AWS_ACCESS_KEY_ID": "key",
                "AWS_SECRET_ACCESS_KEY": "secret",
                "AWS_REGION": "us-east-1",
                "AWS_ENDPOINT_URL": server.stdout.readline().strip(),
                "AWS_ALLOW_HTTP": "true",
            }
        finally:
            server.terminate()


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_a_table_in_an_object_store_is_read_with_storage_options(
    kind: str, tmp_path: Path, object_store: dict[str, str]
) -> None:
    columns = {"x": [0.0, 1.0, 2.0], "y": [0.0] * 3}
    if kind == "delta":
        write_delta(tmp_path / "table", columns)
    else:
        write_parquet(tmp_path / "table" / "a.parquet", columns)
    assert xs(numbers_of("s3://bucket/table", storage_options=object_store)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"path": None}, r"path: expected a table"),
        ({"val": "b"}, r"path.*data\.init_args\.val"),
        ({"path": None, "train": "a", "version": 3}, r"version"),
        ({"shuffle_buffer": 0}, r"shuffle_buffer.*0"),
        ({"max_bad_fraction": 2}, r"max_bad_fraction.*2"),
    ],
    ids=["no table", "two tables", "version of several", "shuffle_buffer", "max_bad_fraction"],
)
def test_settings_of_a_table_that_cannot_be_meant_are_refused(
    options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=rf"data\.init_args\.{says}"):
        Table(**{"path": "a", **options})


def picture_rows(
    *, broken: tuple[int, ...] = (), nulls: tuple[int, ...] = ()
) -> dict[str, list[Any]]:
    """Forty pictures of two classes, thirty of which are for training."""
    images = [None if n in nulls else b"no picture" if n in broken else png(n) for n in range(40)]
    return {"image": images, "label": ["ab"[n % 2] for n in range(40)], "split": SPLITS}


def table_config(*, trainer: Mapping[str, Any] | None = None, **init_args: Any) -> dict[str, Any]:
    """A classifier on the table `table`."""
    given = {
        "path": "table",
        "image_size": 16,
        "batch_size": 4,
        "num_workers": 0,
        "shuffle_buffer": 8,
        **init_args,
    }
    return {**pictures_config(trainer=trainer), "data": {"class_path": "Table", "init_args": given}}


@pytest.fixture(scope="module")
def trained(
    tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer
) -> Iterator[Workspace]:
    """A fit from a Delta table with a broken row, and one that was interrupted and resumed."""
    with module_workspace(tmp_path_factory, fork_server) as workspace:
        workspace.write("my_project.py", MY_PROJECT)
        write_delta(workspace.folder / "table", picture_rows(broken=(1,)))
        config = table_config(max_bad_fraction=0.2)
        workspace.write("straight.yaml", config)
        sender = {
            "class_path": "my_project.SendSignal",
            "init_args": {"hook": "on_train_batch_start", "step": 11},
        }
        workspace.write("killed.yaml", {**config, "callbacks": {"sender": sender}})
        workspace.run("fit", "-c", "straight.yaml").ok()
        assert workspace.run("fit", "-c", "killed.yaml").code == 75
        shutil.copytree(workspace.folder / "runs", workspace.folder / "interrupted", symlinks=True)
        workspace.run("fit", "-c", "killed.yaml").ok()
        yield workspace


def _run(workspace: Workspace, name: str) -> Path:
    (run,) = [path for path in workspace.runs if path.parent.name == name]
    return run


def test_a_killed_training_from_a_table_goes_on_at_the_right_row(trained: Workspace) -> None:
    runs = [_run(trained, name) for name in ("straight", "killed")]
    straight, killed = (load_checkpoint(run / "checkpoints" / "last.ckpt") for run in runs)
    for key in ("epoch", "global_step", "state_dict", "optimizer_states", "lr_schedulers"):
        assert_equal(straight[key], killed[key], key)
    metrics = [
        [{**row, "lr": None} for row in read_metrics(run)] for run in runs
    ]  # lr: as it was at the start, or then
    assert metrics[0] == metrics[1]


def test_the_manifest_has_the_version_classes_and_counts_of_the_table(trained: Workspace) -> None:
    data = read_json(_run(trained, "straight") / "manifest.json")["data"]
    assert (data["source"], data["format"], data["version"], data["class_names"]) == (
        "table",
        "delta",
        0,
        ["a", "b"],
    )
    assert data["counts"] == {"train": 30, "val": 10, "test": 0}


def test_a_broken_row_is_left_out_and_listed_with_its_file_and_row(trained: Workspace) -> None:
    (row,) = read_bad_images(_run(trained, "straight") / "bad_images.csv")
    assert re.search(r"\.parquet, row 1$", row["path"])
    assert "not an image" in row["reason"]


def test_an_interrupted_fit_begins_anew_where_the_delta_table_has_grown(
    trained: Workspace, workspace: Workspace
) -> None:
    shutil.copytree(trained.folder, workspace.folder, symlinks=True, dirs_exist_ok=True)
    shutil.rmtree(workspace.folder / "runs")
    (workspace.folder / "interrupted").rename(workspace.folder / "runs")
    write_delta(workspace.folder / "table", picture_rows(), mode="append")
    result = workspace.run("fit", "-c", "killed.yaml").ok()
    assert len([run for run in workspace.runs if run.parent.name == "killed"]) == 2
    assert re.search(r"data has changed.*version 0, now 1", result.out + result.err)


@pytest.mark.parametrize(
    ("options", "rows", "says"),
    [
        ({}, {"broken": (0, 1, 2)}, r"3 of the 30 rows .*data\.init_args\.max_bad_fraction"),
        ({}, {"nulls": (0, 1, 2)}, r"3 of 40 rows .*data\.init_args\.max_bad_fraction"),
        ({"on_bad_image": "error"}, {"broken": (1,)}, r"1 of 40 rows[\s\S]*row 1"),
    ],
    ids=["undecodable, at the end of the epoch", "nulls, before training", "on_bad_image"],
)
def test_more_bad_rows_than_are_allowed_end_with_3(
    options: dict[str, Any], rows: dict[str, Any], says: str, workspace: Workspace
) -> None:
    write_parquet(workspace.folder / "table" / "a.parquet", picture_rows(**rows))
    workspace.write("job.yaml", table_config(**options))
    result = workspace.run("fit", "-c", "job.yaml")
    assert result.code == 3, result.err
    assert re.search(says, result.err)
    assert "Traceback" not in result.err
    after_an_epoch = not options and "broken" in rows
    assert [path.name for path in workspace.folder.glob("runs/job/2*/checkpoints/last.ckpt")] == (
        ["last.ckpt"] if after_an_epoch else []
    )


@pytest.mark.parametrize(
    ("init_args", "says"),
    [
        (
            {"label": "lable"},
            r"data\.init_args\.label: .*'lable'.*'label'\?[\s\S]*job\.yaml:\d+:\d+",
        ),
        ({"image": "picture"}, r"data\.init_args\.image: .*'picture'[\s\S]*job\.yaml:\d+:\d+"),
        ({"path": "tabel"}, r"data\.init_args\.path: .*tabel.*'table'\?[\s\S]*job\.yaml:\d+:\d+"),
    ],
    ids=["label", "image", "path"],
)
def test_a_missing_column_or_table_ends_with_3_its_place_and_a_near_name(
    init_args: dict[str, Any], says: str, workspace: Workspace
) -> None:
    write_parquet(workspace.folder / "table" / "a.parquet", picture_rows())
    workspace.write("job.yaml", table_config(**init_args))
    result = workspace.run("fit", "-c", "job.yaml")
    assert result.code == 3
    assert re.search(says, result.err)
    assert workspace.runs == []


def test_check_looks_for_tables_on_this_machine_only(workspace: Workspace) -> None:
    workspace.write("job.yaml", table_config(path="s3://bucket/flowers"))
    workspace.run("check", "-c", "job.yaml").ok()
    result = workspace.run("check", "-c", "job.yaml", "--data.path=flowers")
    assert result.code == 2
    assert re.search(r"data\.init_args\.path.*flowers", result.err)


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_a_file_of_a_table_that_was_cut_short_ends_with_3_and_its_name(
    kind: str, workspace: Workspace
) -> None:
    if kind == "delta":
        write_delta(workspace.folder / "table", picture_rows())
    else:
        write_parquet(workspace.folder / "table" / "a.parquet", picture_rows())
    (file,) = (workspace.folder / "table").glob("*.parquet")
    file.write_bytes(file.read_bytes()[:-10])
    workspace.write("job.yaml", table_config())
    result = workspace.run("fit", "-c", "job.yaml")
    assert result.code == 3
    assert re.search(rf"error: .*{re.escape(file.name)}", result.err)


def test_petastorm_that_is_not_installed_is_reported_by_check_with_what_to_do(
    workspace: Workspace,
) -> None:
    try:
        import petastorm  # noqa: F401
    except ImportError:
        pass
    else:
        pytest.skip("petastorm is installed")
    write_parquet(workspace.folder / "table" / "a.parquet", picture_rows())
    config = table_config()
    workspace.write(
        "job.yaml",
        {**config, "data": {"class_path": "PetastormTable", "init_args": {"train": "table"}}},
    )
    result = workspace.run("check", "-c", "job.yaml")
    assert result.code == 2
    assert re.search(
        r"data\.class_path: .*petastorm not installed[\s\S]*lightkit-train\[petastorm\]", result.err
    )
