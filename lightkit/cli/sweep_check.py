"""Check the `sweep` section against the config that it searches.

Each choice, and each end of a range, is tried.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lightkit.cli.stage_config import StageConfig, load_stage_config
from lightkit.cli.validation import validate
from lightkit.config import Origin, Problems, Resolved, dump_yaml, error_at, read_scalar
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


def check_space(stage_config: StageConfig, plan: Plan) -> None:
    """Check that the config has each searched key and takes each choice and each end of each range.

    Args:
        stage_config: The invocation of a fit, whose config is right without the sweep.
        plan: The sweep.

    Raises:
        ConfigError: If it does not; each error shows the place in the space.
    """
    problems = Problems()
    for error in list_shadowed(plan, stage_config.resolved):
        problems.add(error)
    probes = plan.space.list_probes() if not problems else []
    with TemporaryDirectory(prefix="lightkit-") as folder:
        for number, (key, params) in enumerate(probes):
            layer = Path(folder) / f"probe-{number}.yaml"
            write_layer(layer, plan.space, params)
            for text in _find_errors(stage_config, layer):
                named = _find_named_key(text, plan.space) or key
                origin = stage_config.resolved.origin_of(("sweep", "space", named))
                problems.add(error_at(f"sweep.space.{named}: {text}", origin))
    problems.raise_any(stage_config.resolved.masked)


def _find_named_key(text: str, space: Space) -> str | None:
    """Return the searched key that an error is about."""
    named = text.partition(":")[0].replace(".init_args", "")
    return next((key for key in space.keys if named == key or named.startswith(f"{key}.")), None)


def _find_errors(stage_config: StageConfig, layer: Path) -> Iterator[str]:
    """Find what is wrong with a config only because of a layer, without the places."""
    invocation = stage_config.invocation._replace(
        files=(*stage_config.invocation.files, str(layer))
    )
    problems = Problems()
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)  # which the config itself has printed
    try:
        probe, loaded = load_stage_config(invocation, problems, machine=None)
        validate("fit", loaded, probe.resolved, problems)
    except LightkitError as error:
        problems.add(error)
    finally:
        logging.disable(level)
    for problem in problems:
        files = [place.file for place in problem.places if isinstance(place, Origin)]
        if not files or any(file is not None and file.parent == layer.parent for file in files):
            lines = str(problem).splitlines()
            yield next((line for line in lines if not line.startswith("  -->")), lines[0])


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
    write_text(path, comment + (dump_yaml(values) if values else "{}\n"), durable=False)


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
    if len(path) == 2 and path[0] in ("model", "data"):
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
