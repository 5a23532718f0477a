"""Compiled files that a full disk has cut, or a power failure has filled with zeros."""

from __future__ import annotations

import marshal
import os
import py_compile
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lightkit.cli.argument_lookup import import_class
from lightkit.errors import ConfigError

HEADER = 16
"""Bytes of a compiled file before its code (PEP 552)."""


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


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:HEADER],
        lambda content: content[:50],
        lambda content: content[:-1],
        lambda content: content[:50] + bytes(len(content) - 50),
    ],
    ids=["cut after the header", "cut", "a byte less", "zeros"],
)
def test_modules_whose_compiled_files_are_damaged_are_imported_from_their_sources(
    project: Path, damage: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = sorted((project / "__pycache__").iterdir())
    assert len(compiled) == 2
    for file in compiled:
        file.write_bytes(damage(file.read_bytes()))
    assert import_class("cut_net.Net").depth == 3
    for file in (project / "__pycache__").iterdir():  # none is left that no process can read
        marshal.loads(file.read_bytes()[HEADER:])
    for name in ("cut_net", "cut_layers"):
        monkeypatch.delitem(sys.modules, name)
    assert import_class("cut_net.Net").depth == 3


def test_errors_of_a_module_are_its_own(project: Path) -> None:
    (project / "cut_layers.py").write_text("raise EOFError('no more lines')\n")
    with pytest.raises(ConfigError, match="EOFError: no more lines"):
        import_class("cut_net.Net")


@pytest.mark.slow
def test_cut_files_of_installed_packages_stop_no_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lightkit", "configs"]
    environ = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path / "compiled")}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    subprocess.run(command, env=environ, check=True, capture_output=True)
    cut = [next((tmp_path / "compiled").rglob(f"{name}.*.pyc")) for name in ("composer", "configs")]
    for path in cut:  # of PyYAML, and of lightkit
        path.write_bytes(path.read_bytes()[:100])
    done = subprocess.run(command, env=environ, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert not any(path.exists() for path in cut), "the next start writes them"
