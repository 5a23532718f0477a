"""Rows of tables of every kind, read as a stream.

CSV, JSON lines, Parquet, Delta, folders, addresses, standard input.

Cells of CSV and of JSON lines are texts, also those of digits: a file alone does not say the type
of a column, and the files of one data set must agree. `lightkit.rows.values` makes numbers and
dates of them.
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv
from pyarrow import fs

from lightkit.config.origins import near_files
from lightkit.errors import DataError, join_names
from lightkit.images.csv_cells import MAX_CELL, find_delimiter
from lightkit.images.label_table import CSV_SUFFIXES, parse_csv
from lightkit.images.table_format import PARQUET_SUFFIXES
from lightkit.rows.parquet_table import RowGroup, Snapshot, is_remote, local_path, open_table
from lightkit.rows.values import format_cell, missing_column

STANDARD_INPUT = "-"
JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
_COMPRESSED = (".gz", ".bz2", ".zst")
_BATCH_ROWS = 8192
_BLOCK_BYTES = 1 << 20
_KINDS = "CSV (.csv, .tsv, .txt), JSON lines (.jsonl, .ndjson), Parquet, or a Delta table"


@dataclass(frozen=True)
class RowBatch:
    """Rows that follow each other in a file.

    Args:
        rows: Their cells.
        file: The file they are of.
        first: Number of the first of them in the file, from 0.
        lines: Their lines, where those are known already.
    """

    rows: pa.RecordBatch
    file: RowFile
    first: int
    lines: Sequence[int] | None = None

    def name_rows(self, numbers: Sequence[int] | None = None) -> list[str]:
        """Name rows of the batch by file and line, or by file and number.

        Args:
            numbers: Their numbers in the batch, ascending; None for all.
        """
        numbers = range(self.rows.num_rows) if numbers is None else numbers
        if self.lines is not None:
            return [f"{self.file.name}, line {self.lines[at]}" for at in numbers]
        return self.file.name_rows([self.first + at for at in numbers])


class RowFile(Protocol):
    """A file of rows."""

    name: str
    names: list[str]

    def read(
        self, columns: Sequence[str], *, batch_rows: int, with_lines: bool
    ) -> Iterator[RowBatch]:
        """Read some columns."""

    def name_rows(self, numbers: Sequence[int]) -> list[str]:
        """Name rows by their numbers, ascending."""

    def fingerprint(self) -> str:
        """Compute a digest of its content."""


@dataclass(frozen=True)
class RowTable:
    """Rows of one table or of several files of one kind.

    Args:
        place: As the user names it.
        files: In their order.
        names: Of the columns.
        types: Of the columns; text of CSV and of JSON lines.
    """

    place: str
    files: Sequence[RowFile]
    names: list[str]
    types: Mapping[str, pa.DataType] = field(default_factory=dict)

    def read(
        self,
        columns: Sequence[str] | None = None,
        *,
        batch_rows: int = _BATCH_ROWS,
        with_lines: bool = False,
    ) -> Iterator[RowBatch]:
        """Read all rows in their order, some thousand at a time.

        Args:
            columns: Of the table; None for all.
            batch_rows: Most rows of a batch.
            with_lines: Whether each row of a file of text comes with its line, which takes longer
                to read.

        Raises:
            DataError: If there is no such column, or a file cannot be read; with the line.
        """
        columns = self.names if columns is None else columns
        is_known = bool(self.names)  # those of standard input are known by its rows alone
        for name in columns if is_known else ():
            if name not in self.names:
                raise DataError(f"{self.place}: {missing_column(name, self.names)}")
        for file in self.files:
            yield from file.read(columns, batch_rows=batch_rows, with_lines=with_lines)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the content of all files; neither moving nor copying them changes it."""
        digest = hashlib.sha256()
        for file in self.files:
            digest.update(f"{file.fingerprint()}\n".encode())
        return digest.hexdigest()


def open_rows(place: str, *, setting: str = "data.init_args.path", **state: Any) -> RowTable:
    """Open a table of rows.

    Args:
        place: A file of CSV, of JSON lines or of Parquet, a Delta table, a folder of files of one
            of these kinds, an address that pyarrow or deltalake reads, or ``-`` for CSV or JSON
            lines on standard input.
        setting: Name of the setting or word that names it, for errors.
        state: ``version``, ``timestamp`` and ``storage_options`` of a Delta table, see
            `open_table`.

    Raises:
        DataError: If it is missing, empty or of another kind, or its files do not fit together.
    """
    if place == STANDARD_INPUT:
        return RowTable("standard input", [_StandardInput()], [])
    filesystem, path = _locate(place, setting)
    if is_text_file(path):
        return _join_files(place, [_open_text(filesystem, path, place)])
    texts = [] if _suffix(path) in PARQUET_SUFFIXES else _list_texts(filesystem, path)
    if texts:
        kinds = {is_json(each) for each in texts}
        if len(kinds) > 1:
            raise DataError(
                f"{place}: this folder has files of CSV and of JSON lines;"
                " expected one kind. Part them."
            )
        return _join_files(place, [_open_text(filesystem, each, each) for each in texts])
    if not is_remote(place):
        _check_kind(local_path(place), place, setting)
    return _of_snapshot(place, open_table(place, **state))


def _locate(place: str, setting: str) -> tuple[fs.FileSystem, str]:
    """Find the file system of a place, and its path there."""
    if not is_remote(place):
        path = local_path(place)
        if not path.exists():
            raise DataError(
                f"{place}: this table does not exist ({setting}, from"
                f" {Path.cwd()}){near_files(path)}"
            )
        return fs.LocalFileSystem(), str(path)
    try:
        filesystem, path = fs.FileSystem.from_uri(place)
    except (OSError, pa.ArrowException, ValueError) as error:
        if place.lower().partition("?")[0].endswith(PARQUET_SUFFIXES) or not _suffix(place):
            return fs.LocalFileSystem(), place  # deltalake may know it
        reason = str(error).splitlines()[0].rstrip(".")
        raise DataError(
            f"{place}: pyarrow does not read this address ({reason}). Copy the file to this"
            " machine, or to a place such as s3://bucket/table.csv."
        ) from error
    return filesystem, path


def _suffix(path: str) -> str:
    """Return the suffix of a file's name, without that of a compression."""
    name = Path(path.partition("?")[0])
    if name.suffix.lower() in _COMPRESSED:
        name = name.with_suffix("")
    return name.suffix.lower()


def is_text_file(file: str) -> bool:
    """Return whether a file is of CSV or of JSON lines by its name, compressed or not."""
    return _suffix(file) in (*CSV_SUFFIXES, *JSON_SUFFIXES)


def is_json(file: str) -> bool:
    """Return whether a file is of JSON lines by its name, compressed or not."""
    return _suffix(file) in JSON_SUFFIXES


def _list_texts(filesystem: fs.FileSystem, path: str) -> list[str]:
    """List the files of text of a folder that is no Delta table and has no Parquet.

    In the order of their paths.
    """
    if filesystem.get_file_info(path).type != fs.FileType.Directory:
        return []
    infos = filesystem.get_file_info(fs.FileSelector(path, recursive=True))
    inner = [(info.path[len(path) :].strip("/"), info) for info in infos]
    if any(
        name.split("/")[0] == "_delta_log" or _suffix(name) in PARQUET_SUFFIXES for name, _ in inner
    ):
        return []
    visible = [
        info.path
        for name, info in inner
        if info.type == fs.FileType.File and not any(part[:1] in "._" for part in name.split("/"))
    ]
    return sorted(filter(is_text_file, visible))


def _check_kind(path: Path, place: str, setting: str) -> None:
    """Check that a file or folder without files of text may be a table.

    Raises:
        DataError: If it is another file, or has other files alone.
    """
    if path.is_file():
        if not _is_parquet(path):
            kind = _suffix(str(path)) or "plain"
            raise DataError(f"{place}: a {kind} file is not read ({setting}); expected {_KINDS}.")
        return
    if (path / "_delta_log").is_dir():
        return
    suffixes = Counter(file.suffix.lower() or "plain" for file in path.rglob("*") if file.is_file())
    if suffixes.keys().isdisjoint(PARQUET_SUFFIXES):
        found = (
            join_names([f"{number:,} {suffix}" for suffix, number in suffixes.most_common()])
            or "no files"
        )
        raise DataError(
            f"{place}: this folder has no table ({setting}), but {found}; expected {_KINDS}."
        )


def _is_parquet(file: Path) -> bool:
    with file.open("rb") as stream:
        return stream.read(4) == b"PAR1"


def _open_text(filesystem: fs.FileSystem, path: str, name: str) -> _CsvFile | _JsonFile:
    kind = _JsonFile if is_json(path) else _CsvFile
    return kind(name, filesystem, path)


def _join_files(place: str, files: Sequence[_CsvFile | _JsonFile]) -> RowTable:
    """Join files of text whose columns are the same, in any order; rows of JSON may lack some."""
    first = files[0]
    names = list(dict.fromkeys(name for file in files for name in file.names))
    for file in files:
        missing = [name for name in names if name not in file.names]
        if missing and isinstance(file, _CsvFile):
            other = next(each for each in files if missing[0] in each.names)
            raise DataError(
                f"{place}: its files have other columns: {file.name} has no {join_names(missing)},"
                f" which {other.name} has. Write them with the same columns."
            )
    if not names:
        raise DataError(
            f"{first.name}: this table is empty; expected an object of JSON in each line."
        )
    return RowTable(place, files, names, dict.fromkeys(names, pa.string()))


def _of_snapshot(place: str, snapshot: Snapshot) -> RowTable:
    files = [_GroupFile(group) for group in snapshot.groups]
    for file in files:
        file.names = list(snapshot.schema.names)
    files[0].table = snapshot
    types = {each.name: each.type for each in snapshot.schema}
    return RowTable(place, files, list(snapshot.schema.names), types)


def _fingerprint_snapshot(snapshot: Snapshot) -> str:
    """Compute a digest of the rows of a Delta table or of files of Parquet.

    A file of Delta is never written over. One of Parquet is, by the same name: where two labels
    have changed places, its size and its footer, of which the snapshot's fingerprint is, are those
    of before.

    Raises:
        DataError: If a file cannot be read.
    """
    if snapshot.kind == "delta":
        return snapshot.fingerprint
    digest = hashlib.sha256(snapshot.fingerprint.encode())
    for file in {group.file.path: group.file for group in snapshot.groups}.values():
        _update_digest(digest, file.filesystem, file.path, name=file.path)
    return digest.hexdigest()


def _update_digest(digest: Any, filesystem: fs.FileSystem, path: str, *, name: str) -> None:
    """Add the content of a file to a digest.

    Raises:
        DataError: If it cannot be read.
    """
    with _open_stream(filesystem, path, name=name) as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)


@contextmanager
def _open_stream(filesystem: fs.FileSystem, path: str, *, name: str) -> Iterator[IO[bytes]]:
    """Open a file of a table, compressed or not."""
    try:
        with filesystem.open_input_stream(path) as stream:
            yield stream
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise DataError(f"{name}: this table cannot be read ({reason}).") from error


class _GroupFile:
    """A row group of a Parquet file, also of a Delta table."""

    def __init__(self, group: RowGroup) -> None:
        self.name = group.file.path
        self.names: list[str] = []
        self.table: Snapshot | None = None
        """The table, in its first row group alone, which has the digest of all."""
        self._group = group

    def read(
        self, columns: Sequence[str], *, batch_rows: int, with_lines: bool
    ) -> Iterator[RowBatch]:
        first = 0
        for rows in self._group.read(columns, batch_rows=batch_rows):
            yield RowBatch(rows, self, first)
            first += rows.num_rows

    def name_rows(self, numbers: Sequence[int]) -> list[str]:
        return self._group.row_names(np.asarray(numbers, np.int64))

    def fingerprint(self) -> str:
        return "" if self.table is None else _fingerprint_snapshot(self.table)


class _TextFile:
    """A file of text, compressed or not."""

    def __init__(self, name: str, filesystem: fs.FileSystem, path: str) -> None:
        self.name = name
        self._filesystem = filesystem
        self._path = path

    def _open(self) -> AbstractContextManager[IO[bytes]]:
        return _open_stream(self._filesystem, self._path, name=self.name)

    @contextmanager
    def _open_lines(self) -> Iterator[io.TextIOWrapper]:
        with self._open() as stream:
            yield io.TextIOWrapper(
                io.BufferedReader(stream),  # type: ignore[type-var]
                "utf-8",
                errors="surrogateescape",
                newline="",
            )

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        _update_digest(digest, self._filesystem, self._path, name=self.name)
        return digest.hexdigest()


class _CsvStream(io.RawIOBase):
    """The bytes of a CSV file for pyarrow, which reads some files in another way than Python.

    pyarrow 25 reads ``"a"b`` as ``ab`` and takes a cell that is never closed; Python's strict
    reader, which finds the lines of rows, refuses both. Where each quotation mark that opens a cell
    follows a separator, a line end or another mark, and each that closes one precedes such, the two
    agree. Any other mark is doubtful.

    Between two blocks pyarrow 25 also drops the line feed of a carriage return and line feed in a
    cell (apache/arrow#51368), so the two stay in one block.

    Args:
        stream: The file.
        delimiter: Separator of its cells.
    """

    def __init__(self, stream: IO[bytes], delimiter: str) -> None:
        super().__init__()
        self.has_doubtful_quote = False
        self._stream = stream
        self._is_neighbor = np.zeros(256, bool)
        self._is_neighbor[[*f'{delimiter}\r\n"'.encode()]] = True
        self._is_in_quotes = False
        self._last = b""
        self._ahead = b""

    def readable(self) -> bool:
        """Return whether it can be read, as pyarrow asks."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Read a block, with the line feed of a carriage return at its end."""
        block = self._ahead or self._stream.read(size)
        self._ahead = b""
        if block.endswith(b"\r"):
            self._ahead = self._stream.read(size)
            if self._ahead.startswith(b"\n"):
                block += b"\n"
                self._ahead = self._ahead[1:]
        if block:
            self._check_quotes(block)
        elif self._is_in_quotes:
            self.has_doubtful_quote = True
        return block

    def _check_quotes(self, block: bytes) -> None:
        """Look at the neighbors of the quotation marks of a block."""
        if not self._last:
            self._last = b"\n"
            block = block.removeprefix(b"\xef\xbb\xbf")
        codes = np.frombuffer(self._last + block, np.uint8)
        marks = np.flatnonzero(codes[1:] == ord('"')) + 1
        first_opening = int(self._is_in_quotes)
        opening = marks[first_opening::2]
        closing = marks[1 - first_opening :: 2]
        if self._last == b'"' and not self._is_in_quotes:
            closing = np.concatenate([[0], closing])
        neighbors = [codes[opening - 1], codes[closing[closing + 1 < len(codes)] + 1]]
        if not self._is_neighbor[np.concatenate(neighbors)].all():
            self.has_doubtful_quote = True
        if len(marks) % 2:
            self._is_in_quotes = not self._is_in_quotes
        self._last = codes[-1:].tobytes()


class _CsvFile(_TextFile):
    """A file of comma, semicolon or tab separated values, in UTF-8."""

    def __init__(self, name: str, filesystem: fs.FileSystem, path: str) -> None:
        super().__init__(name, filesystem, path)
        with self._open_lines() as lines:
            self.names, rows = parse_csv(lines, name)
            if next(rows, None) is None:
                raise DataError(f"{name}: this table has no rows below the names of its columns.")
        with self._open_lines() as lines:
            self._delimiter = find_delimiter(lines.readline())
        self._is_strict = False

    def read(
        self, columns: Sequence[str], *, batch_rows: int, with_lines: bool
    ) -> Iterator[RowBatch]:
        if with_lines:
            with self._open_lines() as lines:
                yield from _read_csv_rows(lines, self, columns, batch_rows)
            return
        first = 0
        at = [self.names.index(name) for name in columns]
        for part in self._read_parts():
            chosen = pa.RecordBatch.from_arrays(
                [part.column(each) for each in at], names=list(columns)
            )
            for start in range(0, chosen.num_rows, batch_rows):
                yield RowBatch(chosen.slice(start, batch_rows), self, first + start)
            first += chosen.num_rows

    def _read_parts(self) -> Iterator[pa.RecordBatch]:
        """Read all columns, a megabyte at a time."""
        raw = [f"column {at}" for at in range(len(self.names))]
        convert = arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(raw, pa.string()), strings_can_be_null=False, null_values=[]
        )
        options = {
            "read_options": arrow_csv.ReadOptions(
                use_threads=False, block_size=_BLOCK_BYTES, column_names=raw
            ),
            "parse_options": arrow_csv.ParseOptions(
                delimiter=self._delimiter, newlines_in_values=True
            ),
            "convert_options": convert,
        }
        with self._open() as stream:
            checked = _CsvStream(stream, self._delimiter)
            try:
                for number, part in enumerate(arrow_csv.open_csv(checked, **options)):
                    if checked.has_doubtful_quote:
                        self._parse_strictly()
                    longest = max(
                        (pc.max(pc.binary_length(each)).as_py() or 0 for each in part.columns),
                        default=0,
                    )
                    if longest > MAX_CELL:
                        raise self._explain(f"a cell of {longest:,} bytes")
                    # the first row is that of the names
                    yield (part.slice(1) if number == 0 else part)
            except pa.ArrowInvalid as error:
                raise self._explain(str(error).splitlines()[0]) from error
        if checked.has_doubtful_quote:
            self._parse_strictly()

    def _parse_strictly(self) -> None:
        """Parse the file with Python's strict reader, whose rules are those of `read` with lines.

        Raises:
            DataError: If it refuses a row, with its line.
        """
        if self._is_strict:
            return
        with self._open_lines() as lines:
            for _ in parse_csv(lines, self.name)[1]:
                pass
        self._is_strict = True

    def _explain(self, reason: str) -> DataError:
        """Return the error of a file that pyarrow does not read, with the line by Python's."""
        try:
            self._parse_strictly()
        except DataError as error:
            return error
        return DataError(f"{self.name}: this table cannot be read ({reason}).")

    def name_rows(self, numbers: Sequence[int]) -> list[str]:
        wanted = set(numbers)
        found: list[str] = []
        with self._open_lines() as lines:
            rows = parse_csv(lines, self.name)[1]
            for number, (line, _) in enumerate(islice(rows, max(wanted, default=-1) + 1)):
                if number in wanted:
                    found.append(f"{self.name}, line {line}")
        return found


def _read_csv_rows(
    lines: Iterator[str], file: RowFile, columns: Sequence[str], batch_rows: int
) -> Iterator[RowBatch]:
    """Read rows with their lines."""
    names, rows = parse_csv(lines, file.name)
    at = []
    for name in columns:
        if name not in names:
            raise DataError(f"{file.name}: {missing_column(name, names)}")
        at.append(names.index(name))
    first = 0
    while part := list(islice(rows, batch_rows)):
        arrays = [pa.array([cells[each] for _, cells in part], pa.string()) for each in at]
        batch = pa.RecordBatch.from_arrays(arrays, names=list(columns))
        yield RowBatch(batch, file, first, [line for line, _ in part])
        first += len(part)


Record = tuple[int, dict[str, Any]]


def _parse_json(lines: Iterator[str], name: str) -> Iterator[Record]:
    """Parse the objects of lines that are not empty, each with its line, from 1."""
    for number, line in enumerate(lines, 1):
        text = line.removeprefix("\ufeff") if number == 1 else line
        if not text.strip():
            continue
        try:
            text.encode()
            record = json.loads(text)
        except UnicodeEncodeError as error:
            raise DataError(
                f"{name}, line {number}: this table is not in UTF-8. Save it as UTF-8."
            ) from error
        except (ValueError, RecursionError) as error:
            raise DataError(f"{name}, line {number}: this line is no JSON ({error}).") from error
        if not isinstance(record, dict):
            raise DataError(
                f"{name}, line {number}: expected an object, with the cells of a row by their"
                f" columns, got {type(record).__name__}. Write one object a line."
            )
        yield number, record


def _read_json_rows(
    records: Iterator[Record],
    file: RowFile,
    columns: Sequence[str],
    batch_rows: int,
    *,
    is_known: bool,
) -> Iterator[RowBatch]:
    first = 0
    while part := list(islice(records, batch_rows)):
        for name in () if is_known else columns:
            if not any(name in record for _, record in part):
                names = list(dict.fromkeys(key for _, record in part for key in record))
                raise DataError(f"{file.name}, line {part[0][0]}: {missing_column(name, names)}")
        arrays = [
            pa.array([format_cell(record.get(name)) for _, record in part], pa.string())
            for name in columns
        ]
        batch = pa.RecordBatch.from_arrays(arrays, names=list(columns))
        yield RowBatch(batch, file, first, [line for line, _ in part])
        first += len(part)


class _JsonFile(_TextFile):
    """A file of JSON lines."""

    def __init__(self, name: str, filesystem: fs.FileSystem, path: str) -> None:
        super().__init__(name, filesystem, path)
        with self._open_lines() as lines:
            self.names = list(
                dict.fromkeys(key for _, record in _parse_json(lines, name) for key in record)
            )

    def read(
        self, columns: Sequence[str], *, batch_rows: int, with_lines: bool
    ) -> Iterator[RowBatch]:
        with self._open_lines() as lines:
            yield from _read_json_rows(
                _parse_json(lines, self.name), self, columns, batch_rows, is_known=True
            )

    def name_rows(self, numbers: Sequence[int]) -> list[str]:
        wanted = set(numbers)
        with self._open_lines() as lines:
            every = enumerate(_parse_json(lines, self.name))
            return [f"{self.name}, line {line}" for number, (line, _) in every if number in wanted]


class _StandardInput:
    """Rows on standard input, which is read once.

    JSON lines where it begins with an object, else CSV.
    """

    name = "standard input"

    def __init__(self) -> None:
        self.names: list[str] = []

    def read(
        self, columns: Sequence[str], *, batch_rows: int, with_lines: bool
    ) -> Iterator[RowBatch]:
        lines = io.TextIOWrapper(sys.stdin.buffer, "utf-8", errors="surrogateescape", newline="")
        try:
            head = list(islice(lines, 1))
            every = chain(head, lines)
            if head and head[0].startswith("PAR1"):
                raise DataError(
                    "-: standard input is Parquet, which is not read as a stream. Name the file."
                )
            if head and head[0].removeprefix("\ufeff").lstrip()[:1] == "{":
                yield from _read_json_rows(
                    _parse_json(every, self.name), self, columns, batch_rows, is_known=False
                )
            else:
                yield from _read_csv_rows(every, self, columns, batch_rows)
        finally:
            lines.detach()

    def name_rows(self, numbers: Sequence[int]) -> list[str]:
        return [f"{self.name}, row {number}" for number in numbers]

    def fingerprint(self) -> str:
        return ""


def check_rows(
    batch: RowBatch, defects: Sequence[tuple[int, str, str]], *, most: int = 5, remedy: str = ""
) -> None:
    """Refuse a batch with cells that have no value of their column's type.

    Args:
        batch: The batch.
        defects: Of it, see `lightkit.rows.values.Defect`.
        most: Cells that are named.
        remedy: Sentence that says what to do.

    Raises:
        DataError: If there are any, with their lines.
    """
    if not defects:
        return
    shown = defects[:most]
    places = dict(
        zip(
            sorted({each[0] for each in shown}),
            batch.name_rows(sorted({e[0] for e in shown})),
            strict=True,
        )
    )
    lines = "".join(f"\n  {places[row]}: {reason}" for row, _, reason in shown)
    more = f"\n  and {len(defects) - most} more" if len(defects) > most else ""
    raise DataError(
        f"{batch.file.name}: cells that have no value of their column's type:{lines}{more}{remedy}"
    )
