"""Precedence between equivalent hardware keys set in different layers: the highest layer wins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lightkit.config.accelerator.keys import (
    RawSetting,
    RawSettings,
    is_horovod,
    is_int,
    is_remote,
    parse_devices,
)
from lightkit.config.accelerator.vocabulary import ACCELERATOR_CLASSES, ALL, KINDS, OLD_STRATEGIES
from lightkit.config.merge import class_of
from lightkit.config.origins import KeyPath, Origin


@dataclass(frozen=True)
class _Claim:
    """What one setting asks for.

    Args:
        setting: The setting.
        subject: Its subject.
        kind: Kind of device, ``auto`` for any; None where it asks for none.
        number: Number of devices, likewise.
        rank: Number of its layer.
    """

    setting: RawSetting
    subject: str
    kind: Any
    number: Any
    rank: int

    @property
    def exclusive(self) -> str:
        """What a higher layer replaces as a whole; empty for keys of devices, which add to each other."""
        if self.setting.is_strategy_word:
            return "strategy"
        return self.subject if self.subject in ("strategy", "precision", "num_nodes") else ""

    @property
    def length(self) -> Any:
        return len(self.number) if isinstance(self.number, tuple) else self.number

    def gives_way_to(self, other: _Claim) -> bool:
        """Tell whether another is of a higher layer; GPUs and TPU cores exclude each other whatever the layers."""
        if {self.subject, other.subject} == {"gpus", "tpu_cores"} and None not in (self.kind, other.kind):
            return "cpu" in (self.kind, other.kind) and self.rank < other.rank  # `gpus: 0`
        return self.rank < other.rank


def apply_precedence(
    settings: RawSettings, ranks: Mapping[Origin, int]
) -> tuple[RawSettings, dict[KeyPath, RawSetting]]:
    """Drop what a higher layer sets in other words.

    Only what it contradicts is dropped: the same subject, the kind of device (with the number, which was one of that
    kind), or the number alone. ``--trainer.devices=1`` leaves the TPU of ``accelerator: {tpu_cores: 8}``. Within one
    layer, and between GPUs and TPU cores, a contradiction stays one.

    Args:
        settings: Settings by subject.
        ranks: Number of the layer of each place.

    Returns:
        The settings that count; and the keys of ``trainer`` and ``launch`` that do not, each with what replaced it.
    """
    claims = [_make_claim(one, subject, settings, ranks) for subject, found in settings.items() for one in found]
    kept: RawSettings = {}
    replaced: dict[KeyPath, RawSetting] = {}
    for claim in claims:
        higher = [other for other in claims if claim.gives_way_to(other)]
        by_kind = _find_other_kind(claim, higher)
        by = by_kind or _find_other_number(claim, higher)
        if by is None:
            kept.setdefault(claim.subject, []).append(claim.setting)
        elif by_kind is None and claim.kind is not None and claim.subject != "devices":
            kept.setdefault("accelerator", []).append(replace(claim.setting, value=claim.kind))
        if by is not None and claim.setting.path[0] in ("trainer", "launch"):
            replaced[claim.setting.path] = by.setting
    return kept, replaced


def find_kind(setting: RawSetting) -> Any:
    """Give the kind of device that ``accelerator`` names: its class or its word where that is not known."""
    if setting.value in (None, "auto"):
        return None
    if (named := class_of(setting.node)) is not None:
        return ACCELERATOR_CLASSES.get(named.rpartition(".")[2], named)
    return KINDS.get(setting.value, setting.value) if isinstance(setting.value, str) else setting.value


def _find_other_kind(claim: _Claim, higher: Sequence[_Claim]) -> _Claim | None:
    """Give the higher claim that leaves nothing of a claim: on the same subject, or another kind of device."""
    same = next((other for other in higher if claim.exclusive and other.exclusive == claim.exclusive), None)
    if same is not None:
        return same
    kinds = [other for other in higher if other.kind is not None]
    if claim.kind is None:
        on_gpus = claim.number == ALL or isinstance(claim.number, tuple)
        return next((other for other in kinds if on_gpus and other.kind == "cpu"), None)
    return None if any(other.kind == claim.kind for other in kinds) else next(iter(kinds), None)


def _find_other_number(claim: _Claim, higher: Sequence[_Claim]) -> _Claim | None:
    """Give the higher claim with another number; -1 takes nothing away from a number of processes to launch."""
    numbers = [other for other in higher if other.number is not None]
    if "launch.processes" in (claim.subject, *(other.subject for other in numbers)):
        numbers = [other for other in numbers if ALL not in (other.number, claim.number)]
    for other in numbers:
        counts_processes = "launch.processes" in (other.subject, claim.subject)
        if other.number == claim.number or (counts_processes and other.length == claim.length):
            return None
    return None if claim.number is None else next(iter(numbers), None)


def _make_claim(setting: RawSetting, subject: str, settings: RawSettings, ranks: Mapping[Origin, int]) -> _Claim:
    value, kind, number = setting.value, None, None
    beside = {
        key: [other for other in settings.get(key, ()) if other.path[0] == setting.path[0]]
        for key in ("accelerator", "gpus", "tpu_cores")
    }
    with_horovod = any(is_horovod(other) for other in settings.get("strategy", ()))
    if subject in ("gpus", "tpu_cores", "devices"):
        number = parse_devices(setting).value
        number = ALL if subject == "gpus" and number == "all" else None if number in (0, []) else number
        if with_horovod and number in (1, ALL):  # one device for each of its processes
            number = None
    if setting.is_strategy_word or subject == "strategy":
        kind = OLD_STRATEGIES.get(value.lower(), (None, None))[1] if isinstance(value, str) else None
    elif subject == "accelerator":
        kind = find_kind(setting) or "auto"
    elif subject == "gpus":
        kind = "cpu" if value in (None, 0, []) else "gpu"
    elif subject == "tpu_cores":
        kind = None if value in (None, 0) else "tpu"
    elif subject == "num_processes":
        of_devices = any(other.value not in (None, 0, []) for key in ("gpus", "tpu_cores") for other in beside[key])
        kind, number = None if value is None or of_devices or with_horovod else "cpu", value
    elif subject == "devices":
        claims = [_make_claim(other, key, settings, ranks) for key, found in beside.items() for other in found]
        kind = next((claim.kind for claim in claims if claim.kind not in (None, "auto")), None)
        number = number or "auto"
    elif subject == "launch.processes" and is_int(value) and value > 0 and not is_remote(settings):
        number = value
    return _Claim(setting, subject, kind, number, ranks.get(setting.origin, 0))
