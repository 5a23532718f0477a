"""OmegaConf's part in ``${...}``: its grammar, and what each text comes to.

Apart, because OmegaConf takes longer to load than all the rest that reads a config, and few configs need it.
"""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable, Mapping
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
from lightkit.config.tree import Leaf, Table, plain, walk
from lightkit.errors import ConfigError

__all__ = ["Resolution", "is_valid"]

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
