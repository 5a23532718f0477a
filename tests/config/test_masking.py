"""Secrets in texts that others write: escaped, quoted and cut."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lightkit.config import Resolved, error_at, resolve
from lightkit.config.origins import shortened
from lightkit.errors import ConfigError, cut

LONG = "".join(f"{number:04}k" for number in range(400))
SECRETS = {
    "both-quotes": "hun'ter\"q",
    "single-quote": "hun'ter",
    "double-quote": 'hun"ter',
    "backslash": "hun\\ter",
    "backslash-quote": "hun\\'t\"er",
    "newline": "first part\nsecond part",
    "escape": "hun\x1bter",
    "accent": "hünter",
}


def with_secret(folder: Path, secret: str) -> Resolved:
    (folder / "x.yaml").write_text("a: '${oc.env:KEY}'\n")
    return resolve([folder / "x.yaml"], environ={"KEY": secret})


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
@pytest.mark.parametrize(
    "write",
    [
        str,
        repr,
        json.dumps,
        lambda secret: json.dumps(secret, ensure_ascii=False),
        lambda secret: str(ConfigError(secret)),
        lambda secret: str(ConfigError(f"got {secret!r}")),
        lambda secret: repr([f"it's {secret}"]),
        lambda secret: repr([f'"{secret}']),
    ],
    ids=[
        "as-it-is",
        "repr",
        "json",
        "json-unicode",
        "error",
        "repr-in-error",
        "beside-quote",
        "beside-double-quote",
    ],
)
def test_a_secret_is_masked_however_it_is_escaped(
    tmp_path: Path, secret: str, write: Callable[[str], str]
) -> None:
    masked = with_secret(tmp_path, secret).masked(write(secret))
    assert "${oc.env:KEY}" in masked
    assert "hun" not in masked
    assert "ter" not in masked
    assert "part" not in masked


@pytest.mark.parametrize(
    "text",
    [
        shortened(LONG),
        f"a: expected an integer, got {shortened(LONG)}; what else",
        cut(LONG),
        cut(f"got {LONG!r}, expected a number", 1000),
        str(error_at(f"a: expected a number, got {LONG!r}")),
        str(error_at(f"a: got {{'b': {LONG!r}}}; one of {'x' * 300}")),
        f"{LONG[:20]}…",
    ],
    ids=[
        "shortened",
        "shortened-inside",
        "cut",
        "cut-message",
        "mistake",
        "mistake-with-tail",
        "ellipsis",
    ],
)
def test_what_a_cut_leaves_of_a_secret_is_masked(tmp_path: Path, text: str) -> None:
    assert "00" in text
    masked = with_secret(tmp_path, LONG).masked(text)
    assert "${oc.env:KEY}" in masked
    assert "00" not in masked


def test_a_line_of_a_secret_is_masked(tmp_path: Path) -> None:
    resolved = with_secret(tmp_path, "BEGIN KEY\nc2VjcmV0\nEND")
    assert resolved.masked("got c2VjcmV0") == "got ${oc.env:KEY}"


def test_what_is_no_secret_stays_next_to_dots(tmp_path: Path) -> None:
    resolved = with_secret(tmp_path, "s3cret-of-mine")
    assert (
        resolved.masked("loading ... done, s3 ... mine") == "loading ... done, s3 ... ${oc.env:KEY}"
    )
    assert resolved.masked("loading... done") == "loading... done"
