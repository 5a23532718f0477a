"""How many devices, or which ones: the forms in which people say it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lightkit.config.accelerator.said import Said
from lightkit.config.origins import dotted, mistake
from lightkit.config.yaml_reader import read_scalar

__all__ = ["ALL", "read_devices", "read_flag", "read_gpus", "read_processes", "read_tpu_cores"]

ALL = -1
_ALL_WORDS = ("all", "auto")
_GPUS = "a number of GPUs, their numbers such as [0, 3] or '0,3', or -1 or all for every visible one"
_CORES = 8  # of a TPU v2 or v3; the machine's own number counts where it is known


def read_gpus(said: Said) -> Said:
    """Read ``gpus``: None, a number, `ALL`, or a tuple of numbers.

    Raises:
        ConfigError: If it is none of the forms.
    """
    value = said.value
    if value is None or value == []:
        return replace(said, value=None if value is None else 0)
    if isinstance(value, bool):
        raise said.wrong(f"{_GPUS}; true and false say neither how many nor which")
    if value in _ALL_WORDS:
        return replace(said, value=ALL)
    numbers = _numbers(value)
    if numbers is not None:
        return replace(said, value=_distinct(said, numbers))
    if not _is_count(value) and value != ALL:
        raise said.wrong(_GPUS)
    return said


def read_tpu_cores(said: Said, *, num_cores: int | None = None) -> Said:
    """Read ``tpu_cores``: None, a number of cores, ``auto``, or a tuple with the one core that is meant.

    Args:
        said: The value.
        num_cores: Cores of this machine's TPU, where that is known.

    Raises:
        ConfigError: If it is none of the forms, or a number that Lightning does not take.
    """
    most = num_cores or _CORES
    numbers_of_all = "1" if most == 1 else f"1, {most}"
    value, expected = said.value, f"{numbers_of_all}, auto, or the number of one core such as [{most - 1}]"
    if value in (None, 0) and not isinstance(value, bool):
        return replace(said, value=None)
    if value in _ALL_WORDS:
        return replace(said, value="auto")
    numbers = _numbers(value)
    if numbers is not None:
        if len(numbers) != 1 or not 0 <= numbers[0] < most:
            raise said.wrong(f"{expected}; Lightning takes one core or all, and counts them from 0")
        return replace(said, value=numbers)
    if isinstance(value, bool) or value not in (1, most):
        raise said.wrong(f"{expected}; Lightning takes one core or all of a TPU's")
    return said


def read_processes(said: Said) -> Said:
    """Read a number of processes or machines.

    Raises:
        ConfigError: If it is no positive number, nor null.
    """
    if said.value is not None and not (_is_count(said.value) and said.value > 0):
        raise said.wrong("a number from 1")
    return said


def read_devices(said: Said) -> Said:
    """Read today's ``trainer.devices``: None for ``auto``, a tuple for numbers; all else is Lightning's to refuse.

    Raises:
        ConfigError: If a device is named twice.
    """
    value = said.value
    numbers = _numbers(value)
    if numbers is not None:
        return replace(said, value=_distinct(said, numbers))
    return replace(said, value=None if value == "auto" else value)


def read_flag(said: Said) -> Said:
    """Read a switch.

    Raises:
        ConfigError: If it is neither true nor false, nor null.
    """
    if said.value is not None and not isinstance(said.value, bool):
        raise said.wrong("true or false")
    return said


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _numbers(value: Any) -> tuple[int, ...] | None:
    """Read ``[0, 3]`` and ``0,3``."""
    words: Sequence[Any]
    if isinstance(value, str) and "," in value:
        words = [word.strip() for word in value.split(",") if word.strip()]
    elif isinstance(value, list):
        words = value
    else:
        return None
    numbers = [read_scalar(word) if isinstance(word, str) else word for word in words]
    return tuple(numbers) if numbers and all(map(_is_count, numbers)) else None


def _distinct(said: Said, numbers: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(numbers)) < len(numbers):
        raise mistake(f"{dotted(said.path)}: {list(numbers)} names a device twice", said.origin)
    return numbers
