"""The screen of an export: what is exported and how it is proved, and the files."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from lightkit import runs
from lightkit.cli.console import OutputMode, print_line
from lightkit.cli.notifications import IN_RETRAIN
from lightkit.config import shown_path
from lightkit.errors import ExportError, format_count, visible
from lightkit.export.formats import FORMATS
from lightkit.export.options import MODULE_FORMAT
from lightkit.export.target import ExportTarget
from lightkit.reports.text_table import format_table
from lightkit.runs.files import in_bytes

if TYPE_CHECKING:
    pass


def print_target(target: ExportTarget, folder: Path, mode: OutputMode) -> None:
    """Print what is exported, from and to where, and on what it is proved."""
    samples = target.samples
    print_start(
        target.module,
        target.metadata.source,
        folder,
        mode,
        proof=samples.source,
        num_samples=len(samples.names),
    )


def print_start(
    module: nn.Module,
    source: Mapping[str, str],
    folder: Path,
    mode: OutputMode,
    *,
    proof: str,
    num_samples: int | None = None,
) -> None:
    """Print what is exported, from and to where, and by what it is proved.

    Args:
        module: The model.
        source: Origin of its weights.
        folder: Folder of the files.
        mode: Output mode.
        proof: Source of the samples, or the module's own test.
        num_samples: Number of the samples; None of a module that exports and tests itself.
    """
    origin = _describe_origin(source)
    if mode == "json":
        runs.print_event(
            "start", origin=origin, folder=str(folder), samples=num_samples, source=proof
        )
    samples = "" if num_samples is None else f"{format_count(num_samples, 'sample')}: "
    print_line(f"model {_describe_module(module)}", mode)
    print_line(f"from  {origin}", mode)
    print_line(f"proof {samples}{proof}", mode)
    print_line(f"to    {shown_path(folder)}", mode)


def _describe_origin(source: Mapping[str, str]) -> str:
    origin = source.get("checkpoint") or source.get("model") or "an untrained model"
    epoch = f" (epoch {source['epoch']})" if "epoch" in source else ""
    return f"{origin}{epoch}"


def _describe_module(module: nn.Module) -> str:
    backbone = getattr(module, "backbone", None)
    name = f"{type(module).__name__}{f' on {backbone}' if isinstance(backbone, str) else ''}"
    return f"{name}: {sum(each.numel() for each in module.parameters()):,} parameters"


def print_result(
    artefacts: Sequence[Mapping[str, Any]], failures: Sequence[str], folder: Path, mode: OutputMode
) -> None:
    """Print the files, and what to type next.

    Raises:
        ExportError: If a file could not be made, or differs from its model.
    """
    if artefacts and mode == "json":
        runs.print_event("export", folder=str(folder), artefacts=artefacts)
    elif artefacts and mode != "quiet":
        _print_report(artefacts)
        print_line(f"files {shown_path(folder)}", mode)
        if IN_RETRAIN not in os.environ:
            _print_next_command(artefacts, folder, mode)
    if failures:
        raise ExportError("\nerror: ".join(failures))


def _print_next_command(
    artefacts: Sequence[Mapping[str, Any]], folder: Path, mode: OutputMode
) -> None:
    """Print how to predict by the file of the first format that takes images or rows."""
    usable = [entry for entry in artefacts if entry.get("preprocessing") or entry.get("rows")]
    if usable:
        first = min(usable, key=lambda entry: [*FORMATS].index(entry["format"]))
        file = shown_path(folder / first["file"])
        words = "FILE" if first.get("rows") else "IMAGES"
        print_line(f"next  {shlex.join(['lightkit', 'predict', '--model', file])} {words}", mode)


def _print_report(artefacts: Sequence[Mapping[str, Any]]) -> None:
    """Print each file and the eager model as a table on standard output.

    Print below it what the table cannot hold.

    Args:
        artefacts: Entries of export.json.
    """
    of_module = [entry for entry in artefacts if entry["format"].startswith(MODULE_FORMAT)]
    artefacts = [entry for entry in artefacts if entry not in of_module]
    if artefacts:
        _print_proofs(artefacts)
    if of_module:
        rows = [
            [entry["file"], in_bytes(entry["size_bytes"]), _list_figures(entry["checked"])]
            for entry in of_module
        ]
        print(format_table(("file", "size", "checked"), rows, right=("size",)))
        print(
            "Proved by the module's own test:"
            f" {of_module[0]['metrics']['reason'].partition(' ')[0]}."
        )


def _list_figures(figures: Mapping[str, Any]) -> str:
    texts = []
    for name, value in figures.items():
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        texts.append(f"{name} {visible(text, in_line=True)}")
    return ", ".join(texts)


def _print_proofs(artefacts: Sequence[Mapping[str, Any]]) -> None:
    """Print the files that lightkit has proved, with their latency."""
    names = [name for entry in artefacts for name in entry["metrics"].get("eager", ())]
    metric = next((name for name in names if "acc" in name), [*names, "metric"][0])

    def row(name: str, size: str, gap: str, entry: Mapping[str, Any], which: str) -> list[str]:
        value = entry["metrics"].get(which, {}).get(metric)
        latency = entry["latency"][which]
        cells = [
            f"{_format_ms(each['median_s'])} ({_format_ms(each['p95_s'])})"
            for each in latency.values()
        ]
        speed = f"{32 / latency['32']['median_s']:.0f}"
        return [name, size, gap, "" if value is None else f"{value:.4f}", *cells, speed]

    rows = [row("eager model", "", "", artefacts[0], "eager")]
    for entry in artefacts:
        gap = max(each["max_abs"] for each in entry["parity"].values())
        rows.append(
            row(entry["file"], in_bytes(entry["size_bytes"]), f"{gap:.1e}", entry, "exported")
        )
    numbers = ("size", "max gap", metric, "batch 1, ms", "batch 32, ms", "samples/s")
    num_samples = artefacts[0]["samples"]
    threads = artefacts[0]["threads"]
    print(format_table(("file", *numbers), rows, right=numbers))
    print(
        f"Verified in a fresh process on {format_count(num_samples, 'sample')} at batch 1, 7 and"
        f" 32. Latency: median (95th percentile), {format_count(threads, 'thread')}."
    )
    for reason in {
        entry["metrics"]["reason"]: None for entry in artefacts if not entry["metrics"]["scored"]
    }:
        print(f"Not scored: {reason}.")


def _format_ms(time_s: float) -> str:
    return f"{time_s * 1e3:.1f}" if time_s >= 1e-3 else f"{time_s * 1e3:.2g}"  # 0.038
