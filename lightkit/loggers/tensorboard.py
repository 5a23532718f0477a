"""TensorBoard files in the run's folder: scalars, the graph, pictures and hyper-parameters."""

from __future__ import annotations

import io
import logging
import warnings
from argparse import Namespace
from collections.abc import Mapping
from contextlib import redirect_stdout
from copy import copy
from pathlib import Path
from typing import Any, TypeAlias

import torch
from lightning_utilities.core.rank_zero import rank_zero_only
from pytorch_lightning import LightningModule
from pytorch_lightning.loggers import TensorBoardLogger
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor

from lightkit import runs
from lightkit.config import shown_path

_log = logging.getLogger("lightkit.loggers")

Hyperparameters: TypeAlias = dict[str, Any] | Namespace


class TensorBoard(TensorBoardLogger):
    """Write scalars, the model's graph, pictures and hyper-parameters for TensorBoard.

    Args:
        save_dir: Folder of the event files. By default ``tensorboard/`` in the run's folder, that
            of an evaluation in a folder below it, such as ``validate/``; outside the lightkit
            command ``tensorboard/`` in the working directory.
        name: Folder below ``save_dir``; none by default.
        version: Folder below ``name``; outside a run, the next free ``version_N`` by default.
        log_graph: Draw the model's graph, with the first metrics of a training. It needs the
            model's ``example_input_array``; a model without one has no graph, and no warning
            either.
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
            version = ("" if run.stage == "fit" else run.stage) if version is None else version
        super().__init__(
            save_dir=save_dir or "tensorboard",
            name=name,
            version=version,
            log_graph=log_graph,
            default_hp_metric=default_hp_metric,
            prefix=prefix,
        )
        self._to_draw: LightningModule | None = None
        self._postpones = run is not None and run.stage == "fit"
        self._postponed: list[tuple[Hyperparameters, dict[str, Any] | None, int | None]] = []

    @property
    def view_command(self) -> list[str]:
        """Command that shows the files."""
        return ["tensorboard", "--logdir", shown_path(Path(str(self.save_dir)))]

    @rank_zero_only
    def log_graph(self, model: LightningModule, input_array: Tensor | None = None) -> None:  # type: ignore[override]
        """Draw the graph of ``model``.

        Nothing without an example input, or where it cannot be traced.

        In a training, whose trainer asks for it before the first step, it is drawn with the next
        metrics: tracing takes as long as several steps.
        """
        example = model.example_input_array if input_array is None else input_array
        if not self._log_graph or example is None:
            return
        trainer = model._trainer  # the property of that name raises where there is none
        if input_array is None and trainer is not None and trainer.state.fn == TrainerFn.FITTING:
            self._to_draw = model
            return
        self._draw(model, input_array)

    @rank_zero_only
    def log_hyperparams(
        self,
        params: Hyperparameters,
        metrics: dict[str, Any] | None = None,
        step: int | None = None,
    ) -> None:
        """Write hyper-parameters, in a fit with the first metrics, at the latest at its end.

        Until then the first step need not wait for the import of OmegaConf, with which Lightning
        writes them as YAML.

        Args:
            params: Hyper-parameters by their names.
            metrics: Metrics that they are shown with.
            step: Step of these metrics.
        """
        if self._postpones:
            self._postponed.append((copy(params), metrics, step))
        else:
            super().log_hyperparams(params, metrics, step)

    @rank_zero_only
    def save(self) -> None:
        """Write all that has been logged to the files, but for what waits for the first metrics."""
        if self._postpones:
            self.experiment.flush()
        else:
            super().save()

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Write what is left, and close the files."""
        self._begin()
        super().finalize(status)

    def _begin(self) -> None:
        """Write the hyper-parameters that wait for the first metrics, as Lightning does earlier."""
        postponed = self._postponed
        self._postpones = False
        self._postponed = []
        for params, metrics, step in postponed:
            super().log_hyperparams(params, metrics, step)
        if postponed:
            super().save()

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Write scalars, and before the first ones the hyper-parameters and the graph."""
        self._begin()
        model = self._to_draw
        self._to_draw = None
        if model is not None:
            self._draw(model, None)
        super().log_metrics(metrics, step)

    def _draw(self, model: LightningModule, input_array: Tensor | None) -> None:
        with (
            warnings.catch_warnings(),
            torch.random.fork_rng(devices=[]),
            redirect_stdout(io.StringIO()),
        ):
            # Tracing warns about each branch on a tensor's value, is deprecated in torch 2.15 as a
            # whole, and prints what fails.
            warnings.simplefilter("ignore")
            training = [module for module in model.modules() if module.training]
            try:
                model.eval()  # batch statistics and dropout differ from one trace to the next
                super().log_graph(model, input_array)
            except Exception as error:  # noqa: BLE001 - a drawing must not end a training, whatever the model raises
                reason = f"{type(error).__name__}: {error}".strip().splitlines()[0]
                _log.warning("TensorBoard shows no graph: the model cannot be traced (%s)", reason)
            finally:
                for module in training:
                    module.training = True

    @rank_zero_only
    def add_picture(self, name: str, image: Tensor, step: int) -> None:
        """Show ``image``, uint8 ``(3, height, width)``, under ``name`` at ``step``."""
        self.experiment.add_image(name, image, step)
