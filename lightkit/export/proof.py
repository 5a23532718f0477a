"""That an exported file is the model it was made of: run in a fresh process, compared, scored and timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lightkit.artefacts.metadata import Metadata
from lightkit.errors import ExportError
from lightkit.export.parity import TOLERANCES, Gap, Parity, Tolerance, compare
from lightkit.export.process import ask
from lightkit.export.reference import Reference
from lightkit.export.scoring import Score, Scorer

__all__ = ["Mismatch", "Proof", "prove"]


_ALLOW = "If such a gap is expected, allow for it with --rtol and --atol."
_EXACT = "--rtol and --atol do not count here: whole numbers, booleans, shapes, NaN and infinity are compared exactly."
_METRIC = "--rtol and --atol are for outputs, not for metrics. More samples (--num-samples) make a metric finer."


class Mismatch(ExportError):
    """A file gives something else than its model.

    Args:
        says: What.
        advice: What can be done about it.
    """

    def __init__(self, says: str, *, advice: str = "") -> None:
        super().__init__(says)
        self.advice = advice


@dataclass(frozen=True)
class Proof:
    """What the proof of a file found.

    Args:
        parity: By batch size.
        score: The task's metrics.
        latency: Of the file, by batch size: ``median_s``, ``p95_s``, ``repetitions``.
        loaded: Packages that the fresh process had loaded.
        tolerance: That was applied.
        num_samples: That it was run on.
    """

    parity: Mapping[int, Parity]
    score: Score
    latency: Mapping[int, Mapping[str, float]]
    loaded: Sequence[str]
    tolerance: Tolerance
    num_samples: int


def prove(
    file: Path,
    metadata: Metadata,
    reference: Reference,
    *,
    scorer: Scorer,
    inputs: Path,
    folder: Path,
    threads: int,
    tolerance: Tolerance | None = None,
) -> Proof:
    """Run a file in a fresh process, and compare it with the eager model.

    Args:
        file: The file.
        metadata: What it says of itself.
        reference: What the eager model gives.
        scorer: Of the same reference.
        inputs: Folder with the reference's inputs.
        folder: Private and empty, for the process.
        threads: Of the runtime.
        tolerance: The user's; what it leaves open is that of the precision.

    Raises:
        Mismatch: If an output or a metric is off, or, where there is no metric, the file gives too little of what
            differs between samples. It says how far, and where first.
        ExportError: If the file cannot be run.
    """
    allowed = (tolerance or Tolerance()).over(TOLERANCES.get(metadata.precision, TOLERANCES["float32"]))
    answer = ask(
        file,
        metadata,
        inputs=inputs,
        batches=reference.batches,
        plain=reference.subject.plain,
        folder=folder,
        threads=threads,
    )
    parity = {
        size: compare(batches, answer.outputs[size], batch_size=size, specs=metadata.outputs, tolerance=allowed)
        for size, batches in reference.batches.items()
    }
    _check_parity(file.name, metadata, parity, names=reference.samples.names, tolerance=allowed)
    score = scorer.score(answer.outputs, precision=metadata.precision)
    _check_score(file.name, score)
    if score.reason is not None:
        _check_spread(file.name, parity, reason=score.reason, tolerance=allowed)
    return Proof(parity, score, answer.latency, answer.loaded, allowed, reference.num)


def _check_parity(
    name: str, metadata: Metadata, parity: Mapping[int, Parity], *, names: Sequence[str], tolerance: Tolerance
) -> None:
    off = [found for found in parity.values() if found.num_outside]
    if not off:
        return
    first = off[0]
    assert first.first is not None
    also = f" (at batch {' and '.join(str(found.batch_size) for found in off[1:])} too)" if off[1:] else ""
    far = max(found.max_abs for found in off)
    raise Mismatch(
        f"{name} does not match its model: {first.num_outside} of {first.num_outputs} outputs differ at batch size "
        f"{first.batch_size}{also}, by up to {far:.2e} ({tolerance}); first "
        f"{_where(first.first, metadata, names)}.",
        advice=_EXACT if any(found.num_hopeless for found in off) else _ALLOW,
    )


def _where(gap: Gap, metadata: Metadata, names: Sequence[str]) -> str:
    """Sample, output and class, with both values."""
    sample = "" if gap.row is None else f"for {names[gap.row] if gap.row < len(names) else f'sample {gap.row}'}: "
    if gap.unlike is not None:
        return f"{sample}{gap.unlike}"
    return f"{sample}{_element(gap, metadata)} is {gap.exported:.6g}, expected {gap.expected:.6g}"


def _element(gap: Gap, metadata: Metadata) -> str:
    output = metadata.outputs[gap.output].name if gap.output < len(metadata.outputs) else f"output {gap.output}"
    classes = metadata.class_names
    if classes and gap.output == 0 and len(gap.index) == 1 and gap.index[0] < len(classes):
        return f"class {classes[gap.index[0]]!r} of {output!r}"
    return f"{output!r}{list(gap.index) if gap.index else ''}"


def _check_score(name: str, score: Score) -> None:
    if not score.outside:
        return
    told = ", ".join(
        f"{metric} is {score.exported[metric]:.4g}, eager {score.eager[metric]:.4g}" for metric in score.outside
    )
    raise Mismatch(
        f"{name} does not score as its model does: {told} (tolerance {score.tolerance:.2g}).", advice=_METRIC
    )


def _check_spread(name: str, parity: Mapping[int, Parity], *, reason: str, tolerance: Tolerance) -> None:
    found = max((of_size.of_spread for of_size in parity.values() if of_size.of_spread is not None), default=0.0)
    if tolerance.of_spread is None or found <= tolerance.of_spread:
        return
    raise Mismatch(
        f"{name} does not match its model: its outputs are off by {found:.2f} of what the model's own differ between "
        f"samples (at most {tolerance.of_spread:g}; the same answer to every sample is off by 1), and there is no "
        f"metric to judge by: {reason}.",
        advice="Prove it on more samples with --num-samples, or say with --atol how far its outputs may be off.",
    )
