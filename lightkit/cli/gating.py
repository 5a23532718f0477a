"""From a run to a decision: it and the model that it is compared with are built and scored on the same samples."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from lightkit import runs
from lightkit.cli.console import configure_console, print_line, quiet_libraries
from lightkit.cli.deciding import decided, tell_decision
from lightkit.cli.explaining import located
from lightkit.cli.lightning_cli import LightkitCLI
from lightkit.cli.opponent import opponent_session
from lightkit.cli.refusals import refusals_told
from lightkit.cli.registry_address import address_of_run
from lightkit.commands.gate import GateOptions
from lightkit.config import read_scalar
from lightkit.distributed.process_group import process_group_left
from lightkit.errors import ConfigError, GateFailed, LightkitError
from lightkit.registry.champion import Baseline, fetched, find_version, of_run, versions_of
from lightkit.registry.gate import Decision, Drift, Scored, decide, worse_by
from lightkit.registry.gate_settings import GateSettings, read_gate, split_of
from lightkit.registry.promoted import champions_of_late
from lightkit.registry.promotion import PromotionLog
from lightkit.registry.samples import EvaluationData, evaluated
from lightkit.registry.scoring import Contender, accelerator_of, score
from lightkit.registry.store import Store, open_store
from lightkit.version import __version__

if TYPE_CHECKING:
    from lightkit.cli.context import RunContext

__all__ = ["Built", "gate_run", "judge_run"]

_NAMING = "--tracking-uri"


class Built(LightkitCLI):
    """Builds the model and the data as `lightkit export` does, and leaves it at that."""

    def _run_subcommand(self, subcommand: str) -> None:
        """Do nothing."""


def gate_run(session: RunContext, options: GateOptions) -> int:
    """Judge the session's run, write and tell the decision, and return the exit code.

    Raises:
        ConfigError: If the config is wrong, or the baseline cannot be scored.
        GateFailed: If it is not good enough.
        ServerAway: If MLflow does not answer.
    """
    began = time.monotonic()
    decision = judge_run(session, tracking_uri=options.tracking_uri)
    tell_decision(decision, session, options, seconds=time.monotonic() - began)
    if not decision.passed:
        raise GateFailed(session.resolved.masked("the gate says no: " + "; ".join(decision.reasons)))
    return 0


def judge_run(session: RunContext, *, tracking_uri: str | None, name: str | None = None) -> Decision:
    """Score the session's run and its baseline, write gate.json and the event, and tell notifiers.

    Args:
        session: As `lightkit export` has it.
        tracking_uri: Where MLflow is, if said.
        name: Registered model; by the settings if None.

    Raises:
        ConfigError: If the config is wrong, or the baseline cannot be scored.
        ServerAway: If MLflow does not answer.
    """
    run, checkpoint = session.base, session.ckpt_path
    if run is None or checkpoint is None:  # the command asks for a run, which names both
        raise ConfigError("gate: expected a run with a checkpoint. Say latest.")
    configure_console(session.mode, session.resolved.masked)
    quiet_libraries()
    settings = read_gate(session.resolved)
    settings = replace(settings, name=name or settings.name or run.name)
    with session.stack, process_group_left():
        try:
            with refusals_told(session.resolved):
                decision = _Judgement(session, settings, run, Path(checkpoint), tracking_uri).decision()
        except LightkitError as error:
            raise located(error, session.resolved).reworded(session.resolved.masked) from error
    decided(decision, session, run)
    return decision


@dataclass
class _Judgement:
    """One run before the gate.

    Args:
        session: Of the run.
        settings: The conditions, with the registered model's name.
        run: The run.
        checkpoint: Its weights.
        tracking_uri: Where MLflow is, if said.
        notices: What should be known of the decision.
    """

    session: RunContext
    settings: GateSettings
    run: runs.Run
    checkpoint: Path
    tracking_uri: str | None
    notices: list[str] = field(default_factory=list)

    def decision(self) -> Decision:
        """Score, and decide."""
        sha256 = runs.digest(self.checkpoint)
        if self.settings.metric is None:
            self.notices.append("nothing is judged: gate.metric is not set, such as --gate.metric=test/accuracy")
            nobody = Scored("the run", {})
            return decide(self.settings, nobody, None, num_samples=0, run=self._name, about=self._about(sha256, None))
        with ExitStack() as stack:
            place = Path(stack.enter_context(TemporaryDirectory(prefix="lightkit-gate-")))
            store = stack.enter_context(self._store())
            baseline = self._baseline(store, place)
            data, challenger = self._challenger()
            scored = None if baseline is None else self._opponent(baseline, data, challenger, sha256)
            drift = self._drift(store, data, place)
            if scored is not None and not math.isfinite(scored.metrics[self._metric]):
                value = scored.metrics[self._metric]
                self.notices.append(
                    f"{self._metric} of {scored.name} is {value}, so that nothing can be compared with it"
                )
        about = self._about(sha256, baseline) | {
            "data": {"fingerprint": data.fingerprint, "split": data.split, "described": self._described(data)}
        }
        return decide(
            self.settings,
            challenger,
            scored,
            drift=drift,
            num_samples=data.num_samples,
            run=self._name,
            about=about,
        )

    @property
    def _name(self) -> str:
        return f"{self.run.name}/{self.run.id}"

    def _about(self, sha256: str, baseline: Baseline | None) -> dict[str, Any]:
        """Give what a later command needs to tell whether the decision still holds."""
        against = None if baseline is None else {"version": baseline.version, "sha256": baseline.sha256}
        return {
            "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "lightkit": __version__,
            "checkpoint": {"path": runs.relative(self.checkpoint, self.run.folder), "sha256": sha256},
            "settings": {**self.settings.__dict__},
            "against": None if baseline is None else {**(against or {}), "run": baseline.run},
            "notices": self.notices,
        }

    @contextmanager
    def _store(self) -> Iterator[Store | None]:
        """Open the registry, where the settings ask for it and there is one."""
        if self.settings.baseline is None and self.settings.drift is None:
            yield None
            return
        address = address_of_run(self.tracking_uri, self.run, self.session.resolved)
        if address.database is not None and not address.database.is_file():
            yield None  # nothing has been registered yet
            return
        with open_store(address, naming=_NAMING, makes=False) as store:
            yield store

    def _baseline(self, store: Store | None, place: Path) -> Baseline | None:
        reference, name = self.settings.baseline, self.settings.name
        if reference is None:
            return None
        assert name is not None
        if "/" in reference or reference == "latest":
            return of_run(reference, self.run.root)
        version = None if store is None else find_version(store, name, reference)
        if store is None or version is None:
            if reference.isdecimal():
                raise ConfigError(f"gate.baseline: there is no registered model {name!r}, and no version {reference}.")
            self.notices.append(f"{name} has no {reference} yet: the thresholds decide alone")
            return None
        return fetched(store, version, place / "baseline", alias=None if reference.isdecimal() else reference)

    def _challenger(self) -> tuple[EvaluationData, Scored]:
        built = Built(session=self.session)
        data = built.datamodule
        if data is None:
            raise ConfigError("gate.metric: the config has no data to score on. Say data: ... or --gate.metric=null.")
        samples = evaluated(data, split_of(self._metric))
        return samples, self._scored(f"run {self._name}", built, self.checkpoint, samples)

    def _opponent(self, baseline: Baseline, data: EvaluationData, challenger: Scored, sha256: str) -> Scored:
        if baseline.sha256 == sha256:
            self.notices.append(f"{baseline.name} is the run itself")
            return replace(challenger, name=baseline.name)
        return self._scored_version(baseline, data)

    def _scored_version(self, model: Baseline, data: EvaluationData) -> Scored:
        """Score another model, built by its own config, on the samples of this run's data."""
        other = opponent_session(model, self.session, trust=runs.is_trusting())
        with other.session.stack:
            built = Built(session=other.session)
            samples = data
            if other.prepares_differently or data.is_stateful:
                assert built.datamodule is not None
                samples = evaluated(built.datamodule, data.split)
            self.notices.extend(notice for notice in other.notices if notice not in self.notices)
            scored = self._scored(model.name, built, model.checkpoint, samples)
        if samples.num_samples != data.num_samples or samples.labels_digest != data.labels_digest:
            raise ConfigError(
                f"gate.baseline: {model.name} would be scored on other samples ({samples.num_samples} against "
                f"{data.num_samples}); say --gate.baseline=null to judge by the thresholds alone."
            )
        return scored

    def _scored(self, name: str, built: Built, checkpoint: Path, data: EvaluationData) -> Scored:
        print_line(f"scores {name}", self.session.mode)
        return score(
            Contender(name, built.model, checkpoint, data),
            metric=self._metric,
            slices=list(self.settings.slices or {}),
            accelerator=accelerator_of(_accelerator(self.session.resolved.values)),
        )

    @property
    def _metric(self) -> str:
        assert self.settings.metric is not None
        return self.settings.metric

    def _described(self, data: EvaluationData) -> Mapping[str, Any] | None:
        describe = getattr(data.data, "describe", None)
        said = describe() if callable(describe) else None
        if not isinstance(said, Mapping):
            return None
        return {key: said[key] for key in ("source", "fingerprint", "version") if key in said}

    def _drift(self, store: Store | None, data: EvaluationData, place: Path) -> Drift | None:
        """Find the best of the models promoted of late: as the log says, or scored again where the data has changed."""
        if self.settings.drift is None:
            return None
        window, name = int(self.settings.drift["window"]), self.settings.name
        assert name is not None
        there = [] if store is None else versions_of(store, name)
        if store is None or not there:
            return Drift(window, None, None)
        with store.busy(f"read the promotions of {name!r}"):
            moves = PromotionLog(store, name).moves()
        of_late = champions_of_late(moves, self._alias, window)
        scores: dict[str, float] = {}
        unknown: list[str] = []
        for move in of_late:
            if move.data == data.fingerprint and move.metric == self._metric and "challenger" in move.scores:
                value = move.scores["challenger"]
                if value is not None:
                    scores[move.to] = value
                continue
            version = next((one for one in there if str(one.version) == move.to), None)
            if version is None:
                unknown.append(f"version {move.to}, which was deleted")
                continue
            try:
                model = fetched(store, version, place / f"version-{move.to}")
                scores[move.to] = self._scored_version(model, data).metrics[self._metric]
            except ConfigError as error:
                unknown.append(f"version {move.to}: {error}")
        return self._best_of(scores, unknown, window)

    @property
    def _alias(self) -> str:
        """The alias whose promotions are looked at: the baseline's; champion where that is none."""
        said = self.settings.baseline
        is_alias = said is not None and not said.isdecimal() and "/" not in said and said != "latest"
        return said if said is not None and is_alias else "champion"

    def _best_of(self, scores: Mapping[str, float], unknown: Sequence[str], window: int) -> Drift:
        self.notices.extend(f"gate.drift leaves out {one}" for one in unknown)
        finite = {version: value for version, value in scores.items() if math.isfinite(value)}
        best = min(finite, key=lambda version: worse_by(self.settings, finite[version], 0.0), default=None)
        return Drift(window, None if best is None else finite[best], best, tuple(unknown))


def _accelerator(values: Mapping[str, Any]) -> str | None:
    """Give the accelerator that a config names, in either place."""
    hardware, trainer = values.get("accelerator"), values.get("trainer")
    said = hardware.get("kind") if isinstance(hardware, Mapping) else hardware
    said = said or (trainer.get("accelerator") if isinstance(trainer, Mapping) else None)
    return str(read_scalar(said)) if isinstance(said, str) else None
