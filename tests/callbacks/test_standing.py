from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import pytorch_lightning as pl

from lightkit import runs
from lightkit.callbacks.standing import Standing


class Fit:
    """A fit that has trained an epoch, and whose files a thread writes when it may.

    Args:
        run: Its run.
    """

    def __init__(self, run: runs.Run) -> None:
        self._may_write = threading.Event()
        self.writer = runs.Writer()
        self._standing = Standing(run, writer=self.writer)
        self._standing.begin("fit")
        self._trainer = pl.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False)
        self.writer.begin()
        self.writer.put(self._may_write.wait)

    def record(self) -> None:
        self._standing.write(self._trainer, [{"epoch": 0, "step": 3}], samples_per_s=1.0)

    def write(self) -> None:
        self._may_write.set()
        self.writer.drain()


@pytest.fixture
def run(tmp_path: Path) -> runs.Run:
    return runs.create(tmp_path, "line")


@pytest.fixture
def fit(run: runs.Run) -> Iterator[Fit]:
    fit = Fit(run)
    yield fit
    fit.write()
    fit.writer.end()


def test_what_a_test_writes_while_the_summary_of_the_fit_waits_is_kept(fit: Fit, run: runs.Run) -> None:
    fit.record()
    test = Standing(run, writer=runs.Writer())
    test.begin("test")
    test.note_stage("test", {"test/loss": 0.25})
    test.write(pl.Trainer(accelerator="cpu", logger=False), [], samples_per_s=None, durations={"test": 1.0})
    fit.write()
    summary = runs.Summary.read(run.summary_path)
    assert summary is not None
    assert (summary.epochs, summary.stages) == (1, {"test": {"test/loss": 0.25}})


def test_the_summary_names_the_files_that_are_written_before_it(fit: Fit, run: runs.Run) -> None:
    table = runs.MetricsTable(run.metrics_path, writer=fit.writer)
    table.record(0, 3, {"val/loss": 0.5})
    fit.record()
    fit.write()
    summary = runs.Summary.read(run.summary_path)
    assert summary is not None
    assert summary.paths == {"metrics": "metrics.csv"}
