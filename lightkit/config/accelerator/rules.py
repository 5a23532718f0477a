"""Which kinds of device, strategies and numbers go together, and the precision that they compute in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lightkit.config.accelerator.counts import ALL
from lightkit.config.accelerator.devices import Devices
from lightkit.config.accelerator.said import Said, agreed, contradiction
from lightkit.config.accelerator.strategy import Strategy
from lightkit.config.accelerator.words import PRECISIONS, XLA_PRECISIONS, XLA_STRATEGIES
from lightkit.config.origins import Origin, mistake, near
from lightkit.config.tree import Leaf
from lightkit.errors import ConfigError

__all__ = ["Precision", "check_together", "decide_precision", "is_old_precision"]

_FOUND = {"tpu": "a TPU", "gpu": "GPUs", "mps": "Apple's GPU", "cpu": "no device but CPUs"}
_TRUE = ("1", "true", "yes")
_ON_GPUS_ONLY = ("fsdp", "deepspeed")


@dataclass(frozen=True)
class Precision:
    """A precision.

    Args:
        word: Lightning's word for it today.
        said: What asks for it.
        stays: Whether the trainer's own key says it already.
    """

    word: str
    said: Said
    stays: bool


def check_together(devices: Devices, strategy: Strategy | None, num_nodes: Said | None) -> None:
    """Check that the kind of device, its number and the strategy go together.

    Raises:
        ConfigError: If they do not; it shows both places.
    """
    _check_number(devices)
    if strategy is None or strategy.name is None:
        return
    name, kind = strategy.name, devices.kind
    if kind == "tpu" and name not in (*XLA_STRATEGIES, "single_device"):
        raise _both(strategy.said, devices, "a TPU takes the strategy xla, which Lightning chooses by itself")
    if kind in ("cpu", "gpu", "mps") and name in XLA_STRATEGIES:
        raise _both(strategy.said, devices, "the strategy xla is for TPUs only")
    if kind == "cpu" and name.startswith(_ON_GPUS_ONLY):
        raise _both(strategy.said, devices, f"{name} works on NVIDIA's GPUs only; on CPUs there is ddp")
    if name == "single_device" and devices.count_by is not None and _length(devices.count) > 1:
        raise contradiction(strategy.said, devices.count_by, "it trains on one device; for several there is ddp")
    if kind == "mps" and not name.startswith("single_device"):
        raise _both(strategy.said, devices, "Apple's GPU works alone, without a strategy")
    if name == "horovod" and num_nodes is not None and (num_nodes.value or 1) > 1:
        raise contradiction(strategy.said, num_nodes, "for Horovod the machines stand under launch.hosts: 'a:4,b:4'")


def _length(count: Any) -> int:
    """Give a number of devices, 1 where it is not known."""
    return len(count) if isinstance(count, tuple) else count if isinstance(count, int) else 1


def _check_number(devices: Devices) -> None:
    by, count = devices.count_by, devices.count
    if by is None or by.path[0] == "launch":
        return
    if count in (0, [], "") or (isinstance(count, int) and count < ALL):
        raise by.wrong("a number of devices from 1, their numbers, or -1 for all of them")
    if devices.kind == "cpu" and (count == ALL or isinstance(count, (tuple, str))):
        raise _both(by, devices, "on CPUs it is the number of processes, such as 2")


def decide_precision(
    said: Mapping[str, Sequence[Said]], *, on_xla: bool, environ: Mapping[str, str]
) -> Precision | None:
    """Give the precision that is said; None where Lightning's default holds.

    Args:
        said: What the config says, by subject.
        on_xla: Whether it will run on a TPU.
        environ: Environment variables; ``XLA_USE_BF16`` counts on a TPU.

    Raises:
        ConfigError: If there is no such precision, XLA has it not, or two places say different things.
    """
    chosen = agreed([_read(one) for one in said.get("precision", ())])
    own = next((one for one in said.get("precision", ()) if one.path[0] == "trainer" and one.value is not None), None)
    chosen = chosen if own is None else _read(own)
    stays = own is not None and not is_old_precision(own)
    if not on_xla:
        if chosen is None or chosen.value is None:
            return None
        return Precision(chosen.value, chosen, stays)
    variable = environ.get("XLA_USE_BF16", "")
    if variable.lower() in _TRUE:
        by_variable = Said(("XLA_USE_BF16",), Leaf(variable, Origin("variable", "XLA_USE_BF16")), "bf16-true")
        if chosen is None or chosen.value is None:
            return Precision("bf16-true", by_variable, False)
        if _on_xla(chosen) != "bf16-true":
            raise contradiction(chosen, by_variable, "say precision: bf16-true, or unset the variable")
    if chosen is None or chosen.value is None:
        return None
    word = _on_xla(chosen)
    return Precision(word, chosen, stays)


def is_old_precision(said: Said) -> bool:
    """Tell whether it is a precision in the words of Lightning 1.x; 32 and 64 are today's too."""
    return said.path[-1] == "precision" and str(said.value) in ("16", "bf16")


def _read(said: Said) -> Said:
    """Read a precision in today's words; what is wrong under ``trainer`` is Lightning's to refuse."""
    value = said.value
    word = PRECISIONS.get(str(value)) if isinstance(value, (int, str)) and not isinstance(value, bool) else None
    if word is None and value is not None and said.path[0] == "accelerator":
        words = ("auto", *PRECISIONS)
        raise said.wrong(f"one of {', '.join(words)}", near(str(value).lower(), words))
    return replace(said, value=word or value)


def _on_xla(said: Said) -> str:
    """Give what a precision is on a TPU.

    Raises:
        ConfigError: If XLA has it not.
    """
    word = XLA_PRECISIONS.get(str(_raw(said)))
    if word is None:
        says = f"{said}: on a TPU expected 32-true or bf16-true"
        why = "; 16-true computes in float32 there without a word, and mixed precision is refused"
        raise mistake(f"{says}{why}; say precision: bf16-true", said.origin)
    return word


def _raw(said: Said) -> Any:
    return said.node.value if isinstance(said.node, Leaf) else said.value


def _both(one: Said, devices: Devices, what_to_do: str) -> ConfigError:
    """Make the error that shows a value and what decides on the kind of device, or what Lightning will find."""
    other = devices.kind_by
    if other is None:
        found = _FOUND[str(devices.kind)]
        return mistake(f"{one}: Lightning finds {found} on this machine; {what_to_do}", one.origin)
    if other.origin == one.origin:
        return mistake(f"{one}: {what_to_do}", one.origin)
    return contradiction(one, other, what_to_do)
