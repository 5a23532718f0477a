"""From a run to the gate's decision: the run and its baseline are built and scored on the same samples."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from lightkit import runs
from lightkit.callbacks.prediction_recorder import write_thumbnails
from lightkit.cli.console import configure_console, print_line, quiet_libraries
from lightkit.cli.context import IN_RETRAIN, RunContext
from lightkit.cli.model_builder import build_model, translate_model_errors
from lightkit.cli.notifications import build_notifiers
from lightkit.cli.redaction import redact
from lightkit.cli.stage_runner import open_run_context
from lightkit.config import dump_yaml, read_file
from lightkit.config.interpolation import escape
from lightkit.config.tree import plain
from lightkit.errors import ConfigError, DataError, LightkitError
from lightkit.registry.evaluation import (
    BaselineModel,
    EvaluationData,
    evaluation_data,
    fetch_baseline,
    run_as_baseline,
    score,
)
from lightkit.registry.gate import RECORD, GateSettings, ModelScores, decide, read_gate, split_of
from lightkit.registry.promotion import Move, read_moves, recent_champions
from lightkit.registry.store import Registry, address_of_run, find_version, list_versions, open_registry
from lightkit.reports.gate_page import write_gate_page
from lightkit.reports.predictions import Predictions, Split, predictions_path, read_predictions
from lightkit.reports.statistics import choose_deciding_samples, describe_significance
from lightkit.runs.webhook import close_all
from lightkit.version import __version__

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion
    from pytorch_lightning import LightningModule

_MAX_MOVES = 20  # of the history in gate.json
_THRESHOLDS_ALONE = "give --gate.baseline=null to judge by the thresholds alone."


def evaluate_gate(context: RunContext, *, tracking_uri: str | None, name: str | None = None) -> dict[str, Any]:
    """Score a run and its baseline, write gate.json and the event, notify, and return the content of gate.json.

    Args:
        context: Context of the run, as of `open_run_context`.
        tracking_uri: Value of ``--tracking-uri``.
        name: Registered model; that of the settings if None.

    Raises:
        ConfigError: If the config is wrong, or the baseline cannot be scored.
        ServerAway: If MLflow does not answer.
    """
    run, checkpoint, resolved = context.base, context.ckpt_path, context.resolved
    assert run is not None  # the command asks for a run, which names both
    assert checkpoint is not None
    configure_console(context.mode, resolved.masked)
    quiet_libraries()
    settings = read_gate(resolved)
    settings = replace(settings, name=name or settings.name or run.name)
    if settings.min is not None and settings.is_loss:
        logging.getLogger("lightkit").warning(
            "gate.min: %s is at least %g by it, but small values are good; gate.max sets the largest that passes",
            settings.metric,
            settings.min,
        )
    with translate_model_errors(context):
        decision = _Evaluation(context, settings, run, Path(checkpoint), tracking_uri).decide()
    record: dict[str, Any] = redact(resolved, decision)
    runs.write_json(run.folder / RECORD, record)
    if (resolved.values.get("run") or {}).get("report", True):
        write_gate_page(run)
    fields = ("passed", "scores", "reasons", "metric", "baseline", "num_samples", "slices")
    runs.EventStream(run.events_path).write("gate", **{key: record[key] for key in fields})
    with runs.activate(run):
        try:
            notifiers = [notifier for _, notifier in build_notifiers(resolved)]
        except LightkitError as error:  # the decision stands
            logging.getLogger("lightkit").warning("no notification of the gate is sent: %s", error)
            notifiers = []
        for notifier in notifiers:
            notifier.send_gate_decision(record)
        close_all(notifier.sender for notifier in notifiers)
    return record


@dataclass
class _Evaluation:
    """The scores that a decision needs.

    Args:
        context: Context of the run.
        settings: The conditions, with the registered model's name.
        run: The run.
        checkpoint: Its weights.
        tracking_uri: Value of ``--tracking-uri``.
        notices: Remarks on the decision.
    """

    context: RunContext
    settings: GateSettings
    run: runs.Run
    checkpoint: Path
    tracking_uri: str | None
    notices: list[str] = field(default_factory=list)

    def decide(self) -> dict[str, Any]:
        """Score the models, and decide."""
        sha256 = runs.digest(self.checkpoint)
        run_name, metric, name = f"{self.run.name}/{self.run.id}", self.settings.metric, str(self.settings.name)
        about: dict[str, Any] = {
            "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "lightkit": __version__,
            "checkpoint": {"path": runs.relative(self.checkpoint, self.run.folder), "sha256": sha256},
            "settings": {**self.settings.__dict__},
            "against": None,
            "notices": self.notices,
        }
        if metric is None:
            self.notices.append("nothing is judged: gate.metric is not set, such as --gate.metric=test/accuracy")
            return decide(self.settings, ModelScores("the run", {}), None, num_samples=0, run=run_name) | about
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="lightkit-gate-")))
            registry = self._open_registry(stack)
            baseline = self._find_baseline(registry, name, folder)
            module, own_data = build_model(self.context)
            if own_data is None:
                raise ConfigError(
                    "gate.metric: the config has no data to score on. Give data: ... or --gate.metric=null."
                )
            data = evaluation_data(own_data, split_of(metric))
            candidate = self._read_test_scores(f"run {run_name}", metric, sha256)
            if candidate is not None and data.measure():
                print_line(f"scores {candidate.name}: those of its test", self.context.mode)
            else:
                candidate = self._score(f"run {run_name}", module, self.checkpoint, data)
            baseline_scores = None
            if baseline is not None:
                if baseline.sha256 == sha256:
                    self.notices.append(f"{baseline.name} is the run itself")
                    baseline_scores = replace(candidate, name=baseline.name)
                else:
                    baseline_scores = self._score_baseline(baseline, data)
                about["against"] = {key: getattr(baseline, key) for key in ("version", "sha256", "run")}
                value = baseline_scores.metrics[metric]
                if not math.isfinite(value):
                    self.notices.append(
                        f"{metric} of {baseline.name} is {value}, so that nothing can be compared with it"
                    )
            reference = self.settings.baseline or "champion"
            is_alias = not reference.isdecimal() and "/" not in reference and reference != "latest"
            alias = reference if is_alias else "champion"
            versions = {} if registry is None else {str(each.version): each for each in list_versions(registry, name)}
            moves = read_moves(registry, name) if registry is not None and versions else []
            history = [move.as_dict() for move in moves if move.alias == alias][-_MAX_MOVES:]
            about["history"] = history if versions else None
            drift = None
            if self.settings.drift is not None:
                recent = recent_champions(moves, alias, int(self.settings.drift["window"]))
                drift = self._find_drift(registry, recent, versions, data, folder)
        described: Mapping[str, Any] = getattr(data, "describe", dict)() or {}  # of lightkit's own data
        kept = {key: described[key] for key in ("source", "fingerprint", "version") if key in described}
        about["data"] = {"fingerprint": data.fingerprint, "split": data.split, "described": kept or None}
        decision = decide(
            self.settings, candidate, baseline_scores, drift=drift, num_samples=data.num_samples, run=run_name
        )
        if self.settings.confidence is not None and (tested_by := decision["significance"]):
            text = describe_significance(tested_by, metric, decision["baseline"]) if tested_by["test"] else None
            self.notices.append(text or f"gate.confidence has no effect: {tested_by['reason']}")
        missed = {check["name"] for check in decision["checks"] if not check["passed"]}
        failed = [name for name in self.settings.slices or () if f"{metric} of {name}" in missed]
        theirs = None if baseline_scores is None else baseline_scores.predictions
        about["samples"] = choose_deciding_samples(candidate.predictions, theirs, failed)
        split: Split = "validation" if data.split == "val" else "test"
        write_thumbnails(self.run.folder, split, {sample["index"] for sample in about["samples"]}, data.sample_source)
        return decision | about

    def _read_test_scores(self, name: str, metric: str, sha256: str) -> ModelScores | None:
        """Read the scores of this checkpoint by the retrain's test, if that ran on one device in full precision."""
        trainer = self.context.resolved.values.get("trainer") or {}
        stages = (runs.read_json(self.run.summary_path) or {}).get("stages") or {}
        hardware = (runs.read_json(self.run.manifest_path) or {}).get("hardware") or {}
        scores: Mapping[str, float] = stages.get("test") or {}
        predictions: Predictions | None = None
        with suppress(DataError):
            predictions = read_predictions(predictions_path(self.run.folder, "test"))
            if predictions.sha256 != sha256 or predictions.fingerprint is None:
                predictions = None  # of another checkpoint, or perhaps in another order
        if (
            os.environ.get(IN_RETRAIN) != "tested"
            or self.settings.slices
            or (self.settings.confidence is not None and predictions is None)
            or not math.isfinite(scores.get(metric, math.nan))
            or self.checkpoint.resolve() != (self.run.checkpoints / "best.ckpt").resolve()
            or hardware.get("devices") != 1
            or trainer.get("limit_test_batches") is not None
            or str(trainer.get("precision", "32")) not in ("32", "32-true", "None")
        ):
            return None
        return ModelScores(name, scores, predictions=predictions)

    def _open_registry(self, stack: ExitStack) -> Registry | None:
        """Open the registry; None where the settings need none, or nothing was registered yet."""
        address = address_of_run(self.tracking_uri, self.run, self.context.resolved)
        is_needed = self.settings.baseline is not None or self.settings.drift is not None
        if not is_needed or (address.database is not None and not address.database.is_file()):
            return None
        return stack.enter_context(open_registry(address, creates=False))

    def _find_baseline(self, registry: Registry | None, name: str, folder: Path) -> BaselineModel | None:
        reference = self.settings.baseline
        if reference is None:
            return None
        if "/" in reference or reference == "latest":
            return run_as_baseline(reference, self.run.root)
        version = None if registry is None else find_version(registry, name, reference)
        if registry is not None and version is not None:
            alias = None if reference.isdecimal() else reference
            return fetch_baseline(registry, version, folder / "baseline", alias=alias)
        if reference.isdecimal():
            raise ConfigError(f"gate.baseline: there is no registered model {name!r}, and no version {reference}.")
        self.notices.append(f"{name} has no {reference} yet: the thresholds decide alone")
        return None

    def _find_drift(
        self,
        registry: Registry | None,
        recent: Sequence[Move],
        versions: Mapping[str, ModelVersion],
        data: EvaluationData,
        folder: Path,
    ) -> dict[str, Any]:
        """Find the best of the recently promoted models: by the log, or scored again where the data has changed."""
        assert self.settings.drift is not None
        metric, scores, unknown = str(self.settings.metric), dict[str, float](), list[str]()
        for move in recent:
            value = move.scores.get("challenger")
            try:
                if value is None or (move.data, move.metric) != (data.fingerprint, metric):
                    if registry is None or move.to not in versions:
                        raise ConfigError("it was deleted")  # noqa: TRY301
                    model = fetch_baseline(registry, versions[move.to], folder / f"version-{move.to}")
                    value = self._score_baseline(model, data).metrics[metric]
            except ConfigError as error:
                unknown.append(f"version {move.to}: {error}")
            else:
                scores |= {move.to: value} if math.isfinite(value) else {}
        self.notices.extend(f"gate.drift leaves out {each}" for each in unknown)
        best = (max if self.settings.mode == "max" else min)(scores, key=lambda each: scores[each], default=None)
        window = int(self.settings.drift["window"])
        return {"window": window, "best": scores.get(best or ""), "version": best, "unknown": unknown}

    def _score_baseline(self, model: BaselineModel, data: EvaluationData) -> ModelScores:
        """Score another model, built by its own config, on the samples of this run's data."""
        context = self._open_baseline(model)
        with context.stack:
            module, own_data = build_model(context)
            assert own_data is not None
            samples = evaluation_data(own_data, data.split)  # its own: in the size and with the state that it asks for
            scores = self._score(model.name, module, model.checkpoint, samples)
        if samples.num_samples != data.num_samples or samples.labels_digest != data.labels_digest:
            raise ConfigError(
                f"gate.baseline: {model.name} would be scored on other samples ({samples.num_samples} against "
                f"{data.num_samples}); {_THRESHOLDS_ALONE}"
            )
        return scores

    def _score(self, name: str, module: LightningModule, checkpoint: Path, data: EvaluationData) -> ModelScores:
        print_line(f"scores {name}", self.context.mode)
        metric, slices, kind = str(self.settings.metric), list(self.settings.slices or {}), self.context.hardware.kind
        return score(module, checkpoint, data, name=name, metric=metric, slices=slices, accelerator=kind)

    def _open_baseline(self, model: BaselineModel) -> RunContext:
        """Open a context with the config of a model, but with the data of the run that is judged.

        Images are resized to the model's own `image_size`.

        Raises:
            ConfigError: If its config cannot be used here.
        """
        config, data = plain(read_file(model.config)), self.context.resolved.values.get("data")

        def split_section(section: Any) -> tuple[str, Mapping[str, Any]]:
            """Return the name of the class, and its arguments."""
            section = section if isinstance(section, Mapping) else {"class_path": section}
            return str(section.get("class_path")).rpartition(".")[2], section.get("init_args") or {}

        def escape_all(value: Any) -> Any:
            """Escape resolved values so that reading the config returns them."""
            if isinstance(value, Mapping):
                return {key: escape_all(child) for key, child in value.items()}
            if isinstance(value, list):
                return [escape_all(child) for child in value]
            return escape(value) if isinstance(value, str) else value

        (here, arguments), (there, its_arguments) = split_section(data), split_section(config.get("data"))
        if isinstance(data, Mapping) and None not in (arguments.get("image_size"), its_arguments.get("image_size")):
            data = {**data, "init_args": {**arguments, "image_size": its_arguments["image_size"]}}
        if here != there:
            self.notices.append(f"{model.name} was trained on {there}, and gets its inputs as {here} prepares them")
        text = dump_yaml({"seed_everything": 0, "model": config.get("model"), "data": escape_all(data)})
        trust = ["--trust"] if runs.is_trusting() else []
        try:
            context = open_run_context(["-c", text, "--ckpt_path", str(model.checkpoint), *trust])
        except LightkitError as error:
            first = str(error).split("\n", 1)[0]
            raise ConfigError(
                f"gate.baseline: {model.name} cannot be built from its config: {first}. Name another with "
                f"--gate.baseline, or {_THRESHOLDS_ALONE}"
            ) from error
        context.mode = self.context.mode
        return context
