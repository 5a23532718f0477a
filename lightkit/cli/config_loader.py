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
from lightkit.config.packaged import PREFIX, find_config, packaged_configs
from lightkit.config.resolved import collect_errors, drop_paths, root_in
from lightkit.config.secrets import HIDDEN
from lightkit.config.tree import Leaf, MappingNode, Node, rebuild, to_plain
from lightkit.config.validation import check_sections
from lightkit.errors import ConfigError
from lightkit.export.formats import holds_weights_alone
from lightkit.hardware import Machine, this_machine
from lightkit.launch.plan import LaunchSettings, check_engine, read_settings
from lightkit.launch.ranks import this_rank
from lightkit.registry.gate import read_gate
from lightkit.sweep.settings import read_sweep

_CALLBACK_ADDRESSES = (("init_args", "webhook_url"), ("init_args", "urls"))


@dataclass(frozen=True)
class LoadedConfig:
    """A command line and its config.

    Args:
        invocation: The command line, parsed.
        resolved: The merged config, before its hardware keys are resolved.
        base: Run that `--run` names.
    """

    invocation: Invocation
    resolved: config.Resolved
    base: runs.Run | None

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
        files = list(_list_files(invocation.files, Path(folder), problems))

        def resolve(below: Sequence[Path] = ()) -> config.Resolved:
            return config.resolve(
                [*below, *files],
                flags=invocation.overrides,
                environ=environ,
                subcommand=command,
                subcommands=subcommands,
                class_sections=class_sections,
                problems=problems,
            )

        if reference is None:
            return LoadedConfig(invocation, resolve(), None)
        if command == "fit":
            raise ConfigError(
                "fit takes no --run; to continue in a run's folder, use --run.resume=RUN"
            )
        section = resolve().section("run")  # an error in its place is reported later
        base = runs.find(reference, root_in(section), section.get("name"))
        if not base.config_path.is_file():
            raise ConfigError(
                f"--run {reference}: {base.folder} has no config.yaml; it is not a run of lightkit"
            )
        layers = [base.config_path]
        if _needs_several_machines(config.read_file(base.config_path)):
            layers.append(packaged_configs()["accelerator/one_process"])
        return LoadedConfig(invocation, _drop_hidden_addresses(resolve(layers)), base)


def _list_files(files: Iterable[str], folder: Path, problems: config.Problems) -> Iterator[Path]:
    """List the files of ``-c``; YAML text in place of one is written into ``folder``."""
    for number, file in enumerate(files):
        if is_yaml_text(file):
            path = folder / f"config-{number}.yaml"
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
    launch, trainer = (
        section if isinstance(section := to_plain(saved).get(name), dict) else {}
        for name in ("launch", "trainer")
    )
    is_elsewhere = (
        launch.get("engine") in ("spark", "ray", "slurm")
        or launch.get("hosts")
        or launch.get("slurm")
    )
    return bool(is_elsewhere) or not {str(launch.get("nodes")), str(trainer.get("num_nodes"))} <= {
        "1",
        "None",
    }


def _drop_hidden_addresses(resolved: config.Resolved) -> config.Resolved:
    """Put null in the place of webhook and heartbeat addresses the run's saved config hides."""

    def change(path: config.KeyPath, node: Node) -> Node:
        is_of_callback = path[:1] == ("callbacks",) and path[2:] in _CALLBACK_ADDRESSES
        value = to_plain(node) if is_of_callback or path == ("run", "heartbeat_url") else None
        return (
            Leaf(None, node.origin)
            if HIDDEN in (value if isinstance(value, list) else [value])
            else node
        )

    tree = rebuild(resolved.tree, change)
    assert isinstance(tree, MappingNode)
    return replace(resolved, tree=tree)


def resolve_settings(
    command: str,
    loaded: LoadedConfig,
    problems: config.Problems,
    machine: Machine | Literal["this"] | None = "this",
) -> tuple[config.Hardware, LaunchSettings]:
    """Resolve hardware and launch settings for this machine ; collect every error in them.

    Args:
        command: `fit`, `validate`, `test` or `predict`; others launch nothing.
        loaded: The command line and its config.
        problems: Collects the errors, whose keys are left out of what is returned.
        machine: Machine that must have the devices; None to check for none.
    """
    resolved = loaded.resolved
    if resolved.unresolved:  # which is reported already
        resolved = drop_paths(resolved, resolved.unresolved)
    # their errors first: hardware depends on launch
    resolved = check_sections(resolved, problems)
    for read in (read_settings, read_gate):
        _, resolved = collect_errors(resolved, read, problems)
    if command == "fit" and resolved.section("sweep"):
        read_sweep(resolved, problems)
    checked = _choose_machine(command, machine)
    hardware, resolved = collect_errors(
        resolved, partial(config.resolve_hardware, machine=checked, environ=os.environ), problems
    )
    if hardware is None:
        return config.Hardware(resolved), LaunchSettings()
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
