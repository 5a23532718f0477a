"""Facts of Lightning's loops on the metrics that a model logs.

Which value is best, and which are of a step alone.

``self.log("val/acc", self.acc)`` shows which object is behind a name, and whether it is logged by
step or by epoch, in the results of Lightning's loops alone, which have no public name
(pytorch-lightning 2.6.6, ``_results``); they are read here, and where they are missing nothing is
known.
"""

from __future__ import annotations

from typing import Any

from pytorch_lightning import LightningModule, Trainer
from torchmetrics import Metric, MetricCollection

from lightkit.runs.metric_mode import Mode


def find_step_metrics(trainer: Trainer) -> set[str]:
    """Return the names of the training's metrics that are logged by step alone.

    As ``self.log`` does by default.

    What `trainer.callback_metrics` has of them at the end of an epoch is the value of its last
    step, and no mean.
    """
    by_step: set[str] = set()
    by_epoch: set[str] = set()
    for result in (getattr(trainer.fit_loop.epoch_loop, "_results", None) or {}).values():
        meta = getattr(result, "meta", None)
        name = getattr(meta, "name", None)
        if isinstance(name, str):
            (by_epoch if getattr(meta, "on_epoch", True) else by_step).add(name)
    return by_step - by_epoch


def find_metric_modes(trainer: Trainer, module: LightningModule) -> dict[str, Mode]:
    """Return the modes of the metrics that are logged, by ``higher_is_better`` of their objects.

    Args:
        trainer: The trainer, within or at the end of a stage.
        module: The model, whose collections of metrics know the names of their members.
    """
    modes: dict[str, Mode] = {}

    def note(name: str, metric: Any) -> None:
        if isinstance(metric, Metric) and isinstance(metric.higher_is_better, bool):
            modes[name] = "max" if metric.higher_is_better else "min"

    # values of a collection are often computed, and logged as tensors, under its own names
    for each in module.modules():
        if isinstance(each, MetricCollection):
            for name, metric in each.items(copy_state=False):
                if name in trainer.callback_metrics:
                    note(str(name), metric)

    # an object that was logged itself
    training = trainer.fit_loop.epoch_loop
    results: list[Any] = []
    for loop in (training, training.val_loop, trainer.validate_loop, trainer.test_loop):
        results += (getattr(loop, "_results", None) or {}).values()
    for result in results:
        logged = getattr(getattr(result, "meta", None), "name", None)
        if isinstance(logged, str):
            note(logged, getattr(result, "value", None))
    return modes
