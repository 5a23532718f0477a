"""A config that is parsed as `fit` parses it, measured, and not trained."""

from __future__ import annotations

from collections.abc import Callable

from lightkit.cli.answers import Found
from lightkit.cli.context import RunContext
from lightkit.cli.lightning_cli import LightkitCLI
from lightkit.cli.workbench import Workbench
from lightkit.tuning.settings import TuneSettings

__all__ = ["MeasuredConfig"]


class MeasuredConfig(LightkitCLI):
    """Measures in the place of training, and begins no run.

    Args:
        session: The invocation, as a `fit`.
        settings_of: Gives what is to be measured, from what the config says.
        budget_s: Seconds after which nothing else is tried; None for as many as it takes.
    """

    found: Found

    def __init__(
        self,
        session: RunContext,
        *,
        settings_of: Callable[[TuneSettings], TuneSettings],
        budget_s: float | None,
    ) -> None:
        self._settings_of = settings_of
        self._budget_s = budget_s
        super().__init__(session=session)

    def instantiate_classes(self) -> None:
        """Measure, which builds what it needs as often as it needs it."""
        assert self.session is not None
        section = self.config[self.subcommand]
        settings = self._settings_of(TuneSettings(**section["accelerator"].as_dict()))
        self.found = Workbench(self, self.session, settings, budget_s=self._budget_s, is_hurried=False).found()

    def _run_subcommand(self, subcommand: str) -> None:
        """Nothing is run."""
