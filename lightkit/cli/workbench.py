"""What a config's `auto`s come to: the real model on real batches, in this order: batch size, speed, learning rate."""

from __future__ import annotations

import logging
import time
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkit.cli.answers import BATCH_SIZE, LEARNING_RATE, SPEED, Found
from lightkit.cli.context import RunContext
from lightkit.cli.finding_keys import COUNTED, content_of, kept_name, parts_of
from lightkit.cli.kept_findings import Shelf
from lightkit.cli.length import Length
from lightkit.cli.real_batches import taken_batches
from lightkit.cli.twin import Twin
from lightkit.config import Origin, dotted
from lightkit.config.accelerator.homes import home_of
from lightkit.config.accelerator.said import Said
from lightkit.config.tree import Leaf
from lightkit.errors import ConfigError
from lightkit.hardware import this_machine
from lightkit.tuning.allowance import Allowance
from lightkit.tuning.batch_size import FoundSize, find_batch_size
from lightkit.tuning.computation import Computation
from lightkit.tuning.concluding import narrowed
from lightkit.tuning.learning_rate import FoundRate, find_learning_rate
from lightkit.tuning.measuring import measure
from lightkit.tuning.settings import TuneSettings
from lightkit.tuning.short_fits import precision_plugin, without_trace
from lightkit.tuning.variant import Findings, Variant

if TYPE_CHECKING:
    from lightkit.cli.lightning_cli import LightkitCLI

__all__ = ["Workbench"]

_log = logging.getLogger("lightkit")
_COMPUTING = ("memory_format", "compile", "tf32", "fused")
_SPEED = ("precision", *_COMPUTING, "threads", "num_workers")
_NO_SPEED: dict[str, Any] = {"batch_size": None, "learning_rate": None}


class Workbench:
    """Measures what a config leaves open, and leaves nothing of it behind but files in the folder of all runs.

    Args:
        cli: Has parsed the config.
        session: The invocation.
        settings: The section `accelerator`.
        budget_s: Seconds for all searches together, with the loading of what they are measured on; each has an equal
            share of what those before it have left. None for as many as it takes.
        is_hurried: Whether a training waits for it, whose expected time limits it too, and which takes what was
            measured before.
    """

    def __init__(
        self,
        cli: LightkitCLI,
        session: RunContext,
        settings: TuneSettings,
        *,
        budget_s: float | None,
        is_hurried: bool,
    ) -> None:
        self._began_s = time.monotonic()
        self._session = session
        self._cli = cli
        self._section = cli.config[cli.subcommand]
        self._settings = self._with_homes(settings)
        self._twin = Twin(cli)
        self._values: dict[str, Any] = dict(vars(self._section["trainer"]))
        self._length = Length(session, self._values)
        self._seed = int(self._section["seed_everything"] or 0)
        autos = {*self._settings.autos()}
        self._speed_keys = autos & {*_SPEED} - self._fixed()
        singly = autos & {BATCH_SIZE, LEARNING_RATE}
        self._sought = frozenset(singly | self._speed_keys)
        num_searches = len(singly) + bool(self._speed_keys)
        waits: dict[str, Any] = {}
        if is_hurried:
            waits = {"num_steps": self._length.num_steps, "most_s": self._length.most_s}
        self._allowance = Allowance(budget_s, num_searches=num_searches, **waits)
        self._shelf = Shelf(Path(self._section["run"]["root"]), is_read=is_hurried)
        self._chosen: dict[str, Any] = {key: getattr(TuneSettings(), key) for key in settings.autos()}
        self._shown: dict[str, Any] = {}

    @property
    def so_far(self) -> Found:
        """What the searches that have ended have found; the other `auto`s are at their defaults."""
        seconds = time.monotonic() - self._began_s
        return Found(dict(self._chosen), seconds, self._sought, frozenset(self._shelf.before), **self._shown)

    def found(self) -> Found:
        """Answer all `auto`s.

        Raises:
            LightkitError: If config or data are wrong, or an `auto` cannot be answered.
        """
        autos, chosen = self._settings.autos(), self._chosen
        with without_trace() as self._folder:
            if BATCH_SIZE in autos:
                size = self._shown["size"] = self._batch_size()
                chosen[BATCH_SIZE] = self._twin.data_differs[BATCH_SIZE] = size.batch_size
            if self._speed_keys:
                findings = self._shown["findings"] = self._speed()
                values = {**asdict(findings.chosen), "num_workers": findings.num_workers}
                chosen |= {key: value for key, value in values.items() if key in self._speed_keys}
            if LEARNING_RATE in autos:
                rate = self._shown["rate"] = self._learning_rate(chosen)
                chosen[LEARNING_RATE] = rate.learning_rate
        return self.so_far

    def _batch_size(self) -> FoundSize:
        part, computed = self._allowance.next(), {key: self._said(key) for key in _COMPUTING}
        parts = {
            **self._parts(),
            "computed": [computed, self._values.get("precision"), self._section["launch"]["threads"]],
            "content": self._content,
            "memory_gb": round((this_machine().memory_bytes or 0) / 1e9),
        }

        def look() -> FoundSize:
            return find_batch_size(
                self._twin.model,
                self._twin.data(),
                trainer_values=self._values,
                seed=self._seed,
                callbacks=lambda: [Computation(**computed)],
                ranks=self._length.ranks,
                part=part,
            )

        return self._shelf.kept_or_new(
            BATCH_SIZE,
            kept_name(BATCH_SIZE, parts),
            FoundSize.of_json,
            look,
            part,
            counts=lambda found: found.fits(
                ranks=self._length.ranks, num_samples=(self._content or {}).get(COUNTED, [None])[0]
            ),
            is_worth=lambda found: any(one.batch_size > found.first for one in found.tried),
        )

    def _speed(self) -> Findings:
        """Measure settings for speed, or read what has been measured for these, or for more."""
        part, settings, base = self._allowance.next(), replace(self._settings, **_NO_SPEED), self._base()
        parts, cores, is_strict = self._parts(), this_machine().cores or 1, self._values.get("deterministic") is True

        def look() -> Findings:
            data = self._twin.data()
            taken = taken_batches(
                self._twin.model() if data is None else None, data, self._values, folder=str(self._folder)
            )
            part.begin()
            return measure(
                self._twin.model,
                taken.items,
                settings=settings,
                base=base,
                trainer_values=self._values,
                datamodule=data,
                seed=self._seed,
                part=part,
                per_epoch=taken.per_epoch,
                ranks=self._length.ranks,
                cores=cores,
                load_s=taken.load_s,
            )

        def of_more() -> Findings | None:
            how: dict[str, Any] = {"cores": cores, "ranks": self._length.ranks, "is_deterministic": is_strict}
            start = kept_name(SPEED, parts)
            others = self._shelf.alike(start, Findings.of_json, part, took_s=lambda one: one.seconds) if start else ()
            all_less = [narrowed(one, settings, base, **how, has_time=has_time) for one, has_time in others]
            return min((one for one in all_less if one is not None), key=lambda one: len(one.left_out), default=None)

        return self._shelf.kept_or_new(
            SPEED,
            kept_name(SPEED, parts, asdict(settings), asdict(base)),
            Findings.of_json,
            look,
            part,
            otherwise=of_more,
            is_worth=lambda found: len(found.measurements) > 1,
        )

    def _learning_rate(self, chosen: dict[str, Any]) -> FoundRate:
        part = self._allowance.next()
        computed = {key: chosen.get(key, self._said(key)) for key in _COMPUTING}
        values = {**self._values, **({"precision": chosen["precision"]} if chosen.get("precision") else {})}
        parts = {
            **self._parts(),
            "computed": [computed, values.get("precision")],
            "content": self._content,
            "length": self._length.said,
        }

        def look() -> FoundRate:
            return find_learning_rate(
                self._twin.model,
                self._twin.data(),
                trainer_values=values,
                seed=self._seed,
                callbacks=lambda: [Computation(**computed)],
                part=part,
            )

        return self._shelf.kept_or_new(
            LEARNING_RATE,
            kept_name(LEARNING_RATE, parts),
            FoundRate.of_json,
            look,
            part,
            is_worth=lambda found: found.learning_rate is not None,
        )

    def _fixed(self) -> set[str]:
        """Name what a plugin of the trainer's decides, beside which Lightning takes no such value."""
        return set() if precision_plugin(self._values) is None else {"precision"}

    def _with_homes(self, settings: TuneSettings) -> TuneSettings:
        """Leave out what nothing in the config takes, and tell of it where the user has asked for it."""
        missing = {key: why for key in settings.autos() if (why := self._why_not(key)) is not None}
        for key, why in missing.items():
            if self._section["accelerator"].get(key) == "auto":
                _log.warning("accelerator.%s: auto chooses nothing, for nothing takes it: %s", key, why)
        nothing: dict[str, Any] = dict.fromkeys(missing)
        return replace(settings, **nothing)

    def _why_not(self, key: str) -> str | None:
        """Say why nothing takes what a key would come to; None where something does."""
        if key not in ("num_workers", "batch_size", "learning_rate"):
            return None
        try:
            home = home_of(
                key, Said(("accelerator", key), Leaf("auto", Origin("default")), "auto"), self._session.resolved
            )
            place = None if home is None else dotted(home)
        except ConfigError as error:
            return str(error).splitlines()[0]
        if place is None:
            return "the config has no section data"
        return None if place in self._section else f"there is no {place}"

    def _base(self) -> Variant:
        """Give what is fixed, and the defaults of the rest."""
        keys = ("memory_format", "compile", "tf32", "fused")
        precision = str(self._values.get("precision") or "32-true")
        return Variant(precision, **{key: self._said(key) for key in keys}, threads=self._section["launch"]["threads"])

    @cached_property
    def _content(self) -> Any:
        """Tells other data from the same; None where nothing does."""
        return content_of(self._session, self._twin, self._values, folder=self._folder)

    def _parts(self) -> dict[str, Any]:
        return parts_of(self._session, self._cli, self._twin, self._values, ranks=self._length.ranks)

    def _said(self, key: str) -> Any:
        value = getattr(self._settings, key)
        return getattr(TuneSettings(), key) if value == "auto" else value
