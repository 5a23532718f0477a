"""Load the config of a command line: read arguments, merge layers, resolve settings for this machine. No torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from lightkit import config, runs
from lightkit.cli.help import OWN_OPTIONS
from lightkit.config.packaged import packaged_configs
from lightkit.config.resolved import collect_errors, drop_paths, root_in
from lightkit.config.secrets import HIDDEN
from lightkit.config.tree import Leaf, MappingNode, Node, rebuild, to_plain
from lightkit.errors import ConfigError
from lightkit.export.formats import format_of, holds_weights_alone
from lightkit.hardware import Machine, this_machine
from lightkit.launch.plan import LaunchSettings, check_engine, read_settings
from lightkit.launch.ranks import this_rank
from lightkit.launch.watchdog import read_watchdog
from lightkit.registry.gate import read_gate

Takes = Literal["value", "switch", "optional"]
STAGES = ("fit", "validate", "test", "predict")
WITH_MODEL = (*STAGES, "export")
"""Commands that build a config's model."""
OPTIONS: dict[str, Takes] = {
    "run": "value",
    "ckpt_path": "value",
    "quiet": "switch",
    "output": "value",
    "print_config": "optional",
    "trust": "switch",
}
"""Options of every stage."""
_CALLBACK_ADDRESSES = (("init_args", "webhook_url"), ("init_args", "urls"))


@dataclass(frozen=True)
class LoadedConfig:
    """A command line and its config.

    Args:
        arguments: The command line, split.
        resolved: The merged config, before its hardware keys are resolved.
        base: Run that `--run` names.
    """

    arguments: config.Arguments
    resolved: config.Resolved
    base: runs.Run | None

    @property
    def default_name(self) -> str:
        """Name of the job where the config has none: that of the base run, or of the first config file."""
        files = (Path(file).stem for file in self.arguments.files if not is_yaml_text(file))
        return self.base.name if self.base is not None else next(files, "default")

    @property
    def job_name(self) -> str:
        """Name of the job."""
        return str(self.resolved.section("run").get("name") or self.default_name)


def options_of(command: str) -> dict[str, Takes]:
    """Return the options of a command, those of every stage and those in its help, and whether each takes a value."""
    found: dict[str, Takes] = {**OPTIONS, **({"artefact": "value"} if command == "predict" else {})}
    for typed, _ in OWN_OPTIONS.get(command, ()):
        words = typed.replace(",", "").split()  # such as --rtol --atol X
        takes: Takes = "switch" if typed and words[-1].startswith("--") else "value"
        names = [word[2:] for word in words if word.startswith("--")]
        found |= {name: takes for name in names if name not in config.SECTIONS}
    return found


def read_artefact_option(args: Sequence[str]) -> list[str]:
    """Write ``--model FILE`` as ``--artefact=FILE`` where FILE is an exported model: elsewhere it names a class."""
    read: list[str] = []
    for word in args:
        if read and read[-1] == "--model" and format_of(word):
            read[-1] = f"--artefact={word}"
        elif word.startswith("--model=") and format_of(word):
            read.append(f"--artefact={word.removeprefix('--model=')}")
        else:
            read.append(word)
    return read


def is_yaml_text(file: str) -> bool:
    """Return whether the value of ``-c`` is YAML text in place of a file, as jsonargparse takes it."""
    return file.lstrip().startswith("{") or "\n" in file


def spawns(strategy: Any) -> bool:
    """Return whether a trainer's strategy starts its processes by `torch.multiprocessing`, from within the trainer."""
    arguments = strategy.get("init_args") if hasattr(strategy, "get") else None
    name = (arguments or {}).get("start_method") if arguments is not None else strategy
    return str(name).partition("_find_")[0] in ("spawn", "fork", "forkserver", "ddp_spawn", "ddp_fork", "ddp_notebook")


def load_config(
    command: str,
    args: Sequence[str],
    problems: config.Problems,
    *,
    options: Mapping[str, Takes] | None = None,
    class_sections: Sequence[str] = config.CLASS_SECTIONS,
    subcommands: Sequence[str] = STAGES,
    takes_inputs: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> LoadedConfig:
    """Read the arguments of a command and merge all layers that they name.

    Args:
        command: `fit`, `validate`, `test` or `predict`, whose block in a file applies; empty where there is none.
        args: The command line after the command.
        problems: Collects the errors; the config is what is left without them.
        options: Its options, and whether each takes a value; those of the command if None.
        class_sections: Top-level keys that hold one class each.
        subcommands: All commands.
        takes_inputs: Whether words may stand alone, as those of `predict` do.
        environ: Environment variables.

    Raises:
        ConfigError: If `--run` names no run.
    """
    options = options_of(command) if options is None else options
    arguments = config.split_arguments(
        read_artefact_option(args) if "artefact" in options else args,
        options=options,
        takes_inputs=takes_inputs or command == "predict",
        problems=problems,
    )

    if command == "predict" and not (arguments.files or "run" in arguments.options):
        arguments.options |= _find_run_of_weights(arguments)
    with TemporaryDirectory(prefix="lightkit-") as folder:
        files = []
        for number, file in enumerate(arguments.files):
            files.append(Path(folder, f"config-{number}.yaml") if is_yaml_text(file) else Path(file))
            if is_yaml_text(file):
                files[-1].write_text(file, encoding="utf-8")

        def resolve(below: Sequence[Path] = ()) -> config.Resolved:
            return config.resolve(
                [*below, *files],
                flags=arguments.flags,
                environ=environ,
                subcommand=command,
                subcommands=subcommands,
                class_sections=class_sections,
                problems=problems,
            )

        if "run" in arguments.options:
            if command == "fit":
                raise ConfigError("fit takes no --run; to go on in a run's folder, say --run.resume=RUN")
            reference, section = str(arguments.options["run"]), resolve().values.get("run")
            section = section if isinstance(section, Mapping) else {}  # an error in its place is reported later
            base = runs.find(reference, root_in(section), section.get("name"))
            if not base.config_path.is_file():
                raise ConfigError(f"--run {reference}: {base.folder} has no config.yaml; it is not a run of lightkit")
            layers = [base.config_path]
            if _needs_several_machines(config.read_file(base.config_path)):
                layers.append(packaged_configs()["accelerator/one_process"])
            return LoadedConfig(arguments, _drop_hidden_addresses(resolve(layers)), base)
        return LoadedConfig(arguments, resolve(), None)


def _find_run_of_weights(arguments: config.Arguments) -> dict[str, str | bool]:
    """Return ``--run`` for the weights of ``--model`` in a run's ``export`` folder, known by their place alone.

    Raises:
        ConfigError: If they are elsewhere, and no key says which module they are for.
    """
    artefact = str(arguments.options.get("artefact", ""))
    if not holds_weights_alone(artefact):
        return {}
    folder = Path(artefact).resolve().parent
    if folder.name == "export" and (folder.parent / "config.yaml").is_file():
        return {"run": str(folder.parent)}
    if any(flag.key.partition(".")[0] == "model" for flag in arguments.flags):
        return {}
    raise ConfigError(f"--model {artefact}: this file has weights alone; say which module they are for: --run or -c.")


def _needs_several_machines(saved: MappingNode) -> bool:
    """Check whether a run's config starts processes on other machines, too."""
    launch, trainer = (
        section if isinstance(section := to_plain(saved).get(name), dict) else {} for name in ("launch", "trainer")
    )
    is_elsewhere = launch.get("engine") in ("spark", "ray", "slurm") or launch.get("hosts") or launch.get("slurm")
    return bool(is_elsewhere) or not {str(launch.get("nodes")), str(trainer.get("num_nodes"))} <= {"1", "None"}


def _drop_hidden_addresses(resolved: config.Resolved) -> config.Resolved:
    """Put null in the place of webhook and heartbeat addresses that the run's saved config hides."""

    def change(path: config.KeyPath, node: Node) -> Node:
        is_of_callback = path[:1] == ("callbacks",) and path[2:] in _CALLBACK_ADDRESSES
        value = to_plain(node) if is_of_callback or path == ("run", "heartbeat_url") else None
        return Leaf(None, node.origin) if HIDDEN in (value if isinstance(value, list) else [value]) else node

    tree = rebuild(resolved.tree, change)
    assert isinstance(tree, MappingNode)
    return replace(resolved, tree=tree)


def resolve_settings(
    command: str, loaded: LoadedConfig, problems: config.Problems, machine: Machine | Literal["this"] | None = "this"
) -> tuple[config.Hardware, LaunchSettings]:
    """Resolve hardware and launch settings for this machine and collect every configuration error in them.

    Args:
        command: `fit`, `validate`, `test` or `predict`; others launch nothing.
        loaded: The command line and its config.
        problems: Collects the errors, whose keys are left out of what is returned.
        machine: Machine that must have the devices; None to check for none.
    """
    resolved = drop_paths(loaded.resolved, loaded.resolved.unresolved)
    for read in (read_settings, read_watchdog, read_gate):  # their errors first: hardware depends on launch
        _, resolved = collect_errors(resolved, read, problems)
    if command == "export":  # it runs on one CPU, wherever the model was trained
        machine = None
    machine = this_machine() if machine == "this" else machine
    hardware, resolved = collect_errors(
        resolved, partial(config.resolve_hardware, machine=machine, environ=os.environ), problems
    )
    if hardware is None:
        return config.Hardware(resolved), LaunchSettings()
    launch, _ = collect_errors(hardware.resolved, read_settings, problems)
    if launch is not None and command in STAGES and this_rank(os.environ) is None:  # else the launcher has decided
        with problems.noted():
            check_engine(launch, hardware.resolved, strategy=hardware.strategy)
    return hardware, launch or LaunchSettings()
