"""What a config's `auto`s come to: the real model on real batches, in this order: batch size, speed, learning rate."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkit.cli.kept_findings import Limit, code_of, keep, kept
from lightkit.cli.launching import plan_of
from lightkit.cli.real_batches import Batches, taken_batches
from lightkit.cli.session import Session
from lightkit.cli.twin import Twin
from lightkit.config.hardware.choosing import place_of
from lightkit.config.hardware.settings import AcceleratorSettings
from lightkit.errors import ConfigError
from lightkit.machine import this_machine
from lightkit.tuning import findings_cache
from lightkit.tuning.batch_size import FoundSize, find_batch_size
from lightkit.tuning.computation import Computation
from lightkit.tuning.learning_rate import FoundRate, find_learning_rate
from lightkit.tuning.measuring import measure
from lightkit.tuning.short_fits import precision_plugin, without_trace
from lightkit.tuning.variant import Findings, Variant

if TYPE_CHECKING:
    from lightkit.cli.lightning import LightkitCLI

__all__ = ["Found", "Workbench"]

_log = logging.getLogger("lightkit")
_EPOCHS = 1000  # of Lightning's trainer that is told of none
_OF_A_STEP = ("accelerator", "precision", "deterministic", "accumulate_grad_batches", "gradient_clip_val", "devices")
_LENGTH = ("max_epochs", "max_steps", "accumulate_grad_batches", "limit_train_batches", "overfit_batches")
_SPEED = ("precision", "memory_format", "compile", "tf32", "fused", "threads", "num_workers")


@dataclass(frozen=True)
class Found:
    """What the `auto`s of a config have come to, and what has shown it.

    Args:
        chosen: By the keys of the section `accelerator`; None leaves what is said elsewhere.
        source: `measured` or `cache`.
        seconds: That it took.
        findings: Of the settings for speed, where they were asked for.
        size: Of the batch size, where it was asked for.
        rate: Of the learning rate, where it was asked for.
    """

    chosen: dict[str, Any]
    source: str
    seconds: float
    findings: Findings | None = None
    size: FoundSize | None = None
    rate: FoundRate | None = None

    @property
    def lines(self) -> list[str]:
        """Say what was chosen and what it gains, a line for each search."""
        lines = [] if self.size is None else [f"tuned  {self.size.words}"]
        if self.findings is not None:
            lines.append(f"tuned  {_words_of(self.findings, self.chosen, self.source)}")
        return lines if self.rate is None or self.rate.refused else [*lines, f"tuned  {self.rate.words}"]

    def event(self) -> dict[str, Any]:
        """Give the fields of the event `tune`."""
        findings = self.findings
        return {
            "chosen": self.chosen,
            "source": self.source,
            "seconds": round(self.seconds, 3),
            "gain": None if findings is None or findings.gain is None else round(findings.gain, 3),
        }


def _words_of(findings: Findings, chosen: Mapping[str, Any], source: str) -> str:
    """Say what was chosen for speed, and what it gains."""
    best = findings.chosen
    words = best.words
    if chosen.get("num_workers") is not None:
        words += f", {chosen['num_workers']} worker{'s' if chosen['num_workers'] != 1 else ''}"
    rate = None if findings.of_chosen is None else findings.of_chosen.samples_per_s
    measured = f"{findings.seconds:.1f} s measured" if source == "measured" else "measured before"
    facts = [measured] if rate is None else [f"{rate:.3g} samples/s", measured]
    facts += [f"{len(findings.left_out)} not tried for lack of time"] * bool(findings.left_out)
    if findings.gain is None or findings.gain <= 1:
        return f"{words}: nothing that was tried is faster ({', '.join(facts)})"
    base = findings.measurements[0].variant.precision
    said = f"--trainer.precision={best.precision}"
    return f"{words}: {findings.gain:.2g} times as fast as {base} ({', '.join([*facts, f'{said} fixes it'])})"


def _values_of(findings: Findings) -> dict[str, Any]:
    """Give the choice by the keys of the section `accelerator`."""
    return {**asdict(findings.chosen), "num_workers": findings.num_workers}


class Workbench:
    """Measures what a config leaves open, and leaves nothing of it behind but a file in the folder of all runs.

    Args:
        cli: Has parsed the config.
        session: The invocation.
        settings: The section `accelerator`.
        budget_s: Seconds for batch size and speed together, with the loading of what they are measured on; half of
            them for the batch size where both are asked for. None for as many as it takes. A learning rate takes the
            steps that it takes.
        is_hurried: Whether a training waits for it, whose expected time limits it too.
    """

    def __init__(
        self,
        cli: LightkitCLI,
        session: Session,
        settings: AcceleratorSettings,
        *,
        budget_s: float | None,
        is_hurried: bool,
    ) -> None:
        self._session = session
        self._cli = cli
        self._section = cli.config[cli.subcommand]
        self._settings = self._with_homes(settings)
        self._autos = settings.autos()
        self._budget_s = budget_s
        self._is_hurried = is_hurried
        self._twin = Twin(cli)
        self._values: dict[str, Any] = dict(vars(self._section["trainer"]))
        self._seed = int(self._section["seed_everything"] or 0)

    def found(self) -> Found:
        """Answer all `auto`s.

        Raises:
            LightkitError: If config or data are wrong, or an `auto` cannot be answered.
        """
        began = time.monotonic()
        autos = self._settings.autos()
        chosen: dict[str, Any] = {key: getattr(AcceleratorSettings(), key) for key in self._autos}
        size = rate = findings = None
        source = "measured"
        with without_trace() as folder:
            if "batch_size" in autos:
                asks_more = bool({*autos} & {*_SPEED})
                size = self._batch_size(None if self._budget_s is None else self._budget_s / (2 if asks_more else 1))
                chosen["batch_size"] = size.batch_size
                self._twin.data_differs["batch_size"] = size.batch_size
            if asked := {*autos} & {*_SPEED} - self._fixed():
                findings, source = self._speed(folder, began)
                chosen |= {key: value for key, value in _values_of(findings).items() if key in asked}
            if "learning_rate" in autos:
                rate = self._learning_rate(chosen)
                chosen["learning_rate"] = rate.learning_rate
        return Found(chosen, source, time.monotonic() - began, findings=findings, size=size, rate=rate)

    def _fixed(self) -> set[str]:
        """Name what a plugin of the trainer's decides, beside which Lightning takes no such value."""
        return set() if precision_plugin(self._values) is None else {"precision"}

    def _with_homes(self, settings: AcceleratorSettings) -> AcceleratorSettings:
        """Leave out what nothing in the config takes, and tell of it where the user has asked for it."""
        missing = {key: why for key in settings.autos() if (why := self._why_not(key)) is not None}
        for key, why in missing.items():
            if self._section["accelerator"][key] == "auto":
                _log.warning("accelerator.%s: auto chooses nothing, for nothing takes it: %s", key, why)
        nothing: dict[str, Any] = dict.fromkeys(missing)
        return replace(settings, **nothing)

    def _why_not(self, key: str) -> str | None:
        """Say why nothing takes what a key would come to; None where something does."""
        if key not in ("num_workers", "batch_size", "learning_rate"):
            return None
        try:
            place = place_of(key, self._session.resolved)
        except ConfigError as error:
            return str(error).splitlines()[0]
        if place is None:
            return "the config has no section data"
        return None if place in self._section else f"there is no {place}"

    def _speed(self, folder: Path, began: float) -> tuple[Findings, str]:
        """Measure settings for speed, or read what has been measured for the same, and say which.

        Args:
            folder: For what is written.
            began: When the seconds of the budget began.
        """
        root = Path(self._section["run"]["root"])
        key = findings_cache.key_of(self._parts())
        limit = self._limit()
        if self._is_hurried and (before := kept(root, key, limit)) is not None:
            return before, "cache"
        data = self._twin.data()
        taken = taken_batches(self._twin.model() if data is None else None, data, self._values, folder=str(folder))
        spent_s = time.monotonic() - began
        findings = measure(
            self._twin.model,
            taken.items,
            settings=self._settings,
            base=self._base(),
            trainer_values=self._values,
            datamodule=data,
            seed=self._seed,
            budget_s=None if self._budget_s is None else max(0.0, self._budget_s - spent_s),
            num_steps=self._num_steps(taken) if self._is_hurried else None,
            ranks=self._ranks,
            cores=this_machine().cores,
            load_s=taken.load_s,
        )
        if len(findings.measurements) > 1 or not findings.left_out:  # else a busy moment would decide for good
            keep(root, key, findings, limit)
        return findings, "measured"

    def _limit(self) -> Limit:
        """Describe what limits the time."""
        length = {key: str(self._values.get(key)) for key in _LENGTH} if self._is_hurried else None
        return {"budget_s": self._budget_s, "trainer": length}

    def _base(self) -> Variant:
        """Give what is fixed, and the defaults of the rest."""
        keys = ("memory_format", "compile", "tf32", "fused")
        precision = str(self._values.get("precision") or "32-true")
        return Variant(precision, **{key: self._said(key) for key in keys}, threads=self._section["launch"]["threads"])

    def _num_steps(self, taken: Batches) -> int | None:
        """Count the batches of the whole training that each process computes; None where nobody knows."""
        epochs, steps = self._values.get("max_epochs"), self._values.get("max_steps", -1)
        limits = [] if steps in (None, -1) else [steps * int(self._values.get("accumulate_grad_batches") or 1)]
        if taken.per_epoch is not None and epochs != -1 and not (epochs is None and limits):
            limits.append(-(-taken.per_epoch // self._processes) * (_EPOCHS if epochs is None else epochs))
        return min(limits, default=None)

    def _parts(self) -> dict[str, Any]:
        """Give what decides how fast a step is, apart from the machine and the versions."""
        sections = {name: self._section.get(name) for name in ("model", "data", "optimizer")}
        said = {name: None if one is None else one.as_dict() for name, one in sections.items()}
        return {
            **said,
            "data_differs": self._twin.data_differs,
            "code": code_of(self._cli),
            "trainer": {key: str(self._values.get(key)) for key in _OF_A_STEP},
            "accelerator": asdict(self._settings),
            "threads": self._section["launch"]["threads"],
            "ranks": self._ranks,
        }

    def _batch_size(self, budget_s: float | None) -> FoundSize:
        return find_batch_size(
            self._twin.model,
            self._twin.data(),
            trainer_values=self._values,
            seed=self._seed,
            ranks=self._ranks,
            budget_s=budget_s,
        )

    def _learning_rate(self, chosen: dict[str, Any]) -> FoundRate:
        computed = {key: chosen.get(key, self._said(key)) for key in ("memory_format", "compile", "tf32", "fused")}
        values = {**self._values, **({"precision": chosen["precision"]} if chosen.get("precision") else {})}
        return find_learning_rate(
            self._twin.model,
            self._twin.data(),
            trainer_values=values,
            seed=self._seed,
            callbacks=lambda: [Computation(**computed)],
        )

    def _said(self, key: str) -> Any:
        value = getattr(self._settings, key)
        return getattr(AcceleratorSettings(), key) if value == "auto" else value

    @property
    def _ranks(self) -> int:
        """Processes that train on this machine."""
        rank = None if self._session.seat is None else self._session.seat.rank
        if rank is not None and rank.engine != "local":
            return max(1, rank.local_size)
        plan = plan_of(self._session)  # rank 0 of Lightning's own launcher knows of no others yet
        return 1 if plan is None else max(1, plan.local_processes)

    @property
    def _processes(self) -> int:
        """Processes that train, which share an epoch."""
        rank = None if self._session.seat is None else self._session.seat.rank
        if rank is not None and rank.engine != "local":
            return max(1, rank.size)
        plan = plan_of(self._session)
        return 1 if plan is None else max(1, abs(plan.processes))
