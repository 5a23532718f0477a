"""Resolve OmegaConf's ``${...}`` once all layers are merged, with a record of what came from the environment."""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import (
    InterpolationKeyError,
    InterpolationToMissingValueError,
    OmegaConfBaseException,
    UnsupportedInterpolationType,
)
from omegaconf.resolvers import oc

from lightkit.config.origins import KeyPath, dotted, mistake, near, shortened
from lightkit.config.problems import Problems
from lightkit.config.tree import Items, Leaf, Node, Table, graft, plain, walk
from lightkit.config.yaml_reader import MAX_DEPTH, MAX_NODES, TOO_LARGE
from lightkit.errors import ConfigError

_REFERENCE = re.compile(r"\$\{\s*(\.*)([^${}:,\s]+)\s*\}")


@dataclass(frozen=True)
class Interpolated:
    """A tree without interpolations.

    Args:
        tree: The values.
        references: Text of each interpolation that used the environment, also through other keys, by its path.
        secrets: What the environment gave, each with the reference that stands for it, longest first.
        unresolved: Paths of the texts that cannot be resolved, which stand in the tree as they are.
        texts: Text of every interpolation, by its path.
    """

    tree: Table
    references: dict[KeyPath, str] = field(default_factory=dict)
    secrets: tuple[tuple[str, str], ...] = ()
    unresolved: frozenset[KeyPath] = frozenset()
    texts: Mapping[KeyPath, str] = field(default_factory=dict)


def interpolate(tree: Table, environ: Mapping[str, str], problems: Problems) -> Interpolated:
    r"""Resolve every string that contains ``${``; ``\${`` stands for itself.

    Args:
        tree: The config.
        environ: Environment variables.
        problems: Takes what is missing, a key or a variable, and what is no interpolation.
    """
    texts = {path: node for path, node in walk(tree) if isinstance(node, Leaf) and _is_text(node.value)}
    if (large := _too_large(tree, texts)) is not None:
        problems.add(large)
        return Interpolated(tree, unresolved=frozenset(texts))
    if not texts:
        return Interpolated(tree)
    from lightkit.config.interpolation import Resolution, is_valid  # here, because OmegaConf takes 80 ms to load

    wrong = {path for path, leaf in texts.items() if not is_valid(path, leaf, problems)}
    resolution = Resolution(_without(tree, wrong), environ)
    values = resolution.resolve({path: leaf for path, leaf in texts.items() if path not in wrong}, problems)
    tree = _with_values(tree, values)
    secrets = sorted(resolution.secrets.items(), key=lambda pair: (-len(pair[0]), pair))
    unresolved = frozenset(path for path in texts if path not in values)
    written = {path: leaf.value for path, leaf in texts.items()}
    return Interpolated(tree, resolution.references, tuple(secrets), unresolved, written)


def _too_large(tree: Table, texts: Mapping[KeyPath, Leaf]) -> ConfigError | None:
    """Return an error, at the largest interpolation or section, if the config with all interpolations is too large."""
    sizes: dict[KeyPath, tuple[int, int]] = {}

    def measure(path: KeyPath, node: Node, depth: int) -> tuple[int, int]:
        """Count the values and the levels of a node, each node once."""
        if path not in sizes and depth <= MAX_DEPTH:
            sizes[path] = 1, 0  # a reference to itself is OmegaConf's error
            parts = [measure(*part, depth + 1) for part in _parts(tree, path, node)]
            sizes[path] = 1 + sum(values for values, _ in parts), max((levels + 1 for _, levels in parts), default=0)
        return sizes.get(path, (1, MAX_DEPTH + 1))

    values, levels = measure((), tree, 0)
    if values <= MAX_NODES and levels <= MAX_DEPTH:
        return None
    parts: Mapping[KeyPath, Node] = texts or {(key,): node for key, node in tree.entries.items()}
    found = {path: measure(path, node, 0) for path, node in parts.items()}
    path = max(found, key=lambda path: (found[path][1] > MAX_DEPTH, found[path][0]))
    return mistake(f"{dotted(path)}: {TOO_LARGE}", parts[path].origin)


def _parts(tree: Table, path: KeyPath, node: Node) -> Iterator[tuple[KeyPath, Node]]:
    """List the elements of a collection, or the values that a text refers to."""
    if isinstance(node, Table):
        yield from (((*path, key), child) for key, child in node.entries.items())
    elif isinstance(node, Items):
        yield from (((*path, index), child) for index, child in enumerate(node.items))
    elif _is_text(node.value):
        for dots, key in _REFERENCE.findall(node.value):
            base = path[: len(path) - len(dots)] if dots else ()
            there = (*base, *(part for part in re.split(r"[.\[\]]+", key) if part))
            if (found := _at(tree, there)) is not None:
                yield there, found


def _at(node: Node | None, path: KeyPath) -> Node | None:
    for part in path:
        if isinstance(node, Table):
            node = node.entries.get(part)
        elif isinstance(node, Items) and str(part).isdigit() and int(part) < len(node.items):
            node = node.items[int(part)]
        else:
            return None
    return node


def escaped(text: str) -> str:
    """Write a literal string so that `interpolate` gives it back."""
    return re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + r"\${", text)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and "${" in value


def _without(tree: Table, paths: Collection[KeyPath]) -> Table:
    """Leave out what OmegaConf would refuse to read."""
    return _with_values(tree, dict.fromkeys(paths)) if paths else tree


def _with_values(tree: Table, values: Mapping[KeyPath, Any]) -> Table:
    def visit(node: Node, path: KeyPath) -> Node:
        if path in values:
            return replace(graft(values[path], node.origin), replaced=node.replaced)
        if isinstance(node, Table):
            return replace(node, entries={key: visit(child, (*path, key)) for key, child in node.entries.items()})
        if isinstance(node, Items):
            return replace(node, items=tuple(visit(child, (*path, i)) for i, child in enumerate(node.items)))
        return node

    resolved = visit(tree, ())
    assert isinstance(resolved, Table)
    return resolved


_SHORTEST_SECRET = 4  # characters; masking "3" in a log would mask half of its numbers
_MOST_SHOWN = 5  # places of one circle
_NO_DEFAULT = object()
_RESOLVER_LOCK = threading.Lock()  # OmegaConf's resolvers are global


def is_valid(path: KeyPath, leaf: Leaf, problems: Problems) -> bool:
    """Tell whether a text is an interpolation by OmegaConf's grammar; add the mistake if not."""
    if problems.is_full:  # what is wrong with it would not be told
        return False
    try:
        OmegaConf.create({"value": leaf.value})
    except (OmegaConfBaseException, RecursionError) as error:
        is_open = leaf.value.count("${") > leaf.value.count("}")
        problem = "a } is missing" if is_open else (str(error).splitlines() or [""])[0]
        problem = "it nests too deeply" if isinstance(error, RecursionError) else problem
        says = f"{dotted(path)}: {shortened(leaf.value)} is not a valid interpolation: {problem}"
        problems.add(mistake(rf"{says}; write \${{ where the text itself is meant", leaf.origin))
        return False
    return True


class Resolution:
    """Resolves the texts of one tree, and notes which variables each used.

    Args:
        tree: The values.
        environ: Environment variables.
    """

    def __init__(self, tree: Table, environ: Mapping[str, str]) -> None:
        self._tree = tree
        self._environ = environ
        self._container = OmegaConf.create(plain(tree), flags={"allow_objects": True})
        self._used: dict[str, str | None] = {}
        self.references: dict[KeyPath, str] = {}
        self.secrets: dict[str, str] = {}

    def resolve(self, texts: Mapping[KeyPath, Leaf], problems: Problems) -> dict[KeyPath, Any]:
        """Give the value of each text that has one.

        Args:
            texts: The texts, by their paths.
            problems: Takes the mistakes of the others.
        """
        values: dict[KeyPath, Any] = {}
        failures: list[tuple[bool, ConfigError]] = []
        in_circle: dict[KeyPath, Leaf] = {}
        with _RESOLVER_LOCK:
            _register("oc.env", self._variable)
            try:
                for path, leaf in texts.items():
                    self._used = {}
                    try:
                        values[path] = self._value(path)
                    except (OmegaConfBaseException, RecursionError) as error:
                        if isinstance(error, RecursionError) or "Recursive interpolation" in str(error):
                            in_circle[path] = leaf
                        elif not (problems.is_incomplete and isinstance(error, InterpolationKeyError)):
                            failures.append(self._failure(path, leaf, error))
                        continue
                    self._note(path, leaf.value, values[path])
            finally:
                _register("oc.env", oc.env)
        own = [error for is_own, error in failures if is_own]
        for failure in own or [error for _, error in failures]:  # those that fail by themselves explain the others
            problems.add(failure)
        if in_circle:
            problems.add(_circle(in_circle))
        return values

    def _value(self, path: KeyPath) -> Any:
        node: Any = self._container
        for key in path:
            node = node[key]
        return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node

    def _variable(self, name: Any, default: Any = _NO_DEFAULT) -> str | None:
        """Stand in for OmegaConf's ``oc.env``, with the same rules."""
        value = self._environ.get(str(name))
        self._used[name] = value
        if value is not None:
            return value
        if default is _NO_DEFAULT:
            raise KeyError(f"Environment variable '{name}' not found")
        return None if default is None else str(default)

    def _note(self, path: KeyPath, text: str, value: Any) -> None:
        if not self._used:
            return
        self.references[path] = text
        given = {found: f"${{oc.env:{name}}}" for name, found in self._used.items() if found is not None}
        if isinstance(value, str) and given:
            given.setdefault(value, text)
        self.secrets.update({found: said for found, said in given.items() if len(found) >= _SHORTEST_SECRET})

    def _failure(self, path: KeyPath, leaf: Leaf, error: Exception) -> tuple[bool, ConfigError]:
        text, says = leaf.value, str(error).splitlines()[0]
        missing = next((name for name in self._used if f"Environment variable '{name}' not found" in says), None)
        own = True
        if missing is not None:
            own = missing in text
            says = (
                f"the environment variable {missing} is not set; set it, or give a default: ${{oc.env:{missing},...}}"
            )
        elif isinstance(error, InterpolationKeyError):
            key = (re.findall(r"'(.*?)' not found", says) or ["?"])[0]
            own = key in text
            says = f"it refers to {key}, which is not set{self._near(key)}"
        elif isinstance(error, UnsupportedInterpolationType):
            says = f"there is no {says.rpartition(' ')[2]}; ${{key}} is another key, ${{oc.env:NAME}} a variable"
        elif isinstance(error, InterpolationToMissingValueError):
            says = "it refers to a value that is ???, which stands for one that is missing"
        return own, mistake(f"{dotted(path)}: cannot resolve {shortened(text)}: {says}", leaf.origin)

    def _near(self, key: str) -> str:
        return near(key, [dotted(known) for known, _ in walk(self._tree) if known])


def _circle(texts: Mapping[KeyPath, Leaf]) -> ConfigError:
    """Tell once of the texts that lead back to themselves, and those that lead there."""
    places = [leaf.origin for leaf in texts.values()][:_MOST_SHOWN]
    path, leaf = next(iter(texts.items()))
    what = "it refers to itself" if len(texts) == 1 else "it leads back to itself through other keys"
    return mistake(f"{dotted(path)}: cannot resolve {shortened(leaf.value)}: {what}", *places)


def _register(name: str, resolver: Callable[..., Any]) -> None:
    """Register by OmegaConf 2.4's function; that of 2.3 warns since, and this one had another form then."""
    if "replace" in inspect.signature(OmegaConf.register_resolver).parameters:
        OmegaConf.register_resolver(name, resolver, replace=True)
    else:
        OmegaConf.register_new_resolver(name, resolver, replace=True)
