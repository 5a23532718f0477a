"""Complete the hardware keys of a merged config for this machine, and check them.

Each layer was translated to today's keys of the trainer as it was read
(`lightkit.config.accelerator.translation`), so that the merge has decided between layers. What
depends on more than one key is decided here: the number of processes, the precision on a TPU, and
``auto``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lightkit.config.accelerator.block import KINDS
from lightkit.config.accelerator.checks import (
    Launch,
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
    OLD_STRATEGIES,
    OLD_TRAINER_KEYS,
    TRAINER_DEFAULTS,
    TRAINER_KEYS,
    XLA_PRECISIONS,
)
from lightkit.config.accelerator.words import find_kind, find_strategy, make_horovod, read_count
from lightkit.config.bounds import is_int
from lightkit.config.merge import class_of
from lightkit.config.origins import KeyPath, Origin, dotted
from lightkit.config.resolved import Resolved
from lightkit.config.tree import Leaf, MappingNode, Node, entries_of, find, put, rebuild, to_plain
from lightkit.hardware import Machine

_DEVICES: KeyPath = ("trainer", "devices")
_PRECISION: KeyPath = ("trainer", "precision")
_STRATEGY: KeyPath = ("trainer", "strategy")
_PROCESSES: KeyPath = ("launch", "processes")
_OLD_KEYS: list[KeyPath] = [("accelerator",), *(("trainer", key) for key in OLD_TRAINER_KEYS)]
"""Hardware keys that stand for others."""

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
    check_settings([*block, *list_written(resolved)], resolved, that_trains)

    asked = _read_requirements(resolved, launch)
    kind = asked.kind or find_default_kind(that_trains)
    if that_trains is not None:
        check_machine(asked, kind, that_trains, environ)
    check_combination(asked, kind)

    changes: Changes = _leave_out_defaults(resolved)
    if kind == "tpu":
        changes |= _resolve_xla_precision(resolved, environ)
    changes |= _resolve_strategy(resolved, asked)
    processes = _count_horovods(asked, that_trains)
    changes |= _resolve_number(resolved, asked, processes)
    words, computing = _resolve_computing(block, resolved, asked, machine, environ)
    completed = _write(resolved, changes | computing.targets)
    named_kind = asked.kind if asked.kind in KINDS.values() else None
    needs_variable = kind == "tpu" and not environ.get("PJRT_DEVICE")
    return Hardware(
        completed,
        processes=processes,
        strategy=asked.strategy if asked.has_known_strategy else None,
        kind="tpu" if kind == "tpu" else named_kind,
        devices=1 if asked.strategy == "horovod" else asked.devices,
        notices=(*_format_notices(resolved, completed), *computing.notices),
        environment={"PJRT_DEVICE": "TPU"} if needs_variable else {},
        chosen=computing.chosen,
        chosen_by=words if computing.chosen else "",
    )


# -- requirements ----------------------------------------------------------------------------------


def _read_launch(resolved: Resolved) -> Launch:
    found = {
        key: Setting(("launch", key), node)
        for key, node in entries_of(resolved.tree.entries.get("launch")).items()
        if to_plain(node) is not None
    }
    return Launch(found.get("engine"), found.get("processes"), "hosts" in found)


def _find_given(resolved: Resolved, key: str) -> Setting | None:
    """Return a key of the trainer as it stands there; None where it is null."""
    path = ("trainer", key)
    node = find(resolved.tree, path)
    return None if node is None or to_plain(node) is None else Setting(path, node)


def _find_setting(resolved: Resolved, key: str) -> Setting | None:
    """Return the setting that decides a key of the trainer."""
    path = ("trainer", key)
    node = find(resolved.tree, path)
    return None if node is None else _setting_of(path, node)


def _setting_of(path: KeyPath, node: Node) -> Setting:
    """Return the setting that asked for a value: in other words, or at its own place."""
    word = node.origin.word
    return word if isinstance(word, Setting) else Setting(path, node)


def _read_requirements(resolved: Resolved, launch: Launch) -> Requirements:
    """Read the hardware that a config asks for from the keys of its trainer and its launcher."""
    accelerator = _find_given(resolved, "accelerator")
    kind = None if accelerator is None else find_kind(accelerator)
    nodes = _find_given(resolved, "num_nodes")
    strategy, strategy_by = _read_strategy(resolved, launch)
    number = _find_number(resolved, launch, is_horovod=strategy == "horovod")
    asked = Requirements(
        kind=kind,
        kind_by=None if kind is None else _find_setting(resolved, "accelerator"),
        count=None if number is None else number.count,
        count_by=None if number is None else number.by,
        strategy=strategy,
        strategy_by=strategy_by,
        num_nodes=1 if nodes is None else nodes.value,
        nodes_by=_find_setting(resolved, "num_nodes"),
        launch=launch,
    )
    # an `auto` of the strategy is Lightning's to resolve
    if _find_given(resolved, "strategy") is None and _needs_ddp(asked):
        return replace(asked, strategy="ddp", strategy_by=asked.count_by)
    return asked


def _read_strategy(resolved: Resolved, launch: Launch) -> tuple[str, Setting | None]:
    """Return the strategy, which says what the number of devices means, and what decides it."""
    given = _find_given(resolved, "strategy")
    if given is not None and given.value != AUTO:
        return find_strategy(given), _find_setting(resolved, "strategy")
    return ("horovod", launch.engine_by) if launch.engine == "horovod" else ("", None)


def _needs_ddp(asked: Requirements) -> bool:
    """Return whether a number of processes asks for a strategy that none names."""
    by = asked.count_by
    return (
        by is not None
        and by.path[-1] in ("num_processes", "processes")
        and is_int(asked.devices, 2)
        and not asked.strategy
        and asked.kind not in ("tpu", "mps")
    )


@dataclass(frozen=True)
class _Number:
    """A number of devices or processes as parsed.

    Args:
        count: The number.
        node: The value that sets it.
        by: The setting that asks for it.
    """

    count: Any
    node: Node
    by: Setting


def _find_number(resolved: Resolved, launch: Launch, *, is_horovod: bool) -> _Number | None:
    """Return the number that counts of those of the trainer and of ``launch.processes``.

    Raises:
        ConfigError: If one layer sets two numbers.
    """
    node = find(resolved.tree, _DEVICES)
    devices = _find_horovods(node, launch) if is_horovod else _find_devices(node)
    processes = _find_processes(launch, is_horovod=is_horovod)
    if devices is None or processes is None:
        return devices or processes
    return devices if _is_above(devices, processes, resolved) else processes


def _is_above(devices: _Number, processes: _Number, resolved: Resolved) -> bool:
    """Return whether the number of the trainer counts, and not that of the launcher.

    Raises:
        ConfigError: If one layer sets them to different numbers.
    """
    if devices.count == ALL:
        return False
    rank = resolved.rank_of(devices.node.origin)
    rank_of_launch = resolved.rank_of(processes.node.origin)
    if count_devices(devices.count) == count_devices(processes.count):
        return isinstance(devices.count, tuple) or rank >= rank_of_launch
    if rank == rank_of_launch and not _is_weak(devices):
        raise contradiction(devices.by, processes.by, "say one of them, or the same number")
    return rank > rank_of_launch


def _number_of(count: Any, node: Node) -> _Number:
    return _Number(count, node, _setting_of(_DEVICES, node))


def _find_devices(node: Node | None) -> _Number | None:
    """Return the number of the trainer's devices; None where there is no number."""
    if node is None or to_plain(node) is None:
        return None
    return _number_of(read_count(Setting(_DEVICES, node)), node)


def _find_horovods(node: Node | None, launch: Launch) -> _Number | None:
    """Return the number of Horovod's processes that device keys have set in any layer.

    One device is what each process has, as in Lightning 1.x. With ``launch.hosts``, which has a
    number for each host, the keys of one machine set none.

    Raises:
        ConfigError: If GPUs are named by their numbers.
    """
    if node is None:
        return None
    numbers = read_count(Setting(_DEVICES, node))
    if isinstance(numbers, tuple):
        raise _refuse_numbers(_setting_of(_DEVICES, node), numbers)
    if launch.has_hosts:
        return None
    of_all = None
    for each in (node, *reversed(node.replaced)):
        count = read_count(Setting(_DEVICES, each))
        if is_int(count) and count not in (1, ALL):
            return _number_of(count, each)
        if of_all is None and count == ALL:  # a number says more
            of_all = _number_of(count, each)
    return of_all


def _refuse_numbers(setting: Setting, numbers: Sequence[int]) -> Exception:
    listed = ",".join(map(str, numbers))
    text = "Horovod's processes take the visible GPUs in their order; set the variable "
    advice = f"CUDA_VISIBLE_DEVICES={listed}, and say gpus: {len(numbers)}"
    return setting.refuse(f"{text}{advice}")


def _find_processes(launch: Launch, *, is_horovod: bool) -> _Number | None:
    """Return the number of the launcher's processes where it is that of the devices.

    Raises:
        ConfigError: If it is below 0 for others than Horovod.
    """
    setting = launch.processes
    if setting is None or not is_int(setting.value) or not setting.value:
        return None
    # each process sees the devices that its launcher gives it
    if launch.is_remote and not is_horovod:
        return None
    if setting.value < 0 and not is_horovod:
        raise setting.expect(
            "a number from 1; one below 0 has a meaning for launch.engine: spark only"
        )
    return _Number(setting.value, setting.node, setting)


def _is_weak(devices: _Number) -> bool:
    """Return whether a number of devices gives way to that of the processes.

    ``auto``, or the default of 1.x.
    """
    is_default = devices.by.subject == "num_processes" and devices.by.value == 1
    return is_default or _says_nothing(devices.node, "devices")


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
        raise by.refuse("this machine's GPUs cannot be counted without CUDA; set their number")
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
    """Leave out the keys of the trainer that were set to nothing in other words.

    The hardware may decide a precision of ``auto`` then.
    """
    changes: Changes = {}
    for key in TRAINER_DEFAULTS:
        node = find(resolved.tree, ("trainer", key))
        if node is not None and node.origin.word is not None and _says_nothing(node, key):
            changes |= _leave_out(resolved, key, node.origin.word)
    return changes


def _resolve_xla_precision(resolved: Resolved, environ: Mapping[str, str]) -> Changes:
    """Resolve the precision on a TPU, where ``XLA_USE_BF16`` counts, too.

    Raises:
        ConfigError: If XLA has it not, or two places set different ones.
    """
    by = _find_setting(resolved, "precision")
    if by is not None and by.value in (None, AUTO):
        by = None
    variable = _find_xla_variable(environ)
    if by is None:
        if variable is None:
            return {}
        return {_PRECISION: (Leaf("bf16-true", variable.origin), variable)}
    word = XLA_PRECISIONS.get(str(by.value))
    if word is None:
        why = "16-true computes in float32 there without a word, and mixed precision is refused"
        raise by.refuse(f"on a TPU expected 32-true or bf16-true; {why}; set precision: bf16-true")
    if variable is not None and word != "bf16-true":
        raise contradiction(by, variable, "say precision: bf16-true, or unset the variable")
    is_written = by.path[0] == "trainer" and not by.is_old_precision
    return {} if is_written else {_PRECISION: (make_node(word, by), by)}


def _find_xla_variable(environ: Mapping[str, str]) -> Setting | None:
    """Return the variable that asks XLA for bf16; None where it does not."""
    value = environ.get("XLA_USE_BF16", "")
    if value.lower() not in ("1", "true", "yes"):
        return None
    return Setting(("XLA_USE_BF16",), Leaf(value, Origin("variable", "XLA_USE_BF16")))


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


def _resolve_number(resolved: Resolved, asked: Requirements, processes: int | None) -> Changes:
    """Set the devices of the trainer and the processes of the launcher, which follow each other."""
    changes: Changes = {}
    by = asked.count_by
    if asked.strategy == "horovod" and asked.strategy_by is not None:
        changes[_DEVICES] = Leaf(1, asked.strategy_by.origin), asked.strategy_by
    elif by is not None and asked.is_launched:
        changes |= (
            _leave_out(resolved, "devices", by)
            if asked.devices is None
            else {_DEVICES: (make_node(asked.devices, by), by)}
        )
    if by is None or asked.is_launched:
        return changes

    if processes is not None:
        changes[_PROCESSES] = make_node(processes, by), by
    elif _is_followed(asked):
        changes[_PROCESSES] = make_node(_count_processes(asked.count), by), by
    return changes


def _is_followed(asked: Requirements) -> bool:
    """Return whether the launcher has another number of processes than the devices that count."""
    if asked.launch.processes is None or (asked.launch.is_remote and asked.strategy != "horovod"):
        return False
    number = asked.launch.processes.value
    return is_int(number) and count_devices(number) not in (0, count_devices(asked.count))


def _resolve_computing(
    block: Sequence[Setting],
    resolved: Resolved,
    asked: Requirements,
    machine: Machine | None,
    environ: Mapping[str, str],
) -> tuple[str, Computation]:
    """Send the block's keys for computing to the keys that take them.

    With this machine's values for ``auto``.
    """
    if machine is None:
        return "", resolve_computing(block, resolved, asked.kind, {})
    kind = asked.kind or find_default_kind(None if asked.launch.is_elsewhere else machine)
    local = environ.get("LOCAL_WORLD_SIZE", "")
    number = int(local) if local.isdigit() else _count_processes(asked.devices)
    if not number and kind == "gpu":
        number = count_visible(kind, machine)
    kind_here = kind or find_default_kind(machine)
    words, values = choose_settings(kind_here, machine, processes=number or 1, environ=environ)
    if asked.launch.is_elsewhere:
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
    removed = {path for path in _OLD_KEYS if find(resolved.tree, path) is not None}
    removed |= {path for path, (node, _) in changes.items() if node is None}
    changed = {*changes, *removed}
    if not changed:
        return resolved
    tree = rebuild(resolved.tree, lambda path, node: None if path in removed else node)
    assert isinstance(tree, MappingNode)
    references = _drop_references(resolved.references, changed)
    for path, (node, by) in changes.items():
        if node is None:
            continue
        old = find(resolved.tree, path)
        tree = put(tree, path, _with_history(node, path, by, old))
        references |= _move_references(resolved.references, node, path, by)
    return replace(resolved, tree=tree, references=references)


def _move_references(
    references: Mapping[KeyPath, str], node: Node, path: KeyPath, by: Setting
) -> dict[KeyPath, str]:
    """Return the references at and below a setting, as they are below the key that takes it.

    There are none where the value is another one there.
    """
    if str(to_plain(by.node)) != str(to_plain(node)):
        return {}
    length = len(by.path)
    return {
        (*path, *key[length:]): text for key, text in references.items() if key[:length] == by.path
    }


def _drop_references(
    references: Mapping[KeyPath, str], paths: Collection[KeyPath]
) -> dict[KeyPath, str]:
    return {
        key: text
        for key, text in references.items()
        if not any(key[: len(path)] == path for path in paths)
    }


def _with_history(node: Node, path: KeyPath, by: Setting, old: Node | None) -> Node:
    """Return a value with the setting that asks for it, and with the values that it replaces.

    Those are the values at its place, and those that its setting had replaced at its own.
    """
    word = None if path == by.path and node is by.node else by
    replaced: tuple[Node, ...] = ()
    if old is not None and old.origin == node.origin:
        replaced = old.replaced
    elif old is not None:
        replaced = (*old.replaced, replace(old, replaced=()))
    if path != by.path:
        replaced = (*replaced, *by.node.replaced)
    return replace(node, origin=replace(node.origin, word=word), replaced=replaced)


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
    for key in TRAINER_KEYS:
        node = find(resolved.tree, ("trainer", key))
        if node is None or (node.origin.word is not None and to_plain(node) is None):
            continue
        setting = node.origin.word or Setting(("trainer", key), node)
        if _is_old(setting) and setting not in found:
            found.append(setting)
    return sorted(found, key=lambda setting: str(setting.path[0]))


def _list_todays(completed: Resolved) -> list[tuple[Setting, str]]:
    """List the keys of a completed config that were set in other words, with their values."""
    today = []
    for path in (*(("trainer", key) for key in TRAINER_DEFAULTS), _PROCESSES):
        node = find(completed.tree, path)
        if node is not None and node.origin.word is not None:
            named = class_of(node)
            shown = "horovod" if named == HOROVOD else named or to_plain(node)
            today.append((node.origin.word, f"{dotted(path)}: {shown}"))
    return today


def _format_notices(resolved: Resolved, completed: Resolved) -> list[str]:
    """Write a sentence for each spelling of Lightning 1.x, with its place and the new spelling."""
    today = _list_todays(completed)
    notices = []
    for setting in _list_old(resolved):
        place = (setting.path, setting.origin)
        keys = sorted(text for word, text in today if (word.path, word.origin) == place)
        if keys or setting.value in (None, 0, 1, "", []):  # else a higher layer has replaced it
            text = (
                f"{setting} is a spelling of Lightning 1.x; today:"
                f" {', '.join(keys) or 'leave it out'}"
            )
            notices.append(f"{text} ({setting.origin})")
    return notices
