"""The package index has another project called `lightkit`, so that no text may install that one."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAME = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"]
# `pip install lightkit`, an extra as in `lightkit[onnx]`, a pinned version, and a line of a
# requirements file
OLD_FORMS = re.compile(
    r"(?:pip3?|pipx|uv pip|uv tool|uv) (?:install|add|run)\b[^\n`|;]*[ '\"]lightkit(?![\w./:-])"
    r"|(?<![\w/.-])lightkit\\?\[(?:onnx|delta|comet|wandb|apprise|timm|spark|ray|tpu|petastorm|bench|docs|dev|NAME|\{)"
    r"|(?<![\w/.-])lightkit ?(?:==|>=|~=)"
    r"|\Alightkit\s*\Z"
)


def test_the_distribution_has_a_name_of_its_own() -> None:
    assert NAME == "lightkit-train"


@pytest.mark.parametrize(
    "text",
    [
        "pip install lightkit\n",
        "pip install 'lightkit[onnx]'",
        r"lightkit\[spark\]",
        "lightkit==0.1.0",
        "lightkit\n",
    ],
    ids=["name", "extra", "pattern", "version", "requirements"],
)
def test_an_old_form_is_found(text: str) -> None:
    assert OLD_FORMS.search(text)


def test_no_text_installs_the_other_project() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    paths = [ROOT / name for name in listed.split("\0") if name]
    found = []
    for path in paths:
        if path == Path(__file__) or not path.is_file():
            continue
        text = path.read_bytes().decode("utf-8", errors="replace")
        found += [
            f"{path.relative_to(ROOT)}: {each.group()!r}" for each in OLD_FORMS.finditer(text)
        ]
    assert found == []
