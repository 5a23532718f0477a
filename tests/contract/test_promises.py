"""The list of promises and the tests agree, and the tests know nothing of the package's inside."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MODULES = sorted(HERE.glob("*.py"))
PUBLIC = {
    "lightkit",
    "lightkit.main",
    "lightkit.errors",
    "lightkit.models",
    "lightkit.data",
    "lightkit.callbacks",
    "lightkit.loggers",
    "lightkit.distributed",
    "lightkit.images.preprocessing",
}


def test_each_test_is_listed_as_a_promise_and_each_promise_has_its_test() -> None:
    listed = re.findall(
        r"`(test_\w+)`",
        re.sub(r"`test_\w+\.py`", "", (HERE / "README.md").read_text(encoding="utf-8")),
    )
    found = [
        node.name
        for module in MODULES
        for node in ast.parse(module.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    assert sorted(listed) == sorted(found)


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_the_suite_imports_only_what_is_public(module: Path) -> None:
    tree = ast.parse(module.read_text(encoding="utf-8"))
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    imported |= {
        node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module
    }
    own = {name for name in imported if name.partition(".")[0] == "lightkit"}
    assert own <= PUBLIC
    texts = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    imports = {
        name
        for text in texts
        for name in re.findall(r"^\s*(?:from|import) (lightkit[\w.]*)", text, re.MULTILINE)
    }
    assert imports <= PUBLIC, "scripts that tests write import what is public, too"
