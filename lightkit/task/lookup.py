"""Lookup of tasks: by the kind of the outputs, and of a model."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, get_args

from lightkit.task.classification import BINARY, CLASSIFICATION, PROBABILITIES
from lightkit.task.interface import OutputKind, Task
from lightkit.task.multilabel import MULTILABEL, MULTILABEL_PROBABILITIES
from lightkit.task.regression import REGRESSION
from lightkit.task.segmentation import MASKS, SEGMENTATION

_log = logging.getLogger("lightkit")

UNDECLARED = Task(output_kind="other")
"""Task of a model that declares nothing."""
_TASKS: dict[OutputKind, Task] = {
    "logits": CLASSIFICATION,
    "binary_logit": BINARY,
    "multilabel_logits": MULTILABEL,
    "probabilities": PROBABILITIES,
    "multilabel_probabilities": MULTILABEL_PROBABILITIES,
    "mask_logits": SEGMENTATION,
    "masks": MASKS,
    "values": REGRESSION,
    "other": UNDECLARED,
}
_has_warned: set[str] = set()


def task_of_kind(kind: object) -> Task:
    """Return the task of an output kind; that of ``other`` if there is no such kind."""
    known: dict[Any, Task] = dict(_TASKS)
    return known.get(kind, UNDECLARED) if isinstance(kind, str) else UNDECLARED


def task_of_record(kind: object, names: Sequence[str]) -> Task:
    """Return the task of recorded predictions.

    That of their output kind, else the one that their names say.

    Args:
        kind: Kind of the outputs; None where the file does not say it.
        names: Names of the classes; none of numbers.
    """
    if kind is not None:
        return task_of_kind(kind)
    return CLASSIFICATION if names else REGRESSION


def task_of(model: object) -> Task:
    """Return the task of a model: its ``task``, or the one that its ``output_kind`` declares.

    An ``output_kind`` that is another than the task's is that of a subclass, whose ``forward``
    gives something else. One that does not exist is a warning, once for each, and the outputs are
    of unknown meaning.
    """
    own = getattr(model, "task", None)
    kind = getattr(model, "output_kind", None)
    if isinstance(own, Task) and kind in (None, own.output_kind):
        return own
    if kind is not None and kind not in get_args(OutputKind):
        text = (
            f"{type(model).__name__}.output_kind: expected one of"
            f" {', '.join(get_args(OutputKind))}, got {kind!r}"
        )
        if text not in _has_warned:
            _has_warned.add(text)
            _log.warning("%s; its outputs are taken for numbers of unknown meaning", text)
    return task_of_kind(kind)


def find_class_names(model: object, data: object) -> Any:
    """Return the names of a model's classes: its own, else those of the data.

    None if neither has any.
    """
    own = getattr(model, "class_names", None)
    return own if own is not None and len(own) else getattr(data, "class_names", None) or None


def list_main_metrics() -> list[str]:
    """List the metrics that models of the tasks are judged by, each once."""
    return list(dict.fromkeys(task.gate_metric for task in _TASKS.values() if task.gate_metric))
