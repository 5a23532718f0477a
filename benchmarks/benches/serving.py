"""Requests a second, and their 95th percentile, of `lightkit serve` and of MLflow's server, with 8 clients at once.

One classifier of photos is trained, exported to ONNX and registered. In turns each server is started, warmed up, and
asked for predictions of the same photo by 8 clients, each over a connection of its own that stays open. lightkit gets
the JPEG file; MLflow's server, which takes no files, gets its pixels as JSON, which are written before the clock runs.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benches.command_line import create_parser, parse_options, run_bench
from benches.environment import build_environment
from benches.photo_data import add_options, copy_split, find_photos, find_weights
from benches.rounds import BenchError, compare, run_rounds

LIGHTKIT = "lightkit serve"
MLFLOW = "MLflow's server"
_NUM_CLIENTS = 8
_NUM_REQUESTS = {LIGHTKIT: 400, MLFLOW: 80}
_NUM_QUICK = 16
_NUM_PHOTOS = 200
_START_S = 180.0
_END_S = 30.0
_TIMEOUT_S = 1200.0
Answer = Mapping[str, float]


def run(words: Sequence[str]) -> int:
    """Measure, print a table or JSON, and return the exit code.

    Args:
        words: See `--help`.
    """
    parser = create_parser("serving", __doc__, repeat=3)
    add_options(parser, weights=True, max_images=_NUM_PHOTOS)
    parser.add_argument("--size", type=int, default=224, help="side of the images in pixels (default: 224)")
    options = parse_options(parser, words)
    if options.quick:
        options.repeat, options.size, options.max_images = 1, 64, options.max_images or 50
    photos = find_photos(parser, options.photos)
    weights = find_weights(parser, options.weights)
    return run_bench("serving", options, lambda: measure(options, photos, weights), threads=options.threads)


def measure(options: argparse.Namespace, photos: Path, weights: Path) -> dict[str, Any]:
    """Train a head, register the model, and ask both servers in turns.

    Args:
        options: The command line.
        photos: One folder a class.
        weights: Of MobileNetV2.
    """
    found: dict[str, list[Answer]] = {LIGHTKIT: [], MLFLOW: []}
    with tempfile.TemporaryDirectory(prefix="lightkit-bench-") as work:
        folder = Path(work)
        photo = _make_model(options, photos, weights, folder)
        pixels = np.asarray(Image.open(photo).convert("RGB")).tolist()
        requests = {
            LIGHTKIT: ("/predict", "image/jpeg", photo.read_bytes()),
            MLFLOW: ("/invocations", "application/json", json.dumps({"inputs": [pixels]}).encode()),
        }
        servers = {
            LIGHTKIT: ("-m", "lightkit", "serve", "--run", "latest"),
            MLFLOW: ("-m", "mlflow", "models", "serve", "-m", "models:/bench@champion", "--env-manager", "local"),
        }
        paths = {LIGHTKIT: "/health", MLFLOW: "/ping"}

        def once(name: str, _seed: int) -> float:
            number = _NUM_QUICK if options.quick else _NUM_REQUESTS[name]
            with _serve(servers[name], paths[name], folder, options.threads) as port:
                _ask(port, requests[name], number=_NUM_CLIENTS)
                found[name].append(_ask(port, requests[name], number=number))
            return found[name][-1]["requests_per_s"]

        run_rounds(
            {name: partial(once, name) for name in servers}, repeat=options.repeat, seed=options.seed, title="serving"
        )
    rates = {name: [each["requests_per_s"] for each in turns] for name, turns in found.items()}
    what = f"MobileNetV2, {_NUM_CLIENTS} clients, one photo a request"
    return {
        "comparisons": [compare(what, rates, of=LIGHTKIT, to=MLFLOW, unit="requests/s", at_least=5)],
        "rounds": found,
        "settings": {"size": options.size, "clients": _NUM_CLIENTS},
        "notes": [_describe(name, turns) for name, turns in found.items()],
    }


def _describe(name: str, turns: Sequence[Answer]) -> str:
    median, p95 = (1e3 * statistics.median(each[key] for each in turns) for key in ("median_s", "p95_s"))
    return f"{name}: median {median:.3g} ms, 95th percentile {p95:.3g} ms of a request"


def _make_model(options: argparse.Namespace, photos: Path, weights: Path, folder: Path) -> Path:
    """Train, export and register the model; return a photo."""
    split = copy_split(photos, folder / "photos", max_images=options.max_images or _NUM_PHOTOS)
    config = {
        "model": {
            "class_path": "ImageClassifier",
            "init_args": {"backbone": "mobilenet_v2", "weights": str(weights), "freeze": "backbone"},
        },
        "data": {
            "class_path": "ImageFolder",
            "init_args": {"root": str(split.root), "image_size": options.size, "num_workers": 0},
        },
        "trainer": {"max_epochs": 1, "logger": False},
        "seed_everything": options.seed,
    }
    (folder / "bench.yaml").write_text(json.dumps(config), encoding="utf-8")
    print("serving: training a head, exporting and registering it", file=sys.stderr)
    for words in (
        ("fit", "-c", "bench.yaml"),
        ("export", "--run", "latest", "--format", "onnx"),
        ("register", "--run", "latest", "--name", "bench", "--alias", "champion"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "lightkit", *words],
            cwd=folder,
            env=_environment(folder, options.threads),
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_S,
        )
        if done.returncode:
            raise BenchError(f"lightkit {words[0]} ended with {done.returncode}:\n{done.stderr.strip()[-2000:]}")
    return next(iter(sorted(split.root.rglob("*.jpg"))))


def _environment(folder: Path, threads: int) -> dict[str, str]:
    own = str(Path(sys.executable).parent)
    return {
        **build_environment(threads),
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'runs' / 'mlflow.db'}",
        "PATH": f"{own}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "XDG_CACHE_HOME": str(folder / "cache"),
    }


@contextmanager
def _serve(words: Sequence[str], path: str, folder: Path, threads: int) -> Iterator[int]:
    """Start a server, wait until it answers, and end it with all its processes."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, *words, "--port", str(port)],
            cwd=folder,
            env=_environment(folder, threads),
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        deadline_s = time.monotonic() + _START_S
        while not _is_ready(port, path):
            if server.poll() is not None or time.monotonic() > deadline_s:
                raise BenchError(f"{' '.join(words[:3])} does not answer:\n{log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.2)
        yield port
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(_END_S)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _is_ready(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with closing(connection):
        try:
            connection.request("GET", path)
            return connection.getresponse().status == 200
        except OSError:
            return False


def _ask(port: int, request: tuple[str, str, bytes], *, number: int) -> Answer:
    """Send so many requests by 8 clients at once, and return their rate and times."""
    path, content_type, body = request

    def ask(count: int) -> list[float]:
        times = []
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as connection:
            for _ in range(count):
                begin = time.perf_counter()
                connection.request("POST", path, body, {"Content-Type": content_type})
                answer = connection.getresponse()
                content = answer.read()
                if answer.status != 200:
                    raise BenchError(f"{path} answers {answer.status}: {content[:300]!r}")
                times.append(time.perf_counter() - begin)
        return times

    with ThreadPoolExecutor(_NUM_CLIENTS) as pool:
        begin = time.perf_counter()
        times = [each for found in pool.map(ask, [number // _NUM_CLIENTS] * _NUM_CLIENTS) for each in found]
        seconds = time.perf_counter() - begin
    median, p95 = np.percentile(times, [50, 95])
    return {"requests_per_s": len(times) / seconds, "median_s": float(median), "p95_s": float(p95)}
