"""Latency of each file that `lightkit export` writes, for batches of 1 and 32.

Compared with the eager model.

A MobileNetV2 with a head for the photos, which computes on the CPU with one thread and with all.
Each contestant is opened in a process of its own and called with the same random images; a latency
is the median of up to 40 calls.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benches.command_line import create_parser, parse_options, run_bench
from benches.environment import build_environment
from benches.photo_data import add_options, copy_split, find_photos, find_weights
from benches.rounds import BenchError, compare, run_rounds

EAGER = "eager"
FILES = {
    "torch_export": "model.pt2",
    "torchscript": "model.ts",
    "onnx": "model.onnx",
    "onnx half": "model.half.onnx",
    "onnx int8": "model.int8.onnx",
}
SIZES = (1, 32)
_NUM_PHOTOS = 200
_TIMEOUT_S = 1200.0
Found = Mapping[str, Sequence[Mapping[str, Mapping[str, Mapping[str, float]]]]]
"""By contestant, for each round: what `export_latency` returned."""


def run(words: Sequence[str]) -> int:
    """Measure, print a table or JSON, and return the exit code.

    Args:
        words: See `--help`.
    """
    parser = create_parser("export", __doc__, repeat=1)
    add_options(parser, weights=True, max_images=_NUM_PHOTOS)
    parser.add_argument(
        "--size", type=int, default=224, help="side of the images in pixels (default: 224)"
    )
    options = parse_options(parser, words)
    if options.quick:
        options.repeat, options.size, options.max_images = 1, 64, options.max_images or 50
    photos, weights = find_photos(parser, options.photos), find_weights(parser, options.weights)
    return run_bench(
        "export", options, lambda: measure(options, photos, weights), threads=options.threads
    )


def measure(options: argparse.Namespace, photos: Path, weights: Path) -> dict[str, Any]:
    """Train a head, export the model, and time each file.

    Args:
        options: The command line.
        photos: One folder a class.
        weights: Of MobileNetV2.
    """
    threads = sorted({1, options.threads})
    with tempfile.TemporaryDirectory(prefix="lightkit-bench-") as work:
        folder = Path(work)
        files = export_files(options, photos, weights, folder)
        result: dict[str, list[Any]] = {}

        def once(name: str, seed: int) -> float:
            request = {
                "file": str(files[name]),
                "sizes": SIZES,
                "threads": threads,
                "image_size": options.size,
            }
            words = ("benches.export_latency", json.dumps({**request, "seed": seed}))
            result.setdefault(name, []).append(json.loads(_run(words, folder, options.threads)))
            return float(result[name][-1][str(threads[-1])]["1"]["median_s"])

        run_rounds(
            {name: partial(once, name) for name in files},
            repeat=options.repeat,
            seed=options.seed,
            title="export",
        )
    return {
        "comparisons": list_comparisons(result, threads[-1]),
        "rounds": result,
        "settings": {"size": options.size, "threads": threads},
        "notes": format_latencies(result),
    }


def export_files(
    options: argparse.Namespace, photos: Path, weights: Path, folder: Path
) -> dict[str, Path]:
    """Train a head for an epoch and export the model.

    Return the files by name, and the checkpoint as the eager model.

    Args:
        options: The command line.
        photos: One folder a class.
        weights: Of MobileNetV2.
        folder: To work in.

    Raises:
        BenchError: If a command fails.
    """
    split = copy_split(photos, folder / "photos", max_images=options.max_images or _NUM_PHOTOS)
    head = {"backbone": "mobilenet_v2", "weights": str(weights), "freeze": "backbone"}
    config = {
        "model": {"class_path": "ImageClassifier", "init_args": head},
        "data": {
            "class_path": "ImageFolder",
            "init_args": {"root": str(split.root), "image_size": options.size, "num_workers": 0},
        },
        "trainer": {"max_epochs": 1},
        "callbacks": {"checkpoint": {}},
        "seed_everything": options.seed,
    }
    (folder / "bench.yaml").write_text(json.dumps(config), encoding="utf-8")
    print("export: training a head, and exporting", file=sys.stderr)
    _run(("lightkit", "fit", "-c", "bench.yaml"), folder, options.threads)
    checkpoint, out = (
        folder / "runs" / "bench" / "latest" / "checkpoints" / "best.ckpt",
        folder / "out",
    )
    formats = ",".join(dict.fromkeys(name.partition(" ")[0] for name in FILES))
    words = (
        "lightkit",
        "export",
        "--run",
        "latest",
        "--format",
        formats,
        "--half",
        "--int8",
        "--output",
        str(out),
    )
    _run(words, folder, options.threads)
    return {EAGER: checkpoint, **{name: out / file for name, file in FILES.items()}}


def _run(words: Sequence[str], folder: Path, threads: int) -> str:
    environment = {**build_environment(threads), "XDG_CACHE_HOME": str(folder / "cache")}
    try:
        done = subprocess.run(
            [sys.executable, "-m", *words], cwd=folder, env=environment, capture_output=True,
            text=True, check=False,
            timeout=_TIMEOUT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"{' '.join(words[:2])} has not ended after {_TIMEOUT_S:g} s") from error
    if done.returncode:
        raise BenchError(
            f"{' '.join(words[:2])} ended with {done.returncode}:\n{done.stderr.strip()[-2000:]}"
        )
    return done.stdout


def list_comparisons(result: Found, threads: int) -> list[dict[str, Any]]:
    """Compare each file with the eager model, in medians.

    Args:
        result: What was measured.
        threads: Of which number of threads.
    """
    lines = []
    for size in SIZES:
        rounds = {
            name if name == EAGER else f"lightkit, {name}": [
                1e3 * each[str(threads)][str(size)]["median_s"] for each in turns
            ]
            for name, turns in result.items()
        }
        what = f"MobileNetV2, batch {size}, {_format_threads(threads)}"
        lines += [
            compare(what, rounds, of=name, to=EAGER, unit="ms") for name in rounds if name != EAGER
        ]
    return lines


def format_latencies(result: Found) -> list[str]:
    """Return medians and 95th percentiles of each number of threads and size, one line each."""
    return [
        f"{_format_threads(int(threads))}, batch {size}: " + ", ".join(
            f"{name} {_format_ms(turns, threads, size, 'median_s')}"
            f" (p95 {_format_ms(turns, threads, size, 'p95_s')})"
            for name, turns in result.items()
        ) + " ms"
        for threads in result[EAGER][0]
        for size in result[EAGER][0][threads]
    ]  # fmt: skip


def _format_ms(turns: Sequence[Any], threads: str, size: str, figure: str) -> str:
    return f"{1e3 * statistics.median(each[threads][size][figure] for each in turns):.3g}"


def _format_threads(number: int) -> str:
    return f"{number} thread{'s' * (number > 1)}"
