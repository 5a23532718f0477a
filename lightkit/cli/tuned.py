"""Answers to the `auto`s of the section `accelerator`: recalled from a run, or found by measuring."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lightkit.cli.choices import Choices
from lightkit.cli.context import RunContext
from lightkit.cli.resume import RunStart
from lightkit.cli.stage import Stage
from lightkit.cli.stalling import measuring_watched
from lightkit.cli.timing import deadline_of
from lightkit.config.accelerator.settings import AcceleratorSettings
from lightkit.errors import LightkitError
from lightkit.hardware import this_machine
from lightkit.launch import read_watchdog
from lightkit.launch.plan import THREADS
from lightkit.tuning.allowance import SHARE_OF_TRAINING

if TYPE_CHECKING:
    from lightkit.cli.answers import Found
    from lightkit.cli.lightning_cli import LightkitCLI
    from lightkit.cli.workbench import Workbench
    from lightkit.tuning.learning_rate import FoundRate

__all__ = ["autos_of", "take_threads"]

_log = logging.getLogger("lightkit")
_FORKS = ("ddp_fork", "ddp_notebook")
_MOST_S = 30.0  # that measuring may take before a training


def autos_of(cli: LightkitCLI, session: RunContext) -> MeasuredAutos | None:
    """Give what answers the `auto`s of a config; None where it has none."""
    section = cli.config[cli.subcommand]
    settings = AcceleratorSettings(**section["accelerator"].as_dict())
    return MeasuredAutos(cli, session, settings) if settings.autos() else None


def take_threads(session: RunContext, section: Any) -> None:
    """Compute with the threads of the config: torch has made its pool by now. Processes started later are told.

    Args:
        session: The invocation, at whose end all is as before.
        section: The config of the command.
    """
    threads = section["launch"]["threads"]
    if threads is None:
        return
    before, told = torch.get_num_threads(), os.environ.get(THREADS)

    def take_back() -> None:
        torch.set_num_threads(before)
        os.environ.pop(THREADS, None)
        os.environ.update({} if told is None else {THREADS: told})

    session.stack.callback(take_back)
    torch.set_num_threads(threads)
    os.environ[THREADS] = str(threads)


class MeasuredAutos:
    """Answers the `auto`s of a stage's config.

    A run that goes on keeps what it has chosen; a stage that does not train measures nothing.

    Args:
        cli: Has parsed the config.
        session: The invocation.
        settings: The section `accelerator`.
    """

    def __init__(self, cli: LightkitCLI, session: RunContext, settings: AcceleratorSettings) -> None:
        self._cli = cli
        self._session = session
        self._settings = settings

    def settled(self, choices: Choices) -> dict[str, Any]:
        """Put choices in the place of the `auto`s, and give the config as the run folder keeps it."""
        return self._cli.settle(choices)

    def recalled(self, start: RunStart) -> Choices | None:
        """Give what is known without measuring; None where there is something to measure."""
        trains = self._session.command == "fit"
        run = start.run if start.is_old else None if trains else start.parent
        if run is not None and (told := Choices.of_run(run)) is not None:
            found = self._defaults(str(run.folder)).values
            return Choices({key: told.values.get(key, value) for key, value in found.items()}, told.source, told.keys)
        if not trains:
            return self._defaults("default")
        if (where := self._not_here(start)) is not None:
            self._session.tell(f"accelerator.{self._settings.autos()[0]}: auto measures nothing {where}")
            return self._defaults("default")
        return None

    def _not_here(self, start: RunStart) -> str | None:
        """Say why a training measures nothing; None where it does."""
        trainer = self._cli.config[self._cli.subcommand]["trainer"]
        if start.is_old and start.checkpoint is not None:
            return "in a run that goes on"
        if trainer.get("fast_dev_run"):
            return "in a fast_dev_run"
        on_gpus = trainer.get("accelerator") in ("gpu", "cuda", "auto", None) and this_machine().gpus != ()
        if on_gpus and str(trainer.get("strategy")).startswith(_FORKS):
            return f"before trainer.strategy: {trainer['strategy']} forks: what has used a GPU cannot be forked"
        return None

    def found(self, stage: Stage) -> Choices:
        """Measure, or read what has been measured.

        What ends the user's own model ends the training too, which then tells it as it would without `auto`; what was
        found until then counts. What lightkit refuses ends the training at once, whatever was found before it.

        Raises:
            LightkitError: If config or data are wrong.
            Stalled: If nothing was finished for longer than a training may take for it.
        """
        from lightkit.cli import workbench  # here: few runs measure
        from lightkit.tuning.short_fits import MEASURING  # likewise

        found = bench = None
        try:
            settings = self._without_rate(stage.start)
            patience = read_watchdog(self._session.resolved)
            with measuring_watched(self._session, stage, patience, phase=MEASURING):
                bench = workbench.Workbench(
                    self._cli, self._session, settings, budget_s=self._budget_s(), is_hurried=True
                )
                found = bench.found()
        except LightkitError:
            raise
        except Exception as error:  # noqa: BLE001 (the same comes again in training, with all that tells of it)
            found = self._found_before(error, bench)
        if found is None:
            return self._defaults("default")
        for line in found.lines:
            self._session.tell(line)
        if found.rate is not None:
            if found.rate.losses:
                _keep_curve(found.rate, stage.start.run.folder)
            if found.rate.learning_rate is None:
                _log.warning("accelerator.learning_rate: %s; the config's is kept", found.rate.words)
        stage.recorder.events.write("tune", **found.event())
        return Choices({**self._defaults("measured").values, **found.chosen}, found.source)

    def _found_before(self, error: Exception, bench: Workbench | None) -> Found | None:
        """Tell what has ended measuring, and give what was found until then; None where that is nothing."""
        found = None if bench is None else bench.so_far
        if found is not None and len(found.unanswered) == len(found.sought):
            found = None
        what = "nothing" if found is None else f"no {', no '.join(found.unanswered)}"
        says = f"{type(error).__name__}: {' '.join(self._session.resolved.masked(str(error)).split())}"
        _log.warning("accelerator: auto chooses %s, for measuring has ended with %s", what, says)
        return found

    def _without_rate(self, start: RunStart) -> AcceleratorSettings:
        """Ask for no learning rate where a checkpoint's optimizer brings its own."""
        if start.checkpoint is None or self._settings.learning_rate is None:
            return self._settings
        _log.warning(
            "accelerator.learning_rate: auto looks for none: the optimizer goes on with that of %s", start.checkpoint
        )
        return replace(self._settings, learning_rate=None)

    def _budget_s(self) -> float:
        """Give the seconds that measuring may take: a training with a deadline has none to give away."""
        deadline = deadline_of(self._session)
        if deadline is None:
            return _MOST_S
        left_s = (deadline - datetime.now(deadline.tzinfo)).total_seconds()
        return min(_MOST_S, max(0.0, SHARE_OF_TRAINING * left_s))

    def _defaults(self, source: str) -> Choices:
        return Choices({key: _default_of(key) for key in self._settings.autos()}, source)


def _keep_curve(rate: FoundRate, folder: Path) -> None:
    try:
        rate.write(folder)
    except OSError as error:
        _log.warning("accelerator.learning_rate: the curve of the search is not kept: %s", error)


def _default_of(key: str) -> Any:
    return getattr(AcceleratorSettings(), key)
