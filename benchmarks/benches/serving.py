"""Requests a second, and their 95th percentile, of `lightkit serve` and of MLflow's server.

With 8 clients at once.

One classifier of photos is trained, exported to ONNX and registered. In turns each server is
started, warmed up, and asked for predictions of the same photo by 8 clients, each over a connection
of its own that stays open. lightkit gets the JPEG file; MLflow's server, which takes no files, gets
its pixels as JSON, which are written before the clock runs. Both are asked twice: with the photo as
it is, and with one that the client has shrunk to the size of the model's input, which is the least
that MLflow's server can be sent. Before the clock runs, both answers are compared.
"""

from __future__ import annotations

import argparse
import http.client
import io
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
from contextlib import closing, contextmanager, suppress
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
_AS_IT_IS, _SHRUNK = "the photo as it is", "shrunk by the client"
_QUALITY = 90
_MOST_APART = 0.05  # two ways to shrink a photo
_NUM_QUICK = 16
_NUM_PHOTOS = 200
_START_S = 180.0
_END_S = 30.0
_TIMEOUT_S = 1200.0
Answer = Mapping[str, float]
Request = tuple[str, str, bytes]
"""Path, content type and body."""


def run(words: Sequence[str]) -> int:
    """Measure, print a table or JSON, and return the exit code.

    Args:
        words: See `--help`.
    """
    parser = create_parser("serving", __doc__, repeat=3)
    add_options(parser, weights=True, max_images=_NUM_PHOTOS)
    parser.add_argument(
        "--size", type=int, default=224, help="side of the images in pixels (default: 224)"
    )
    options = parse_options(parser, words)
    if options.quick:
        options.repeat, options.size, options.max_images = 1, 64, options.max_images or 50
    photos = find_photos(parser, options.photos)
    weights = find_weights(parser, options.weights)
    return run_bench(
        "serving", options, lambda: measure(options, photos, weights), threads=options.threads
    )


def measure(options: argparse.Namespace, photos: Path, weights: Path) -> dict[str, Any]:
    """Train a head, register the model, and ask both servers in turns.

    Args:
        options: The command line.
        photos: One folder a class.
        weights: Of MobileNetV2.
    """
    found: dict[str, dict[str, list[Answer]]] = {
        kind: {name: [] for name in (LIGHTKIT, MLFLOW)} for kind in (_AS_IT_IS, _SHRUNK)
    }
    with tempfile.TemporaryDirectory(prefix="lightkit-bench-") as work:
        folder = Path(work)
        photo = Image.open(_make_model(options, photos, weights, folder)).convert("RGB")
        shrunk = photo.resize((options.size, options.size), Image.Resampling.BILINEAR)
        requests = {_AS_IT_IS: _write_requests(photo), _SHRUNK: _write_requests(shrunk)}
        threads = str(options.threads)
        servers = {
            LIGHTKIT: ("-m", "lightkit", "serve", "--run", "latest", "--threads", threads),
            MLFLOW: (
                "-m",
                "mlflow",
                "models",
                "serve",
                "-m",
                "models:/bench@champion",
                "--env-manager",
                "local",
            ),
        }
        paths = {LIGHTKIT: "/health", MLFLOW: "/ping"}
        answers: dict[str, list[float]] = {}

        def once(name: str, _seed: int) -> float:
            number = _NUM_QUICK if options.quick else _NUM_REQUESTS[name]
            with _serve(servers[name], paths[name], folder, options.threads) as port:
                answers[name] = _read_answer(name, port, requests[_AS_IT_IS][name])
                for kind, both in requests.items():
                    _ask(port, both[name], number=_NUM_CLIENTS)
                    found[kind][name].append(_ask(port, both[name], number=number))
            _compare_answers(answers)
            return found[_AS_IT_IS][name][-1]["requests_per_s"]

        run_rounds(
            {name: partial(once, name) for name in servers},
            repeat=options.repeat,
            seed=options.seed,
            title="serving",
        )
    comparisons = []
    for kind, turns in found.items():
        rates = {
            name: [each["requests_per_s"] for each in answered] for name, answered in turns.items()
        }
        what = f"MobileNetV2, {_NUM_CLIENTS} clients, one photo a request, {kind}"
        comparisons.append(
            compare(what, rates, of=LIGHTKIT, to=MLFLOW, unit="requests/s", at_least=5)
        )
    sizes = {
        f"{kind}: {name}": len(body)
        for kind, both in requests.items()
        for name, (_, _, body) in both.items()
    }
    return {
        "comparisons": comparisons,
        "rounds": found,
        "settings": {"size": options.size, "clients": _NUM_CLIENTS, "bytes": sizes},
        "notes": [
            _describe(f"{kind}, {name}", each)
            for kind, turns in found.items()
            for name, each in turns.items()
        ],
    }


def _write_requests(photo: Image.Image) -> dict[str, Request]:
    """Write a request for each server: a JPEG file, and its pixels as JSON."""
    file = io.BytesIO()
    photo.save(file, "JPEG", quality=_QUALITY)
    pixels = np.asarray(Image.open(file)).tolist()
    return {
        LIGHTKIT: ("/predict", "image/jpeg", file.getvalue()),
        MLFLOW: ("/invocations", "application/json", json.dumps({"inputs": [pixels]}).encode()),
    }


def _read_answer(name: str, port: int, request: Request) -> list[float]:
    """Return the probabilities of the classes, in the order of their names."""
    path, content_type, body = request
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as connection:
        connection.request("POST", path, body, {"Content-Type": content_type})
        answer = connection.getresponse()
        content = answer.read()
    if answer.status != 200:
        raise BenchError(f"{path} answers {answer.status}: {content[:300]!r}")
    predictions = json.loads(content)["predictions"]
    if name == MLFLOW:
        return [float(each) for each in predictions[0]]
    classes = sorted(predictions[0]["classes"], key=lambda each: str(each["label"]))
    return [float(each["probability"]) for each in classes]


def _compare_answers(answers: Mapping[str, Sequence[float]]) -> None:
    """Check that the servers answer the same, once both have answered.

    Raises:
        BenchError: If they do not.
    """
    if len(answers) < 2:
        return
    apart = float(np.abs(np.subtract(answers[LIGHTKIT], answers[MLFLOW])).max())
    if apart > _MOST_APART:
        raise BenchError(f"the servers answer {answers}, which is {apart:.3f} apart")


def _describe(name: str, turns: Sequence[Answer]) -> str:
    median, p95 = (
        1e3 * statistics.median(each[key] for each in turns) for key in ("median_s", "p95_s")
    )
    return f"{name}: median {median:.3g} ms, 95th percentile {p95:.3g} ms of a request"


def _make_model(options: argparse.Namespace, photos: Path, weights: Path, folder: Path) -> Path:
    """Train, export and register the model; return a photo."""
    split = copy_split(photos, folder / "photos", max_images=options.max_images or _NUM_PHOTOS)
    config = {
        "model": {
            "class_path": "ImageClassifier",
            "init_args": {
                "backbone": "mobilenet_v2",
                "weights": str(weights),
                "freeze": "backbone",
            },
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
            raise BenchError(
                f"lightkit {words[0]} ended with {done.returncode}:\n{done.stderr.strip()[-2000:]}"
            )
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
                raise BenchError(
                    f"{' '.join(words[:3])} does not"
                    f" answer:\n{log.read_text(errors='replace')[-2000:]}"
                )
            time.sleep(0.2)
        yield port
    finally:
        # it has ended by itself, which is the error that is raised
        with suppress(ProcessLookupError):
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
        except (OSError, http.client.HTTPException):
            return False


def _ask(port: int, request: Request, *, number: int) -> Answer:
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
        times = [
            each
            for found in pool.map(ask, [number // _NUM_CLIENTS] * _NUM_CLIENTS)
            for each in found
        ]
        seconds = time.perf_counter() - begin
    median, p95 = np.percentile(times, [50, 95])
    return {"requests_per_s": len(times) / seconds, "median_s": float(median), "p95_s": float(p95)}
