"""Scripts as the documentation of LightningCLI shows them do the same with lightkit's class: classes and links."""

from __future__ import annotations

from typing import Any

import pytest
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI

from tests.cli.superset import models
from tests.cli.superset.compared import FIT, HERE, Both

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def test_one_model_and_one_data_class(both: Both) -> None:
    cli = both.same(lambda cli: cli(models.LinearModel, models.Dots, args=FIT))
    assert type(cli.model) is models.LinearModel


def test_arguments_of_fixed_classes(both: Both) -> None:
    words = [*FIT, "--model.learning_rate=0.1", "--data.batch_size", "2", "--trainer.gradient_clip_val=0.5"]
    cli = both.same(lambda cli: cli(models.LinearModel, models.Dots, args=words))
    assert (cli.model.hparams["learning_rate"], cli.datamodule.batch_size) == (0.1, 2)


def test_a_model_without_a_data_class(both: Both) -> None:
    class Whole(models.LinearModel):
        train_dataloader = val_dataloader = lambda self: models.Dots().loader()

    assert both.same(lambda cli: cli(Whole, args=FIT)).datamodule is None


def test_a_function_that_builds_the_model(both: Both) -> None:
    cli = both.same(lambda cli: cli(models.linear_model, models.Dots, args=[*FIT, "--model.width=4"]))
    assert (cli.model.layer.out_features, cli.model.hparams["note"]) == (4, "built")


def test_models_and_data_by_class_path(both: Both) -> None:
    words = [*FIT, f"--model={HERE}.OtherModel", "--model.depth=3", f"--data={HERE}.FewDots", "--data.batch_size=1"]
    cli = both.same(lambda cli: cli(args=words))
    assert (type(cli.model), cli.model.hparams["depth"]) == (models.OtherModel, 3)


def test_models_and_data_by_short_name(both: Both) -> None:
    words = [*FIT, "--model=OtherModel", "--data=FewDots", "--model", "LinearModel", "--model.note=short"]
    cli = both.same(lambda cli: cli(args=words))
    assert (type(cli.model), cli.model.hparams["note"]) == (models.LinearModel, "short")


def test_another_class_begins_with_its_own_arguments(both: Both) -> None:
    """Known difference: LightningCLI keeps the arguments of the class before where the new one has them too."""
    words = [*FIT, "--model=OtherModel", "--model.note=of the other", "--data=FewDots", "--model=LinearModel"]
    theirs, ours = both(lambda cli: cli(args=words))
    assert theirs.cli.model.hparams["note"] == "of the other"
    assert ours.cli.model.hparams["note"] == "plain"


def test_models_and_data_in_a_file(both: Both) -> None:
    both.files["config.yaml"] = f"""\
model:
  class_path: {HERE}.OtherModel
  init_args: {{depth: 2}}
data:
  class_path: ManyPoints
  init_args:
    count: 8
"""
    words = [*FIT, "--config", "config.yaml", "--model.note=from a flag"]
    assert both.same(lambda cli: cli(args=words)).model.hparams["note"] == "from a flag"


def test_subclass_mode(both: Both) -> None:
    words = [*FIT, "--model=OtherModel", "--model.depth=2", "--data=FewDots"]
    cli = both.same(
        lambda cli: cli(models.LinearModel, models.Dots, subclass_mode_model=True, subclass_mode_data=True, args=words)
    )
    assert (type(cli.model), type(cli.datamodule)) == (models.OtherModel, models.FewDots)


def test_subclass_mode_of_the_model_alone(both: Both) -> None:
    words = [*FIT, "--model", f"{HERE}.OtherModel", "--data.count=4"]
    cli = both.same(lambda cli: cli(models.LinearModel, models.Dots, subclass_mode_model=True, args=words))
    assert (type(cli.model), cli.datamodule.count) == (models.OtherModel, 4)


def test_subclass_mode_refuses_a_class_of_another_kind(both: Both) -> None:
    words = [*FIT, "--model=BoringModel", "--data=FewDots"]
    theirs, ours = both(lambda cli: cli(models.LinearModel, models.Dots, subclass_mode_model=True, args=words))
    assert (theirs.code, ours.code) == (2, 2)


def test_a_link_when_parsing(both: Both) -> None:
    def example(base: type[LightningCLI]) -> LightningCLI:
        class MyCLI(base):  # type: ignore[misc, valid-type]
            def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
                parser.link_arguments("data.batch_size", "model.batch_size")

        return MyCLI(models.ShapedModel, models.Dots, args=[*FIT, "--data.batch_size=2", "--model.num_classes=3"])

    assert both.same(example).model.hparams["batch_size"] == 2


def test_a_link_in_subclass_mode(both: Both) -> None:
    def example(base: type[LightningCLI]) -> LightningCLI:
        class MyCLI(base):  # type: ignore[misc, valid-type]
            def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
                parser.link_arguments("data.init_args.batch_size", "model.init_args.batch_size")

        words = [*FIT, "--model=ShapedModel", "--model.num_classes=3", "--data=FewDots", "--data.batch_size=4"]
        return MyCLI(args=words)

    assert both.same(example).model.hparams["batch_size"] == 4


def test_a_link_that_computes(both: Both) -> None:
    def example(base: type[LightningCLI]) -> LightningCLI:
        class MyCLI(base):  # type: ignore[misc, valid-type]
            def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
                parser.link_arguments(
                    ("data.batch_size", "data.count"), "model.num_classes", compute_fn=lambda size, count: count // size
                )

        return MyCLI(models.ShapedModel, models.Dots, args=[*FIT, "--data.count=12"])

    assert both.same(example).model.hparams["num_classes"] == 3


def test_a_link_when_building(both: Both) -> None:
    def example(base: type[LightningCLI]) -> LightningCLI:
        class MyCLI(base):  # type: ignore[misc, valid-type]
            def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
                parser.link_arguments("data.num_classes", "model.num_classes", apply_on="instantiate")

        return MyCLI(models.ShapedModel, models.Dots, args=FIT)

    assert both.same(example).model.hparams["num_classes"] == 5


def test_a_link_of_a_script_s_own_argument(both: Both) -> None:
    def example(base: type[LightningCLI]) -> LightningCLI:
        class MyCLI(base):  # type: ignore[misc, valid-type]
            def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
                parser.add_argument("--notification_email", default="will@email.com")
                parser.link_arguments("notification_email", "model.note")
                parser.set_defaults({"data.batch_size": 2})

        return MyCLI(models.LinearModel, models.Dots, args=[*FIT, "--notification_email=me@email.com"])

    cli = both.same(example)
    assert (cli.model.hparams["note"], cli.datamodule.batch_size) == ("me@email.com", 2)


def test_one_file_for_all_commands(both: Both) -> None:
    """The file stands before the command, and holds a block for it."""
    both.files["config.yaml"] = f"fit: {{model: {HERE}.OtherModel, data: Dots}}\n"
    assert type(both.same(lambda cli: cli(args=["--config", "config.yaml", *FIT])).model) is models.OtherModel


@pytest.mark.parametrize(
    "args",
    [
        {"fit": {"model.width": 4, "trainer.fast_dev_run": 1, "trainer.accelerator": "cpu"}, "subcommand": "fit"},
        {"fit": {"model": {"width": 4}, "trainer": {"fast_dev_run": 1, "accelerator": "cpu"}}, "subcommand": "fit"},
    ],
    ids=["dotted", "nested"],
)
def test_arguments_as_a_dict(args: dict[str, Any], both: Both) -> None:
    cli = both.same(lambda cli: cli(models.LinearModel, models.Dots, seed_everything_default=1, args=args))
    assert cli.model.layer.out_features == 4
