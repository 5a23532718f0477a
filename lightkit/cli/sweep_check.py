"""Check the `sweep` section against the config that it searches.

Each choice, and each end of a range, is tried.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lightkit.cli.command_line import Invocation
from lightkit.cli.stage_config import load_stage_config
from lightkit.cli.validation import validate, validate_signatures
from lightkit.config import (
    CLASS_SECTIONS,
    Origin,
    Problems,
    Resolved,
    dump_yaml,
    error_at,
    read_scalar,
)
from lightkit.config.resolved import drop_paths
from lightkit.config.schema import NO_DEFAULT, load_schema
from lightkit.config.tree import descend, to_plain
from lightkit.config.validation import find_section_class
from lightkit.errors import LightkitError
from lightkit.sweep.settings import Plan, list_shadowed, read_sweep
from lightkit.sweep.space import Params, Space, find_choice


def read_plan(resolved: Resolved) -> Plan:
    """Read the sweep of a config, which has been checked.

    Raises:
        ConfigError: If anything in it is wrong.
    """
    problems = Problems()
    plan = read_sweep(resolved, problems)
    problems.raise_any(resolved.masked)
    return plan


def check_space(invocation: Invocation, resolved: Resolved, plan: Plan, *, imports: bool) -> None:
    """Check that the config has each searched key and takes each choice and each end of each range.

    Args:
        invocation: The command line of a fit, whose config is right without the sweep.
        resolved: Its config.
        plan: The sweep.
        imports: Whether classes that no description of lightkit's covers are imported, and their
            signatures judge too.

    Raises:
        ConfigError: If it does not; each error shows the place in the space.
    """
    problems = Problems()
    for error in list_shadowed(plan, resolved):
        problems.add(error)
    probes = plan.space.list_probes() if not problems else []
    with TemporaryDirectory(prefix="lightkit-") as folder:
        for number, (key, params) in enumerate(probes):
            layer = Path(folder) / f"probe-{number}.yaml"
            write_layer(layer, plan.space, params)
            for text in _find_errors(invocation, layer, imports=imports):
                named = _find_named_key(text, plan.space) or key
                origin = resolved.origin_of(("sweep", "space", named))
                problems.add(error_at(f"sweep.space.{named}: {text}", origin))
    problems.raise_any(resolved.masked)


def _find_named_key(text: str, space: Space) -> str | None:
    """Return the searched key that an error is about."""
    named = text.partition(":")[0].replace(".init_args", "")
    return next((key for key in space.keys if named == key or named.startswith(f"{key}.")), None)


def _find_errors(invocation: Invocation, layer: Path, *, imports: bool) -> Iterator[str]:
    """Find what is wrong with a config only because of a layer, without the places."""
    with_layer = invocation._replace(files=(*invocation.files, str(layer)))
    problems = Problems()
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)  # which the config itself has printed
    try:
        with problems.noted():
            probe = load_stage_config(with_layer, problems, machine=None)
            result = validate(probe, probe.given, problems)
            if imports and result.undescribed:
                known = {path for path, _ in result.problems}
                validate_signatures(drop_paths(probe.resolved, known), problems)
    finally:
        logging.disable(level)
    for problem in problems:
        if _is_of_layer(problem, layer):
            yield str(problem).splitlines()[0]


def _is_of_layer(problem: LightkitError, layer: Path) -> bool:
    """Return whether an error has a place in the folder of a layer, or none in any file."""
    files = [place.file for place in problem.places if isinstance(place, Origin)]
    return not files or any(file is not None and file.parent == layer.parent for file in files)


def write_layer(
    path: Path, space: Space, params: Params, *, head: str = "", seed: int | None = None
) -> None:
    """Write the layer of a trial: the values of the searched keys, on a layer that is searched.

    Args:
        path: The file.
        space: The space.
        params: The values.
        head: Lines of a comment.
        seed: Its ``seed_everything``.
    """
    from lightkit.runs.files import write_text

    values: dict[str, Any] = {}
    layers = [
        params[each.key]
        for each in space.dimensions
        if each.kind == "layers" and params.get(each.key)
    ]
    if layers:
        values["extends"] = layers
    if seed is not None:
        values["seed_everything"] = seed
    for each in space.dimensions:
        if each.kind != "layers" and each.key in params:
            values[each.key] = params[each.key]
    comment = "".join(f"# {line}\n" for line in head.splitlines())
    write_text(path, comment + dump_yaml(values), durable=False)


def read_own_values(resolved: Resolved, space: Space) -> dict[str, Any]:
    """Return the values that the config itself has of the searched keys.

    Its own, else the defaults of its classes.
    """
    found: dict[str, Any] = {}
    for dimension in space.dimensions:
        if dimension.kind == "layers" or not _may_be_active(space, dimension.key, found):
            continue
        known, value = _find_value(resolved, dimension.key)
        if known:
            value = _shorten_class(value, dimension.choices)
            found[dimension.key] = dimension.clean(value) if dimension.contains(value) else value
    return found


def _may_be_active(space: Space, key: str, params: Mapping[str, Any]) -> bool:
    """Return whether a key is in effect, where a layer that is searched counts as any."""
    dimension = space[key]
    known = [each for each in dimension.when if space[each[0]].kind != "layers"]
    return all(
        name in params and find_choice(values, params[name]) is not None for name, values in known
    )


def _find_value(resolved: Resolved, key: str) -> tuple[bool, Any]:
    path = tuple(key.split("."))
    taken, node, rest = descend(resolved.tree, path)
    if taken and not rest:
        return True, read_scalar(to_plain(node))
    if len(path) == 2 and path[0] in CLASS_SECTIONS:
        described = find_section_class(path[0], resolved, load_schema())
        argument = None if described is None else described.arguments.get(path[1])
        if argument is not None and argument.default is not NO_DEFAULT:
            return True, argument.default
    return False, None


def _shorten_class(value: Any, choices: tuple[Any, ...]) -> Any:
    """Return the name of a class as the choices have it, where the value has no arguments."""
    if not isinstance(value, Mapping) or {*value} - {"class_path"}:
        return value
    path = str(value.get("class_path"))
    return next((each for each in choices if each in (path, path.rpartition(".")[2])), value)
