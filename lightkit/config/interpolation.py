"""Resolve OmegaConf's ``${...}`` once all layers are merged.

Record what came from the environment.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

from lightkit.config.origins import KeyPath, Problems, dotted, error_at, shortened
from lightkit.config.tree import (
    Leaf,
    MappingNode,
    Node,
    find,
    graft,
    list_children,
    rebuild,
    to_plain,
    walk,
)
from lightkit.config.yaml_reader import MAX_DEPTH, MAX_NODES, TOO_LARGE
from lightkit.errors import ConfigError, suggest

_REFERENCE = re.compile(r"\$\{\s*(\.*)([^${}:,\s]+)\s*\}")
_SHORTEST_SECRET = 4  # characters; masking "3" in a log would mask half of its numbers
_MAX_CYCLE_PLACES = 5
# least likeness, from 0 to 1: some of the many variables of a machine are always a bit alike
_NEAR_VARIABLE = 0.8
_NO_DEFAULT = object()
_RESOLVER_LOCK = threading.Lock()  # OmegaConf's resolvers are global


@dataclass(frozen=True)
class Interpolated:
    """A tree without interpolations.

    Args:
        tree: The values.
        references: Text of each interpolation that used the environment, also through other keys,
            by its path.
        secrets: What the environment gave, each with the reference that stands for it.
        unresolved: Paths of the texts that cannot be resolved, which stay in the tree as they are.
        texts: Text of every interpolation, by its path.
    """

    tree: MappingNode
    references: dict[KeyPath, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    unresolved: frozenset[KeyPath] = frozenset()
    texts: Mapping[KeyPath, str] = field(default_factory=dict)


def interpolate(tree: MappingNode, environ: Mapping[str, str], problems: Problems) -> Interpolated:
    r"""Resolve every string that contains ``${``; ``\${`` stands for itself.

    Args:
        tree: The config.
        environ: Environment variables.
        problems: Collects missing keys and variables, and texts that are no interpolations.
    """
    nodes = list(walk(tree))
    texts = {path: node for path, node in nodes if isinstance(node, Leaf) and _is_text(node.value)}
    if (error := _check_size(tree, nodes, texts)) is not None:
        problems.add(error)
        return Interpolated(tree, unresolved=frozenset(texts))
    if not texts:
        return Interpolated(tree)
    valid = {path: leaf for path, leaf in texts.items() if _is_valid(path, leaf, problems)}
    # OmegaConf would refuse to read the others.
    readable = _replace_values(tree, dict.fromkeys(texts.keys() - valid.keys()))
    values, references, secrets = _resolve(readable, valid, environ, problems)
    return Interpolated(
        _replace_values(tree, values),
        references,
        secrets,
        unresolved=frozenset(texts.keys() - values.keys()),
        texts={path: leaf.value for path, leaf in texts.items()},
    )


def has_interpolation(tree: MappingNode) -> bool:
    """Return whether a value of a config contains ``${``."""
    return any(isinstance(node, Leaf) and _is_text(node.value) for _, node in walk(tree))


def escape(text: str) -> str:
    """Write a literal string so that `interpolate` gives it back."""
    return re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + r"\${", text)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and "${" in value


def _check_size(
    tree: MappingNode, nodes: Sequence[tuple[KeyPath, Node]], texts: Mapping[KeyPath, Leaf]
) -> ConfigError | None:
    """Return an error, at the largest interpolation or section.

    If the config with all interpolations is too large.
    """
    if not texts and len(nodes) <= MAX_NODES and max(len(path) for path, _ in nodes) <= MAX_DEPTH:
        return None
    sizes: dict[KeyPath, tuple[int, int]] = {}

    def measure(path: KeyPath, node: Node, depth: int) -> tuple[int, int]:
        """Count the values and the levels of a node, each node once."""
        if path not in sizes and depth <= MAX_DEPTH:
            sizes[path] = 1, 0  # a reference to itself is OmegaConf's error
            parts = [measure(*part, depth + 1) for part in _list_parts(tree, path, node)]
            sizes[path] = (
                1 + sum(values for values, _ in parts),
                max((levels + 1 for _, levels in parts), default=0),
            )
        return sizes.get(path, (1, MAX_DEPTH + 1))

    values, levels = measure((), tree, 0)
    if values <= MAX_NODES and levels <= MAX_DEPTH:
        return None
    parts: Mapping[KeyPath, Node] = texts or {(key,): node for key, node in tree.entries.items()}
    found = {path: measure(path, node, 0) for path, node in parts.items()}
    path = max(found, key=lambda path: (found[path][1] > MAX_DEPTH, found[path][0]))
    return error_at(f"{dotted(path)}: {TOO_LARGE}", parts[path].origin)


def _list_parts(tree: MappingNode, path: KeyPath, node: Node) -> Iterator[tuple[KeyPath, Node]]:
    """List the elements of a collection, or the values that a text refers to."""
    yield from (((*path, key), child) for key, child in list_children(node))
    if isinstance(node, Leaf) and _is_text(node.value):
        for there in list_references(node.value, path):
            if (found := find(tree, there)) is not None:
                yield there, found


def list_references(text: str, path: KeyPath) -> list[KeyPath]:
    """List the paths of the keys that a text at a path refers to.

    By ``${key}`` or the relative ``${..key}``.
    """
    found = []
    for dots, key in _REFERENCE.findall(text):
        base = path[: max(0, len(path) - len(dots))] if dots else ()
        found.append((*base, *(part for part in re.split(r"[.\[\]]+", key) if part)))
    return found


def _replace_values(tree: MappingNode, values: Mapping[KeyPath, Any]) -> MappingNode:
    def change(path: KeyPath, node: Node) -> Node:
        return (
            replace(graft(values[path], node.origin), replaced=node.replaced)
            if path in values
            else node
        )

    result = rebuild(tree, change) if values else tree
    assert isinstance(result, MappingNode)
    return result


def _is_valid(path: KeyPath, leaf: Leaf, problems: Problems) -> bool:
    """Return whether a text is an interpolation by OmegaConf's grammar; add the error if not."""
    if problems.is_full:  # the error would not be shown
        return False
    # OmegaConf is imported late: it takes 80 ms, more than all the rest that reads a config, and
    # few configs need it.
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        OmegaConf.create({"value": leaf.value})
    except (OmegaConfBaseException, RecursionError) as error:
        if isinstance(error, RecursionError):
            problem = "it nests too deeply"
        elif leaf.value.count("${") > leaf.value.count("}"):
            problem = "a } is missing"
        else:
            problem = (str(error).splitlines() or [""])[0]
        text = f"{dotted(path)}: {shortened(leaf.value)} is not a valid interpolation: {problem}"
        problems.report(rf"{text}; write \${{ where the text itself is meant", leaf.origin)
        return False
    return True


@dataclass
class _Resolution:
    """Values, references and secrets of the texts that were resolved, and the texts that cannot be.

    Args:
        values: The values, by path.
        references: The texts of those that use environment variables.
        secrets: What stands for a text from the environment that may be a secret.
        failures: Errors, each with whether the text is itself the cause.
        cycle: Texts that refer to themselves.
    """

    values: dict[KeyPath, Any] = field(default_factory=dict)
    references: dict[KeyPath, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    failures: list[tuple[bool, ConfigError]] = field(default_factory=list)
    cycle: list[tuple[KeyPath, Leaf]] = field(default_factory=list)

    def note_variables(
        self, path: KeyPath, text: str, value: Any, used: Mapping[str, str | None]
    ) -> None:
        """Note the environment variables that a text uses: their values become references."""
        self.references[path] = text
        given = {found: f"${{oc.env:{name}}}" for name, found in used.items() if found is not None}
        if isinstance(value, str) and given:
            given.setdefault(value, text)
        for found, reference in given.items():
            if len(found) >= _SHORTEST_SECRET:
                self.secrets[found] = reference

    def report(self, problems: Problems) -> None:
        """Add the errors: the causes, or where there are none all.

        Add one for the texts of a cycle.
        """
        causes = [error for is_cause, error in self.failures if is_cause]
        for failure in causes or [failure for _, failure in self.failures]:
            problems.add(failure)
        if self.cycle:
            path, leaf = self.cycle[0]
            what = (
                "it refers to itself"
                if len(self.cycle) == 1
                else "it leads back to itself through other keys"
            )
            message = f"{dotted(path)}: cannot resolve {shortened(leaf.value)}: {what}"
            problems.report(message, *(leaf.origin for _, leaf in self.cycle[:_MAX_CYCLE_PLACES]))


def _resolve(
    tree: MappingNode, texts: Mapping[KeyPath, Leaf], environ: Mapping[str, str], problems: Problems
) -> tuple[dict[KeyPath, Any], dict[KeyPath, str], dict[str, str]]:
    """Resolve texts with OmegaConf; ``problems`` collects the errors.

    Returns:
        The values of the texts that can be resolved, and the references and secrets of
        `Interpolated`.
    """
    from omegaconf import OmegaConf  # late, as above
    from omegaconf.errors import InterpolationKeyError, OmegaConfBaseException
    from omegaconf.resolvers import oc

    found = _Resolution()
    used: dict[str, str | None] = {}

    def read_variable(name: Any, default: Any = _NO_DEFAULT) -> str | None:
        """Stand in for OmegaConf's ``oc.env``, with the same rules."""
        value = environ.get(str(name))
        used[name] = value
        if value is not None:
            return value
        if default is _NO_DEFAULT:
            raise KeyError(f"Environment variable '{name}' not found")
        return None if default is None else str(default)

    container = OmegaConf.create(to_plain(tree), flags={"allow_objects": True})
    with _RESOLVER_LOCK:
        OmegaConf.register_resolver("oc.env", read_variable, replace=True)
        try:
            for path, leaf in texts.items():
                used.clear()
                try:
                    value = _read_value(container, path)
                except (OmegaConfBaseException, RecursionError) as error:
                    if isinstance(error, RecursionError) or "Recursive interpolation" in str(error):
                        found.cycle.append((path, leaf))
                    elif not (problems.is_incomplete and isinstance(error, InterpolationKeyError)):
                        found.failures.append(
                            _explain(tree, path, leaf, error, used, environ=environ)
                        )
                    continue
                found.values[path] = value
                if used:
                    found.note_variables(path, leaf.value, value, used)
        finally:
            OmegaConf.register_resolver("oc.env", oc.env, replace=True)
    found.report(problems)
    return found.values, found.references, found.secrets


def _read_value(container: Any, path: KeyPath) -> Any:
    """Return the value at a path of an OmegaConf container, with everything in it resolved."""
    from omegaconf import OmegaConf  # late, as above

    node = container
    for key in path:
        node = node[key]
    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node


def _explain(
    tree: MappingNode,
    path: KeyPath,
    leaf: Leaf,
    error: Exception,
    variables: Collection[str],
    *,
    environ: Collection[str],
) -> tuple[bool, ConfigError]:
    """Word OmegaConf's error.

    Tell whether the text is itself the cause, and not another that it refers to.
    """
    # late, as above
    from omegaconf.errors import InterpolationKeyError, UnsupportedInterpolationType

    text = leaf.value
    message = str(error).splitlines()[0]
    is_cause = True
    name = next(
        (name for name in variables if f"Environment variable '{name}' not found" in message), None
    )
    if name is not None:
        is_cause = name in text
        message = (
            f"the environment variable {name} is not set; set it, or give a default:"
            f" ${{oc.env:{name},...}}"
        )
        message += suggest(get_close_matches(name, environ, n=1, cutoff=_NEAR_VARIABLE))
    elif isinstance(error, InterpolationKeyError):
        key = (re.findall(r"'(.*?)' not found", message) or ["?"])[0]
        is_cause = key in text
        message = f"it refers to {key}, which is not set{_hint_at_reference(key, tree, path)}"
    elif isinstance(error, UnsupportedInterpolationType):
        message = (
            f"there is no {message.rpartition(' ')[2]}; ${{key}} is another"
            f" key, ${{oc.env:NAME}} a variable"
        )
    return is_cause, error_at(
        f"{dotted(path)}: cannot resolve {shortened(text)}: {message}", leaf.origin
    )


def _hint_at_reference(key: str, tree: MappingNode, path: KeyPath) -> str:
    """Return the keys that a reference to none may mean; empty where nothing is near.

    Args:
        key: The reference, which may lack ``init_args``, or be relative, with dots in front.
        tree: The config.
        path: Of the text with the reference, which cannot mean itself.
    """
    wanted = _leave_out_init_args(filter(None, key.split(".")))
    others = [known for known, _ in walk(tree) if known != path and known[-1:] != ("init_args",)]
    named = [(_leave_out_init_args(known), dotted(known)) for known in others if known]
    # A key of as many parts is nearer than one elsewhere of a near name.
    alike = {".".join(parts): known for parts, known in named if len(parts) == len(wanted)}
    by_name = {parts[-1]: known for parts, known in reversed(named)}  # the first of each name
    return suggest(_list_near(".".join(wanted), alike) or _list_near("".join(wanted[-1:]), by_name))


def _leave_out_init_args(path: Iterable[Any]) -> list[str]:
    return [str(part) for part in path if part != "init_args"]


def _list_near(word: str, known: Mapping[str, str]) -> list[str]:
    return [known[each] for each in get_close_matches(word, known)]
