"""What the `auto`s of a config have come to, in words and for the records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lightkit.tuning.batch_size import FoundSize
from lightkit.tuning.learning_rate import FoundRate
from lightkit.tuning.variant import Findings, Variant, rate_words

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
            "measured_s": None if findings is None or SPEED in self.before else round(findings.seconds, 3),
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
        facts = self._facts(findings)
        if len(findings.measurements) == 1:
            tried = "nothing else was tried for lack of time" if findings.left_out else "there is nothing else to try"
            return f"{words}: {tried} ({', '.join([*facts, *_first_left_out(findings)])})"
        facts += [f"{len(findings.left_out)} not tried for lack of time"] * bool(findings.left_out)
        measured = findings.of_chosen
        if findings.gain is None or findings.gain <= 1 or measured is None:
            return f"{words}: nothing that was tried is faster ({', '.join(facts)})"
        base = findings.measurements[0].variant
        fixing = self._fixing(measured.variant, base)
        facts += [f"{fixing} fixes it"] * bool(fixing)
        return (
            f"{words}: {findings.gain:.2g} times as fast as {base.words_against(measured.variant)} ({', '.join(facts)})"
        )

    def _facts(self, findings: Findings) -> list[str]:
        """Give the speed that was measured, and the seconds that measuring took."""
        measured, facts = findings.of_chosen, list[str]()
        if measured is not None and measured.samples_per_s is not None:
            facts.append(f"{rate_words(measured.samples_per_s)} samples/s")
            if not findings.are_threads_measured:
                asked, had = findings.chosen.threads, measured.variant.threads
                facts[-1] += f" with {had} thread{'s' if had != 1 else ''}, {asked} not measured"
        return [*facts, "measured before" if SPEED in self.before else f"{findings.seconds:.1f} s measured"]

    def _fixing(self, measured: Variant, base: Variant) -> str:
        """Give the flags that fix what was open, and is other than in the baseline."""
        changed = [key for key in measured.differs_from(base) if self.chosen.get(key) is not None]
        return " ".join(f"--accelerator.{key}={_flag_value(self.chosen[key])}" for key in changed)


def _first_left_out(findings: Findings) -> list[str]:
    """Name what there was no time for."""
    words = [each.partition(":")[0] for each in findings.left_out]
    more = f" and {len(words) - 1} more" if len(words) > 1 else ""
    return [f"left out: {words[0]}{more}"] if words else []


def _flag_value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
