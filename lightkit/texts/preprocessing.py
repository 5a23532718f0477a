"""From a row with a text to the inputs of a model: the n-grams or the tokens of the text, as it was trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from lightkit.texts.ngrams import NgramHashing
from lightkit.texts.tokens import Tokenizing

Encoder = NgramHashing | Tokenizing
KIND = "texts"
_ENCODERS: dict[str, type[NgramHashing] | type[Tokenizing]] = {"ngrams": NgramHashing, "tokens": Tokenizing}


@dataclass(frozen=True)
class TextPreprocessing:
    """Convert the texts of rows to the inputs of a model.

    Args:
        column: Name of the column of texts.
        encoder: Of a text.
    """

    column: str
    encoder: Encoder

    kind = KIND

    @property
    def columns(self) -> dict[str, str]:
        """Types of the columns that rows need, by name."""
        return {self.column: "string"}

    def encode(self, rows: Any) -> tuple[NDArray[Any], ...]:
        """Encode the texts of a `pyarrow.Table`; a null is an empty text."""
        return self.encode_texts([text or "" for text in rows.column(self.column).to_pylist()])

    def encode_texts(self, texts: Sequence[str]) -> tuple[NDArray[Any], ...]:
        """Encode texts.

        Returns:
            Numbers of n-grams or tokens, int64 ``(texts, length)``, where the longest text decides the length; and of
            the same shape how often each n-gram is in the text, float32, or 1 for each token, int64. There is 0 for
            what fills up a shorter text.
        """
        if isinstance(self.encoder, NgramHashing):
            return self.encoder.pad(self.encoder.hash_texts(texts))
        return self.encoder.encode(texts)

    def as_dict(self) -> dict[str, Any]:
        """Convert to plain values for JSON."""
        name = next(name for name, kind in _ENCODERS.items() if isinstance(self.encoder, kind))
        return {"kind": KIND, "column": self.column, "encoder": name, **self.encoder.as_dict()}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> TextPreprocessing:
        """Convert from plain values; fields of later versions are ignored.

        Raises:
            KeyError: If a field is missing.
            TypeError: If a field has another type or an impossible value.
        """
        kind = _ENCODERS.get(record["encoder"])
        if kind is None or not isinstance(record["column"], str):
            raise TypeError(f"expected a column, and an encoder of {', '.join(_ENCODERS)}; got {record['encoder']!r}")
        return cls(record["column"], kind.from_dict(record))
