"""Metrics as a CSV file which a resumed run goes on with."""

from __future__ import annotations

import csv
from pathlib import Path

from lightning_fabric.loggers.logger import rank_zero_experiment
from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.loggers.csv_logs import ExperimentWriter

from lightkit import runs
from lightkit.config.bounds import PositiveInt


class CSV(CSVLogger):
    """Write every logged metric to ``metrics.csv``; a resumed run appends to it.

    Args:
        save_dir: Folder of the file. By default ``csv/`` in the run's folder, that of an evaluation
            in a folder below it, such as ``validate/``; outside the lightkit command ``csv/`` in
            the working directory.
        name: Folder below ``save_dir``; none by default.
        version: Folder below ``name``; outside a run, the next free ``version_N`` by default.
        prefix: Put before each metric's name, with a dash.
        flush_logs_every_n_steps: Steps between two writes to the file.
    """

    def __init__(
        self,
        save_dir: str | None = None,
        name: str = "",
        version: int | str | None = None,
        prefix: str = "",
        flush_logs_every_n_steps: PositiveInt = 100,
    ) -> None:
        run = runs.current()
        if save_dir is None and run is not None:
            save_dir = str(run.folder / "csv")
            version = ("" if run.stage == "fit" else run.stage) if version is None else version
        super().__init__(
            save_dir=save_dir or "csv",
            name=name,
            version=version,
            prefix=prefix,
            flush_logs_every_n_steps=flush_logs_every_n_steps,
        )

    @property
    @rank_zero_experiment
    def experiment(self) -> ExperimentWriter:
        """The writer of the file."""
        if self._experiment is None:
            self._experiment = _Appending(log_dir=self.log_dir)
        return self._experiment  # type: ignore[return-value]


class _Appending(ExperimentWriter):
    """Lightning's writer, which keeps what is there; Lightning's deletes the file that it finds."""

    def _check_log_dir_exists(self) -> None:
        path = Path(self.metrics_file_path)
        if path.is_file():
            content = path.read_bytes()
            if not content.endswith(b"\n"):  # a killed process may have left half a row
                with path.open("r+b") as file:
                    file.truncate(content.rfind(b"\n") + 1)
            with path.open(newline="") as file:
                self.metrics_keys = next(csv.reader(file), [])
            if not self.metrics_keys:
                path.unlink()
