"""A table is there as a whole, or not at all, whatever happens while it is written."""

from __future__ import annotations

import pickle
import resource
import shutil
import signal
import subprocess
import sys
from collections import Counter, namedtuple
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from lightkit.errors import ConfigError, DataError, Interrupted, RunLocked
from lightkit.images.table_writer import ImageRow, TableTarget, _lock, plan_files, write_table
from lightkit.runs.bad_images import BadImage, read_bad_images
from tests.images.conftest import MakeRows

KINDS = pytest.mark.parametrize("is_delta", [False, True], ids=["parquet", "delta"])


@pytest.fixture
def place(tmp_path: Path, is_delta: bool) -> TableTarget:
    if is_delta:
        pytest.importorskip("deltalake", reason="needs deltalake")
    return TableTarget(tmp_path / "out" / "flowers", tmp_path / "photos", is_delta)


def _write(
    place: TableTarget, rows: Sequence[ImageRow], *, num_files: int = 2, overwrite: bool = False
) -> tuple[int, int | None]:
    files = plan_files(rows, num_files=num_files, row_group_bytes=4_000)
    place = TableTarget(place.table, place.images, place.is_delta, overwrite)
    return write_table(place, files)


def _images(place: TableTarget, version: int | None = None) -> Counter[bytes]:
    """What a reader finds."""
    if place.is_delta:
        from deltalake import DeltaTable

        found = DeltaTable(str(place.table), version=version).to_pyarrow_dataset().to_table()
    else:
        found = parquet.read_table(place.table)
    return Counter(found["image"].to_pylist())


def _wanted(rows: Sequence[ImageRow]) -> Counter[bytes]:
    return Counter(row.file.read_bytes() for row in rows)


def _beside(place: TableTarget) -> list[str]:
    folder = place.table.parent
    return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []


@KINDS
def test_a_table_holds_every_image_in_as_many_files_as_said(
    place: TableTarget, make_rows: MakeRows
) -> None:
    rows = make_rows(31)
    written = _write(place, rows, num_files=3)

    assert _images(place) == _wanted(rows)
    files = sorted(place.table.glob("*.parquet"))
    assert sorted(parquet.read_metadata(file).num_rows for file in files) == [10, 10, 11]
    assert written == (sum(file.stat().st_size for file in files), 0 if place.is_delta else None)
    assert _beside(place) == ["flowers"]


def test_the_log_of_a_delta_table_has_the_number_of_rows(
    tmp_path: Path, make_rows: MakeRows
) -> None:
    deltalake = pytest.importorskip("deltalake", reason="needs deltalake")
    _write(
        TableTarget(tmp_path / "flowers", tmp_path / "photos", is_delta=True),
        make_rows(20),
        num_files=1,
    )
    found = deltalake.DeltaTable(str(tmp_path / "flowers")).get_add_actions(flatten=True)
    assert found["num_records"][0].as_py() == 20


@KINDS
def test_a_table_that_is_there_stays_as_it_is(place: TableTarget, make_rows: MakeRows) -> None:
    rows = make_rows(8)
    _write(place, rows)
    with pytest.raises(
        ConfigError, match=r"flowers exists, and nothing is added to a table\. --overwrite "
    ):
        _write(place, make_rows(12, mark=b"other"))
    assert sum(_images(place).values()) == 8


@KINDS
def test_an_overwritten_table_holds_the_new_images_only(
    place: TableTarget, make_rows: MakeRows
) -> None:
    first = make_rows(8)
    old = _wanted(first)
    _write(place, first)
    second = make_rows(12, mark=b"other")
    written = _write(place, second, num_files=1, overwrite=True)

    assert _images(place) == _wanted(second)
    assert _beside(place) == ["flowers"]
    if place.is_delta:
        assert written[1] == 1
        assert _images(place, version=0) == old
    else:
        assert [file.name for file in place.table.iterdir()] == ["part-00000.parquet"]


@KINDS
def test_images_that_are_left_out_are_listed_next_to_the_files(
    place: TableTarget, make_rows: MakeRows
) -> None:
    rows = make_rows(6)
    files = plan_files(rows, num_files=1, row_group_bytes=4_000)
    bad = [BadImage("a/\udcff.jpg", "Truncated File Read", "scan")]
    write_table(place, files, bad_images=bad)
    assert read_bad_images(place.table / "_bad_images.csv") == bad
    assert _images(place) == _wanted(rows)

    _write(place, rows, overwrite=True)
    assert not (place.table / "_bad_images.csv").exists()
    assert _images(place) == _wanted(rows)


def test_a_table_that_a_killed_overwrite_has_left_aside_is_restored(
    tmp_path: Path, make_rows: MakeRows
) -> None:
    place = TableTarget(tmp_path / "out" / "flowers", tmp_path / "photos", is_delta=False)
    _write(place, make_rows(8))
    place.table.rename(place.table.with_name(".flowers.old"))
    with pytest.raises(ConfigError, match="flowers exists, and nothing is added to a table"):
        _write(place, make_rows(9, mark=b"other"))
    assert sum(_images(place).values()) == 8
    assert _beside(place) == ["flowers"]


@KINDS
@pytest.mark.parametrize("overwrite", [False, True], ids=["plain", "overwrite"])
@pytest.mark.parametrize(
    ("name", "content"),
    [("notes.txt", b"mine"), ("part-0.parquet", b"PAR1"), ("part-1.parquet", None)],
    ids=["other_file", "broken_file", "other_parquet"],
)
def test_a_folder_of_something_else_is_never_touched(
    name: str, content: bytes | None, overwrite: bool, place: TableTarget, make_rows: MakeRows
) -> None:
    import pyarrow as pa

    _write(TableTarget(place.table, place.images, is_delta=False), make_rows(4))
    if content is None:
        parquet.write_table(pa.table({"a": [1]}), place.table / name)
    else:
        (place.table / name).write_bytes(content)
    before = {file.name: file.read_bytes() for file in place.table.iterdir()}
    with pytest.raises(
        ConfigError, match="flowers exists, and is not a table that lightkit convert has written"
    ):
        _write(place, make_rows(5), overwrite=overwrite)
    assert {file.name: file.read_bytes() for file in place.table.iterdir()} == before


def test_a_delta_table_of_other_columns_gets_no_version(
    tmp_path: Path, make_rows: MakeRows
) -> None:
    deltalake = pytest.importorskip("deltalake", reason="needs deltalake")
    import pyarrow as pa

    deltalake.write_deltalake(str(tmp_path / "flowers"), pa.table({"a": [1]}))
    with pytest.raises(
        ConfigError, match="another table than lightkit convert writes: it has the columns a"
    ):
        _write(
            TableTarget(tmp_path / "flowers", tmp_path / "photos", is_delta=True),
            make_rows(3),
            overwrite=True,
        )
    assert deltalake.DeltaTable(str(tmp_path / "flowers")).version() == 0


@pytest.mark.parametrize("name", ["a%20b", "a[1]", "a^b/c", "a|b", r"a\b"])
def test_names_that_deltalake_does_not_take_are_refused(
    name: str, tmp_path: Path, make_rows: MakeRows
) -> None:
    pytest.importorskip("deltalake", reason="needs deltalake")
    rows = make_rows(3)
    with pytest.raises(ConfigError, match=r"deltalake writes no folder with"):
        _write(TableTarget(tmp_path / name, tmp_path / "photos", is_delta=True), rows)
    _write(TableTarget(tmp_path / name, tmp_path / "photos", is_delta=False), rows)


def test_a_delta_table_with_a_broken_log_is_reported_as_that(
    tmp_path: Path, make_rows: MakeRows
) -> None:
    pytest.importorskip("deltalake", reason="needs deltalake")
    place = TableTarget(tmp_path / "flowers", tmp_path / "photos", is_delta=True)
    rows = make_rows(3)
    _write(place, rows)
    (place.table / "_delta_log" / f"{0:020}.json").write_text("{")
    with pytest.raises(DataError, match=r"flowers: Delta refuses \(.+\)\."):
        _write(place, rows, overwrite=True)


@KINDS
def test_a_table_of_the_other_format_is_not_overwritten(
    place: TableTarget, make_rows: MakeRows
) -> None:
    pytest.importorskip("deltalake", reason="needs deltalake")
    other = TableTarget(place.table, place.images, not place.is_delta)
    rows = make_rows(4)
    _write(other, rows)
    said = "parquet" if place.is_delta else "delta"
    with pytest.raises(
        ConfigError, match=rf"flowers is of the format {said}, and --format is .* --format {said}"
    ):
        _write(place, rows, overwrite=True)
    assert _images(other) == _wanted(rows)


@KINDS
def test_an_empty_folder_becomes_the_table(place: TableTarget, make_rows: MakeRows) -> None:
    place.table.mkdir(parents=True)
    rows = make_rows(4)
    _write(place, rows)
    assert _images(place) == _wanted(rows)


@KINDS
def test_a_table_within_its_images_is_refused(place: TableTarget, make_rows: MakeRows) -> None:
    rows = make_rows(4)
    with pytest.raises(
        ConfigError, match=r"is in the folder of images .* (Choose|Use) another place"
    ):
        _write(TableTarget(place.images / "flowers", place.images, place.is_delta), rows)
    assert sorted(entry.name for entry in place.images.iterdir()) == ["a", "b"]


def test_a_delta_table_without_deltalake_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_rows: MakeRows
) -> None:
    monkeypatch.setattr("lightkit.images.table_writer.find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"pip install 'lightkit-train\[delta\]'\. Or use --format parquet"
    ):
        _write(TableTarget(tmp_path / "flowers", tmp_path / "photos", is_delta=True), make_rows(3))


@KINDS
@pytest.mark.parametrize("is_there", [False, True], ids=["new", "overwritten"])
def test_nothing_is_left_of_what_is_interrupted(
    place: TableTarget, is_there: bool, make_rows: MakeRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    old: Counter[bytes] = Counter()
    if is_there:
        rows = make_rows(6)
        old = _wanted(rows)
        _write(place, rows)
    files = plan_files(make_rows(20, mark=b"new"), num_files=2, row_group_bytes=4_000)

    def interrupt(groups: Iterator[Any], *args: Any, **kwargs: Any) -> Iterator[Any]:
        yield next(groups)
        raise Interrupted(signal.SIGINT)

    monkeypatch.setattr("lightkit.images.table_writer.show_progress", interrupt)
    with pytest.raises(Interrupted):
        write_table(TableTarget(place.table, place.images, place.is_delta, True), files)

    assert _beside(place) == (["flowers"] if is_there else [])
    if is_there:
        assert _images(place) == old
        assert len(list(place.table.glob("*.parquet"))) == 2


def test_a_signal_just_after_the_commit_leaves_the_new_version_whole(
    tmp_path: Path, make_rows: MakeRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    deltalake = pytest.importorskip("deltalake", reason="needs deltalake")
    place = TableTarget(tmp_path / "flowers", tmp_path / "photos", is_delta=True)
    _write(place, make_rows(6))
    rows = make_rows(9, mark=b"new")

    transaction = deltalake.DeltaTable.create_write_transaction

    def commit_and_stop(self: Any, *args: Any, **kwargs: Any) -> None:
        transaction(self, *args, **kwargs)
        raise Interrupted(signal.SIGTERM)

    monkeypatch.setattr(deltalake.DeltaTable, "create_write_transaction", commit_and_stop)
    with pytest.raises(Interrupted):
        _write(place, rows, overwrite=True)
    assert _images(place) == _wanted(rows)


@contextmanager
def _file_size_limit(size_bytes: int) -> Iterator[None]:
    """Within it no file can be larger."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@KINDS
@pytest.mark.parametrize("is_there", [False, True], ids=["new", "overwritten"])
def test_no_room_in_the_middle_is_one_error_and_leaves_nothing(
    place: TableTarget, is_there: bool, make_rows: MakeRows
) -> None:
    old: Counter[bytes] = Counter()
    if is_there:
        rows = make_rows(6)
        old = _wanted(rows)
        _write(place, rows)
    rows = make_rows(40, mark=b"new")
    with (
        _file_size_limit(9_000),
        pytest.raises(DataError, match=r"flowers: there is no room for it \(File too large\)"),
    ):
        _write(place, rows, overwrite=True)
    assert _beside(place) == (["flowers"] if is_there else [])
    if is_there:
        assert _images(place) == old
        assert len(list(place.table.glob("*.parquet"))) == 2


@KINDS
def test_a_disk_with_too_little_room_is_reported_before_anything_is_written(
    place: TableTarget, make_rows: MakeRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1, 1, 2_000))
    with pytest.raises(DataError, match=r"\(No space left on device\): it needs about 0\.0 MB"):
        _write(place, make_rows(6))
    assert _beside(place) == []


@KINDS
def test_a_place_that_cannot_be_written_is_reported(
    place: TableTarget, make_rows: MakeRows
) -> None:
    place.table.parent.parent.mkdir(exist_ok=True)
    place.table.parent.write_bytes(b"a file")
    with pytest.raises(
        ConfigError, match=r"flowers: cannot write here \(.+\)\. (Choose|Use) another place"
    ):
        _write(place, make_rows(6))


@KINDS
def test_of_two_writers_the_second_is_reported_to_wait(
    place: TableTarget, make_rows: MakeRows
) -> None:
    rows = make_rows(6)
    with (
        _lock(place.table),
        pytest.raises(RunLocked, match="another process is writing this table"),
    ):
        _write(place, rows)
    _write(place, rows)
    assert _images(place) == _wanted(rows)


@pytest.mark.parametrize("first", ["link", "table"])
def test_a_writer_through_a_link_is_seen(tmp_path: Path, first: str) -> None:
    table = tmp_path / "out" / "flowers"
    table.mkdir(parents=True)
    link = tmp_path / "elsewhere"
    link.symlink_to(table)
    one, other = (link, table) if first == "link" else (table, link)
    with (
        _lock(one),
        pytest.raises(RunLocked, match="another process is writing this table"),
        _lock(other),
    ):
        pass
    with _lock(other):
        pass
    assert sorted(entry.name for entry in tmp_path.rglob("*")) == ["elsewhere", "flowers", "out"]


_KILLED = """
import os, pickle, signal, sys
from lightkit.images import table_writer

def kill(groups, *args, **kwargs):
    yield next(groups)
    os.kill(os.getpid(), signal.SIGKILL)

table_writer.show_progress = kill
place, files = pickle.loads(sys.stdin.buffer.read())
table_writer.write_table(place, files)
"""


@pytest.mark.slow
@KINDS
def test_a_killed_process_leaves_no_table_and_the_next_one_clears_up(
    place: TableTarget, make_rows: MakeRows
) -> None:
    rows = make_rows(20)
    files = plan_files(rows, num_files=2, row_group_bytes=4_000)
    sent = pickle.dumps((place, files))
    done = subprocess.run([sys.executable, "-c", _KILLED], input=sent, check=False)
    assert done.returncode == -signal.SIGKILL
    assert "flowers" not in _beside(place)

    _write(place, rows)
    assert _beside(place) == ["flowers"]
    assert _images(place) == _wanted(rows)
