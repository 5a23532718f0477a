"""The process that starts the ranks: the launch that the config asks for, the run's records, the exit code."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

from lightkit import runs
from lightkit.cli.context import RunContext
from lightkit.config import mistake
from lightkit.errors import ConfigError, Interrupted, told_interruption
from lightkit.hardware import this_machine
from lightkit.launch import DATA_CHANGED, LaunchResult, Plan, Supervisor, plan_launch, this_rank
from lightkit.launch.supervisor import make_writer

__all__ = ["compute_job_digest", "make_plan", "require_srun", "supervise"]

_NEVER = "--run.resume=never"


def make_plan(session: RunContext) -> Plan | None:
    """Decide which processes are to be started; None if this process is the only one.

    Raises:
        ConfigError: If engine, strategy and numbers of processes do not fit.
    """
    if session.passthrough or session.print_config is not None:
        return None
    resolved, hardware = session.resolved, session.hardware
    processes = hardware.processes
    if processes is None and hardware.kind != "tpu":  # torch-xla forks its ranks itself, inside the trainer
        devices = hardware.devices  # of Lightning's own launcher, as far as they are known without torch
        if isinstance(devices, tuple):
            processes = len(devices)
        elif isinstance(devices, int) and devices > 0:
            processes = devices
        elif hardware.kind in (None, "gpu"):
            processes = len(this_machine().gpus or ()) or None
    origin = None
    for section, key in (("launch", "engine"), ("launch", "processes"), ("launch", "hosts"), ("trainer", "strategy")):
        block = resolved.values.get(section)
        if origin is None and isinstance(block, dict) and block.get(key) is not None:
            origin = resolved.origin_of(f"{section}.{key}")
    return plan_launch(
        session.launch,
        strategy=hardware.strategy,
        processes=processes,
        uses_gpus=hardware.kind == "gpu",
        origin=origin,
    )


def require_srun(session: RunContext) -> None:
    """Check that a config for the ranks of a Slurm job is not trained by one process alone.

    Raises:
        ConfigError: If `srun` has not started this process.
    """
    if session.launch.engine == "slurm" and session.command == "fit" and this_rank(os.environ) is None:
        raise mistake(
            "launch.engine: slurm: the ranks are started by srun, which is not the case here; say lightkit submit "
            "with the same words, or another launch.engine",
            session.resolved.origin_of("launch.engine"),
        )


def supervise(session: RunContext, plan: Plan) -> int:
    """Start all ranks and return the exit code of the launch.

    Raises:
        ConfigError: If the run's folder cannot be written, or images are to come on standard input.
    """
    if "-" in session.inputs:
        raise ConfigError(
            "-: standard input has the images, and the processes that predict are started without it. Write the paths "
            "to a table such as list.csv, or predict in one process, with --trainer.devices=1."
        )
    root = session.base.root if session.base else Path((session.resolved.values.get("run") or {}).get("root") or "runs")
    words, num_cores = [session.command, *session.words], this_machine().cores or 1
    try:
        supervisor = Supervisor(plan, words, root=root, num_cores=num_cores, job=compute_job_digest(session))
    except OSError as error:
        raise ConfigError(
            f"run.root: cannot write {root}: {error.strerror or error}. Set run.root to a folder that can be written."
        ) from error
    try:
        result = supervisor.run()
        announced = supervisor.newest_run()
        run = None
        if announced is not None and Path(announced["folder"]).is_dir():
            run = runs.open_run(announced["folder"])
        signum = supervisor.signum
        if signum is not None and (result.code not in (0, 75) or (signum == signal.SIGHUP and result.code == 75)):
            checkpoint = None if run is None else runs.last_good(run.checkpoints, report=lambda _: None)
            interruption = Interrupted(signum, checkpoint=checkpoint)
            result = LaunchResult(interruption.exit_code, told_interruption(interruption), f"signal {signum}")
        mask = session.resolved.masked
        result = replace(
            result,
            message=None if result.message is None else mask(result.message),
            summary=None if result.summary is None else mask(result.summary),
        )
        if result.kind == DATA_CHANGED and _NEVER not in session.words:
            session.tell(str(result.message).splitlines()[0].removeprefix("error: "))
            return supervise(replace(session, words=[*session.words, _NEVER]), plan)
        session.notifier.words = result.message or ""
        if result.message:
            needs_logs = run is not None and result.code not in (2, 3, 75, 129, 130, 143)
            logs = f"logs  {run.folder / 'logs'}\n" if run is not None and needs_logs else ""
            sys.stderr.flush()
            make_writer(sys.stderr.buffer)(f"{result.message}\n{logs}".encode(errors="replace"))
        if run is not None:
            try:
                _keep_launcher_logs(supervisor, run)
                _close_records(run, result)
            except OSError as error:  # a full disk is no reason to hide how the ranks ended
                print(f"warning: {run.folder} cannot be completed: {error.strerror or error}", file=sys.stderr)
    finally:
        supervisor.remove()
    return result.code


def compute_job_digest(session: RunContext) -> str:
    """Compute the digest of a job and its config, which tells it from others with the same rendezvous.

    It is the same on all machines, which may differ in the `launch` block and in the path of the folder of all runs.
    """
    resolved = session.resolved
    saved = resolved.with_references(resolved.values)
    own = {key: value for key, value in saved.items() if key != "launch"}
    own["run"] = {key: value for key, value in (saved.get("run") or {}).items() if key != "root"}
    own["run"]["name"] = own["run"].get("name") or session.default_name
    text = json.dumps([session.command, session.ckpt_path, own], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _keep_launcher_logs(supervisor: Supervisor, run: runs.Run) -> None:
    logs = {"launcher.log": supervisor.launcher_log}
    logs |= {name: supervisor.store.folder / name for name in ("spark.log", "ray.log")}
    for name, log in logs.items():
        if log.is_file() and log.stat().st_size:
            (run.folder / "logs").mkdir(exist_ok=True)
            shutil.copyfile(log, run.folder / "logs" / name)


def _close_records(run: runs.Run, result: LaunchResult) -> None:
    """Write the end of the run if rank 0, which writes the records, was killed."""
    summary = runs.Summary.read(run.summary_path)
    if summary is None or summary.status == "done" or result.code == 0:
        return
    if summary.status == "running" or (result.rank != 0 and result.summary):
        ends = {75: "preempted", **dict.fromkeys((129, 130, 143), "interrupted")}
        summary.status, summary.exit_code = ends.get(result.code, "failed"), result.code
        summary.error = result.summary
        summary.write(run.summary_path)
