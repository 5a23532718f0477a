"""``scores`` of summary.json.

The results of later stages, each with the weights, the data and the settings it is of.

Each is an object:

============  ======================================================================================
stage         ``test`` or ``validate``
metrics       metric -> value; null where it is not finite
checkpoint    file of the weights, relative to the run's folder where it is inside; null where the
              model had none
sha256        digest of that file when it was loaded; null where it is unknown
epoch         of the weights, from 0; null where it is unknown
data          fingerprint of the data, as ``data.fingerprint`` of the manifest; null where the data
              module has none
limit         ``trainer.limit_test_batches`` (or ``_val_``) where it leaves batches out: a number of
              them, or a share
num_samples   number of samples that were scored, over all ranks and loaders; null where it is
              unknown
precision     in which it was computed, as ``trainer.precision``; null where it is unknown
device        kind of the device: ``cpu``, ``cpu with bf16``, the name of a GPU; null where it is
              unknown
changed       key -> value of the config, where the stage's differs from the run's in what may
              change a metric
time          end of the stage, ISO 8601, UTC
============  ======================================================================================

A later result replaces an earlier one of the same stage, weights, data and settings alone. A score
belongs to a run's best checkpoint where `is_of` says so: equal digest, equal fingerprint, nothing
changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path, PurePath
from typing import Any

from lightkit.runs.checkpoints import known_digest
from lightkit.runs.files import find_value
from lightkit.runs.folder import Run

_MAX_CHARS = 60  # of a value in words


@dataclass(frozen=True)
class StageScore:
    """The result of a later stage, and what it belongs to.

    The fields are those of the module's table.
    """

    stage: str
    metrics: Mapping[str, float | None]
    checkpoint: str | None = None
    sha256: str | None = None
    epoch: int | None = None
    data: str | None = None
    limit: int | float | None = None
    num_samples: int | None = None
    precision: str | None = None
    device: str | None = None
    changed: Mapping[str, Any] = field(default_factory=dict)
    time: str | None = None

    def is_of(self, sha256: str | None, *, data: str | None) -> bool:
        """Return whether it is the score of some weights on the run's own data and settings.

        Args:
            sha256: Digest of the file of the weights; None belongs to no score.
            data: Fingerprint of the run's data; None where its data module has none, and where
                ``changed`` decides.
        """
        return None not in (sha256, self.sha256) and not self.is_of_other(sha256, data=data)

    def is_of_other(self, sha256: str | None, *, data: str | None) -> bool:
        """Return whether it is known to be of other weights, data or settings than these.

        Args:
            sha256: Digest of the file of the weights; None where it is unknown.
            data: Fingerprint of the run's data; None where it is unknown.
        """
        pairs = ((self.sha256, sha256), (self.data, data))
        is_other = any(None not in pair and pair[0] != pair[1] for pair in pairs)
        return is_other or bool(self.changed)

    def describe_origin(self, *, data: str | None) -> str:
        """Write in words what it is of: ``last.ckpt, epoch 1, with data.root: other``.

        Args:
            data: Fingerprint of the run's data.
        """
        parts = [
            (
                "a model without a checkpoint"
                if self.checkpoint is None
                else PurePath(self.checkpoint).name
            )
        ]
        if self.epoch is not None:
            parts.append(f"epoch {self.epoch}")
        changed = []
        for key, value in self.changed.items():
            text = str(value)
            changed.append(
                f"{key}: {text if len(text) <= _MAX_CHARS else f'{text[:_MAX_CHARS]}...'}"
            )
        if changed:
            parts.append(f"with {', '.join(changed)}")
        if None not in (self.data, data) and self.data != data:
            parts.append("of other data than the training's")
        return ", ".join(parts)


def read_scores(summary: Mapping[str, Any]) -> list[StageScore]:
    """Read the scores of a run's summary, in the order in which they were recorded.

    Damaged ones are left out.
    """
    recorded = summary.get("scores")
    known = {each.name for each in fields(StageScore)}
    scores = []
    for entry in recorded if isinstance(recorded, list) else ():
        if (
            isinstance(entry, Mapping)
            and isinstance(entry.get("metrics"), Mapping)
            and "stage" in entry
        ):
            values = {name: value for name, value in entry.items() if name in known}
            scores.append(StageScore(**{**values, "changed": values.get("changed") or {}}))
    return scores


def add_score(scores: Iterable[StageScore], new: StageScore) -> list[StageScore]:
    """Add a score in the place of an earlier one of the same stage, weights, data and settings."""

    def identify(score: StageScore) -> tuple[Any, ...]:
        # without a digest, weights are known by their file alone
        weights = score.sha256 or score.checkpoint
        return (
            score.stage,
            weights,
            score.data,
            score.limit,
            sorted(map(str, score.changed.items())),
        )

    return [*(each for each in scores if identify(each) != identify(new)), new]


def write_scores(scores: Iterable[StageScore]) -> list[dict[str, Any]]:
    """Return the scores as summary.json has them."""
    return [asdict(each) for each in scores]


def find_best_checkpoint(run: Run, summary: Mapping[str, Any]) -> Path:
    """Return the path of a run's best checkpoint, which need not exist."""
    named = find_value(summary, "paths", "best_checkpoint")
    return run.folder / named if isinstance(named, str) else run.checkpoints / "best.ckpt"


def list_own_scores(
    run: Run, summary: Mapping[str, Any], manifest: Mapping[str, Any]
) -> list[StageScore]:
    """List the scores of a run's best checkpoint on the run's own data; the newest of each stage.

    Of a run that trained nothing, such as one of ``lightkit test -c``, they are the newest.

    Args:
        run: The run.
        summary: Its summary.json.
        manifest: Its manifest.json.
    """
    scores = read_scores(summary)
    if scores and manifest.get("subcommand", "fit") == "fit":
        sha256, data = _identify_run(run, summary, manifest)
        scores = [each for each in scores if each.is_of(sha256, data=data)]
    return list({each.stage: each for each in scores}.values())


def is_of_other_run(
    score: StageScore, run: Run, summary: Mapping[str, Any], manifest: Mapping[str, Any]
) -> bool:
    """Return whether a score is known to be of other weights, data or settings than a run's own.

    Those of a run that trained nothing are its own.

    Args:
        score: Of a stage of the run.
        run: The run.
        summary: Its summary.json.
        manifest: Its manifest.json.
    """
    if manifest.get("subcommand", "fit") != "fit":
        return False
    sha256, data = _identify_run(run, summary, manifest)
    return score.is_of_other(sha256, data=data)


def _identify_run(
    run: Run, summary: Mapping[str, Any], manifest: Mapping[str, Any]
) -> tuple[str | None, str | None]:
    """Return the digest of a run's best checkpoint and the fingerprint of its data.

    None where one is unknown.
    """
    sha256 = known_digest(find_best_checkpoint(run, summary))
    return sha256, find_value(manifest, "data", "fingerprint")


def keep_own_stages(
    run: Run, summary: Mapping[str, Any], manifest: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a summary whose ``stages`` are those of the run's best checkpoint and own data alone.

    A summary of an earlier version, which has no ``scores``, does not tell, and stays as it is.
    """
    if "scores" not in summary:
        return dict(summary)
    stages = {each.stage: each.metrics for each in list_own_scores(run, summary, manifest)}
    return {**summary, "stages": stages}


def drop_lost_scores(run: Run, scores: Iterable[StageScore]) -> list[StageScore]:
    """Leave out the scores of weights that the run's folder held and holds no more."""
    kept = []
    digests: set[str | None] | None = None
    for each in scores:
        is_inside = each.checkpoint is not None and not PurePath(each.checkpoint).is_absolute()
        if is_inside and digests is None:
            digests = {known_digest(path) for path in run.checkpoints.glob("*.ckpt")}
            digests.add(known_digest(run.folder / str(each.checkpoint)))
        if not is_inside or each.sha256 in (digests or ()):
            kept.append(each)
    return kept
