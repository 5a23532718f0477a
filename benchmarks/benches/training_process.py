"""One training of a contestant, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benches.environment import build_environment
from benches.rounds import BenchError
from benches.timeline import FILE, Moments, read

LIGHTKIT, LIGHTNING_CLI, BY_HAND = "lightkit", "LightningCLI", "hand-written loop"
CLOCK = "benches.timeline_callback.Clock"
"""The callback that notes the moments."""
_TIMEOUT_S = 1800.0


@dataclass(frozen=True)
class Training:
    """A command that trains.

    Args:
        name: What people call it.
        words: After `python -m`.
        files: By name: what is written into the folder that it runs in.
    """

    name: str
    words: tuple[str, ...]
    files: Mapping[str, str]


def create_lightkit_training(config: Mapping[str, Any], *, name: str = LIGHTKIT) -> Training:
    """Return a training by lightkit.

    Args:
        config: Of its fit.
        name: What people call it.
    """
    return Training(
        name, ("lightkit", "fit", "-c", "bench.yaml"), {"bench.yaml": json.dumps(config)}
    )


def create_cli_training(config: Mapping[str, Any], *, name: str = LIGHTNING_CLI) -> Training:
    """Return a training by a plain LightningCLI over the classes of `end_to_end_cli`.

    Args:
        config: Of its fit.
        name: What people call it.
    """
    words = ("benches.end_to_end_cli", "fit", "--config", "bench.yaml")
    return Training(name, words, {"bench.yaml": json.dumps(config)})


def create_loop_training(
    module: str, request: Mapping[str, Any], *, name: str = BY_HAND
) -> Training:
    """Return a training by a hand-written loop.

    Args:
        module: Of `benches`.
        request: Its settings.
        name: What people call it.
    """
    return Training(name, (f"benches.{module}", json.dumps(request)), {})


def run_training(
    training: Training, folder: Path, *, threads: int, watch: Callable[[int], object] | None = None
) -> Moments:
    """Run a training to its end.

    Args:
        training: What runs.
        folder: That it runs in; it is made.
        threads: For computing.
        watch: Is called with the process's id again and again while it runs.

    Raises:
        BenchError: If it fails, or does not end.
    """
    folder.mkdir(parents=True)
    for name, text in training.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    own = {FILE: str(folder / "moments.jsonl"), "XDG_CACHE_HOME": str(folder / "cache")}
    environment = {**build_environment(threads), **own}
    log, started_s = folder / "log.txt", time.time()
    with log.open("wb") as output:
        code = _wait((sys.executable, "-m", *training.words), folder, environment, output, watch)
    if code:
        raise BenchError(
            f"{training.name} ended with"
            f" {code}:\n{log.read_text(encoding='utf-8', errors='replace').strip()[-2000:]}"
        )
    return read(folder / "moments.jsonl", started_s=started_s)


def _wait(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    output: Any,
    watch: Callable[[int], object] | None,
) -> int:
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT
    ) as process:
        give_up = time.monotonic() + _TIMEOUT_S
        try:
            while watch is not None and process.poll() is None and time.monotonic() < give_up:
                watch(process.pid)
                time.sleep(0.02)
            return process.wait(max(0.0, give_up - time.monotonic()))
        except subprocess.TimeoutExpired as error:
            raise BenchError(f"{' '.join(command)} has not ended after {_TIMEOUT_S:g} s") from error
        finally:
            # lightkit ends its own processes; where it has ended, nothing happens
            process.terminate()
