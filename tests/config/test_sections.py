"""The table of sections agrees with the schema, from which each is validated."""

from __future__ import annotations

import pytest

from lightkit.config.schema import load_schema
from lightkit.config.sections import (
    CLASS_SECTIONS,
    FILE_SECTIONS,
    NAMED_CLASSES,
    SECTIONS,
    USER_SECTIONS,
)


def names_of_kind(*kinds: str) -> set[str]:
    return {name for name, section in SECTIONS.items() if section.kind in kinds}


def test_each_section_of_the_schema_is_in_the_table_with_its_kind() -> None:
    schema = load_schema()
    assert names_of_kind("keys") == {*schema.sections}
    assert names_of_kind("class", "entries") == {*schema.bases}


def test_the_lists_of_sections_are_those_of_the_table() -> None:
    assert CLASS_SECTIONS == ("model", "data", "optimizer", "lr_scheduler")
    assert USER_SECTIONS == ("model", "data")
    assert {*SECTIONS} - {*FILE_SECTIONS} == {"accelerator", "launch"}
    assert {*NAMED_CLASSES} == names_of_kind("entries") == {"callbacks", "logger"}


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_is_described_once(section: str) -> None:
    is_of_keys = SECTIONS[section].kind == "keys"
    assert bool(SECTIONS[section].help) != is_of_keys
