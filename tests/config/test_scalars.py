"""Scalars are those of jsonargparse, and what is dumped reads back equal."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonargparse import get_loader

from lightkit.config import dump_yaml, read_scalar

NUMBERS_AND_ALIKE = [
    "1e-3", "1E5", "1e+3", "1.", ".5", ".5e-3", ".5e3", "-.5", "+1.5", "1_000", "1_0.5", "0x1F",
    "010", "0o10", "0b11", "1:30", "1:30.5", ".inf", "-.inf", "+.INF", ".nan", "inf", "nan", "1e",
    "e5", "-", "+", ".", "~", "null", "Null", "yes", "No", "on", "OFF", "true", "True", "y",
    "2026-11-20", "12:30:45", "text", "0", "-0", "007", "1.2.3", "1-2",
    "=", "9" * 5000,
]  # fmt: skip


def read_by_jsonargparse(text: str) -> Any:
    try:
        return get_loader("yaml")(text)
    except (ValueError, yaml.YAMLError):
        return text


def same(first: Any, second: Any) -> bool:
    return type(first) is type(second) and (
        first == second or (first != first and second != second)
    )


@pytest.mark.parametrize("text", NUMBERS_AND_ALIKE)
def test_a_scalar_is_what_jsonargparse_makes_of_it(text: str) -> None:
    theirs = read_by_jsonargparse(text)
    assert same(read_scalar(text), text if isinstance(theirs, (list, dict)) else theirs)


@settings(derandomize=True)
@given(st.text("0123456789.eE+-_xinfa", min_size=1, max_size=8))
def test_any_number_is_what_jsonargparse_makes_of_it(text: str) -> None:
    theirs = read_by_jsonargparse(text)
    assert isinstance(theirs, (list, dict)) or same(read_scalar(text), theirs)


@pytest.mark.parametrize("text", NUMBERS_AND_ALIKE)
def test_text_that_looks_like_a_number_stays_text(text: str) -> None:
    assert get_loader("yaml")(dump_yaml({"a": {"b": text}})) == {"a": {"b": text}}


def test_a_dump_keeps_order_and_has_no_aliases() -> None:
    shared = [1, 2]
    assert (
        dump_yaml({"b": shared, "a": shared, "c": (1.5, PurePosixPath("x/y")), "d": "é"})
        == "b:\n- 1\n- 2\na:\n- 1\n- 2\nc:\n- 1.5\n- x/y\nd: é\n"
    )
