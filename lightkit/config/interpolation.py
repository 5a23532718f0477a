"""OmegaConf's ``${...}``, resolved once all layers are laid, with a record of what came from the environment."""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import InterpolationKeyError, InterpolationToMissingValueError, OmegaConfBaseException
from omegaconf.resolvers import oc

from lightkit.config.origins import KeyPath, dotted, mistake, near, shortened
from lightkit.config.tree import Items, Leaf, Node, Table, graft, plain, walk
from lightkit.errors import ConfigError

__all__ = ["Interpolated", "escaped", "interpolate"]

_SHORTEST_SECRET = 4  # characters; masking "3" in a log would mask half of its numbers
_NO_DEFAULT = object()
_RESOLVER_LOCK = threading.Lock()  # OmegaConf's resolvers are global


@dataclass(frozen=True)
class Interpolated:
    """A tree without interpolations.

    Args:
        tree: The values.
        references: Text of each interpolation that used the environment, also through other keys, by its path.
        secrets: What the environment gave, each with the reference that stands for it, longest first.
    """

    tree: Table
    references: dict[KeyPath, str] = field(default_factory=dict)
    secrets: tuple[tuple[str, str], ...] = ()


def interpolate(tree: Table, environ: Mapping[str, str]) -> Interpolated:
    r"""Resolve every string that contains ``${``; ``\${`` stands for itself.

    Raises:
        ConfigError: If a key or variable is missing, or the text is no interpolation; it shows the value's place.
    """
    texts = {path: node for path, node in walk(tree) if isinstance(node, Leaf) and _is_text(node.value)}
    if not texts:
        return Interpolated(tree)
    for path, leaf in texts.items():
        _check_grammar(path, leaf)
    resolution = _Resolution(tree, environ)
    values = resolution.resolve(texts)
    tree = _with_values(tree, values)
    secrets = sorted(resolution.secrets.items(), key=lambda pair: (-len(pair[0]), pair))
    return Interpolated(tree, resolution.references, tuple(secrets))


def escaped(text: str) -> str:
    """Write a literal string so that `interpolate` gives it back."""
    return re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + r"\${", text)


def _register(name: str, resolver: Callable[..., Any]) -> None:
    """Register by OmegaConf 2.4's function; that of 2.3 warns since, and this one had another form then."""
    if "replace" in inspect.signature(OmegaConf.register_resolver).parameters:
        OmegaConf.register_resolver(name, resolver, replace=True)
    else:
        OmegaConf.register_new_resolver(name, resolver, replace=True)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and "${" in value


def _check_grammar(path: KeyPath, leaf: Leaf) -> None:
    try:
        OmegaConf.create({"value": leaf.value})
    except OmegaConfBaseException as error:
        problem = str(error).splitlines()[0]
        says = f"{dotted(path)}: {shortened(leaf.value)} is not a valid interpolation: {problem}"
        raise mistake(rf"{says}; write \${{ where the text itself is meant", leaf.origin) from None


class _Resolution:
    """Resolves the texts of one tree, and notes which variables each used."""

    def __init__(self, tree: Table, environ: Mapping[str, str]) -> None:
        self._tree = tree
        self._environ = environ
        self._container = OmegaConf.create(plain(tree), flags={"allow_objects": True})
        self._used: dict[str, str | None] = {}
        self.references: dict[KeyPath, str] = {}
        self.secrets: dict[str, str] = {}

    def resolve(self, texts: Mapping[KeyPath, Leaf]) -> dict[KeyPath, Any]:
        values: dict[KeyPath, Any] = {}
        failures: list[tuple[bool, ConfigError]] = []
        with _RESOLVER_LOCK:
            _register("oc.env", self._variable)
            try:
                for path, leaf in texts.items():
                    self._used = {}
                    try:
                        values[path] = self._value(path)
                    except (OmegaConfBaseException, RecursionError) as error:
                        failures.append(self._failure(path, leaf, error))
                        continue
                    self._note(path, leaf.value, values[path])
            finally:
                _register("oc.env", oc.env)
        if failures:  # a value that fails by itself explains those that only refer to it
            raise min(failures, key=lambda failure: not failure[0])[1]
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
        text, says = leaf.value, str(error).splitlines()[0] if str(error) else "it refers to itself"
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
            keys = [dotted(known) for known, _ in walk(self._tree) if known]
            says = f"it refers to {key}, which is not set{near(key, keys)}"
        elif isinstance(error, InterpolationToMissingValueError):
            says = "it refers to a value that is ???, which stands for one that is missing"
        return own, mistake(f"{dotted(path)}: cannot resolve {shortened(text)}: {says}", leaf.origin)


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
