"""Ranks on Spark: real ones in `local[2]` and on a cluster of two workers, with Java."""

from __future__ import annotations

import os
import shutil
import signal
from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec
from pathlib import Path

import pytest

from lightkit.errors import ConfigError
from lightkit.launch import spark
from lightkit.launch.spark import check_installed, driver_command, most_slots
from tests.cli.commands import ended, wait_for
from tests.launch.drivers import drive, driver, job, marked, seen

needs_spark = pytest.mark.skipif(
    find_spec("pyspark") is None or shutil.which("java") is None, reason="pyspark and Java are not installed"
)


@pytest.mark.parametrize(
    ("master", "slots"),
    [
        ("local", 1),
        ("local[3]", 3),
        ("local[*]", os.cpu_count()),
        ("local[4,2]", 4),
        ("local-cluster[2,3,1024]", 6),
        ("spark://host:7077", None),
        ("yarn", None),
    ],
)
def test_the_slots_of_a_master_on_this_machine_are_known(master: str, slots: int | None) -> None:
    assert most_slots(master) == slots


def test_a_negative_number_stays_on_the_driver(tmp_path: Path) -> None:
    horovod = driver_command(job(tmp_path, "fit", processes=-4, strategy="horovod"))
    assert horovod[1:7] == ["-m", "horovod.runner.launch", "--gloo", "-np", "4", horovod[0]]
    assert driver_command(job(tmp_path, "fit", processes=-4))[1:6] == [
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"),
    ]


def _java(folder: Path, says: str) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n", encoding="utf-8")
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("says", "words"),
    [
        ('openjdk version "11.0.2" 2019-01-15', "runs on Java 17 or newer, but .*java is Java 11"),
        ('java version "1.8.0_202"', "is Java 8"),
    ],
    ids=["11", "8"],
)
@needs_spark
def test_an_old_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, words: str) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_java(tmp_path / "jdk", says)))
    with pytest.raises(ConfigError, match=words):
        check_installed(job(tmp_path))


@needs_spark
def test_a_missing_java_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"spark needs Java; pyspark .* runs on Java 17 or newer.* JAVA_HOME"):
        check_installed(job(tmp_path))


def test_a_missing_pyspark_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_version(_name: str) -> str:
        raise PackageNotFoundError

    monkeypatch.setattr(spark, "version", no_version)
    with pytest.raises(ConfigError, match=r"pip install 'lightkit\[spark\]'"):
        check_installed(job(tmp_path))


@pytest.mark.slow
@needs_spark
def test_two_ranks_join_in_a_barrier_stage_of_a_cluster(tmp_path: Path) -> None:
    end = drive("spark", job(tmp_path, "fit", "a b", master="local-cluster[2,1,1024]", threads=3))
    assert end.code == 0, end.err
    assert (end.out, end.err) == ("", "")
    for rank in (0, 1):
        found = seen(tmp_path, rank)
        assert found["total"] == 3.0
        assert found["words"] == ["fit", "a b"]
        assert found["OMP_NUM_THREADS"] == "3"
        assert found["folder"] == str(tmp_path)
        assert (found["LOCAL_RANK"], found["LOCAL_WORLD_SIZE"], found["GROUP_WORLD_SIZE"]) == ("0", "1", "2")
        assert found["TORCHELASTIC_RUN_ID"].startswith("spark-")


@pytest.mark.slow
@needs_spark
def test_a_rank_that_fails_ends_the_launch(tmp_path: Path) -> None:
    end = drive("spark", job(tmp_path, "fail=1", "wait", master="local[2]"))
    assert end.code == 1
    assert "error: rank 1 ended with code 3; the log of Spark is" in end.err
    assert "rank 1 is out of stock" in end.err
    assert "Traceback" not in end.err


@pytest.mark.slow
@needs_spark
def test_too_few_slots_are_told_before_anything_starts(tmp_path: Path) -> None:
    asked = job(tmp_path, processes=3, master="local[2]", timeout_s=600)
    end = drive("spark", asked)
    assert end.code == 2
    assert not asked.launch.exists()
    assert "3 processes need 3 slots of Spark at a time, but local[2] has 2" in end.err


@pytest.mark.slow
@needs_spark
def test_sigterm_leaves_no_process(tmp_path: Path) -> None:
    asked = job(tmp_path, "wait", master="local[2]")
    with driver("spark", asked) as process:
        assert wait_for(lambda: all((tmp_path / f"rank-{rank}-0.json").exists() for rank in (0, 1)), process)
        os.kill(process.pid, signal.SIGTERM)
        assert ended(process, 30).code == 1  # the seconds: six of grace, on a busy machine
        assert marked(asked) == []
