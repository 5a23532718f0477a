"""Texts as numbers of tokens, by a tokenizer of the package tokenizers.

Without torch and transformers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightkit.errors import ConfigError

INSTALL = "pip install 'lightkit-train[text]'"


@dataclass(frozen=True)
class Tokenizing:
    """Convert texts to numbers of tokens.

    Args:
        tokenizer: Content of a ``tokenizer.json``, as the package tokenizers writes it.
        max_length: Tokens of a text that count, the special ones included; the first ones.
        padding: Number of the token that fills up shorter texts.
    """

    tokenizer: str
    max_length: int
    padding: int

    def as_dict(self) -> dict[str, Any]:
        """Convert to plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Tokenizing:
        """Convert from plain values; fields of later versions are ignored.

        Raises:
            KeyError: If a field is missing.
            TypeError: If a field has another type.
        """
        known = {name: record[name] for name in cls.__dataclass_fields__}
        is_fine = (
            isinstance(known["tokenizer"], str)
            and type(known["max_length"]) is type(known["padding"]) is int
        )
        if not is_fine or known["max_length"] < 1:
            raise TypeError(
                "expected the tokenizer as text, max_length of 1 or more,"
                " and the number of the padding"
            )
        return cls(**known)

    @cached_property
    def _loaded(self) -> Any:
        try:
            from tokenizers import Tokenizer  # an extra
        except ImportError as error:
            raise ConfigError(
                f"Texts are cut into tokens by the package tokenizers ({error}): {INSTALL}."
            ) from error
        loaded = Tokenizer.from_str(self.tokenizer)
        loaded.no_padding()
        loaded.enable_truncation(self.max_length)
        return loaded

    def encode(self, texts: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the tokens ``(texts, tokens)``.

        With 1 for each of them, and 0 for what fills up a shorter text.
        """
        # a lone surrogate is no text to the tokenizer, which is written in Rust
        clean = [text.encode("utf-8", "replace").decode() for text in texts]
        # a network needs one token
        rows = [each.ids or [self.padding] for each in self._loaded.encode_batch(clean)]
        width = max(map(len, rows), default=1)
        ids = np.full((len(rows), width), self.padding, np.int64)
        mask = np.zeros((len(rows), width), np.int64)
        for at, row in enumerate(rows):
            ids[at, : len(row)] = row
            mask[at, : len(row)] = 1
        return ids, mask
