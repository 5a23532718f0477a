"""What was measured of a config before: whether it is the same code, and whether there is more time now than then."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkit.cli.own_code import own_code
from lightkit.cli.twin import class_of_section
from lightkit.images.file_digests import file_digests
from lightkit.tuning import findings_cache
from lightkit.tuning.findings_cache import source_digest
from lightkit.tuning.variant import Findings

if TYPE_CHECKING:
    from lightkit.cli.lightning import LightkitCLI

__all__ = ["Limit", "code_of", "keep", "kept"]

_log = logging.getLogger("lightkit")
Limit = Mapping[str, Any]
"""`budget_s`: seconds that a search may take. `trainer`: what the length of the training comes from, of which it takes
no more than a share; None where the seconds alone count."""


def code_of(cli: LightkitCLI) -> dict[str, Any]:
    """Give the names of a config's classes, and digests of what they are made of.

    Args:
        cli: Has parsed the config, and knows the classes that Python has fixed.
    """
    section = cli.config[cli.subcommand]
    fixed = {"model": cli.model_class, "data": cli.datamodule_class}
    kinds = {name: class_of_section(section.get(name)) or fixed[name] for name in fixed}
    names = {name: _name_of(kind) for name, kind in kinds.items() if kind is not None}
    said = [one.as_dict() for key in ("model", "data", "optimizer") if hasattr(one := section.get(key), "as_dict")]
    files = own_code([*names.values(), *said]).files
    return {
        "classes": names,
        "sources": {name: source_digest(kind) for name, kind in kinds.items() if isinstance(kind, type)},
        "own": dict(zip(files, (one.digest for one in file_digests(map(str, files.values()))), strict=True)),
    }


def _name_of(kind: Any) -> str:
    """Give the name of a class or a function by which its module is found, that of a script by its file."""
    module = str(kind.__module__)
    if module == "__main__" and (file := getattr(sys.modules["__main__"], "__file__", None)):
        module = Path(file).stem
    return f"{module}.{getattr(kind, '__qualname__', type(kind).__qualname__)}"


def kept(root: Path, key: str, limit: Limit) -> Findings | None:
    """Give what was found before, unless something was left out then for which there is more time now.

    Args:
        root: Folder of runs.
        key: Of what is measured.
        limit: What limits a search now.
    """
    before = findings_cache.read(root, key)
    if before is None or not before.left_out:
        return before
    then = before.limit or {}
    same = "budget_s" in then and then.get("trainer") == limit["trainer"]
    return before if same and _is_no_more(limit["budget_s"], then["budget_s"]) else None


def _is_no_more(now_s: float | None, then_s: float | None) -> bool:
    return then_s is None or (now_s is not None and now_s <= then_s)


def keep(root: Path, key: str, findings: Findings, limit: Limit) -> None:
    """Keep what was found; where it cannot be written, only the next search is longer."""
    try:
        findings_cache.write(root, key, replace(findings, limit=dict(limit)))
    except OSError as error:
        _log.warning("accelerator: what was measured is not kept for other runs: %s", error)
