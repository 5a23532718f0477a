"""Ranks on Ray: real ones in a Ray of this machine."""

from __future__ import annotations

import os
import signal
from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec
from pathlib import Path

import pytest

from lightkit.errors import ConfigError
from lightkit.launch import ray
from tests.cli.commands import ended, wait_for
from tests.launch.drivers import drive, driver, job, marked

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")


def test_a_missing_ray_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_version(_name: str) -> str:
        raise PackageNotFoundError

    monkeypatch.setattr(ray, "version", no_version)
    with pytest.raises(ConfigError, match=r"pip install 'lightkit\[ray\]'"):
        ray.check_installed()


@needs_ray
def test_the_package_lightning_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lightning.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="pip uninstall lightning"):
        ray.check_installed()


@pytest.mark.slow
@needs_ray
def test_a_rank_that_fails_once_too_often_ends_the_launch(tmp_path: Path) -> None:
    end = drive("ray", job(tmp_path, "fail=1"))
    assert end.code == 1
    assert "error: rank 1 ended with code 3; the log of Ray is" in end.err
    assert "Traceback" not in end.err


@pytest.mark.slow
@needs_ray
def test_sigterm_leaves_no_process(tmp_path: Path) -> None:
    asked = job(tmp_path, "wait")
    with driver("ray", asked) as process:
        assert wait_for(lambda: all((tmp_path / f"rank-{rank}-0.json").exists() for rank in (0, 1)), process)
        os.kill(process.pid, signal.SIGTERM)
        assert ended(process, 30).code == 1  # the seconds: six of grace, on a busy machine
        assert marked(asked) == []


@pytest.mark.slow
@needs_ray
def test_too_few_gpus_are_told_before_anything_waits(tmp_path: Path) -> None:
    end = drive("ray", job(tmp_path, gpus=True))
    assert end.code == 2
    assert "2 processes need a GPU each, but Ray finds 0 on this machine" in end.err


@pytest.mark.slow
@needs_ray
def test_ranks_that_do_not_arrive_are_named(tmp_path: Path) -> None:
    end = drive("ray", job(tmp_path, timeout_s=0.5))
    assert end.code == 1
    assert "error: rank 0, 1 was not started by Ray within launch.timeout_s, 0.5 s: 2 processes with 1 CPU" in end.err
