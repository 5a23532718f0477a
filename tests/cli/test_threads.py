"""How many threads each rank has."""

from __future__ import annotations

import os

import pytest

from tests.cli.conftest import House


def test_one_process_has_the_threads_that_the_config_says(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    house.resolved("-c", "small.yaml", "launch.threads=3")
    assert os.environ["OMP_NUM_THREADS"] == "3"
