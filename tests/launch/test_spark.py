"""What Spark needs, before anything is started."""

from __future__ import annotations

import os
import shutil
from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec
from pathlib import Path

import pytest

from lightkit.errors import ConfigError
from lightkit.launch import spark
from lightkit.launch.spark import check_installed, driver_command, most_slots
from tests.launch.drivers import job

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
