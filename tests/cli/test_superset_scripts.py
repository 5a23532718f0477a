"""Hooks, commands and ways to call LightningCLI that its documentation shows are the same with lightkit's class."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
import yaml
from pytorch_lightning.cli import LightningCLI, SaveConfigCallback

from lightkit.cli.lightning import LightkitCLI
from tests.cli.conftest import read_json
from tests.cli.superset import models
from tests.cli.superset.compared import FIT, Both

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

SAVED = ["fit", "--trainer.accelerator=cpu", "--trainer.max_steps=1", "--trainer.logger=false", "--seed_everything=1"]


def test_it_takes_what_lightning_takes() -> None:
    theirs = inspect.signature(LightningCLI).parameters
    ours = inspect.signature(LightkitCLI).parameters
    kept = {name: (each.kind, each.default) for name, each in ours.items() if name in theirs}
    assert list(kept.items()) == [(name, (each.kind, each.default)) for name, each in theirs.items()]
    assert [(name, each.kind) for name, each in ours.items() if name not in theirs] == [
        ("session", inspect.Parameter.KEYWORD_ONLY)
    ]


def test_arguments_in_their_places(both: Both) -> None:
    cli = both.same(
        lambda cli: cli(models.LinearModel, models.Dots, None, None, pl.Trainer, {"max_epochs": 3}, 5, args=FIT[:3])
    )
    assert cli.config["fit"]["seed_everything"] == 5


# -- ways to call it ---------------------------------------------------------------------------------------------------


def test_words_of_the_process(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["main.py", *FIT, "--model.width=4"])
    assert both.same(lambda cli: cli(models.LinearModel, models.Dots)).model.layer.out_features == 4


@pytest.mark.parametrize("kind", ["list", "dict", "namespace"])
def test_without_a_command(kind: str, both: Both) -> None:
    def example(base: type[LightningCLI]) -> LightningCLI:
        values: dict[str, Any] = {"trainer": {"accelerator": "cpu", "max_steps": 1}, "model": {"width": 4}}
        words = ["--trainer.accelerator=cpu", "--trainer.max_steps=1", "--model.width=4"]
        args: Any = {"list": words, "dict": values}.get(kind)
        if args is None:
            from jsonargparse import Namespace, dict_to_namespace

            args = dict_to_namespace(values)
            assert isinstance(args, Namespace)
        cli = base(models.LinearModel, models.Dots, run=False, args=args, seed_everything_default=1)
        cli.trainer.fit(cli.model, cli.datamodule)
        return cli

    cli = both.same(example)
    assert (cli.model.layer.out_features, cli.trainer.global_step) == (4, 1)


@pytest.mark.parametrize("words", [None, ["--model.width=4"]], ids=["dict", "list"])
def test_without_a_recorded_run_lightnings_config_is_saved(words: list[str] | None, both: Both) -> None:
    def example(base: type[LightningCLI]) -> LightningCLI:
        args: Any = words or {"model": {"width": 4}}
        defaults = {"accelerator": "cpu", "max_steps": 1}
        cli = base(models.LinearModel, models.Dots, run=False, args=args, trainer_defaults=defaults)
        cli.trainer.fit(cli.model, cli.datamodule)
        return cli

    for ran in both(example):
        (saved,) = ran.folder.rglob("config.yaml")
        assert yaml.safe_load(saved.read_text())["model"]["width"] == 4


def test_all_commands(both: Both) -> None:
    def example(base: type[LightningCLI], command: str) -> LightningCLI:
        return base(models.LinearModel, models.Dots, args=[command, *FIT[1:]])

    for command in ("validate", "test", "predict"):
        both.same(partial(example, command=command), all_commands=True)


def test_a_command_of_ones_own(both: Both) -> None:
    class Tuned(pl.Trainer):
        def finetune(self, model: pl.LightningModule, datamodule: Any = None, rounds: int = 1) -> None:
            """Fit several times.

            Args:
                model: What to fit.
                datamodule: On what.
                rounds: How many times.
            """
            for _ in range(rounds):
                self.fit(model, datamodule)
            self.rounds = rounds

    def example(base: type[LightningCLI]) -> LightningCLI:
        class MyCLI(base):  # type: ignore[misc, valid-type]
            @staticmethod
            def subcommands() -> dict[str, set[str]]:
                return {"finetune": {"model", "datamodule"}}

        words = ["finetune", *FIT[1:], "--rounds=2", "--model.width=4"]
        return MyCLI(models.LinearModel, models.Dots, trainer_class=Tuned, args=words)

    assert both.same(example).trainer.rounds == 2


def test_parser_arguments_of_each_command(both: Both) -> None:
    kwargs = {"fit": {"description": "Fits what was asked for."}, "description": "Does it all."}
    for ran in both(lambda cli: cli(models.LinearModel, models.Dots, parser_kwargs=kwargs, args=["fit", "--help"])):
        assert ran.code == 0
        assert "Fits what was asked for." in ran.out


@pytest.mark.parametrize("default", [False, 3], ids=["none", "number"])
def test_a_default_seed(default: bool | int, both: Both) -> None:
    cli = both.same(lambda cli: cli(models.LinearModel, models.Dots, seed_everything_default=default, args=FIT[:3]))
    assert cli.config["fit"]["seed_everything"] == default


# -- hooks -------------------------------------------------------------------------------------------------------------


def test_hooks(both: Both) -> None:
    """None of them calls the method that it stands for."""

    def example(base: type[LightningCLI]) -> LightningCLI:
        class MyCLI(base):  # type: ignore[misc, valid-type]
            def before_instantiate_classes(self) -> None:
                self.told = [hasattr(self, "model")]
                self.config["fit"]["model"]["note"] = "changed"

            def after_instantiate_classes(self) -> None:
                self.told.append(self.trainer.global_step)

            def before_fit(self) -> None:
                self.told.append(self.trainer.global_step)

            def after_fit(self) -> None:
                self.told.append(self.trainer.global_step)

        return MyCLI(models.LinearModel, models.Dots, args=FIT)

    cli = both.same(example)
    assert cli.told == [False, 0, 0, 1]
    assert cli.model.hparams["note"] == "changed"
    assert cli.saved_config["model"]["note"] == "changed"


def test_a_recorded_run_with_hooks(both: Both) -> None:
    def example(base: type[LightningCLI]) -> LightningCLI:
        class MyCLI(base):  # type: ignore[misc, valid-type]
            def before_instantiate_classes(self) -> None: ...

        return MyCLI(models.LinearModel, models.Dots, args=SAVED, save_config_callback=None)

    both.same(example)
    (summary,) = (both.folder / "ours/runs/default").glob("2*/summary.json")
    assert read_json(summary)["status"] == "done"


def test_a_command_in_the_script(both: Both) -> None:
    def example(base: type[LightningCLI]) -> LightningCLI:
        class MyCLI(base):  # type: ignore[misc, valid-type]
            def fit(self, model: Any, **kwargs: Any) -> None:
                self.trainer.fit(model, **kwargs)
                self.trainer.validate(model, **kwargs, verbose=False)

        return MyCLI(models.LinearModel, models.Dots, args=FIT)

    assert both.same(example).trainer.state.fn == "validate"


def test_a_trainer_built_by_the_script(both: Both) -> None:
    class MyCallback(pl.Callback): ...

    def example(base: type[LightningCLI]) -> LightningCLI:
        class MyCLI(base):  # type: ignore[misc, valid-type]
            def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
                kwargs |= {"callbacks": [MyCallback()], "gradient_clip_val": 0.5}
                return super().instantiate_trainer(**kwargs)  # type: ignore[no-any-return]

        return MyCLI(models.LinearModel, models.Dots, args=FIT)

    cli = both.same(example)
    assert cli.trainer.gradient_clip_val == 0.5
    assert any(isinstance(callback, MyCallback) for callback in cli.trainer.callbacks)


# -- the saved config --------------------------------------------------------------------------------------------------


def test_a_config_saved_in_another_place(both: Both) -> None:
    class ElsewhereToo(SaveConfigCallback):
        def save_config(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
            with open("elsewhere.yaml", "w") as file:  # noqa: PTH123
                file.write(self.parser.dump(self.config))

    def example(base: type[LightningCLI]) -> LightningCLI:
        kwargs = {"save_to_log_dir": False}
        return base(models.LinearModel, models.Dots, ElsewhereToo, save_config_kwargs=kwargs, args=SAVED)

    both.same(example)
    for name in ("theirs", "ours"):
        saved = yaml.safe_load((both.folder / name / "elsewhere.yaml").read_text())
        assert saved["model"] == {"learning_rate": 0.02, "width": 2, "note": "plain"}


@pytest.mark.parametrize(
    ("kwargs", "files"),
    [
        (None, ["config.yaml"]),
        ({"overwrite": True}, ["config.yaml"]),
        ({"config_filename": "name.yaml"}, ["config.yaml", "name.yaml"]),
    ],
    ids=["default", "overwrite", "name"],
)
def test_the_run_folder_holds_the_config(kwargs: dict[str, Any] | None, files: list[str], both: Both) -> None:
    ours = both.ours(lambda cli: cli(models.LinearModel, models.Dots, save_config_kwargs=kwargs, args=SAVED))
    assert sorted(path.name for path in ours.folder.glob("runs/default/2*/*.yaml")) == files


# -- checkpoints -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("support", [True, False], ids=["support", "none"])
def test_a_checkpoint_can_be_loaded_by_the_class(support: bool, both: Both) -> None:
    def example(base: type[LightningCLI]) -> LightningCLI:
        args = [*SAVED, "--model.width=4"]
        return base(models.LinearModel, models.Dots, load_from_checkpoint_support=support, args=args)

    for ran in both(example):
        path = next(ran.folder.rglob("*.ckpt"))
        assert models.LinearModel.load_from_checkpoint(path).layer.out_features == 4


def fitted(base: type[LightningCLI], *words: str) -> LightningCLI:
    args = [*SAVED, "--model.width=4", "--model.note=old", *words]
    cli = base(models.LinearModel, models.Dots, args=args)
    cli.trainer.save_checkpoint("old.ckpt")
    return cli


def test_the_hyper_parameters_of_a_checkpoint_fill_in_what_nobody_says(both: Both) -> None:
    both(fitted)
    words = ["fit", "--trainer.max_steps=2", *SAVED[3:], "--trainer.accelerator=cpu", "--ckpt_path=old.ckpt"]
    cli = both.same(lambda base: base(models.LinearModel, models.Dots, args=words, save_config_callback=None))
    assert (cli.model.layer.out_features, cli.model.hparams["note"], cli.trainer.global_step) == (4, "old", 2)


@pytest.mark.parametrize("by", ["flag", "file"])
def test_the_users_words_win_over_a_checkpoint(by: str, both: Both) -> None:
    """Known difference: LightningCLI 2.6 lets the checkpoint's hyper-parameters win over YAML and flags."""
    both(fitted)
    both.files["new.yaml"] = "model: {width: 4, note: new}"
    said = {"flag": ["--model.note=new"], "file": ["--config=new.yaml"]}[by]
    words = ["fit", "--trainer.max_steps=2", *SAVED[3:], "--trainer.accelerator=cpu", "--ckpt_path=old.ckpt", *said]
    theirs, ours = both(lambda base: base(models.LinearModel, models.Dots, args=words, save_config_callback=None))
    assert (theirs.cli.model.hparams["note"], ours.cli.model.hparams["note"]) == ("old", "new")
    assert ours.cli.trainer.global_step == theirs.cli.trainer.global_step == 2


def test_a_checkpoint_is_tested_with_its_hyper_parameters(both: Both) -> None:
    both(fitted)
    words = ["test", "--trainer.accelerator=cpu", "--trainer.logger=false", "--ckpt_path=old.ckpt"]
    kwargs: dict[str, Any] = {"args": words, "save_config_callback": None}
    for ran in both(lambda base: base(models.LinearModel, models.Dots, **kwargs), all_commands=True):
        assert torch.equal(
            ran.cli.model.layer.weight, torch.load(ran.folder / "old.ckpt")["state_dict"]["layer.weight"]
        )
