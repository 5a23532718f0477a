"""TensorBoard files in the run's folder: scalars, the model's graph, pictures and hyper-parameters."""

from __future__ import annotations

import io
import logging
import warnings
from contextlib import redirect_stdout
from pathlib import Path

import torch
from lightning_utilities.core.rank_zero import rank_zero_only
from pytorch_lightning import LightningModule
from pytorch_lightning.loggers import TensorBoardLogger
from torch import Tensor

from lightkit import runs
from lightkit.config import shown_path

__all__ = ["TensorBoard"]

_log = logging.getLogger("lightkit.loggers")


class TensorBoard(TensorBoardLogger):
    """Write scalars, the model's graph, pictures and hyper-parameters for TensorBoard.

    Args:
        save_dir: Folder of the event files. By default ``tensorboard/`` in the run's folder, without folders of
            versions below it; outside the lightkit command ``tensorboard/`` in the working directory.
        name: Folder below ``save_dir``; none by default.
        version: Folder below ``name``; outside a run, the next free ``version_N`` by default.
        log_graph: Draw the model's graph. It needs the model's ``example_input_array``; a model without one has
            no graph, and no warning either.
        default_hp_metric: Show the hyper-parameters with the placeholder metric ``hp_metric``.
        prefix: Put before each metric's name, with a dash.
    """

    def __init__(
        self,
        save_dir: str | None = None,
        name: str = "",
        version: int | str | None = None,
        log_graph: bool = True,
        default_hp_metric: bool = True,
        prefix: str = "",
    ) -> None:
        run = runs.current()
        if save_dir is None and run is not None:
            save_dir = str(run.folder / "tensorboard")
            version = "" if version is None else version
        super().__init__(
            save_dir=save_dir or "tensorboard",
            name=name,
            version=version,
            log_graph=log_graph,
            default_hp_metric=default_hp_metric,
            prefix=prefix,
        )

    @property
    def view_command(self) -> list[str]:
        """What to type to look at it."""
        return ["tensorboard", "--logdir", shown_path(Path(str(self.save_dir)))]

    @rank_zero_only
    def log_graph(self, model: LightningModule, input_array: Tensor | None = None) -> None:  # type: ignore[override]
        """Draw the graph of ``model``, or nothing where there is no example input or no way to trace it."""
        example = model.example_input_array if input_array is None else input_array
        if not self._log_graph or example is None:
            return
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]), redirect_stdout(io.StringIO()):
            # Tracing warns about each branch on a tensor's value, is deprecated in torch 2.15 as a whole, and prints
            # what fails.
            warnings.simplefilter("ignore")
            training = [module for module in model.modules() if module.training]
            try:
                model.eval()  # batch statistics and dropout differ from one trace to the next
                super().log_graph(model, input_array)
            except Exception as error:  # noqa: BLE001 - a drawing must not end a training, whatever the model raises
                _log.warning("TensorBoard shows no graph: the model cannot be traced (%s)", _first_line(error))
            finally:
                for module in training:
                    module.training = True

    @rank_zero_only
    def add_picture(self, name: str, image: Tensor, step: int) -> None:
        """Show ``image``, uint8 ``(3, height, width)``, under ``name`` at ``step``."""
        self.experiment.add_image(name, image, step)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip().splitlines()[0]
