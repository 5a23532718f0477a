"""A config without what is known to be wrong in it, so that a check which stops at its first mistake finds the next."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from time import monotonic
from typing import TypeVar

from lightkit.config.origins import KeyPath, Origin
from lightkit.config.problems import Problems
from lightkit.config.resolved import Resolved
from lightkit.config.tree import Items, Node, Table
from lightkit.errors import ConfigError, LightkitError

__all__ = ["Consequence", "as_written", "checked", "without", "without_places"]

_Result = TypeVar("_Result")
_MOST_MISTAKES = 100  # a config that has more is not the one that was meant
_NUM_SURE = 20  # rounds that are taken however long they last; one of jsonargparse's may take half a second
_LONGEST_S = 5.0


class Consequence(ConfigError):
    """A mistake only because something that was wrong has been left out; it is not told."""


def checked(
    resolved: Resolved, check: Callable[[Resolved], _Result], problems: Problems
) -> tuple[_Result | None, Resolved]:
    """Run a check until it finds nothing more, each time without the places of the mistake that it found.

    Args:
        resolved: The config.
        check: Raises at the first mistake, with its places.
        problems: Takes the mistakes.

    Returns:
        What the check gives for the config without its mistakes, None where it cannot go on; and that config.
    """
    begin = monotonic()
    for number in range(_MOST_MISTAKES):
        if number >= _NUM_SURE and monotonic() - begin > _LONGEST_S:
            problems.add(ConfigError("there may be more mistakes, which show once these are corrected"))
            break
        try:
            return check(resolved), resolved
        except LightkitError as error:
            if not isinstance(error, Consequence):
                problems.add(error)
            smaller = without_places(resolved, [place for place in error.places if isinstance(place, Origin)])
            if smaller is resolved:
                break
            resolved = smaller
    return None, resolved


def without_places(resolved: Resolved, places: Collection[Origin]) -> Resolved:
    """Leave out the values that were set at ``places``, or whose keys stand there; defaults stay.

    Returns:
        ``resolved`` itself where nothing of it is from there.
    """
    meant = {place for place in places if place.kind != "default"}
    return without(resolved, set(_set_at(resolved.tree, meant, ()))) if meant else resolved


def without(resolved: Resolved, paths: Collection[KeyPath]) -> Resolved:
    """Leave out the values at ``paths``; with the name of a class all that is said of it goes."""
    if not paths:
        return resolved
    paths = {path[:-1] if path[-1] == "class_path" else path for path in paths}
    tree = _pruned(resolved.tree, paths, ())
    assert isinstance(tree, Table)
    written = {as_written(path, resolved.removed) for path in paths}
    return replace(resolved, tree=tree, removed=resolved.removed | written)


def as_written(path: KeyPath, removed: Collection[KeyPath]) -> KeyPath:
    """Give the path that a value had before others were left out of the lists around it.

    Args:
        path: Its path now.
        removed: What has been left out, as it was written.
    """
    result: KeyPath = ()
    for part in path:
        index = part
        if isinstance(part, int):
            before = [other[-1] for other in removed if other[:-1] == result and isinstance(other[-1], int)]
            for position in sorted(before):
                index += position <= index
        result = (*result, index)
    return result


def _set_at(node: Node, places: Collection[Origin], path: KeyPath) -> list[KeyPath]:
    """List the values from these places: the innermost, because a flag also opens all mappings on its way."""
    children: list[KeyPath] = []
    if isinstance(node, Table):
        children = [found for key, child in node.entries.items() for found in _set_at(child, places, (*path, key))]
    elif isinstance(node, Items):
        children = [found for i, child in enumerate(node.items) for found in _set_at(child, places, (*path, i))]
    is_here = bool(path) and (node.origin in places or node.origin.key in places)
    return children or ([path] if is_here else [])


def _pruned(node: Node, paths: Collection[KeyPath], path: KeyPath) -> Node:
    if isinstance(node, Table):
        kept = {key: child for key, child in node.entries.items() if (*path, key) not in paths}
        return replace(node, entries={key: _pruned(child, paths, (*path, key)) for key, child in kept.items()})
    if isinstance(node, Items):
        kept_items = [(i, child) for i, child in enumerate(node.items) if (*path, i) not in paths]
        return replace(node, items=tuple(_pruned(child, paths, (*path, i)) for i, child in kept_items))
    return node
