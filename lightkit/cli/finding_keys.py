"""What a finding is for: the parts of a config, its code and its data on which it depends."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytorch_lightning.utilities.seed import isolate_rng

from lightkit.cli.context import RunContext
from lightkit.cli.input_digests import compute_code_digests, compute_input_digests, describe_unseen_data
from lightkit.cli.real_batches import count_samples
from lightkit.cli.twin import Twin, class_of_section
from lightkit.tuning.findings_cache import key_of, name_of
from lightkit.tuning.short_fits import OF_A_STEP, precision_plugin

if TYPE_CHECKING:
    from lightkit.cli.lightning_cli import LightkitCLI

__all__ = ["COUNTED", "code_of", "content_of", "kept_name", "parts_of"]

_log = logging.getLogger("lightkit")

COUNTED = "counted"
"""In what `content_of` gives: the number of training samples, and of batches, where these stand for the files."""


def kept_name(search: str, parts: Mapping[str, Any], *more: Any) -> str | None:
    """Give the name under which a finding is kept; None where nothing tells it from what was found for something else.

    Args:
        search: What was looked for.
        parts: As `parts_of` gives them, and others on which it depends; a ``content`` as `content_of` gives it.
        more: Plain values that tell apart what was found for the same.
    """
    if "content" in parts and parts["content"] is None:
        return None
    try:
        return name_of(search, key_of(parts), *more)
    except ValueError as error:
        _log.info("accelerator: what is measured for %s is not kept: %s", search, error)
        return None


def parts_of(
    session: RunContext, cli: LightkitCLI, twin: Twin, values: Mapping[str, Any], *, ranks: int
) -> dict[str, Any]:
    """Give what decides how fast a step is and what it learns, apart from settings, machine and lightkit's version.

    Args:
        session: The invocation.
        cli: Has parsed the config.
        twin: Knows which arguments of the data have been chosen.
        values: The config's `trainer` section.
        ranks: Processes that train on this machine.
    """
    section = cli.config[cli.subcommand]
    sections = {name: section.get(name) for name in ("model", "data", "optimizer")}
    plugin = precision_plugin(values)
    return {
        **{name: None if one is None else one.as_dict() for name, one in sections.items()},
        "data_differs": twin.data_differs,
        "code": code_of(session, cli),
        "trainer": {key: values.get(key) for key in (*OF_A_STEP, "devices") if key != "precision"},
        "precision_plugin": None if plugin is None else [type(plugin).__name__, str(plugin.precision)],
        "ranks": ranks,
    }


def code_of(session: RunContext, cli: LightkitCLI) -> dict[str, Any]:
    """Give the names of a config's classes, and the digests of the Python files of the working directory.

    Args:
        session: The invocation.
        cli: Has parsed the config, and knows the classes that Python has fixed.
    """
    section = cli.config[cli.subcommand]
    fixed = {"model": cli.model_class, "data": cli.datamodule_class}
    kinds = {name: class_of_section(section.get(name)) or fixed[name] for name in fixed}
    names = {name: _name_of(kind) for name, kind in kinds.items() if kind is not None}
    return {"classes": names, "files": compute_code_digests(session.resolved)}


def content_of(session: RunContext, twin: Twin, values: Mapping[str, Any], *, folder: Path) -> Any:
    """Give what tells other data from the same: digests of its files, else how many samples and batches there are.

    The files are known where the config names the data's class, whose arguments tell where it reads, and there are
    not very many of them; else the data is set up and counted.

    Args:
        session: The invocation.
        twin: Builds the data.
        values: The config's `trainer` section.
        folder: For what is written.

    Returns:
        None where there is nothing that tells.
    """
    inputs, data = compute_input_digests(session, salt="", asked=False), session.resolved.values.get("data")
    is_named = isinstance(data, Mapping) and "class_path" in data
    if is_named and inputs.data is not None and describe_unseen_data(session, inputs) is None:
        return inputs.data
    with isolate_rng():
        built = twin.data()
        counted = count_samples(twin.model() if built is None else None, built, values, folder=str(folder))
    return None if counted is None else {**(inputs.data or {}), COUNTED: counted}


def _name_of(kind: Any) -> str:
    """Give the name of a class or a function by which its module is found, that of a script by its file."""
    module = str(kind.__module__)
    if module == "__main__" and (file := getattr(sys.modules["__main__"], "__file__", None)):
        module = Path(file).stem
    return f"{module}.{getattr(kind, '__qualname__', type(kind).__qualname__)}"
