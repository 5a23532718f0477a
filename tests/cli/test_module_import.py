"""Compiled files that a full disk has cut."""

from __future__ import annotations

import marshal
import py_compile
import sys
from pathlib import Path

import pytest

from lightkit.cli.argument_lookup import import_class
from lightkit.errors import ConfigError


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two modules, of which one imports the other, with compiled files."""
    (tmp_path / "cut_net.py").write_text("from cut_layers import Layer\n\nclass Net(Layer): ...\n")
    (tmp_path / "cut_layers.py").write_text("class Layer:\n    depth = 3\n")
    for name in ("cut_net", "cut_layers"):
        py_compile.compile(str(tmp_path / f"{name}.py"), doraise=True)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize("size", [16, 50])
def test_modules_whose_compiled_files_are_cut_are_imported_from_their_sources(
    project: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = sorted((project / "__pycache__").iterdir())
    assert len(compiled) == 2
    for file in compiled:
        file.write_bytes(file.read_bytes()[:size])
    assert import_class("cut_net.Net").depth == 3
    assert sys.pycache_prefix is None
    for file in (project / "__pycache__").iterdir():  # none is left that no process can read
        marshal.loads(file.read_bytes()[16:])
    for name in ("cut_net", "cut_layers"):
        monkeypatch.delitem(sys.modules, name)
    assert import_class("cut_net.Net").depth == 3


def test_the_end_of_input_in_a_module_is_its_own_error(project: Path) -> None:
    (project / "cut_layers.py").write_text("raise EOFError('no more lines')\n")
    with pytest.raises(ConfigError, match="EOFError: no more lines"):
        import_class("cut_net.Net")
    assert sys.pycache_prefix is None
