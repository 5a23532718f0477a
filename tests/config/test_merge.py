"""Properties that hold for any layers, tried on many."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lightkit.config import Origin, dump_yaml, resolve
from lightkit.config.interpolation import escape, interpolate
from lightkit.config.merge import MergeRules
from lightkit.config.origins import Problems
from lightkit.config.secrets import is_secret
from lightkit.config.tree import MappingNode, Node, graft, to_plain

HERE = Origin("default")
MANY = settings(derandomize=True)
LAYERING = MergeRules(("model",))
NUMBERS = st.integers(0, 9)
LISTS = st.lists(NUMBERS, max_size=3)


def tables(depth: int) -> st.SearchStrategy[dict[str, Any]]:
    """Give layers in which a key is of one kind in all.

    Where a scalar meets a mapping, order must matter.
    """
    inner = tables(depth - 1) if depth else st.just({})
    return st.fixed_dictionaries(
        {}, optional={"s": NUMBERS, "l": LISTS, "l+": LISTS, "m": inner, "n": inner}
    )


def merge_over(lower: Node, upper: dict[str, Any] | Node) -> Node:
    """Lay plain values or a tree over a tree."""
    return LAYERING.merge(lower, graft(upper, HERE) if isinstance(upper, dict) else upper)


def settled(layer: dict[str, Any]) -> Node:
    return LAYERING.merge(None, graft(layer, HERE))


@MANY
@given(tables(2), tables(2), tables(2))
def test_it_does_not_matter_which_two_layers_merge_first(a: Any, b: Any, c: Any) -> None:
    assert to_plain(merge_over(merge_over(settled(a), b), c)) == to_plain(
        merge_over(settled(a), merge_over(settled(b), c))
    )


@MANY
@given(tables(2))
def test_an_empty_layer_changes_nothing(a: Any) -> None:
    assert (
        to_plain(merge_over(settled(a), {}))
        == to_plain(settled(a))
        == to_plain(merge_over(MappingNode({}, HERE), a))
    )


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.text(
    "${}\\:a.,'", max_size=12
)
WORDS = TEXT.filter(lambda key: not is_secret(key))  # which is written as a reference
KEYS = WORDS.filter(lambda key: not key.endswith("+") or key == "+") | st.integers() | st.booleans()
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3)
)


@MANY
@given(TEXT)
def test_escaped_text_survives_interpolation(text: str) -> None:
    assert to_plain(
        interpolate(MappingNode({"a": graft(escape(text), HERE)}, HERE), {}, Problems()).tree
    ) == {"a": text}


@MANY
@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), VALUES, max_size=4))
def test_a_dumped_config_resolves_to_the_same_values(
    tmp_path_factory: Any, values: dict[str, Any]
) -> None:
    file: Path = tmp_path_factory.getbasetemp() / "dumped.yaml"
    first = resolve(environ={}).with_references(values)
    file.write_text(dump_yaml(first), encoding="utf-8")
    resolved = resolve([file], environ={})
    assert resolved.values == values
    file.write_text(dump_yaml(resolved.with_references(resolved.values)), encoding="utf-8")
    assert resolve([file], environ={}).values == values
