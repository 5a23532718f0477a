"""Two ranks that predict leave the table of one process."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from lightkit.cli import main
from tests.cli.commands import PICTURES, needs_horovod, run, runs_in, workplace
from tests.cli.conftest import undisturbed

pytestmark = pytest.mark.slow

JOB: dict[str, Any] = {
    **PICTURES,
    # Of 27 pictures neither the ranks' shares nor all batches are of one size.
    "data": {**PICTURES["data"], "init_args": {**PICTURES["data"]["init_args"], "test_fraction": 0.5}},
    "trainer": {"logger": False},
}
RANKS: dict[str, dict[str, Any]] = {
    "ddp": {"accelerator": {"num_processes": 2, "strategy": "ddp"}},
    "horovod": {"accelerator": {"strategy": "horovod", "gpus": 0}, "launch": {"processes": 2}},
}


def table_in(folder: Path) -> list[list[str]]:
    """What an untrained model, the same everywhere by its seed, has said of the pictures."""
    (made,) = runs_in(folder)
    assert sorted(path.name for path in made.glob("*predictions*")) == ["predictions.csv"]
    with (made / "predictions.csv").open(encoding="utf-8", newline="") as file:
        return [[Path(row[0]).name, *row[1:]] for row in csv.reader(file)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """The table of one process."""
    folder = workplace(tmp_path_factory.mktemp("alone"), {**JOB, "accelerator": "cpu"}, pictures=63)
    with pytest.MonkeyPatch.context() as patch, undisturbed():
        patch.chdir(folder)
        patch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")  # as conftest's house has it
        assert main(["predict", "-c", "job.yaml", "--quiet"]) == 0
    table = table_in(folder)
    assert len(table) == 28
    return table


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("horovod", marks=needs_horovod)])
def test_two_ranks_leave_the_table_of_one(tmp_path: Path, alone: list[list[str]], strategy: str) -> None:
    workplace(tmp_path, {**JOB, **RANKS[strategy]}, pictures=63)
    end = run(tmp_path, "predict", "-c", "job.yaml")
    assert end.code == 0, end.err
    table = table_in(tmp_path)
    assert [row[:2] for row in table] == [row[:2] for row in alone]
    probabilities = [[float(row[2]) for row in rows[1:]] for rows in (table, alone)]
    assert probabilities[0] == pytest.approx(probabilities[1], abs=1e-5)
    told = end.out.splitlines()[-1].split()
    assert told[0] == "table"
    assert (tmp_path / told[1]).is_file()
