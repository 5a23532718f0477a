"""What counts where a higher layer says one thing, and a lower one another in other words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lightkit.config.accelerator.counts import ALL, read_devices
from lightkit.config.accelerator.said import Said
from lightkit.config.accelerator.strategy import is_strategy_word
from lightkit.config.accelerator.words import ACCELERATOR_CLASSES, HOROVOD, KINDS, OLD_STRATEGIES
from lightkit.config.merge import class_of
from lightkit.config.origins import KeyPath, Origin

__all__ = ["is_remote", "kind_of", "outspoken"]

_REMOTE_ENGINES = ("spark", "ray", "slurm")
_NEVER_BOTH = ("gpus", "tpu_cores")


@dataclass(frozen=True)
class _Claim:
    """What a value says.

    Args:
        said: The value.
        key: Its subject among what is said.
        kind: Kind of device that it asks for, ``auto`` for any; None where it says nothing of it.
        number: Number of devices, likewise.
    """

    said: Said
    key: str
    kind: Any
    number: Any

    @property
    def subject(self) -> str:
        """What else cannot be said beside it; nothing for keys of devices, which add to each other."""
        if is_strategy_word(self.said):
            return "strategy"
        return self.key if self.key in ("strategy", "precision", "num_nodes") else ""

    def gives_way_to(self, other: _Claim, ranks: Mapping[Origin, int]) -> bool:
        """Tell whether another is of a higher layer; GPUs and TPU cores exclude each other whatever the layers."""
        if {self.key, other.key} == set(_NEVER_BOTH) and self.kind is not None and other.kind is not None:
            return "cpu" in (self.kind, other.kind) and self._is_below(other, ranks)  # `gpus: 0`
        return self._is_below(other, ranks)

    def _is_below(self, other: _Claim, ranks: Mapping[Origin, int]) -> bool:
        return ranks.get(self.said.origin, 0) < ranks.get(other.said.origin, 0)


def outspoken(
    said: Mapping[str, Sequence[Said]], ranks: Mapping[Origin, int]
) -> tuple[dict[str, list[Said]], dict[KeyPath, Said]]:
    """Let a layer win over what a lower one says in other words.

    It takes away only what it contradicts: the same subject, the kind of device (with the number, which was one of that
    kind), or the number alone. ``--trainer.devices=1`` leaves the TPU of ``accelerator: {tpu_cores: 8}``. Within one
    layer, and between GPUs and TPU cores, a contradiction stays one.

    Args:
        said: What the config says, by subject.
        ranks: Number of the layer of each place.

    Returns:
        What counts of it; and the keys of ``trainer`` and ``launch`` that do not count, each with what took its place.
    """
    claims = [_claim(one, key, said) for key, places in said.items() for one in places]
    kept: dict[str, list[Said]] = {}
    gone: dict[KeyPath, Said] = {}
    for claim in claims:
        higher = [other for other in claims if claim.gives_way_to(other, ranks)]
        against = _against(claim, higher)
        by = against or _against_number(claim, higher)
        if by is None:
            kept.setdefault(claim.key, []).append(claim.said)
        elif against is None and claim.kind is not None and claim.key != "devices":
            kept.setdefault("accelerator", []).append(replace(claim.said, value=claim.kind))
        if by is not None and claim.said.path[0] in ("trainer", "launch"):
            gone[claim.said.path] = by.said
    return kept, gone


def kind_of(said: Said) -> Any:
    """Give the kind of device that ``accelerator`` names: its class or its word where that is not known."""
    if said.value in (None, "auto"):
        return None
    named = class_of(said.node)
    if named is not None:
        return ACCELERATOR_CLASSES.get(named.rpartition(".")[2], named)
    return KINDS.get(said.value, said.value) if isinstance(said.value, str) else said.value


def is_remote(said: Mapping[str, Sequence[Said]]) -> bool:
    """Tell whether the engine's ranks run on machines that this one knows nothing of."""
    return any(one.value in _REMOTE_ENGINES for one in said.get("launch.engine", ()))


def _against(claim: _Claim, higher: Sequence[_Claim]) -> _Claim | None:
    """Give what leaves nothing of a claim."""
    if claim.subject:
        same = next((other for other in higher if other.subject == claim.subject), None)
        if same is not None:
            return same
    kinds = [other for other in higher if other.kind is not None]
    if claim.kind is None:
        on_gpus = claim.number == ALL or isinstance(claim.number, tuple)
        return next((other for other in kinds if on_gpus and other.kind == "cpu"), None)
    return None if any(other.kind == claim.kind for other in kinds) else next(iter(kinds), None)


def _against_number(claim: _Claim, higher: Sequence[_Claim]) -> _Claim | None:
    """Give what names another number; -1, for all, takes nothing away from a number of processes to launch."""
    numbers = [other for other in higher if other.number is not None]
    if "launch.processes" in (claim.key, *(other.key for other in numbers)):
        numbers = [other for other in numbers if ALL not in (other.number, claim.number)]
    if claim.number is None or any(_are_one(other, claim) for other in numbers):
        return None
    return next(iter(numbers), None)


def _are_one(one: _Claim, other: _Claim) -> bool:
    if "launch.processes" not in (one.key, other.key):
        return bool(one.number == other.number)
    lengths = [len(each.number) if isinstance(each.number, tuple) else each.number for each in (one, other)]
    return bool(lengths[0] == lengths[1])


def _claim(one: Said, key: str, said: Mapping[str, Sequence[Said]]) -> _Claim:
    value = one.value
    word = OLD_STRATEGIES.get(value.lower(), (None, None))[1] if isinstance(value, str) else None
    if is_strategy_word(one) or key == "strategy":
        return _Claim(one, key, word, None)
    if key == "accelerator":
        return _Claim(one, key, kind_of(one) or "auto", None)
    if key == "gpus":
        return _Claim(one, key, "cpu" if value in (None, 0, []) else "gpu", _number(one, said))
    if key == "tpu_cores":
        return _Claim(one, key, None if value in (None, 0) else "tpu", _number(one, said))
    if key == "num_processes":
        return _Claim(one, key, None if value is None or _counts_ranks(one, said) else "cpu", value)
    if key == "devices":
        words = [(word, other) for word in ("accelerator", "gpus", "tpu_cores") for other in said.get(word, ())]
        kinds = [_claim(other, word, said).kind for word, other in words if _beside(other, one)]
        kinds = [kind for kind in kinds if kind not in (None, "auto")]
        return _Claim(one, key, next(iter(kinds), None), _number(one, said) or "auto")
    if key == "launch.processes" and type(value) is int and value > 0 and not is_remote(said):
        return _Claim(one, key, None, value)
    return _Claim(one, key, None, None)


def _number(one: Said, said: Mapping[str, Sequence[Said]]) -> Any:
    """Read a number in one form: -1 for all, a tuple for a list, None where it says none."""
    value = read_devices(one).value
    if value in (0, []):
        return None
    value = ALL if one.path[-1] == "gpus" and value == "all" else value
    return None if value in (1, ALL) and _is_horovod(said) else value  # one device for each of its processes


def _counts_ranks(one: Said, said: Mapping[str, Sequence[Said]]) -> bool:
    """Tell whether ``num_processes`` counts the processes of devices that another key names."""
    named = [*said.get("gpus", ()), *said.get("tpu_cores", ())]
    if any(_beside(other, one) and other.value not in (None, 0, []) for other in named):
        return True
    return _is_horovod(said)


def _is_horovod(said: Mapping[str, Sequence[Said]]) -> bool:
    strategies = [class_of(other.node) or other.value for other in said.get("strategy", ())]
    return any(str(word).lower() in ("horovod", "horovodstrategy", HOROVOD.lower()) for word in strategies)


def _beside(one: Said, other: Said) -> bool:
    return bool(one.path[0] == other.path[0])
