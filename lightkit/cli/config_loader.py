"""Load the config of a command line.

Read arguments, merge layers, resolve settings for this machine. No torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from lightkit import config, runs
from lightkit.cli.command_line import Invocation
from lightkit.cli.command_table import STAGES
from lightkit.config.loader import Layers, read_layers, resolve_layers, resolve_section
from lightkit.config.packaged import PREFIX, find_config, packaged_configs
from lightkit.config.resolved import collect_errors, drop_paths, root_in
from lightkit.config.secret_values import drop_masked_addresses
from lightkit.config.tree import MappingNode, to_plain, walk
from lightkit.config.validation import check_sections
from lightkit.errors import ConfigError
from lightkit.export.formats import holds_weights_alone
from lightkit.hardware import Machine, this_machine
from lightkit.launch.plan import LaunchSettings, check_engine, read_settings
from lightkit.launch.ranks import this_rank
from lightkit.registry.gate import read_gate
from lightkit.sweep.settings import read_sweep


@dataclass(frozen=True, kw_only=True)
class LoadedConfig:
    """A command line and its config, on any machine.

    Args:
        invocation: The command line, parsed.
        resolved: The merged config.
        base: Run that `--run` names.
    """

    invocation: Invocation
    resolved: config.Resolved
    base: runs.Run | None = None

    @property
    def default_name(self) -> str:
        """Name of the job where the config has none.

        It is that of the base run, or of the first config file.
        """
        if self.base is not None:
            return self.base.name
        for file in self.invocation.files:
            if not is_yaml_text(file):
                return Path(file.removeprefix(PREFIX)).stem
        return "default"

    @property
    def job_name(self) -> str:
        """Name of the job."""
        return str(self.resolved.section("run").get("name") or self.default_name)


def is_yaml_text(file: str) -> bool:
    """Return whether the value of ``-c`` is YAML text and not a file, as jsonargparse takes."""
    return file.lstrip().startswith("{") or "\n" in file


def spawns(strategy: Any) -> bool:
    """Return whether a trainer's strategy starts its processes by `torch.multiprocessing`.

    The trainer starts them, and no launcher.
    """
    arguments = strategy.get("init_args") if hasattr(strategy, "get") else None
    name = runs.find_value(arguments, "start_method") if arguments is not None else strategy
    return str(name).partition("_find_")[0] in (
        "spawn",
        "fork",
        "forkserver",
        "ddp_spawn",
        "ddp_fork",
        "ddp_notebook",
    )


def load_config(
    invocation: Invocation,
    problems: config.Problems,
    *,
    class_sections: Sequence[str] = config.CLASS_SECTIONS,
    subcommands: Sequence[str] = STAGES,
    environ: Mapping[str, str] = os.environ,
) -> LoadedConfig:
    """Merge all layers that a command line names.

    Args:
        invocation: The command line. The block of its command in a file applies; its command is
            empty in a script that runs none.
        problems: Collects the errors; the config is what is left without them.
        class_sections: Top-level keys that hold one class each.
        subcommands: All commands.
        environ: Environment variables.

    Raises:
        ConfigError: If `--run` names no run.
    """
    for error in invocation.errors:
        with problems.noted(leaves_gap=True):  # the word may have been meant for a file
            raise error
    command = invocation.command
    reference = _find_reference(invocation)
    with TemporaryDirectory(prefix="lightkit-") as folder:
        # Read the layers, each file once.
        files = list(_list_files(invocation.files, Path(folder), problems))
        found = config.Problems()
        layers = read_layers(
            files,
            flags=invocation.overrides,
            environ=environ,
            subcommand=command,
            subcommands=subcommands,
            problems=found,
        )

        # Put them over the config of the run.
        base: runs.Run | None = None
        if reference is not None:
            if command == "fit":
                raise ConfigError(
                    "fit takes no --run; to continue in a run's folder, use --run.resume=RUN"
                )
            reasons = config.Problems()
            reasons.include(found)
            section = resolve_section(
                layers, "run", environ=environ, class_sections=class_sections, problems=reasons
            )
            try:
                base = _find_base(reference, section)
            except ConfigError:
                _add_reasons(problems, reasons, section)
                raise
            saved = _read_base(reference, base, problems)
            layers = layers.put_over(saved)
            files = [*(file for file, _ in saved.files), *files]

        problems.include(found)
        resolved = resolve_layers(
            layers,
            environ=environ,
            files=files,
            subcommand=command,
            class_sections=class_sections,
            problems=problems,
        )
    if base is not None:
        resolved = replace(resolved, tree=drop_masked_addresses(resolved.tree))
    return LoadedConfig(invocation=invocation, resolved=resolved, base=base)


def _find_base(reference: str, section: MappingNode) -> runs.Run:
    """Find the run that ``--run`` names, below the folder that the layers over it name.

    Args:
        reference: The run.
        section: Tree with the section `run` of the layers.

    Raises:
        ConfigError: If there is no such run.
    """
    run = to_plain(section.entries.get("run"))
    settings = run if isinstance(run, dict) else {}
    return runs.find(reference, root_in(settings), settings.get("name"))


def _add_reasons(problems: config.Problems, found: config.Problems, section: MappingNode) -> None:
    """Add the errors that may be why a run is not there.

    The layers may refer to values of the run, and set arguments of its entries: what else is wrong
    with them is known once they are merged over it.

    Args:
        problems: Takes the errors.
        found: Errors of the layers as they were read, and of their section `run`.
        section: Tree with that section.
    """
    places = {node.origin for path, node in walk(section) if path[:1] == ("run",)}
    for problem in found:
        if found.is_incomplete or not places.isdisjoint(problem.places):
            problems.add(problem)


def _read_base(reference: str, base: runs.Run, problems: config.Problems) -> Layers:
    """Read the config of the run that ``--run`` names.

    With the layer for one process, where the run's processes are on several machines.

    Raises:
        ConfigError: If there is none, or it cannot be read.
    """
    if not base.config_path.is_file():
        raise ConfigError(
            f"--run {reference}: {base.folder} has no config.yaml; it is not a run of lightkit"
        )
    found = config.Problems()
    layers = read_layers([base.config_path], problems=found)
    found.raise_any()
    if any(_needs_several_machines(part) for _, parts in layers.files for part in parts):
        one_process = [packaged_configs()["accelerator/one_process"]]
        layers = read_layers(one_process, problems=found).put_over(layers)
    problems.include(found)
    return layers


def _list_files(files: Iterable[str], folder: Path, problems: config.Problems) -> Iterator[Path]:
    """List the files of ``-c``; YAML text in place of one is written into ``folder``."""
    for number, file in enumerate(files):
        if is_yaml_text(file):
            path = folder / f"command-line-{number}.yaml"
            path.write_text(file, encoding="utf-8")
            yield path
            continue
        with problems.noted(leaves_gap=True):
            yield Path(find_config(file))


def _find_reference(invocation: Invocation) -> str | None:
    """Return the run that ``--run`` names.

    Weights in the ``export`` folder of a run name that run.

    Raises:
        ConfigError: If weights are elsewhere, and no key says which module they are for.
    """
    if invocation.has("run"):
        return str(invocation.options["run"])
    weights = str(invocation.options.get("model", ""))
    if invocation.files or not holds_weights_alone(weights):
        return None
    folder = Path(weights).resolve().parent
    if folder.name == "export" and (folder.parent / "config.yaml").is_file():
        return str(folder.parent)
    if any(flag.key.partition(".")[0] == "model" for flag in invocation.overrides):
        return None
    raise ConfigError(
        f"--model {weights}: this file has weights only; name their module with --run or -c."
    )


def _needs_several_machines(saved: MappingNode) -> bool:
    """Check whether a run's config starts processes on other machines, too."""
    values = to_plain(saved)
    launch = runs.find_value(values, "launch")
    if runs.find_value(launch, "engine") in ("spark", "ray", "slurm"):
        return True
    if runs.find_value(launch, "hosts") or runs.find_value(launch, "slurm"):
        return True
    counts = (runs.find_value(launch, "nodes"), runs.find_value(values, "trainer", "num_nodes"))
    return not {*map(str, counts)} <= {"1", "None"}


def resolve_settings(
    command: str,
    resolved: config.Resolved,
    problems: config.Problems,
    machine: Machine | Literal["this"] | None = "this",
) -> tuple[config.Hardware, LaunchSettings]:
    """Resolve hardware and launch settings for this machine; collect every error in them.

    Args:
        command: `fit`, `validate`, `test` or `predict`; others launch nothing.
        resolved: The config.
        problems: Collects the errors, whose keys are left out of what is returned.
        machine: Machine that must have the devices; None to check for none.
    """
    if resolved.unresolved:  # which is reported already
        resolved = drop_paths(resolved, resolved.unresolved)

    # Check the sections first, because hardware depends on launch.
    resolved = check_sections(resolved, problems)
    for read in (read_settings, read_gate):
        _, resolved = collect_errors(resolved, read, problems)
    if command == "fit" and resolved.section("sweep"):
        read_sweep(resolved, problems)

    # Resolve the hardware.
    checked = _choose_machine(command, machine)
    hardware, resolved = collect_errors(
        resolved, partial(config.resolve_hardware, machine=checked, environ=os.environ), problems
    )
    if hardware is None:
        return config.Hardware(resolved), LaunchSettings()

    # Read the settings of the launch, whose processes and threads may be those of the hardware.
    launch, _ = collect_errors(hardware.resolved, read_settings, problems)
    # else the launcher has decided
    if launch is not None and command in STAGES and this_rank(os.environ) is None:
        with problems.noted():
            check_engine(launch, hardware.resolved, strategy=hardware.strategy)
    return hardware, launch or LaunchSettings()


def _choose_machine(command: str, machine: Machine | Literal["this"] | None) -> Machine | None:
    """Return the machine that must have the devices.

    An export runs on one CPU, wherever the model was trained.
    """
    if command == "export":
        return None
    return this_machine() if machine == "this" else machine
