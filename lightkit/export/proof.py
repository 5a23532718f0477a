"""The proof that an exported file equals its model: run in a fresh process, compared, scored and timed."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from lightkit.errors import ExportError
from lightkit.export import worker
from lightkit.export.compare import TOLERANCES, Array, Comparison, ReferenceBatch, Tolerance, compare
from lightkit.export.metadata import Metadata
from lightkit.export.metrics import MetricComparison, MetricScorer
from lightkit.export.samples import EvaluationSamples
from lightkit.export.target import ExportTarget, clone_inputs

BATCH_SIZES = (1, 7, 32)
"""One, an odd one, and a usual one: a model that was fixed to the batch of its example differs at one of them."""
TIMED_BATCH_SIZES = (1, 32)
ALLOWED_PACKAGES: Mapping[str, tuple[str, ...]] = {
    "onnx": ("onnxruntime",),
    "torch_export": ("torch",),
    "torchscript": ("torch",),
}
"""By format: the tracked packages that the process may load. Weights alone need the module's own code, so anything."""
_MAX_SIDE = 640
"""In pixels, of images that are resized to one size for a batch: 32 photos of a phone would take a gigabyte."""
_TIMEOUT_S = 1800.0
Outputs = Mapping[int, Sequence[Sequence[Array]]]
Latency = Mapping[int, Mapping[str, float]]
_TOLERANCE_HINT = "If such a gap is expected, allow for it with --rtol and --atol."
_EXACT_HINT = (
    "--rtol and --atol do not count here: whole numbers, booleans, shapes, NaN and infinity are compared exactly."
)


class Mismatch(ExportError):
    """A file's outputs or metrics differ from its model's.

    Args:
        message: How far, and where first.
        hint: What the user can do.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True)
class Proof:
    """Result of a file's proof.

    Args:
        comparisons: By batch size.
        score: The task's metrics.
        latency: Of the file, by batch size: ``median_s``, ``p95_s``, ``repetitions``.
        eager_latency: Of the eager model, likewise.
        loaded: Tracked packages that the fresh process had loaded.
        tolerance: That was applied.
        num_samples: Number of samples.
        threads: Of file and eager model.
    """

    comparisons: Mapping[int, Comparison]
    score: MetricComparison
    latency: Mapping[int, Mapping[str, float]]
    eager_latency: Mapping[int, Mapping[str, float]]
    loaded: Sequence[str]
    tolerance: Tolerance
    num_samples: int
    threads: int

    @property
    def max_abs(self) -> float:
        """Largest gap at any batch size."""
        return max(found.max_abs for found in self.comparisons.values())


class Reference:
    """The samples in batches of 1, 7 and 32, with the eager model's outputs.

    A file with the preprocessing in its graph takes ``EvaluationSamples.images``: one by one at their own sizes, in
    larger batches at the size of the first of them. The expected outputs are then not those of that graph run eagerly,
    but what `Preprocessing` (the one that predictions use) and the plain model compute of the same pixels, with a
    softmax behind it if the file has one. So a wrong resize in the graph is found.

    Args:
        target: The model.
        samples: The samples.
        in_graph: Whether the file has the preprocessing in its graph.
        folder: For the batches' inputs; created when they are written.

    Attributes:
        batches: By batch size.
        template: Output of the plain model's ``forward``: a tensor, tuple, list or mapping.
        is_softened: Whether a softmax was applied to it.

    Raises:
        ExportError: If there are no samples, or the model itself fails on them.
    """

    def __init__(self, target: ExportTarget, samples: EvaluationSamples, *, in_graph: bool, folder: Path) -> None:
        self.target = target
        self.samples = samples
        self.in_graph = in_graph
        self.folder = folder
        self.template: Any = None
        self.is_softened = False
        self.num_samples = len(samples.images or ()) if in_graph else len(samples.inputs[0])
        self.threads = torch.get_num_threads()
        if self.num_samples == 0:
            raise ExportError("There are no samples to prove an export on. Give the data a validation split.")
        self.batches: Mapping[int, Sequence[ReferenceBatch]] = {size: list(self._batch(size)) for size in BATCH_SIZES}

    @cached_property
    def inputs_folder(self) -> Path:
        """Folder of the batches' inputs, written once for the processes of all formats."""
        for size, batches in self.batches.items():
            (self.folder / str(size)).mkdir(parents=True)
            for index, batch in enumerate(batches):
                worker.save_arrays(self.folder / str(size) / f"{index}.npz", batch.inputs)
        return self.folder

    @cached_property
    def scorer(self) -> MetricScorer:
        """Scores files with the model's own validation."""
        size = 1 if self.in_graph else max(BATCH_SIZES)  # larger batches bring images to one size
        return MetricScorer(
            self.target.plain,
            self.samples,
            self.batches,
            batch_size=size,
            template=self.template,
            num_samples=self.num_samples,
            is_softened=self.is_softened,
        )

    @cached_property
    def eager_latency(self) -> Mapping[int, Mapping[str, float]]:
        """Latency of the eager model, with as much in it as the file has, by batch size."""
        model = self.target.model if self.in_graph else self.target.plain
        latency = {}
        for size in TIMED_BATCH_SIZES:
            inputs = [torch.from_numpy(array.copy()) for array in self.batches[size][0].inputs]
            with torch.no_grad():
                latency[size] = worker.measure_latency(partial(model, *inputs))
        return latency

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
            outputs = self._run([torch.from_numpy(array) for array in prepared])
            is_named = isinstance(outputs, Mapping) and set(outputs) == set(names)
            self.template = {name: outputs[name] for name in names} if is_named else outputs
            leaves = [leaf.float() if leaf.dtype == torch.bfloat16 else leaf for leaf in worker.flatten(self.template)]
            if self.in_graph and self.target.metadata.output_kind == "probabilities":
                first = leaves[0]
                if not ((first >= 0).all() and ((first.sum(dim=1) - 1).abs() < 1e-3).all()):  # the plain model's logits
                    leaves[0] = first.softmax(dim=1)
                    self.is_softened = True
            yield ReferenceBatch(rows, inputs, [leaf.detach().cpu().numpy() for leaf in leaves])

    def _run(self, inputs: Sequence[Tensor]) -> Any:
        try:
            with torch.no_grad():
                return self.target.plain(*clone_inputs(inputs))
        except Exception as error:  # the user's forward raises anything
            lines = str(error).strip().splitlines() or [""]
            raise ExportError(
                f"{type(self.target.plain).__name__} itself fails on a batch of {len(inputs[0])} samples "
                f"({type(error).__name__}: {lines[0]}), so no export can be proved. Expected a forward that takes any "
                f"batch size."
            ) from error

    def _stack_images(self, rows: Sequence[int]) -> Array:
        """Stack images as uint8 ``(batch, height, width, 3)``; one image alone keeps its size."""
        images = [(self.samples.images or ())[row] for row in rows]
        if len(rows) > 1:
            height, width = images[0].shape[:2]
            scale = min(1.0, _MAX_SIDE / max(height, width))
            size = (max(1, round(width * scale)), max(1, round(height * scale)))
            images = [np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BILINEAR)) for image in images]
        return np.stack(images)


def prove(
    file: Path, metadata: Metadata, reference: Reference, *, folder: Path, tolerance: Tolerance | None = None
) -> Proof:
    """Run a file in a fresh process, and compare it with the eager model.

    Args:
        file: The file.
        metadata: Its metadata.
        reference: The eager model's outputs.
        folder: Private and empty, for the process.
        tolerance: The user's; that of the precision for what is None.

    Raises:
        Mismatch: If an output or a metric is outside the tolerance, or, without a metric, the file's error is too large
            relative to the differences between samples.
        ExportError: If the file cannot be run.
    """
    allowed = (tolerance or Tolerance()).over(TOLERANCES.get(metadata.precision, TOLERANCES["float32"]))
    outputs, latency, loaded = run_in_worker(file, metadata, reference, folder=folder)
    names = reference.samples.names
    comparisons = {
        size: compare(batches, outputs[size], metadata=metadata, names=names, tolerance=allowed)
        for size, batches in reference.batches.items()
    }
    if outside := [found for found in comparisons.values() if found.first is not None]:
        first = outside[0]
        also = f" (at batch {' and '.join(str(found.batch_size) for found in outside[1:])} too)" if outside[1:] else ""
        raise Mismatch(
            f"{file.name} does not match its model: {first.num_outside} of {first.num_outputs} outputs differ at batch "
            f"size {first.batch_size}{also}, by up to {max(found.max_abs for found in outside):.2e} ({allowed}); first "
            f"{first.first}.",
            hint=_EXACT_HINT if any(found.num_exact for found in outside) else _TOLERANCE_HINT,
        )
    score = reference.scorer.score(outputs[reference.scorer.batch_size], precision=metadata.precision)
    if score.outside:
        metrics = ", ".join(
            f"{metric} is {score.exported[metric]:.4g}, eager {score.eager[metric]:.4g}" for metric in score.outside
        )
        raise Mismatch(
            f"{file.name} does not score as its model does: {metrics} (tolerance {score.tolerance:.2g}).",
            hint="--rtol and --atol are for outputs, not for metrics. More --num-samples make a metric finer.",
        )
    spread = max((found.of_spread for found in comparisons.values() if found.of_spread is not None), default=0.0)
    if score.reason is not None and allowed.of_spread is not None and spread > allowed.of_spread:
        raise Mismatch(
            f"{file.name} does not match its model: its outputs are off by {spread:.2f} of what the model's own differ "
            f"between samples (at most {allowed.of_spread:g}; the same answer to every sample is off by 1), and there "
            f"is no metric to judge by: {score.reason}.",
            hint="Prove it on more samples with --num-samples, or say with --atol how far its outputs may be off.",
        )
    num, threads = reference.num_samples, reference.threads
    return Proof(comparisons, score, latency, reference.eager_latency, loaded, allowed, num, threads)


def run_in_worker(
    file: Path, metadata: Metadata, reference: Reference, *, folder: Path, timeout_s: float = _TIMEOUT_S
) -> tuple[Outputs, Latency, list[str]]:
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
        "inputs": str(reference.inputs_folder.resolve()),
        "threads": reference.threads,
        "sizes": sorted(reference.batches),
        "timed": TIMED_BATCH_SIZES,
        "module": None,
        "path": [str(Path.cwd()), *(place for place in sys.path if place)],
        "outputs": [spec.name for spec in metadata.outputs],
    }
    if metadata.format == "safetensors":
        job["module"] = str((folder / "module.pickle").resolve())
        pickle_without_weights(reference.target.plain, folder / "module.pickle")
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    log = folder / "stderr.txt"
    reads, writes = os.pipe()  # closed when this process ends, which ends the child
    try:
        with log.open("wb") as stderr:
            code: int | None = subprocess.run(
                [sys.executable, str(worker.__file__), str(folder.resolve())],
                stdin=reads,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"},
                timeout=timeout_s,
                check=False,
            ).returncode
    except subprocess.TimeoutExpired:
        code = None
    finally:
        os.close(reads)
        os.close(writes)
    if code != 0:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        last = f"Its last words: {lines[-1][-400:]}" if lines else "It said nothing."
        if code is None:
            raise ExportError(f"{file.name}: the fresh process gave no answer for {timeout_s:.0f} s. {last}")
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"failed with code {code}"
        raise ExportError(f"{file.name} cannot be run in a fresh process, which {how}. {last}")
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    needless = set(result["loaded"]) - set(ALLOWED_PACKAGES.get(metadata.format, result["loaded"]))
    if needless:
        raise ExportError(
            f"{file.name}: the fresh process had loaded {', '.join(sorted(needless))}, so this does not prove that the "
            f"file runs without. Look for what imports it at Python's start: sitecustomize, or a .pth file."
        )
    outputs = {
        size: [worker.load_arrays(folder / "out" / str(size) / f"{index}.npz") for index in range(len(batches))]
        for size, batches in reference.batches.items()
    }
    return outputs, {int(size): each for size, each in result["latency"].items()}, result["loaded"]


def pickle_without_weights(module: nn.Module, file: Path) -> None:
    """Pickle a module with NaN for its weights; a class of a script or a notebook goes by value, with its code.

    Raises:
        ExportError: If it cannot be pickled.
    """
    cloudpickle: Any = importlib.import_module("cloudpickle")  # a dependency of mlflow, without types
    weights = {id(value): value for value in module.state_dict(keep_vars=True).values() if isinstance(value, Tensor)}

    def make(
        shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, kind: type, requires_grad: bool
    ) -> Tensor:
        import torch  # in the fresh process, to which this function goes by value

        empty = torch.empty_strided(shape, stride, dtype=dtype)
        empty.fill_(float("nan") if dtype.is_floating_point else 0)
        return torch.nn.Parameter(empty, requires_grad) if kind is torch.nn.Parameter else empty

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            if id(value) not in weights:
                return super().reducer_override(value)
            stride = torch.empty_like(value, device="meta").stride()  # channels last: several times as fast
            return make, (tuple(value.shape), stride, value.dtype, type(value), value.requires_grad)

    trainer = module.__dict__.get("_trainer")
    try:
        with file.open("wb") as stream:
            if trainer is not None:
                module.__dict__["_trainer"] = None  # it holds processes and loaders
            Pickler(stream).dump(module)
    except OSError:
        raise
    except Exception as error:  # the user's module raises anything when pickled
        raise ExportError(
            f"{type(module).__name__} cannot be pickled ({type(error).__name__}: {error}), so no fresh process can "
            f"fill the weights into it. Choose another --format, or keep what cannot be pickled out of the module."
        ) from error
    finally:
        if trainer is not None:
            module.__dict__["_trainer"] = trainer
