"""Types in plain words, and the values that jsonargparse takes for them."""

from __future__ import annotations

from typing import Any

import pytest

from lightkit.config.schema import accepts, any_of, describe_type, join_alternatives

INTEGER, NUMBER, TEXT, SWITCH = (
    {"type": kind} for kind in ("integer", "number", "string", "boolean")
)
NULL = {"type": "null"}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"anyOf": [INTEGER, NULL]}, "an integer or null"),
        ({"anyOf": [INTEGER, NUMBER, NULL]}, "a number or null"),
        ({"enum": ["min", "max"]}, "'min' or 'max'"),
        ({"anyOf": [SWITCH, {"enum": ["warn"]}, NULL]}, "true or false, 'warn' or null"),
        ({"type": "array", "items": NUMBER}, "a list of numbers"),
        (
            {"type": "array", "items": {"type": "array", "items": INTEGER}},
            "a list of lists of integers",
        ),
        ({"type": "array", "prefixItems": [NUMBER, NUMBER]}, "a list of 2 numbers"),
        ({"type": "array", "prefixItems": [NUMBER, TEXT]}, "a list of 2 values"),
        ({"type": "array"}, "a list"),
        ({"type": "object", "additionalProperties": INTEGER}, "a mapping to integers"),
        ({"type": "object"}, "a mapping"),
        ({"class": "pytorch_lightning.Callback"}, "a Callback"),
        (
            {"class": "torch.optim.Optimizer", "callable": True},
            "a function that makes an Optimizer",
        ),
        ({"class": "torch.optim.lr_scheduler.LRScheduler"}, "an LRScheduler"),
        (
            {"type": "array", "items": {"class": "pytorch_lightning.Callback"}},
            "a list of Callbacks",
        ),
        ({}, "anything"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_type_is_said_in_plain_words(schema: dict[str, Any], words: str) -> None:
    assert describe_type(schema) == words


def test_alternatives_are_said_once() -> None:
    assert join_alternatives(["text", "null", "text"]) == "text or null"


def test_a_type_that_takes_anything_takes_the_others_along() -> None:
    assert any_of([INTEGER, {}]) == {}
    assert any_of([INTEGER, {"anyOf": [INTEGER, NULL]}]) == {"anyOf": [INTEGER, NULL]}


@pytest.mark.parametrize(
    ("schema", "taken", "refused"),
    [
        (INTEGER, [1, -1, "3", None], [1.0, "1e3", "1.5", True, "true", "ten", "", [1], {}, "[1]"]),
        (NUMBER, [1, 1.5, "3", "1e-3", ".inf", None], [True, "ten", "", [1]]),
        (SWITCH, [True, "true", "no", None], [1, 0, "3", "ten", ""]),
        (TEXT, ["", "3", "null", None], [3, 1.5, True, ["a"], {}]),
        ({"enum": ["a", "b"]}, ["a", None], ["c", 1, ["a"]]),
        ({"enum": [16, "16"]}, [16, "16"], [32, "32"]),
        ({"anyOf": [INTEGER, NULL]}, ["null", "~", 3], ["", "ten"]),
        ({"anyOf": [INTEGER, TEXT]}, ["ten", 3], [1.5, [1]]),
        (
            {"type": "array", "items": INTEGER},
            [[], [1], ["1"], "[1, 2]"],
            [1, [1.5], ["a"], [None], {"a": 1}],
        ),
        (
            {"type": "array", "prefixItems": [NUMBER, TEXT]},
            [[1, "a"]],
            [[1], ["a", "a"], [1, "a", 2]],
        ),
        (
            {"type": "object", "additionalProperties": INTEGER},
            [{}, {"a": "1"}, "{a: 1}"],
            [{"a": "x"}, [1], 3],
        ),
        ({}, [1, "a", [], {}], []),
    ],
    ids=[
        "integer",
        "number",
        "switch",
        "text",
        "enum",
        "mixed",
        "optional",
        "union",
        "list",
        "tuple",
        "mapping",
        "any",
    ],
)
def test_values_are_read_as_jsonargparse_reads_them(
    schema: dict[str, Any], taken: list[Any], refused: list[Any]
) -> None:
    assert [value for value in taken if not accepts(schema, value)] == []
    assert [value for value in refused if accepts(schema, value)] == []
