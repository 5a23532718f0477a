"""Data settings of a baseline: its own, but for those that choose the samples."""

from __future__ import annotations

from typing import Any

import pytest

from lightkit.data import ImageFolder, TableData, TextData
from lightkit.data.tables.module import Table
from lightkit.registry.data_settings import choose_data_settings


class Plain:
    """Data of a user, without a word on its arguments."""

    input_folders = ("photos",)

    def __init__(
        self, root: str = ".", window: int = 8, batch_size: int = 4, photos: str = "."
    ) -> None: ...


class Declared(Plain):
    """Says which arguments choose the samples."""

    sample_arguments = ("root", "fold")

    def __init__(self, fold: int = 0, **kwargs: Any) -> None: ...


def section(**arguments: Any) -> dict[str, Any]:
    """A section `data`."""
    return {"class_path": "mod.Data", "init_args": arguments}


@pytest.mark.parametrize(
    ("kind", "own", "here", "expected", "unclear"),
    [
        (Plain, {"root": "a"}, {"root": "b"}, {"root": "b"}, ()),
        (Plain, {"photos": "a"}, {"photos": "b"}, {"photos": "b"}, ()),
        (Plain, {"batch_size": 2}, {"batch_size": 8}, {"batch_size": 2}, ()),
        (Plain, {"window": 16}, {"window": 32}, {"window": 16}, ("window",)),
        (Plain, {}, {"window": 8}, {}, ()),
        (Plain, {}, {"window": 32}, {}, ("window",)),
        (Declared, {"fold": 1, "window": 16}, {"fold": 2, "window": 32}, {"fold": 2, "window": 16},
         ()),
        (Declared, {"fold": 1}, {}, {"fold": 0}, ()),
        (Table, {"path": "a", "features": ["x", "y"]}, {"path": "b", "features": ["y", "x"]},
         {"path": "b", "features": ["x", "y"]}, ()),
        (Table, {"filter": [["a", "==", 1]], "label": "y"}, {"filter": None, "label": "z"},
         {"filter": None, "label": "y"}, ()),
        (Table, {"weight": "w"}, {"weight": None}, {"weight": None}, ()),
        (TableData, {"weight": "w", "scaling": "standard"}, {},
         {"weight": None, "scaling": "standard"}, ()),
        (TextData, {}, {"weight": "w"}, {"weight": "w"}, ()),
        (ImageFolder, {"root": "a", "image_size": 64}, {"root": "b", "image_size": 32},
         {"root": "b", "image_size": 64},
         ()),
    ],
    ids=["root", "folder", "batch size", "unknown", "default of today", "new argument", "declared",
         "declared default",
         "columns", "rows and label", "weights of images", "weights of rows", "weights of texts",
         "image size"],
)  # fmt: skip
def test_a_baseline_keeps_what_prepares_its_inputs_and_takes_the_samples_of_the_gate(
    kind: type,
    own: dict[str, Any],
    here: dict[str, Any],
    expected: dict[str, Any],
    unclear: tuple[str, ...],
) -> None:
    of_gate = section(**here)
    found = choose_data_settings(section(**own), of_gate=of_gate, of_run=of_gate, kind=kind)
    assert found.section["init_args"] == expected
    assert found.unclear == unclear


def test_what_the_command_line_of_the_gate_changes_counts_for_both() -> None:
    found = choose_data_settings(
        section(window=16), of_gate=section(window=24), of_run=section(window=32), kind=Plain
    )
    assert found.section["init_args"] == {"window": 24}
    assert found.unclear == ()


def test_another_class_of_data_is_unclear_unless_the_command_line_names_it() -> None:
    other = {"class_path": "mod.Other", "init_args": {"root": "a"}}
    here = section(root="b")
    found = choose_data_settings(other, of_gate=here, of_run=here, kind=Plain)
    assert (found.section, found.unclear) == (other, ("class_path",))
    named = choose_data_settings(other, of_gate=here, of_run=other, kind=Plain)
    assert (named.section, named.unclear) == (here, ())


def test_a_short_name_is_the_same_class() -> None:
    own = {"class_path": "Table", "init_args": {"path": "a"}}
    here = {"class_path": "lightkit.data.Table", "init_args": {"path": "b"}}
    found = choose_data_settings(own, of_gate=here, of_run=here, kind=Table)
    assert found.section == {"class_path": "Table", "init_args": {"path": "b"}}
