"""Names and values as MLflow accepts them."""

from __future__ import annotations

import logging
import posixpath
import re
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from lightkit.errors import Interrupted

__all__ = ["MAX_TAG", "as_key", "as_run_status", "flatten", "sort_params", "tags_of"]

_log = logging.getLogger("lightkit.loggers")
_MAX_PARAM, MAX_TAG = 6000, 8000  # characters: mlflow.utils.validation of MLflow 3.17
_MAX_KEY = 250


def as_key(name: str) -> str:
    """``name`` with characters that MLflow refuses replaced, as a path that leads nowhere else, and not too long."""
    key = re.sub(r"[^\w/. :-]", "_", name, flags=re.ASCII)[:_MAX_KEY]
    return posixpath.normpath(f"/{key}").lstrip("/") or "_"


def flatten(params: Any) -> dict[str, Any]:
    """Nested mappings, namespaces, dataclasses and lists of them as one mapping, names joined by dots."""
    return dict(_leaves(params, ()))


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    inner = _entries(value)
    if inner is None or (not inner and path):
        yield ".".join(path), value
        return
    for name, below in inner.items():
        yield from _leaves(below, (*path, str(name)))


def _entries(value: Any) -> Mapping[Any, Any] | None:
    """What lies below ``value``, or None where it is a leaf."""
    if isinstance(value, Namespace):
        return vars(value)
    if isinstance(value, Mapping):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, (list, tuple)) and any(_entries(item) is not None for item in value):
        return dict(enumerate(value))
    return None


def sort_params(params: Mapping[str, Any], *, known: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Part parameters into new ones, and tags for those that the run has with another value, which MLflow keeps.

    Args:
        params: Flat names and any values.
        known: What the run has; the new ones are added.
    """
    new: dict[str, str] = {}
    changed: dict[str, str] = {}
    for name, value in params.items():
        key, text = as_key(name), str(value)
        if len(text) > _MAX_PARAM:
            _log.warning("MLflow keeps %d of the %d characters of the parameter %s", _MAX_PARAM, len(text), name)
            text = text[:_MAX_PARAM]
        if key not in known:
            new[key] = known[key] = text
        elif known[key] != text:
            changed[f"changed.{key}"] = text
    return new, changed


def tags_of(manifest: Mapping[str, Any]) -> dict[str, str]:
    """What of a manifest tells runs apart: the commit, and the data's fingerprint and source."""
    git, data = manifest.get("git") or {}, manifest.get("data") or {}
    tags = {
        "git_commit": git.get("commit"),
        "mlflow.source.git.commit": git.get("commit"),
        "git_dirty": git.get("dirty"),
        "data_fingerprint": data.get("fingerprint"),
        "data_source": data.get("source"),
    }
    return {name: str(value) for name, value in tags.items() if value is not None}


def as_run_status(status: str) -> str:
    """MLflow's word for how a run ended.

    Args:
        status: Lightning's word, ``success`` or ``failed``. It says ``failed`` for a run that somebody stopped too,
            but says so while it handles the exception.
    """
    if status in ("success", "finished"):
        return "FINISHED"
    stopped = isinstance(sys.exc_info()[1], (KeyboardInterrupt, SystemExit, Interrupted))
    return "KILLED" if stopped else "FAILED"
