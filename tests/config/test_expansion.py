"""Interpolations that stand for more than anybody means."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from lightkit.config import resolution, resolve
from lightkit.errors import ConfigError

DOUBLING = "".join(f"k{i}: '${{k{i + 1}}}${{k{i + 1}}}'\n" for i in range(40)) + "k40: x\n"
SECTIONS = "".join(f"s{i}: {{a: '${{s{i + 1}}}', b: '${{s{i + 1}}}'}}\n" for i in range(40)) + "s40: 1\n"
RELATIVE = "m:\n" + "".join(f"  k{i}: '${{.k{i + 1}}}${{.k{i + 1}}}'\n" for i in range(40)) + "  k40: x\n"
CHAIN = "".join(f"k{i}: ${{k{i + 1}}}\n" for i in range(500)) + "k500: 1\n"


@pytest.mark.parametrize("text", [DOUBLING, SECTIONS, RELATIVE, CHAIN], ids=["texts", "sections", "relative", "chain"])
def test_interpolations_that_grow_without_bound_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError, match="its interpolations refer to each other more than 10000 times"):
        resolve([tmp_path / "c.yaml"], environ={})


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "x" * 900_000 + "\nb: '" + "${a}" * 1000 + "'\n",
        "a: " + "x" * 10_000 + "\n" + "".join(f"b{i}: '-${{a}}'\n" for i in range(1000)),
    ],
    ids=["one-text", "many-texts"],
)
def test_interpolations_that_come_to_long_text_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError, match="the interpolations come to more than 1000000 characters"):
        resolve([tmp_path / "c.yaml"], environ={})


def test_interpolations_that_come_to_many_values_together_are_refused(tmp_path: Path) -> None:
    text = "s: {" + ", ".join(f"k{i}: {i}" for i in range(5000)) + "}\n" + "".join(f"b{i}: ${{s}}\n" for i in range(20))
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"b7: its interpolations refer to each other more than 40000 times"):
        resolve([tmp_path / "c.yaml"], environ={})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("${" * 50_000, "a } is missing"),
        ("${a." * 30 + "b" + "}" * 30, "it nests more than 20 levels deep"),
        ("${b}" * 1001, "it holds more than 1000 of them"),
        ("${oc.env:A," + "x y, " * 2000 + "}", "a text with one of a name and a colon has at most 10000 characters"),
    ],
    ids=["open", "nested", "many", "long"],
)
def test_a_text_that_takes_long_to_read_is_refused_unread(
    tmp_path: Path, text: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "c.yaml").write_text(f"a: '{text}'\nb: x\n")
    monkeypatch.setattr(
        OmegaConf,
        "create",
        lambda value, **_: pytest.fail(str(value)) if "value" in value else DictConfig(value),
    )
    with pytest.raises(ConfigError, match=f"is not a valid interpolation: {says}"):
        resolve([tmp_path / "c.yaml"], environ={})


def test_thousands_of_unknown_keys_are_told_without_near_names_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "c.yaml").write_text("".join(f"a{i}: ${{nope{i}}}\n" for i in range(1000)))
    asked: list[str] = []

    def note(word: str, _: object) -> str:
        asked.append(word)
        return ""

    monkeypatch.setattr(resolution, "near", note)
    with pytest.raises(ConfigError, match="nope0, which is not set"):
        resolve([tmp_path / "c.yaml"], environ={})
    assert len(asked) == 20


def test_many_references_and_braces_of_plain_text_are_fine(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("a: '" + "${b} {} " * 500 + "}}}'\nb: x\n")
    assert resolve([tmp_path / "c.yaml"], environ={}).values["a"] == "x {} " * 500 + "}}}"


def test_a_thousand_values_that_refer_to_one_are_fine(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("root: /data\nall:\n" + "".join(f"  - ${{root}}/{i}\n" for i in range(1000)))
    assert resolve([tmp_path / "c.yaml"], environ={}).values["all"][999] == "/data/999"


def test_a_reference_to_itself_is_told_as_that(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("a: ${b}\nb: ${a}\n")
    with pytest.raises(ConfigError, match="a: cannot resolve"):
        resolve([tmp_path / "c.yaml"], environ={})
