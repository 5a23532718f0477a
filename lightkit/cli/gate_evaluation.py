"""From a run to the gate's decision.

The run and its baseline are built and scored on the same samples.
"""

from __future__ import annotations

import logging
import math
import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pytorch_lightning import LightningModule

from lightkit import runs
from lightkit.callbacks.descriptions import describe_data
from lightkit.callbacks.notifiers import Notifier
from lightkit.callbacks.prediction_recorder import write_thumbnails
from lightkit.cli.command_line import Invocation
from lightkit.cli.console import configure_console, print_line, quiet_libraries
from lightkit.cli.input_digests import digest_inputs_of_scores
from lightkit.cli.model_builder import build_model, translate_model_errors
from lightkit.cli.model_scorer import ModelScorer, find_unit
from lightkit.cli.notifications import IN_RETRAIN, build_notifiers, warn_of_lost_addresses
from lightkit.cli.stage_config import StageConfig, read_run_settings
from lightkit.cli.stage_runner import open_run_config
from lightkit.config import Resolved, dump_yaml, read_file
from lightkit.config.tree import to_plain
from lightkit.errors import (
    ConfigError,
    DataError,
    LightkitError,
    OutOfTime,
    OutputLost,
    ServerAway,
    Stalled,
)
from lightkit.loggers.mlflow_address import Address
from lightkit.registry.baseline import THRESHOLDS_ALONE, BaselineModel, fetch_baseline
from lightkit.registry.data_settings import DataSettings, choose_data_settings
from lightkit.registry.evaluation import EvaluationData, evaluation_data
from lightkit.registry.gate import (
    RECORD,
    GateSettings,
    ModelScores,
    decide,
    find_gate_mode,
    read_gate,
    split_of,
)
from lightkit.registry.promotion import read_moves, recent_champions
from lightkit.registry.store import (
    CHECKPOINT,
    Registry,
    address_of_run,
    find_version,
    list_versions,
    open_registry,
)
from lightkit.reports.gate_page import write_gate_page
from lightkit.reports.predictions import Predictions, Split, predictions_path, read_predictions
from lightkit.reports.statistics import choose_deciding_samples, describe_significance
from lightkit.runs.metric_mode import Mode, rank_value
from lightkit.runs.resume import find_checkpoint
from lightkit.runs.scores import StageScore, read_scores
from lightkit.runs.webhook import close_all
from lightkit.task import task_of
from lightkit.version import __version__

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

_RULES_OF_ONE_MODEL = {"min", "max", "slices"}
_SAME_UNIT = 1e-5  # relative: sums of floats in another order
_MAX_MOVES = 20  # of the history in gate.json
_EVENT_FIELDS = ("passed", "scores", "reasons", "metric", "baseline", "num_samples", "slices")


def evaluate_gate(
    stage_config: StageConfig, *, tracking_uri: str | None, name: str | None = None
) -> dict[str, Any]:
    """Score a run and its baseline.

    Write gate.json and the event, notify, and return the content of gate.json.

    Args:
        stage_config: Config of the run, as of `open_run_config`.
        tracking_uri: Value of ``--tracking-uri``.
        name: Registered model; that of the settings if None.

    Raises:
        ConfigError: If the config is wrong, or the baseline cannot be scored.
        ServerAway: If MLflow does not answer.
    """
    run, checkpoint = stage_config.finished_run
    resolved = stage_config.resolved
    configure_console(stage_config.mode, resolved.masked)
    quiet_libraries()

    # Read the conditions, and build what sends the decision before it takes its time.
    settings = read_gate(resolved)
    settings = replace(settings, name=name or settings.name or run.name)
    _warn_of_minimal_loss(settings)
    warn_of_lost_addresses(resolved, run)
    notifiers = _build_gate_notifiers(resolved)

    # Decide. The digests first: what changes from here on may not be in the scores.
    inputs = digest_inputs_of_scores(stage_config, run)
    address = address_of_run(tracking_uri, run, resolved)
    with (
        translate_model_errors(resolved) as stack,
        TemporaryDirectory(prefix="lightkit-gate-") as folder,
        _open_registry(settings, address) as registry,
    ):
        decision = _Evaluation(
            stage_config, stack, settings, run, checkpoint, registry, Path(folder)
        ).decide()

    # Write it down, and send it.
    record: dict[str, Any] = resolved.masked({**decision, "inputs": inputs})
    runs.write_json(run.folder / RECORD, record)
    if read_run_settings(stage_config.resolved, stage_config.job_name).report:
        write_gate_page(run)
    fields = {key: record[key] for key in _EVENT_FIELDS}
    runs.EventStream(run.events_path).write("gate", **fields)
    with runs.activate(run):
        for notifier in notifiers:
            notifier.send_gate_decision(record)
        close_all(notifier.sender for notifier in notifiers)
    return record


@contextmanager
def _open_registry(settings: GateSettings, address: Address) -> Iterator[Registry | None]:
    """Connect to MLflow; None where the settings need none, or nothing was registered yet."""
    has_registry = address.database is None or address.database.is_file()
    if settings.needs_registry and has_registry:
        with open_registry(address, creates=False, writes=False) as registry:
            yield registry
    else:
        yield None


def _warn_of_minimal_loss(settings: GateSettings) -> None:
    """Warn of a smallest value for a loss, of which small values are good."""
    if settings.min is not None and settings.is_loss:
        logging.getLogger("lightkit").warning(
            "gate.min: %s is at least %g by it, but small values are good; gate.max sets the"
            " largest that passes",
            settings.metric,
            settings.min,
        )


def _build_gate_notifiers(resolved: Resolved) -> list[Notifier]:
    """Build the notifiers of the config.

    None where one cannot be built, since the gate decides all the same.
    """
    try:
        return [notifier for _, notifier in build_notifiers(resolved)]
    except LightkitError as error:
        logging.getLogger("lightkit").warning("no notification of the gate is sent: %s", error)
        return []


@dataclass
class _Evaluation:
    """The scores that a decision needs.

    Args:
        stage_config: Config of the run.
        stack: For what is undone at the end.
        settings: The conditions, with the registered model's name.
        run: The run.
        checkpoint: Its weights.
        registry: MLflow; None where the settings need none, or nothing was registered yet.
        folder: Folder for downloads.
    """

    stage_config: StageConfig
    stack: ExitStack
    settings: GateSettings
    run: runs.Run
    checkpoint: Path
    registry: Registry | None
    folder: Path

    def __post_init__(self) -> None:
        self.metric = str(self.settings.metric)
        self.notices: list[str] = []
        """Remarks on the decision."""
        modes = runs.find_value(runs.read_json(self.run.summary_path), "modes") or {}
        self.scorer = ModelScorer(self.stage_config, self.settings, self.stack, {**modes})

    def decide(self) -> dict[str, Any]:
        """Score the models, and decide."""
        sha256 = runs.digest_checkpoint(self.checkpoint)
        settings = self.settings
        run_name = f"{self.run.name}/{self.run.id}"
        about: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "lightkit": __version__,
            "checkpoint": {
                "path": runs.relative(self.checkpoint, self.run.folder),
                "sha256": sha256,
            },
            "settings": {**settings.__dict__},
            "precision": self.scorer.precision,
            "against": None,
            "notices": self.notices,
        }
        metric = settings.metric
        if metric is None:
            self.notices.append(
                "nothing is judged: gate.metric is not set, such as --gate.metric=test/accuracy"
            )
            return (
                decide(settings, ModelScores("the run", {}), None, num_samples=0, run=run_name)
                | about
            )

        # Score the run, its baseline, and the champions before, each model once.
        baseline = self._find_baseline(str(settings.name))
        module, own_data = build_model(self.stage_config, self.stack)
        if own_data is None:
            raise ConfigError(
                "gate.metric: the config has no data to score on. Give data: ... or"
                " --gate.metric=null."
            )
        data = evaluation_data(own_data, split_of(metric), task_of(module))
        candidate = self._score_candidate(f"run {run_name}", module, sha256, data)
        scored = {sha256: candidate}
        mode = find_gate_mode(settings, self.stage_config.resolved, self.scorer.modes)
        baseline_scores = None
        if baseline is not None:
            about["against"] = {
                "version": baseline.version,
                "sha256": baseline.sha256,
                "run": baseline.run,
            }
            baseline_scores = self._compare_baseline(baseline, candidate, sha256, data)
            scored.setdefault(baseline.sha256, baseline_scores)
        history, drift = self._read_history(data, candidate, scored, mode=mode)
        about["history"] = history

        # Decide by the mode that the metric has; gate.json keeps the user's settings, by which it
        # is known again.
        about["data"] = _describe_evaluation_data(data)
        judged = replace(settings, mode=mode)
        ours = candidate.predictions  # without samples of weight 0, which are in no metric
        num_samples = data.num_samples if ours is None else len(ours)
        decision = decide(
            judged, candidate, baseline_scores, drift=drift, num_samples=num_samples, run=run_name
        )
        if settings.confidence is not None and decision["significance"]:
            self.notices.append(_describe_confidence(decision, metric))

        # Choose the samples that decide, and keep their pictures.
        theirs = None if baseline_scores is None else baseline_scores.predictions
        about["samples"] = choose_deciding_samples(
            ours, theirs, self._list_failed_classes(decision)
        )
        split: Split = "validation" if data.split == "val" else "test"
        write_thumbnails(
            self.run.folder,
            split,
            {sample["index"] for sample in about["samples"]},
            data.sample_source,
        )
        return decision | about

    def _score_candidate(
        self, name: str, module: LightningModule, sha256: str, data: EvaluationData
    ) -> ModelScores:
        """Score the run that is judged, or read the scores of its test."""
        if find_unit(module, self.metric) is None:  # else its weights say which
            scores = self._read_test_scores(name, sha256, data)
            if scores is not None:
                print_line(f"scores {scores.name}: those of its test", self.stage_config.mode)
                return scores
        return self.scorer.score(name, module, self.checkpoint, data)

    def _compare_baseline(
        self, baseline: BaselineModel, candidate: ModelScores, sha256: str, data: EvaluationData
    ) -> ModelScores:
        """Score the baseline, unless it is the run itself.

        Note where nothing can be compared with it.
        """
        if baseline.sha256 == sha256:
            self.notices.append(f"{baseline.name} is the run itself")
            scores = replace(candidate, name=baseline.name)
        else:
            scores = self._score_baseline(baseline, data)
            self._check_units(candidate, scores)
        value = scores.metrics[self.metric]
        if not math.isfinite(value):
            self.notices.append(
                f"{self.metric} of {baseline.name} is {value}, so that nothing can be compared"
                " with it"
            )
        return scores

    def _read_history(
        self,
        data: EvaluationData,
        candidate: ModelScores,
        scored: Mapping[str, ModelScores],
        *,
        mode: Mode | None,
    ) -> tuple[list[dict[str, Any]] | None, dict[str, Any] | None]:
        """Read the moves of the alias that a promotion would move, and the drift of its scores.

        None without both.

        Args:
            data: The samples.
            candidate: Scores of the run.
            scored: Scores of models by the digests of their checkpoints.
            mode: Whether large or small values of the metric are good.
        """
        if self.registry is None:
            return None, None
        settings = self.settings
        name = str(settings.name)
        found = list_versions(self.registry, name)
        if not found:
            return None, None
        alias = settings.history_alias
        moves = read_moves(self.registry, name)
        drift = None
        if settings.drift is not None:
            window = int(settings.drift["window"])
            recent = recent_champions(moves, alias, window)
            versions = {str(version.version): version for version in found}
            best = self._find_best(
                self.registry, recent, versions, data, candidate, scored, mode=mode
            )
            drift = {"window": window, **best}
        return [move.as_dict() for move in moves if move.alias == alias][-_MAX_MOVES:], drift

    def _list_failed_classes(self, decision: Mapping[str, Any]) -> list[str]:
        """List the classes whose check has failed."""
        missed = {check["name"] for check in decision["checks"] if not check["passed"]}
        return [name for name in self.settings.slices or () if f"{self.metric} of {name}" in missed]

    def _read_test_scores(self, name: str, sha256: str, data: EvaluationData) -> ModelScores | None:
        """Read the scores of the checkpoint by the retrain's test, if the gate would do the same.

        That is so for the same weights and the same data, of which all samples were scored on one
        device in the precision of the gate; one lower than float32 on a device of the same kind.
        """
        if self.settings.slices or not self._is_tested_alike():
            return None

        found = self._find_test(sha256)
        if found is None or not _is_of_data(found, data):
            return None
        scores = {
            key: math.nan if value is None else float(value) for key, value in found.metrics.items()
        }
        predictions = self._read_test_predictions(sha256, str(found.data))
        needs_predictions = (self.settings.confidence, self.settings.margin) != (None, None)
        if (needs_predictions and predictions is None) or not math.isfinite(
            scores.get(self.metric, math.nan)
        ):
            return None
        return ModelScores(name, scores, predictions=predictions)

    def _find_test(self, sha256: str) -> StageScore | None:
        """Find the newest test of the same weights.

        On all samples, with the settings of the run and of the gate.
        """
        for each in reversed(read_scores(runs.read_json(self.run.summary_path) or {})):
            is_whole = each.limit is None and not each.changed
            if (
                each.stage == "test"
                and each.sha256 == sha256
                and is_whole
                and self.scorer.computes_alike(each)
            ):
                return each
        return None

    def _is_tested_alike(self) -> bool:
        """Return whether the retrain has just tested the run on one device, as a gate would."""
        hardware = runs.find_value(runs.read_json(self.run.manifest_path), "hardware") or {}
        return os.environ.get(IN_RETRAIN) == "tested" and hardware.get("devices") == 1

    def _read_test_predictions(self, sha256: str, fingerprint: str) -> Predictions | None:
        """Read the predictions of the run's test.

        None where they are of other weights, or perhaps in another order.
        """
        with suppress(DataError):
            predictions = read_predictions(predictions_path(self.run.folder, "test"))
            if predictions.sha256 == sha256 and predictions.fingerprint == fingerprint:
                return predictions
        return None

    def _find_baseline(self, name: str) -> BaselineModel | None:
        reference = self.settings.baseline
        if reference is None:
            return None
        if self.settings.is_against_run:
            run = runs.find(reference, self.run.root)
            checkpoint = find_checkpoint(run, "best")
            if checkpoint.is_dir():
                raise ConfigError(f"gate.baseline: {runs.refuse_folder(checkpoint)}")
            run_name = f"{run.name}/{run.id}"
            sha256 = runs.digest(checkpoint)
            return BaselineModel(
                f"run {run_name}", None, run.config_path, checkpoint, sha256, run_name
            )
        if (
            self.registry is not None
            and (version := find_version(self.registry, name, reference)) is not None
        ):
            alias = None if reference.isdecimal() else reference
            return fetch_baseline(self.registry, version, self.folder / "baseline", alias=alias)
        if reference.isdecimal():
            raise ConfigError(
                f"gate.baseline: there is no registered model {name!r}, and no version {reference}."
            )
        self.notices.append(f"{name} has no {reference} yet: the thresholds decide alone")
        return None

    def _find_best(
        self,
        registry: Registry,
        recent: Sequence[str],
        versions: Mapping[str, ModelVersion],
        data: EvaluationData,
        candidate: ModelScores,
        scored: Mapping[str, ModelScores],
        *,
        mode: Mode | None,
    ) -> dict[str, Any]:
        """Find the best of the recently promoted models.

        Each is scored anew. The score with which it was promoted may be of other code, callbacks or
        settings of the command line, of which the samples tell nothing. A model that cannot be
        scored by today's code is left out, and named.
        """
        scores = dict[str, float]()
        unknown = list[str]()
        for number in recent:
            version = versions.get(number)
            found = None if version is None else scored.get(version.tags.get(CHECKPOINT, ""))
            if found is None:
                try:
                    found = self._score_version(registry, number, version, data)
                except (OutOfTime, OutputLost, ServerAway, Stalled):
                    raise
                except Exception as error:  # noqa: BLE001 (today's code may raise anything on an old model)
                    unknown.append(f"version {number}: {_describe_failure(error)}")
                    continue
            self._check_units(candidate, found)
            value = found.metrics[self.metric]
            if math.isfinite(value):
                scores[number] = value
        self.notices.extend(f"gate.drift leaves out {each}" for each in unknown)
        best = min(scores, key=lambda each: rank_value(scores[each], mode or "max"), default=None)
        return {"best": scores.get(best or ""), "version": best, "unknown": unknown}

    def _score_version(
        self, registry: Registry, number: str, version: ModelVersion | None, data: EvaluationData
    ) -> ModelScores:
        """Score a version of the registered model.

        Raises:
            ConfigError: If it is not there any more, or cannot be scored.
            DataError: If its data is missing.
        """
        if version is None:
            raise ConfigError("it was deleted")
        return self._score_baseline(
            fetch_baseline(registry, version, self.folder / f"version-{number}"), data
        )

    def _score_baseline(self, model: BaselineModel, data: EvaluationData) -> ModelScores:
        """Score another model, built by its own config.

        On the samples of this run's data as its own settings say.
        """
        stage_config, settings = self._open_baseline(model, type(data.data))
        with ExitStack() as stack:
            module, own_data = build_model(stage_config, stack)
            assert own_data is not None
            # its own: prepared and with the state that it asks for
            samples = evaluation_data(own_data, data.split, task_of(module))
            scores = self.scorer.score(model.name, module, model.checkpoint, samples)
        self._check_same_samples(model.name, samples, data, settings)
        if settings.own and samples.fingerprint != data.fingerprint:
            own = ", ".join(
                f"data.{_dotted(name)} {_shorten(value)}" for name, value in settings.own.items()
            )
            self.notices.append(f"{model.name} keeps its own settings of the data: {own}")
        return scores

    def _check_same_samples(
        self, name: str, samples: EvaluationData, data: EvaluationData, settings: DataSettings
    ) -> None:
        """Check that two models were scored on the same samples.

        Args:
            name: Name of the baseline in messages.
            samples: Those of the baseline.
            data: Those of the run that is judged.
            settings: Data settings of the baseline.

        Raises:
            ConfigError: If they were not, or it cannot be known.
        """
        differing = ", ".join(
            f"data.{_dotted(each)} is {_shorten(value)} there"
            for each, value in settings.own.items()
        )
        names = samples.names_digest, data.names_digest
        found = _describe_difference(samples, data, names)
        if found is not None:
            details = ", for ".join(filter(None, (found, differing)))
            shown = f" ({details})" if details else ""
            raise ConfigError(
                f"gate.baseline: {name} would be scored on other samples{shown}; {THRESHOLDS_ALONE}"
            )
        if settings.unclear and samples.fingerprint != data.fingerprint and None in names:
            raise _refuse_unclear_settings(name, settings, type(data.data).__name__)

    def _check_units(self, candidate: ModelScores, other: ModelScores) -> None:
        """Check that two models log the metric in the same units.

        A remark where the two are not compared.

        Raises:
            ConfigError: If each has units of its own.
        """
        mine = candidate.unit or ()
        theirs = other.unit or ()
        if len(mine) == len(theirs) and all(
            map(partial(math.isclose, rel_tol=_SAME_UNIT), mine, theirs)
        ):
            return
        if {*self.settings.rules} <= _RULES_OF_ONE_MODEL:
            self.notices.append(
                f"{self.metric} of {other.name} is in other units: its training data differs"
            )
        else:
            raise ConfigError(
                f"gate.metric: {self.metric} is in units of each run's own training data:"
                f" {candidate.name} divides by {_list_numbers(mine)}, {other.name} by"
                f" {_list_numbers(theirs)}, so that the two cannot be compared. Name a metric in"
                " the units of the target, such as --gate.metric=test/mse."
            )

    def _open_baseline(self, model: BaselineModel, kind: type) -> tuple[StageConfig, DataSettings]:
        """Open the config of a model, whose data settings choose the samples of the judged run.

        Args:
            model: The model.
            kind: Class of the data module of the run that is judged.

        Returns:
            The config, and the data settings in it.

        Raises:
            ConfigError: If its config cannot be used here.
        """
        config = to_plain(read_file(model.config))
        resolved = self.stage_config.resolved
        if config.get("data") is None:
            raise ConfigError(
                f"gate.baseline: {model.name} has no data in its config; {THRESHOLDS_ALONE}"
            )
        settings = choose_data_settings(
            config["data"],
            of_gate=resolved.with_references({"data": resolved.value_of("data")})["data"],
            of_run=to_plain(read_file(self.run.config_path)).get("data"),
            kind=kind,
        )
        text = dump_yaml(
            {
                "seed_everything": self.scorer.seed,
                "model": config.get("model"),
                "data": settings.section,
            }
        )
        options: dict[str, Any] = {"ckpt_path": str(model.checkpoint)}
        if runs.is_trusting():
            options["trust"] = True
        try:
            stage_config = open_run_config(Invocation("export", options=options, files=(text,)))
        except LightkitError as error:
            first = str(error).split("\n", 1)[0]
            raise ConfigError(
                f"gate.baseline: {model.name} cannot be built from its config: {first}. Name"
                f" another with --gate.baseline, or {THRESHOLDS_ALONE}"
            ) from error
        return replace(stage_config, mode=self.stage_config.mode), settings


def _describe_difference(
    samples: EvaluationData, data: EvaluationData, names: tuple[str | None, str | None]
) -> str | None:
    """Describe by what the samples of two models differ.

    None where number, labels and names are the same; empty where the names differ.

    Args:
        samples: Those of the baseline.
        data: Those of the run that is judged.
        names: Digests of the names of both.
    """
    numbers = f"{samples.num_samples} against {data.num_samples}"
    if samples.num_samples != data.num_samples:
        return numbers
    if samples.labels_digest != data.labels_digest:
        return f"{numbers}, with other labels"
    return "" if None not in names and names[0] != names[1] else None


def _refuse_unclear_settings(name: str, settings: DataSettings, class_name: str) -> ConfigError:
    """Return the error that settings of the data may choose other samples.

    Args:
        name: Name of the baseline in messages.
        settings: Data settings of the baseline.
        class_name: Class of the data module.
    """
    unclear = ", ".join(
        f"data.{_dotted(each)} ({_shorten(settings.own[each])} there)" for each in settings.unclear
    )
    return ConfigError(
        f"gate.baseline: {name} was trained with another value of {unclear}, and it is unknown"
        " whether that "
        "chooses the samples, which must be the same for both, or prepares"
        f" them, which each model does its "
        f"own way. List the arguments that choose them in the class {class_name}, such as "
        f'sample_arguments = ("root", "fold"); or {THRESHOLDS_ALONE}'
    )


def _is_of_data(score: StageScore, data: EvaluationData) -> bool:
    """Return whether a score is of all samples of the data as it is now, which is read for that."""
    if score.data is None or not data.measure():
        return False
    fingerprint = describe_data(data.data).get("fingerprint")
    return (score.data, score.num_samples) == (fingerprint, data.num_samples)


def _describe_evaluation_data(data: EvaluationData) -> dict[str, Any]:
    """Describe the data for gate.json: lightkit's own with its source and version."""
    described = describe_data(data.data)
    kept = {key: described[key] for key in ("source", "fingerprint", "version") if key in described}
    return {"fingerprint": data.fingerprint, "split": data.split, "described": kept or None}


def _describe_confidence(decision: Mapping[str, Any], metric: str) -> str:
    """Describe by which test the difference is certain, or why there is none."""
    tested_by = decision["significance"]
    if tested_by["test"] is None:
        return f"gate.confidence has no effect: {tested_by['reason']}"
    return describe_significance(tested_by, metric, decision["baseline"], mode=decision["mode"])


def _dotted(argument: str) -> str:
    return argument if argument == "class_path" else f"init_args.{argument}"


def _shorten(value: Any) -> str:
    return textwrap.shorten(str(value), 60, placeholder=" ...")


def _list_numbers(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:.6g}" for number in numbers) or "nothing"


def _describe_failure(error: Exception) -> str:
    """Write why a model cannot be scored; of another's error its kind, too."""
    text = str(error)
    return text if isinstance(error, LightkitError) else f"{type(error).__name__}: {text}"
