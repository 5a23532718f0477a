"""The keys of `lr_scheduler` that say when a schedule is stepped, and its numbers of steps.

No torch.

LightningCLI has no place for them: ``interval`` and ``frequency`` stand next to ``class_path``,
``monitor`` of a plateau class of one's own and the word ``auto`` in ``init_args``. jsonargparse
gets them in ``dict_kwargs``, which it takes for any class and Lightning 2.6 leaves out when it
builds a schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lightkit.config.bounds import is_int
from lightkit.config.merge import STEPPING_KEYS
from lightkit.config.origins import KeyPath, error_at
from lightkit.config.resolved import Resolved
from lightkit.config.schema import Schema, accepts, describe_refused
from lightkit.config.yaml_reader import read_scalar

SECTION = "lr_scheduler"
STEPPING_SCHEMAS: dict[str, Schema] = {
    "interval": {"enum": ["epoch", "step"]},
    "frequency": {"type": "integer", "minimum": 1},
}
"""Values of the keys next to ``class_path``."""
COUNTS = ("total_steps", "T_max", "total_iters")
"""Arguments that say after how many of its steps a schedule ends; ``auto`` counts those of the
training."""
AUTO = "auto"
PLATEAU = "torch.optim.lr_scheduler.ReduceLROnPlateau"
_PLACEHOLDER = 10**9
"""Stands for ``auto`` until training starts: only then is the number of batches known, without
starting a loader."""
_FAR = 2
"""Times the epochs planned from which on a number of steps cannot be meant as one of epochs."""
_DEFAULT_EPOCHS = 1000  # of Lightning, where neither epochs nor steps are limited


@dataclass(frozen=True)
class Schedule:
    """When the schedule of a config is stepped.

    Args:
        interval: `step` or `epoch`; None leaves it to Lightning.
        frequency: Steps or epochs between two of its steps; None leaves it to Lightning.
        monitor: Metric of a plateau class that does not take one itself.
        counted: Arguments that are `auto`.
    """

    interval: str | None = None
    frequency: int | None = None
    monitor: str | None = None
    counted: Collection[str] = field(default=())

    @property
    def keys(self) -> dict[str, Any]:
        """Entries of Lightning's dictionary of a scheduler."""
        given = {"interval": self.interval, "frequency": self.frequency, "monitor": self.monitor}
        return {key: value for key, value in given.items() if value is not None}


def hide_schedule(section: Any, takes: Callable[[str], tuple[Collection[str], bool]]) -> Any:
    """Move what LightningCLI has no place for into ``dict_kwargs``.

    Args:
        section: The config's `lr_scheduler`, which may also be a name, a file or nothing.
        takes: Gives the arguments of a class, by its name, and whether it goes by a metric. Asked
            only where needed.
    """
    if not isinstance(section, dict) or not isinstance(section.get("class_path"), str):
        return section
    given = section.get("init_args") or {}
    if not isinstance(given, dict):
        return section
    arguments = dict(given)
    hidden = dict(section.get("dict_kwargs") or {})
    _hide_stepping(section, arguments, hidden, takes)
    _hide_counted(arguments, hidden)
    moved = (*STEPPING_KEYS, "init_args", "dict_kwargs")
    shown = {key: value for key, value in section.items() if key not in moved}
    if arguments:
        shown["init_args"] = arguments
    if hidden:
        shown["dict_kwargs"] = hidden
    return shown


def _hide_counted(arguments: dict[str, Any], hidden: dict[str, Any]) -> None:
    """Hide which numbers of steps the training counts, all under one key.

    jsonargparse takes an argument of the class out of ``dict_kwargs``.
    """
    counted = [name for name in COUNTS if arguments.get(name) == AUTO]
    if counted:
        arguments |= dict.fromkeys(counted, _PLACEHOLDER)
        hidden[AUTO] = counted


def _hide_stepping(
    section: Mapping[str, Any],
    arguments: dict[str, Any],
    hidden: dict[str, Any],
    takes: Callable[[str], tuple[Collection[str], bool]],
) -> None:
    """Hide when a schedule is stepped, and the metric of a plateau class that does not take it.

    An argument of such a name belongs to the class, as it does for LightningCLI.
    """
    stepping = {key: section[key] for key in STEPPING_KEYS if section.get(key) is not None}
    if not stepping and "monitor" not in arguments:
        return
    own, is_plateau = takes(section["class_path"])
    for key, value in stepping.items():
        target = arguments if key in own else hidden
        target[key] = value
    if is_plateau and "monitor" in arguments and "monitor" not in own:
        hidden["monitor"] = arguments.pop("monitor")


def show_schedule(section: Any) -> Any:
    """Undo `hide_schedule`, for a config that people read and that is given back with ``-c``."""
    hidden = section.get("dict_kwargs") if isinstance(section, dict) else None
    if not isinstance(hidden, dict):
        return section
    shown = dict(section)
    rest = dict(shown.pop("dict_kwargs"))
    arguments = dict.fromkeys(rest.pop(AUTO, None) or (), AUTO)
    if "monitor" in rest:
        arguments["monitor"] = rest.pop("monitor")
    if arguments:
        shown["init_args"] = {**(shown.get("init_args") or {}), **arguments}

    # What is left belongs next to the class, or to others.
    shown |= {key: rest.pop(key) for key in STEPPING_KEYS if key in rest}
    if rest:
        shown["dict_kwargs"] = rest
    return shown


def read_schedule(section: Any) -> Schedule:
    """Read what `hide_schedule` has hidden, of the parsed `lr_scheduler`."""
    hidden: Mapping[str, Any] = {}
    if section is not None and "class_path" in section:
        hidden = section.get("dict_kwargs") or {}
    frequency = read_scalar(str(hidden["frequency"])) if "frequency" in hidden else None
    return Schedule(
        interval=hidden.get("interval"),
        frequency=frequency if isinstance(frequency, int) else None,
        monitor=hidden.get("monitor"),
        counted=tuple(hidden.get(AUTO) or ()),
    )


def check_stepping(section: Any, resolved: Resolved) -> None:
    """Check the keys that `hide_schedule` has hidden, also of classes that the schema lacks.

    Raises:
        ConfigError: For the first that is wrong.
    """
    hidden: Any = section.get("dict_kwargs") if isinstance(section, dict) else None
    for key in STEPPING_KEYS if isinstance(hidden, dict) else ():
        schema = STEPPING_SCHEMAS[key]
        value = hidden.get(key)
        if not accepts(schema, value):
            raise error_at(
                f"{SECTION}.{key}: {describe_refused(schema, value)}",
                resolved.origin_of((SECTION, key)),
            )


def find_long_schedules(resolved: Resolved) -> Iterator[tuple[str, KeyPath]]:
    """Find numbers that count optimizer steps where the schedule is stepped once an epoch.

    Each with its key.
    """
    section = resolved.value_of(SECTION)
    if not isinstance(section, dict) or section.get("interval") == "step":
        return
    planned = _count_epochs(resolved)
    given = section.get("init_args")
    if planned is None or not isinstance(given, dict):
        return
    each = _read_int(section.get("frequency")) or 1
    num_steps = max(1, planned // each)
    for name in COUNTS:
        count = _read_int(given.get(name))
        if count is not None and count > _FAR * num_steps:
            path = (SECTION, "init_args", name)
            text = (
                f"{'.'.join(path)}: {count}, but the schedule is stepped once an epoch, {num_steps}"
                f" times in all; {SECTION}.interval: step steps it after each batch, and {AUTO}"
                " counts its steps"
            )
            yield text, path


def _count_epochs(resolved: Resolved) -> int | None:
    """Return the number of epochs that the config plans; None where it plans none."""
    trainer = resolved.section("trainer")
    epochs = trainer.get("max_epochs")
    has_other_end = any(trainer.get(key) not in (None, -1) for key in ("max_steps", "max_time"))
    if epochs is None:
        return None if has_other_end else _DEFAULT_EPOCHS
    number = _read_int(epochs)
    return number if number is not None and number > 0 else None


def _read_int(value: Any) -> int | None:
    """Read an integer, which is text where a flag sets it."""
    number = read_scalar(value)
    return number if is_int(number) else None
