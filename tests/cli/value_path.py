"""Trace a value from a layer and a flag to the trainer: `python tests/cli/value_path.py job.yaml`.

It prints the functions that the value passes with its forms, as JSON.

Each function is one that a reader of the code meets, and each form one that has to be kept in step
with the others. `trainer.max_epochs` stands in a layer, and a flag sets another value over it,
whose path is counted.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from jsonargparse import Namespace
from pytorch_lightning import Trainer

from lightkit import main as entry
from lightkit.cli.command_line import Invocation
from lightkit.config.overrides import Flag
from lightkit.config.tree import Items, Leaf, MappingNode

VALUE = 7303
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


_TRAINER = inspect.unwrap(Trainer.__init__).__code__


class Reached(BaseException):
    """The trainer is about to be built."""


def parts_of(value: Any) -> Iterator[Any]:
    """Yield what a value is made of."""
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, (list, tuple)):
        yield from value
    elif isinstance(value, Namespace) or (
        dataclasses.is_dataclass(value) and not isinstance(value, type)
    ):
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
    """Notes the functions of the package that hand the value on, each once, with its forms.

    Such a function has it in an argument, and returns it or is running when the trainer is built.
    What only looks at the value is not on its path.
    """

    def __init__(self) -> None:
        self.found: dict[CodeType, set[str]] = {}
        self.reached: object = None
        self._entered: dict[FrameType, set[str]] = {}

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code is _TRAINER:
            self.reached = frame.f_locals["max_epochs"]
            for running, forms in self._entered.items():
                if forms:
                    self.found.setdefault(running.f_code, set()).update(forms)
            raise Reached
        is_own = code.co_filename.startswith(PACKAGE) and not code.co_name.startswith("<")
        if not is_own or event not in ("call", "return"):
            return
        if event == "return":
            forms = self._entered.pop(frame, set())
            returned = form_of(argument)
            if forms and returned is not None:
                self.found.setdefault(code, set()).update({*forms, returned})
            return
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        held = {
            form_of(frame.f_locals[name])
            for name in names
            if name != "self" and name in frame.f_locals
        }
        self._entered[frame] = {str(form) for form in held if form is not None}


def main() -> int:
    """Trace a fit until its trainer is built."""
    tracer = Tracer()
    sys.setprofile(tracer)
    try:
        entry.main(["fit", "-c", sys.argv[1], f"--trainer.max_epochs={VALUE}"])
    except Reached:
        sys.setprofile(None)
    functions = {}
    for code, forms in tracer.found.items():
        functions[f"{Path(code.co_filename).stem}.{code.co_qualname}"] = sorted(forms)
    print(json.dumps({"reached": tracer.reached, "functions": functions}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
