"""Hashed n-grams.

Those of a plain reading of the rules, the same in every process, each text by itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
import unicodedata
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightkit.texts import ngrams
from lightkit.texts.ngrams import OFFSET_BASIS, PRIME, SEPARATORS, NgramHashing, join_bags

TEXTS = (
    "Hello, World! hello",
    "",
    "   ",
    "!!!",
    "a",
    "été ÉTÉ e\u0301te\u0301",
    "日本語のテキスト。テスト",
    "don't stop",
    f"{'x' * 200} y",
    "\ud800 half",
    "a b c d a b",
    "ﬁne 👍👍 great👍",
    "\0nul\0",
    "one  two\nthree",
    "\ufeffmark",
)


def fnv1a(octets: bytes) -> int:
    """FNV-1a of 64 bits, as the draft writes it."""
    found = OFFSET_BASIS
    for octet in octets:
        found = ((found ^ octet) * PRIME) % 2**64
    return found


def count_ngrams(text: str, hashing: NgramHashing) -> Counter[int]:
    """Count the n-grams of a text one by one."""
    text = unicodedata.normalize("NFKC", text[: hashing.max_length]).lower()
    spaced = "".join(
        " " if any(a <= ord(each) <= b for a, b in SEPARATORS) else each for each in text
    )
    words = spaced.split(" ")
    words = [word for word in words if word]
    grams = []
    for size in range(1, hashing.word_ngrams + 1):
        for at in range(len(words) - size + 1):
            grams.append(" ".join(word[:64] for word in words[at : at + size]))
    shortest, longest = hashing.char_ngrams or (1, 0)
    for size in range(shortest, longest + 1):
        for word in words:
            whole = f" {word} "
            parts = [whole[at : at + size] for at in range(len(whole) - size + 1)]
            grams += [f"#{part}" for part in parts if part != " "]
    hashes = [fnv1a(gram.encode("utf-32-le", "surrogatepass")) for gram in grams]
    return Counter(1 + ((each ^ (each >> 32)) % 2**32) % hashing.buckets for each in hashes)


def list_bags(hashing: NgramHashing, texts: list[str]) -> list[dict[int, float]]:
    bags = hashing.hash_texts(texts)
    assert len(bags.sizes) == len(texts)
    assert bags.sizes.sum() == len(bags.ids) == len(bags.counts)
    ends = np.cumsum(bags.sizes)
    return [
        dict(
            zip(
                bags.ids[end - size : end].tolist(),
                bags.counts[end - size : end].tolist(),
                strict=True,
            )
        )
        for end, size in zip(ends, bags.sizes, strict=True)
    ]


def test_the_hash_is_that_of_the_published_examples() -> None:
    examples = {b"": 0xCBF29CE484222325, b"a": 0xAF63DC4C8601EC8C, b"foobar": 0x85944171F73967E8}
    assert {octets: fnv1a(octets) for octets in examples} == examples


@pytest.mark.parametrize(
    ("words", "characters"),
    [(1, None), (2, (3, 5)), (3, (1, 2)), (0, (2, 4)), (1, (1, 1)), (0, (7, 9))],
    ids=str,
)
def test_the_ngrams_of_texts_are_those_of_the_rules(
    words: int, characters: tuple[int, int] | None
) -> None:
    hashing = NgramHashing(1 << 20, words, characters, 100_000)
    assert list_bags(hashing, list(TEXTS)) == [count_ngrams(text, hashing) for text in TEXTS]


@given(st.lists(st.text(max_size=40), max_size=5))
def test_the_ngrams_of_any_texts_are_those_of_the_rules(texts: list[str]) -> None:
    hashing = NgramHashing(997, 2, (2, 3), 30)
    assert list_bags(hashing, texts) == [count_ngrams(text, hashing) for text in texts]


def test_a_text_has_the_same_ngrams_with_others_and_in_several_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hashing = NgramHashing(1 << 16, 2, (3, 4), 100_000)
    alone = [list_bags(hashing, [text])[0] for text in TEXTS]
    monkeypatch.setattr(ngrams, "_GROUP_CHARACTERS", 25)
    assert list_bags(hashing, list(TEXTS)) == alone
    assert list_bags(hashing, []) == []


def test_another_process_hashes_alike() -> None:
    code = (
        "import json; from lightkit.texts.ngrams import NgramHashing; "
        "bags = NgramHashing(131072, 2, (3, 4), 100000).hash_texts(['Straße 12, one two']); "
        "print(json.dumps([bags.ids.tolist(), bags.counts.tolist()]))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, env={"PYTHONHASHSEED": "77"}
    )
    ids, counts = json.loads(ran.stdout)
    bags = NgramHashing(131072, 2, (3, 4), 100_000).hash_texts(["Straße 12, one two"])
    assert (ids, counts) == (bags.ids.tolist(), bags.counts.tolist())
    # of one word alone, for good: models that were trained have these numbers
    assert NgramHashing(131072, 1, None, 100).hash_texts(["one"]).ids.tolist() == [41337]


def test_bags_are_padded_with_nothing() -> None:
    hashing = NgramHashing(1 << 16, 1, None, 100)
    ids, counts = hashing.pad(hashing.hash_texts(["a b a", "", "c"]))
    assert ids.shape == counts.shape == (3, 2)
    assert sorted(counts[0].tolist()) == [1, 2]
    assert counts[1].tolist() == [0, 0]
    assert ids[1].tolist() == [0, 0]
    assert ids.dtype == np.dtype(np.int64)
    assert counts.dtype == np.dtype(np.float32)
    ids, counts = hashing.pad(hashing.hash_texts([""]))
    assert ids.shape == (1, 1)


def test_bags_of_texts_are_split_and_joined() -> None:
    hashing = NgramHashing(1 << 16, 2, (3, 4), 100)
    bags = hashing.hash_texts(["one two", "", "three"])
    parts = bags.split()
    assert [len(ids) for ids, _ in parts] == bags.sizes.tolist()
    for mine, theirs in zip(bags, join_bags(parts), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert hashing.hash_texts([]).split() == []


def test_the_settings_go_through_json() -> None:
    hashing = NgramHashing(1 << 16, 2, (3, 4), 100)
    assert NgramHashing.from_dict(json.loads(json.dumps(hashing.as_dict()))) == hashing
    plain = NgramHashing(5, 1, None, 100)
    assert NgramHashing.from_dict(json.loads(json.dumps({**plain.as_dict(), "later": 1}))) == plain
    with pytest.raises(TypeError, match="whole numbers"):
        NgramHashing.from_dict({**plain.as_dict(), "buckets": 0})
