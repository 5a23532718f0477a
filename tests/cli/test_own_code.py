"""A user's own modules are found by their sources, with all that they import, and nothing of it is imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lightkit.cli.own_code import declared_places, found_class, own_code

FILES = {
    "nets.py": "import numpy\nfrom parts import heads\nfrom parts.deep.core import Core as Kernel\nimport loop_a\n",
    "parts/__init__.py": "from .losses import focal\n",
    "parts/heads.py": "def build():\n    import importlib\n    return importlib.import_module('parts.late')\n",
    "parts/losses.py": "from . import scales\n",
    "parts/scales.py": "",
    "parts/late.py": "",
    "parts/unused.py": "",
    "parts/deep/__init__.py": "",
    "parts/deep/core.py": "from ..heads import build\nclass Core: ...\n",
    "loop_a.py": "import loop_b\n",
    "loop_b.py": "import loop_a\n",
    "broken.py": "def (",
    "rows.py": (
        "from base_rows import Base\n\nclass Rows(Base):\n    pass\n\nclass Nothing(Base):\n    input_places = ()\n"
        "\nclass Other:\n    def __init__(self, path='x.csv'):\n        raise RuntimeError\n"
    ),
    "base_rows.py": (
        "from typing import ClassVar\nclass Base:\n    input_folders: ClassVar[tuple[str, ...]] = ('root',)\n"
        "    def __init__(self, root='data', size=3): ...\n"
    ),
    "pkg/__init__.py": "from .inner import Shown\n",
    "pkg/inner.py": "class Shown:\n    input_places = ('a', 'b')\n",
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_all_that_a_class_imports_from_the_working_directory_is_found_and_nothing_else() -> None:
    found = own_code({"model": {"class_path": "nets.Net", "init_args": {"x": ["a.b", 3, "no module"]}}})
    assert sorted(found.files) == [
        "loop_a.py", "loop_b.py", "nets.py", "parts/__init__.py", "parts/deep/__init__.py", "parts/deep/core.py",
        "parts/heads.py", "parts/late.py", "parts/losses.py", "parts/scales.py",
    ]  # fmt: skip
    assert found.installed == {"numpy"}
    assert not {"nets", "parts", "loop_a"} & {*sys.modules}


@pytest.mark.parametrize(
    ("values", "files"),
    [
        ({"class_path": "lightkit.data.Flowers"}, []),
        ({"class_path": "Flowers"}, []),
        ({"class_path": "broken.Net"}, ["broken.py"]),
        ({"activation": "loop_a.relu"}, ["loop_a.py", "loop_b.py"]),
        ({"class_path": "pkg.Shown"}, ["pkg/__init__.py", "pkg/inner.py"]),
        ({"class_path": "gone.Net", "text": "os.path"}, []),
    ],
    ids=["lightkit", "short", "broken", "function", "package", "missing"],
)
def test_files_of(values: dict[str, str], files: list[str]) -> None:
    assert sorted(own_code(values).files) == files


@pytest.mark.parametrize(
    ("path", "places"),
    [
        ("rows.Rows", ("root",)),
        ("rows.Nothing", ()),
        ("rows.Other", None),
        ("pkg.Shown", ("a", "b")),
    ],
    ids=["inherited", "nothing", "undeclared", "through-a-package"],
)
def test_declared_places_are_read_from_the_source(path: str, places: tuple[str, ...] | None) -> None:
    found = found_class(path)
    assert found is not None
    assert declared_places(found) == places


@pytest.mark.parametrize("path", ["rows.Gone", "gone.Rows", "Rows", "", "broken.Net", "json.JSONDecoder"])
def test_what_is_not_the_users_is_not_found(path: str) -> None:
    assert found_class(path) is None
