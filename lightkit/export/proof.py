"""The proof that exported files equal their model.

Each is run in a fresh process, compared, scored and timed.
"""

from __future__ import annotations

import copy
import importlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

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
from lightkit.export.formats import FORMATS, Arrays
from lightkit.export.forward import call_forward
from lightkit.export.image_transform import (
    activation_of,
    compute_probabilities,
    invert_probabilities,
    is_pair,
)
from lightkit.export.metadata import Metadata, read_metadata
from lightkit.export.samples import Array, check_row_preprocessing
from lightkit.export.target import ExportTarget
from lightkit.rows.preprocessing import find_preprocessing
from lightkit.task import Activation

_MAX_SIDE = 640
"""In pixels, of images that are resized to one size for a batch: 32 photos of a phone would take a
gigabyte."""
_EXACT = 1e-6


class Mismatch(ExportError):
    """A file's outputs or metrics differ from its model's."""


class _NotScored(Exception):
    """There are no metrics, with the reason."""


# -- tolerances ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tolerance:
    """Allowed gap of an output: ``atol + rtol * |expected|``.

    The rule of ``torch.testing.assert_close``.

    Args:
        rtol: Relative.
        atol: Absolute, in the units of the output.
        of_largest: Relative to the largest value of that output over all samples, added to the
            others. The error of rounded weights grows with the activations, not with the output.
        of_spread: How far an output may be off in the root mean square, relative to its spread over
            the samples; 1 is what its mean, the same for each sample, is off. 0 sets no limit.
    """

    rtol: float
    atol: float
    of_largest: float = 0.0
    of_spread: float = 0.0

    def __str__(self) -> str:
        absolute = f", atol={self.atol:g}" if self.atol or not self.of_largest else ""
        largest = f", {self.of_largest:g} of the largest" if self.of_largest else ""
        return f"rtol={self.rtol:g}{absolute}{largest}"


TOLERANCES = {
    "float32": Tolerance(1e-4, 0.0, of_largest=1e-5, of_spread=0.01),
    "float16": Tolerance(1e-2, 0.0, of_largest=0.02, of_spread=0.1),
    "int8": Tolerance(1e-2, 0.0, of_largest=0.5, of_spread=0.5),
}
"""By the precision of the weights. None is absolute: outputs are in metres, in shares or in any
other unit.

Those of float32 allow for fused kernels. The others are two to three times what a MobileNetV2 of
five kinds of flowers gives on 64 real photos, with logits up to 3.4: float16 is off by 0.02 at most
(0.006 of the largest), int8 by 0.75 (0.22, with the same class on 63 photos). The metrics show what
that does to the task.

Half of the largest output is too wide a bound alone: an output of zeros has nearly all of its
elements inside it. So a file in int8 needs a metric too, or the user's own ``atol``.
"""
_ROUNDING = {"float32": 1e-5, "float16": 1e-3, "int8": 2e-2}
"""By precision: what rounding alone moves an output by, relative to its largest value, however
small its spread is."""
FLIPS = {"float32": 1e-4, "float16": 1e-2, "int8": 0.1}
"""By precision: share of the pixels of masks whose class may differ, where two classes are nearly
equally likely."""
METRIC_TOLERANCES = {"float32": (1e-3, 0), "float16": (1e-2, 1), "int8": (2e-2, 2)}
"""By precision: how far a metric may be off, and by how many samples more; in units of
`metric_scale`.

A sample on the border between two classes may fall to the other side once weights are rounded,
which moves an accuracy over N samples by 1/N. The user's tolerance, in units of the outputs, does
not apply.
"""
_MAX_METRIC_TOLERANCE = 0.2
"""With one or two samples, those on a border would allow for any accuracy."""
_SHARES = frozenset(
    {
        "acc", "accuracy", "ap", "auc", "auprc", "auroc", "dice", "f", "fbeta", "iou", "jaccard",
        "map", "precision", "recall", "sensitivity", "specificity", "top",
    }
)  # fmt: skip
"""Words in the names of metrics that are shares, from 0 to 1."""


def is_same_metric(one: float, other: float, allowed: float) -> bool:
    """Compare two values of a metric by their distance; NaN equals NaN alone."""
    is_near = one == other or abs(one - other) <= allowed
    return is_near or (math.isnan(one) and math.isnan(other))


def metric_scale(name: str, value: float, blind: float) -> float:
    """Return the unit in which a metric may be off.

    Its own size, or how far it is from that of a blind model.

    A blind model gives the mean of the outputs for each sample. So an error in metres counts in
    relation to itself or to the spread of the outputs, in metres too, and a squared one likewise. A
    share, which moves by whole samples, counts in relation to 1.

    Args:
        name: As the module logs it.
        value: Of the model.
        blind: Of the blind model; NaN if it has none.
    """
    distance = abs(value - blind)
    scale = max(abs(value), distance if math.isfinite(distance) else 0.0)
    words = re.findall("[a-z]+", name.rpartition("/")[2].lower())
    is_share = not _SHARES.isdisjoint(words) and 0 <= value <= 1
    return max(scale, 1.0) if is_share else scale


# -- comparison ------------------------------------------------------------------------------------


def compare(
    expected: Mapping[int, Arrays],
    found: Mapping[int, Arrays],
    *,
    metadata: Metadata,
    names: Sequence[str],
    tolerance: Tolerance,
) -> dict[str, Any]:
    """Compare a file's outputs with its model's; whole numbers and booleans exactly.

    Args:
        expected: By batch size, the model's outputs, see `join_batches`.
        found: The file's, likewise.
        metadata: Of the file, for the names of outputs and classes.
        names: Of the samples; the last batch is filled up from the first ones.
        tolerance: Allowed gaps.

    Returns:
        By batch size ``max_abs``, ``max_rel`` (of the model's largest output), number of
        ``outputs`` compared and of those ``outside`` the tolerance: none.

    Raises:
        Mismatch: If one is outside.
    """
    parity = {}
    first = dict[int, str]()
    for size, outputs in expected.items():
        figures = {"max_abs": 0.0, "max_rel": 0.0, "outputs": 0, "outside": 0}
        parity[str(size)] = figures
        largest = 0.0
        for place, (wanted, given) in enumerate(zip(outputs, found[size], strict=True)):
            name = metadata.outputs[place].name
            if (wanted.dtype, wanted.shape) != (given.dtype, given.shape):
                forms = (
                    f"{given.dtype} {given.shape}, expected {wanted.dtype} {wanted.shape}, in"
                    f" batches of {size}"
                )
                raise Mismatch(
                    f"{metadata.file_name} does not match its model: {name!r} is {forms}."
                )
            gap, scale, is_same = _compare_output(wanted, given, tolerance)
            are_decisions = place == 0 and metadata.in_graph and metadata.task.form.has_decisions
            if are_decisions and np.mean(~is_same) <= FLIPS[metadata.precision]:
                is_same = np.ones_like(is_same)
            largest = max(largest, scale)
            figures["max_abs"] = max(
                figures["max_abs"], float(gap[np.isfinite(gap)].max(initial=0.0))
            )
            figures["outputs"] += wanted.size
            figures["outside"] += int((~is_same).sum())
            if not is_same.all() and size not in first:
                at = tuple(map(int, np.argwhere(~is_same)[0]))
                sample = f"for {names[at[0] % len(names)]}: " if len(wanted) >= len(names) else ""
                values = f"{float(given[at].real):.6g}, expected {float(wanted[at].real):.6g}"
                first[size] = f"{sample}{_name_element(place, at[1:], metadata)} is {values}"
        figures["max_rel"] = figures["max_abs"] / largest if largest else 0.0
    if first:
        raise _explain_mismatch(parity, first, metadata, tolerance)
    return parity


def _explain_mismatch(
    parity: Mapping[str, Mapping[str, Any]],
    first: Mapping[int, str],
    metadata: Metadata,
    tolerance: Tolerance,
) -> Mismatch:
    """Describe how far outputs are outside the tolerance.

    By the first one of each batch size that has some.
    """
    size, *others = first
    figures = parity[str(size)]
    also = f" (at batch {' and '.join(map(str, others))} too)" if others else ""
    return Mismatch(
        f"{metadata.file_name} does not match its model: {figures['outside']} of"
        f" {figures['outputs']} outputs differ at batch size {size}{also}, by up to"
        f" {max(parity[str(each)]['max_abs'] for each in first):.2e} ({tolerance}); first"
        f" {first[size]}. If such a gap is expected, allow for it with --rtol and --atol; they do"
        " not count for whole numbers, booleans, NaN and infinity."
    )


def _compare_output(
    wanted: Array, given: Array, tolerance: Tolerance
) -> tuple[Array, float, Array]:
    """Compare an output of a file with its model's.

    Returns:
        The gap of each element, the largest magnitude, and for each element whether it is the same.
    """
    wide = np.result_type(wanted, np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        gap = np.abs(wanted.astype(wide) - given.astype(wide))
        magnitude = np.abs(wanted.astype(wide))
        scale = float(magnitude[np.isfinite(magnitude)].max(initial=0.0))
        allowed = tolerance.atol + tolerance.of_largest * scale + tolerance.rtol * magnitude
        is_close = np.isfinite(wanted) & (gap <= allowed)  # not `>`, which NaN would pass
    is_same = wanted == given
    if np.issubdtype(wanted.dtype, np.inexact):
        is_same = is_same | is_close
    return gap, scale, is_same


def _name_element(place: int, index: Sequence[int], metadata: Metadata) -> str:
    """Name an element of an output: its class where it has one, else its index in a sample."""
    name = metadata.outputs[place].name
    if metadata.class_names and place == 0 and len(index) == 1:
        return f"class {metadata.class_names[index[0]]!r} of {name!r}"
    return f"{name!r}{[*index] or ''}"


def check_spread(
    expected: Mapping[int, Arrays],
    found: Mapping[int, Arrays],
    *,
    metadata: Metadata,
    tolerance: Tolerance,
) -> None:
    """Check how far a file's outputs are off relative to their differences from sample to sample.

    Outputs that are all alike, as a temperature around 2000, may be within every tolerance of their
    size though they tell nothing of a sample any more.

    Args:
        expected: By batch size, the model's outputs, with a row for each sample.
        found: The file's, likewise.
        metadata: Of the file.
        tolerance: Allowed gaps.

    Raises:
        Mismatch: If the root mean square of the gap is larger than that part of the spread, and
            than rounding.
    """
    compared = [
        (size, spec.name, wanted, given)
        for size in expected
        for spec, wanted, given in zip(metadata.outputs, expected[size], found[size], strict=False)
    ]
    for size, name, wanted, given in compared:
        is_comparable = np.issubdtype(wanted.dtype, np.inexact) and np.isfinite(wanted).all()
        if not tolerance.of_spread or not is_comparable or len(wanted) < 2:
            continue
        wide = np.result_type(wanted, np.float64)
        eager = wanted.astype(wide)
        off = _root_mean_square(eager - given.astype(wide))
        spread = _root_mean_square(eager - eager.mean(axis=0))
        rounding = _ROUNDING[metadata.precision] * float(np.abs(eager).max(initial=0.0))
        if not off <= tolerance.of_spread * spread + rounding:  # not `>`, which NaN would pass
            raise Mismatch(
                f"{metadata.file_name} does not match its model: {name!r} is off by {off:.2e} at"
                f" batch size {size} (root mean square), and its spread over the samples is"
                f" {spread:.2e}; allowed are {tolerance.of_spread:g} of that. If such a gap is"
                " expected, allow for it with --atol."
            )


def _root_mean_square(values: Any) -> float:
    return float(np.sqrt(np.mean(np.abs(values) ** 2)))


# -- the proof -------------------------------------------------------------------------------------


class Proof:
    """Reference that files of a model are compared with.

    Its own outputs, metrics and latency, on the same samples.

    A file with the preprocessing in its graph takes the images of ``EvaluationSamples.load_image``:
    one by one at their own sizes, in larger batches at the size of the first of them. The expected
    outputs are then not those of that graph run eagerly, but what `Preprocessing` (the one that
    predictions use) and the plain model compute of the same pixels, with a softmax or sigmoid
    behind it if the file has one. So a wrong resize in the graph is found.

    Args:
        target: Model and samples.
        folder: For the samples in batches, and for the fresh processes; created.

    Attributes:
        expected: By batch size, the model's outputs, see `join_batches`.
        metrics: Of the model, by the name that the module logs.
        not_scored: Why there are none, if there are none.
        latency: Of the model, with as much in it as the file has, by batch size.

    Raises:
        ExportError: If the model itself fails on the samples.
    """

    def __init__(self, target: ExportTarget, folder: Path) -> None:
        self._target = target
        self._folder = folder
        self._threads = torch.get_num_threads()
        self._template = None
        self.num_samples = len(target.samples.names)
        # what the graph has behind the module's logits
        self._activation: Activation = (
            "identity" if target.plain is None else activation_of(target.plain.metadata)
        )
        self._is_pair = target.plain is not None and is_pair(target.plain.metadata)
        # others bring images to one size
        self._scored_size = max(formats.BATCH_SIZES) if target.plain is None else 1
        self.expected: dict[int, Arrays] = {}
        folder.mkdir()
        for size in formats.BATCH_SIZES:
            batches = []
            for start in range(0, self.num_samples, size):
                inputs = self._stack_inputs(
                    [row % self.num_samples for row in range(start, start + size)]
                )
                formats.save_arrays(folder / f"{size}-{start:06d}.npz", inputs)
                batches.append(self._run_model(inputs))
            self.expected[size] = formats.join_batches(batches, size)
        self.metrics: dict[str, float] = {}
        self._blind: dict[str, float] = {}  # metrics of the mean of the outputs
        self.not_scored = "validation_step logs no metric that is the same when it is run again"
        try:
            scored = self.expected[self._scored_size]
            found, again = (self._score(scored) for _ in range(2))
            # without times and counts
            self.metrics = {
                name: value
                for name, value in found.items()
                if is_same_metric(value, again[name], _EXACT * abs(value))
            }
            self._blind = self._score([_blind(output, self.num_samples) for output in scored])
        except _NotScored as error:
            self.not_scored = str(error)
        self.latency = {}
        for size in formats.TIMED_BATCH_SIZES:
            tensors = map(torch.from_numpy, formats.load_arrays(folder / f"{size}-000000.npz"))
            with torch.no_grad():
                self.latency[str(size)] = formats.measure_latency(partial(target.model, *tensors))

    def check(
        self,
        file: Path,
        metadata: Metadata,
        *,
        rtol: float | None = None,
        atol: float | None = None,
    ) -> dict[str, Any]:
        """Run a file in a fresh process, and compare it with the model.

        Args:
            file: The file.
            metadata: Its metadata.
            rtol: The user's relative tolerance of an output; that of the precision if None.
            atol: The absolute one, likewise.

        Returns:
            Figures of the proof for export.json: ``samples``, ``tolerance``, ``parity``,
            ``metrics``, ``in_float16``, ``loaded``, ``threads`` and ``latency``.

        Raises:
            Mismatch: If an output or a metric is outside the tolerance, or int8 has no metric and
                no ``atol``.
            ExportError: If the file cannot be run, or only with packages that it should not need.
        """
        allowed = TOLERANCES[metadata.precision]
        if rtol is not None:
            allowed = replace(allowed, rtol=rtol)
        if atol is not None:  # in place of the bound relative to the largest output, too
            allowed = Tolerance(allowed.rtol, atol)
        outputs, result = self._run_file(file, metadata)
        if metadata.row_preprocessing is not None:
            check_row_preprocessing(self._target.samples, read_metadata(file).row_preprocessing)
        found = self._compare(outputs, metadata, allowed)
        in_float16 = None
        if metadata.precision == "float16":
            in_float16 = self._check_in_float16(file, metadata, allowed)
        if not self.metrics and metadata.precision == "int8" and allowed.of_largest:
            raise Mismatch(
                f"{metadata.file_name} cannot be verified: rounding to int8 moves outputs by up to"
                f" {allowed.of_largest:g} of the largest, and there is no metric to judge by:"
                f" {self.not_scored}. Say with --atol how far its outputs may be off, or log a"
                " metric in validation_step."
            )
        return {
            "samples": self.num_samples,
            "tolerance": asdict(allowed),
            **found,
            "in_float16": in_float16,
            "loaded": result["loaded"],
            "threads": self._threads,
            "latency": {"exported": result["latency"], "eager": self.latency},
        }

    def _check_in_float16(
        self, file: Path, metadata: Metadata, tolerance: Tolerance
    ) -> dict[str, Any]:
        """Prove a file whose values are in float16 as a processor of that precision computes it.

        On a CPU onnxruntime computes most operators in float32 and rounds nothing between them, so
        that a value above 65504, which is infinite in float16, goes unnoticed.

        Returns:
            ``parity`` and ``metrics``, each value rounded to float16.

        Raises:
            Mismatch: If an output or a metric is outside the tolerance then.
        """
        # late: it loads onnx, an extra
        write_rounded = importlib.import_module("lightkit.export.onnx").write_rounded
        with tempfile.TemporaryDirectory(dir=self._folder, ignore_cleanup_errors=True) as name:
            rounded = Path(name, file.name)
            write_rounded(file, rounded)
            outputs, _ = self._run_file(rounded, metadata, is_timed=False)
        try:
            return self._compare(outputs, metadata, tolerance)
        except Mismatch as error:
            raise Mismatch(
                f"{metadata.file_name} is not a float16 model. With each value rounded to float16"
                f" as on a GPU, where the largest number is 65504: {error} Leave --half out, or"
                " scale what grows so large in the model."
            ) from error

    def _compare(
        self, outputs: Mapping[int, Arrays], metadata: Metadata, tolerance: Tolerance
    ) -> dict[str, Any]:
        """Compare a file's outputs, metrics and spread with the model's.

        Return ``parity`` and ``metrics``.

        Raises:
            Mismatch: If one of them is outside the tolerance.
        """
        names = self._target.samples.names
        parity = compare(
            self.expected, outputs, metadata=metadata, names=names, tolerance=tolerance
        )
        metrics = self._check_metrics(outputs[self._scored_size], metadata)
        check_spread(self.expected, outputs, metadata=metadata, tolerance=tolerance)
        return {"parity": parity, "metrics": metrics}

    def _check_metrics(self, outputs: Arrays, metadata: Metadata) -> dict[str, Any]:
        """Return the entry of export.json on metrics.

        Raises:
            Mismatch: If one is outside the tolerance.
        """
        if not self.metrics:
            return {"scored": False, "reason": self.not_scored}
        off, num_flips = METRIC_TOLERANCES[metadata.precision]
        tolerance = min(off + num_flips / self.num_samples, _MAX_METRIC_TOLERANCE)
        eager = self.metrics
        exported = self._score(outputs)
        scales = {
            name: metric_scale(name, value, self._blind.get(name, math.nan))
            for name, value in eager.items()
        }
        outside = [
            name
            for name, value in eager.items()
            if not is_same_metric(value, exported[name], tolerance * scales[name])
        ]
        if outside:
            metrics = ", ".join(
                f"{name} is {exported[name]:.4g}, eager {eager[name]:.4g} within"
                f" {tolerance * scales[name]:.2g}"
                for name in outside
            )
            raise Mismatch(
                f"{metadata.file_name} does not score as its model does: {metrics}. --rtol and"
                " --atol are for outputs, not for metrics. More --num-samples make a metric finer."
            )
        return {"scored": True, "eager": eager, "exported": exported, "tolerance": tolerance}

    def _stack_inputs(self, rows: Sequence[int]) -> Arrays:
        """Stack samples as a file takes them.

        Images as uint8 ``(batch, height, width, 3)``, one alone at its size.
        """
        load_image = self._target.samples.load_image
        if self._target.plain is None or load_image is None:
            return self._encode_rows(rows) or [
                values[rows].numpy() for values in self._target.samples.inputs
            ]
        images = [Image.fromarray(load_image(row)) for row in rows]
        if len(rows) > 1:
            scale = min(1.0, _MAX_SIDE / max(images[0].size))
            size = max(1, round(images[0].width * scale)), max(1, round(images[0].height * scale))
            images = [image.resize(size, Image.Resampling.BILINEAR) for image in images]
        return [np.stack([np.asarray(image) for image in images])]

    def _encode_rows(self, rows: Sequence[int]) -> Arrays:
        """Encode samples that are rows of a table, where the rows of a batch decide its size.

        Nothing of others.
        """
        samples = self._target.samples
        preprocessing = find_preprocessing(self._target.module)
        if samples.rows is None or preprocessing is None or not preprocessing.open_axes:
            return []
        table, _ = preprocessing.read(samples.rows.take(list(rows)))
        return list(preprocessing.encode(table))

    def _run_model(self, inputs: Arrays) -> Arrays:
        target = self._target
        preprocessing = self._target.metadata.preprocessing
        if target.plain is not None and preprocessing is not None:
            inputs = [np.stack([preprocessing(Image.fromarray(image)) for image in inputs[0]])]
        self._template = call_forward(target.module, [torch.from_numpy(array) for array in inputs])
        outputs = formats.to_arrays(self._template)[: len(target.metadata.outputs)]
        first = torch.from_numpy(outputs[0])
        outputs[0] = compute_probabilities(first, self._activation, is_pair=self._is_pair).numpy()
        return outputs

    def _run_file(
        self, file: Path, metadata: Metadata, *, is_timed: bool = True
    ) -> tuple[dict[int, Arrays], dict[str, Any]]:
        """Run a file in a fresh process.

        Returns:
            By batch size, the file's outputs; and ``loaded`` and ``latency``, see `formats`.

        Raises:
            ExportError: If it cannot be run.
        """
        with tempfile.TemporaryDirectory(dir=self._folder, ignore_cleanup_errors=True) as name:
            folder = Path(name).resolve()
            paths = [str(Path.cwd()), *filter(None, sys.path)]
            environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"}
            if FORMATS[metadata.format].open is None:
                (folder / formats.MODULE_FILE).write_bytes(_pickle(self._target.module))
                environ["PYTHONPATH"] = os.pathsep.join(paths)  # where the module's classes are
            words = [
                file.resolve(),
                self._folder.resolve(),
                folder,
                self._threads,
                *([] if is_timed else ["untimed"]),
            ]
            ended = subprocess.run(
                [sys.executable, formats.__file__, *map(str, words)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=environ,
                check=False,
            )
            if code := ended.returncode:
                how = (
                    f"was ended by {signal.Signals(-code).name}"
                    if code < 0
                    else f"failed with code {code}"
                )
                how += ", after half an hour" if -code == signal.SIGALRM else ""
                last = (
                    ended.stderr.decode(errors="replace").strip().rpartition("\n")[2][-400:]
                    or "nothing"
                )
                raise ExportError(
                    f"{file.name} cannot be run in a fresh process, which"
                    f" {how}. Its last words: {last}"
                )
            result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
            if needless := set(result["loaded"]) - set(FORMATS[metadata.format].packages):
                raise ExportError(
                    f"{file.name}: the fresh process had loaded {', '.join(sorted(needless))}, so"
                    " this does not prove that the file runs without. Look for what imports it at"
                    " Python's start: sitecustomize, or a .pth file."
                )
            outputs = {size: formats.load_arrays(folder / f"{size}.npz") for size in self.expected}
        return outputs, result

    def _score(self, arrays: Arrays) -> dict[str, float]:
        """Run the module's own validation with these outputs in Lightning's own loop, on one CPU.

        Metrics that do not come from ``forward``'s outputs are the same for all outputs.

        Args:
            arrays: Outputs for batches of ``_scored_size``.

        Returns:
            What the module logs in its validation.

        Raises:
            _NotScored: If there is nothing to validate, or the validation does not go by
                ``forward`` alone.
        """
        module = self._target.module
        samples = self._target.samples
        if not isinstance(module, LightningModule):
            raise _NotScored(f"{type(module).__name__} is not a LightningModule")
        if not samples.batches:
            raise _NotScored(
                samples.not_scored
                or f"no batch of a validation split is among its samples ({samples.source})"
            )
        outputs = [torch.from_numpy(array) for array in arrays]
        # the module gets logits whose probabilities these are
        names = self._target.metadata.class_names or ()
        outputs[0] = invert_probabilities(
            outputs[0], self._activation, is_pair=self._is_pair, num_classes=len(names) or None
        )
        replay = _Replay(samples.inputs, outputs, self._template)
        # copies: the module may change a batch in place
        loader: DataLoader[Any] = DataLoader(
            list(samples.batches),  # type: ignore[arg-type]
            batch_size=None,
            collate_fn=copy.deepcopy,
        )
        with silence_exporters():  # Lightning's advice on a trainer that the user did not choose
            trainer = build_bare_trainer()
            try:
                module.__dict__["forward"] = replay
                trainer.validate(module, dataloaders=loader, verbose=False)
            except _NotScored:
                raise
            except Exception as error:
                # the user's validation raises anything without their trainer
                reason = (
                    "its validation fails on a Trainer of its own"
                    f" ({type(error).__name__}: {error})"
                )
                raise _NotScored(reason) from error
            finally:
                del module.__dict__["forward"]
                module.trainer = None
                module.eval()
        if not replay.is_used:
            raise _NotScored("validation_step does not call forward")
        return {
            key: float(value)
            for key, value in trainer.callback_metrics.items()
            if value.numel() == 1
        }


def _blind(output: Any, num_samples: int) -> Any:
    """Return the mean of an output for each sample.

    Of whole numbers, and without a row for each, the first ones.
    """
    if len(output) < num_samples:
        return output
    is_inexact = np.issubdtype(output.dtype, np.inexact)
    row = output.mean(axis=0, keepdims=True) if is_inexact else output[:1]
    return np.repeat(row, len(output), axis=0).astype(output.dtype)


class _Replay:
    """Replaces ``forward``: returns the rows of the samples that it is called with.

    Args:
        inputs: Of all samples.
        outputs: Of all samples; those that have no row for each sample are the same for each batch.
        template: What ``forward`` returns: tensors in a tuple, list or mapping, or one alone.
    """

    def __init__(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], template: Any) -> None:
        self._inputs = inputs
        self._outputs = outputs
        self._template = template
        self._num = len(inputs[0])
        self._start = self._end = 0
        self.is_used = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        if len(given) == len(self._inputs) and given[0].ndim:
            for start in (self._end, self._start):  # the next rows, or the last ones once more
                end = start + len(given[0])
                if all(
                    _begins_with(mine[start:end], theirs)
                    for mine, theirs in zip(self._inputs, given, strict=True)
                ):
                    self._start = start
                    self._end = end
                    self.is_used = True
                    rows = iter(
                        [
                            each[start:end] if len(each) >= self._num else each[0]
                            for each in self._outputs
                        ]
                    )
                    return apply_to_collection(self._template, Tensor, lambda _: next(rows))  # noqa: B023 (called at once)
        raise _NotScored("validation_step gives forward something else than the samples")


def _begins_with(mine: Tensor, theirs: Tensor) -> bool:
    """Return whether samples are equal, up to where a batch of shorter ones ends."""
    if mine.shape != theirs.shape and mine.ndim == theirs.ndim > 1:
        mine = mine[tuple(map(slice, theirs.shape))]
    return torch.equal(mine, theirs)


def _pickle(module: nn.Module) -> bytes:
    """Pickle a module; a class of a script or a notebook goes by value, with its code."""
    # a dependency of mlflow, without types
    cloudpickle: Any = importlib.import_module("cloudpickle")
    try:
        content: bytes = cloudpickle.dumps(module)
    except Exception as error:  # the user's module raises anything when pickled
        raise ExportError(
            f"{type(module).__name__} cannot be pickled ({type(error).__name__}: {error}), so no"
            " fresh process can load the weights into it. Choose another --format, or keep what"
            " cannot be pickled out of the module."
        ) from error
    return content
