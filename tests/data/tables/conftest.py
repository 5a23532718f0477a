"""What tests of tables need: small tables, and a stand-in for an object store on loopback."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

WriteParquet = Callable[..., Path]
WriteDelta = Callable[..., Path]


@pytest.fixture(autouse=True)
def cache_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test has a cache of its own."""
    home = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    return home / "lightkit"


@pytest.fixture
def write_parquet(tmp_path: Path) -> WriteParquet:
    """Writes a table to a path below ``table``, in row groups of two rows."""

    def write(
        columns: Mapping[str, Any] | pa.Table, name: str = "part-0.parquet", rows: int = 2
    ) -> Path:
        path = tmp_path / "table" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        table = columns if isinstance(columns, pa.Table) else pa.table(dict(columns))
        pq.write_table(table, path, row_group_size=rows)
        return tmp_path / "table"

    return write


@pytest.fixture
def write_delta(tmp_path: Path) -> WriteDelta:
    """Writes a table to a Delta table, a version each time."""
    deltalake = pytest.importorskip("deltalake", reason="needs the extra delta (deltalake)")

    def write(columns: Mapping[str, Any], **options: Any) -> Path:
        deltalake.write_deltalake(tmp_path / "delta", pa.table(dict(columns)), **options)
        return tmp_path / "delta"

    return write


def delete_by_vector(table: Path, rows: list[int]) -> None:
    """Add a version to a Delta table of one file that deletes rows by a deletion vector.

    Deltalake cannot write one.

    The vector stands in the log itself: a Roaring bitmap with one container, in Z85, as in the
    Delta protocol, "Deletion Vector Format".
    """
    logs = sorted((table / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    add = next(action["add"] for action in reversed(actions) if "add" in action)
    bitmap = struct.pack("<IQIIIHHI", 1681511377, 1, 0, 12346, 1, 0, len(rows) - 1, 16)
    bitmap += struct.pack(f"<{len(rows)}H", *rows)
    vector = {
        "storageType": "i", "pathOrInlineDv": _z85(bitmap + b"\0" * (-len(bitmap) % 4)),
        "sizeInBytes": len(bitmap), "cardinality": len(rows),
    }  # fmt: skip
    features = ["deletionVectors"]
    protocol = {
        "minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features,
        "writerFeatures": features
    }  # fmt: skip
    remove = {"path": add["path"], "dataChange": True, "deletionTimestamp": 1, "size": add["size"]}
    commit(
        table,
        {"protocol": protocol},
        {"remove": remove},
        {"add": {**add, "deletionVector": vector}},
    )


def map_columns(table: Path) -> None:
    """Add a version to a Delta table whose columns have other names in its files.

    As after a rename in Spark.
    """
    log = (table / "_delta_log" / f"{0:020d}.json").read_text()
    meta = next(json.loads(line)["metaData"] for line in log.splitlines() if "metaData" in line)
    schema = json.loads(meta["schemaString"])
    for number, column in enumerate(schema["fields"], 1):
        column["metadata"] = {
            "delta.columnMapping.id": number,
            "delta.columnMapping.physicalName": f"c{number}",
        }
    meta["schemaString"] = json.dumps(schema)
    meta["configuration"] = {
        "delta.columnMapping.mode": "name",
        "delta.columnMapping.maxColumnId": "2",
    }
    commit(table, {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}, {"metaData": meta})


def commit(table: Path, *actions: Mapping[str, Any]) -> None:
    """Add a version with these actions to a Delta table's log."""
    log = table / "_delta_log"
    version = len(list(log.glob("*.json")))
    lines = [{"commitInfo": {"timestamp": 1_790_000_000_000, "operation": "TEST"}}, *actions]
    (log / f"{version:020d}.json").write_text("\n".join(json.dumps(line) for line in lines))


def _z85(content: bytes) -> str:
    digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    text = ""
    for (number,) in struct.iter_unpack(">I", content):
        text += "".join(digits[number // 85**place % 85] for place in range(4, -1, -1))
    return text


@dataclass(frozen=True)
class ObjectStore:
    """A stand-in for S3 that serves a folder as the objects of ``bucket``.

    See `tests/contract/s3_stub.py`.
    """

    address: str
    bucket: str = "bucket"

    @property
    def options(self) -> dict[str, str]:
        """deltalake's options that reach it."""
        return {
            "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.address, "AWS_ALLOW_HTTP": "true",
        }  # fmt: skip


@pytest.fixture
def object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """An `ObjectStore` of the folder that `write_parquet` and `write_delta` write to.

    It is a process of its own, because deltalake (1.6.6) holds the interpreter's lock while it
    waits for an answer.
    """
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    command = [
        sys.executable,
        str(Path(__file__).parents[2] / "contract" / "s3_stub.py"),
        str(tmp_path),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield ObjectStore(server.stdout.readline().strip())
        finally:
            server.terminate()
