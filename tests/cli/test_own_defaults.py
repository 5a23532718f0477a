"""Defaults are read in the source of a user's own class; what only running it gives is known to be unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.cli.own_code import found_class
from lightkit.cli.own_defaults import UNKNOWN, default_arguments

SOURCE = """\
import os
import pathlib
from pathlib import Path
from elsewhere import THERE

ROOT = "here"
DEEP: Path = Path(ROOT) / "deep"
TWICE = "a"
TWICE = "b"
LOOP = LOOP


class Base:
    def __init__(self, root="data", size=3): ...


class Plain(Base): ...


class More(Base):
    def __init__(self, extra="x", *args, **kwargs): ...


class Closed(Base):
    def __init__(self, path="x.csv", *, deep=None, said, folds=("a", "b")):
        raise RuntimeError


class Paths:
    def __init__(self, a: Path = Path("a"), b=pathlib.Path("b", "c"), c=ROOT, d=DEEP, e=Path("e") / ROOT): ...


class Unknown:
    def __init__(self, a=THERE, b=Path.home(), c=os.environ["X"], d=TWICE, e=LOOP, f=Path(THERE), *, g=f"{ROOT}/x"): ...


class Numbers:
    def __init__(self, workers: int = os.cpu_count(), rate: float | None = THERE, name: str = THERE): ...
"""


@pytest.mark.parametrize(
    ("name", "defaults"),
    [
        ("Plain", {"root": "data", "size": 3}),
        ("More", {"root": "data", "size": 3, "extra": "x"}),
        ("Closed", {"path": "x.csv", "deep": None, "folds": ("a", "b")}),
        ("Paths", {"a": "a", "b": "b/c", "c": "here", "d": "here/deep", "e": "e/here"}),
        ("Unknown", dict.fromkeys("abcdefg", UNKNOWN)),
        ("Numbers", {"workers": None, "rate": None, "name": UNKNOWN}),
    ],
    ids=["inherited", "handed-on", "own", "paths", "unknown", "numbers"],
)
def test_defaults_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, defaults: dict[str, object]) -> None:
    (tmp_path / "with_defaults.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    found = found_class(f"with_defaults.{name}")
    assert found is not None
    assert default_arguments(found) == defaults
