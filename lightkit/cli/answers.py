"""What the `auto`s of a config have come to, in words and for the records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lightkit.tuning.batch_size import FoundSize
from lightkit.tuning.learning_rate import FoundRate
from lightkit.tuning.variant import Findings

__all__ = ["BATCH_SIZE", "LEARNING_RATE", "SPEED", "Found"]

BATCH_SIZE, SPEED, LEARNING_RATE = "batch_size", "speed", "learning_rate"
"""The searches."""


@dataclass(frozen=True)
class Found:
    """What the `auto`s of a config have come to, and what has shown it.

    Args:
        chosen: By the keys of the section `accelerator`; None leaves what is said elsewhere.
        seconds: That it took.
        sought: Those of the keys that a search was to answer.
        before: Searches whose findings were kept from before.
        findings: Of the settings for speed, where they were asked for.
        size: Of the batch size, where it was asked for.
        rate: Of the learning rate, where it was asked for.
    """

    chosen: dict[str, Any]
    seconds: float
    sought: frozenset[str] = frozenset()
    before: frozenset[str] = frozenset()
    findings: Findings | None = None
    size: FoundSize | None = None
    rate: FoundRate | None = None

    @property
    def source(self) -> str:
        """`cache` where nothing was measured now, else `measured`."""
        searched = {BATCH_SIZE: self.size, SPEED: self.findings, LEARNING_RATE: self.rate}
        asked = {name for name, found in searched.items() if found is not None}
        return "cache" if asked and asked <= self.before else "measured"

    @property
    def unanswered(self) -> tuple[str, ...]:
        """Keys that were sought, whose search has not ended or was not begun."""
        shown = {BATCH_SIZE: self.size, LEARNING_RATE: self.rate}
        return tuple(key for key in self.chosen if key in self.sought and shown.get(key, self.findings) is None)

    @property
    def lines(self) -> list[str]:
        """Say what was chosen and what it gains, a line for each search."""
        lines = [] if self.size is None else [f"{self.size.words}{self._note(BATCH_SIZE)}"]
        if self.findings is not None:
            lines.append(self._speed_words(self.findings))
        if self.rate is not None and not self.rate.refused:
            lines.append(f"{self.rate.words}{self._note(LEARNING_RATE)}")
        return [f"tuned  {line}" for line in lines]

    def event(self) -> dict[str, Any]:
        """Give the fields of the event `tune`."""
        findings = self.findings
        return {
            "chosen": self.chosen,
            "source": self.source,
            "seconds": round(self.seconds, 3),
            "gain": None if findings is None or findings.gain is None else round(findings.gain, 3),
        }

    def _note(self, search: str) -> str:
        return "; measured before" if search in self.before else ""

    def _speed_words(self, findings: Findings) -> str:
        """Say what was chosen for speed, and what it gains."""
        best, num_workers = findings.chosen, self.chosen.get("num_workers")
        words = best.words
        if num_workers is not None:
            words += f", {num_workers} worker{'s' if num_workers != 1 else ''}"
        rate = None if findings.of_chosen is None else findings.of_chosen.samples_per_s
        measured = "measured before" if SPEED in self.before else f"{findings.seconds:.1f} s measured"
        facts = [measured] if rate is None else [f"{rate:.3g} samples/s", measured]
        facts += [f"{len(findings.left_out)} not tried for lack of time"] * bool(findings.left_out)
        if findings.gain is None or findings.gain <= 1:
            return f"{words}: nothing that was tried is faster ({', '.join(facts)})"
        base = findings.measurements[0].variant.precision
        said = f"--trainer.precision={best.precision}"
        return f"{words}: {findings.gain:.2g} times as fast as {base} ({', '.join([*facts, f'{said} fixes it'])})"
