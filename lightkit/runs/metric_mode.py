"""Which value of a metric is best, ``min`` or ``max``.

The one answer for checkpoints, gates, reports and tables.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

Mode = Literal["min", "max"]

_SMALL_IS_GOOD = {
    *("loss", "error", "err", "mae", "mse", "rmse", "mape", "perplexity", "nll", "wer", "cer"),
    *("fid", "brier", "ece", "kl", "crossentropy", "distance", "smape", "msle", "rmsle", "logloss"),
}
_LARGE_IS_GOOD = {
    *("accuracy", "acc", "f1", "auc", "auroc", "precision", "recall", "iou", "miou", "dice", "map"),
    *("psnr", "ssim", "r2", "bleu", "rouge", "mcc", "kappa", "specificity", "sensitivity", "ndcg"),
    *("mrr", "ap", "mar", "auprc", "oks", "pq"),
}
_UNKNOWN = {
    *("neg", "negative", "inverse", "minus"),
    *("gap", "drop", "diff", "delta", "std", "var", "variance", "threshold"),
}
"""Words that turn a metric round, or name something else that is made of it."""
_SPLIT = re.compile(r"^(?:train|training|val|valid|validation|test)[/_]")
_SUFFIX = re.compile(r"(?:_step|_epoch|/dataloader_idx_\d+)+$")
_WORD = re.compile(r"[A-Za-z0-9]+")
_HUMP = re.compile(r"[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*")


def infer_mode(
    metric: str,
    *,
    explicit: str | None = None,
    recorded: Mapping[str, Any] | None = None,
    chosen: str | None = None,
) -> Mode | None:
    """Infer whether the smallest (``min``) or the largest (``max``) value of a metric is best.

    None if unknown.

    The first that is known counts: what the user says, what the training knew, the metric's name,
    and how a checkpoint was chosen by it.

    Args:
        metric: Its logged name, such as ``val/accuracy``.
        explicit: Value of an option or a key that is of this metric alone.
        recorded: ``modes`` of a run's ``summary.json``: the modes that its config sets, and those
            of its metric objects. That of another split counts as well.
        chosen: Mode of a callback that monitors the metric, which may be a default.
    """
    for known in (
        explicit,
        _find_recorded(metric, recorded or {}),
        infer_mode_by_name(metric),
        chosen,
    ):
        if known == "min":
            return "min"
        if known == "max":
            return "max"
    return None


def infer_mode_by_name(metric: str) -> Mode | None:
    """Infer the mode of a metric from the words of its name.

    None where they are not usual, or contradict each other.

    ``val/f1``, ``BinaryAccuracy`` and ``acc1`` are largest, ``val_loss`` and ``MeanSquaredError``
    smallest, and of ``neg_loss``, ``accuracy_std`` and ``closeness`` it is unknown.
    """
    words: set[str] = set()
    for word in _WORD.findall(metric):
        for part in (word, *_HUMP.findall(word)):
            words |= {part.lower(), part.lower().rstrip("0123456789")}
    is_small = bool(words & _SMALL_IS_GOOD)
    is_large = bool(words & _LARGE_IS_GOOD)
    if is_small == is_large or words & _UNKNOWN:
        return None
    return "min" if is_small else "max"


def override_modes(known: Mapping[str, Any], stronger: Mapping[str, Any]) -> dict[str, Any]:
    """Return known modes with stronger ones in the place of the same metric's, of any split.

    Args:
        known: Modes by metric, such as those of metric objects.
        stronger: Modes that override them, such as those of a config.
    """
    return {
        name: mode for name, mode in known.items() if _find_recorded(name, stronger) is None
    } | dict(stronger)


def merge_modes(summaries: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Collect what several runs recorded of their metrics' modes; that of the first run counts.

    Args:
        summaries: Contents of ``summary.json``, the newest run first.
    """
    modes: dict[str, Any] = {}
    for summary in summaries:
        recorded = summary.get("modes")
        if isinstance(recorded, Mapping):
            modes = override_modes(recorded, modes)
    return modes


def rank_value(value: float | None, mode: str) -> tuple[int, float]:
    """Return a sorting key with which the best value is first.

    Then those that are not finite, then none at all.

    Args:
        value: Of a metric; None where it was not logged.
        mode: ``min`` or ``max``.
    """
    if value is None:
        return 2, 0.0
    if not math.isfinite(value):
        return 1, 0.0
    return 0, value if mode == "min" else -value


def is_better(value: float | None, other: float | None, mode: str) -> bool:
    """Return whether one value of a metric is better than another.

    One that is not finite is worse than each other.
    """
    return rank_value(value, mode) < rank_value(other, mode)


def _find_recorded(metric: str, recorded: Mapping[str, Any]) -> str | None:
    """Find the mode of a metric among recorded ones.

    Under its name, else under that of another split or form.
    """
    if recorded.get(metric) in ("min", "max"):
        return str(recorded[metric])
    stem = _stem(metric)
    of_stem = {
        mode for name, mode in recorded.items() if _stem(name) == stem and mode in ("min", "max")
    }
    return str(*of_stem) if len(of_stem) == 1 else None


def _stem(metric: str) -> str:
    """Return a metric's name without its split, and without what Lightning appends."""
    return _SUFFIX.sub("", _SPLIT.sub("", metric))
