"""Optimizers and schedules of every kind that LightningCLI's documentation shows are the same with lightkit's class."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR

from tests.cli.superset import models
from tests.cli.superset.compared import FIT, Both

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def learning_rate(cli: Any) -> float:
    """The learning rate that the first optimizer began with."""
    group = cli.trainer.optimizers[0].param_groups[0]
    return float(group.get("initial_lr", group["lr"]))


@pytest.mark.parametrize(
    ("words", "kind", "rate"),
    [
        (["--optimizer=Adam"], torch.optim.Adam, 0.001),
        (["--optimizer=Adam", "--optimizer.lr=0.01"], torch.optim.Adam, 0.01),
        (["--optimizer", "torch.optim.SGD", "--optimizer.lr", "1e-3"], torch.optim.SGD, 0.001),
        (["--optimizer=SGD", "--optimizer.lr=0.5", "--lr_scheduler=StepLR", "--lr_scheduler.step_size=2"],
         torch.optim.SGD, 0.5),
        (["--optimizer=SGD", "--optimizer.init_args.lr=0.5", "--lr_scheduler=ExponentialLR",
          "--lr_scheduler.init_args.gamma=0.1"], torch.optim.SGD, 0.5),
        (["--optimizer=RMSprop", "--lr_scheduler=ReduceLROnPlateau", "--lr_scheduler.monitor=val_loss"],
         torch.optim.RMSprop, 0.01),
        (["--config=optimizer.yaml"], torch.optim.AdamW, 0.125),
        (["--optimizer=optimizer_alone.yaml"], torch.optim.AdamW, 0.25),
    ],
    ids=["name", "rate", "class_path", "schedule", "init_args", "plateau", "file", "file_of_a_section"],
)  # fmt: skip
def test_an_optimizer_of_the_config(words: list[str], kind: type, rate: float, both: Both) -> None:
    both.files["optimizer.yaml"] = """\
optimizer:
  class_path: torch.optim.AdamW
  init_args: {lr: 0.125, betas: [0.8, 0.9]}
lr_scheduler:
  class_path: torch.optim.lr_scheduler.CosineAnnealingLR
  init_args: {T_max: 3}
"""
    both.files["optimizer_alone.yaml"] = "class_path: AdamW\ninit_args: {lr: 0.25}\n"
    cli = both.same(lambda cli: cli(models.LinearModel, models.Dots, args=[*FIT, *words]))
    assert (type(cli.trainer.optimizers[0]), learning_rate(cli)) == (kind, rate)


def test_one_class_of_optimizer_and_of_schedule(both: Both) -> None:
    """Both are named in Python, so that the config holds their arguments alone."""

    def example(base: type[LightningCLI]) -> LightningCLI:
        class MyCLI(base):  # type: ignore[misc, valid-type]
            def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
                parser.add_optimizer_args(torch.optim.Adam)
                parser.add_lr_scheduler_args(StepLR)
                parser.set_defaults({"optimizer.lr": 0.25, "lr_scheduler.step_size": 3})

        return MyCLI(models.LinearModel, models.Dots, args=[*FIT, "--optimizer.weight_decay=0.5"])

    cli = both.same(example)
    assert (learning_rate(cli), cli.trainer.lr_scheduler_configs[0].scheduler.step_size) == (0.25, 3)


def test_a_choice_of_optimizers(both: Both) -> None:
    def example(base: type[LightningCLI]) -> LightningCLI:
        class MyCLI(base):  # type: ignore[misc, valid-type]
            def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
                parser.add_optimizer_args((torch.optim.SGD, torch.optim.Adam), nested_key="my_optimizer")

        words = [*FIT, "--my_optimizer=SGD", "--my_optimizer.lr=0.5"]
        return MyCLI(models.LinearModel, models.Dots, args=words)

    assert learning_rate(both.same(example)) == 0.5


def test_an_optimizer_outside_the_choice_is_refused(both: Both) -> None:
    def example(base: type[LightningCLI]) -> LightningCLI:
        class MyCLI(base):  # type: ignore[misc, valid-type]
            def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
                parser.add_optimizer_args((torch.optim.SGD, torch.optim.Adam))

        return MyCLI(models.LinearModel, models.Dots, args=[*FIT, "--optimizer=RMSprop"])

    theirs, ours = both(example)
    assert (theirs.code, ours.code) == (2, 2)


def test_several_optimizers_that_are_linked_to_the_model(both: Both) -> None:
    def example(base: type[LightningCLI]) -> LightningCLI:
        class MyCLI(base):  # type: ignore[misc, valid-type]
            def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
                parser.add_optimizer_args(nested_key="first", link_to="model.first")
                parser.add_optimizer_args(torch.optim.SGD, nested_key="second", link_to="model.second")
                parser.add_lr_scheduler_args(CosineAnnealingLR, nested_key="schedule", link_to="model.schedule")

        words = ["--first=Adam", "--first.lr=0.25", "--second.lr=0.125", "--schedule.T_max=3"]
        return MyCLI(models.RivalsModel, models.Dots, args=[*FIT, *words])

    cli = both.same(example)
    assert [type(each) for each in cli.trainer.optimizers] == [torch.optim.Adam, torch.optim.SGD]
    assert cli.trainer.lr_scheduler_configs[0].scheduler.T_max == 3


def test_two_automatic_optimizers_are_refused(both: Both) -> None:
    def example(base: type[LightningCLI]) -> LightningCLI:
        class MyCLI(base):  # type: ignore[misc, valid-type]
            def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
                parser.add_optimizer_args(torch.optim.Adam, "first")
                parser.add_optimizer_args(torch.optim.Adam, "second")

        return MyCLI(models.LinearModel, models.Dots, args=FIT)

    for run in (both.theirs, both.ours):
        with pytest.raises(MisconfigurationException, match="at most one optimizer"):
            run(example)


def test_no_optimizers_of_the_config(both: Both) -> None:
    def example(base: type[LightningCLI], *words: str) -> LightningCLI:
        args = [*FIT, *words]
        return base(models.LinearModel, models.Dots, auto_configure_optimizers=False, args=args)

    assert type(both.same(example).trainer.optimizers[0]) is torch.optim.SGD
    theirs, ours = both(lambda base: example(base, "--optimizer=Adam"))
    assert (theirs.code, ours.code) == (2, 2)


def test_configure_optimizers_of_the_script(both: Both) -> None:
    def example(base: type[LightningCLI]) -> LightningCLI:
        class MyCLI(base):  # type: ignore[misc, valid-type]
            @staticmethod
            def configure_optimizers(lightning_module: Any, optimizer: Any, lr_scheduler: Any = None) -> Any:
                return {"optimizer": optimizer, "lr_scheduler": {"scheduler": lr_scheduler, "interval": "step"}}

        words = [*FIT, "--optimizer=SGD", "--optimizer.lr=0.5", "--lr_scheduler=StepLR", "--lr_scheduler.step_size=1"]
        return MyCLI(models.LinearModel, models.Dots, args=words)

    assert both.same(example).trainer.lr_scheduler_configs[0].interval == "step"


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--model.optimizer=SGD", "--model.optimizer.lr=0.5"],
        ["--model.optimizer=SGD", "--model.optimizer.lr=0.5", "--model.scheduler=StepLR",
         "--model.scheduler.step_size=2"],
        ["--config=injected.yaml"],
        ["--model.scheduler=pytorch_lightning.cli.ReduceLROnPlateau", "--model.scheduler.monitor=val_loss"],
    ],
    ids=["defaults", "optimizer", "both", "file", "plateau"],
)  # fmt: skip
def test_optimizers_as_arguments_of_the_model(words: list[str], both: Both) -> None:
    both.files["injected.yaml"] = """\
model:
  optimizer: {class_path: torch.optim.RMSprop, init_args: {lr: 0.125}}
  scheduler: {class_path: torch.optim.lr_scheduler.ExponentialLR, init_args: {gamma: 0.5}}
"""
    both.same(lambda cli: cli(models.InjectedModel, models.Dots, auto_configure_optimizers=False,
                              args=[*FIT, *words]))  # fmt: skip


def test_optimizers_as_arguments_of_a_chosen_model(both: Both) -> None:
    words = [*FIT, "--model=InjectedModel", "--data=Dots", "--model.optimizer=SGD", "--model.optimizer.lr=0.5"]
    assert learning_rate(both.same(lambda cli: cli(auto_configure_optimizers=False, args=words))) == 0.5


def test_a_part_of_the_model_and_a_function_as_default(both: Both) -> None:
    words = [*FIT, "--model.head=torch.nn.Linear", "--model.head.in_features=2", "--model.head.out_features=3"]
    cli = both.same(lambda cli: cli(models.NestedModel, models.Dots, args=words))
    assert cli.model.head.out_features == 3


def test_an_optimizer_under_a_key_of_its_own_for_a_model_made_late(both: Both) -> None:
    """LightningCLI takes the parameters before `configure_model` has made them, and its optimizer has none."""

    class Late(models.LinearModel):
        def __init__(self) -> None:
            super().__init__()
            del self.layer

        def configure_model(self) -> None:
            self.layer = torch.nn.Linear(3, 2)

    def example(base: type[LightningCLI]) -> LightningCLI:
        class MyCLI(base):  # type: ignore[misc, valid-type]
            def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
                parser.add_optimizer_args(torch.optim.SGD, "my_optimizer")

        return MyCLI(Late, models.Dots, args=[*FIT, "--my_optimizer.lr=0.5"])

    assert learning_rate(both.ours(example).cli) == 0.5
