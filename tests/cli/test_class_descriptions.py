"""The catalogue says what the signatures say, and reports nothing that LightningCLI takes."""

from __future__ import annotations

import random
import re
import runpy
import subprocess
import sys
from argparse import ArgumentError
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import pytest

from lightkit import config
from lightkit.config.bounds import Bounds
from lightkit.config.schema import Argument, ClassDescription, describe_type, load_schema
from lightkit.config.validation import ValidationResult, validate_values
from lightkit.errors import ConfigError

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "scripts" / "catalogue.py"
STAGES = ("fit", "validate", "test", "predict")
CATALOGUE = load_schema()
RECORDED: dict[str, str] = CATALOGUE.data["versions"]
INSTALLED = {name: metadata.version(name).partition("+")[0] for name in RECORDED}
as_recorded = pytest.mark.skipif(
    INSTALLED != RECORDED
    or CATALOGUE.data["python"] != f"{sys.version_info[0]}.{sys.version_info[1]}",
    reason="the catalogue was written with other versions",
)

VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 3, 16, 1.0, 1.5, 12345678901234567890, float("inf")),
    *(
        "",
        "3",
        "1.5",
        "1e3",
        ".inf",
        "true",
        "no",
        "null",
        "ten",
        "min",
        "16",
        "simple",
        "[1,2]",
        "{a: 1}",
        "a/b.yaml",
    ),
    *(
        "01:00:00",
        "00:01:00:00",
        "Adam",
        "Timer",
        "CSVLogger",
        "Nope",
        "torch.float32",
        "torch.nn.ReLU",
        "nope.Nope",
    ),
    *(
        [],
        [1],
        ["1"],
        [1.5],
        ["a"],
        [None],
        [1, "a"],
        [[1]],
        [0.9, "0.999"],
        ["Timer"],
        ["Nope"],
        [[]],
    ),
    *(
        {},
        {"a": 1},
        {"a": "1"},
        {"minutes": 3},
        {"minutes": "x"},
        {"init_args": {}},
        {"class_path": 3},
    ),
    *(
        {"class_path": "Timer"},
        {"class_path": "CSVLogger", "init_args": {"save_dir": "x"}},
        {"class_path": "Nope"},
    ),
    *(
        {"class_path": "Timer", "interval": "x"},
        {"class_path": "Timer", "init_args": []},
        {"monitor": "x"},
    ),
    *(
        [{"class_path": "Timer"}],
        [{"class_path": "Timer", "init_args": {"nope": 3}}],
        {"class_path": "torch.nn.ReLU"},
    ),
]
ARGUMENTS: list[Any] = [
    *(
        None,
        [],
        3,
        "x",
        {},
        {"nope": 1},
        {"nope": {}},
        {"monitor": "x"},
        {"monitor": None},
        {"lr": "a"},
        {"lr": "Tensor"},
    ),
    *(
        {"step_size": "2"},
        {"step_size": 2, "gamma+": 3},
        {"save_dir": 3},
        {"params": 3},
        {"batch_size": "x"},
    ),
    *(
        {"hidden+": 3},
        {"patience": 2, "monitor": "val"},
        {"betas": [0.9, "0.99"]},
        {"optimizer": 3},
        {"T_max": 3},
    ),
]
NAMES = {
    "model": [
        "Regressor",
        "lightkit.models.regressor.Regressor",
        "Flowers",
        "LightningModule",
        "lightkit.models.Nope",
    ],
    "data": ["Flowers", "lightkit.data.Temperatures", "Regressor", "LightningDataModule", "Nope"],
    "optimizer": [
        "Adam",
        "torch.optim.sgd.SGD",
        "StepLR",
        "Optimizer",
        "torch.optim.Nope",
        "Nope",
        "torch.nn.ReLU",
    ],
    "lr_scheduler": [
        "StepLR",
        "ReduceLROnPlateau",
        "torch.optim.lr_scheduler.ReduceLROnPlateau",
        "Adam",
    ],
    "callbacks": [
        "EarlyStopping",
        "Timer",
        "CSVLogger",
        "Checkpoint",
        "Callback",
        "pytorch_lightning.callbacks.Nope",
    ],
    "logger": ["CSVLogger", "CSV", "Logger", "Timer", "lightkit.loggers.TensorBoard", "Nope"],
}


def _values_of_arguments() -> Iterator[dict[str, Any]]:
    """Give every value to every argument of every section.

    Also to those of every class that has a place at the top.
    """
    for section in ("trainer", "run"):
        for name in CATALOGUE.sections[section].arguments:
            yield from ({section: {name: value}} for value in VALUES)
            yield from ({section: {f"{name}+": value}} for value in VALUES)
    for name in CATALOGUE.top:
        yield from ({name: value} for value in VALUES)
    for path, described in CATALOGUE.classes.items():
        place = CATALOGUE.section_of(described)
        for name in described.arguments if place else ():
            for value in VALUES:
                entry = {"class_path": path, "init_args": {name: value}}
                yield (
                    {"trainer": {place: [entry]}}
                    if place in ("callbacks", "logger")
                    else {str(place): entry}
                )


def _classes_at_places() -> Iterator[dict[str, Any]]:
    for section, names in NAMES.items():
        specs: list[Any] = [*VALUES, *names]
        for name in names:
            specs += [
                {"class_path": name},
                {"class_path": name, "dict_kwargs": {"nope": 1, "lr": "a"}},
            ]
            specs += [{"class_path": name, "init_args": arguments} for arguments in ARGUMENTS]
        for spec in specs:
            if section in ("callbacks", "logger"):
                yield from (
                    {section: {"x": spec}},
                    {"trainer": {section: spec}},
                    {"trainer": {f"{section}+": spec}},
                )
                yield {"trainer": {section: [spec, {"class_path": "Nope2"}][: 1 + (spec == 3)]}}
            else:
                yield {section: spec}


class _Judges:
    """lightkit's judgement of a config, and LightningCLI's."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "config.yaml"
        self._parser = runpy.run_path(str(SCRIPT))["build_parsers"]()["fit"]

    def disagree(self, said: dict[str, Any]) -> ValidationResult | None:
        """Give what lightkit finds wrong in a config that LightningCLI takes."""
        self._file.write_text(config.dump_yaml({"model": "Regressor", **said}))
        try:
            resolved = config.resolve([self._file], environ={}, subcommands=STAGES)
            values = resolved.lightning_values
        except ConfigError:
            return None
        findings = validate_values(replace(resolved, subcommand="fit"), CATALOGUE)
        problems_of_parsers = [
            problem
            for path, problem in findings.problems
            if not _is_raised_by_constructors(path, problem)
        ]
        return findings if problems_of_parsers and self._is_taken(values) else None

    def _is_taken(self, values: dict[str, Any]) -> bool:
        if not isinstance(values.get("trainer", {}) or {}, dict) or not isinstance(
            values.get("run", {}) or {}, dict
        ):
            return False  # the parser takes 3 for the trainer, and Lightning crashes over it
        try:
            self._parser.parse_args(["--config", config.dump_yaml(values)])
        except (ArgumentError, ValueError, TypeError, AttributeError):
            return False
        return True


def _is_raised_by_constructors(path: tuple[Any, ...], problem: ConfigError) -> bool:
    """Tell whether Lightning's parser takes what crashes when the classes are made.

    An unknown key of nothing counts, too.
    """
    if re.search(r"needs (total_steps|monitor, text: the metric)", str(problem)):
        return True
    if re.search(r"init_args\.\w+: there is no|exclude each other", str(problem)):
        return True
    if re.search(r"expected (\S+ or more|more than|a number from|at least|above)", str(problem)):
        return True
    if "no such key" in str(problem) or (
        path[-1:] == ("nope",) and "no such argument" in str(problem)
    ):
        return True
    return (
        "dict_kwargs" in path and "has no such argument" in str(problem)
    ) or "trainer.profiler: " in str(problem)


@as_recorded
@pytest.mark.parametrize(
    ("cases", "num_cases"),
    [
        (_values_of_arguments, 150),
        (_classes_at_places, 150),
        pytest.param(_values_of_arguments, 1200, marks=pytest.mark.long),
        pytest.param(_classes_at_places, 1000, marks=pytest.mark.long),
    ],
    ids=[
        "values of arguments",
        "classes at places",
        "many values of arguments",
        "many classes at places",
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_nothing_is_reported_that_lightning_takes(
    tmp_path: Path, cases: Any, num_cases: int
) -> None:
    judges = _Judges(tmp_path)
    drawn = random.Random(7).sample(every := list(cases()), min(num_cases, len(every)))
    wrong = {
        str(said): findings for said in drawn if (findings := judges.disagree(said)) is not None
    }
    assert wrong == {}


@as_recorded
def test_the_catalogue_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_a_class_of_ones_own_is_described_by_its_signature() -> None:
    from pytorch_lightning import Callback

    from lightkit.cli.class_descriptions import describe_class

    class Counting(Callback):
        """Counts.

        Args:
            every: How often, in `steps`.
        """

        def __init__(self, every: int, names: list[str] | None = None, **kwargs: Any) -> None:
            super().__init__()

    class Bounded(Callback):
        def __init__(self, width: int = 8) -> None:
            super().__init__()

    # as a module has it that does not postpone its annotations
    Bounded.__init__.__annotations__["width"] = Annotated[int, Bounds(ge=1)]

    described = describe_class(Counting)
    assert described.help == "Counts."
    assert "pytorch_lightning.Callback" in described.bases
    assert described.open
    every = Argument({"type": "integer"}, required=True, help="How often, in `steps`.")
    assert described.arguments["every"] == every
    assert describe_type(described.arguments["names"].schema) == "a list of text or null"
    assert described.defaults == {"names": None}
    assert describe_class(Bounded).arguments["width"].schema == {"type": "integer", "minimum": 1}


@pytest.mark.parametrize("path", ["lightkit.data.Table", "torch.optim.lr_scheduler.OneCycleLR"])
def test_an_entry_of_the_schema_is_read_and_written_without_a_change(path: str) -> None:
    entry = CATALOGUE.data["classes"][path]
    assert ClassDescription.read(path, entry).to_json() == entry
