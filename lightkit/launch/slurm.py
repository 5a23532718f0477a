"""Batch scripts for Slurm.

They start one rank a task and put a job that was preempted back into the queue.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightkit.errors import ConfigError, LightkitError

_DECIDED = {
    "nodes": "launch.nodes",
    "ntasks": "launch.processes, the processes of each node",
    "ntasks-per-node": "launch.processes",
    "cpus-per-task": "launch.threads",
    "job-name": "run.name",
}
# pytorch-lightning 2.6: SLURMEnvironment leaves jobs of these names alone
_NOT_DETECTED = ("bash", "interactive")
_WORDS = {"true": True, "false": False, "null": None}
_SCRIPT = """\
#!/bin/bash
{options}

export OMP_NUM_THREADS="${{SLURM_CPUS_PER_TASK:-1}}"
export SRUN_CPUS_PER_TASK="${{SLURM_CPUS_PER_TASK:-1}}"  # since Slurm 22.05 srun \
does not ask sbatch
export _LIGHTKIT_PREEMPTED="{place}/slurm-$SLURM_JOB_ID.preempted"

# Whether so many of the nodes answer, this one first. Slurm needs minutes to notice that one \
is gone, by when the ranks
# of the others have failed.
answers() {{
  timeout 120 srun --overlap --nodelist="$SLURMD_NODENAME" --nodes="$1" \
--ntasks="$1" --ntasks-per-node=1 true
}}

# A rank that ends first leaves the others time to save.
srun --kill-on-bad-exit=0 --wait=120 {command}
code=$?
if [ -e "$_LIGHTKIT_PREEMPTED" ]; then  # there is a checkpoint that the same command resumes
  rm "$_LIGHTKIT_PREEMPTED"
  scontrol requeue "$SLURM_JOB_ID"
elif [ "$code" -ne 0 ] && [ "$SLURM_NNODES" -gt 1 ] && answers 1 && ! answers "$SLURM_NNODES"; then
  echo "a node of this job does not answer any more, so the job goes back into the queue"
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""


def batch_script(words: Sequence[str], own: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """Write the script that `sbatch` takes.

    Args:
        words: Command line after `lightkit`.
        own: Options of `sbatch` by their long names that other keys of the config decide:
            ``job-name``, ``output``, ...
        options: Further ones, such as `{"time": "2:00:00", "exclusive": True}`; null or false
            leaves one of lightkit's own away.

    Raises:
        ConfigError: If an option is lightkit's to decide, or has no value that fits on a line.
    """
    if own["job-name"] in _NOT_DETECTED:
        raise ConfigError(
            f"run.name: a job named {own['job-name']!r} counts as"
            " interactive: Lightning trains it alone"
        )
    given = {str(key).replace("_", "-"): _read_word(value) for key, value in options.items()}
    if decided := [key for key in given if key in _DECIDED]:
        raise ConfigError(f"launch.slurm.{decided[0]}: is set by {_DECIDED[decided[0]]}")
    all_options = {
        **own,
        "open-mode": "append",  # else the log of a job that is put back begins anew
        "signal": "USR1@120",  # two minutes before the end each rank saves and ends with code 75
        "requeue": True,
        **({"gres": None} if given.keys() & {"gpus", "gpus-per-node"} else {}),
        **given,
    }
    lines = []
    for key, value in all_options.items():
        if not isinstance(value, str | int | float | None) or "\n" in str(value):
            raise ConfigError(
                f"launch.slurm.{key}: expected one line of text, a number, or true, got {value!r}"
            )
        if value is not None and value is not False:
            lines.append(
                f"#SBATCH --{key}"
                if value is True
                else f"#SBATCH --{key}={shlex.quote(str(value))}"
            )
    command = shlex.join([sys.executable, "-m", "lightkit", *words])
    return _SCRIPT.format(
        options="\n".join(lines), command=command, place=Path(own["output"]).parent
    )


def _read_word(value: Any) -> Any:
    """Return true, false or null for its word, as a flag has it; any other value as it is."""
    return _WORDS.get(value, value) if isinstance(value, str) else value


def submit(script: str, *, output: Path) -> str:
    """Hand a script to `sbatch` and return the job's number.

    Args:
        script: The batch script.
        output: File that takes its output; Slurm makes no folders, so that its folder is made here.

    Raises:
        ConfigError: If there is no `sbatch` here.
        LightkitError: If it refuses.
    """
    if shutil.which("sbatch") is None:
        raise ConfigError(
            "submit: there is no sbatch on the PATH; run this on a login node of the Slurm cluster,"
            " or print the script with --dry-run"
        )
    output.parent.mkdir(parents=True, exist_ok=True)
    ended = subprocess.run(
        ["sbatch", "--parsable"], input=script, capture_output=True, text=True, check=False
    )
    if ended.returncode != 0:
        raise LightkitError(
            f"sbatch refuses the job (code {ended.returncode}): {ended.stderr.strip()}"
        )
    return ended.stdout.strip().partition(";")[0]  # NUMBER;CLUSTER where there are several
