"""export.json: what each exported file is, where it comes from, and what its proof found.

=================  ===================================================================================================
schema             1
artefacts          by file name, each with what follows; files of earlier exports that are still there are kept
file, format       its name in this folder; ``torch_export``, ``onnx``, ``torchscript`` or ``safetensors``
sha256             digest of the file
size_bytes         of the file and of its external data
data               ``file``, ``sha256`` of ONNX's external data; null if there is none
created            ISO 8601, UTC
model              class of the module
how                ``script`` or ``trace`` for TorchScript, null where there is one way only
precision          ``float32``, ``float16`` or ``int8``: of the weights
in_graph           whether the file does the preprocessing itself
inputs, outputs    lists of ``name``, ``dtype``, ``shape``; null is a dimension of any length
output_kind        ``logits``, ``probabilities`` or ``other``: of the first output
class_names        in the order of the columns; null if it is no classifier
preprocessing      what is done to an image; null if unknown
source             ``checkpoint``, its ``sha256``, ``run``, as far as they are known
versions           of Python, lightkit and the packages that wrote and ran the file, and ``opset``
samples            number of real samples that it was proved on
tolerance          ``rtol``, ``atol`` of the comparison, and ``of_largest``: in relation to the largest output;
                   ``of_spread``, null but for int8: to what outputs differ between samples, where nothing is scored
parity             by batch size: ``max_abs``, ``max_rel`` (of the largest output), ``outputs`` compared, ``outside``;
                   ``of_spread`` where it is limited
metrics            ``scored``; then ``eager``, ``exported`` (metric -> value) and ``tolerance``, else the ``reason``
loaded             which of torch, lightkit, pytorch_lightning, torchvision, onnxruntime the proof's process had loaded
threads            that file and eager model had
latency            ``exported`` and ``eager``: by batch size ``median_s``, ``p95_s``, ``repetitions``
=================  ===================================================================================================
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from lightkit.artefacts.metadata import Metadata
from lightkit.export.proof import Proof
from lightkit.export.publishing import DATA
from lightkit.hardware.packages import describe_packages
from lightkit.runs.files import read_json, write_json
from lightkit.runs.integrity import digest
from lightkit.version import __version__

__all__ = ["NAME", "Artefact", "Report", "add_entry", "drop_entry"]

NAME = "export.json"
_PACKAGES = ("torch", "onnx", "onnxruntime", "onnxscript", "safetensors", "numpy", "pytorch-lightning")


@dataclass(frozen=True)
class Artefact:
    """A file that was proved and published.

    Args:
        path: Where it is.
        metadata: What it says of itself.
        proof: What the proof found.
        eager: Latency of the eager model, by batch size.
        threads: That both had.
    """

    path: Path
    metadata: Metadata
    proof: Proof
    eager: Mapping[int, Mapping[str, float]]
    threads: int

    @property
    def size_bytes(self) -> int:
        """Of the file and its external data."""
        return sum(part.stat().st_size for part in (self.path, self._data) if part.exists())

    @property
    def max_abs(self) -> float:
        """The largest gap at any batch size."""
        return max(found.max_abs for found in self.proof.parity.values())

    def as_dict(self) -> dict[str, Any]:
        """Give the entry of export.json."""
        said = self.metadata.as_dict()
        kept = ("format", "model", "how", "precision", "in_graph", "inputs", "outputs", "output_kind", "class_names")
        return {
            "file": self.path.name,
            **{name: said.get(name) for name in kept},
            "preprocessing": said["preprocessing"],
            "sha256": digest(self.path),
            "size_bytes": self.size_bytes,
            "data": {"file": self._data.name, "sha256": digest(self._data)} if self._data.exists() else None,
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "source": dict(self.metadata.source),
            "versions": {**_versions(), **self.metadata.versions},
            **self._proved(),
        }

    @property
    def _data(self) -> Path:
        return self.path.with_name(self.path.name + DATA)

    def _proved(self) -> dict[str, Any]:
        proof = self.proof
        return {
            "samples": proof.num_samples,
            "tolerance": asdict(proof.tolerance),
            "parity": {str(size): found.as_dict() for size, found in proof.parity.items()},
            "metrics": proof.score.as_dict(),
            "loaded": list(proof.loaded),
            "threads": self.threads,
            "latency": {"exported": _by_text(proof.latency), "eager": _by_text(self.eager)},
        }


@dataclass
class Report:
    """What an export has made.

    Args:
        folder: Where it is, with export.json.
        artefacts: The files, in the order in which they were asked for.
    """

    folder: Path
    artefacts: list[Artefact] = field(default_factory=list)


def add_entry(folder: Path, artefact: Artefact) -> None:
    """Put a published file's entry into export.json, which is replaced as a whole."""
    entries = _entries(folder)
    entries[artefact.path.name] = artefact.as_dict()
    write_json(folder / NAME, {"schema": 1, "artefacts": entries})


def drop_entry(folder: Path, name: str) -> None:
    """Take a file's entry out, before the file itself changes, so that none ever speaks of another file."""
    entries = _entries(folder)
    if entries.pop(name, None) is not None:
        write_json(folder / NAME, {"schema": 1, "artefacts": entries})


def _entries(folder: Path) -> dict[str, Any]:
    """Entries of files that are still there."""
    entries = (read_json(folder / NAME) or {}).get("artefacts")
    known = entries if isinstance(entries, dict) else {}
    return {name: entry for name, entry in known.items() if (folder / name).is_file()}


def _versions() -> dict[str, str]:
    return {"python": platform.python_version(), "lightkit": __version__, **describe_packages(_PACKAGES)}


def _by_text(latency: Mapping[int, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    return {str(size): dict(figures) for size, figures in latency.items()}
