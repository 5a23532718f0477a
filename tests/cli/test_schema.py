"""`lightkit schema`: prints or writes the JSON Schema of a config file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from lightkit.cli import main


def test_it_prints_a_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["properties"]["trainer"]


def test_it_writes_a_file_and_says_how_an_editor_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["schema", "-o", "lightkit.schema.json"]) == 0
    assert json.loads(Path("lightkit.schema.json").read_text())["title"] == "lightkit config"
    assert "# yaml-language-server: $schema=lightkit.schema.json" in capsys.readouterr().out


def test_help_says_how_to_use_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "--help"]) == 0
    assert "# yaml-language-server: $schema=lightkit.schema.json" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--outptu", "x"], "schema: unexpected argument '--outptu'; did you mean '--output'?"),
        (["-o"], "schema: expected a file after -o, got the end of the command line"),
        (["-o", "nowhere/x.json"], "schema: nowhere/x.json cannot be written: No such file or directory"),
    ],
    ids=["flag", "no file", "no folder"],
)
def test_a_wrong_word_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["schema", *words]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.slow
def test_it_loads_neither_torch_nor_lightning() -> None:
    program = (
        "import sys\n"
        "from lightkit.cli import main\n"
        "main(['schema'])\n"
        "print([name for name in ('torch', 'jsonargparse') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"
