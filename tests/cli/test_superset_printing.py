"""What LightningCLI prints and how it ends is the same with lightkit's class, in lightkit's words."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from pytorch_lightning.cli import LightningCLI

from tests.cli.superset import models
from tests.cli.superset.compared import FIT, HERE, Both

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.mark.parametrize("run", [True, False], ids=["run", "no_run"])
def test_print_config_ends_well_and_can_be_fed_back(run: bool, both: Both) -> None:
    def example(base: type[LightningCLI], *words: str) -> LightningCLI:
        args = [*FIT[not run :], "--model.width=4", *words]
        return base(models.LinearModel, models.Dots, run=run, args=args)

    theirs, ours = both(lambda base: example(base, "--print_config"))
    assert (theirs.code, ours.code) == (0, 0)
    printed = yaml.safe_load(ours.out)
    assert (
        printed["model"] == yaml.safe_load(theirs.out)["model"] == {"learning_rate": 0.02, "width": 4, "note": "plain"}
    )
    both.files["printed.yaml"] = theirs.out
    assert both.same(lambda base: example(base, "--config=printed.yaml")).model.layer.out_features == 4
    assert not list(Path("runs").rglob("printed.yaml"))


@pytest.mark.parametrize(
    "words",
    [["--model.help=OtherModel"], ["--model.help", f"{HERE}.OtherModel"], ["--help"], ["--optimizer.help=SGD"]],
    ids=["class", "class_path", "all", "optimizer"],
)
def test_help_ends_well(words: list[str], both: Both) -> None:
    theirs, ours = both(lambda cli: cli(args=["fit", *words]))
    assert (theirs.code, ours.code) == (0, 0)
    sections = [line.strip() for line in theirs.out.splitlines() if "--model.depth" in line or "--optimizer.lr" in line]
    assert all(section in ours.out for section in sections)


@pytest.mark.parametrize(
    "words",
    [
        ["--model.depht=3"],
        ["--trainer.max_epochs=ten"],
        ["--config=missing.yaml"],
        ["--modle=OtherModel"],
        ["OtherModel"],
    ],
    ids=["argument", "type", "file", "section", "word"],
)
def test_a_mistake_ends_with_2(words: list[str], both: Both) -> None:
    theirs, ours = both(lambda cli: cli(args=["fit", "--model=OtherModel", "--data=Dots", *words]))
    assert (theirs.code, ours.code) == (2, 2)
    assert ours.err.startswith("error: ")
    assert len(ours.err.splitlines()) < 6
    assert not (ours.folder / "runs").exists()


def test_a_missing_command_ends_with_2(both: Both) -> None:
    theirs, ours = both(lambda cli: cli(models.LinearModel, models.Dots, args=[]))
    assert (theirs.code, ours.code) == (2, 2)
