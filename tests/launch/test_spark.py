"""What Spark needs, before anything is started."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from lightkit.errors import ConfigError
from lightkit.launch import spark
from lightkit.launch.plan import LaunchSettings, plan_launch
from lightkit.launch.spark import check_installed, count_slots

needs_spark = pytest.mark.skipif(
    find_spec("pyspark") is None or shutil.which("java") is None,
    reason="pyspark and Java are not installed",
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
    assert count_slots(master) == slots


def test_a_negative_number_stays_on_the_driver() -> None:
    for strategy, engine in (("horovod", "horovod"), ("ddp", "torchrun")):
        plan = plan_launch(
            LaunchSettings(engine="spark", processes=-4), strategy=strategy, processes=None
        )
        assert plan is not None
        assert (plan.engine, plan.processes) == (engine, 4)


@needs_spark
def test_a_missing_java_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"spark needs Java, 17 or newer.* JAVA_HOME"):
        check_installed("ddp")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"spark needs Java, 17 or newer.* JAVA_HOME"):
        check_installed("ddp")


def test_a_missing_pyspark_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install 'lightkit-train\[spark\]'"):
        check_installed("ddp")
