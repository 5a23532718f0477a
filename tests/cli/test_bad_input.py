"""Files that would take a machine down, or do what their author wants: an error in words, soon, and nothing else.

Measured on 2 cores of 2.0 GHz: 0.15 to 0.25 s and 54 MB each, at most 1.6 s and 66 MB, of which Python and what reads
configs take 0.15 s and 50 MB. Bounds here are for busy machines: they tell an error from an explosion.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import House

_MAX_RSS_MB = 500
_MAX_RATIO = 15  # to the processor time for a file of one line, about 0.15 s

RUN = "['touch owned']"
LAUGHS = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12))
MAPPINGS = "".join(f"a{i}: &a{i} {{x: *a{i - 1}, y: *a{i - 1}}}\n" for i in range(1, 40))
MERGES = "".join(f"a{i}: &a{i}\n  <<: [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12))
TEXTS = "".join(f"a{i}: {f'${{a{i - 1}}}' * 10}\n" for i in range(1, 12))
REFERENCES = "".join(f"a{i}: {{x: '${{a{i - 1}}}', y: '${{a{i - 1}}}'}}\n" for i in range(1, 40))
LONG = "expected a config of at most 1000 kB, got a longer file; "
DEEP = "nested more than 100 levels deep"
MANY = "it holds more than 20000 values once its aliases are expanded"
HOSTILE: dict[str, tuple[str | bytes, str]] = {
    "5 MB list": ("a: [" + "1, " * 1_700_000 + "1]\n", LONG),
    "5 MB text": ("a: " + "x" * 5_000_000 + "\n", LONG),
    "5 MB of keys": ("".join(f"key_{i}: {i}\n" for i in range(330_000)), LONG),
    "5 MB of comments": ("# nothing\n" * 500_000 + "a: 1\n", LONG),
    "a list just short enough": ("a: [" + "1," * 400_000 + "1]\n", MANY),
    "keys just few enough": (
        "".join(f"k{i}: 1\n" for i in range(19_000)),
        "error: the config: expected at most 1000 keys at the top",
    ),
    "10000 lists": ("[" * 10_000 + "]" * 10_000, DEEP),
    "10000 mappings": ("{a: " * 10_000 + "}" * 10_000, DEEP),
    "10000 dashes": ("- " * 10_000 + "1", DEEP),
    "10000 question marks": ("? " * 10_000 + "1", DEEP),
    "blocks": ("".join(" " * level + "a:\n" for level in range(1_300)), DEEP),
    "laughs in lists": ("a0: &a0 [x, x, x]\n" + LAUGHS, MANY),
    "laughs in mappings": ("a0: &a0 {x: 1, y: 2}\n" + MAPPINGS, MANY),
    "laughs in merge keys": ("a0: &a0 {x: 1}\n" + MERGES, MANY),
    "laughs in interpolated text": ("a0: xxxxxxxxxx\n" + TEXTS, "more than 10000 times, or too deeply"),
    "laughs in interpolated mappings": ("a0: {x: 1}\n" + REFERENCES, "more than 10000 times, or too deeply"),
    "a chain of interpolations": (
        "".join(f"a{i}: ${{a{i + 1}}}\n" for i in range(3_000)) + "a3000: 1\n",
        "more than 10000 times, or too deeply",
    ),
    "nested interpolations": (
        "a: '" + "${oc.env:X," * 2_000 + "}" * 2_000 + "'\n",
        "it nests more than 20 levels deep",
    ),
    "python as a value": (
        f"a: !!python/object/apply:os.system {RUN}\n",
        "the tag !!python/object/apply:os.system is not",
    ),
    "python as a key": (f"? !!python/object/apply:os.system {RUN}\n: 1\n", "a key must be a plain value"),
    "python in a list": (f"a: [!!python/object/new:os.system {RUN}]\n", "the tag !!python/object/new:os.system is not"),
    "random bytes": (random.Random(1).randbytes(100_000), "expected UTF-8 text, got the byte 0x"),
    "a program": (b"\x7fELF\x02\x01\x01\0", r"the character '\x7f' is not allowed in YAML"),
    "control characters": (bytes(range(1, 32)) * 10, r"the character '\x01' is not allowed in YAML"),
    "null bytes": (b"trainer:\n  max_epochs: 3\0\n", r"the character '\x00' is not allowed in YAML"),
    "UTF-16": ("a: 1\n".encode("utf-16"), "expected UTF-8 text, got the byte 0xff at line 1, column 1"),
    "nothing": ("", "model: missing; bad.yaml sets nothing"),
    "a long key": ("k" * 100_000 + ": 1\n", "a key is longer than 1024 characters"),
    "a long class": ("model: " + "a." * 50_000 + "Net\n", "model.class_path: expected the name of a class, got 'a.a."),
    "a long number": ("trainer: {max_epochs: " + "9" * 10_000 + "}\n", "expected a number of at most 1000 characters"),
    "a long value": ("trainer: {max_epochs: " + "x" * 100_000 + "}\n", "expected an integer or null, got 'xxx"),
}


# In a process of its own, because a child's peak begins with that of the process which forked it, here one with torch.
MEASURED = """
import json, os, subprocess, sys
with open("said", "w") as said:
    process = subprocess.Popen([sys.executable, "-m", "lightkit", "check", "-c", "bad.yaml"], stdout=said, stderr=said)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
print(json.dumps([process.returncode, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024]))
"""


def checked(folder: Path, content: str | bytes) -> tuple[int, str, float, float]:
    """Check a file in a process of its own; give the exit code, the words, the processor seconds and the peak in MB."""
    (folder / "bad.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    done = subprocess.run([sys.executable, "-c", MEASURED], cwd=folder, capture_output=True, text=True, check=True)
    code, seconds, rss_mb = json.loads(done.stdout)
    words = (folder / "said").read_text()
    (folder / "said").unlink()
    return code, words, seconds, rss_mb


@pytest.fixture(scope="module")
def seconds_for_one_line(tmp_path_factory: pytest.TempPathFactory) -> float:
    """Processor time that this machine takes for a file of one line."""
    return min(checked(tmp_path_factory.mktemp("tiny"), "a: 1\n")[2] for _ in range(3))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "wait4"), reason="needs os.wait4 to measure one process")
@pytest.mark.parametrize(("content", "says"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_an_error_soon_and_in_little_memory(
    content: str | bytes, says: str, tmp_path: Path, seconds_for_one_line: float
) -> None:
    code, words, seconds, rss_mb = checked(tmp_path, content)
    assert code == 2, words
    assert words.startswith("error: ")
    assert says in words
    assert "Traceback" not in words
    assert len(words) < 20_000
    assert [path.name for path in tmp_path.iterdir()] == ["bad.yaml"]
    assert rss_mb < _MAX_RSS_MB
    assert seconds < _MAX_RATIO * seconds_for_one_line


def test_thousands_of_files_that_extend_one_another_are_an_error(house: House) -> None:
    for number in range(3_000):
        house.write(f"c{number}.yaml", f"extends: c{number + 1}\n")
    house.write("c3000.yaml", "model: Regressor\n")
    done = house("check", "-c", "c0.yaml")
    assert done.code == 2
    assert done.err == "error: c51.yaml: more than 50 files extend one another\n"


def test_a_flag_of_a_megabyte_is_told_in_a_few_words(house: House) -> None:
    done = house("check", "-c", "small.yaml", "--trainer.max_epochs=" + "x" * 1_000_000, "-" + "y" * 1_000_000)
    assert done.code == 2
    assert "trainer.max_epochs: expected an integer or null, got 'xxx" in done.err
    assert "unexpected argument '-yyy" in done.err
    assert len(done.err) < 5_000


TERMINAL = r"""
run: {name: "a\e[2J\a/b"}
trainer: {"max\e[31m": 3, max_epochs: "\e[31m\r\u202e\u2066ten"}
model: "\eN"
"""


def test_what_a_terminal_would_obey_does_not_reach_it(house: House) -> None:
    house.write("bad.yaml", TERMINAL)
    done = house("check", "-c", "bad.yaml", "--trainer.min_epochs=\x1b[31m\u202eten", "--\x1b[2J=3")
    assert done.code == 2
    assert done.err.count("error: ") == 6
    assert all(letter.isprintable() for letter in done.err.replace("\n", ""))
    assert r"trainer.max\x1b[31m: the trainer has no such argument" in done.err


SHOWN = {
    "Chinese": ("trainer: {a: 二, max_epochs: 三十}", "trainer: {a: 二, max_epochs: 三十}", 29, 4),
    "emoji": ("trainer: {max_epochs: 🌸}  # 🌸", "trainer: {max_epochs: 🌸}  # 🌸", 22, 2),
    "Hebrew": ("trainer: {max_epochs: מספר}", "trainer: {max_epochs: מספר}", 22, 4),
    "accents in two": ("trainer: {max_epochs: e\u0301x}", "trainer: {max_epochs: e\u0301x}", 22, 2),
    "tabs": ("trainer: {max_epochs:\t\tten\t}", "trainer: {max_epochs:  ten }", 23, 3),
    "byte order mark": ("\ufefftrainer: {max_epochs: ten}", "trainer: {max_epochs: ten}", 22, 3),
    "carriage returns": ("trainer: {max_epochs: ten}\r", "trainer: {max_epochs: ten}", 22, 3),
}


@pytest.mark.parametrize(("text", "line", "column", "num_carets"), SHOWN.values(), ids=SHOWN)
def test_carets_stand_under_the_value(text: str, line: str, column: int, num_carets: int, house: House) -> None:
    (house.folder / "bad.yaml").write_bytes(f"{text}\nmodel: Regressor\n".encode())
    said = house("check", "-c", "bad.yaml").err.split("error: trainer.max_epochs")[1].splitlines()
    assert said[2] == f"    1 | {line}"
    assert said[3] == "      | " + " " * column + "^" * num_carets


def test_a_long_line_is_cut_around_its_caret(house: House) -> None:
    many = ", ".join(f"max_{i}: 1" for i in range(60))
    house.write("bad.yaml", f"model: Regressor\nrun: {{{many}, name: [1], {many.replace('max', 'min')}}}\n")
    said = house("check", "-c", "bad.yaml").err.split("error: run.name: ")[1].splitlines()
    assert len(said[2]) <= 170
    start = said[3].index("^")
    assert said[2][start : start + 3] == "[1]"
