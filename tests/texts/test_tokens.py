"""Tokens of texts: padded, cut, the same as those of transformers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lightkit.rows.text import TextPreprocessing
from lightkit.texts.tokens import Tokenizing
from tests.texts.tiny import write_tiny_bert

TEXTS = ["the ball game", "", "law " * 100, "odd \ud800 words", "Bank!"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_bert(tmp_path_factory.mktemp("tiny") / "bert")


@pytest.fixture
def tokenizing(folder: Path) -> Tokenizing:
    return Tokenizing((folder / "tokenizer.json").read_text(encoding="utf-8"), 64, 0)


def test_tokens_are_those_of_transformers(folder: Path, tokenizing: Tokenizing) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    clean = [text.encode("utf-8", "replace").decode() for text in TEXTS]
    expected = tokenizer(clean, padding=True, truncation=True, return_tensors="np")
    ids, mask = tokenizing.encode(TEXTS)
    assert ids.tolist() == expected["input_ids"].tolist()
    assert mask.tolist() == expected["attention_mask"].tolist()
    assert ids.shape == mask.shape == (5, 64)
    assert ids.dtype == mask.dtype == np.dtype(np.int64)


def test_a_text_without_tokens_has_one(folder: Path, tokenizing: Tokenizing) -> None:
    record = json.loads(tokenizing.tokenizer)
    record["post_processor"] = None
    ids, mask = Tokenizing(json.dumps(record), 64, 7).encode(["", "ball"])
    assert ids[0].tolist()[:1] == [7]
    assert mask[0].tolist()[:1] == [1]
    assert mask.sum(axis=1).tolist() == [1, (ids[1] != 7).sum()]


def test_the_settings_go_through_json(tokenizing: Tokenizing) -> None:
    preprocessing = TextPreprocessing("text", tokenizing)
    again = TextPreprocessing.from_dict(json.loads(json.dumps(preprocessing.as_dict())))
    assert again == preprocessing
    for mine, theirs in zip(
        preprocessing.encode_texts(TEXTS), again.encode_texts(TEXTS), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)
