"""The process that starts the ranks: what it decides from the config, and how it tells the end."""

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
from lightkit.cli.joining import DATA_CHANGED
from lightkit.config import Hardware, Resolved, mistake
from lightkit.errors import ConfigError, Interrupted, told_interruption
from lightkit.hardware import this_machine
from lightkit.launch import Plan, Supervisor, Verdict, plan_launch, this_rank, writer

__all__ = ["job_digest", "plan_of", "refuse_unsubmitted", "supervise"]

_NEVER = "--run.resume=never"


def plan_of(session: RunContext) -> Plan | None:
    """Decide what has to be started; None where this process is all.

    Raises:
        ConfigError: If engine, strategy and numbers of processes do not go together.
    """
    if session.passthrough or session.print_config is not None:
        return None
    resolved, hardware = session.resolved, session.hardware
    processes = hardware.processes
    if processes is None and hardware.kind != "tpu":  # torch-xla forks its ranks itself, inside the trainer
        processes = _local_processes(hardware)
    return plan_launch(
        session.launch,
        strategy=hardware.strategy,
        processes=processes,
        uses_gpus=hardware.kind == "gpu",
        origin=next(
            (
                origin
                for key in ("launch.engine", "launch.processes", "launch.hosts", "trainer.strategy")
                if (origin := resolved.origin_of(key)) is not None and _is_said(resolved, key)
            ),
            None,
        ),
    )


def refuse_unsubmitted(session: RunContext) -> None:
    """Do not train alone what was meant for the ranks of a Slurm job.

    Raises:
        ConfigError: If that is the case.
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
    cores = this_machine().cores or 1
    try:
        supervisor = Supervisor(
            plan, [session.command, *session.words], root=root, num_cores=cores, job=job_digest(session)
        )
    except OSError as error:
        raise ConfigError(
            f"run.root: cannot write {root}: {error.strerror or error}. Set run.root to a folder that can be written."
        ) from error
    try:
        verdict = supervisor.run()
        told = supervisor.newest_run()
        run = None if told is None or not Path(told["folder"]).is_dir() else runs.open_run(told["folder"])
        signum = supervisor.signum
        if signum is not None and (verdict.code not in (0, 75) or (signum == signal.SIGHUP and verdict.code == 75)):
            interruption = _interrupted(signum, run)
            verdict = Verdict(interruption.exit_code, told_interruption(interruption), f"signal {interruption.signum}")
        verdict = replace(verdict, words=_masked(verdict.words, session), summary=_masked(verdict.summary, session))
        if verdict.kind == DATA_CHANGED and _NEVER not in session.words:
            session.tell(str(verdict.words).splitlines()[0].removeprefix("error: "))
            return supervise(replace(session, words=[*session.words, _NEVER]), plan)
        session.notifier.words = verdict.words or ""
        _tell(verdict, run)
        if run is not None:
            _keep_records(supervisor, run, verdict)
    finally:
        supervisor.remove()
    return verdict.code


def job_digest(session: RunContext) -> str:
    """Tell a job and its config from others that may meet at the same place at another time.

    It is the same on all machines, which may differ in the `launch` block and in the path of the folder of all runs.
    """
    resolved = session.resolved
    saved = resolved.with_references(resolved.values)
    own = {key: value for key, value in saved.items() if key != "launch"}
    own["run"] = {key: value for key, value in (saved.get("run") or {}).items() if key != "root"}
    own["run"]["name"] = own["run"].get("name") or session.default_name
    told = json.dumps([session.command, session.ckpt_path, own], sort_keys=True, default=str)
    return hashlib.sha256(told.encode()).hexdigest()[:12]


def _tell(verdict: Verdict, run: runs.Run | None) -> None:
    if not verdict.words:
        return
    words = f"{verdict.words}\n"
    if run is not None and verdict.code not in (2, 3, 75, 129, 130, 143):
        words += f"logs  {run.folder / 'logs'}\n"
    sys.stderr.flush()
    writer(sys.stderr.buffer)(words.encode(errors="replace"))


def _masked(text: str | None, session: RunContext) -> str | None:
    return None if text is None else session.resolved.masked(text)


def _keep_records(supervisor: Supervisor, run: runs.Run, verdict: Verdict) -> None:
    try:
        _keep_launcher_logs(supervisor, run)
        _close_records(run, verdict)
    except OSError as error:  # a full disk is no reason to hide how the ranks ended
        print(f"warning: {run.folder} cannot be completed: {error.strerror or error}", file=sys.stderr)


def _local_processes(hardware: Hardware) -> int | None:
    """Number of processes that Lightning's own launcher starts here, as far as it is known without torch."""
    devices = hardware.devices
    if isinstance(devices, tuple):
        return len(devices)
    if isinstance(devices, int) and devices > 0:
        return devices
    return len(this_machine().gpus or ()) or None if hardware.kind in (None, "gpu") else None


def _is_said(resolved: Resolved, key: str) -> bool:
    section, name = key.split(".")
    value = resolved.values.get(section)
    return isinstance(value, dict) and value.get(name) is not None


def _keep_launcher_logs(supervisor: Supervisor, run: runs.Run) -> None:
    logs = {"launcher.log": supervisor.launcher_log}
    logs |= {name: supervisor.board.folder / name for name in ("spark.log", "ray.log")}
    for name, log in logs.items():
        if log.is_file() and log.stat().st_size:
            (run.folder / "logs").mkdir(exist_ok=True)
            shutil.copyfile(log, run.folder / "logs" / name)


def _close_records(run: runs.Run, verdict: Verdict) -> None:
    """Say in the records how the run has ended where rank 0, which writes them, was killed."""
    summary = runs.Summary.read(run.summary_path)
    if summary is None or summary.status == "done" or verdict.code == 0:
        return
    if summary.status == "running" or (verdict.rank != 0 and verdict.summary):
        ends = {75: "preempted", **dict.fromkeys((129, 130, 143), "interrupted")}
        status = ends.get(verdict.code, "failed")
        summary.status, summary.exit_code, summary.error = status, verdict.code, verdict.summary
        summary.write(run.summary_path)


def _interrupted(signum: int, run: runs.Run | None) -> Interrupted:
    checkpoint = None if run is None else runs.last_good(run.checkpoints, report=lambda _: None)
    return Interrupted(signum, checkpoint=checkpoint)
