"""N-grams of words and characters, hashed to numbers.

The same on every machine, and computed in whole arrays.

A text is normalised (Unicode's NFKC, then lower case) and cut into words: runs of characters that
are not `SEPARATORS`, the white space, controls, punctuation and symbols of Latin scripts and of
general use. The n-grams of words are one to ``word_ngrams`` words of a text that follow one
another, with a space between them; a word counts with its first `MAX_WORD` characters. Those of
characters are in ``#`` and all of the parts of a word that are as long as ``char_ngrams`` says,
where a space stands before and after the word.

An n-gram has the number ``1 + (h ^ (h >> 32)) % 2**32 % buckets``, where ``h`` is the hash FNV-1a
of 64 bits over the octets of its characters in UTF-32, little endian; 0 is no n-gram. The hash and
its folding to 32 bits are those of G. Fowler, L. C. Noll, K.-P. Vo, D. Eastlake and T. Hansen, "The
FNV Non-Cryptographic Hash Algorithm", draft-eastlake-fnv.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

OFFSET_BASIS = 0xCBF29CE484222325
PRIME = 0x100000001B3
MAX_WORD = 64
"""Characters of a word that count in n-grams of words."""
SEPARATORS = (
    (0x00, 0x2F), (0x3A, 0x40), (0x5B, 0x60), (0x7B, 0xA9), (0xAB, 0xB4), (0xB6, 0xB9),
    (0xBB, 0xBF), (0xD7, 0xD7),
    (0xF7, 0xF7), (0x2000, 0x206F), (0x20A0, 0x20CF), (0x2190, 0x21FF), (0x2E00, 0x2E7F),
    (0x3000, 0x303F),
)  # fmt: skip
"""Ranges of code points that are in no word. They are written out, for what a letter is differs
between versions of Unicode, and so between those of Python."""
_SPACE = ord(" ")
_MARK = ord("#")  # a separator, which no word begins with
_WORD_BITS = 64
_OCTETS = 4
_GROUP_CHARACTERS = 1 << 20
"""Characters that are hashed at a time: about 60 bytes each."""

Codes = NDArray[np.uint32]
Hashes = NDArray[np.uint64]


def _mark_separators() -> NDArray[np.bool_]:
    """Return which of the first code points are separators.

    The last one, which stands for all beyond, is none.
    """
    marks = np.zeros(SEPARATORS[-1][1] + 2, np.bool_)
    for first, last in SEPARATORS:
        marks[first : last + 1] = True
    return marks


_IS_SEPARATOR = _mark_separators()


Bag = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Numbers of the n-grams of one text, and how often each is in it."""


class Bags(NamedTuple):
    """The n-grams of some texts, each once in a text, by their numbers.

    Args:
        ids: int64 ``(n-grams,)``, those of the first text, then of the second and so on, ascending
            in each.
        counts: float32 ``(n-grams,)``: how often each is in its text.
        sizes: int64 ``(texts,)``: the number of each text's n-grams.
    """

    ids: NDArray[np.int64]
    counts: NDArray[np.float32]
    sizes: NDArray[np.int64]

    def split(self) -> list[Bag]:
        """Return the n-grams of each text by itself."""
        ends = np.cumsum(self.sizes)[:-1]
        return list(zip(np.split(self.ids, ends), np.split(self.counts, ends), strict=True))[
            : len(self.sizes)
        ]


def join_bags(bags: Sequence[Bag]) -> Bags:
    """Join the n-grams of texts; the inverse of `Bags.split`, for at least one text."""
    ids = np.concatenate([each[0] for each in bags])
    counts = np.concatenate([each[1] for each in bags])
    return Bags(ids, counts, np.array([len(each[0]) for each in bags], np.int64))


@dataclass(frozen=True)
class NgramHashing:
    """Convert texts to bags of n-grams.

    Args:
        buckets: Numbers that there are; n-grams of one number are one to a model.
        word_ngrams: Words of the longest n-gram of words; 0 for none.
        char_ngrams: Characters of the shortest and the longest n-gram of characters; None for none.
        max_length: Characters of a text that count.
    """

    buckets: int
    word_ngrams: int
    char_ngrams: tuple[int, int] | None
    max_length: int

    def as_dict(self) -> dict[str, Any]:
        """Convert to plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> NgramHashing:
        """Convert from plain values; fields of later versions are ignored.

        Raises:
            KeyError: If a field is missing.
            TypeError: If a field has another type or an impossible value.
        """
        known = {name: record[name] for name in cls.__dataclass_fields__}
        chars = known["char_ngrams"]
        known["char_ngrams"] = None if chars is None else tuple(chars)
        numbers = [
            known["buckets"],
            known["word_ngrams"],
            known["max_length"],
            *(known["char_ngrams"] or (1, 1)),
        ]
        if (
            not all(type(each) is int and each >= 0 for each in numbers)
            or len(numbers) != 5
            or not known["buckets"]
        ):
            raise TypeError(f"expected whole numbers for the hashing of n-grams, got {known!r}")
        return cls(**known)

    def pad(self, bags: Bags) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the n-grams as ``(texts, n-grams)``.

        At least one column, with 0 and a count of 0 at the end.
        """
        width = int(bags.sizes.max(initial=1))
        is_there = np.arange(width) < bags.sizes[:, None]
        ids = np.zeros(is_there.shape, np.int64)
        counts = np.zeros(is_there.shape, np.float32)
        ids[is_there] = bags.ids
        counts[is_there] = bags.counts
        return ids, counts

    def hash_texts(self, texts: Sequence[str]) -> Bags:
        """Return the n-grams of texts."""
        parts = [self._hash_group(group) for group in self._group(texts)]
        if not parts:
            return Bags(np.empty(0, np.int64), np.empty(0, np.float32), np.empty(0, np.int64))
        if len(parts) == 1:
            return parts[0]
        return Bags(*(np.concatenate(each) for each in zip(*parts, strict=True)))

    def _group(self, texts: Sequence[str]) -> Iterator[list[str]]:
        """Cut the texts into groups whose arrays have a bounded size."""
        group: list[str] = []
        num = 0
        for text in texts:
            if group and num + len(text) > _GROUP_CHARACTERS:
                yield group
                group = []
                num = 0
            group.append(normalise(text[: self.max_length]))
            num += len(group[-1])
        if group:
            yield group

    def _hash_group(self, texts: Sequence[str]) -> Bags:
        spaced = _space_words(texts)
        found: list[tuple[NDArray[np.int64], Hashes]] = []
        found.extend(_hash_words(spaced, self.word_ngrams))
        if self.char_ngrams is not None:
            found.extend(_hash_characters(spaced, *self.char_ngrams))

        # one whole number of text and n-gram, so that one sort counts all
        base = np.int64(self.buckets + 1)
        keys = [of_text * base + self._number(hashes) for of_text, hashes in found]
        joined = np.sort(np.concatenate(keys)) if keys else np.empty(0, np.int64)
        is_first = np.ones(len(joined), np.bool_)
        np.not_equal(joined[1:], joined[:-1], out=is_first[1:])
        starts = np.flatnonzero(is_first)
        counts = np.diff(starts, append=len(joined)).astype(np.float32)
        of_text, ids = np.divmod(joined[starts], base)
        return Bags(ids, counts, np.bincount(of_text, minlength=len(texts)).astype(np.int64))

    def _number(self, hashes: Hashes) -> NDArray[np.int64]:
        folded = (hashes ^ (hashes >> np.uint64(32))) & np.uint64(0xFFFFFFFF)
        return (folded % np.uint64(self.buckets)).astype(np.int64) + 1


def normalise(text: str) -> str:
    """Write a text in Unicode's NFKC and in lower case."""
    return text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).lower()


class _Spaced(NamedTuple):
    """Words of several texts, with one space before, between and after them.

    Args:
        codes: Code points of words and spaces.
        of_text: Number of the text of each; that of a space is of no account.
        spaces: Places of the spaces; a word lies between two of them.
    """

    codes: Codes
    of_text: NDArray[np.int64]
    spaces: NDArray[np.int64]


def _space_words(texts: Sequence[str]) -> _Spaced:
    """Cut texts into words."""
    joined = " ".join(["", *texts, ""])
    codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), "<u4")
    lengths = np.array([len(text) + 1 for text in texts], np.int64)
    of_text = np.repeat(np.arange(len(texts)), lengths)
    of_text = np.concatenate([[0], of_text])[: len(codes)]
    is_separator = _IS_SEPARATOR[np.minimum(codes, len(_IS_SEPARATOR) - 1)]

    # of separators in a row the first is kept
    is_kept = ~is_separator
    is_kept[0] = True
    is_kept[1:] |= ~is_separator[:-1]
    kept = np.flatnonzero(is_kept)
    spaced = np.where(is_separator[kept], np.uint32(_SPACE), codes[kept])
    return _Spaced(spaced, of_text[kept], np.flatnonzero(spaced == _SPACE))


def _hash_words(spaced: _Spaced, longest: int) -> Iterator[tuple[NDArray[np.int64], Hashes]]:
    """Hash the n-grams of words of each length, with the numbers of their texts."""
    starts = spaced.spaces[:-1] + 1
    if not longest or not len(starts):
        return
    lengths = np.minimum(np.diff(spaced.spaces) - 1, MAX_WORD)
    of_text = spaced.of_text[starts]
    order = np.argsort(-lengths, kind="stable")
    ordered = starts[order]
    num_longer = np.searchsorted(-lengths[order], -np.arange(lengths.max(initial=0)), side="left")

    hashes = np.full(len(starts), OFFSET_BASIS, np.uint64)
    is_whole = np.ones(len(starts), np.bool_)
    for length in range(1, longest + 1):
        if length > 1:
            # the n-gram that ends a word before, a space, and then this word
            before = hashes
            hashes = np.full(len(starts), OFFSET_BASIS, np.uint64)
            hashes[1:] = before[:-1]
            _add_characters(hashes, np.full(len(starts), _SPACE, np.uint32))
            is_whole[1:] = is_whole[:-1] & (of_text[1:] == of_text[:-1])
            is_whole[0] = False
        of_order = hashes[order]
        for at, num in enumerate(num_longer.tolist()):
            _add_characters(of_order[:num], spaced.codes[ordered[:num] + at])
        hashes = np.empty_like(of_order)
        hashes[order] = of_order
        yield of_text[is_whole], hashes[is_whole]


def _hash_characters(
    spaced: _Spaced, shortest: int, longest: int
) -> Iterator[tuple[NDArray[np.int64], Hashes]]:
    """Hash the n-grams of characters of each length, with the numbers of their texts."""
    codes = spaced.codes
    num = len(codes)
    is_space = codes == _SPACE
    # an n-gram ends at the space after its first character, or before
    places = np.where(is_space, np.arange(num), num)
    end = np.minimum.accumulate(places[::-1])[::-1]
    end = np.concatenate([end[1:], [num - 1]])
    room = end - np.arange(num) + 1
    owner = spaced.of_text[np.minimum(np.arange(num) + is_space, num - 1)]

    hashes = np.full(num, OFFSET_BASIS, np.uint64)
    _add_characters(hashes, np.full(num, _MARK, np.uint32))
    for length in range(1, longest + 1):
        last = num - length + 1
        if last <= 0:
            return
        hashes = hashes[:last]
        _add_characters(hashes, codes[length - 1 :])
        if length < shortest:
            continue
        is_part = room[:last] >= length
        if length == 1:
            is_part &= ~is_space
        # of two spaces in a row there are none, of a text without words there is one
        if length == 2:
            is_part &= ~(is_space[:last] & is_space[1:])
        yield owner[:last][is_part], hashes[is_part]


def _add_characters(hashes: Hashes, codes: Codes) -> None:
    """Go on with hashes by a character each: FNV-1a over its code point's four octets."""
    prime = np.uint64(PRIME)
    num_octets = max(1, (int(codes.max(initial=0)).bit_length() + 7) // 8)
    for octet in range(num_octets):
        hashes ^= ((codes >> np.uint32(8 * octet)) & np.uint32(0xFF)).astype(np.uint64)
        hashes *= prime
    # octets of 0 leave the multiplication alone
    rest = pow(PRIME, _OCTETS - num_octets, 1 << _WORD_BITS)
    if rest != 1:
        hashes *= np.uint64(rest)
