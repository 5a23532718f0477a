"""The command line of the benches: what it refuses, and what becomes of what it prints."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.scripts.test_bench_frame import ENVIRONMENT, FOUND, SCRIPTS

README = "before\n<!-- bench -->\nold\n<!-- /bench -->\nafter\n"


def _bench(*words: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **settings}
    return subprocess.run([SCRIPTS / "bench", *words], text=True, check=False, env=ENVIRONMENT, **pipes)


def _results(folder: Path) -> Path:
    row = {"what": "all", "of": "lightkit", "to": "loop", "unmeasured": "no time", "reach": None}
    folder.joinpath("memory.json").write_text(json.dumps({**FOUND, "comparisons": [row]}), encoding="utf-8")
    return folder


@pytest.mark.parametrize("is_written", [False, True], ids=["printed", "written"])
@pytest.mark.parametrize("kind", ["missing", "empty", "broken", "other"])
def test_no_table_is_made_of_no_results(kind: str, is_written: bool, tmp_path: Path) -> None:
    readme, folder = tmp_path / "README.md", tmp_path / "results"
    readme.write_text(README, encoding="utf-8")
    if kind != "missing":
        folder.mkdir()
    if kind in ("broken", "other"):
        folder.joinpath("memory.json").write_text({"broken": "{", "other": "[1]"}[kind], encoding="utf-8")
    done = _bench("table", "--results", str(folder), "--readme", str(readme), *["--write"] * is_written)
    assert (done.returncode, done.stdout) == (2, "")
    file = folder / "memory.json"
    assert done.stderr.startswith(
        {
            "missing": f"error: {folder} is no folder; ",
            "empty": f"error: {folder} holds no results, such as step.json; ",
            "broken": f"error: {file}: no results of a bench",
            "other": f"error: {file}: no results of a bench",
        }[kind]
    )
    assert readme.read_text(encoding="utf-8") == README


def test_a_readme_that_is_not_there_is_told(tmp_path: Path) -> None:
    done = _bench("table", "--results", str(_results(tmp_path)), "--readme", str(tmp_path / "no.md"), "--write")
    assert (done.returncode, done.stderr) == (2, f"error: {tmp_path / 'no.md'} is no file\n")


def test_an_option_cut_short_is_refused_and_writes_nothing(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(README, encoding="utf-8")
    done = _bench("table", "--results", str(_results(tmp_path)), "--readme", str(readme), "--writ")
    assert done.returncode == 2
    assert "unrecognized arguments: --writ" in done.stderr
    assert readme.read_text(encoding="utf-8") == README


def test_no_bench_takes_an_option_cut_short(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    listing = importlib.import_module("benches.listing")
    for name in listing.BENCHES:
        with pytest.raises(SystemExit):
            listing.runner(name)(["--quic", "--repeat=0"])  # the second is refused before anything is measured
    refused = capsys.readouterr().err.splitlines()
    assert sum("unrecognized arguments: --quic" in line for line in refused) == len(listing.BENCHES)


def test_all_takes_no_option_cut_short() -> None:
    done = _bench("all", "--quic", "--nothing")
    assert done.returncode == 2
    assert "unrecognized arguments: --quic --nothing" in done.stderr


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("stepp", "'stepp' is no bench; did you mean 'step'?"),
        ("tabel", "'tabel' is no bench; did you mean 'table'?"),
        ("zzz", "'zzz' is no bench\n"),
        ("--hepl", "'--hepl' is no bench; did you mean '--help'?"),
    ],
)
def test_an_unknown_bench_is_named_with_its_near_names(word: str, says: str) -> None:
    done = _bench(word)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {says}")
    assert "benches: step, end_to_end," in done.stderr
    assert len(done.stderr.splitlines()) == 2


def test_help_is_what_was_asked_for_and_no_words_are_a_mistake() -> None:
    asked, bare = _bench("--help"), _bench()
    assert (asked.returncode, asked.stderr) == (0, "")
    assert asked.stdout.startswith("usage: scripts/bench BENCH ")
    assert (bare.returncode, bare.stdout, bare.stderr) == (2, "", asked.stdout)


@pytest.mark.parametrize("words", [("table",), ("--help",)], ids=["table", "help"])
def test_a_reader_that_leaves_is_no_mishap(words: tuple[str, ...]) -> None:
    gone, pipe = os.pipe()
    os.close(gone)
    done = _bench(*words, stdout=pipe)
    os.close(pipe)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("words", [("table",), ("--help",)], ids=["table", "help"])
def test_a_full_standard_output_is_told(words: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        done = _bench(*words, stdout=full)
    assert (done.returncode, done.stderr) == (
        74,
        "error: standard output cannot be written: No space left on device\n",
    )
