"""Data settings of a baseline.

Each model keeps those that prepare its inputs, and both take the same samples.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_CHOOSES_SAMPLES = ("root", "path", "data_dir", "class_names")
"""Arguments of a data module without `sample_arguments` that choose samples by convention. Labels
are numbered anew by the names of the classes, whatever their order."""
_PREPARES_SAMPLES = ("image_size", "batch_size", "num_workers")
"""Its arguments that prepare the samples by convention."""
_CLASS = "class_path"


@dataclass(frozen=True)
class DataSettings:
    """The section `data` of a model's config, for a comparison with another model.

    Args:
        section: The section.
        own: Settings that differ from the other model's, with the value here.
        unclear: Those of them that may choose the samples.
    """

    section: Any
    own: Mapping[str, Any] = field(default_factory=dict)
    unclear: tuple[str, ...] = ()


def choose_data_settings(own: Any, *, of_gate: Any, of_run: Any, kind: type) -> DataSettings:
    """Choose the data settings of a baseline.

    It keeps its own, but for those that choose the samples, which are those of the gate: what the
    class lists as `sample_arguments`, and what the gate's command line changes.

    Args:
        own: Section `data` of the baseline's config.
        of_gate: That of the run that is judged, with the changes of the command line.
        of_run: That of the run's saved config.
        kind: Class of the run's data module.
    """
    own_class, own_arguments = _split(own)
    gate_class, gate_arguments = _split(of_gate)
    run_class, run_arguments = _split(of_run)
    if not _is_same_class(own_class, gate_class):
        if _is_same_class(gate_class, run_class):
            return DataSettings(own, {_CLASS: own_class}, (_CLASS,))
        return DataSettings(of_gate)  # the command line names the class, for both

    declared: Any = getattr(kind, "sample_arguments", None)
    chooses = _list_conventional(kind) if declared is None else set(declared)
    absent = object()
    arguments = dict(own_arguments)
    kept: dict[str, Any] = {}
    for name in sorted({*own_arguments, *gate_arguments}):
        default = _find_default(kind, name, absent)
        here = gate_arguments.get(name, default)
        there = own_arguments.get(name, default)
        if here is there or here == there:
            continue
        is_changed = here != run_arguments.get(name, default)
        if name not in chooses and not is_changed:
            kept[name] = None if there is absent else there
        elif here is absent:
            arguments.pop(name, None)
        else:
            arguments[name] = here
    unclear = (
        ()
        if declared is not None
        else tuple(name for name in kept if name not in _PREPARES_SAMPLES)
    )
    return DataSettings({_CLASS: own_class, "init_args": arguments}, kept, unclear)


def _split(section: Any) -> tuple[str, Mapping[str, Any]]:
    """Return the name of the class, and its arguments."""
    section = section if isinstance(section, Mapping) else {_CLASS: section}
    arguments = section.get("init_args")
    return str(section.get(_CLASS)), arguments if isinstance(arguments, Mapping) else {}


def _is_same_class(first: str, second: str) -> bool:
    """Compare two names of a class, of which one may be the last part of the other."""
    is_short = "." not in first or "." not in second
    return first == second or (is_short and first.rpartition(".")[2] == second.rpartition(".")[2])


def _list_conventional(kind: type) -> set[str]:
    """List the arguments that choose samples by convention.

    Also list those whose values are files or folders of data.
    """
    places = (
        getattr(kind, name, ())
        for name in ("input_files", "input_folders", "input_paths", "input_tables")
    )
    return {*_CHOOSES_SAMPLES, *(name for names in places for name in names)}


def _find_default(kind: type, name: str, otherwise: Any) -> Any:
    """Return the default of an argument, which a base class may have."""
    for base in kind.__mro__:
        parameter = (
            inspect.signature(vars(base)["__init__"]).parameters.get(name)
            if "__init__" in vars(base)
            else None
        )
        if parameter is not None and parameter.default is not parameter.empty:
            default = parameter.default
            return list(default) if isinstance(default, tuple) else default
    return otherwise
