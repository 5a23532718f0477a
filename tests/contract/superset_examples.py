"""Scripts of LightningCLI's users, run with `LightningCLI` or with `LightkitCLI`.

A JSON file says what they built.

Usage: `superset_examples.py lightning|lightkit CASES.json RESULTS.json`. A case is a name, the
words of the command line, arguments of the class, files and variables; where a function here has
that name, it is the script, else the script is `LightningCLI(LinearModel, Dots)`, or
`LightningCLI()` where `open` is true.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import yaml
from jsonargparse import dict_to_namespace
from pytorch_lightning.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint, Timer
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR

from lightkit import LightkitCLI
from tests.contract import superset_models as models

Base = type[LightningCLI]
FIT = ["fit", "--trainer.accelerator=cpu", "--trainer.fast_dev_run=1", "--seed_everything=1"]
ONE_STEP = [
    *("fit", "--trainer.accelerator=cpu", "--trainer.max_steps=1", "--trainer.logger=false"),
    *("--seed_everything=1", "--trainer.limit_val_batches=1"),
]
NO_CONFIG: dict[str, Any] = {"save_config_callback": None}
EXAMPLES: dict[str, Callable[[Base], Any]] = {}
WITH_ALL_COMMANDS: set[str] = set()


def example(script: Callable[[Base], Any]) -> Callable[[Base], Any]:
    """Make a function one of the examples."""
    EXAMPLES[script.__name__] = script
    return script


def with_all_commands(script: Callable[[Base], Any]) -> Callable[[Base], Any]:
    """Build all commands' parsers of an example, not that of `fit` alone, which is faster."""
    WITH_ALL_COMMANDS.add(script.__name__)
    return script


# -- classes ---------------------------------------------------------------------------------------


@example
def a_model_without_a_data_class(base: Base) -> Any:
    class Whole(models.LinearModel):
        train_dataloader = val_dataloader = lambda self: models.Dots().loader()

    return base(Whole, args=FIT)


@example
def a_function_that_builds_the_model(base: Base) -> Any:
    return base(models.linear_model, models.Dots, args=[*FIT, "--model.width=4"])


@example
def subclass_mode(base: Base) -> Any:
    words = [*FIT, "--model=OtherModel", "--model.depth=2", "--data=FewDots"]
    return base(
        models.LinearModel,
        models.Dots,
        subclass_mode_model=True,
        subclass_mode_data=True,
        args=words,
    )


@example
def subclass_mode_of_the_model_alone(base: Base) -> Any:
    words = [*FIT, "--model=tests.contract.superset_models.OtherModel", "--data.count=4"]
    return base(models.LinearModel, models.Dots, subclass_mode_model=True, args=words)


@example
def subclass_mode_with_a_class_of_another_kind(base: Base) -> Any:
    words = [*FIT, "--model=pytorch_lightning.demos.boring_classes.BoringModel"]
    return base(models.LinearModel, models.Dots, subclass_mode_model=True, args=words)


# -- links -----------------------------------------------------------------------------------------


@example
def a_link_when_parsing(base: Base) -> Any:
    class MyCLI(base):  # type: ignore[misc, valid-type]
        def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
            parser.link_arguments("data.batch_size", "model.batch_size")

    return MyCLI(
        models.ShapedModel, models.Dots, args=[*FIT, "--data.batch_size=2", "--model.num_classes=3"]
    )


@example
def a_link_in_subclass_mode(base: Base) -> Any:
    class MyCLI(base):  # type: ignore[misc, valid-type]
        def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
            parser.link_arguments("data.init_args.batch_size", "model.init_args.batch_size")

    words = [
        *FIT,
        "--model=ShapedModel",
        "--model.num_classes=3",
        "--data=FewDots",
        "--data.batch_size=2",
    ]
    return MyCLI(args=words)


@example
def a_link_that_computes(base: Base) -> Any:
    class MyCLI(base):  # type: ignore[misc, valid-type]
        def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
            parser.link_arguments(
                ("data.batch_size", "data.count"),
                "model.num_classes",
                compute_fn=lambda size, count: count // size,
            )

    return MyCLI(models.ShapedModel, models.Dots, args=[*FIT, "--data.count=12"])


@example
def a_link_when_building(base: Base) -> Any:
    class MyCLI(base):  # type: ignore[misc, valid-type]
        def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
            parser.link_arguments("data.num_classes", "model.num_classes", apply_on="instantiate")

    return MyCLI(models.ShapedModel, models.Dots, args=FIT)


@example
def a_link_of_an_argument_of_the_script(base: Base) -> Any:
    class MyCLI(base):  # type: ignore[misc, valid-type]
        def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
            parser.add_argument("--notification_email", default="will@email.com")
            parser.link_arguments("notification_email", "model.note")
            parser.set_defaults({"data.batch_size": 2})

    return MyCLI(models.LinearModel, models.Dots, args=[*FIT, "--notification_email=me@email.com"])


# -- optimizers ------------------------------------------------------------------------------------


@example
def one_class_of_optimizer_and_of_schedule(base: Base) -> Any:
    class MyCLI(base):  # type: ignore[misc, valid-type]
        def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
            parser.add_optimizer_args(torch.optim.Adam)
            parser.add_lr_scheduler_args(StepLR)
            parser.set_defaults({"optimizer.lr": 0.25, "lr_scheduler.step_size": 3})

    return MyCLI(models.LinearModel, models.Dots, args=[*FIT, "--optimizer.weight_decay=0.5"])


@example
def a_choice_of_optimizers(base: Base) -> Any:
    class MyCLI(base):  # type: ignore[misc, valid-type]
        def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
            parser.add_optimizer_args(
                (torch.optim.SGD, torch.optim.Adam), nested_key="my_optimizer"
            )

    return MyCLI(
        models.LinearModel, models.Dots, args=[*FIT, "--my_optimizer=SGD", "--my_optimizer.lr=0.5"]
    )


@example
def an_optimizer_outside_the_choice(base: Base) -> Any:
    class MyCLI(base):  # type: ignore[misc, valid-type]
        def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
            parser.add_optimizer_args((torch.optim.SGD, torch.optim.Adam))

    return MyCLI(models.LinearModel, models.Dots, args=[*FIT, "--optimizer=RMSprop"])


@example
def several_optimizers_that_are_linked_to_the_model(base: Base) -> Any:
    class MyCLI(base):  # type: ignore[misc, valid-type]
        def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
            parser.add_optimizer_args(nested_key="first", link_to="model.first")
            parser.add_optimizer_args(torch.optim.SGD, nested_key="second", link_to="model.second")
            parser.add_lr_scheduler_args(
                CosineAnnealingLR, nested_key="schedule", link_to="model.schedule"
            )

    words = ["--first=Adam", "--first.lr=0.25", "--second.lr=0.125", "--schedule.T_max=3"]
    return MyCLI(models.RivalsModel, models.Dots, args=[*FIT, *words])


@example
def two_automatic_optimizers(base: Base) -> Any:
    class MyCLI(base):  # type: ignore[misc, valid-type]
        def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
            parser.add_optimizer_args(torch.optim.Adam, "first")
            parser.add_optimizer_args(torch.optim.Adam, "second")

    return MyCLI(models.LinearModel, models.Dots, args=FIT)


@example
def configure_optimizers_of_the_script(base: Base) -> Any:
    class MyCLI(base):  # type: ignore[misc, valid-type]
        @staticmethod
        def configure_optimizers(
            lightning_module: Any, optimizer: Any, lr_scheduler: Any = None
        ) -> Any:
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": lr_scheduler, "interval": "step"},
            }

    words = [
        *FIT,
        "--optimizer=SGD",
        "--optimizer.lr=0.5",
        "--lr_scheduler=StepLR",
        "--lr_scheduler.step_size=1",
    ]
    return MyCLI(models.LinearModel, models.Dots, args=words)


@example
def a_part_of_the_model_and_a_function_as_default(base: Base) -> Any:
    words = [
        *FIT,
        "--model.head=torch.nn.Linear",
        "--model.head.in_features=2",
        "--model.head.out_features=3",
    ]
    return base(models.NestedModel, models.Dots, args=words)


@example
def an_optimizer_as_argument_of_the_model(base: Base) -> Any:
    words = [*FIT, "--model.optimizer=SGD", "--model.optimizer.lr=0.5"]
    words += ["--model.scheduler=StepLR", "--model.scheduler.step_size=2"]
    return base(models.InjectedModel, models.Dots, auto_configure_optimizers=False, args=words)


@example
def an_optimizer_in_a_file_for_the_model(base: Base) -> Any:
    words = [*FIT, "--config=injected.yaml"]
    return base(models.InjectedModel, models.Dots, auto_configure_optimizers=False, args=words)


# -- trainer and callbacks -------------------------------------------------------------------------


@example
def a_callback_with_a_section_of_its_own(base: Base) -> Any:
    class MyCLI(base):  # type: ignore[misc, valid-type]
        def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
            parser.add_lightning_class_args(EarlyStopping, "my_early_stopping")
            parser.set_defaults(
                {"my_early_stopping.monitor": "val_loss", "my_early_stopping.patience": 5}
            )

    return MyCLI(models.LinearModel, models.Dots, args=[*FIT, "--my_early_stopping.patience=7"])


@example
def defaults_of_the_trainer(base: Base) -> Any:
    defaults = {
        "max_epochs": 3,
        "callbacks": [Timer(), EarlyStopping("val_loss", patience=7)],
        "gradient_clip_val": 0.5,
    }
    words = [*FIT, "--trainer.gradient_clip_val=0.25"]
    return base(models.LinearModel, models.Dots, trainer_defaults=defaults, args=words)


@example
def defaults_of_the_trainer_by_the_parser(base: Base) -> Any:
    class MyCLI(base):  # type: ignore[misc, valid-type]
        def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
            callbacks = [
                {"class_path": "EarlyStopping", "init_args": {"monitor": "val_loss", "patience": 7}}
            ]
            parser.set_defaults(
                {"trainer.logger": False, "trainer.callbacks": callbacks, "model.width": 4}
            )

    words = ["fit", "--trainer.accelerator=cpu", "--trainer.max_epochs=1", "--seed_everything=1"]
    return MyCLI(models.LinearModel, models.Dots, args=words, save_config_callback=None)


class MyTrainer(pl.Trainer):
    """A trainer with another default and one argument more.

    Args:
        greeting: Any text.
    """

    def __init__(
        self, *args: Any, greeting: str = "hello", log_every_n_steps: int = 3, **kwargs: Any
    ) -> None:
        super().__init__(*args, log_every_n_steps=log_every_n_steps, **kwargs)
        self.greeting = greeting


def my_trainer(max_steps: int = 1, callbacks: Any = None, logger: Any = False) -> pl.Trainer:
    """Build a trainer from fewer arguments, without a logger."""
    return pl.Trainer(max_steps=max_steps, accelerator="cpu", callbacks=callbacks, logger=logger)


@example
def a_trainer_class(base: Base) -> Any:
    cli = base(
        models.LinearModel,
        models.Dots,
        trainer_class=MyTrainer,
        args=[*FIT, "--trainer.greeting=hi"],
    )
    cli.facts = cli.trainer.greeting  # type: ignore[attr-defined]
    return cli


@example
def a_function_that_builds_the_trainer(base: Base) -> Any:
    words = ["fit", "--seed_everything=1"]
    return base(
        models.LinearModel,
        models.Dots,
        trainer_class=my_trainer,
        save_config_callback=None,
        args=words,
    )


@example
def a_trainer_built_by_the_script(base: Base) -> Any:
    class MyCLI(base):  # type: ignore[misc, valid-type]
        def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
            kwargs |= {
                "callbacks": [EarlyStopping("val_loss", patience=7)],
                "gradient_clip_val": 0.5,
            }
            return super().instantiate_trainer(**kwargs)  # type: ignore[no-any-return]

    return MyCLI(models.LinearModel, models.Dots, args=FIT)


# -- ways to call it -------------------------------------------------------------------------------


@example
def arguments_in_their_places(base: Base) -> Any:
    return base(
        models.LinearModel, models.Dots, None, None, pl.Trainer, {"max_epochs": 3}, 5, args=FIT[:3]
    )


@example
def words_of_the_process(base: Base) -> Any:
    kept = sys.argv[:]
    sys.argv[:] = ["main.py", *FIT, "--model.width=4"]
    try:
        return base(models.LinearModel, models.Dots)
    finally:
        sys.argv[:] = kept


@example
def a_dict_with_dotted_keys(base: Base) -> Any:
    values = {"model.width": 4, "trainer.fast_dev_run": 1, "trainer.accelerator": "cpu"}
    args = {"subcommand": "fit", "fit": values}
    return base(models.LinearModel, models.Dots, seed_everything_default=1, args=args)


@example
def a_nested_dict(base: Base) -> Any:
    values = {"model": {"width": 4}, "trainer": {"fast_dev_run": 1, "accelerator": "cpu"}}
    args = {"subcommand": "fit", "fit": values}
    return base(models.LinearModel, models.Dots, seed_everything_default=1, args=args)


def _without_a_command(base: Base, args: Any) -> Any:
    cli = base(models.LinearModel, models.Dots, run=False, args=args, seed_everything_default=1)
    steps_before = cli.trainer.global_step
    cli.trainer.fit(cli.model, cli.datamodule)
    (saved,) = Path().rglob("config.yaml")
    width = yaml.safe_load(saved.read_text(encoding="utf-8"))["model"]["width"]
    cli.facts = [steps_before, cli.trainer.global_step, width]  # type: ignore[attr-defined]
    return cli


@example
def no_command_and_words(base: Base) -> Any:
    return _without_a_command(
        base, ["--trainer.accelerator=cpu", "--trainer.max_steps=1", "--model.width=4"]
    )


@example
def no_command_and_a_dict(base: Base) -> Any:
    return _without_a_command(
        base, {"trainer": {"accelerator": "cpu", "max_steps": 1}, "model": {"width": 4}}
    )


@example
def no_command_and_a_namespace(base: Base) -> Any:
    values = {"trainer": {"accelerator": "cpu", "max_steps": 1}, "model": {"width": 4}}
    return _without_a_command(base, dict_to_namespace(values))


@example
def a_default_seed(base: Base) -> Any:
    return base(models.LinearModel, models.Dots, seed_everything_default=3, args=FIT[:3])


@example
def no_default_seed(base: Base) -> Any:
    return base(models.LinearModel, models.Dots, seed_everything_default=False, args=FIT[:3])


@example
def a_parser_class(base: Base) -> Any:
    class MyParser(LightningArgumentParser): ...

    cli = base(models.LinearModel, models.Dots, parser_class=MyParser, args=FIT)
    cli.facts = type(cli.parser).__name__  # type: ignore[attr-defined]
    return cli


@example
@with_all_commands
def all_commands(base: Base) -> Any:
    for command in ("validate", "test", "predict"):
        cli = base(models.LinearModel, models.Dots, args=[command, *FIT[1:]])
    return cli


@example
@with_all_commands
def a_command_of_the_trainer_class(base: Base) -> Any:
    class Tuned(pl.Trainer):
        def finetune(
            self, model: pl.LightningModule, datamodule: Any = None, rounds: int = 1
        ) -> None:
            """Fit several times.

            Args:
                model: What to fit.
                datamodule: On what.
                rounds: How many times.
            """
            for _ in range(rounds):
                self.fit(model, datamodule)
            self.rounds = rounds

    class MyCLI(base):  # type: ignore[misc, valid-type]
        @staticmethod
        def subcommands() -> dict[str, set[str]]:
            return {"finetune": {"model", "datamodule"}}

    words = ["finetune", *FIT[1:], "--rounds=2", "--model.width=4"]
    cli = MyCLI(models.LinearModel, models.Dots, trainer_class=Tuned, args=words)
    cli.facts = cli.trainer.rounds
    return cli


@example
def a_command_in_the_script(base: Base) -> Any:
    class MyCLI(base):  # type: ignore[misc, valid-type]
        def fit(self, model: Any, **kwargs: Any) -> None:
            self.trainer.fit(model, **kwargs)
            self.trainer.validate(model, **kwargs, verbose=False)

    cli = MyCLI(models.LinearModel, models.Dots, args=FIT)
    cli.facts = cli.trainer.state.fn
    return cli


@example
def hooks(base: Base) -> Any:
    class MyCLI(base):  # type: ignore[misc, valid-type]
        def before_instantiate_classes(self) -> None:
            self.facts = [hasattr(self, "model")]
            self.config["fit"]["model"]["note"] = "changed"

        def after_instantiate_classes(self) -> None:
            self.facts.append(self.trainer.global_step)

        def before_fit(self) -> None:
            self.facts.append(self.trainer.global_step)

        def after_fit(self) -> None:
            self.facts.append(self.trainer.global_step)

    return MyCLI(models.LinearModel, models.Dots, args=FIT)


@example
def two_fits(base: Base) -> Any:
    for width in (2, 3):
        cli = base(
            models.LinearModel, models.Dots, args=[*ONE_STEP, f"--model.width={width}"], **NO_CONFIG
        )
    return cli


# -- the saved config, and checkpoints -------------------------------------------------------------


@example
def a_config_saved_in_another_place(base: Base) -> Any:
    class ElsewhereToo(SaveConfigCallback):
        def save_config(
            self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str
        ) -> None:
            Path("elsewhere.yaml").write_text(self.parser.dump(self.config), encoding="utf-8")

    kwargs = {"save_to_log_dir": False}
    cli = base(
        models.LinearModel, models.Dots, ElsewhereToo, save_config_kwargs=kwargs, args=ONE_STEP
    )
    cli.facts = yaml.safe_load(Path("elsewhere.yaml").read_text(encoding="utf-8"))["model"]  # type: ignore[attr-defined]
    return cli


@example
def a_checkpoint_that_the_class_loads(base: Base) -> Any:
    cli = base(models.LinearModel, models.Dots, args=[*ONE_STEP, "--model.width=4"], **NO_CONFIG)
    path = next(Path().rglob("*.ckpt"))
    loaded = models.LinearModel.load_from_checkpoint(path)
    cli.facts = loaded.layer.out_features  # type: ignore[attr-defined]
    return cli


def _fit_and_save(base: Base) -> None:
    cli = base(
        models.LinearModel,
        models.Dots,
        args=[*ONE_STEP, "--model.width=4", "--model.note=old"],
        **NO_CONFIG,
    )
    cli.trainer.save_checkpoint("old.ckpt")


@example
def a_checkpoint_and_another_flag(base: Base) -> Any:
    _fit_and_save(base)
    args = [
        *ONE_STEP,
        "--trainer.max_steps=2",
        "--ckpt_path=old.ckpt",
        "--model.width=4",
        "--model.note=new",
    ]
    return base(models.LinearModel, models.Dots, args=args, **NO_CONFIG)


@example
@with_all_commands
def a_checkpoint_is_tested(base: Base) -> Any:
    _fit_and_save(base)
    model = ["--model.width=4", "--model.note=old"]
    args = [
        "test",
        "--trainer.accelerator=cpu",
        "--trainer.logger=false",
        "--ckpt_path=old.ckpt",
        *model,
    ]
    cli = base(models.LinearModel, models.Dots, args=args, **NO_CONFIG)
    saved = torch.load("old.ckpt", weights_only=False)["state_dict"]["layer.weight"]
    cli.facts = bool(torch.equal(cli.model.layer.weight, saved))  # type: ignore[attr-defined]
    return cli


@example
def an_error_that_does_not_exit(base: Base) -> Any:
    kwargs = {"exit_on_error": False}
    return base(
        models.LinearModel, models.Dots, parser_kwargs=kwargs, args=[*FIT, "--model.widht=2"]
    )


def small_trainer(max_steps: int = 1, callbacks: Any = None) -> pl.Trainer:
    """Build a trainer from two arguments."""
    return pl.Trainer(max_steps=max_steps, accelerator="cpu", callbacks=callbacks)


@example
def a_function_without_a_logger(base: Base) -> Any:
    words = ["fit", "--seed_everything=1"]
    return base(
        models.LinearModel,
        models.Dots,
        trainer_class=small_trainer,
        save_config_callback=None,
        args=words,
    )


@example
@with_all_commands
def a_checkpoint_callback_of_the_users(base: Base) -> Any:
    class MyCLI(base):  # type: ignore[misc, valid-type]
        def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
            parser.add_lightning_class_args(ModelCheckpoint, "keep")
            parser.set_defaults(
                {"keep.monitor": "val_loss", "keep.mode": "max", "keep.filename": "mine-{epoch}"}
            )

    words = [
        "--trainer.accelerator=cpu",
        "--trainer.max_epochs=3",
        "--seed_everything=1",
        "--trainer.logger=false",
    ]
    cli = MyCLI(models.LinearModel, models.Dots, args=["fit", *words], **NO_CONFIG)
    keeper, trainer = cli.trainer.checkpoint_callback, cli.trainer
    kept = sorted(
        path.name for path in Path(keeper.dirpath).glob("*.ckpt") if path.name != "resume.ckpt"
    )
    (best,) = trainer.validate(cli.model, cli.datamodule, ckpt_path="best", verbose=False)
    same = abs(best["val_loss"] - float(keeper.best_model_score)) < 1e-6
    cli.facts = [type(keeper).__name__, keeper.mode, Path(keeper.best_model_path).name, kept, same]
    return cli


def _spawned(base: Base, strategy: str) -> Any:
    words = [
        "fit",
        "--trainer.accelerator=cpu",
        "--trainer.devices=1",
        f"--trainer.strategy={strategy}",
    ]
    words += ["--trainer.max_steps=2", "--trainer.enable_progress_bar=false", "--seed_everything=1"]
    return base(models.LinearModel, models.Dots, args=words)


@example
@with_all_commands
def ddp_spawn(base: Base) -> Any:
    return _spawned(base, "ddp_spawn")


@example
@with_all_commands
def ddp_notebook(base: Base) -> Any:
    return _spawned(base, "ddp_notebook")


@example
def an_argument_of_several_words(base: Base) -> Any:
    class MyCLI(base):  # type: ignore[misc, valid-type]
        def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
            parser.add_argument("--names", type=str, nargs="+")

    cli = MyCLI(
        models.LinearModel, models.Dots, args=[*FIT, "--names", "a", "b c", "--model.width=4"]
    )
    cli.facts = cli.config.fit.names
    return cli


@example
def an_option_that_lightkit_has_too(base: Base) -> Any:
    class MyCLI(base):  # type: ignore[misc, valid-type]
        def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
            parser.add_argument("--output", type=str)

    cli = MyCLI(models.LinearModel, models.Dots, args=[*FIT, "--output", "there"])
    cli.facts = cli.config.fit.output
    return cli


@example
def a_saved_config_that_is_there(base: Base) -> Any:
    said = []
    for kwargs in ({}, {}, {"overwrite": True}):
        try:
            cli = base(models.LinearModel, models.Dots, save_config_kwargs=kwargs, args=ONE_STEP)
        except RuntimeError as error:
            said.append("Aborting to avoid overwriting" in str(error))
    cli.facts = [said, Path("config.yaml").is_file()]  # type: ignore[attr-defined]
    return cli


@example
def print_config_before_any_hook(base: Base) -> Any:
    class MyCLI(base):  # type: ignore[misc, valid-type]
        def before_instantiate_classes(self) -> None:
            Path("hook.txt").touch()

    return MyCLI(models.LinearModel, models.Dots, args=[*FIT, "--print_config"])


@example
def reserved_names(base: Base) -> Any:
    for name in ("run", "launch", "accelerator", "watchdog", "gate"):

        class MyCLI(base):  # type: ignore[misc, valid-type]
            def add_arguments_to_parser(
                self, parser: LightningArgumentParser, name: str = name
            ) -> None:
                parser.add_argument(f"--{name}", type=str)

        with contextlib.suppress(SystemExit):
            MyCLI(models.LinearModel, models.Dots, args=FIT)
    raise SystemExit


@example
@with_all_commands
def a_checkpoint_of_another_width(base: Base) -> Any:
    _fit_and_save(base)
    words = [
        "test",
        "--trainer.accelerator=cpu",
        "--trainer.logger=false",
        "--ckpt_path=old.ckpt",
        "--model.width=2",
    ]
    return base(models.LinearModel, models.Dots, args=words, **NO_CONFIG)


# -- what was built --------------------------------------------------------------------------------

TRAINER = (
    *(
        "max_epochs",
        "max_steps",
        "precision",
        "fast_dev_run",
        "gradient_clip_val",
        "limit_train_batches",
    ),
    *(
        "val_check_interval",
        "accumulate_grad_batches",
        "num_devices",
        "world_size",
        "log_every_n_steps",
    ),
    *("check_val_every_n_epoch", "global_step"),
)


def describe(cli: Any) -> dict[str, Any]:
    """Say what a command line has parsed and built, without what lightkit adds to it."""
    trainer = cli.trainer
    own = (ModelCheckpoint, SaveConfigCallback, pl.callbacks.ProgressBar, pl.callbacks.ModelSummary)
    callbacks = [
        callback
        for callback in trainer.callbacks
        if not is_lightkits(callback)
        and type(callback).__name__ != "LambdaCallback"
        and not isinstance(callback, own)
    ]
    checkpoints = [
        [callback.monitor, callback.save_top_k]
        for callback in trainer.checkpoint_callbacks
        if isinstance(callback, ModelCheckpoint) and callback.monitor and not is_lightkits(callback)
    ]
    groups = [
        {k: v for k, v in each.param_groups[0].items() if k != "params"}
        for each in trainer.optimizers
    ]
    return {
        "config": parsed(cli),
        "model": type(cli.model).__name__,
        "hparams": plain(cli.model.hparams),
        "data": cli.datamodule and type(cli.datamodule).__name__,
        "data_hparams": cli.datamodule and plain(cli.datamodule.hparams),
        "callbacks": [[type(each).__name__, settings(each)] for each in callbacks],
        "checkpoints": checkpoints,
        "optimizers": [type(each).__name__ for each in trainer.optimizers],
        "groups": groups,
        "schedules": [
            [
                type(each.scheduler).__name__,
                plain(each.scheduler.state_dict()),
                each.monitor,
                each.interval,
            ]
            for each in trainer.lr_scheduler_configs
        ],
        "loggers": [
            isinstance(each, (pl.loggers.TensorBoardLogger, pl.loggers.CSVLogger))
            for each in trainer.loggers
        ],
        "trainer_class": type(trainer).__name__,
        "trainer": {name: getattr(trainer, name) for name in TRAINER},
        "facts": getattr(cli, "facts", None),
        "weights": {
            name: each.detach().flatten().tolist() for name, each in cli.model.named_parameters()
        },
    }


def parsed(cli: Any) -> Any:
    """Give the config without what lightkit adds or decides."""
    section = cli.config if cli.subcommand is None else cli.config[cli.subcommand]
    config: dict[str, Any] = section.clone().as_dict()
    trainer = config["trainer"]
    callbacks = trainer.pop("callbacks", None) or []
    callbacks = callbacks if isinstance(callbacks, list) else [callbacks]
    trainer["callbacks"] = [each for each in callbacks if "lightkit." not in str(each)]
    given = trainer.pop("logger", None)
    trainer["logger"] = None if given is True or "lightkit." in str(given) else given
    for key in ("run", "launch", "watchdog", "gate", "accelerator", "config", "ckpt_path"):
        config.pop(key, None)
    trainer.pop("default_root_dir", None)
    return without_files(config)


def without_files(value: Any) -> Any:
    """Leave out where jsonargparse has found a section."""
    if isinstance(value, dict):
        return {key: without_files(each) for key, each in value.items() if key != "__path__"}
    return [without_files(each) for each in value] if isinstance(value, list) else value


def is_lightkits(part: object) -> bool:
    """Tell whether lightkit has added an object."""
    return type(part).__module__.startswith("lightkit.")


def plain(values: Any) -> dict[str, Any]:
    """Give hyper-parameters or a state without what LightningCLI puts beside them."""
    return {key: value for key, value in dict(values).items() if not key.startswith("_")}


def settings(callback: Any) -> Any:
    """Give the settings of a callback."""
    if isinstance(callback, EarlyStopping):
        return [callback.monitor, callback.patience, callback.min_delta, callback.mode]
    if isinstance(callback, LearningRateMonitor):
        return [callback.logging_interval, callback.log_momentum]
    return None


def as_json(value: Any) -> str:
    """Name what JSON has no word for."""
    return (
        str(value)
        if isinstance(value, Path)
        else getattr(value, "__qualname__", type(value).__qualname__)
    )


def run(case: dict[str, Any], base: Base) -> dict[str, Any]:
    """Run one case in a folder of its own, and say what became of it."""
    folder = Path(case["name"])
    for name, text in case["files"].items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    folder.mkdir(parents=True, exist_ok=True)
    home, environ = Path.cwd(), dict(os.environ)
    os.chdir(folder)
    os.environ.update(case["environ"])
    out, err = io.StringIO(), io.StringIO()
    done: dict[str, Any] = {"code": None, "built": None}

    class Fit(base):  # type: ignore[misc, valid-type]
        @staticmethod
        def subcommands() -> dict[str, set[str]]:
            return {"fit": LightningCLI.subcommands()["fit"]}

    chosen = base if case["name"] in WITH_ALL_COMMANDS else Fit
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            if case["name"] in EXAMPLES:
                cli = EXAMPLES[case["name"]](chosen)
            elif case["open"]:
                cli = chosen(args=case["words"], **case["options"])
            else:
                cli = chosen(models.LinearModel, models.Dots, args=case["words"], **case["options"])
            done["built"] = describe(cli)
    except SystemExit as end:
        done["code"] = end.code or 0
    except Exception as error:  # noqa: BLE001 (a case that fails must not keep the others from running)
        done["code"] = f"{type(error).__name__}: {error}"
        err.write(traceback.format_exc())
    finally:
        os.chdir(home)
        os.environ.clear()
        os.environ.update(environ)
    return {**done, "out": out.getvalue(), "err": err.getvalue()}


if __name__ == "__main__":
    chosen_base = {"lightning": LightningCLI, "lightkit": LightkitCLI}[sys.argv[1]]
    cases = json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    results_file = Path(sys.argv[3])
    del sys.argv[1:]  # LightningCLI warns of words beside `args`
    results = {case["name"]: run(case, chosen_base) for case in cases}
    parameters = inspect.signature(chosen_base).parameters.values()
    results["parameters"] = {
        each.name: f"{each.kind.description}: {each.default!r}" for each in parameters
    }
    results_file.write_text(json.dumps(results, default=as_json), encoding="utf-8")
