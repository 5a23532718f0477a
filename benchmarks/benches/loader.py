"""Images per core-second that are loaded.

lightkit, torchvision's ImageFolder and litdata's StreamingDataset.

All load random crops of the same images, flipped at random. torchvision's are converted to float
and normalised where they are loaded, lightkit's and litdata's are uint8, as a training converts
them on its device; "with conversion" adds the time of that on this CPU. litdata reads the pixels
that lightkit's cache holds, and crops them with lightkit's code.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import util
from pathlib import Path
from typing import Any

from benches.command_line import create_parser, parse_options, run_bench
from benches.environment import build_environment
from benches.rounds import BenchError, compare, mark_unmeasured, run_rounds

WORKERS = (0, 1, 2)
NAMES = {
    "torchvision": "torchvision ImageFolder",
    "uncached": "lightkit, uncached",
    "cached": "lightkit, cached",
    "litdata": "litdata, same pixels",
    "conversion": "conversion to float",
}
TARGETS = (
    ("uncached", "torchvision", 1.7),
    ("cached", "torchvision", 6.0),
    ("cached", "litdata", 1.0),
)
LITDATA_NOTE = (
    "litdata: the cache's pixels as tensors in local chunks of 64 MB, cropped by lightkit's code;"
    " batch_decode=0, as reading 256 records for one, its default, is 8 times slower here"
)


def run(words: Sequence[str]) -> int:
    """Measure, print a table or JSON, and return the exit code.

    Args:
        words: See `--help`.
    """
    parser = create_parser("loader", __doc__, repeat=5)
    parser.add_argument(
        "--data",
        type=Path,
        help="folder with one folder a class (default: LIGHTKIT_DATA, else drawn flowers)",
    )
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="shortest duration of a pass (default: 2)"
    )
    parser.add_argument(
        "--size", type=int, default=224, help="side of the crops in pixels (default: 224)"
    )
    parser.add_argument(
        "--cache-size", type=int, help="shorter side of cached images (default: 256/224 of --size)"
    )
    parser.add_argument("--batch", type=int, default=32, help="images of a batch (default: 32)")
    options = parse_options(parser, words)
    if options.quick:
        options.seconds, options.size = 0.0, min(options.size, 64)
    named = os.environ.get("LIGHTKIT_DATA")
    options.data = options.data or (Path(named).expanduser() if named else None)
    if options.data is not None and (options.data / "flower_photos").is_dir():
        options.data = options.data / "flower_photos"
    if options.data is not None and not options.data.is_dir():
        parser.error(f"--data: {options.data} is no folder")
    return run_bench("loader", options, lambda: measure(options), threads=1)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Load with each loader in turn, for each number of workers.

    Args:
        options: The command line.

    Returns:
        Comparisons, and all rounds in images per core-second.
    """
    rounds: dict[str, Any] = {}
    comparisons: list[dict[str, Any]] = []
    has_litdata = util.find_spec("litdata") is not None
    with tempfile.TemporaryDirectory(prefix="lightkit-bench-") as work:
        folder = options.data or _draw_flowers(
            Path(work, "drawn"), num_images=20 if options.quick else 400
        )
        request = {
            "folder": str(folder),
            "work": work,
            "batch_size": options.batch,
            "image_size": options.size,
            "cache_size": options.cache_size or round(options.size * 256 / 224),
        }
        for num_workers in WORKERS[:1] if options.quick else WORKERS:
            names = [name for name in NAMES if name != "litdata" or has_litdata]
            with ExitStack() as running:
                passes = {
                    NAMES[name]: running.enter_context(
                        _start_loader(
                            {**request, "loader": name, "num_workers": num_workers}, options.seconds
                        )
                    )
                    for name in names
                }
                title = (
                    f"{'drawn flowers' if options.data is None else folder.name}, {num_workers}"
                    " workers"
                )
                rounds[str(num_workers)] = run_rounds(
                    passes, repeat=options.repeat, seed=options.seed, warm_up=1, title=title
                )
            comparisons += _list_comparisons(f"{title}, one core", rounds[str(num_workers)])
    settings = {
        "seconds": options.seconds,
        **{key: value for key, value in request.items() if key != "work"},
    }
    return {
        "comparisons": comparisons,
        "rounds": rounds,
        "settings": settings,
        "notes": [LITDATA_NOTE] if has_litdata else [],
    }


def _list_comparisons(title: str, rounds: dict[str, list[float]]) -> list[dict[str, Any]]:
    lines = []
    for name, other, target in TARGETS:
        of, to = NAMES[name], NAMES[other]
        if to in rounds:
            lines.append(compare(title, rounds, of=of, to=to, unit="images/s", at_least=target))
        else:
            reason = "litdata is not installed: pip install 'lightkit-train[bench]'"
            lines.append(mark_unmeasured(title, of=of, to=to, reason=reason, at_least=target))
    for name in (NAMES["uncached"], NAMES["cached"]):
        pairs = zip(rounds[name], rounds[NAMES["conversion"]], strict=True)
        both = {
            **rounds,
            f"{name}, with conversion": [
                1 / (1 / loaded + 1 / converted) for loaded, converted in pairs
            ],
        }
        lines.append(
            compare(
                title, both, of=f"{name}, with conversion", to=NAMES["torchvision"], unit="images/s"
            )
        )
    return lines


def _draw_flowers(folder: Path, *, num_images: int, size: int = 320) -> Path:
    """Draw flowers into JPEG files about as large as the photos."""
    # here, so that --help and errors do without torch
    from lightkit.data.flowers import draw_flower
    from lightkit.images.flower_photos import CLASSES

    print(f"drawing {num_images} flowers; LIGHTKIT_DATA or --data names photos", file=sys.stderr)
    for number in range(num_images):
        kind = CLASSES[number % len(CLASSES)]
        (folder / kind).mkdir(parents=True, exist_ok=True)
        draw_flower(kind, size=size, seed=(number,)).save(
            folder / kind / f"{number:04d}.jpg", quality=95
        )
    return folder


@contextmanager
def _start_loader(request: dict[str, Any], seconds: float) -> Iterator[Callable[[int], float]]:
    """Start a process that loads.

    Yield a function that runs a pass and returns its images per core-second.
    """
    environment = {**build_environment(), "XDG_CACHE_HOME": str(Path(request["work"], "cache"))}
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "benches.loader_worker", json.dumps(request)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            env=environment,
        ) as process,
    ):  # fmt: skip

        def read_answer() -> dict[str, float]:
            assert process.stdout is not None
            if not (line := process.stdout.readline()):
                code = process.wait()
                errors.seek(0)
                raise BenchError(
                    f"{NAMES[request['loader']]} ended with"
                    f" {code}:\n{errors.read().strip()[-2000:]}"
                )
            answer: dict[str, float] = json.loads(line)
            return answer

        def load(_: int) -> float:
            assert process.stdin is not None
            process.stdin.write(f"{seconds}\n")
            process.stdin.flush()
            answer = read_answer()
            return answer["images"] / answer["cpu_s"]

        try:
            read_answer()
            yield load
        finally:
            process.kill()  # its workers see that it is gone, and end
