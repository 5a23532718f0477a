"""Whether an archive of torch.export holds tensors and a graph alone, or what could run code once it is loaded."""

from __future__ import annotations

import ast
import io
import json
import logging
import pickle
import re
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import serialization

from lightkit import runs
from lightkit.errors import ConfigError

__all__ = ["check_archive"]

_log = logging.getLogger("lightkit")
_NOTES = ("archive_format", "archive_version", "byteorder", "version", "serialization_id")
_NOTE = re.compile(rb"[\w.-]{1,64}\n?")
_PAYLOADS = ("data/weights/", "data/constants/")
_RAW = re.compile(r"(weight|tensor)_\d+")
"""Names of records that are read as the bytes of a tensor."""
_NOT_READ = (
    *(RuntimeError, EOFError, OSError, ValueError, LookupError, TypeError, AttributeError, AssertionError, ImportError),
    *(OverflowError, MemoryError, pickle.UnpicklingError, struct.error, zipfile.BadZipFile),
)
"""What torch 2.15 raises for a record that is refused, damaged or something else."""
_EXPRESSION = (ast.Expression, ast.Constant, ast.Name, ast.Call, ast.keyword, ast.BinOp, ast.UnaryOp, ast.Compare,
               ast.BoolOp, ast.operator, ast.unaryop, ast.cmpop, ast.boolop, ast.expr_context)  # fmt: skip
_FUNCTION = re.compile(r"[A-Z]\w*|floor|ceiling|sqrt|log|exp")
_SYMBOL = re.compile(r"[a-z]+\d+|int_oo|oo|True|False")
_MEASURES = ("size", "stride", "storage_offset", "dim", "numel", "isnan", "inf")


def check_archive(path: Path, *, shown: str | None = None) -> None:
    """Refuse an archive that could run code when it is loaded, unless ``--trust`` allows it.

    ``torch.export.load`` (torch 2.15) unpickles some of its records, evaluates expressions of sizes as Python, and
    imports what its trees name, whatever it is told. So the file is read by torch's own reader beforehand, and every
    record of it has to be bytes of a tensor, plain JSON, or what ``torch.load(weights_only=True)`` takes.

    Args:
        path: The file.
        shown: How it is named to the user; its path if None.

    Raises:
        ConfigError: If it holds more, and nothing allows that.
        ValueError: If it is damaged, cut short, or no such archive. In words.
    """
    shown = shown or str(path)
    try:
        names = _of_old(path) or list(_suspects(torch._C.PyTorchFileReader(str(path))))
    except (*_NOT_READ, RecursionError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        says = lines[0] if lines else type(error).__name__
        raise ValueError(f"{shown}: torch.export cannot read it: {says}") from error
    if not names:
        return
    if not runs.is_trusting():
        raise ConfigError(runs.refusal(shown, set(names)))
    if runs.is_first_trusted(shown):
        _log.warning(runs.allowance(shown, set(names)))


def _suspects(reader: Any) -> Iterator[str]:
    """Name what is more than a tensor or a plain value in the records, as torch's own reader finds them."""
    records = [str(name) for name in reader.get_all_records()]
    raw: set[str] = set()
    for name in records:
        if name.startswith(_PAYLOADS) and name.endswith("_config.json"):
            for member in json.loads(reader.get_record(name))["config"].values():
                if member.get("use_pickle") is not False or not _RAW.fullmatch(str(member.get("path_name"))):
                    yield f"the pickled {member.get('path_name')}"
                else:
                    raw.add(f"{name.rpartition('/')[0]}/{member['path_name']}")
    for name in records:
        if name not in raw:
            yield from _in_record(name, reader.get_record(name))


def _of_old(path: Path) -> list[str]:
    """Name the form of torch 2.7 and before, which is read with pickle throughout where the newer reading fails."""
    with zipfile.ZipFile(path) as archive:
        return ["records of an older torch.export"] if "version" in archive.namelist() else []


def _in_record(name: str, content: bytes) -> Iterator[str]:
    if name.rpartition("/")[2] in _NOTES and _NOTE.fullmatch(content):
        return
    if name.endswith(".json"):
        yield from _in_json(json.loads(content))
        return
    try:
        torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except _NOT_READ:
        yield from _classes(content) or [name]


def _classes(content: bytes) -> list[str]:
    try:
        return sorted(serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(content)))
    except _NOT_READ:  # no archive of torch.save, or a pickle in it that cannot be taken apart
        return []


def _in_json(value: Any) -> Iterator[str]:
    """Name expressions that torch would evaluate, and trees for which it would import a module."""
    if isinstance(value, list):
        for item in value:
            yield from _in_json(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key == "expr_str" and not _is_arithmetic(str(item)):
                yield f"the expression {str(item)[:60]!r}"
            elif key == "guards_code":
                yield from (f"the condition {code[:60]!r}" for code in item or () if not _is_condition(str(code)))
            elif key in ("in_spec", "out_spec") and isinstance(item, str):
                yield from _in_tree(item)
            else:
                yield from _in_json(item)


def _in_tree(text: str) -> Iterator[str]:
    unescaped = text.replace("\\", "")  # trees hold JSON within JSON
    if "default_factory_module" in unescaped or "__enum__" in unescaped:
        yield "a tree with classes of its own"


def _nodes(text: str) -> list[ast.AST] | None:
    """Take Python's expression apart; None where it is none, or has names that could be read in two ways."""
    try:
        return list(ast.walk(ast.parse(text.strip(), mode="eval"))) if text.isascii() else None
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def _is_arithmetic(text: str) -> bool:
    """Tell whether an expression is arithmetic on sizes, such as ``FloorDiv(Symbol('s14', integer=True), 2)``."""
    nodes = _nodes(text)
    if nodes is None or not all(isinstance(node, _EXPRESSION) for node in nodes):
        return False
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    functions = {id(call.func) for call in calls}
    if not all(isinstance(call.func, ast.Name) and _FUNCTION.fullmatch(call.func.id) for call in calls):
        return False
    symbols = [call.args[0] for call in calls if getattr(call.func, "id", "") == "Symbol" and call.args]
    named = {id(node) for node in symbols if isinstance(node, ast.Constant) and _is_name(node.value)}
    numbers = all(
        id(node) in named or isinstance(node.value, (int, float)) for node in nodes if isinstance(node, ast.Constant)
    )
    return numbers and all(
        id(node) in functions or _SYMBOL.fullmatch(node.id) for node in nodes if isinstance(node, ast.Name)
    )


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value.isidentifier()


def _is_condition(text: str) -> bool:
    """Tell whether a condition is on sizes of inputs, such as ``L['x'].size()[0] >= 2``."""
    nodes = _nodes(text)
    allowed = (*_EXPRESSION, ast.Attribute, ast.Subscript)
    return nodes is not None and all(
        isinstance(node, allowed)
        and not (isinstance(node, ast.Name) and node.id not in ("L", "args", "math"))
        and not (isinstance(node, ast.Attribute) and node.attr not in _MEASURES)
        and not (isinstance(node, ast.Call) and not isinstance(node.func, ast.Attribute))
        and not (isinstance(node, ast.Constant) and isinstance(node.value, str) and not _is_name(node.value))
        for node in nodes
    )
