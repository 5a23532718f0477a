"""The proof that an exported file equals its model: run in a fresh process, compared, scored and timed."""

from __future__ import annotations

import copy
import importlib
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning_utilities.core.apply_func import apply_to_collection
from PIL import Image
from pytorch_lightning import LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightkit.errors import ExportError
from lightkit.export import formats
from lightkit.export.bare_trainer import build_bare_trainer
from lightkit.export.export_errors import silence_exporters
from lightkit.export.formats import FORMATS
from lightkit.export.metadata import Metadata
from lightkit.export.samples import EvaluationSamples
from lightkit.export.target import ExportTarget, call_forward, name_outputs

BATCH_SIZES = (1, 7, 32)
"""One, an odd one, and a usual one: a model that was fixed to the batch of its example differs at one of them."""
TIMED_BATCH_SIZES = (1, 32)
_MAX_SIDE = 640
"""In pixels, of images that are resized to one size for a batch: 32 photos of a phone would take a gigabyte."""
_TIMEOUT_S = 1800.0
_EXACT = 1e-6
Array = np.ndarray[Any, Any]
Outputs = Mapping[int, Sequence[Sequence[Array]]]
_EXACT_HINT = (
    "--rtol and --atol do not count here: whole numbers, booleans, shapes, NaN and infinity are compared exactly."
)


class Mismatch(ExportError):
    """A file's outputs or metrics differ from its model's."""


# -- comparison --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tolerance:
    """Allowed gap of an output: ``atol + rtol * |expected|``, the rule of ``torch.testing.assert_close``.

    Args:
        rtol: Relative.
        atol: Absolute, in the units of the output.
        of_largest: Relative to the largest value of that output over all samples, added to the others. The error of
            rounded weights grows with the activations, not with the output.
    """

    rtol: float
    atol: float
    of_largest: float = 0.0

    def __str__(self) -> str:
        largest = f", {self.of_largest:g} of the largest" if self.of_largest else ""
        return f"rtol={self.rtol:g}, atol={self.atol:g}{largest}"


TOLERANCES = {
    "float32": Tolerance(1e-4, 1e-5),
    "float16": Tolerance(1e-2, 1e-5, of_largest=0.02),
    "int8": Tolerance(1e-2, 1e-5, of_largest=0.5),
}
"""By the precision of the weights.

Those of float32 allow for fused kernels. The others are two to three times what a MobileNetV2 of five kinds of flowers
gives on 64 real photos, with logits up to 3.4: float16 is off by 0.02 at most (0.006 of the largest), int8 by 0.75
(0.22, with the same class on 63 photos). The metrics show what that does to the task.

Half of the largest output is too wide a bound alone: an output of zeros has nearly all of its elements inside it. So a
file in int8 needs a metric too, or the user's own ``atol``.
"""


def choose_tolerance(precision: str, rtol: float | None = None, atol: float | None = None) -> Tolerance:
    """Return the tolerance of a precision with the user's bounds; an own ``atol`` replaces its relative bounds, too."""
    default = TOLERANCES[precision]
    rtol = default.rtol if rtol is None else rtol
    return replace(default, rtol=rtol) if atol is None else Tolerance(rtol, atol)


class ReferenceBatch(NamedTuple):
    """A batch of samples with the eager model's outputs.

    Args:
        rows: Indices of the samples; the last batch is filled up from the start.
        inputs: Each ``(batch, ...)``.
        expected: The outputs, in the order of the metadata.
    """

    rows: Sequence[int]
    inputs: Sequence[Array]
    expected: Sequence[Array]


@dataclass
class Comparison:
    """Result of comparing the batches of one size.

    Args:
        parity: Entry of export.json: ``max_abs``, ``max_rel`` (of the model's largest output), number of ``outputs``
            compared and of those ``outside`` the tolerance.
        first: The first gap outside, in words.
        is_exact: Whether one is outside that no tolerance allows: whole numbers, another shape, NaN, infinity.
    """

    parity: dict[str, Any]
    first: str | None = None
    is_exact: bool = False


def compare(
    batches: Sequence[ReferenceBatch],
    exported: Sequence[Sequence[Array]],
    *,
    metadata: Metadata,
    names: Sequence[str],
    tolerance: Tolerance,
) -> Comparison:
    """Compare the outputs of the batches of one size; whole numbers and booleans exactly.

    Args:
        batches: With the eager model's outputs.
        exported: The file's flattened outputs for each batch.
        metadata: Of the file, for the names of outputs and classes.
        names: Of the samples.
        tolerance: Allowed gaps.
    """
    figures = {"max_abs": 0.0, "max_rel": 0.0, "outputs": 0, "outside": 0}
    result, classes, largest = Comparison(figures), metadata.class_names or (), 0.0
    rows = [row for batch in batches for row in batch.rows]
    for place, spec in enumerate(metadata.outputs):
        pairs = [(batch.expected[place], each[place]) for batch, each in zip(batches, exported, strict=True)]
        figures["outputs"] += sum(expected.size for expected, _ in pairs)
        forms = [[f"{array.dtype} {tuple(array.shape)}" for array in pair] for pair in pairs]
        if other := next((form for form in forms if form[0] != form[1]), None):
            figures["outside"] += sum(expected.size for expected, _ in pairs)
            result.first = result.first or f"{spec.name!r} is {other[1]}, expected {other[0]}"
            result.is_exact = True
            continue
        has_rows = pairs[0][0].shape[:1] == (len(batches[0].rows),)
        expected, found = map(np.concatenate if has_rows else np.stack, zip(*pairs, strict=True))
        is_float = np.issubdtype(expected.dtype, np.inexact)
        wide = np.complex128 if np.iscomplexobj(expected) else np.float64
        with np.errstate(invalid="ignore", over="ignore"):
            wanted = expected.astype(wide)
            gap, size = np.abs(wanted - found.astype(wide)), np.abs(wanted)
            scale = float(size[np.isfinite(size)].max(initial=0.0))
            allowed = tolerance.atol + tolerance.of_largest * scale + tolerance.rtol * size
            is_close = np.isfinite(expected) & (gap <= allowed) if is_float else False  # not `>`, which NaN would pass
        outside = ~(is_close | (expected == found))
        largest = max(largest, scale)
        figures["max_abs"] = max(figures["max_abs"], float(gap[np.isfinite(gap)].max(initial=0.0)))
        figures["outside"] += int(outside.sum())
        result.is_exact |= bool((outside & ~np.isfinite(gap) if is_float else outside).any())
        if result.first is None and outside.any():
            row, *index = at = tuple(int(each) for each in np.argwhere(outside)[0])
            values = f"{float(found[at].real):.6g}, expected {float(expected[at].real):.6g}"
            is_class = place == 0 and len(index) == 1 and index[0] < len(classes)
            element = f"class {classes[index[0]]!r} of {spec.name!r}" if is_class else f"{spec.name!r}{index or ''}"
            result.first = f"{f'for {names[rows[row]]}: ' if has_rows else ''}{element} is {values}"
    figures["max_rel"] = figures["max_abs"] / largest if largest else 0.0
    return result


# -- metrics -----------------------------------------------------------------------------------------------------------


METRIC_TOLERANCES = {"float32": (1e-3, 0), "float16": (1e-2, 1), "int8": (2e-2, 2)}
"""By precision: how far a metric may be off, and by how many samples more.

A sample on the border between two classes may fall to the other side once weights are rounded, which moves an accuracy
over N samples by 1/N. Values above one, as a loss may be, count in relation to themselves. The user's tolerance, in
units of the outputs, does not apply.
"""
_MAX_TOLERANCE = 0.2
"""With one or two samples, those on a border would allow for any accuracy."""


class NotScored(Exception):
    """There are no metrics, with the reason."""


def metric_tolerance(precision: str, num_samples: int) -> float:
    """Return how far a metric over so many samples may be off."""
    off, num_flips = METRIC_TOLERANCES[precision]
    return min(off + num_flips / num_samples, _MAX_TOLERANCE)


def is_same_metric(one: float, other: float, tolerance: float) -> bool:
    """Compare two values of a metric; NaN equals NaN alone."""
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)


def validate_outputs(
    module: nn.Module, samples: EvaluationSamples, outputs: Sequence[tuple[Tensor, bool]], template: Any
) -> dict[str, float]:
    """Validate a module on the samples with Lightning's own loop, on one CPU, without logger or checkpoints.

    Metrics that do not come from ``forward``'s outputs are the same for all outputs.

    Args:
        module: The plain model, in eval mode. ``forward`` is replaced meanwhile.
        samples: Their batches are validated, their inputs recognised.
        outputs: For each output of ``forward`` its values, and whether these have a row for each sample.
        template: What ``forward`` returns: tensors in a tuple, list or mapping, or one alone.

    Returns:
        What the module logs in its validation.

    Raises:
        NotScored: If there is nothing to validate, or the validation does not go by ``forward`` alone.
    """
    name = type(module).__name__
    if not isinstance(module, LightningModule):
        raise NotScored(f"{name} is no LightningModule")
    if not samples.batches:
        raise NotScored("the data gives no batches of a validation split")
    if type(module).validation_step is LightningModule.validation_step:
        raise NotScored(f"{name} has no validation_step")
    replay = _Replay(samples.inputs, outputs, template)
    # copies: the module may change a batch in place
    loader: DataLoader[Any] = DataLoader(list(samples.batches), batch_size=None, collate_fn=copy.deepcopy)  # type: ignore[arg-type]
    with silence_exporters():  # Lightning's advice on a trainer that the user did not choose
        trainer = build_bare_trainer()
        try:
            module.__dict__["forward"] = replay
            trainer.validate(module, dataloaders=loader, verbose=False)
        except NotScored:
            raise
        except Exception as error:  # the user's validation raises anything without their trainer
            reason = f"its validation fails on a Trainer of its own ({type(error).__name__}: {error})"
            raise NotScored(reason) from error
        finally:
            del module.__dict__["forward"]
            module.trainer = None
            module.eval()
    if not replay.is_used:
        raise NotScored("validation_step does not call forward")
    metrics = {key: float(value) for key, value in trainer.callback_metrics.items() if value.numel() == 1}
    if not metrics:
        raise NotScored("validation_step logs no metric")
    return metrics


class _Replay:
    """Replaces ``forward``: returns the rows of the samples that it is called with."""

    def __init__(self, inputs: Sequence[Tensor], outputs: Sequence[tuple[Tensor, bool]], template: Any) -> None:
        self._inputs, self._outputs, self._template = inputs, outputs, template
        self._start = self._end = 0
        self.is_used = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        if len(given) == len(self._inputs) and given[0].ndim:
            for start in (self._end, self._start):  # the next rows, or the last ones once more
                end = start + len(given[0])
                if all(torch.equal(mine[start:end], theirs) for mine, theirs in zip(self._inputs, given, strict=True)):
                    self._start, self._end, self.is_used = start, end, True
                    rows = iter([output[start:end] if has_rows else output for output, has_rows in self._outputs])
                    return apply_to_collection(self._template, Tensor, lambda _: next(rows))  # noqa: B023 (called at once)
        raise NotScored("validation_step gives forward something else than the samples")


# -- the proof ---------------------------------------------------------------------------------------------------------


class Reference:
    """The samples in batches of 1, 7 and 32, with the eager model's outputs, metrics and latency.

    A file with the preprocessing in its graph takes the images of ``EvaluationSamples.load_image``: one by one at
    their own sizes, in larger batches at the size of the first of them. The expected outputs are then not those of that
    graph run eagerly, but what `Preprocessing` (the one that predictions use) and the plain model compute of the same
    pixels, with a softmax behind it if the file has one. So a wrong resize in the graph is found.

    Args:
        target: The model.
        samples: The samples.
        in_graph: Whether the file has the preprocessing in its graph, and the plain model has not.
        folder: For the batches' inputs; created.

    Attributes:
        batches: By batch size.
        metrics: Of the eager model, by the name that the module logs.
        not_scored: Why there are none, else None.
        latency: Of the eager model, with as much in it as the file has, by batch size.

    Raises:
        ExportError: If there are no samples, or the model itself fails on them.
    """

    def __init__(self, target: ExportTarget, samples: EvaluationSamples, *, in_graph: bool, folder: Path) -> None:
        self.target, self.samples, self.in_graph, self.folder = target, samples, in_graph, folder
        self.num_samples = len(samples.names)
        if self.num_samples == 0:
            raise ExportError("There are no samples to prove an export on. Give the data a validation split.")
        self.threads = torch.get_num_threads()
        self.scored_size = 1 if in_graph else max(BATCH_SIZES)  # larger batches bring images to one size
        self._is_softened = in_graph and getattr(target.model, "is_logits", False)
        self._template: Any = None
        self.batches: Mapping[int, Sequence[ReferenceBatch]] = {size: list(self._batch(size)) for size in BATCH_SIZES}
        for size, batches in self.batches.items():
            (folder / str(size)).mkdir(parents=True)
            for index, batch in enumerate(batches):
                formats.save_arrays(folder / str(size) / f"{index}.npz", batch.inputs)
        self.metrics: Mapping[str, float] = {}
        self.not_scored: str | None = None
        outputs = [batch.expected for batch in self.batches[self.scored_size]]
        try:
            found, again = self.validate(outputs), self.validate(outputs)
        except NotScored as error:
            self.not_scored = str(error)
        else:  # times and counts are left out
            self.metrics = {name: value for name, value in found.items() if is_same_metric(value, again[name], _EXACT)}
            if not self.metrics:
                self.not_scored = f"{', '.join(found)} differ when the same outputs are scored again"
        model = target.model if in_graph else target.plain
        self.latency = {}
        for size in TIMED_BATCH_SIZES:
            inputs = [torch.from_numpy(array.copy()) for array in self.batches[size][0].inputs]
            with torch.no_grad():
                self.latency[str(size)] = formats.measure_latency(partial(model, *inputs))

    def validate(self, outputs: Sequence[Sequence[Array]]) -> dict[str, float]:
        """Run the module's own validation with the outputs of the batches of ``scored_size``.

        Raises:
            NotScored: If it has none, or it does not go by ``forward`` alone.
        """
        joined = []
        for place, expected in enumerate(self.batches[self.scored_size][0].expected):
            has_rows = expected.shape[:1] == (self.scored_size,)  # a parameter that is returned has none
            arrays = [batch[place] for batch in outputs]
            array = np.concatenate(arrays)[: self.num_samples] if has_rows else np.asarray(arrays[0])
            joined.append((torch.from_numpy(array), has_rows))
        if self._is_softened:  # the module gets the logarithm, of which the softmax is the probabilities
            joined[0] = (joined[0][0].clamp_min(torch.finfo(torch.float32).tiny).log(), joined[0][1])
        return validate_outputs(self.target.plain, self.samples, joined, self._template)

    def _batch(self, size: int) -> Iterator[ReferenceBatch]:
        names = [spec.name for spec in self.target.metadata.outputs]
        for start in range(0, self.num_samples, size):
            rows = [row % self.num_samples for row in range(start, start + size)]
            if self.in_graph:
                inputs, preprocessing = [self._stack_images(rows)], self.target.metadata.preprocessing
                assert preprocessing is not None  # it is in the graph
                prepared = [np.stack([preprocessing(Image.fromarray(image)) for image in inputs[0]])]
            else:
                inputs = [np.ascontiguousarray(values[rows].detach().cpu().numpy()) for values in self.samples.inputs]
                prepared = inputs
            outputs = call_forward(self.target.plain, [torch.from_numpy(array) for array in prepared])
            named = name_outputs(self.target.plain, outputs)
            named = {name: named[name] for name in names} if set(names) == set(named) else named
            leaves = [leaf.float() if leaf.dtype == torch.bfloat16 else leaf for leaf in named.values()][: len(names)]
            self._template = named if isinstance(outputs, Mapping) else outputs
            if self._is_softened:
                leaves[0] = leaves[0].softmax(dim=1)
            yield ReferenceBatch(rows, inputs, [leaf.detach().cpu().numpy() for leaf in leaves])

    def _stack_images(self, rows: Sequence[int]) -> Array:
        """Stack images as uint8 ``(batch, height, width, 3)``; one image alone keeps its size."""
        assert self.samples.load_image is not None  # it is in the graph
        images = [self.samples.load_image(row) for row in rows]
        if len(rows) > 1:
            height, width = images[0].shape[:2]
            scale = min(1.0, _MAX_SIDE / max(height, width))
            size = (max(1, round(width * scale)), max(1, round(height * scale)))
            images = [np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BILINEAR)) for image in images]
        return np.stack(images)


def prove(
    file: Path,
    metadata: Metadata,
    reference: Reference,
    *,
    folder: Path,
    rtol: float | None = None,
    atol: float | None = None,
) -> dict[str, Any]:
    """Run a file in a fresh process, and compare it with the eager model.

    Args:
        file: The file.
        metadata: Its metadata.
        reference: The eager model's outputs.
        folder: Private and empty, for the process.
        rtol: The user's relative tolerance of an output; that of the precision if None.
        atol: The absolute one, likewise.

    Returns:
        Figures of the proof for export.json: ``samples``, ``tolerance``, ``parity``, ``metrics``, ``loaded``,
        ``threads`` and ``latency``.

    Raises:
        Mismatch: If an output or a metric is outside the tolerance, or int8 has no metric and no ``atol``.
        ExportError: If the file cannot be run.
    """
    allowed = choose_tolerance(metadata.precision, rtol, atol)
    outputs, latency, loaded = run_in_worker(file, metadata, reference, folder=folder)
    found = {
        size: compare(batches, outputs[size], metadata=metadata, names=reference.samples.names, tolerance=allowed)
        for size, batches in reference.batches.items()
    }
    if outside := [size for size, each in found.items() if each.first is not None]:
        first, also = found[outside[0]], " and ".join(map(str, outside[1:]))
        is_exact = any(found[size].is_exact for size in outside)
        raise Mismatch(
            f"{file.name} does not match its model: {first.parity['outside']} of {first.parity['outputs']} outputs "
            f"differ at batch size {outside[0]}{f' (at batch {also} too)' if also else ''}, by up to "
            f"{max(found[size].parity['max_abs'] for size in outside):.2e} ({allowed}); first {first.first}. "
            + (_EXACT_HINT if is_exact else "If such a gap is expected, allow for it with --rtol and --atol.")
        )
    metrics = _score(file, reference, outputs[reference.scored_size], metadata.precision)
    if not metrics["scored"] and metadata.precision == "int8" and allowed.of_largest:
        raise Mismatch(
            f"{file.name} cannot be verified: rounding to int8 moves outputs by up to {allowed.of_largest:g} of the "
            f"largest, and there is no metric to judge by: {metrics['reason']}. "
            "Say with --atol how far its outputs may be off, or log a metric in validation_step."
        )
    return {
        "samples": reference.num_samples,
        "tolerance": asdict(allowed),
        "parity": {str(size): each.parity for size, each in found.items()},
        "metrics": metrics,
        "loaded": loaded,
        "threads": reference.threads,
        "latency": {"exported": latency, "eager": reference.latency},
    }


def _score(file: Path, reference: Reference, outputs: Sequence[Sequence[Array]], precision: str) -> dict[str, Any]:
    """Return the entry of export.json on metrics.

    Raises:
        Mismatch: If one is outside the tolerance.
    """
    if reference.not_scored is not None:
        return {"scored": False, "reason": reference.not_scored}
    tolerance = metric_tolerance(precision, reference.num_samples)
    eager, exported = reference.metrics, reference.validate(outputs)
    outside = [name for name, value in eager.items() if not is_same_metric(value, exported[name], tolerance)]
    if outside:
        metrics = ", ".join(f"{name} is {exported[name]:.4g}, eager {eager[name]:.4g}" for name in outside)
        raise Mismatch(
            f"{file.name} does not score as its model does: {metrics} (tolerance {tolerance:.2g}). "
            "--rtol and --atol are for outputs, not for metrics. More --num-samples make a metric finer."
        )
    return {"scored": True, "eager": eager, "exported": exported, "tolerance": tolerance}


def run_in_worker(
    file: Path, metadata: Metadata, reference: Reference, *, folder: Path, timeout_s: float = _TIMEOUT_S
) -> tuple[Outputs, dict[str, Any], list[str]]:
    """Run a file in a fresh process.

    Args:
        file: The exported file.
        metadata: Its metadata.
        reference: With the inputs; its plain model's code runs a file of weights alone.
        folder: Private, and empty.
        timeout_s: After it the process counts as hanging.

    Returns:
        By batch size, for each batch the flattened outputs; by batch size ``median_s``, ``p95_s`` and ``repetitions``;
        and the tracked packages that it had loaded.

    Raises:
        ExportError: If the file cannot be run, or only with packages that it should not need.
    """
    job = {
        "file": str(file.resolve()),
        "format": metadata.format,
        "inputs": str(reference.folder.resolve()),
        "threads": reference.threads,
        "sizes": sorted(reference.batches),
        "timed": TIMED_BATCH_SIZES,
        "path": [str(Path.cwd()), *(place for place in sys.path if place)],
        "outputs": [spec.name for spec in metadata.outputs],
    }
    if FORMATS[metadata.format].open is None:
        job["module"] = "module.pickle"
        _pickle(reference.target.plain, folder / "module.pickle")
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    log, code = folder / "stderr.txt", None
    with (
        log.open("wb") as stderr,
        subprocess.Popen(
            [sys.executable, str(formats.__file__), str(folder.resolve())],
            stdin=subprocess.PIPE,  # closed when this process ends, which ends the child
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"},
        ) as process,
    ):
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(timeout_s)
        process.kill()
    if code != 0:
        how = f"gave no answer for {timeout_s:.0f} s" if code is None else f"failed with code {code}"
        how = f"was ended by {signal.Signals(-code).name}" if code is not None and code < 0 else how
        last = log.read_text(errors="replace").strip().rpartition("\n")[2][-400:] or "nothing"
        raise ExportError(f"{file.name} cannot be run in a fresh process, which {how}. Its last words: {last}")
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    if needless := set(result["loaded"]) - set(FORMATS[metadata.format].packages):
        raise ExportError(
            f"{file.name}: the fresh process had loaded {', '.join(sorted(needless))}, so this does not prove that the "
            f"file runs without. Look for what imports it at Python's start: sitecustomize, or a .pth file."
        )
    outputs = {
        size: [formats.load_arrays(folder / "out" / str(size) / f"{index}.npz") for index in range(len(batches))]
        for size, batches in reference.batches.items()
    }
    return outputs, result["latency"], result["loaded"]


def _pickle(module: nn.Module, file: Path) -> None:
    """Pickle a module; a class of a script or a notebook goes by value, with its code."""
    cloudpickle: Any = importlib.import_module("cloudpickle")  # a dependency of mlflow, without types
    try:
        content = cloudpickle.dumps(module)
    except Exception as error:  # the user's module raises anything when pickled
        raise ExportError(
            f"{type(module).__name__} cannot be pickled ({type(error).__name__}: {error}), so no fresh process can "
            f"load the weights into it. Choose another --format, or keep what cannot be pickled out of the module."
        ) from error
    file.write_bytes(content)
