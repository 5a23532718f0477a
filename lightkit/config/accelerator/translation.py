"""Translate the hardware keys of one layer to today's keys of the trainer, before it is merged.

A layer that sets ``gpus: 2`` sets ``trainer.accelerator: gpu`` and ``trainer.devices: 2`` then, so
that the merge decides between layers as for every key. The keys themselves stay beside them, for
references such as ``${accelerator.gpus}``, until `lightkit.config.accelerator.resolve` takes them
out.

Two rules say what a layer replaces below it in addition: a key replaces all that the same key has
set, and another kind of device replaces the number of devices, as another class replaces the
arguments of a class.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from lightkit.config.accelerator.block import BLOCK_KEYS
from lightkit.config.accelerator.setting import AUTO, Setting, contradiction, count_devices
from lightkit.config.accelerator.vocabulary import (
    ALL,
    HOROVOD,
    TRAINER_DEFAULTS,
    TRAINER_KEYS,
)
from lightkit.config.accelerator.words import ORDER, Wish, find_kind, list_wishes
from lightkit.config.interpolation import interpolate
from lightkit.config.merge import MergeRules, class_of
from lightkit.config.origins import KeyPath, Origin, Problems
from lightkit.config.tree import Leaf, MappingNode, Node, entries_of, find, text_of, to_plain
from lightkit.errors import ConfigError

_ADVICE = {
    "accelerator": "a run is on one kind of device, not on {} and {}",
    "devices": "say one of them, or the same number",
}


def translate(
    parts: Sequence[MappingNode],
    below: MappingNode,
    *,
    environ: Mapping[str, str],
    problems: Problems,
) -> list[MappingNode]:
    """Translate the hardware keys of a layer.

    A value that is wrong is left as it is: another layer may replace it, and else the check of the
    config reports it.

    Args:
        parts: The layer: the sections of a file with what they include, all variables, or all
            flags; lowest first.
        below: The layers below, merged.
        environ: Environment variables, for ``${oc.env:NAME}``.
        problems: Collects contradictions within the layer, whose keys are left out.

    Returns:
        The parts, and one more with the keys of the trainer that are set in other words.
    """
    own = _merge_sections(parts)
    if not {"accelerator", "trainer"} & own.entries.keys():
        return list(parts)
    # reported with its place later
    if not all(_is_section(tree.entries.get("trainer")) for tree in (*parts, below)):
        return list(parts)
    wishes = _list_wishes(own, below, environ)
    left_out = (
        {"accelerator"} if any(wish.setting.is_strategy_word for wish in wishes) else set[str]()
    )
    chosen = _choose_all(own, wishes, left_out, problems)
    in_other_words = {
        key: _mark(wish, own) for key, wish in chosen.items() if _is_written(wish, below)
    }

    # the keys that the layer leaves open, of which it may take values back
    in_place = set(_list_keys(own)) - left_out
    open_keys = [key for key in TRAINER_DEFAULTS if key not in chosen and key not in in_place]
    replaced = _list_replaced(open_keys, own, below, chosen.get("accelerator"), environ)
    entries = {**replaced, **in_other_words}
    return _write(parts, entries, left_out=left_out | entries.keys())


def _choose_all(
    own: MappingNode, wishes: Sequence[Wish], left_out: set[str], problems: Problems
) -> dict[str, Wish]:
    """Choose the wish that decides each key of the trainer.

    Args:
        own: Hardware keys of the layer.
        wishes: Wishes of its settings.
        left_out: Takes the keys whose wishes contradict each other.
        problems: Collects the contradictions.
    """
    chosen = dict[str, Wish]()
    for key in TRAINER_DEFAULTS:
        if _is_wrong(key, own, wishes):
            continue
        try:
            wish = _choose([each for each in wishes if each.key == key])
        except ConfigError as error:
            problems.add(error)
            left_out.add(key)
            if key == "accelerator":  # the number of devices belongs to it
                left_out.add("devices")
                wishes = [each for each in wishes if each.key != "devices"]
            continue
        if wish is not None:
            chosen[key] = wish
            wishes = _drop_numbers(wishes, wish)
    return chosen


def _is_section(node: Node | None) -> bool:
    return isinstance(node, MappingNode) or to_plain(node) is None


def _merge_sections(parts: Sequence[MappingNode]) -> MappingNode:
    """Merge the hardware keys of the parts of a layer."""
    rules = MergeRules(problems=Problems())  # the merge of the whole layer reports them
    own: Node = MappingNode({}, Origin("default"))
    for part in parts:
        entries = {
            key: part.entries[key] for key in ("accelerator", "launch") if key in part.entries
        }
        trainer = part.entries.get("trainer")
        keys = {key: node for key, node in entries_of(trainer).items() if key in TRAINER_KEYS}
        if keys:
            entries["trainer"] = MappingNode(keys, part.origin)
        if entries:
            own = rules.merge(own, MappingNode(entries, part.origin))
    assert isinstance(own, MappingNode)
    return own


def _write(
    parts: Sequence[MappingNode], entries: Mapping[str, Node], *, left_out: Collection[str]
) -> list[MappingNode]:
    """Take keys of the trainer out of all parts, and add a part with others."""
    written = [_drop_keys(part, left_out) for part in parts]
    if entries:
        origin = replace(next(iter(entries.values())).origin, word=None)
        trainer = MappingNode(entries, origin, partial=True)
        written.append(MappingNode({"trainer": trainer}, origin, partial=True))
    return written


def _list_keys(own: MappingNode) -> list[str]:
    keys = entries_of(own.entries.get("trainer")).keys()
    return [key for key in TRAINER_DEFAULTS if key in keys]


def _drop_keys(part: MappingNode, keys: Collection[str]) -> MappingNode:
    trainer = part.entries.get("trainer")
    if not isinstance(trainer, MappingNode) or not trainer.entries.keys() & set(keys):
        return part
    kept = {key: node for key, node in trainer.entries.items() if key not in keys}
    return replace(part, entries={**part.entries, "trainer": replace(trainer, entries=kept)})


# -- keys of the trainer that the layer sets
# ---------------------------------------------------------------------------


def _list_wishes(own: MappingNode, below: MappingNode, environ: Mapping[str, str]) -> list[Wish]:
    """List the keys of the trainer that a layer's settings ask for, those of the block first."""
    paths = [("accelerator", key) for key in BLOCK_KEYS] + [
        ("trainer", key) for key in TRAINER_KEYS
    ]
    wishes = list[Wish]()
    for path in paths:
        setting = read_setting(own, path, environ)
        if setting is not None:
            # the check of the config reports it, unless another layer replaces it
            with suppress(ConfigError):
                wishes += list_wishes(setting, has_devices=_has_devices(own, below, path[0]))
    if _is_horovod(wishes, own, below):
        # its processes have one device each, so that neither one nor all of them is their number
        wishes = [replace(each, is_weak=each.is_weak or each.value in (1, ALL)) for each in wishes]
    return sorted(wishes, key=_order)


def _is_wrong(key: str, own: MappingNode, wishes: Sequence[Wish]) -> bool:
    """Return whether the layer sets a key of the trainer to a value that is none."""
    path = ("trainer", key)
    return find(own, path) is not None and not any(wish.setting.path == path for wish in wishes)


def _order(wish: Wish) -> int:
    return ORDER.index(wish.setting.subject) if wish.setting.subject in ORDER else len(ORDER)


def read_setting(tree: MappingNode, path: KeyPath, environ: Mapping[str, str]) -> Setting | None:
    """Read a setting of a layer, in which ``${oc.env:NAME}`` is resolved.

    Returns:
        None where it is not set, or is to be translated and refers to other keys.
    """
    node = find(tree, path)
    if node is None or "${" not in (text_of(node) or ""):
        return None if node is None else Setting(path, node)
    alone = interpolate(MappingNode({"value": node}, node.origin), environ, Problems())
    if alone.unresolved:
        return Setting(path, node) if path[0] == "trainer" and path[1] in TRAINER_DEFAULTS else None
    return Setting(path, alone.tree.entries["value"])


def _has_devices(own: MappingNode, below: MappingNode, section: str) -> bool:
    """Return whether GPUs or TPU cores are set in a section, in this layer or below."""
    for key in ("gpus", "tpu_cores"):
        node = find(own, (section, key))
        if node is None and _is_section_kept(own, section):
            node = find(below, (section, key))
        if node is not None and Setting((section, key), node).value not in (None, 0, []):
            return True
    return False


def _is_section_kept(own: MappingNode, section: str) -> bool:
    """Return whether a layer keeps what lower ones have set in a section.

    ``accelerator: null`` does not.
    """
    node = own.entries.get(section)
    return node is None or isinstance(node, MappingNode)


def _is_horovod(wishes: Sequence[Wish], own: MappingNode, below: MappingNode) -> bool:
    """Return whether the strategy is Horovod's, as far as this layer and those below tell."""
    if any(wish.key == "strategy" and wish.value == "horovod" for wish in wishes):
        return True
    strategy = find(below, ("trainer", "strategy"))
    if strategy is not None and class_of(strategy) == HOROVOD:
        return True
    engines = [find(tree, ("launch", "engine")) for tree in (own, below)]
    return any(to_plain(node) == "horovod" for node in engines)


def _choose(wishes: Sequence[Wish]) -> Wish | None:
    """Return the wish that decides a key of the trainer; within it, weak ones give way to others.

    Raises:
        ConfigError: If two differ.
    """
    strong = _list_strong(wishes)
    if not strong:
        return None
    first = strong[0]
    for other in strong[1:]:
        if not _agree(first, other):
            advice = _ADVICE.get(first.key, "say one of them").format(first.value, other.value)
            raise contradiction(first.setting, other.setting, advice)
    for wish in strong:
        if wish.key == "devices" and isinstance(wish.value, tuple):  # it says more than a number
            return wish
    return _prefer_own_key(first, strong)


def _list_strong(wishes: Sequence[Wish]) -> list[Wish]:
    """List the wishes that decide: all that are not weak, else those that say something."""
    strong = [wish for wish in wishes if not wish.is_weak]
    return strong or [wish for wish in wishes if wish.value not in (None, AUTO)] or list(wishes)


def _prefer_own_key(first: Wish, others: Sequence[Wish]) -> Wish:
    """Return the wish of the trainer's own key where it is the same, which outlives the block's."""
    for wish in others:
        is_same = to_plain(wish.node) == to_plain(first.node)
        is_own = wish.setting.path == ("trainer", wish.key)
        if is_same and is_own and first.setting.subject != "num_processes":  # it asks for ddp, too
            return wish
    return first


def _drop_numbers(wishes: Sequence[Wish], kind: Wish) -> list[Wish]:
    """Drop the numbers of devices whose settings ask for another kind than the one chosen."""
    if kind.key != "accelerator":
        return list(wishes)
    others = [
        wish.setting
        for wish in wishes
        if wish.key == "accelerator" and wish.value not in (kind.value, AUTO)
    ]
    return [wish for wish in wishes if wish.key != "devices" or wish.setting not in others]


def _agree(one: Wish, other: Wish) -> bool:
    is_list = isinstance(one.value, tuple) and isinstance(other.value, tuple)
    if one.key != "devices" or is_list:
        return bool(one.value == other.value)
    return bool(count_devices(one.value) == count_devices(other.value))


def _is_in_place(wish: Wish) -> bool:
    """Return whether the layer writes the key of the trainer itself, in today's words."""
    return wish.setting.path == ("trainer", wish.key) and wish.node is wish.setting.node


def _is_written(wish: Wish, below: MappingNode) -> bool:
    """Return whether a wish is to be written as a key of the trainer.

    It is not where it stands there already, nor where a key of the block says nothing and there is
    nothing below.
    """
    if _is_in_place(wish):
        return False
    is_nothing = (
        wish.value in (None, AUTO) and wish.is_weak and wish.setting.path[0] == "accelerator"
    )
    return (
        not is_nothing or wish.key == "strategy" or find(below, ("trainer", wish.key)) is not None
    )


def _mark(wish: Wish, own: MappingNode) -> Node:
    """Build the value of a key of the trainer, with the setting that asked for it."""
    node = wish.node
    written = find(own, wish.setting.path)
    if isinstance(written, Leaf) and str(to_plain(node)) == str(to_plain(wish.setting.node)):
        # ${oc.env:NAME} stays a reference
        node = written if written.value != to_plain(wish.setting.node) else node
    return replace(node, origin=replace(node.origin, word=wish.setting))


# -- keys of the trainer that it replaces in addition
# ------------------------------------------------------------------


def _list_replaced(
    keys: Collection[str],
    own: MappingNode,
    below: MappingNode,
    kind: Wish | None,
    environ: Mapping[str, str],
) -> dict[str, Node]:
    """List the values that a layer takes back from the layers below, by the trainer's key.

    Args:
        keys: Keys that the layer does not set.
        own: Hardware keys of the layer.
        below: The layers below.
        kind: The kind of device that the layer asks for.
        environ: Environment variables.

    Returns:
        The value that counts instead; null where there is none.
    """
    entries = dict[str, Node]()
    for key in keys:
        lower = find(below, ("trainer", key))
        if lower is None:
            continue
        # by a kind of device; it does not come back
        is_dropped = key == "devices" and to_plain(lower) is None
        if _is_replaced(lower, own) and not (is_dropped and kind is not None):
            entries[key] = _restore(lower, own)
        elif key == "devices" and kind is not None and _changes_kind(kind, below, environ):
            entries[key] = Leaf(None, replace(kind.setting.origin, word=kind.setting))
    return entries


def _is_replaced(node: Node, own: MappingNode) -> bool:
    """Return whether a value comes from a setting that this layer sets anew.

    A setting may be dropped with its section, too.
    """
    word = node.origin.word
    if word is None:
        return False
    return find(own, word.path) is not None or not _is_section_kept(own, word.path[0])


def _restore(node: Node, own: MappingNode) -> Node:
    """Return the highest value that other settings have set below."""
    for lower in reversed(node.replaced):
        if not _is_replaced(lower, own):
            return lower
    return Leaf(None, node.origin)


def _changes_kind(wish: Wish, below: MappingNode, environ: Mapping[str, str]) -> bool:
    """Return whether the number of devices below is one of another kind than a layer asks for."""
    number = read_setting(below, ("trainer", "devices"), environ)
    if number is None or number.value is None:
        return False
    kind = read_setting(below, ("trainer", "accelerator"), environ)
    before = None if kind is None else find_kind(kind)
    if before is not None:
        return bool(wish.value != before)
    is_of_gpus = number.value == ALL or isinstance(number.value, list) or "," in str(number.value)
    return wish.value == "cpu" and is_of_gpus
