"""From a run to the gate's decision: the run and its baseline are built and scored on the same samples."""

from __future__ import annotations

import logging
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from pytorch_lightning import LightningModule, seed_everything

from lightkit import runs
from lightkit.callbacks import VerifiedCheckpointIO
from lightkit.callbacks.checkpoint_io import read_checkpoint
from lightkit.callbacks.metric_modes import find_metric_modes
from lightkit.callbacks.prediction_recorder import PredictionRecorder, write_thumbnails
from lightkit.cli.console import configure_console, print_line, quiet_libraries
from lightkit.cli.context import RunContext, read_run_settings
from lightkit.cli.model_builder import build_model, translate_model_errors
from lightkit.cli.notifications import IN_RETRAIN, build_notifiers, warn_of_lost_addresses
from lightkit.cli.redaction import redact
from lightkit.cli.stage_runner import open_run_context
from lightkit.config import dump_yaml, near, read_file, shown_path
from lightkit.config.tree import to_plain
from lightkit.errors import ConfigError, DataError, LightkitError
from lightkit.export.bare_trainer import build_bare_trainer
from lightkit.registry.evaluation import EvaluationData, evaluation_data
from lightkit.registry.gate import RECORD, GateSettings, ModelScores, decide, find_gate_mode, read_gate, split_of
from lightkit.registry.promotion import Move, read_moves, recent_champions
from lightkit.registry.store import KEPT, Registry, address_of_run, find_version, list_versions, open_registry
from lightkit.reports.gate_page import write_gate_page
from lightkit.reports.predictions import Predictions, Split, predictions_path, read_predictions
from lightkit.reports.statistics import choose_deciding_samples, describe_significance
from lightkit.runs.metric_mode import Mode, override_modes, rank_value
from lightkit.runs.resume import find_checkpoint
from lightkit.runs.webhook import close_all
from lightkit.version import __version__

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

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
    warn_of_lost_addresses(resolved, run)
    try:
        notifiers = [notifier for _, notifier in build_notifiers(resolved)]
    except LightkitError as error:  # it decides all the same
        logging.getLogger("lightkit").warning("no notification of the gate is sent: %s", error)
        notifiers = []
    address = address_of_run(tracking_uri, run, resolved)
    needs_registry = settings.metric is not None and (settings.baseline, settings.drift) != (None, None)
    with translate_model_errors(context), TemporaryDirectory(prefix="lightkit-gate-") as folder, ExitStack() as stack:
        registry = None
        if needs_registry and (address.database is None or address.database.is_file()):
            registry = stack.enter_context(open_registry(address, creates=False))
        decision = _Evaluation(context, settings, run, Path(checkpoint), registry, Path(folder)).decide()
    record: dict[str, Any] = redact(resolved, decision)
    runs.write_json(run.folder / RECORD, record)
    if read_run_settings(context).report:
        write_gate_page(run)
    fields = ("passed", "scores", "reasons", "metric", "baseline", "num_samples", "slices")
    runs.EventStream(run.events_path).write("gate", **{key: record[key] for key in fields})
    with runs.activate(run):
        for notifier in notifiers:
            notifier.send_gate_decision(record)
        close_all(notifier.sender for notifier in notifiers)
    return record


@dataclass(frozen=True)
class BaselineModel:
    """A model to compare with.

    Args:
        name: Its name in messages.
        version: Of the registered model; None for a run.
        config: File of its config.
        checkpoint: File of its weights.
        sha256: Digest of the weights.
        run: Run that trained it, as ``name/id``.
    """

    name: str
    version: str | None
    config: Path
    checkpoint: Path
    sha256: str
    run: str | None


def fetch_baseline(
    registry: Registry, version: ModelVersion, folder: Path, *, alias: str | None = None
) -> BaselineModel:
    """Find config and checkpoint of a version: in its run folder, else as `lightkit promote` has kept them in MLflow.

    Args:
        registry: MLflow.
        version: The version.
        folder: Folder for downloads.
        alias: Alias by which it was found.

    Raises:
        ConfigError: If neither has the checkpoint that was registered.
    """
    from mlflow.artifacts import download_artifacts  # 2 s

    tags = version.tags
    name = f"{version.name} version {version.version}{f' ({alias})' if alias else ''}"
    advice = "name another with --gate.baseline, or give --gate.baseline=null to judge by the thresholds alone."
    sha256, run_folder = tags.get("checkpoint_sha256"), tags.get("run_folder")
    if not sha256 or not run_folder:
        raise ConfigError(
            f"gate.baseline: {name} was not registered by lightkit, and cannot be scored. {advice.capitalize()}"
        )

    def find_files() -> Iterator[tuple[Path, Path]]:
        """Yield the files of checkpoint and config where they may be."""
        yield Path(run_folder) / tags.get("checkpoint", ""), Path(run_folder) / "config.yaml"
        if kept := tags.get(KEPT):
            with registry.attempt(f"download {kept}"):
                copy = Path(download_artifacts(kept, dst_path=str(folder), tracking_uri=registry.client.tracking_uri))
            yield next(copy.glob("*.ckpt"), copy), copy / "config.yaml"

    for checkpoint, config in find_files():
        if checkpoint.is_file() and config.is_file() and runs.digest(checkpoint) == sha256:
            return BaselineModel(name, str(version.version), config, checkpoint, sha256, tags.get("run"))
    raise ConfigError(
        f"gate.baseline: {name} cannot be scored: {shown_path(Path(run_folder))} has not the checkpoint and the config "
        f"that were registered. Put them back, {advice}"
    )


class _Evaluation:
    """The scores that a decision needs.

    Args:
        context: Context of the run.
        settings: The conditions, with the registered model's name.
        run: The run.
        checkpoint: Its weights.
        registry: MLflow; None where the settings need none, or nothing was registered yet.
        folder: Folder for downloads.
    """

    def __init__(
        self,
        context: RunContext,
        settings: GateSettings,
        run: runs.Run,
        checkpoint: Path,
        registry: Registry | None,
        folder: Path,
    ) -> None:
        self.context, self.settings, self.run, self.checkpoint = context, settings, run, checkpoint
        self.registry, self.folder = registry, folder
        self.notices: list[str] = []
        """Remarks on the decision."""
        self.modes: dict[str, Any] = dict((runs.read_json(run.summary_path) or {}).get("modes") or {})
        """Modes of metrics, as the training knew them, and as the metric objects of what is scored do."""

    def decide(self) -> dict[str, Any]:
        """Score the models, and decide."""
        sha256, settings = runs.digest(self.checkpoint), self.settings
        run_name, metric, name = f"{self.run.name}/{self.run.id}", settings.metric, str(settings.name)
        about: dict[str, Any] = {
            "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "lightkit": __version__,
            "checkpoint": {"path": runs.relative(self.checkpoint, self.run.folder), "sha256": sha256},
            "settings": {**settings.__dict__},
            "against": None,
            "notices": self.notices,
        }
        if metric is None:
            self.notices.append("nothing is judged: gate.metric is not set, such as --gate.metric=test/accuracy")
            return decide(settings, ModelScores("the run", {}), None, num_samples=0, run=run_name) | about
        baseline = self._find_baseline(name)
        module, own_data = build_model(self.context)
        if own_data is None:
            raise ConfigError("gate.metric: the config has no data to score on. Give data: ... or --gate.metric=null.")
        data = evaluation_data(own_data, split_of(metric))
        candidate = self._read_test_scores(f"run {run_name}", metric, sha256)
        if candidate is not None and data.measure():
            print_line(f"scores {candidate.name}: those of its test", self.context.mode)
        else:
            candidate = self._score(f"run {run_name}", module, self.checkpoint, data)
        mode = find_gate_mode(settings, self.context.resolved, self.modes)
        baseline_scores = None
        if baseline is not None:
            about["against"] = {"version": baseline.version, "sha256": baseline.sha256, "run": baseline.run}
            if baseline.sha256 == sha256:
                self.notices.append(f"{baseline.name} is the run itself")
                baseline_scores = replace(candidate, name=baseline.name)
            else:
                baseline_scores = self._score_baseline(baseline, data)
            if not math.isfinite(value := baseline_scores.metrics[metric]):
                self.notices.append(f"{metric} of {baseline.name} is {value}, so that nothing can be compared with it")
        alias = settings.baseline or "champion"
        alias = "champion" if alias.isdecimal() or settings.is_against_run else alias
        drift = about["history"] = None
        if self.registry is not None and (found := list_versions(self.registry, name)):
            moves, versions = read_moves(self.registry, name), {str(version.version): version for version in found}
            about["history"] = [move.as_dict() for move in moves if move.alias == alias][-_MAX_MOVES:]
            if settings.drift is not None:
                recent = recent_champions(moves, alias, int(settings.drift["window"]))
                drift = self._find_drift(self.registry, recent, versions, data, mode=mode)
        described: Mapping[str, Any] = getattr(data, "describe", dict)() or {}  # of lightkit's own data
        kept = {key: described[key] for key in ("source", "fingerprint", "version") if key in described}
        about["data"] = {"fingerprint": data.fingerprint, "split": data.split, "described": kept or None}
        judged = replace(settings, mode=mode)  # gate.json keeps the user's settings, by which a decision is known again
        decision = decide(judged, candidate, baseline_scores, drift=drift, num_samples=data.num_samples, run=run_name)
        if settings.confidence is not None and (tested_by := decision["significance"]):
            text = describe_significance(tested_by, metric, decision["baseline"]) if tested_by["test"] else None
            self.notices.append(text or f"gate.confidence has no effect: {tested_by['reason']}")
        missed = {check["name"] for check in decision["checks"] if not check["passed"]}
        failed = [name for name in settings.slices or () if f"{metric} of {name}" in missed]
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
            or ((self.settings.confidence, self.settings.margin) != (None, None) and predictions is None)
            or not math.isfinite(scores.get(metric, math.nan))
            or hardware.get("devices") != 1
            or trainer.get("limit_test_batches") is not None
            or str(trainer.get("precision", "32")) not in ("32", "32-true", "None")
        ):
            return None
        return ModelScores(name, scores, predictions=predictions)

    def _find_baseline(self, name: str) -> BaselineModel | None:
        reference = self.settings.baseline
        if reference is None:
            return None
        if self.settings.is_against_run:
            run = runs.find(reference, self.run.root)
            checkpoint = find_checkpoint(run, "best")
            run_name = f"{run.name}/{run.id}"
            sha256 = runs.digest(checkpoint)
            return BaselineModel(f"run {run_name}", None, run.config_path, checkpoint, sha256, run_name)
        if self.registry is not None and (version := find_version(self.registry, name, reference)) is not None:
            alias = None if reference.isdecimal() else reference
            return fetch_baseline(self.registry, version, self.folder / "baseline", alias=alias)
        if reference.isdecimal():
            raise ConfigError(f"gate.baseline: there is no registered model {name!r}, and no version {reference}.")
        self.notices.append(f"{name} has no {reference} yet: the thresholds decide alone")
        return None

    def _find_drift(
        self,
        registry: Registry,
        recent: Sequence[Move],
        versions: Mapping[str, ModelVersion],
        data: EvaluationData,
        *,
        mode: Mode | None,
    ) -> dict[str, Any]:
        """Find the best of the recently promoted models: by the log, or scored again where the data has changed."""
        assert self.settings.drift is not None
        metric, scores, unknown = str(self.settings.metric), dict[str, float](), list[str]()
        for move in recent:
            value = move.scores.get("challenger")
            if value is None or (move.data, move.metric) != (data.fingerprint, metric):
                try:
                    if move.to not in versions:
                        raise ConfigError("it was deleted")  # noqa: TRY301
                    model = fetch_baseline(registry, versions[move.to], self.folder / f"version-{move.to}")
                    value = self._score_baseline(model, data).metrics[metric]
                except ConfigError as error:
                    unknown.append(f"version {move.to}: {error}")
                    continue
            if math.isfinite(value):
                scores[move.to] = value
        self.notices.extend(f"gate.drift leaves out {each}" for each in unknown)
        best = min(scores, key=lambda each: rank_value(scores[each], mode or "max"), default=None)
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
        """Run a model's own test or validation steps over all samples, and again over those of each class.

        Args:
            name: Its name in messages.
            module: The model, which gets its weights here.
            checkpoint: File of its weights.
            data: The samples, prepared as this model takes them.

        Raises:
            ConfigError: If the checkpoint does not fit, the model logs no such metric, or there is no such class.
        """
        print_line(f"scores {name}", self.context.mode)
        metric, class_names = str(self.settings.metric), read_checkpoint(checkpoint, mmap=True).get("class_names")
        data.model_classes = list(class_names) if isinstance(class_names, (list, tuple)) else None
        has_gpu = self.context.hardware.kind != "cpu" and torch.cuda.is_available()
        trainer = build_bare_trainer(VerifiedCheckpointIO(), accelerator="gpu" if has_gpu else "cpu")
        recorder = PredictionRecorder(None)
        trainer.callbacks.append(recorder)  # type: ignore[attr-defined]

        def evaluate(ckpt_path: str | None) -> Mapping[str, float]:
            run_split = trainer.test if data.split == "test" else trainer.validate
            seed_everything(0, workers=True, verbose=False)  # the same samples, where preparing them draws numbers
            with warnings.catch_warnings():  # Lightning 2.6.6, of a trainer without the callbacks of the training
                warnings.filterwarnings("ignore", message="Be aware that when using `ckpt_path`, callbacks")
                run_split(
                    module,
                    datamodule=data,
                    ckpt_path=ckpt_path,
                    verbose=False,
                    weights_only=not runs.is_trusting(),
                )
            self.modes = override_modes(find_metric_modes(trainer, module), self.modes)
            return {key: float(value) for key, value in trainer.callback_metrics.items()}

        metrics = evaluate(str(checkpoint))
        predictions = recorder.predictions
        if metric not in metrics:
            raise ConfigError(
                f"gate.metric: {name} logs no {metric!r} on the {data.split} split{near(metric, metrics)}\n"
                f"logged: {', '.join(sorted(metrics)) or 'none'}"
            )
        of_classes: dict[str, float | None] = {}
        for each in self.settings.slices or {}:
            data.choose_class(each)
            value = evaluate(None).get(metric)
            of_classes[each] = value if value is not None and math.isfinite(value) else None
        return ModelScores(name, metrics, of_classes, predictions)

    def _open_baseline(self, model: BaselineModel) -> RunContext:
        """Open a context with the config of a model, but with the data of the run that is judged.

        Images are resized to the model's own `image_size`.

        Raises:
            ConfigError: If its config cannot be used here.
        """
        config, resolved = to_plain(read_file(model.config)), self.context.resolved
        data = resolved.with_references({"data": resolved.values.get("data")})["data"]

        def split_section(section: Any) -> tuple[str, Mapping[str, Any]]:
            """Return the name of the class, and its arguments."""
            section = section if isinstance(section, Mapping) else {"class_path": section}
            return str(section.get("class_path")).rpartition(".")[2], section.get("init_args") or {}

        (here, arguments), (there, its_arguments) = split_section(data), split_section(config.get("data"))
        if isinstance(data, Mapping) and None not in (arguments.get("image_size"), its_arguments.get("image_size")):
            data = {**data, "init_args": {**arguments, "image_size": its_arguments["image_size"]}}
        if here != there:
            self.notices.append(f"{model.name} was trained on {there}, and gets its inputs as {here} prepares them")
        text = dump_yaml({"seed_everything": 0, "model": config.get("model"), "data": data})
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
