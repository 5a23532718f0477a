"""Reading YAML files and scalars: places, the errors of each kind of broken file, and dumps."""

from __future__ import annotations

import tracemalloc
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonargparse import get_loader

from lightkit.config import Origin, dump_yaml, read_file, read_scalar, resolve
from lightkit.config.tree import Leaf, to_plain, walk
from lightkit.config.yaml_reader import TOO_LARGE
from lightkit.errors import ConfigError


def origins_in(folder: Path, text: str) -> dict[tuple[object, ...], Origin]:
    (folder / "x.yaml").write_text(text, encoding="utf-8")
    return {path: node.origin for path, node in walk(read_file(folder / "x.yaml"))}


def said_about(folder: Path, content: str | bytes) -> str:
    (folder / "x.yaml").write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ConfigError) as error:
        read_file(folder / "x.yaml")
    return str(error.value).replace(f"{folder}/", "")


def test_each_value_knows_its_line_and_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    origins = origins_in(
        tmp_path, "# flowers\ntrainer:\n  max_epochs: ten\n  gpus: [0, é, 'x y']\n"
    )
    assert origins["trainer", "max_epochs"] == Origin(
        "file", "x.yaml", tmp_path / "x.yaml", 3, 15, 18
    )
    assert str(origins["trainer", "gpus", 2]) == "x.yaml:4:16"
    assert origins["trainer", "max_epochs"].render() == (
        "  --> x.yaml:3:15\n"
        "    3 |   max_epochs: ten\n"
        "      |               ^^^"
    )  # fmt: skip
    assert origins["trainer", "max_epochs"].at_key().render() == (
        "  --> x.yaml:3:3\n"
        "    3 |   max_epochs: ten\n"
        "      |   ^^^^^^^^^^"
    )  # fmt: skip


def test_a_value_of_many_lines_is_shown_by_its_first(tmp_path: Path) -> None:
    origins = origins_in(tmp_path, "a: 'one\n  two'\nb:\n  c: 1\n  d: 2\ne: |\n  text\n")
    assert origins["a",].render().splitlines()[1:] == ["    1 | a: 'one", "      |    ^^^^"]
    assert origins["b",].render().splitlines()[1:] == ["    4 |   c: 1", "      |   ^"]


def test_a_long_line_is_cut_around_its_value(tmp_path: Path) -> None:
    place, line, carets = (
        origins_in(tmp_path, f"a: [{'1, ' * 200}here]")["a", 200].render().splitlines()
    )
    assert place.endswith("x.yaml:1:605")
    assert len(line) < 180
    assert line[carets.index("^") : carets.rindex("^") + 1] == "here"


def test_an_escape_code_in_a_file_does_not_reach_the_terminal() -> None:
    origin = Origin("file", "x", None, 1, 1, 4, "a\x1b[31m: 1")
    assert "\x1b" not in origin.render()


def test_places_do_not_care_for_line_ends_and_byte_order_marks(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes(b"\xef\xbb\xbfa: 1\r\nb:\r\n  c: 2\r\n")
    tree = read_file(tmp_path / "x.yaml")
    assert to_plain(tree) == {"a": 1, "b": {"c": 2}}
    assert [
        (str(node.origin)[-3:], node.value) for _, node in walk(tree) if isinstance(node, Leaf)
    ] == [("1:4", 1), ("3:6", 2)]


BROKEN: dict[str, tuple[str | bytes, str]] = {
    "tab": (
        "a: 1\n\tb: 2",
        (
            "x.yaml: not valid YAML: lines are indented with spaces, and a tab stands here\n"
            "  --> x.yaml:2:1\n    2 |  b: 2\n      | ^"
        ),
    ),
    "unclosed": (
        "a: 1\nb: [1,\n",
        (
            "x.yaml: not valid YAML: the [ that opens here is never closed\n  --> x.yaml:2:4\n    2"
            " | b: [1,\n      |    ^"
        ),
    ),
    "two-colons": (
        "a: b: c",
        (
            "x.yaml: not valid YAML: a second colon in one line; put quotes around text that holds"
            " one\n  --> x.yaml:1:5"
        ),
    ),
    "undefined-alias": (
        "a: *b",
        "x.yaml: not valid YAML: no anchor of this name stands above; put quotes",
    ),
    "two-documents": (
        "a: 1\n---\nb: 1",
        "x.yaml: not valid YAML: a config is one document, and --- begins another\n",
    ),
    "control-character": (
        "a: 1\nb: \x01",
        "x.yaml: the character '\\x01' is not allowed in YAML\n  --> x.yaml:2:4",
    ),
    "not-utf-8": (
        b"a: 1\nb: \xff",
        (
            "x.yaml: expected UTF-8 text, got the byte 0xff at line 2,"
            " column 4; save the file as UTF-8"
        ),
    ),
    "utf-16": (
        "a: 1".encode("utf-16"),
        "x.yaml: expected UTF-8 text, got the byte 0xff at line 1, column 1; save",
    ),
    "list": ("- 1", "x.yaml: expected a mapping of keys to values, got a list\n  --> x.yaml:1:1"),
    "scalar": (
        "abc",
        (
            "x.yaml: expected a mapping of keys to values, got the single"
            " value 'abc'\n  --> x.yaml:1:1"
        ),
    ),
    "unsafe-tag": (
        "a: !!python/object/apply:os.system [ls]",
        (
            "x.yaml: the tag !!python/object/apply:os.system is not allowed here; configs hold"
            " plain YAML values, and classes are named by class_path\n  --> x.yaml:1:4\n"
        ),
    ),
    "unsafe-scalar-tag": (
        "a: !env HOME",
        "x.yaml: the tag !env is not allowed here; configs hold plain YAML values",
    ),
    "wrong-tag": (
        "a: !!int ten",
        (
            "x.yaml: cannot read 'ten' as an integer; put quotes around"
            " it if it is text\n  --> x.yaml:"
        ),
    ),
    "wrong-collection-tag": ("a: !!map [1]", "x.yaml: the tag !!map is not allowed here"),
    "duplicate-key": (
        "a:\n  b: 1\n  c: 2\n  b: 3\n",
        (
            "x.yaml: the key 'b' stands twice in one mapping\n"
            "  --> x.yaml:2:3\n    2 |   b: 1\n      |   ^\n"
            "  --> x.yaml:4:3\n    4 |   b: 3\n      |   ^"
        ),
    ),
    "duplicate-merge-key": (
        "<<: {a: 1}\n<<: {b: 1}",
        "x.yaml: the key '<<' stands twice in one mapping\n  --> x.yaml:1:1",
    ),
    "merge-of-a-list": (
        "<<: [1]",
        "x.yaml: << takes mappings to merge, such as *anchor\n  --> x.yaml:1:6",
    ),
    "key-is-a-list": (
        "? [1]\n: 2",
        "x.yaml: a key must be a plain value, not a mapping or a list\n  --> x.yaml:1:3",
    ),
    "key-is-null": (
        "a: {null: 2}",
        "x.yaml: a key is null; put quotes around it if it is text\n  --> x.yaml:1:5",
    ),
    "alias-in-its-anchor": (
        "a: &a [*a]",
        "x.yaml: an alias stands inside its own anchor\n  --> x.yaml:1:4",
    ),
    "deep-flow": ("[" * 10_000, f"x.yaml: {TOO_LARGE}\n  --> x.yaml:1:101\n"),
    "deep-mappings": ("{a: " * 10_000, f"x.yaml: {TOO_LARGE}\n  --> x.yaml:1:401\n"),
    "deep-lists": ("- " * 10_000, f"x.yaml: {TOO_LARGE}\n  --> x.yaml:1:201\n"),
    "deep-block": (
        "\n".join(" " * level + "a:" for level in range(1_000)),
        f"x.yaml: {TOO_LARGE}\n  --> x.yaml:101:101\n",
    ),
    "deep-by-aliases": (
        "a: &a " + "[" * 60 + "]" * 60 + "\nb: " + "[" * 60 + "*a" + "]" * 60,
        f"x.yaml: {TOO_LARGE}\n",
    ),
}


@pytest.mark.parametrize(("content", "says"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_file_says_where(content: str | bytes, says: str, tmp_path: Path) -> None:
    assert said_about(tmp_path, content).startswith(says)


def test_a_billion_laughs_end_at_the_limit(tmp_path: Path) -> None:
    laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    laughs += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10))
    tracemalloc.start()
    try:
        says = said_about(tmp_path, laughs)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert says.startswith(f"x.yaml: {TOO_LARGE}\n")
    assert peak < 200 * 2**20


def test_a_missing_file_names_the_near_ones(tmp_path: Path) -> None:
    for name in ("flowers.yaml", "fashion_mnist.yaml", "flower.txt"):
        (tmp_path / name).touch()
    with pytest.raises(ConfigError) as error:
        read_file(tmp_path / "flwers.yaml")
    assert str(error.value) == f"{tmp_path}/flwers.yaml: no such file; did you mean 'flowers.yaml'?"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            ".",
            (
                "{tmp}: expected a YAML file, got a folder; `lightkit init --data {tmp}` writes a"
                " config for the images in it"
            ),
        ),
        ("no/x.yaml", "{tmp}/no/x.yaml: no such file: there is no folder {tmp}/no"),
        ("-", "{tmp}/-: no such file; -c /dev/stdin reads a config from standard input"),
        ("a\0b", r"{tmp}/a\x00b: cannot be read: embedded null byte"),
        ("x" * 300, "{tmp}/" + "x" * 300 + ": cannot be read: File name too long"),
    ],
    ids=["folder", "no-folder", "standard-input", "null-byte", "long-name"],
)
def test_what_is_no_file_says_so(name: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        read_file(tmp_path / name)
    assert str(error.value) == says.format(tmp=tmp_path)


@pytest.mark.parametrize(
    ("extends", "says"),
    [
        ("nope",
         "{tmp}/x.yaml extends 'nope', but {tmp}/nope.yaml does not exist; files next to it: base, "
         "logger/mlflow, x"),
        ("logger/mlfow",
         "{tmp}/x.yaml extends 'logger/mlfow', but {tmp}/logger/mlfow.yaml does not exist; did you "
         "mean 'logger/mlflow'?\n  --> {tmp}/x.yaml:1:10\n    1 | extends: logger/mlfow\n      |   "
         "       ^^^^^^^^^^^^"),
        ("x",
         "{tmp}/x.yaml extends {tmp}/x.yaml: a file cannot extend itself\n  --> "
         "{tmp}/x.yaml:1:10\n"),
        ("base",
         "{tmp}/x.yaml extends {tmp}/base.yaml extends {tmp}/x.yaml: a file cannot extend itself\n "
         " --> {tmp}/base."),
        ("[3]",
         "{tmp}/x.yaml: extends takes file names, such as [base, logger/mlflow]\n  --> "
         "{tmp}/x.yaml:1:11\n"),
    ],
    ids=["missing", "near", "itself", "cycle", "number"],
)  # fmt: skip
def test_wrong_extends(extends: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "logger").mkdir()
    (tmp_path / "logger/mlflow.yaml").touch()
    (tmp_path / "base.yaml").write_text("extends: x")
    (tmp_path / "x.yaml").write_text(f"extends: {extends}")
    with pytest.raises(ConfigError) as error:
        resolve([tmp_path / "x.yaml"], environ={})
    assert str(error.value).startswith(says.format(tmp=tmp_path))


@pytest.mark.parametrize(
    "value",
    ["1" + ":59" * 3000, "9" * 5000, "0x" + "f" * 5000],
    ids=["base-60", "decimal", "hexadecimal"],
)
def test_a_number_that_cannot_be_written_is_refused(tmp_path: Path, value: str) -> None:
    said = said_about(tmp_path, f"a: {value}")
    assert said.startswith("x.yaml: cannot read '")
    assert "'... as an integer" in said


NUMBERS_AND_ALIKE = [
    "1e-3", "1E5", "1e+3", "1.", ".5", ".5e-3", ".5e3", "-.5", "+1.5", "1_000", "1_0.5", "0x1F",
    "010", "0o10", "0b11", "1:30", "1:30.5", ".inf", "-.inf", "+.INF", ".nan", "inf", "nan", "1e",
    "e5", "-", "+", ".", "~", "null", "Null", "yes", "No", "on", "OFF", "true", "True", "y",
    "2026-11-20", "12:30:45", "text", "0", "-0", "007", "1.2.3", "1-2",
    "=", "9" * 5000,
]  # fmt: skip


def read_by_jsonargparse(text: str) -> Any:
    try:
        return get_loader("yaml")(text)
    except (ValueError, yaml.YAMLError):
        return text


def same(first: Any, second: Any) -> bool:
    return type(first) is type(second) and (
        first == second or (first != first and second != second)
    )


@pytest.mark.parametrize("text", NUMBERS_AND_ALIKE)
def test_a_scalar_is_what_jsonargparse_makes_of_it(text: str) -> None:
    theirs = read_by_jsonargparse(text)
    assert same(read_scalar(text), text if isinstance(theirs, (list, dict)) else theirs)


@settings(derandomize=True)
@given(st.text("0123456789.eE+-_xinfa", min_size=1, max_size=8))
def test_any_number_is_what_jsonargparse_makes_of_it(text: str) -> None:
    theirs = read_by_jsonargparse(text)
    assert isinstance(theirs, (list, dict)) or same(read_scalar(text), theirs)


@pytest.mark.parametrize("text", NUMBERS_AND_ALIKE)
def test_text_that_looks_like_a_number_stays_text(text: str) -> None:
    assert get_loader("yaml")(dump_yaml({"a": {"b": text}})) == {"a": {"b": text}}


def test_a_dump_keeps_order_and_has_no_aliases() -> None:
    shared = [1, 2]
    assert (
        dump_yaml({"b": shared, "a": shared, "c": (1.5, PurePosixPath("x/y")), "d": "é"})
        == "b:\n- 1\n- 2\na:\n- 1\n- 2\nc:\n- 1.5\n- x/y\nd: é\n"
    )
