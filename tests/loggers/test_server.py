"""Against a real ``mlflow server`` that dies and comes back."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl

from lightkit import runs
from lightkit.loggers import MLflow
from tests.ports import free_port

pytestmark = [
    pytest.mark.slow,
    # 2026-11: mlflow 3.17 and requests leave connections to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    # 2026-11: mlflow 3.17 says so to SQLAlchemy 2.1 while it is imported, which then fails for good.
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Server:
    """A server that can be killed, and started again with the same port and store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self._process is not None:
            return
        store = ["--backend-store-uri", f"sqlite:///{self.folder}/server.db"]
        files = ["--artifacts-destination", str(self.folder / "files")]
        address = ["--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", "server", *address, *store, *files],
                stdout=log, stderr=log, start_new_session=True, cwd=self.folder,
                env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            )  # fmt: skip
        deadline = time.monotonic() + 180
        while not self._answers():
            assert self._process.poll() is None, (self.folder / "log").read_text()[-2000:]
            assert time.monotonic() < deadline, (self.folder / "log").read_text()[-2000:]
            time.sleep(0.2)

    def kill(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.kill()


@pytest.fixture
def server(shared_server: Server) -> Server:
    shared_server.start()
    return shared_server


class At(pl.Callback):
    """Do something once, at the end of an epoch."""

    def __init__(self, epoch: int, do: Callable[[], None]) -> None:
        self.epoch, self.do = epoch, do

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.current_epoch == self.epoch:
            self.do()


def test_a_server_that_stays_away_costs_nothing_but_its_records(
    server: Server, train: Any, run: runs.Run, caplog: pytest.LogCaptureFixture
) -> None:
    logger = MLflow(server.uri, log_model=False, flush_timeout_s=2.0)
    journal = run.folder / "mlflow-unsent.jsonl"
    checkpoint = pl.callbacks.ModelCheckpoint(run.checkpoints, "best", "val_loss")
    began = time.monotonic()
    trainer = train(run.folder, logger, At(1, server.kill), checkpoint, max_epochs=4)

    assert time.monotonic() - began < 60  # which is what a logger waits that was not told to wait less
    assert trainer.current_epoch == 4
    assert logger.unsent == len(journal.read_text().splitlines()) > 3
    told = re.escape(f"did not take {logger.unsent} records within SECONDS s; they are kept in {journal}")
    assert re.search(told.replace("SECONDS", r"\d+"), caplog.text)
    assert "the next resume of this run sends them first" in caplog.text

    server.start()
    resumed = MLflow(server.uri, log_model=False)
    resumed.log_metrics({"val_loss": 0.5}, step=99)
    resumed.finalize("success")
    assert resumed.version == logger.version
    history = resumed.experiment.get_metric_history(resumed.version, "val_loss")
    assert [metric.step for metric in history] == [3, 7, 11, 15, 99]
    assert "checkpoints/best.ckpt" in {
        item.path for item in resumed.experiment.list_artifacts(resumed.version, "checkpoints")
    }
    assert resumed.experiment.get_run(resumed.version).info.status == "FINISHED"
    assert not journal.exists()
