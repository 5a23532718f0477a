"""Complete the hardware keys of a merged config for this machine, and check them.

Each layer was translated to today's keys of the trainer as it was read
(`lightkit.config.accelerator.translation`), so that the merge has decided between layers. What
depends on more than one key is decided here: the number of processes, the precision on a TPU, and
``auto``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lightkit.config.accelerator.checks import (
    Requirements,
    check_combination,
    check_machine,
    check_settings,
    count_visible,
    find_default_kind,
    list_block,
    list_written,
)
from lightkit.config.accelerator.computation import Computation, choose_settings, resolve_computing
from lightkit.config.accelerator.setting import (
    AUTO,
    Setting,
    contradiction,
    count_devices,
    make_node,
)
from lightkit.config.accelerator.vocabulary import (
    ALL,
    HOROVOD,
    KINDS,
    OLD_STRATEGIES,
    OLD_TRAINER_KEYS,
    TRAINER_DEFAULTS,
    XLA_PRECISIONS,
)
from lightkit.config.accelerator.words import find_kind, find_strategy, make_horovod, read_count
from lightkit.config.bounds import is_int
from lightkit.config.merge import class_of
from lightkit.config.origins import KeyPath, Origin, dotted, error_at
from lightkit.config.resolved import Resolved
from lightkit.config.tree import Leaf, MappingNode, Node, find, put, rebuild, to_plain
from lightkit.hardware import Machine

_REMOTE_ENGINES = ("spark", "ray", "slurm")
_DEVICES: KeyPath = ("trainer", "devices")
_PRECISION: KeyPath = ("trainer", "precision")
_STRATEGY: KeyPath = ("trainer", "strategy")
_PROCESSES: KeyPath = ("launch", "processes")

Changes = dict[KeyPath, tuple[Node | None, Setting]]
"""Values by the key that takes them, each with the setting that asks for it; None where a key is
left out."""


@dataclass(frozen=True)
class Hardware:
    """Hardware that a config asks for.

    Args:
        resolved: The config with today's trainer keys in the place of the keys of Lightning 1.x and
            of those of the block ``accelerator``, in which only what `AcceleratorSettings` knows is
            left; with Horovod the number of processes stands under ``launch.processes``.
        processes: Processes that a launch must start, because Horovod's each have one device; below
            0 where Spark's driver is to run them. None: nothing is set.
        strategy: Name of the strategy: ``horovod``, ``ddp``; None where Lightning decides, or it is
            a class of the user's own.
        kind: Kind of device: ``cpu``, ``gpu``, ``tpu``, ``mps``; None where Lightning decides.
        devices: Devices of each machine for one launch of the trainer, as parsed, so that text from
            a flag is a number: a number, -1 for all, a tuple with the numbers of those meant, or
            ``auto``; None: nothing is set.
        notices: For each old spelling, today's; what has no effect on this kind of device.
        environment: Variables to set before torch-xla is imported.
        chosen: Values for ``auto``, by the dotted key that takes them; None where the key is left
            to torch.
        chosen_by: The hardware that has decided it, in words.
    """

    resolved: Resolved
    processes: int | None = None
    strategy: str | None = None
    kind: str | None = None
    devices: int | str | tuple[int, ...] | None = None
    notices: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    chosen: dict[str, Any] = field(default_factory=dict)
    chosen_by: str = ""


def resolve_hardware(
    resolved: Resolved, machine: Machine | None = None, *, environ: Mapping[str, str]
) -> Hardware:
    """Complete the hardware keys of a config, and check them.

    Args:
        resolved: The config.
        machine: The machine that must have the devices; None where it is not this one, and nothing
            is checked.
        environ: Environment variables.

    Raises:
        ConfigError: If a value is wrong, there is nothing like it today, two contradict each other,
            or the machine has not what they ask for.
    """
    launch = _read_launch(resolved)
    that_trains = None if launch.is_elsewhere else machine
    block = list_block(resolved)
    written = list_written(resolved)
    check_settings(
        [*block, *written], resolved, None if that_trains is None else that_trains.xla.tpu_cores
    )
    _check_trainer(resolved, block)

    asked = _read_requirements(resolved, launch)
    kind = asked.kind or find_default_kind(that_trains)
    if that_trains is not None:
        check_machine(asked, kind, that_trains, environ)
    check_combination(asked, kind)

    changes: Changes = _leave_out_defaults(resolved)
    changes |= _resolve_precision(resolved, on_xla=kind == "tpu", environ=environ)
    changes |= _resolve_strategy(resolved, asked)
    processes = _count_horovods(asked, that_trains)
    changes |= _resolve_number(resolved, asked, launch, processes)
    words, computing = _resolve_computing(block, resolved, asked, launch, machine, environ)
    changes |= computing.targets
    changes |= _leave_out_auto(resolved, changes)

    completed = _write(resolved, changes)
    count = _count_devices(asked, launch)
    return Hardware(
        completed,
        processes=processes,
        strategy=asked.strategy if asked.has_known_strategy else None,
        kind=kind if kind == "tpu" else asked.kind if asked.kind in KINDS.values() else None,
        devices=1 if asked.strategy == "horovod" else count,
        notices=(*_format_notices(resolved, completed), *computing.notices),
        environment={} if kind != "tpu" or environ.get("PJRT_DEVICE") else {"PJRT_DEVICE": "TPU"},
        chosen=computing.chosen,
        chosen_by=words if computing.chosen else "",
    )


# -- requirements ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Launch:
    """The keys of the launcher that hardware depends on.

    Args:
        engine: Setting of the engine.
        processes: Setting of the number of processes, unless it is null.
        has_hosts: Whether hosts are named, each with its number of processes.
    """

    engine: Setting | None = None
    processes: Setting | None = None
    has_hosts: bool = False

    @property
    def is_remote(self) -> bool:
        """Return whether the processes run on machines that the launcher chooses."""
        return self.engine is not None and self.engine.value in _REMOTE_ENGINES

    @property
    def is_elsewhere(self) -> bool:
        """Return whether other machines than this one train, too."""
        return self.is_remote or self.has_hosts

    def is_engine(self, name: str) -> bool:
        """Return whether the engine is the one of that name."""
        return self.engine is not None and self.engine.value == name


def _read_launch(resolved: Resolved) -> _Launch:
    found = dict[str, Setting]()
    for key in ("engine", "processes", "hosts"):
        node = find(resolved.tree, ("launch", key))
        if node is not None and to_plain(node) is not None:
            found[key] = Setting(("launch", key), node)
    return _Launch(found.get("engine"), found.get("processes"), "hosts" in found)


def _check_trainer(resolved: Resolved, block: Sequence[Setting]) -> None:
    """Check that the section that takes the block's keys is one."""
    trainer = resolved.tree.entries.get("trainer")
    is_taken = any(setting.subject in (*OLD_TRAINER_KEYS, *TRAINER_DEFAULTS) for setting in block)
    if (
        is_taken
        and trainer is not None
        and not isinstance(trainer, MappingNode)
        and to_plain(trainer) is not None
    ):
        raise error_at(f"trainer: expected a mapping, got {to_plain(trainer)!r}", trainer.origin)


def _find_setting(resolved: Resolved, key: str) -> Setting | None:
    """Return the setting that decides a key of the trainer."""
    path = ("trainer", key)
    node = find(resolved.tree, path)
    if node is None:
        return None
    word = node.origin.word
    return word if isinstance(word, Setting) else Setting(path, node)


def _read_requirements(resolved: Resolved, launch: _Launch) -> Requirements:
    """Read the hardware that a config asks for from the keys of its trainer and its launcher."""
    kind = None
    accelerator = find(resolved.tree, ("trainer", "accelerator"))
    if accelerator is not None:
        kind = find_kind(Setting(("trainer", "accelerator"), accelerator))
    asked = Requirements(
        kind=None if kind == AUTO else kind,
        kind_by=_find_setting(resolved, "accelerator"),
        engine_by=launch.engine,
    )
    nodes = find(resolved.tree, ("trainer", "num_nodes"))
    if nodes is not None and to_plain(nodes) is not None:
        number = Setting(("trainer", "num_nodes"), nodes)
        asked = replace(
            asked, num_nodes=number.value, nodes_by=_find_setting(resolved, "num_nodes")
        )

    # the strategy, which says what the number of devices means
    strategy = find(resolved.tree, _STRATEGY)
    if strategy is not None and to_plain(strategy) not in (None, AUTO):
        name = find_strategy(Setting(_STRATEGY, strategy))
        asked = replace(asked, strategy=name, strategy_by=_find_setting(resolved, "strategy"))
    elif launch.is_engine("horovod"):
        asked = replace(asked, strategy="horovod", strategy_by=launch.engine)

    # the number of devices, or of processes
    is_horovod = asked.strategy == "horovod"
    devices = _list_horovods(resolved, launch) if is_horovod else _list_devices(resolved)
    asked = _choose_number(asked, devices[:1], resolved, launch)
    by = asked.count_by
    is_of_processes = by is not None and by.path[-1] in ("num_processes", "processes")
    is_several = is_int(_count_devices(asked, launch), 2)
    is_open = strategy is None or to_plain(strategy) is None  # an `auto` is Lightning's to resolve
    if (
        is_of_processes
        and is_several
        and is_open
        and not asked.strategy
        and asked.kind not in ("tpu", "mps")
    ):
        asked = replace(asked, strategy="ddp", strategy_by=by)
    return asked


def _list_devices(resolved: Resolved) -> list[tuple[Any, Node]]:
    """List the number of the trainer's devices with its value; none where there is no number."""
    node = find(resolved.tree, _DEVICES)
    if node is None or to_plain(node) is None:
        return []
    return [(AUTO if to_plain(node) == AUTO else read_count(Setting(_DEVICES, node)), node)]


def _list_horovods(resolved: Resolved, launch: _Launch) -> list[tuple[Any, Node]]:
    """List the numbers of Horovod's processes that device keys have set in any layer.

    The one that counts comes first.

    One device is what each process has, as in Lightning 1.x. With ``launch.hosts``, which has a
    number for each host, the keys of one machine set none.

    Raises:
        ConfigError: If GPUs are named by their numbers.
    """
    node = find(resolved.tree, _DEVICES)
    if node is None:
        return []
    numbers = read_count(Setting(_DEVICES, node))
    if isinstance(numbers, tuple):
        raise _refuse_numbers(_setting_of(node), numbers)
    if launch.has_hosts:
        return []
    found = []
    for each in (node, *reversed(node.replaced)):
        count = read_count(Setting(_DEVICES, each))
        if is_int(count) and count != 1:
            found.append((count, each))
    return sorted(found, key=lambda pair: pair[0] == ALL)


def _refuse_numbers(setting: Setting, numbers: Sequence[int]) -> Exception:
    listed = ",".join(map(str, numbers))
    text = f"{setting}: Horovod's processes take the visible GPUs in their order; set the variable "
    advice = f"CUDA_VISIBLE_DEVICES={listed}, and say gpus: {len(numbers)}"
    return error_at(f"{text}{advice}", setting.origin)


def _setting_of(node: Node) -> Setting:
    word = node.origin.word
    return word if isinstance(word, Setting) else Setting(_DEVICES, node)


def _choose_number(
    asked: Requirements, devices: Sequence[tuple[Any, Node]], resolved: Resolved, launch: _Launch
) -> Requirements:
    """Add the number of devices, which the trainer and ``launch.processes`` may both set.

    The higher layer counts.

    Raises:
        ConfigError: If one layer sets two numbers.
    """
    processes = _find_processes(asked, launch)
    if processes is None:
        return (
            replace(asked, count=devices[0][0], count_by=_setting_of(devices[0][1]))
            if devices
            else asked
        )
    by_launch = replace(asked, count=processes.value, count_by=processes)
    if not devices or devices[0][0] == ALL:
        return by_launch

    count, node = devices[0]
    by_trainer = replace(asked, count=count, count_by=_setting_of(node))
    rank = resolved.rank_of(node.origin)
    rank_of_launch = resolved.rank_of(processes.origin)
    if count_devices(count) == count_devices(processes.value):
        return by_trainer if isinstance(count, tuple) or rank >= rank_of_launch else by_launch
    if rank == rank_of_launch and not _is_weak(node):
        raise contradiction(_setting_of(node), processes, "say one of them, or the same number")
    return by_trainer if rank > rank_of_launch else by_launch


def _find_processes(asked: Requirements, launch: _Launch) -> Setting | None:
    """Return the setting of the launcher's processes where their number is that of the devices.

    Raises:
        ConfigError: If it is below 0 for others than Horovod.
    """
    setting = launch.processes
    is_horovod = asked.strategy == "horovod"
    if setting is None or not is_int(setting.value) or not setting.value:
        return None
    # each process sees the devices that its launcher gives it
    if launch.is_remote and not is_horovod:
        return None
    if setting.value < 0 and not is_horovod:
        raise setting.expect(
            "a number from 1; one below 0 has a meaning for launch.engine: spark only"
        )
    return setting


def _is_weak(devices: Node) -> bool:
    """Return whether a number of devices gives way to that of the processes.

    ``auto``, or the default of 1.x.
    """
    setting = _setting_of(devices)
    return _says_nothing(devices, "devices") or (
        setting.subject == "num_processes" and setting.value == 1
    )


def _count_devices(asked: Requirements, launch: _Launch) -> Any:
    """Return the number of devices for the trainer.

    Torchrun's processes learn it from their launcher.
    """
    return None if asked.is_launched and launch.is_engine("torchrun") else asked.count


def _count_processes(count: Any) -> int | None:
    """Return the number of processes for devices.

    None where there is one for each that is found.
    """
    number = len(count) if isinstance(count, tuple) else count
    return number if is_int(number, 1) else None


def _count_horovods(asked: Requirements, machine: Machine | None) -> int | None:
    """Return the number of Horovod's processes; None where none is set, or the strategy is another.

    Raises:
        ConfigError: If it is that of all GPUs, which cannot be counted.
    """
    by = asked.count_by
    if asked.strategy != "horovod" or by is None or not is_int(asked.count):
        return None
    if asked.count != ALL or asked.is_launched:
        return int(asked.count)
    number = count_visible(asked.kind, machine)
    if machine is not None and number is None:
        raise error_at(
            f"{by}: this machine's GPUs cannot be counted without CUDA; set their number", by.origin
        )
    return number


# -- keys that depend on others --------------------------------------------------------------------


def _says_nothing(node: Node, key: str) -> bool:
    """Return whether a value of a key of the trainer was set in other words by ``auto`` or null."""
    word = node.origin.word
    value = to_plain(node)
    if word is None:
        return bool(value == AUTO)
    return value is None or bool(word.subject == key and word.value in (None, AUTO))


def _is_explicit(node: Node, key: str) -> bool:
    """Return whether a layer has set a key of the trainer itself, and not by another key."""
    words = [each.origin.word for each in (node, *node.replaced)]
    return any(word is None or word.path == ("trainer", key) for word in words)


def _leave_out(resolved: Resolved, key: str, by: Setting) -> Changes:
    """Return a key of the trainer to its default.

    The default is written where a layer has set the key itself.
    """
    path = ("trainer", key)
    node = find(resolved.tree, path)
    if node is None:
        return {}
    if not _is_explicit(node, key):
        return {path: (None, by)}
    default = TRAINER_DEFAULTS[key]
    return {} if to_plain(node) == default else {path: (Leaf(default, node.origin), by)}


def _leave_out_defaults(resolved: Resolved) -> Changes:
    """Leave out the keys of the trainer that were set to nothing in other words."""
    changes: Changes = {}
    for key in TRAINER_DEFAULTS:
        node = find(resolved.tree, ("trainer", key))
        word = None if node is None else node.origin.word
        if node is not None and word is not None and _says_nothing(node, key):
            is_block_auto = key == "precision" and to_plain(node) == AUTO  # the hardware decides
            changes |= {} if is_block_auto else _leave_out(resolved, key, word)
    return changes


def _resolve_precision(resolved: Resolved, *, on_xla: bool, environ: Mapping[str, str]) -> Changes:
    """Resolve the precision on a TPU, where ``XLA_USE_BF16`` counts, too; others need nothing more.

    Raises:
        ConfigError: If XLA has it not, or two places set different ones.
    """
    if not on_xla:
        return {}
    by = _find_setting(resolved, "precision")
    word = None
    if by is not None and by.value not in (None, AUTO):
        word = XLA_PRECISIONS.get(str(by.value))
        if word is None:
            why = "16-true computes in float32 there without a word, and mixed precision is refused"
            text = f"{by}: on a TPU expected 32-true or bf16-true; {why}; set precision: bf16-true"
            raise error_at(text, by.origin)
    variable = environ.get("XLA_USE_BF16", "")
    if variable.lower() in ("1", "true", "yes"):
        source = Setting(("XLA_USE_BF16",), Leaf(variable, Origin("variable", "XLA_USE_BF16")))
        if by is not None and word not in (None, "bf16-true"):
            raise contradiction(by, source, "say precision: bf16-true, or unset the variable")
        if word is None:
            return {_PRECISION: (Leaf("bf16-true", source.origin), source)}
    if by is None or word is None or (by.path[0] == "trainer" and not by.is_old_precision):
        return {}
    return {_PRECISION: (make_node(word, by), by)}


def _leave_out_auto(resolved: Resolved, changes: Changes) -> Changes:
    """Leave the precision out where it is ``auto``, and the hardware has decided none."""
    node = find(resolved.tree, _PRECISION)
    by = None if node is None else node.origin.word
    if node is None or by is None or to_plain(node) != AUTO or _PRECISION in changes:
        return {}
    return {_PRECISION: (None, by)}


def _resolve_strategy(resolved: Resolved, asked: Requirements) -> Changes:
    """Set the strategy that follows from other keys.

    Horovod from its launcher, ``ddp`` from several processes.
    """
    by = asked.strategy_by
    if by is None or by == _find_setting(resolved, "strategy"):
        return {}
    if asked.strategy == "horovod":
        return {_STRATEGY: (make_horovod(replace(by, node=Leaf(None, by.origin))), by)}
    return {_STRATEGY: (Leaf(asked.strategy, by.origin), by)}


def _resolve_number(
    resolved: Resolved, asked: Requirements, launch: _Launch, processes: int | None
) -> Changes:
    """Set the devices of the trainer and the processes of the launcher, which follow each other."""
    changes: Changes = {}
    by = asked.count_by
    if asked.strategy == "horovod" and asked.strategy_by is not None:
        changes[_DEVICES] = Leaf(1, asked.strategy_by.origin), asked.strategy_by
    elif by is not None and asked.is_launched:
        count = _count_devices(asked, launch)
        changes |= (
            _leave_out(resolved, "devices", by)
            if count is None
            else {_DEVICES: (make_node(count, by), by)}
        )
    if by is None or asked.is_launched:
        return changes

    if processes is not None:
        changes[_PROCESSES] = make_node(processes, by), by
    elif _is_followed(asked, launch):
        changes[_PROCESSES] = make_node(_count_processes(asked.count), by), by
    return changes


def _is_followed(asked: Requirements, launch: _Launch) -> bool:
    """Return whether the launcher has another number of processes than the devices that count."""
    number = None if launch.processes is None else launch.processes.value
    is_taken = asked.strategy == "horovod" or not launch.is_remote
    return (
        is_taken
        and is_int(number)
        and number != 0
        and count_devices(number) != count_devices(asked.count)
    )


def _resolve_computing(
    block: Sequence[Setting],
    resolved: Resolved,
    asked: Requirements,
    launch: _Launch,
    machine: Machine | None,
    environ: Mapping[str, str],
) -> tuple[str, Computation]:
    """Send the block's keys for computing to the keys that take them.

    With this machine's values for ``auto``.
    """
    if machine is None:
        return "", resolve_computing(block, resolved, asked.kind, {})
    kind = asked.kind or find_default_kind(None if launch.is_elsewhere else machine)
    local = environ.get("LOCAL_WORLD_SIZE", "")
    number = int(local) if local.isdigit() else _count_processes(_count_devices(asked, launch))
    if not number and kind == "gpu":
        number = count_visible(kind, machine)
    kind_here = kind or find_default_kind(machine)
    words, values = choose_settings(kind_here, machine, processes=number or 1, environ=environ)
    if launch.is_elsewhere:
        values["threads"] = None  # each machine shares its own cores out
    return words, resolve_computing(block, resolved, kind, values)


# -- the completed config --------------------------------------------------------------------------


def _write(resolved: Resolved, changes: Changes) -> Resolved:
    """Write values into a config, each with what it replaces, and take the old hardware keys out.

    What the environment gave is a reference at its new place too, unless it reads differently
    there.

    Raises:
        ConfigError: If what a value goes into is no mapping.
    """
    removed = {("accelerator",), *(("trainer", key) for key in OLD_TRAINER_KEYS)}
    removed |= {path for path, (node, _) in changes.items() if node is None}
    removed = {path for path in removed if find(resolved.tree, path) is not None}
    written = {path: (node, by) for path, (node, by) in changes.items() if node is not None}
    if not written and not removed:
        return resolved
    tree = rebuild(resolved.tree, lambda path, node: None if path in removed else node)
    assert isinstance(tree, MappingNode)
    references = _drop_references(resolved.references, [*removed, *written])
    for path, (node, by) in written.items():
        old = find(resolved.tree, path)
        is_own = path == by.path and node is by.node
        marked = replace(node.origin, word=None if is_own else by)
        tree = put(
            tree, path, replace(node, origin=marked, replaced=_list_replaced(old, node, path, by))
        )
        if str(to_plain(by.node)) == str(to_plain(node)):
            references |= _move_references(resolved.references, by.path, path)
    return replace(resolved, tree=tree, references=references)


def _move_references(
    references: Mapping[KeyPath, str], source: KeyPath, target: KeyPath
) -> dict[KeyPath, str]:
    """Return the references at and below one path, as they are below another."""
    length = len(source)
    return {
        (*target, *key[length:]): text for key, text in references.items() if key[:length] == source
    }


def _drop_references(
    references: Mapping[KeyPath, str], paths: Sequence[KeyPath]
) -> dict[KeyPath, str]:
    return {
        key: text
        for key, text in references.items()
        if not any(key[: len(path)] == path for path in paths)
    }


def _list_replaced(old: Node | None, node: Node, path: KeyPath, by: Setting) -> tuple[Node, ...]:
    """List the values that a new one replaces at its place.

    Also list those that its setting had replaced at its own.
    """
    replaced: tuple[Node, ...] = ()
    if old is not None:
        replaced = (
            old.replaced
            if old.origin == node.origin
            else (*old.replaced, replace(old, replaced=()))
        )
    return replaced if path == by.path else (*replaced, *by.node.replaced)


# -- old spellings ---------------------------------------------------------------------------------


def _is_old(setting: Setting) -> bool:
    """Return whether a setting is a spelling of Lightning 1.x."""
    if setting.subject == "strategy" and str(setting.value).lower() in OLD_STRATEGIES:
        return True
    if setting.path[0] != "trainer":
        return False
    key = setting.path[-1]
    is_null = setting.value is None and key != "precision"
    return (
        key in OLD_TRAINER_KEYS or setting.is_strategy_word or setting.is_old_precision or is_null
    )


def _list_old(resolved: Resolved) -> list[Setting]:
    """List the settings of a config in spellings of Lightning 1.x.

    Those that count, and those that say nothing.
    """
    found = list[Setting]()
    for key in (*OLD_TRAINER_KEYS, *TRAINER_DEFAULTS):
        node = find(resolved.tree, ("trainer", key))
        if node is None or (node.origin.word is not None and to_plain(node) is None):
            continue
        setting = node.origin.word or Setting(("trainer", key), node)
        if _is_old(setting) and setting not in found:
            found.append(setting)
    return sorted(found, key=lambda setting: str(setting.path[0]))


def _format_notices(resolved: Resolved, completed: Resolved) -> list[str]:
    """Write a sentence for each spelling of Lightning 1.x, with its place and the new spelling."""
    today = list[tuple[Setting, str]]()
    for path in (*(("trainer", key) for key in TRAINER_DEFAULTS), _PROCESSES):
        node = find(completed.tree, path)
        if node is not None and node.origin.word is not None:
            named = class_of(node)
            shown = "horovod" if named == HOROVOD else named or to_plain(node)
            today.append((node.origin.word, f"{dotted(path)}: {shown}"))
    notices = []
    for setting in _list_old(resolved):
        keys = sorted(
            text
            for word, text in today
            if (word.path, word.origin) == (setting.path, setting.origin)
        )
        if keys or setting.value in (None, 0, 1, "", []):  # else a higher layer has replaced it
            text = (
                f"{setting} is a spelling of Lightning 1.x; today:"
                f" {', '.join(keys) or 'leave it out'}"
            )
            notices.append(f"{text} ({setting.origin})")
    return notices
