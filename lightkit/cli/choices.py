"""What the `auto`s of a run's section `accelerator` have come to, as its manifest keeps it. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lightkit import runs

__all__ = ["Choices", "autos_in", "explained"]

_SECTION = "accelerator"
_KEY = "tuned"


@dataclass(frozen=True)
class Choices:
    """What the `auto`s of a config have come to.

    Args:
        values: By their keys in the section `accelerator`; None leaves a key as it would be without `accelerator`.
        source: `measured`, `cache`, `default`, or the folder of the run that has chosen.
        keys: Dotted keys of the saved config that differ because of it.
    """

    values: Mapping[str, Any]
    source: str
    keys: tuple[str, ...] = ()

    def described(self) -> dict[str, Any]:
        """Give what a manifest and the other ranks are told."""
        return {"chosen": dict(self.values), "source": self.source, "keys": list(self.keys)}

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Choices:
        """Read what `described` gave."""
        return cls(dict(told["chosen"]), str(told["source"]), tuple(told["keys"]))

    @classmethod
    def of_run(cls, run: runs.Run) -> Choices | None:
        """Give what a run has chosen; None where it has chosen nothing."""
        told = (runs.read_json(run.manifest_path) or {}).get(_KEY)
        return None if told is None else cls.of(told)

    def noted(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Write it into a manifest."""
        manifest[_KEY] = self.described()
        return manifest


def autos_in(saved: Mapping[str, Any]) -> tuple[str, ...]:
    """Name the keys of the section `accelerator` that are to be chosen."""
    section = saved.get(_SECTION)
    return tuple(key for key, value in section.items() if value == "auto") if isinstance(section, Mapping) else ()


def explained(run: runs.Run, now: Mapping[str, Any]) -> frozenset[str]:
    """Name the dotted keys in which a run's config differs from one that says `auto` only because it has chosen.

    Args:
        run: The run.
        now: The config, as it would be saved.
    """
    chosen = Choices.of_run(run)
    if chosen is None or {*chosen.values} != {*autos_in(now)}:
        return frozenset()
    return frozenset((*chosen.keys, *_dotted(chosen.values)))


def _dotted(keys: Iterable[str]) -> list[str]:
    return [f"{_SECTION}.{key}" for key in keys]
