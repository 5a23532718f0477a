"""A small program that stands for lightkit as a rank, and what starts driver programs with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightkit.launch.job import Job
from tests.cli.commands import Ended, ended, processes_of

RANK = '''
"""A rank that adds up the ranks of all and writes down what it sees."""

import json
import os
import sys
import time


def main(words=None):
    import torch

    words = sys.argv[1:] if words is None else words
    if "HOROVOD_RANK" in os.environ:
        import horovod.torch as hvd

        hvd.init()
        rank, total = hvd.rank(), hvd.allreduce(torch.tensor(1.0 + hvd.rank()), op=hvd.Sum).item()
    else:
        import torch.distributed as dist

        begins_group = not dist.is_initialized()
        if begins_group:
            dist.init_process_group("gloo")
        rank, total = dist.get_rank(), torch.tensor(1.0 + dist.get_rank())
        dist.all_reduce(total)
        total = total.item()
        if begins_group:
            dist.destroy_process_group()
    kept = ("OMP_NUM_THREADS", "_LIGHTKIT_LAUNCH", "_LIGHTKIT_ENGINE", "_LIGHTKIT_ATTEMPT", "CUDA_VISIBLE_DEVICES",
            "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "TORCHELASTIC_RUN_ID")
    seen = {name: os.environ.get(name) for name in kept}
    seen |= {"total": total, "words": words, "pid": os.getpid(), "folder": os.getcwd()}
    attempt = os.environ.get("_LIGHTKIT_ATTEMPT", "0")
    with open(f"rank-{rank}-{attempt}.json.new", "w") as file:
        json.dump(seen, file)
    os.rename(file.name, file.name.removesuffix(".new"))
    if f"fail={rank}" in words:
        print(f"rank {rank} is out of stock", file=sys.stderr)
        return 3
    if "wait" in words and attempt == "0":
        time.sleep(300)
    return 0


if __name__ == "__main__":
    sys.exit(main())
'''


def job(folder: Path, *words: str, **settings: Any) -> Job:
    """A job of two ranks of the stand-in."""
    program = folder / "standin"
    program.mkdir(parents=True, exist_ok=True)
    (program / "__init__.py").touch()
    (program / "__main__.py").write_text(RANK, encoding="utf-8")
    defaults = {"processes": 2, "strategy": "ddp", "folder": str(folder), "timeout_s": 180.0, "program": "standin"}
    environment = {"_LIGHTKIT_LAUNCH": str(folder / "launch"), "PYTHONPATH": str(folder)}
    return Job(words=list(words), environment=environment, **{**defaults, "storage": str(folder / "ray"), **settings})


@contextmanager
def driver(engine: str, asked: Job, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """Start a driver program; what is left of its session at the end is killed."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **environ}
    command = [sys.executable, "-m", f"lightkit.launch.{engine}", asked.to_json()]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=variables, start_new_session=True, **pipes) as process:
        try:
            yield process
        finally:
            for pid in {*processes_of(process.pid), *marked(asked)}:
                os.kill(pid, signal.SIGKILL)
            if process.poll() is None:
                process.kill()


def drive(engine: str, asked: Job, timeout_s: float = 240, **environ: str) -> Ended:
    """Run a driver program to its end."""
    with driver(engine, asked, **environ) as process:
        end = ended(process, timeout_s)
        assert marked(asked) == []
        return end


def marked(asked: Job) -> list[int]:
    """Living processes of a job: they name it on their command line, or in their environment."""
    found = []
    mark = str(asked.launch).encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            named = mark in (folder / "cmdline").read_bytes() or mark in (folder / "environ").read_bytes()
            state = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
        except OSError:
            continue
        if named and state not in "ZX":
            found.append(int(folder.name))
    return found


def seen(folder: Path, rank: int, attempt: int = 0) -> dict[str, Any]:
    """What a rank of the stand-in wrote down."""
    content: dict[str, Any] = json.loads((folder / f"rank-{rank}-{attempt}.json").read_text(encoding="utf-8"))
    return content
