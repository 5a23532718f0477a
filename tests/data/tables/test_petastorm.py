"""Where petastorm does not work, PetastormTable says so at once, and names what does."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lightkit.data import PetastormTable
from lightkit.errors import ConfigError


def have(monkeypatch: pytest.MonkeyPatch, versions: Mapping[str, str | None]) -> None:
    """Let these versions be installed."""

    def version(package: str) -> str:
        found = versions[package]
        if found is None:
            raise metadata.PackageNotFoundError(package)
        return found

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(pa, "__version__", versions["pyarrow"])
    monkeypatch.setattr(np, "__version__", versions["numpy"])


WORKS = {"petastorm": "0.13.1", "pyarrow": "14.0.2", "numpy": "1.26.4"}


@pytest.mark.parametrize(
    ("versions", "says"),
    [
        ({"petastorm": None}, "found petastorm not installed, pyarrow 14.0.2, numpy 1.26.4"),
        ({"pyarrow": "25.0.1"}, "found petastorm 0.13.1, pyarrow 25.0.1, numpy 1.26.4"),
        ({"numpy": "2.0.0"}, "found petastorm 0.13.1, pyarrow 14.0.2, numpy 2.0.0"),
    ],
    ids=["no_petastorm", "newer_pyarrow", "newer_numpy"],
)
def test_versions_that_do_not_fit_are_reported_with_what_reads_the_same_files(
    versions: dict[str, str | None], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    have(monkeypatch, {**WORKS, **versions})
    with pytest.raises(
        ConfigError, match=r"lightkit\.data\.Table, which reads the same Parquet files"
    ) as caught:
        PetastormTable("nowhere")
    assert says in str(caught.value)


def test_those_that_fit_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, WORKS)
    assert PetastormTable("nowhere").places == {"train": "nowhere"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"workers_count": 0}, "workers_count: expected 1 or more, got 0"),
        ({"shuffling_queue_capacity": -1}, "shuffling_queue_capacity: expected 0 or more, got -1"),
    ],
    ids=["workers", "capacity"],
)
def test_numbers_out_of_range_are_reported(
    given: dict[str, int], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    have(monkeypatch, WORKS)
    with pytest.raises(ConfigError, match=says):
        PetastormTable("nowhere", **given)  # type: ignore[arg-type]


def test_a_delta_table_is_left_to_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, WORKS)
    (tmp_path / "_delta_log").mkdir()
    with pytest.raises(
        ConfigError, match=r"data\.init_args\.train: .* is no folder of Parquet .*Table"
    ):
        PetastormTable(str(tmp_path))
