from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from lightkit.errors import ConfigError, DataError
from lightkit.rows.parquet_table import open_table
from tests.data.tables.conftest import ObjectStore, WriteDelta, WriteParquet

ROWS = {"x": list(range(5)), "label": ["a", "b", "a", "b", "a"]}


def xs(table: object) -> list[int]:
    snapshot = open_table(str(table))
    return [
        x
        for group in snapshot.groups
        for batch in group.read(["x"], batch_rows=2)
        for x in batch.column(0).to_pylist()
    ]


def test_auto_reports_delta_from_parquet(
    write_parquet: WriteParquet, write_delta: WriteDelta
) -> None:
    assert open_table(str(write_parquet(ROWS))).kind == "parquet"
    assert open_table(str(write_delta(ROWS))).kind == "delta"
    assert xs(write_parquet(ROWS)) == xs(write_delta(ROWS, mode="overwrite")) == ROWS["x"]


def test_an_address_of_this_machine_is_a_path(write_parquet: WriteParquet) -> None:
    table = write_parquet(ROWS, "a b.parquet")
    assert xs(f"file://{table}/a%20b.parquet") == ROWS["x"]


def test_a_snapshot_reads_the_same_after_it_was_sent_elsewhere(write_delta: WriteDelta) -> None:
    snapshot = open_table(str(write_delta(ROWS)))
    sent = pickle.loads(pickle.dumps(snapshot))
    assert [batch.to_pylist() for batch in sent.groups[0].read(["label", "x"], batch_rows=9)] == [
        [{"label": label, "x": x} for x, label in zip(*ROWS.values(), strict=True)]
    ]
    assert sent.fingerprint == snapshot.fingerprint


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            {"version": 1, "timestamp": "2026-01-01"},
            "both choose the state of the table. Leave out one",
        ),
        (
            {"version": 1},
            r"data\.init_args\.version chooses a state of a Delta table, but .* is Parquet",
        ),
        (
            {"timestamp": "2026-01-01"},
            r"data\.init_args\.timestamp chooses a state of a Delta table",
        ),
        (
            {"storage_options": {"region": "x"}},
            r"storage_options: .* is on this machine, where they have no effect",
        ),
    ],
    ids=["both", "version", "timestamp", "options"],
)
def test_arguments_that_do_not_fit_parquet_are_refused(
    write_parquet: WriteParquet, arguments: dict[str, object], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        open_table(str(write_parquet(ROWS)), **arguments)  # type: ignore[arg-type]


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"tabel: this table does not exist \(data\.init_args\.path, from"
    ):
        open_table(str(tmp_path / "tabel"))


@pytest.mark.parametrize("rows", [0, None], ids=["no rows", "no row groups"])
def test_an_empty_table_is_refused(write_parquet: WriteParquet, rows: int | None) -> None:
    schema = pa.schema([("x", pa.int64())])
    empty = schema.empty_table() if rows is None else pa.table({"x": pa.array([], pa.int64())})
    with pytest.raises(DataError, match="this table is empty"):
        open_table(str(write_parquet(empty)))


def test_without_deltalake_the_error_names_the_extra(
    write_delta: WriteDelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = write_delta(ROWS)
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(
        ConfigError, match=r"deltalake, .* is not installed\. Run `pip install 'lightkit-train"
    ):
        open_table(str(table))


@pytest.mark.long
def test_tables_in_an_object_store_are_read_from_another_process(
    write_parquet: WriteParquet, write_delta: WriteDelta, object_store: ObjectStore, tmp_path: Path
) -> None:
    folders = {"parquet": write_parquet(ROWS, "split=train/a.parquet"), "delta": write_delta(ROWS)}
    groups = []
    for kind, folder in folders.items():
        address = f"s3://{object_store.bucket}/{folder.name}"
        snapshot = open_table(address, storage_options=object_store.options)
        assert (snapshot.kind, snapshot.is_local) == (kind, False)
        assert snapshot.fingerprint == open_table(str(folder)).fingerprint
        assert "secret" not in repr(snapshot)
        groups += snapshot.groups
    (tmp_path / "groups").write_bytes(pickle.dumps(groups))
    code = (
        "import pickle, sys; groups = pickle.load(open(sys.argv[1], 'rb'));print([x for group in"
        " groups for batch in group.read(['x'], batch_rows=2) for x in batch[0].to_pylist()])"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "groups")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == str([*range(5)] * 2)
