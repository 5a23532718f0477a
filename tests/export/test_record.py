"""export.json: what a proof found, for programs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

from lightkit.export.parity import Parity, Tolerance
from lightkit.export.proof import Proof
from lightkit.export.record import Artefact, add_entry, drop_entry
from lightkit.export.scoring import Score
from lightkit.runs.integrity import digest
from tests.export.planted import subject_of


def artefact(folder: Path, name: str = "model.onnx", *, score: Score | None = None) -> Artefact:
    (folder / name).write_bytes(b"x" * 2500)
    parity = {size: Parity(size, num_outputs=60, max_abs=gap) for size, gap in ((1, 1e-6), (7, 3.25e-6), (32, 0.0))}
    latency = {
        1: {"median_s": 0.002, "p95_s": 0.003, "repetitions": 40},
        32: {"median_s": 0.032, "p95_s": 0.05, "repetitions": 40},
    }
    proof = Proof(
        parity=parity,
        score=score or Score({"val/loss": 0.5, "val/accuracy": 0.8125}, {"val/loss": 0.5, "val/accuracy": 0.75}, 0.1),
        latency=latency,
        loaded=["onnxruntime"],
        tolerance=Tolerance(1e-4, 1e-5),
        num_samples=64,
    )
    eager = {size: {**figures, "median_s": figures["median_s"] * 2} for size, figures in latency.items()}
    metadata = replace(subject_of().metadata, format="onnx", how="trace" if name.endswith(".ts") else None)
    return Artefact(folder / name, metadata, proof, eager, threads=2)


def entries(folder: Path) -> dict[str, dict[str, object]]:
    content: dict[str, dict[str, object]] = json.loads((folder / "export.json").read_text())["artefacts"]
    return content


def test_an_entry_says_what_the_file_is_and_what_was_found(tmp_path: Path) -> None:
    add_entry(tmp_path, artefact(tmp_path))

    entry = entries(tmp_path)["model.onnx"]
    assert entry["sha256"] == digest(tmp_path / "model.onnx")
    assert entry["size_bytes"] == 2500
    assert entry["inputs"] == [{"name": "x", "dtype": "float32", "shape": [None, 4]}]
    assert entry["parity"] == {
        "1": {"max_abs": 1e-06, "max_rel": 0.0, "outputs": 60, "outside": 0},
        "7": {"max_abs": 3.25e-06, "max_rel": 0.0, "outputs": 60, "outside": 0},
        "32": {"max_abs": 0.0, "max_rel": 0.0, "outputs": 60, "outside": 0},
    }
    assert entry["tolerance"] == {"rtol": 1e-4, "atol": 1e-5, "of_largest": 0.0, "of_spread": None}
    assert {"python", "lightkit", "torch"} <= set(entry["versions"])  # type: ignore[call-overload]


def test_every_field_of_an_entry_is_in_the_documentation(tmp_path: Path) -> None:
    from lightkit.export import record

    add_entry(tmp_path, artefact(tmp_path))

    assert record.__doc__ is not None
    table = record.__doc__.split("=\n")[1].split("\n=")[0]
    documented = {word for line in table.splitlines() for word in re.split(r"[ ,]+", line[:18])}
    assert set(entries(tmp_path)["model.onnx"]) <= documented


def test_entries_of_files_that_are_still_there_are_kept(tmp_path: Path) -> None:
    for name in ("model.onnx", "model.pt2", "model.ts"):
        add_entry(tmp_path, artefact(tmp_path, name))
    (tmp_path / "model.ts").unlink()

    add_entry(tmp_path, artefact(tmp_path, "model.onnx"))
    assert sorted(entries(tmp_path)) == ["model.onnx", "model.pt2"]

    drop_entry(tmp_path, "model.pt2")
    assert sorted(entries(tmp_path)) == ["model.onnx"]


def test_external_data_has_a_digest_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "model.onnx.data").write_bytes(b"weights")

    add_entry(tmp_path, artefact(tmp_path))

    entry = entries(tmp_path)["model.onnx"]
    assert entry["data"] == {"file": "model.onnx.data", "sha256": digest(tmp_path / "model.onnx.data")}
    assert entry["size_bytes"] == 2507
