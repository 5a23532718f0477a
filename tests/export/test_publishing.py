"""Publishing: a file has its final name when it is whole, and a kill leaves none that is half."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lightkit.errors import ConfigError, RunLocked
from lightkit.export.publishing import aside, check_free, held, publish, withdraw


def write(place: Path, name: str, text: str, data: str | None = None) -> Path:
    file = place / name
    file.write_text(text)
    if data is not None:
        (place / f"{name}.data").write_text(data)
    return file


@pytest.mark.parametrize("old", [None, "old"], ids=["first", "again"])
@pytest.mark.parametrize("data", [None, "weights"], ids=["one file", "external data"])
def test_a_file_and_its_data_get_their_names(tmp_path: Path, old: str | None, data: str | None) -> None:
    path = tmp_path / "model.onnx"
    if old is not None:
        write(tmp_path, "model.onnx", old, data="old weights")

    with aside(path) as place:
        publish(write(place, "model.onnx", "new", data), path)

    assert path.read_text() == "new"
    beside = tmp_path / "model.onnx.data"
    assert (beside.read_text() if beside.exists() else None) == data
    assert {file.name for file in tmp_path.iterdir()} <= {"model.onnx", "model.onnx.data"}


def test_a_failure_leaves_the_old_file_and_nothing_aside(tmp_path: Path) -> None:
    path = write(tmp_path, "model.pt2", "old")

    with pytest.raises(NotADirectoryError), aside(path) as place:
        (write(place, "model.pt2", "half") / "more").write_text("")

    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["model.pt2"]


def test_withdrawing_takes_the_data_too(tmp_path: Path) -> None:
    path = write(tmp_path, "model.onnx", "old", data="weights")

    assert withdraw(path)
    assert not withdraw(path)
    assert list(tmp_path.iterdir()) == []


def test_a_second_export_is_told_to_wait(tmp_path: Path) -> None:
    with held(tmp_path), pytest.raises(RunLocked, match=r"Another export is writing to .*Try again"), held(tmp_path):
        pass
    with held(tmp_path):
        pass


def test_a_folder_in_use_is_known_before_the_work(tmp_path: Path) -> None:
    check_free(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    with held(tmp_path), pytest.raises(RunLocked, match=r"Another export is writing to"):
        check_free(tmp_path)
    check_free(tmp_path)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigError, match=r"--output: cannot write to .*/file/export: Not a directory"):
        held(tmp_path / "file" / "export").__enter__()


_KILLED = """
import os, sys
from pathlib import Path
from lightkit.export import publishing
from lightkit.export.publishing import aside, held, publish

folder, moment = Path(sys.argv[1]), int(sys.argv[2])
seen = -1

def counted(what):
    def call(*args, **kwargs):
        global seen
        seen += 1
        if seen == moment:
            print("now", flush=True)
            sys.stdin.read()  # until it is killed
        return what(*args, **kwargs)
    return call

Path.replace, Path.unlink = counted(Path.replace), counted(Path.unlink)
publishing.flush = counted(publishing.flush)
with held(folder), aside(folder / "model.onnx") as place:
    (place / "file").mkdir()
    file = place / "file" / "model.onnx"
    (place / "file" / "model.onnx.data").write_text("new weights")
    file.write_text("ne")
    counted(len)("")
    file.write_text("new")
    publish(file, folder / "model.onnx")
print("done", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment", range(8), ids=["half written", "flush", "flush data", "old", "old data", "data", "model", "folder"]
)
def test_a_kill_at_any_moment_leaves_no_model_with_the_weights_of_another(tmp_path: Path, moment: int) -> None:
    write(tmp_path, "model.onnx", "old", data="old weights")
    with subprocess.Popen(
        [sys.executable, "-c", _KILLED, str(tmp_path), str(moment)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "now\n"
        child.send_signal(signal.SIGKILL)
        child.wait()

    path = tmp_path / "model.onnx"
    if path.exists():
        assert (tmp_path / "model.onnx.data").read_text() == f"{path.read_text()} weights"
        assert path.read_text() in ("old", "new")
    else:
        assert moment > 3  # after the old one went, not before
    with held(tmp_path):
        assert not list(tmp_path.glob(".*.aside"))
