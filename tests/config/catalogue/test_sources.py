"""Signatures read from the source of a module."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.config.catalogue.sources import described_by_source

NET = "class Net(Base):\n    def __init__(self{}):\n        raise RuntimeError\n"


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)


def test_arguments_are_read_with_their_plain_types() -> None:
    Path("nets_a.py").write_text(NET.format(", width: int, rate: float | None = 0.1, other: list[int] = [], *, last=3"))
    found = described_by_source("nets_a.Net", ["b", "a"])
    assert found is not None
    assert found["bases"] == ["a", "b"]
    assert {name: (said["schema"], said["required"]) for name, said in found["arguments"].items()} == {
        "width": ({"type": "integer"}, True),
        "rate": ({"anyOf": [{"type": "number"}, {"type": "null"}]}, False),
        "other": ({"type": "array", "items": {}}, False),
        "last": ({}, False),
    }
    assert "open" not in found


def test_a_module_in_a_package_is_read_without_importing_the_package() -> None:
    Path("packed").mkdir()
    Path("packed/__init__.py").write_text("raise RuntimeError")
    Path("packed/nets_b.py").write_text(NET.format(", **kwargs"))
    found = described_by_source("packed.nets_b.Net", [])
    assert found is not None
    assert found["open"]


def test_a_class_that_only_derives_from_lightnings_takes_no_arguments() -> None:
    Path("nets_e.py").write_text("class Net(pl.LightningModule):\n    def forward(self, x): pass\n")
    assert described_by_source("nets_e.Net", ["a"]) == {"says": "", "bases": ["a"], "arguments": {}}


@pytest.mark.parametrize(
    "text",
    [
        "class Net(Base): pass",
        "import no_such_package_anywhere\n" + NET.format(""),
        "@decorated\n" + NET.format(""),
        NET.format(", *args"),
        NET.format("") + NET.format(", width"),
        "class Other: pass",
        "class Net(:",
        "class Net:\n    def __new__(cls): pass\n",
    ],
    ids=["inherited", "import", "decorated", "args", "twice", "other", "syntax", "new"],
)
def test_what_the_source_does_not_say_is_left_to_the_import(text: str) -> None:
    Path("nets_c.py").write_text(text)
    assert described_by_source("nets_c.Net", []) is None


@pytest.mark.parametrize("name", ["Net", "no_such_module.Net", "nets_d.Net"])
def test_a_class_without_a_file_is_left_to_the_import(name: str) -> None:
    assert described_by_source(name, []) is None
