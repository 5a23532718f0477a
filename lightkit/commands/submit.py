"""`lightkit submit`: a fit as a batch job of Slurm."""

from __future__ import annotations

import itertools
from pathlib import Path

from lightkit.cli.context import RunContext
from lightkit.cli.stage_runner import count_devices, make_plan, open_context
from lightkit.config import error_at, read_scalar, shown_path
from lightkit.config.secrets import mask
from lightkit.errors import ConfigError
from lightkit.launch.slurm import batch_script, submit
from lightkit.runs.signals import SignalWatch

HELP = """\
usage: lightkit submit -c FILE... [--dry-run] [--key=value]... [key=value]...

Put lightkit fit with the same arguments into the queue of Slurm, one task for each process. A job that is preempted, or
reaches its time limit, saves, goes back into the queue and resumes.

  --dry-run                    print the batch script and do not submit it
  --launch.nodes=N             machines
  --launch.processes=N         processes on each machine; default: its devices
  --launch.threads=N           cores of each process
  --launch.slurm.OPTION=VALUE  options of sbatch: partition, time, account, mem, ...

lightkit submit -c configs/flowers.yaml --launch.slurm.time=2:00:00
"""


def submit_fit(args: list[str]) -> int:
    """Submit `lightkit fit` with these arguments, or print its script, and return the exit code.

    Raises:
        ConfigError: If the config is wrong, or Slurm cannot run it.
    """
    is_dry = "--dry-run" in args
    args = [word for word in args if word != "--dry-run"]
    # The flag: what the config asks for must be on the cluster's machines, not on this one.
    context = open_context("fit", [*args, "--launch.engine=slurm"], SignalWatch())
    pairs = [f"{word}={following}" for word, following in itertools.pairwise(args) if word.startswith("--")]
    if (secret := next((word for word in (*args, *pairs) if mask(word, is_line=True) != word), None)) is not None:
        raise ConfigError(
            f"submit: {mask(secret, is_line=True)}: Slurm keeps the command line, and shows it to others; write "
            f"${{oc.env:NAME}} there, and set that variable where the job runs"
        )
    script, output = _make_script(context, args)
    if is_dry:
        print(script, end="")
        return 0
    Path(output).parent.mkdir(parents=True, exist_ok=True)  # Slurm makes no folders
    number = submit(script)
    print(f"job   {number}\nlog   {shown_path(Path(output.replace('%j', number)))}")
    return 0


def _make_script(context: RunContext, args: list[str]) -> tuple[str, str]:
    """Write the batch script; return it with the file that takes its output."""
    make_plan(context)  # refuses what Slurm cannot start
    name = context.job_name
    fewest, nodes = context.launch.num_nodes
    if fewest != nodes:
        raise error_at(
            f"launch.nodes: Slurm gives a fixed number of machines, got {context.launch.nodes!r}",
            context.resolved.origin_of("launch.nodes"),
        )
    num_nodes, devices = context.resolved.section("trainer").get("num_nodes"), context.hardware.devices
    num_nodes = read_scalar(num_nodes) if isinstance(num_nodes, str) else num_nodes  # a flag's value is text
    processes = context.launch.processes or count_devices(context.hardware)  # each has one device
    if processes is None and devices in (None, "auto") and context.hardware.kind != "gpu":
        processes = 1
    if processes is None:
        raise ConfigError(
            f"submit: how many processes each machine runs is not known here, for the devices are {devices!r}; "
            f"say launch.processes"
        )
    output = str(context.run_root / name / "slurm-%j.out")
    own = {
        "job-name": name,
        "nodes": num_nodes if nodes == 1 and isinstance(num_nodes, int) else nodes,
        "ntasks-per-node": processes,
        "cpus-per-task": context.launch.threads,
        "gres": f"gpu:{processes}" if context.hardware.kind == "gpu" else None,
        "chdir": str(Path.cwd()),
        "output": output,
    }
    return batch_script(["fit", *args], own, context.launch.slurm or {}), output
