"""Trainings in processes of their own that take turns.

Each computes some steps on request, and waits.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import psutil
import yaml

from benches.environment import build_environment
from benches.rounds import BenchError

BY_HAND, LIGHTNING_CLI, LIGHTKIT = "hand-written loop", "LightningCLI", "lightkit"
START_S, TURN_S, END_S = 180.0, 240.0, 60.0
PLAIN_CLI = (
    "import torch\nfrom pytorch_lightning.cli import"
    " LightningCLI\n\ntorch.set_num_threads({threads})\nLightningCLI()\n"
)


@dataclass(frozen=True)
class Job:
    """A training that every contestant does.

    Args:
        net: Its name.
        batch_size: Samples of a batch.
        image_size: Side of the images in pixels.
        seed: Of weights and data.
        threads: Intra-op threads of each process.
    """

    net: str
    batch_size: int = 32
    image_size: int = 224
    seed: int = 0
    threads: int = 1

    def write_command(
        self, contestant: str, folder: Path, *, config: Mapping[str, Any]
    ) -> list[str]:
        """Write what a contestant needs into a folder and return the command that trains.

        Args:
            contestant: `BY_HAND`, `LIGHTNING_CLI` or `LIGHTKIT`.
            folder: Where it runs.
            config: Sections of the config other than model and data.
        """
        if contestant == BY_HAND:
            numbers = (self.batch_size, self.image_size, self.seed, self.threads)
            return [sys.executable, "-m", "benches.held_batches", self.net, *map(str, numbers)]
        data = {
            "name": self.net,
            "batch_size": self.batch_size,
            "image_size": self.image_size,
            "seed": self.seed,
        }
        classes = {
            "model": {
                "class_path": "benches.held_batches_lightning.HeldModule",
                "init_args": {"name": self.net, "seed": self.seed},
            },
            "data": {"class_path": "benches.held_batches_lightning.HeldData", "init_args": data},
        }
        trainer = {"max_epochs": 1, "accelerator": "cpu", **config.get("trainer", {})}
        text = yaml.safe_dump({**classes, **config, "trainer": trainer})
        Path(folder, "bench.yaml").write_text(text, encoding="utf-8")
        if contestant == LIGHTKIT:
            return [sys.executable, "-m", "lightkit", "fit", "-c", "bench.yaml"]
        Path(folder, "plain.py").write_text(
            PLAIN_CLI.format(threads=self.threads), encoding="utf-8"
        )
        return [sys.executable, "plain.py", "fit", "-c", "bench.yaml"]


class Training:
    """A training whose processes have asked for leave.

    Args:
        name: Of the contestant.
        process: That was started.
        gates: A connection to each process that trains.
    """

    def __init__(
        self, name: str, process: subprocess.Popen[bytes], gates: Sequence[socket.socket]
    ) -> None:
        self.name, self.process = name, process
        self._gates = gates

    def time_steps(self, num_steps: int, *, clock: Literal["wall", "cpu"] = "wall") -> float:
        """Let it compute some steps, and return the seconds of the slowest process.

        Args:
            num_steps: That each process computes.
            clock: `wall` for elapsed seconds, `cpu` for the seconds that all threads have computed.

        Raises:
            BenchError: If it ends before, or takes too long.
        """
        self.begin(num_steps)
        return self.wait(clock=clock)

    def begin(self, num_steps: int) -> None:
        """Let it compute some steps; `wait` waits for their end."""
        for gate in self._gates:
            gate.sendall(f"{num_steps}\n".encode())

    def wait(self, *, clock: Literal["wall", "cpu"] = "wall") -> float:
        """Wait until the steps that were begun are done; as `time_steps`."""
        return max(_read_answer(gate, self.name)[clock] for gate in self._gates)

    def peak_bytes(self) -> int:
        """Return the most memory that its processes have held; as `measure_peak_bytes`."""
        return measure_peak_bytes(self.process.pid)

    def end(self) -> int:
        """Let it end as it would by itself, or kill it where that takes too long.

        Return its `peak_bytes` till then.
        """
        for gate in self._gates:
            with suppress(BrokenPipeError):  # it has ended before
                gate.sendall(b"0\n")
        peak, give_up = self.peak_bytes(), time.monotonic() + END_S
        while self.process.poll() is None:
            if time.monotonic() > give_up:
                print(
                    f"{self.name} did not end within {END_S:g} s of its last step and is killed",
                    file=sys.stderr,
                )
                break
            time.sleep(0.02)
            peak = max(peak, self.peak_bytes())
        return peak


def _read_answer(gate: socket.socket, name: str) -> dict[str, float]:
    gate.settimeout(TURN_S)
    line = b""
    while not line.endswith(b"\n"):
        try:
            part = gate.recv(4096)
        except TimeoutError as error:
            raise BenchError(f"{name} has not computed its steps after {TURN_S:g} s") from error
        if not part:
            raise BenchError(f"{name} has ended before its steps were done")
        line += part
    answer: dict[str, float] = json.loads(line)
    return answer


def measure_peak_bytes(pid: int) -> int:
    """Return the most memory that a process has held, and what its children hold by themselves.

    0 where it has ended.

    Args:
        pid: Of the process.
    """
    try:
        family = psutil.Process(pid)
        return _read_peak_bytes(family) + sum(
            _read_own_bytes(child) for child in family.children(recursive=True)
        )
    except (psutil.Error, OSError, StopIteration):
        # it has just ended: the kernel tells no more of it
        return 0


def _read_peak_bytes(process: psutil.Process) -> int:
    lines = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def _read_own_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().uss)
    except psutil.Error:  # it has just ended
        return 0


@contextmanager
def start_training(
    name: str,
    command: Sequence[str],
    folder: Path,
    *,
    num_ranks: int = 1,
    threads: int = 1,
    terminal: bool = False,
    environ: Mapping[str, str] | None = None,
) -> Iterator[Training]:
    """Start a training and wait until it asks for its first batch; end it afterwards.

    Args:
        name: Of the contestant.
        command: That trains.
        folder: Where it runs.
        num_ranks: Processes that train.
        threads: Intra-op threads of each.
        terminal: Whether it sees a terminal, which shows progress bars, or a file.
        environ: Variables in addition.

    Raises:
        BenchError: If it ends before it asks.
    """
    with ExitStack() as open_things:
        address = str(folder / "gate")
        door = open_things.enter_context(socket.socket(socket.AF_UNIX))
        door.bind(address)
        door.listen(num_ranks)
        output = open_things.enter_context(tempfile.TemporaryFile())
        screen = open_things.enter_context(_open_terminal(output)) if terminal else output.fileno()
        own = {
            "BENCH_GATE": address,
            **(environ or {}),
            **({"TERM": "xterm-256color"} if terminal else {}),
        }
        process = subprocess.Popen(
            command, cwd=folder, env={**build_environment(threads), **own},
            stdin=subprocess.DEVNULL, stdout=screen, stderr=screen, start_new_session=True,
        )  # fmt: skip
        open_things.callback(_kill, process)
        door.settimeout(0.2)
        gates: list[socket.socket] = []
        give_up = time.monotonic() + START_S
        while len(gates) < num_ranks:
            with suppress(TimeoutError):
                gates.append(open_things.enter_context(door.accept()[0]))
                continue
            if process.poll() is not None or time.monotonic() > give_up:
                output.seek(0)
                said = output.read().decode(errors="replace").strip()[-3000:]
                raise BenchError(f"{name} did not begin to train ({process.poll()}):\n{said}")
        yield Training(name, process, gates)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End what is left of a session of processes."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def _open_terminal(output: IO[bytes]) -> Iterator[int]:
    """Return a terminal whose screen nobody sees; what it shows goes into a file."""
    reader, screen = pty.openpty()
    # without a size, bars have no width
    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    over = threading.Event()

    def drain() -> None:
        while not over.is_set():
            if select.select([reader], [], [], 0.2)[0]:
                try:
                    output.write(os.read(reader, 65536))
                except OSError:  # nobody writes any more
                    return

    watcher = threading.Thread(target=drain)
    watcher.start()
    try:
        yield screen
    finally:
        over.set()
        watcher.join()
        os.close(screen)
        os.close(reader)


@contextmanager
def start_trainings(
    job: Job, contestants: Mapping[str, Mapping[str, Any]]
) -> Iterator[dict[str, Training]]:
    """Start all contestants of a job, one after the other, and end them together.

    Args:
        job: That they do.
        contestants: By name, which starts with contestant it is: ``config`` (sections of the
            config), ``terminal``, ``num_ranks``, ``environ`` (variables).
    """
    with ExitStack() as running:
        trainings = {}
        for number, (name, options_of) in enumerate(contestants.items()):
            folder = Path(
                running.enter_context(tempfile.TemporaryDirectory(prefix="lightkit-bench-"))
            )
            contestant = next(
                contestant
                for contestant in (BY_HAND, LIGHTNING_CLI, LIGHTKIT)
                if name.startswith(contestant)
            )
            command = job.write_command(contestant, folder, config=options_of.get("config", {}))
            print(
                f"{job.net}: starting {name} ({number + 1} of {len(contestants)})", file=sys.stderr
            )
            trainings[name] = running.enter_context(
                start_training(name, command, folder, num_ranks=options_of.get("num_ranks", 1),
                               threads=job.threads,
                         terminal=options_of.get("terminal", False),
                         environ=options_of.get("environ"))
            )  # fmt: skip
        yield trainings
        for each in trainings.values():
            each.end()
