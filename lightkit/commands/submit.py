"""`lightkit submit`: a fit as a batch job of Slurm."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from lightkit.cli.command_line import Invocation
from lightkit.cli.command_table import parse
from lightkit.cli.stage_config import StageConfig
from lightkit.cli.stage_runner import add_words, count_devices, make_plan, open_stage_config
from lightkit.config import Hardware, error_at, read_scalar, shown_path
from lightkit.config.secrets import mask_line
from lightkit.errors import ConfigError
from lightkit.launch.slurm import batch_script, submit


def submit_fit(invocation: Invocation) -> int:
    """Submit `lightkit fit` with these arguments, or print its script, and return the exit code.

    Raises:
        ConfigError: If the config is wrong, or Slurm cannot run it.
    """
    fit = parse(["fit", *(word for word in invocation.words if word != "--dry-run")])
    # The flag: what the config asks for must be on the cluster's machines, not on this one.
    stage_config = open_stage_config(add_words(fit, "--launch.engine=slurm"))
    _refuse_secrets(fit.words)
    script, output = _make_script(stage_config, fit.words)
    if invocation.has("dry-run"):
        print(script, end="")
        return 0
    number = submit(script, output=Path(output))
    print(f"job   {number}\nlog   {shown_path(Path(output.replace('%j', number)))}")
    return 0


def _refuse_secrets(words: Sequence[str]) -> None:
    """Refuse a command line with a secret in it.

    Raises:
        ConfigError: If it has one.
    """
    pairs = [
        f"{word}={following}"
        for word, following in itertools.pairwise(words)
        if word.startswith("--")
    ]
    for word in (*words, *pairs):
        if mask_line(word) != word:
            raise ConfigError(
                f"submit: {mask_line(word)}: Slurm keeps the command line, and shows it to others;"
                " write ${oc.env:NAME} there, and set that variable where the job runs"
            )


def _make_script(stage_config: StageConfig, words: Sequence[str]) -> tuple[str, str]:
    """Write the batch script; return it with the file that takes its output."""
    make_plan(stage_config)  # refuses what Slurm cannot start
    name = stage_config.job_name
    fewest, nodes = stage_config.launch.num_nodes
    if fewest != nodes:
        raise error_at(
            "launch.nodes: Slurm gives a fixed number of machines, got"
            f" {stage_config.launch.nodes!r}",
            stage_config.resolved.origin_of("launch.nodes"),
        )
    num_nodes = read_scalar(stage_config.resolved.section("trainer").get("num_nodes"))
    hardware = stage_config.hardware
    processes = stage_config.launch.processes or _count_processes(hardware)
    output = str(stage_config.run_root / name / "slurm-%j.out")
    own = {
        "job-name": name,
        "nodes": num_nodes if nodes == 1 and isinstance(num_nodes, int) else nodes,
        "ntasks-per-node": processes,
        "cpus-per-task": stage_config.launch.threads,
        "gres": f"gpu:{processes}" if hardware.kind == "gpu" else None,
        "chdir": str(Path.cwd()),
        "output": output,
    }
    return batch_script(["fit", *words], own, stage_config.launch.slurm or {}), output


def _count_processes(hardware: Hardware) -> int:
    """Return the number of processes of each machine, of which each has one device.

    Raises:
        ConfigError: If it is not known here.
    """
    processes = count_devices(hardware)
    if processes is not None:
        return processes
    if hardware.devices in (None, "auto") and hardware.kind != "gpu":
        return 1
    raise ConfigError(
        "submit: how many processes each machine runs is not known here, for the devices are"
        f" {hardware.devices!r}; say launch.processes"
    )
