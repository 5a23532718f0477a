"""`lightkit submit`: a fit as a batch job of Slurm."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from lightkit.cli.context import RunContext
from lightkit.cli.full_validation import open_context
from lightkit.cli.supervision import make_plan
from lightkit.config import mistake, read_scalar, shown_path
from lightkit.config.credentials import mask_line
from lightkit.errors import ConfigError
from lightkit.launch.slurm import SlurmJob, batch_script, submit
from lightkit.runs.signals import SignalWatch

__all__ = ["submit_fit"]

_HELP = """\
usage: lightkit submit -c FILE... [--dry-run] [--key=value]... [key=value]...

Put lightkit fit with the same words into the queue of Slurm, one task for each process. A job that is preempted, or
reaches its time limit, saves, goes back into the queue and resumes.

  --dry-run                    print the batch script and do not submit it
  --launch.nodes=N             machines
  --launch.processes=N         processes on each machine; default: its devices
  --launch.threads=N           cores of each process
  --launch.slurm.OPTION=VALUE  options of sbatch: partition, time, account, mem, ...

lightkit submit -c configs/flowers.yaml --launch.slurm.time=2:00:00
"""


def submit_fit(words: list[str]) -> int:
    """Submit `lightkit fit` with these words, or print its script, and return the exit code.

    Raises:
        ConfigError: If the config is wrong, or Slurm cannot run it.
    """
    if {"-h", "--help"} & {*words}:
        print(_HELP, end="")
        return 0
    is_dry = "--dry-run" in words
    words = [word for word in words if word != "--dry-run"]
    # The flag: what the config asks for must be on the cluster's machines, not on this one.
    session = open_context("fit", [*words, "--launch.engine=slurm"], SignalWatch())
    script = batch_script(job := _job(session, words))
    if is_dry:
        print(script, end="")
        return 0
    (Path(job.folder) / job.output).parent.mkdir(parents=True, exist_ok=True)  # Slurm makes no folders
    number = submit(script)
    print(f"job   {number}\nlog   {shown_path(Path(job.output.replace('%j', number)))}")
    return 0


def _job(session: RunContext, words: list[str]) -> SlurmJob:
    _refuse_secrets(words)
    make_plan(session)  # refuses what Slurm cannot start
    run = session.resolved.values.get("run") or {}
    name = str(run.get("name") or session.default_name)
    root = Path(run.get("root") or "runs")
    return SlurmJob(
        words=["fit", *words],
        name=name,
        folder=str(Path.cwd()),
        output=str(root / name / "slurm-%j.out"),
        nodes=_nodes(session),
        processes=_processes(session),
        threads=session.launch.threads,
        gpus=session.hardware.kind == "gpu",
        options=session.launch.slurm or {},
    )


def _refuse_secrets(words: list[str]) -> None:
    """Keep secrets out of the batch script, which Slurm stores and shows."""
    pairs = [f"{word}={following}" for word, following in itertools.pairwise(words) if word.startswith("--")]
    said = next((word for word in (*words, *pairs) if mask_line(word) != word), None)
    if said is not None:
        raise ConfigError(
            f"submit: {mask_line(said)}: Slurm keeps the command line, and shows it to others; write ${{oc.env:NAME}} "
            f"there, and set that variable where the job runs"
        )


def _nodes(session: RunContext) -> int:
    fewest, most = session.launch.num_nodes
    if fewest != most:
        raise mistake(
            f"launch.nodes: Slurm gives a fixed number of machines, got {session.launch.nodes!r}",
            session.resolved.origin_of("launch.nodes"),
        )
    given = _of_trainer(session, "num_nodes")
    return given if most == 1 and isinstance(given, int) else most


def _processes(session: RunContext) -> int:
    """Processes on each machine: each has one device."""
    if session.launch.processes is not None:
        return session.launch.processes
    devices = _of_trainer(session, "devices")
    if isinstance(devices, list):
        return len(devices)
    if isinstance(devices, int) and devices > 0:
        return devices
    if devices in (None, "auto", 1) and session.hardware.kind != "gpu":
        return 1
    raise ConfigError(
        f"submit: how many processes each machine runs is not known here, for the devices are {devices!r}; "
        f"say launch.processes"
    )


def _of_trainer(session: RunContext, key: str) -> Any:
    value = (session.resolved.values.get("trainer") or {}).get(key)
    return read_scalar(value) if isinstance(value, str) else value  # a flag's value is text
