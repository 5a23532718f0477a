"""The preparation of rows with a text: `TextPreprocessing`, the n-grams or the tokens of a text.

No torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lightkit.images.image_file import walk_files
from lightkit.rows.preprocessing import Array, RowPreprocessing
from lightkit.rows.reader import RowBatch, RowTable
from lightkit.rows.values import ColumnType
from lightkit.texts.ngrams import NgramHashing
from lightkit.texts.text_files import TEXT_SUFFIX, read_text
from lightkit.texts.tokens import Tokenizing

Encoder = NgramHashing | Tokenizing
_ENCODERS: dict[str, type[NgramHashing] | type[Tokenizing]] = {
    "ngrams": NgramHashing,
    "tokens": Tokenizing,
}
_BATCH_ROWS = {"ngrams": 256, "tokens": 32}


@dataclass(frozen=True)
class TextPreprocessing(RowPreprocessing):
    """Convert the texts of rows to numbers of n-grams or tokens.

    Args:
        column: Name of the column of texts.
        encoder: Of a text.
    """

    kind = "text"

    column: str
    encoder: Encoder

    @property
    def columns(self) -> Mapping[str, ColumnType]:
        """Name and type of the one column."""
        return {self.column: "text"}

    @property
    def open_axes(self) -> Mapping[int, int | None]:
        """The axis of n-grams or tokens; of n-grams a text has any number."""
        return {1: self.encoder.max_length if isinstance(self.encoder, Tokenizing) else None}

    @property
    def batch_rows(self) -> int:
        """Rows of a batch of predictions."""
        return _BATCH_ROWS[self._name]

    @property
    def _name(self) -> str:
        return next(name for name, kind in _ENCODERS.items() if isinstance(self.encoder, kind))

    def encode(self, rows: pa.Table) -> tuple[Array, ...]:
        """Encode the texts of rows; a missing one is an empty text.

        Returns:
            As `encode_texts`.
        """
        return self.encode_texts([text or "" for text in rows[self.column].to_pylist()])

    def encode_texts(self, texts: Sequence[str]) -> tuple[Array, ...]:
        """Encode texts.

        Returns:
            Numbers of n-grams or tokens, int64 ``(texts, length)``, where the longest text decides
            the length; and of the same shape how often each n-gram is in the text, float32, or 1
            for each token, int64. Behind the end of a shorter text it is 0.
        """
        if isinstance(self.encoder, NgramHashing):
            return self.encoder.pad(self.encoder.hash_texts(texts))
        return self.encoder.encode(texts)

    def make_example(self) -> pa.Table:
        """Return a text and a missing one."""
        return pa.table(
            {self.column: pa.array(["This is an example of a text.", None], pa.string())}
        )

    def stack(self, samples: Sequence[tuple[Array, ...]]) -> list[Array]:
        """Join rows that were encoded in several batches, whose longest texts differ."""
        width = max(len(sample[0]) for sample in samples)
        fills = (0 if isinstance(self.encoder, NgramHashing) else self.encoder.padding, 0)
        return [
            np.stack([np.pad(each, (0, width - len(each)), constant_values=fill) for each in parts])
            for fill, parts in zip(fills, zip(*samples, strict=True), strict=True)
        ]

    def open(self, word: str) -> RowTable:
        """Open a table of rows, or text files: one, or all below a folder, each of which is a row.

        Raises:
            DataError: If it is missing, empty or of another kind.
        """
        files = _list_text_files(word)
        if files is None:
            return super().open(word)
        return RowTable(
            word, [_TextFiles(files, self.column)], [self.column], {self.column: pa.string()}
        )

    def list_files(self) -> Mapping[str, str]:
        """Return the settings of the hashing, or the tokenizer."""
        if isinstance(self.encoder, NgramHashing):
            return {"ngrams.json": f"{json.dumps(self.encoder.as_dict(), indent=2)}\n"}
        return {"tokenizer.json": self.encoder.tokenizer}

    def as_dict(self) -> dict[str, Any]:
        """Convert to plain values of JSON."""
        return {"column": self.column, "encoder": self._name, **self.encoder.as_dict()}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> TextPreprocessing:
        """Convert from plain values; fields of later versions are ignored.

        Raises:
            KeyError: If one is missing.
            TypeError: If one has another type or an impossible value.
        """
        kind = _ENCODERS.get(record["encoder"])
        if kind is None or not isinstance(record["column"], str):
            raise TypeError(
                f"expected a column, and an encoder of {', '.join(_ENCODERS)}; got"
                f" {record['encoder']!r}"
            )
        return cls(record["column"], kind.from_dict(record))


def _list_text_files(word: str) -> list[str] | None:
    """List the text files that a word names; None where it names a table."""
    path = Path(word).expanduser()
    if path.is_dir() and not (path / "_delta_log").is_dir():
        files = [each for each in walk_files(str(path)) if each.lower().endswith(TEXT_SUFFIX)]
        return files or None
    return [str(path)] if path.suffix.lower() == TEXT_SUFFIX and path.is_file() else None


class _TextFiles:
    """Text files, each of which is a row."""

    def __init__(self, files: Sequence[str], column: str) -> None:
        self.name = files[0]
        self.names = [column]
        self._files = files

    def read(
        self, columns: Sequence[str], *, batch_rows: int, with_lines: bool
    ) -> Iterator[RowBatch]:
        for first in range(0, len(self._files), batch_rows):
            texts = [
                read_text(Path(file), encoding="auto")[0]
                for file in self._files[first : first + batch_rows]
            ]
            batch = pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], names=list(columns))
            yield RowBatch(batch, self, first)

    def name_rows(self, numbers: Sequence[int]) -> list[str]:
        return [self._files[number] for number in numbers]

    def fingerprint(self) -> str:
        return ""
