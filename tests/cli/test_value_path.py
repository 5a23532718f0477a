"""The path of one value, from a layer and a flag to the trainer: the functions that it passes, and its forms.

Each function is one that a reader of the code meets, and each form one that has to be kept in step with the others.
`trainer.max_epochs` stands in a layer, and a flag sets another value over it, whose path is counted.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NoReturn

import pytest
from jsonargparse import Namespace
from pytorch_lightning import Trainer

from lightkit import main as entry
from lightkit.cli.command_line import Invocation
from lightkit.config.overrides import Flag
from lightkit.config.tree import Items, Leaf, MappingNode

VALUE = 7303
LAYER = """\
trainer: {max_epochs: 7301, accelerator: cpu, logger: false}
model: pytorch_lightning.demos.boring_classes.BoringModel
data: pytorch_lightning.demos.boring_classes.BoringDataModule
run: {report: false}
"""
MOST_FUNCTIONS = 30
MOST_FORMS = 4
PACKAGE = str(Path(entry.__file__).parent)
FORMS = {
    Invocation: "command line",
    Flag: "command line",
    MappingNode: "tree with origins",
    Leaf: "tree with origins",
    Items: "tree with origins",
    Namespace: "Namespace",
    dict: "values",
}
DEEPEST = 12


class Reached(BaseException):
    """The trainer is about to be built."""


def parts_of(value: Any) -> Iterator[Any]:
    """Yield what a value is made of."""
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, (list, tuple)):
        yield from value
    elif isinstance(value, Namespace) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        yield from vars(value).values()


def form_of(value: Any, *, depth: int = 0) -> str | None:
    """Return the form in which an argument holds the value; None where it does not."""
    if isinstance(value, (int, str)):
        if value == VALUE or (isinstance(value, str) and str(VALUE) in value):
            return "text" if isinstance(value, str) else "value"
        return None
    if depth > DEEPEST:
        return None
    for part in parts_of(value):
        inner = form_of(part, depth=depth + 1)
        if inner is not None:
            return FORMS.get(type(value), inner)
    return None


class Tracer:
    """Notes the functions of the package whose arguments hold the value, each once, with its forms."""

    def __init__(self) -> None:
        self.found: dict[CodeType, set[str]] = {}

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event != "call" or code in self.found or not code.co_filename.startswith(PACKAGE):
            return
        if code.co_name.startswith("<"):  # a comprehension is part of its function
            return
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        held = {form_of(frame.f_locals[name]) for name in names if name != "self" and name in frame.f_locals}
        held.discard(None)
        if held:
            self.found[code] = {str(form) for form in held}


@pytest.fixture
def tracer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tracer:
    """Trace a fit until its trainer is built."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(LAYER, encoding="utf-8")

    def stop(_trainer: Trainer, *_args: Any, **arguments: Any) -> NoReturn:
        sys.setprofile(None)
        assert arguments["max_epochs"] == VALUE
        raise Reached

    monkeypatch.setattr(Trainer, "__init__", stop)
    tracer = Tracer()
    before = sys.getprofile()
    sys.setprofile(tracer)
    try:
        with pytest.raises(Reached):
            entry.main(["fit", "-c", "job.yaml", f"--trainer.max_epochs={VALUE}"])
    finally:
        sys.setprofile(before)
    return tracer


def test_a_value_reaches_the_trainer_through_few_functions_and_forms(tracer: Tracer) -> None:
    functions = {f"{Path(code.co_filename).stem}.{code.co_qualname}": forms for code, forms in tracer.found.items()}
    listing = "\n".join(f"{name}: {', '.join(sorted(forms))}" for name, forms in functions.items())
    forms = {form for found in functions.values() for form in found}
    print(f"{len(functions)} functions, {len(forms)} forms\n{listing}")
    assert len(functions) <= MOST_FUNCTIONS, listing
    assert len(forms) <= MOST_FORMS, forms
