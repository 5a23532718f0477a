"""How many images a second one core loads: lightkit beside torchvision's ImageFolder and litdata's StreamingDataset.

All give random crops of the same images, flipped at random. torchvision's are converted to float and normalised where
they are loaded, lightkit's and litdata's are uint8, as a training converts them on its device; further rows tell
what is left where that is this CPU. litdata holds the pixels that lightkit's cache holds, and crops them with
lightkit's code.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from importlib import util
from pathlib import Path
from typing import IO, Any

import psutil

from benches.command import recorded
from benches.contest import BenchError
from benches.environment import load_average
from benches.loader_report import NAMES, compared, report, table, workers_in_words
from benches.output import shown

__all__ = ["BenchError", "Settings", "measure", "run"]

WORKERS = (0, 1, 2)
_WAYS = Path(__file__).with_name("loader_ways.py")
_ALONE = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


@dataclass(frozen=True)
class Settings:
    """What is loaded in every way; see `run` for the options."""

    folder: str
    work: str
    batch_size: int
    image_size: int
    cache_size: int


def run(words: Sequence[str]) -> int:
    """Measure, print a table or JSON, and return the exit code.

    Args:
        words: See `--help`.
    """
    options = _options(words)
    before, start = load_average(), time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="lightkit-bench-") as work:
            photos = options.data or _photos()
            folder = photos or _drawn(Path(work, "drawn"), num_images=20 if options.quick else 400)
            cache_size = options.cache_size or round(options.size * 256 / 224)
            settings = Settings(str(folder), work, options.batch, options.size, cache_size)
            workers = WORKERS[:1] if options.quick else WORKERS
            passes = measure(settings, repeat=options.repeat, seconds=options.seconds, workers=workers)
    except BenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; nothing was measured to its end", file=sys.stderr)
        return 130
    told = {**asdict(settings), "folder": "drawn flowers" if photos is None else photos.name}
    del told["work"]
    found = {"bench": "loader", **report(passes, told), "comparisons": compared(passes, told), "rounds": passes}
    found = recorded(found, options, threads=1, load_before=before, start=start)
    return shown(json.dumps(found, indent=2) if options.json else table(found))


def _options(words: Sequence[str]) -> argparse.Namespace:
    says = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="scripts/bench loader", description=says, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON into this file too")
    parser.add_argument("--quick", action="store_true", help="one short pass without workers, to see that all runs")
    parser.add_argument(
        "--data", type=Path, help="folder with one folder a class (default: LIGHTKIT_DATA, else drawn flowers)"
    )
    parser.add_argument("--repeat", type=int, default=5, help="passes of each way that count (default: 5)")
    parser.add_argument("--seconds", type=float, default=2.0, help="least duration of a pass (default: 2)")
    parser.add_argument("--size", type=int, default=224, help="side of the crops in pixels (default: 224)")
    parser.add_argument("--cache-size", type=int, help="shorter side of cached images (default: 256/224 of --size)")
    parser.add_argument("--batch", type=int, default=32, help="images of a batch (default: 32)")
    options = parser.parse_args(words)
    for name, least in (("repeat", 1), ("size", 1), ("batch", 1), ("cache_size", 1)):
        value = getattr(options, name)
        if value is not None and value < least:
            parser.error(f"--{name.replace('_', '-')}: expected {least} or more, got {value}")
    if not options.seconds >= 0:
        parser.error(f"--seconds: expected 0 or more, got {options.seconds:g}")
    if options.data is not None and not options.data.is_dir():
        parser.error(f"--data: {options.data} is no folder")
    if options.out is not None and not options.out.absolute().parent.is_dir():
        parser.error(f"--out: {options.out.parent} is no folder")
    if options.quick:
        options.repeat, options.seconds, options.size = 1, 0.0, min(options.size, 64)
    return options


def _photos() -> Path | None:
    """Give the folder that LIGHTKIT_DATA names, or the flower photos in it."""
    named = os.environ.get("LIGHTKIT_DATA")
    if not named:
        return None
    folder = Path(named).expanduser()
    folder = folder / "flower_photos" if (folder / "flower_photos").is_dir() else folder
    if not folder.is_dir():
        raise BenchError(f"LIGHTKIT_DATA: {folder} is no folder")
    return folder


def _drawn(folder: Path, *, num_images: int = 400, size: int = 320) -> Path:
    """Draw flowers into JPEG files about as large as the photos."""
    from lightkit.data.flowers import draw_flower  # here, so that --help and mistakes do without torch
    from lightkit.images.flower_photos import CLASSES

    print(f"drawing {num_images} flowers; LIGHTKIT_DATA or --data names photos", file=sys.stderr)
    for number in range(num_images):
        kind = CLASSES[number % len(CLASSES)]
        (folder / kind).mkdir(parents=True, exist_ok=True)
        draw_flower(kind, size=size, seed=(number,)).save(folder / kind / f"{number:04d}.jpg", quality=95)
    return folder


def measure(settings: Settings, *, repeat: int, seconds: float, workers: Sequence[int] = WORKERS) -> dict[str, Any]:
    """Give what each way has loaded in each pass, in turn with the others; say on standard error how far it is.

    Args:
        settings: What is loaded.
        repeat: Passes that count; one before them starts the workers, fills the caches and has its memory watched.
        seconds: Least duration of a pass.
        workers: Numbers of worker processes, one after the other.

    Raises:
        BenchError: If a way ends before its work.
    """
    passes: dict[str, Any] = {}
    for num_workers in workers:
        ways = [way for way in NAMES if way != "litdata" or util.find_spec("litdata")]
        ways += ["conversion"] * (num_workers == 0)
        with ExitStack() as running:
            children = {way: running.enter_context(_child(way, num_workers, settings)) for way in ways}
            peaks = {way: _peak_bytes(child, seconds) for way, child in children.items()}
            rows: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
            for turn in range(1, repeat + 1):
                for way, child in children.items():
                    rows[way].append(child.measured(seconds))
                print(f"{workers_in_words(num_workers)}: turn {turn} of {repeat}", file=sys.stderr)
        passes[str(num_workers)] = {way: {"passes": rows[way], "peak_bytes": peaks[way]} for way in ways}
    return passes


class _Child:
    """A process that loads in one way."""

    def __init__(self, way: str, process: subprocess.Popen[str], says: IO[str]) -> None:
        self.way, self.process, self.says = way, process, says

    def measured(self, seconds: float) -> dict[str, float]:
        """Ask for a pass."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{seconds}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended; its answer, which does not come, says so
        return self.answer()

    def answer(self) -> dict[str, float]:
        """Wait for a line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            self.says.seek(0)
            raise BenchError(f"{NAMES.get(self.way, self.way)} ended with {code}:\n{self.says.read().strip()[-2000:]}")
        answer: dict[str, float] = json.loads(line)
        return answer


@contextmanager
def _child(way: str, num_workers: int, settings: Settings) -> Iterator[_Child]:
    asked = json.dumps({"way": way, "num_workers": num_workers, **asdict(settings)})
    environment = {**os.environ, **_ALONE, "XDG_CACHE_HOME": str(Path(settings.work, "cache"))}
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as says,
        subprocess.Popen(
            [sys.executable, str(_WAYS), asked],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=says, text=True, env=environment,
        ) as process,
    ):  # fmt: skip
        try:
            child = _Child(way, process, says)
            child.answer()
            yield child
        finally:
            process.kill()  # its workers see that it is gone, and end


def _peak_bytes(child: _Child, seconds: float) -> int:
    """Give the most memory during a pass, which does not count, as looking takes time from it.

    Of the process and its workers together, each page once; without mapped files, which the kernel can give up.
    """
    over, peak = threading.Event(), 0

    def watch() -> None:
        nonlocal peak
        while True:
            peak = max(peak, _memory_bytes(psutil.Process(child.process.pid)))
            if over.wait(0.1):
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        child.measured(seconds)
    finally:
        over.set()
        watcher.join()
    return peak


def _memory_bytes(process: psutil.Process) -> int:
    """Add up a process and its workers, without what they share and without files that are mapped."""
    try:
        family = [process, *process.children(recursive=True)]
    except psutil.Error:
        return 0  # it has ended, which whoever waits for its answer will tell
    return sum(map(_own_bytes, family))


def _own_bytes(process: psutil.Process) -> int:
    rollup = Path(f"/proc/{process.pid}/smaps_rollup")
    try:
        if rollup.exists():
            fields = [line.split() for line in rollup.read_text(encoding="utf-8").splitlines()]
            return 1024 * sum(int(field[1]) for field in fields if field[0] in ("Pss_Anon:", "Pss_Shmem:"))
        return int(process.memory_full_info().uss)
    except (psutil.Error, OSError):  # it has just ended
        return 0
