"""The types of what the JSON files of a run hold, and the check of a file against them.

Each class is the one description of a file that code may rely on: `lightkit.runs.files.read_json`
returns nothing that contradicts it. Keys may be missing, and others may be there. What a user's own
class has written, such as the description of the data, has any type.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypedDict, Union, get_args, get_origin, get_type_hints, is_typeddict

Row = dict[str, float | None]
"""Metrics by name; null where they are not finite."""


class Best(TypedDict, total=False):
    """``best`` of summary.json."""

    monitor: str | None
    mode: str | None
    value: float | None
    epoch: int | None
    step: int | None


class Score(TypedDict, total=False):
    """An entry of ``scores`` of summary.json."""

    stage: str
    metrics: Row
    checkpoint: str | None
    sha256: str | None
    epoch: int | None
    data: Any
    limit: float | None
    num_samples: int | None
    changed: dict[str, Any]
    time: str | None


class SummaryRecord(TypedDict, total=False):
    """summary.json, see `lightkit.runs.summary`."""

    run: str
    status: str
    exit_code: int | None
    error: str | None
    stopped_by: str | None
    stopped_early: str | None
    started: str | None
    ended: str | None
    durations: dict[str, float]
    epochs: int
    steps: int
    throughput: dict[str, float | None]
    phases: dict[str, float]
    metrics: dict[str, Row]
    best: Best | None
    notes: list[str]
    paths: dict[str, str]
    stages: dict[str, Row]
    scores: list[Score]
    samples: dict[str, int | None]
    modes: dict[str, str]


class Git(TypedDict, total=False):
    """``git`` of manifest.json."""

    commit: str | None
    branch: str | None
    dirty: bool | None


class Hardware(TypedDict, total=False):
    """``hardware`` of manifest.json."""

    host: str | None
    cpu: str | None
    cores: int | None
    memory_bytes: int | None
    gpus: list[str]
    accelerator: str | None
    devices: int | None
    threads: int | None


class ManifestRecord(TypedDict, total=False):
    """manifest.json, see `lightkit.runs.manifest`."""

    run: str
    subcommand: str
    created: str
    command: list[str]
    working_directory: str | None
    lightkit: str
    python: str
    packages: dict[str, str | None]
    platform: str
    git: Git | None
    data: dict[str, Any] | None
    seed: int | None
    hardware: Hardware | None
    parent: str | None
    earlier: list[dict[str, Any]]
    ckpt_path: str | None
    fast_dev_run: bool | int
    trial: str
    environment: dict[str, str] | None
    origins: dict[str, str]
    inputs: dict[str, Any] | None


class DataDescription(TypedDict, total=False):
    """``data`` of manifest.json, as far as a report shows it.

    A user's data module may say anything else.
    """

    source: str | None
    root: str | None
    counts: dict[str, int | None]
    class_names: list[str] | None
    bad_images: int | None
    fingerprint: str | None


class Stage(TypedDict, total=False):
    """An entry of ``stages`` of retrain.json."""

    stage: str
    status: str
    began: str | None
    ended: str | None
    seconds: float | None
    exit_code: int | None
    attempts: int
    failures: int
    message: str | None


class RetrainRecord(TypedDict, total=False):
    """retrain.json, see `lightkit.commands.retrain`."""

    schema: int
    run: str
    config: str
    began: str | None
    ended: str | None
    outcome: str | None
    stages: list[Stage]


class ColumnImportance(TypedDict, total=False):
    """An entry of ``columns`` of importance.json."""

    name: str
    importance: float
    std: float


class ImportanceRecord(TypedDict, total=False):
    """importance.json, see `lightkit.models.importance`."""

    schema: int
    split: str
    fingerprint: str | None
    sha256: str | None
    metric: str
    value: float
    num_rows: int
    columns: list[ColumnImportance]


class Check(TypedDict, total=False):
    """An entry of ``checks`` of gate.json."""

    name: str
    challenger: float | None
    baseline: float | None
    asks: str
    passed: bool


class Slice(TypedDict, total=False):
    """An entry of ``slices`` of gate.json."""

    challenger: float | None
    baseline: float | None
    num_samples: int | None
    interval: list[float] | None


class Intervals(TypedDict, total=False):
    """``intervals`` of gate.json."""

    confidence: float | None
    challenger: list[float] | None
    baseline: list[float] | None


class Difference(TypedDict, total=False):
    """``significance`` and ``non_inferiority`` of gate.json."""

    test: str | None
    reason: str
    method: str
    difference: float | None
    low: float | None
    high: float | None
    p_value: float | None
    counts: bool
    passed: bool
    confidence: float | None
    margin: float | None
    smallest_margin: float | None
    num_samples: int
    only_challenger: int
    only_baseline: int


class Sample(TypedDict, total=False):
    """An entry of ``samples`` of gate.json."""

    kind: str
    index: int
    path: str | None
    label: str
    challenger: str | None
    baseline: str | None


class Moved(TypedDict, total=False):
    """promoted.json, and an entry of ``history`` of gate.json."""

    aliases: list[str]
    registries: list[str]
    name: str
    kind: str
    alias: str
    to: str | None
    by: str
    reason: str
    run: str | None
    metric: str | None
    scores: Row
    data: Any
    num_samples: int | None
    forced: bool
    weights: str | None
    inputs: dict[str, str]
    time: str
    number: int


class GateRecord(TypedDict, total=False):
    """gate.json, see `lightkit.registry.gate`."""

    passed: bool
    metric: str | None
    mode: str | None
    scores: dict[str, Row | None]
    slices: dict[str, Slice]
    intervals: Intervals
    significance: Difference | None
    non_inferiority: Difference | None
    smallest_drop: float | None
    drift: dict[str, Any] | None
    reasons: list[str]
    baseline: str | None
    num_samples: int | None
    run: str
    checks: list[Check]
    time: str
    checkpoint: dict[str, str | None]
    settings: dict[str, Any]
    against: dict[str, str | None] | None
    notices: list[str]
    history: list[Moved] | None
    data: dict[str, Any]
    inputs: dict[str, str]
    samples: list[Sample]


class Parity(TypedDict, total=False):
    """An entry of ``parity`` of an exported file."""

    max_abs: float | None
    max_rel: float | None
    outside: int


class Artefact(TypedDict, total=False):
    """An entry of ``artefacts`` of export.json."""

    file: str
    format: str
    sha256: str
    size_bytes: int
    precision: str | None
    samples: int | None
    parity: dict[str, Parity] | None
    latency: dict[str, dict[str, dict[str, float]]] | None


class ExportRecord(TypedDict, total=False):
    """export.json, see `lightkit.export.metadata`."""

    artefacts: dict[str, Artefact]


class Process(TypedDict, total=False):
    """An entry of ``processes`` of lock.json."""

    host: str
    kernel: str
    pid: int
    process_started: str | None


class LockRecord(TypedDict, total=False):
    """lock.json, see `lightkit.runs.lock`."""

    started: str
    folder: str | None
    token: str
    processes: list[Process]


class InputsRecord(TypedDict, total=False):
    """inputs.json, see `lightkit.runs.fingerprints`."""

    schema: int
    config: dict[str, Any]
    hidden: dict[str, str]
    data: dict[str, dict[str, str]] | None
    size_bytes: int
    unseen: list[str]
    code: dict[str, str]
    salt: str


class TrackedRecord(TypedDict, total=False):
    """mlflow.json, see `lightkit.loggers.mlflow`."""

    tracking_uri: str | None
    run_id: str | None
    experiment_id: str | None
    model_id: str | None
    keys: dict[str, str] | None


class TrialRecord(TypedDict, total=False):
    """trial.json, see `lightkit.runs.trial`."""

    params: int


class VerdictRecord(TypedDict, total=False):
    """verdict.json, see `lightkit.runs.trial`."""

    epoch: int
    stop: bool


class Event(TypedDict, total=False):
    """A line of events.jsonl, as far as it is read again, see `lightkit.runs.events`."""

    time: str
    event: str
    token: str
    run: str
    stage: str
    status: str
    message: str
    path: str
    epoch: int
    step: int
    seconds: float
    exit_code: int
    metrics: Row


RECORDS: Mapping[str, type] = {
    "summary.json": SummaryRecord,
    "manifest.json": ManifestRecord,
    "retrain.json": RetrainRecord,
    "gate.json": GateRecord,
    "importance.json": ImportanceRecord,
    "promoted.json": Moved,
    "export.json": ExportRecord,
    "lock.json": LockRecord,
    "inputs.json": InputsRecord,
    "mlflow.json": TrackedRecord,
    "trial.json": TrialRecord,
    "verdict.json": VerdictRecord,
}
"""The type of each file, by its name."""
_WORDS = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    NoneType: "null",
    list: "a list",
    dict: "an object",
}
_MAX_DEPTH = 100
_MAX_CHARS = 40


def find_mismatch(value: Any, shape: Any, key: str = "") -> str | None:
    """Describe where a value of JSON is not of its type, with dotted key and what was expected.

    None if it is.

    Args:
        value: The value.
        shape: Its type: a typed dictionary, ``dict[str, ...]``, ``list[...]``, a union, ``Any`` or
            a plain type.
        key: Its dotted key.
    """
    if shape is Any:
        return None

    # Of a union, the one that is of the value's kind says what is wrong inside.
    options = get_args(shape) if get_origin(shape) in (Union, UnionType) else (shape,)
    fitting = [
        each
        for each in options
        if isinstance(value, _kinds(each)) and not _is_odd_bool(value, each)
    ]
    if not fitting:
        expected = " or ".join(_WORDS[get_origin(each) or _plain(each)] for each in options)
        return f"{key or 'it'} is {_shorten(value)}, expected {expected}"

    for name, child, child_shape in _list_children(value, fitting[0]):
        found = find_mismatch(child, child_shape, f"{key}.{name}" if key else name)
        if found is not None:
            return found
    return None


def find_excess(value: Any) -> str | None:
    """Describe what no reader could work with.

    A number that is not finite as a double, or text that cannot be printed.

    Or more levels than a recursive function takes. lightkit writes none of them. None if there are
    none.
    """
    level = [value]
    for _ in range(_MAX_DEPTH):
        below: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                below += [*each, *each.values()]
            elif isinstance(each, list):
                below += each
            elif isinstance(each, (int, float)) and not _is_finite(each):
                return f"it has the number {_shorten(each)}"
            elif isinstance(each, str) and not _is_text(each):
                return f"it has {_shorten(each)}, which is no text"
        if not below:
            return None
        level = below
    return f"it has more than {_MAX_DEPTH} levels"


def keep_matching(value: Mapping[str, Any], shape: type) -> dict[str, Any]:
    """Leave out what is not of its type in a typed dictionary; keys that it does not have stay."""
    hints = _hints(shape)
    return {
        name: child
        for name, child in value.items()
        if find_mismatch(child, hints.get(name, Any)) is None
    }


def _plain(shape: Any) -> type:
    return dict if is_typeddict(shape) else shape


def _kinds(shape: Any) -> tuple[type, ...]:
    plain = get_origin(shape) or _plain(shape)
    return (int, float) if plain is float else (plain,)


def _is_odd_bool(value: Any, shape: Any) -> bool:
    """Check whether a truth value stands where a number should; Python takes one for the other."""
    return isinstance(value, bool) and shape in (int, float)


def _list_children(value: Any, shape: Any) -> list[tuple[str, Any, Any]]:
    """List what is below a value: key, value and type of each that has a type."""
    if is_typeddict(shape):
        hints = _hints(shape)
        return [(name, child, hints[name]) for name, child in value.items() if name in hints]
    if isinstance(value, dict):
        return [(name, child, get_args(shape)[1]) for name, child in value.items()]
    if isinstance(value, list):
        return [(str(index), child, get_args(shape)[0]) for index, child in enumerate(value)]
    return []


@cache
def _hints(shape: type) -> dict[str, Any]:
    return get_type_hints(shape)


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:
        return False


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def _shorten(value: Any) -> str:
    if isinstance(value, (list, dict)):
        return _WORDS[type(value)]
    text = json.dumps(value)
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}..."
