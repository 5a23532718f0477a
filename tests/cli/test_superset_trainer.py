"""Callbacks, trainers, files and the parser of LightningCLI's documentation are the same with lightkit's class."""

from __future__ import annotations

from typing import Any

import pytest
import pytorch_lightning as pl
from pytorch_lightning.callbacks import EarlyStopping, LearningRateMonitor, Timer
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI

from tests.cli.superset import models
from tests.cli.superset.compared import FIT, HERE, Both

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

CALLBACKS = """\
trainer:
  callbacks:
    - class_path: EarlyStopping
      init_args: {monitor: val_loss, patience: 7}
    - class_path: pytorch_lightning.callbacks.LearningRateMonitor
      init_args: {logging_interval: epoch}
"""
PATIENT = ["--trainer.callbacks.patience=7", "--trainer.callbacks.monitor=val_loss"]


def stopping(cli: Any) -> EarlyStopping:
    """The only callback that stops early."""
    (found,) = (callback for callback in cli.trainer.callbacks if isinstance(callback, EarlyStopping))
    return found


@pytest.mark.parametrize(
    "words",
    [
        ["--trainer.callbacks=EarlyStopping", *PATIENT],
        ["--trainer.callbacks+=EarlyStopping", *PATIENT],
        ["--trainer.callbacks+=EarlyStopping", *PATIENT, "--trainer.callbacks+=DeviceStatsMonitor"],
        ["--trainer.callbacks+={class_path: EarlyStopping, init_args: {monitor: val_loss, patience: 7}}"],
        ['--trainer.callbacks=[{"class_path": "EarlyStopping", "init_args": {"monitor": "val_loss", "patience": 7}}]'],
        ["--config=callbacks.yaml"],
        ["--config=callbacks.yaml", "--trainer.callbacks+=DeviceStatsMonitor"],
        ["--config=appended.yaml"],
        ["--config=one.yaml"],
    ],
    ids=["one", "appended", "two", "inline", "json", "file", "file_and_flag", "file_that_appends", "mapping"],
)
def test_callbacks_of_the_config(words: list[str], both: Both) -> None:
    both.files["callbacks.yaml"] = CALLBACKS.replace("    - class_path: pytorch_lightning.callbacks", "#").replace(
        "      init_args: {logging_interval", "#"
    )
    both.files["appended.yaml"] = both.files["callbacks.yaml"].replace("callbacks:", "callbacks+:")
    both.files["one.yaml"] = (
        "trainer: {callbacks: {class_path: EarlyStopping, init_args: {monitor: val_loss, patience: 7}}}"
    )
    cli = both.same(lambda cli: cli(models.LinearModel, models.Dots, args=[*FIT, *words]))
    assert stopping(cli).patience == 7


def test_a_list_of_callbacks(both: Both) -> None:
    both.files["callbacks.yaml"] = CALLBACKS
    words = [
        "fit",
        "--trainer.accelerator=cpu",
        "--trainer.max_epochs=1",
        "--seed_everything=1",
        "-c",
        "callbacks.yaml",
    ]
    cli = both.same(lambda cli: cli(models.LinearModel, models.Dots, args=words, save_config_callback=None))
    assert stopping(cli).patience == 7
    assert any(isinstance(callback, LearningRateMonitor) for callback in cli.trainer.callbacks)


@pytest.mark.parametrize(
    ("words", "patience"), [([], 5), (["--my_early_stopping.patience=2"], 2)], ids=["default", "flag"]
)
def test_a_callback_with_a_section_of_its_own(words: list[str], patience: int, both: Both) -> None:
    def example(base: type[LightningCLI]) -> LightningCLI:
        class MyCLI(base):  # type: ignore[misc, valid-type]
            def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
                parser.add_lightning_class_args(EarlyStopping, "my_early_stopping")
                parser.set_defaults({"my_early_stopping.monitor": "val_loss", "my_early_stopping.patience": 5})

        return MyCLI(models.LinearModel, models.Dots, args=[*FIT, *words])

    assert stopping(both.same(example)).patience == patience


def test_defaults_of_the_trainer(both: Both) -> None:
    defaults = {"max_epochs": 3, "callbacks": [Timer(), EarlyStopping("val_loss")], "gradient_clip_val": 0.5}
    words = [*FIT, "--trainer.gradient_clip_val=0.25"]
    cli = both.same(lambda cli: cli(models.LinearModel, models.Dots, trainer_defaults=defaults, args=words))
    assert (stopping(cli).monitor, cli.trainer.gradient_clip_val) == ("val_loss", 0.25)


def test_defaults_of_the_trainer_that_a_script_gives_its_parser(both: Both) -> None:
    def example(base: type[LightningCLI]) -> LightningCLI:
        class MyCLI(base):  # type: ignore[misc, valid-type]
            def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
                callbacks = [{"class_path": "EarlyStopping", "init_args": {"monitor": "val_loss", "patience": 7}}]
                parser.set_defaults({"trainer.logger": False, "trainer.callbacks": callbacks, "model.width": 4})

        words = ["fit", "--trainer.accelerator=cpu", "--trainer.max_epochs=1", "--seed_everything=1"]
        return MyCLI(models.LinearModel, models.Dots, args=words, save_config_callback=None)

    cli = both.same(example)
    assert (cli.trainer.loggers, cli.model.layer.out_features, stopping(cli).patience) == ([], 4, 7)


def test_one_callback_among_the_defaults_of_the_trainer(both: Both) -> None:
    defaults = {"callbacks": EarlyStopping("val_loss", patience=4)}
    cli = both.same(lambda cli: cli(models.LinearModel, models.Dots, trainer_defaults=defaults, args=FIT))
    assert stopping(cli).patience == 4


class MyTrainer(pl.Trainer):
    """A trainer with another default and one argument more.

    Args:
        greeting: Any text.
    """

    def __init__(self, *args: Any, greeting: str = "hello", log_every_n_steps: int = 3, **kwargs: Any) -> None:
        super().__init__(*args, log_every_n_steps=log_every_n_steps, **kwargs)
        self.greeting = greeting


def my_trainer(max_steps: int = 1, callbacks: Any = None, logger: Any = False) -> pl.Trainer:
    """Build a trainer from fewer arguments, without a logger."""
    return pl.Trainer(max_steps=max_steps, accelerator="cpu", callbacks=callbacks, logger=logger)


def test_a_trainer_class_of_ones_own(both: Both) -> None:
    words = [*FIT, "--trainer.greeting=hi"]
    cli = both.same(lambda cli: cli(models.LinearModel, models.Dots, trainer_class=MyTrainer, args=words))
    assert (type(cli.trainer), cli.trainer.greeting, cli.trainer.log_every_n_steps) == (MyTrainer, "hi", 3)


def test_a_function_that_builds_the_trainer(both: Both) -> None:
    def example(base: type[LightningCLI]) -> LightningCLI:
        return base(models.LinearModel, models.Dots, trainer_class=my_trainer, save_config_callback=None,
                    args=["fit", "--seed_everything=1"])  # fmt: skip

    assert both.same(example).trainer.max_steps == 1


# -- files and variables -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["--trainer=trainer.yaml", "--model=model.yaml", "--data", "data.yaml"],
        ["--config=config.yaml"],
        ["--model=model.yaml", "--model.depth=3", "--data=Dots", "--trainer", "trainer.yaml"],
    ],
    ids=["flags", "config", "and_a_flag"],
)
def test_a_file_for_one_section(words: list[str], both: Both) -> None:
    both.files |= {
        "trainer.yaml": "gradient_clip_val: 0.5",
        "model.yaml": f"class_path: {HERE}.OtherModel\ninit_args: {{depth: 3}}",
        "data.yaml": "class_path: FewDots",
        "config.yaml": "trainer: trainer.yaml\nmodel: model.yaml\ndata: data.yaml",
    }
    words = ["fit", *words, *FIT[1:]]
    cli = both.same(lambda cli: cli(args=words))
    assert (cli.trainer.gradient_clip_val, cli.model.hparams["depth"]) == (0.5, 3)


def test_a_file_for_a_section_of_a_fixed_class(both: Both) -> None:
    both.files |= {"model.yaml": "width: 4", "optimizer.yaml": "class_path: SGD\ninit_args: {lr: 0.5}"}
    words = [*FIT, "--model=model.yaml", "--optimizer", "optimizer.yaml"]
    cli = both.same(lambda cli: cli(models.LinearModel, models.Dots, args=words))
    assert cli.model.layer.out_features == 4


def test_config_several_times(both: Both) -> None:
    both.files |= {
        "first.yaml": "model: {width: 4, note: first}\ntrainer: {gradient_clip_val: 0.5}",
        "second.yaml": "model: {note: second}",
    }
    words = [*FIT, "--config", "first.yaml", "--config=second.yaml", "--trainer.gradient_clip_val=0.25"]
    cli = both.same(lambda cli: cli(models.LinearModel, models.Dots, args=words))
    assert (dict(cli.model.hparams)["note"], cli.trainer.gradient_clip_val) == ("second", 0.25)


ENVIRONMENT = {
    "PL_FIT__TRAINER__ACCELERATOR": "cpu",
    "PL_FIT__TRAINER__FAST_DEV_RUN": "1",
    "PL_FIT__TRAINER__LOGGER": "false",
    "PL_FIT__TRAINER__CALLBACKS": "[{class_path: EarlyStopping, init_args: {monitor: val_loss, patience: 7}}]",
    "PL_FIT__SEED_EVERYTHING": "1",
    "PL_FIT__MODEL": "LinearModel",
    "PL_FIT__DATA": "{class_path: Dots, init_args: {count: 4}}",
}


def test_environment_variables(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    words = ["fit", "--model.width=4"]
    cli = both.same(lambda cli: cli(parser_kwargs={"default_env": True}, args=words))
    assert (cli.model.layer.out_features, stopping(cli).patience, cli.trainer.loggers) == (4, 7, [])


def test_environment_variables_of_another_prefix(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_FIT__MODEL__WIDTH", "4")
    monkeypatch.setenv("PL_FIT__MODEL__WIDTH", "5")
    kwargs = {"default_env": True, "env_prefix": "MY"}
    cli = both.same(lambda cli: cli(models.LinearModel, models.Dots, parser_kwargs=kwargs, args=FIT))
    assert cli.model.layer.out_features == 4


def test_a_config_that_a_variable_names(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    both.files["config.yaml"] = (
        f"{CALLBACKS}  logger: {{class_path: CSVLogger, init_args: {{save_dir: logs}}}}\nmodel: {{width: 4}}\n"
    )
    monkeypatch.setenv("PL_FIT__CONFIG", "config.yaml")
    words = ["fit", "--trainer.accelerator=cpu", "--trainer.max_epochs=1", "--seed_everything=1"]
    cli = both.same(lambda cli: cli(models.LinearModel, models.Dots, parser_kwargs={"default_env": True}, args=words))
    assert (cli.model.layer.out_features, stopping(cli).patience) == (4, 7)


def test_variables_mean_nothing_unless_they_are_asked_for(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PL_FIT__MODEL__WIDTH", "5")
    cli = both.same(lambda cli: cli(models.LinearModel, models.Dots, args=FIT))
    assert cli.model.layer.out_features == 2


def test_default_config_files_of_a_command(both: Both) -> None:
    both.files["my_fit_defaults.yaml"] = f"{CALLBACKS}model: {{width: 4}}"
    kwargs = {"fit": {"default_config_files": ["my_fit_defaults.yaml", "missing.yaml"]}}
    words = ["fit", "--trainer.accelerator=cpu", "--trainer.max_epochs=1", "--seed_everything=1", "--model.note=flag"]
    cli = both.same(lambda cli: cli(models.LinearModel, models.Dots, parser_kwargs=kwargs, args=words))
    assert (cli.model.layer.out_features, stopping(cli).patience) == (4, 7)


def test_default_config_files_of_all_commands(both: Both) -> None:
    both.files["defaults.yaml"] = "fit: {model: {width: 4}}"
    kwargs = {"default_config_files": ["defaults.yaml"]}
    cli = both.same(lambda cli: cli(models.LinearModel, models.Dots, parser_kwargs=kwargs, args=FIT))
    assert cli.model.layer.out_features == 4


def test_interpolation_of_omegaconf(both: Both) -> None:
    both.files["config.yaml"] = "model: {width: 4, note: w}\ndata: {batch_size: '${model.width}'}"
    kwargs = {"parser_mode": "omegaconf"}
    words = [*FIT, "--config=config.yaml"]
    cli = both.same(lambda cli: cli(models.LinearModel, models.Dots, parser_kwargs=kwargs, args=words))
    assert cli.datamodule.batch_size == 4


def test_a_parser_class_of_ones_own(both: Both) -> None:
    class MyParser(LightningArgumentParser):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{"env_prefix": "OWN", **kwargs})

    cli = both.same(lambda cli: cli(models.LinearModel, models.Dots, parser_class=MyParser, args=FIT))
    assert type(cli.parser) is MyParser
