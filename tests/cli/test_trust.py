"""What a checkpoint can make the command do: nothing that the user's own words do not name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit import runs
from lightkit.errors import ConfigError
from tests.cli.conftest import MY_MODELS, House

pytestmark = pytest.mark.slow  # each runs a stage

MARKED = """\
import pathlib
from typing import Callable, Optional

import torch
from my_models import Net

pathlib.Path("imported").touch()


def act(x):
    return x


class Deep(Net):
    def __init__(self, act: Optional[Callable] = None, layer: Optional[torch.nn.Module] = None, hidden: int = 4,
                 text: str = "os.path"):
        super().__init__(hidden=hidden)
        self.save_hyperparameters()
"""
POINTS = "--data=my_models.Points"


class Touches:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, ("touch ran",)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The content of a checkpoint of ``small.yaml``'s network, made without training."""
    from pytorch_lightning import Trainer

    from lightkit.callbacks import ResumeState

    names: dict[str, Any] = {"__name__": "my_models"}
    exec(MY_MODELS, names)
    shown: dict[str, Any] = dict.fromkeys(
        ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False
    )
    folder = tmp_path_factory.mktemp("trained")
    trainer = Trainer(max_epochs=1, accelerator="cpu", callbacks=[ResumeState()], default_root_dir=folder, **shown)
    trainer.fit(names["Net"](), names["Points"]())
    content: dict[str, Any] = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
    return content


def _entry(house: House, content: Any, name: str = "a.ckpt", **kwargs: Any) -> str:
    torch.save(content, house.folder / name, **kwargs)
    return f"--ckpt_path={name}"


# -- code in files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["fit", "validate", "test", "predict"])
def test_a_checkpoint_that_runs_code_is_refused_and_does_not_run_it(
    stage: str, house: House, trained: dict[str, Any]
) -> None:
    done = house(stage, "-c", "small.yaml", _entry(house, {**trained, "more": Touches()}))
    assert done.code == 2
    assert "error: a.ckpt holds posix.system beside tensors and plain values" in done.err
    assert "--trust on the command line allows it" in done.err
    assert not (house.folder / "ran").exists()
    assert house.runs == []


def test_a_deep_check_tells_the_same(house: House, trained: dict[str, Any]) -> None:
    done = house("check", "-c", "small.yaml", "--deep", _entry(house, {**trained, "more": Touches()}))
    assert done.code == 2
    assert "a.ckpt holds posix.system beside tensors" in done.err
    assert not (house.folder / "ran").exists()


def test_weights_that_run_code_are_refused_and_do_not_run_it(house: House) -> None:
    from lightkit.models import pretrained

    torch.save({"weight": Touches()}, house.folder / "weights.pt")
    with pytest.raises(
        ConfigError, match=r"model\.init_args\.weights: weights\.pt holds \S+\.system beside .* --trust"
    ):
        pretrained.read("weights.pt", backbone="small_cnn")
    assert not (house.folder / "ran").exists()
    with runs.trusting(), pytest.raises(ConfigError, match="not a state dict"):
        pretrained.read("weights.pt", backbone="small_cnn")
    assert (house.folder / "ran").exists()


def test_trust_allows_it_and_says_what(house: House, trained: dict[str, Any]) -> None:
    done = house("test", "-c", "small.yaml", _entry(house, {**trained, "more": Touches()}), "--trust")
    assert done.code == 0, done.err
    assert (house.folder / "ran").exists()
    assert done.err.count("--trust: a.ckpt holds posix.system beside tensors") == 1


@pytest.mark.parametrize(
    ("words", "environ", "says"),
    [
        (["-c", "more.yaml"], {}, "trust: no such key; --trust is said on the command line, and by no config"),
        ([], {"LIGHTKIT_TRUST": "1"}, "trust: no such key; --trust is said on the command line, and by no config"),
        (["--weights_only=false"], {}, "a.ckpt holds posix.system beside tensors"),
        ([], {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}, "a.ckpt holds posix.system beside tensors"),
    ],
    ids=["file", "variable", "weights_only", "torch's variable"],
)
def test_nothing_but_the_command_line_allows_it(
    words: list[str],
    environ: dict[str, str],
    says: str,
    house: House,
    trained: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    house.write("more.yaml", "trust: true\n")
    done = house("test", "-c", "small.yaml", *words, _entry(house, {**trained, "more": Touches()}))
    assert done.code == 2
    assert says in done.err
    assert not (house.folder / "ran").exists()


def test_weights_only_in_a_config_runs_and_says_that_it_has_no_effect(house: House, trained: dict[str, Any]) -> None:
    house.write("more.yaml", "weights_only: false\n")
    done = house("test", "-c", "small.yaml", "-c", "more.yaml", _entry(house, trained))
    assert done.code == 0, done.err
    assert done.err.count("weights_only: false has no effect") == 1


# -- files that are something else -------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["fit", "test"])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda content: content["state_dict"], "is a state dict, tensors alone"),
        (lambda content: {k: v for k, v in content.items() if k != "state_dict"}, "it lacks state_dict"),
        (lambda content: {**content, "loops": {}}, "its loops lack fit_loop"),
        (lambda content: {**content, "state_dict": {"other": torch.ones(1)}}, "the checkpoint does not fit the model"),
    ],
    ids=["state dict", "no state_dict", "no loops", "another model"],
)
def test_a_file_that_is_no_checkpoint_of_this_model_is_told(
    stage: str, change: Any, says: str, house: House, trained: dict[str, Any]
) -> None:
    done = house(stage, "-c", "small.yaml", _entry(house, change(trained)))
    assert done.code == 2
    assert says in done.err
    assert house.runs == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda content: {k: v for k, v in content.items() if k != "optimizer_states"}, "a.ckpt has the model only"),
        (
            lambda content: {**content, "optimizer_states": [{"state": {}, "param_groups": []}]},
            "the checkpoint does not fit the optimizer",
        ),
    ],
    ids=["weights only", "another optimizer"],
)
def test_a_fit_does_not_go_on_from_what_is_not_enough(
    change: Any, says: str, house: House, trained: dict[str, Any]
) -> None:
    words = ["-c", "small.yaml", _entry(house, change(trained))]
    done = house("fit", *words, "--trainer.max_epochs=2")
    assert (done.code, house.runs) == (2, [])
    assert says in done.err
    assert house("test", *words).code == 0


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda content: content[: len(content) // 2], "its archive cannot be read"),
        (lambda content: content[:-900] + bytes(900), "its archive cannot be read"),
        (lambda content: b"", "a.ckpt is empty"),
        (lambda content: b"\x89PNG\r\n\x1a\n", "a.ckpt is not a checkpoint"),
    ],
    ids=["half", "end", "empty", "picture"],
)
def test_a_damaged_checkpoint_is_told(damage: Any, says: str, house: House, trained: dict[str, Any]) -> None:
    word = _entry(house, trained)
    path = house.folder / "a.ckpt"
    path.write_bytes(damage(path.read_bytes()))
    done = house("fit", "-c", "small.yaml", word)
    assert done.code == 2
    assert "error: --ckpt_path: a.ckpt is " in done.err
    assert says in done.err


def test_a_digest_that_does_not_agree_is_told(house: House, trained: dict[str, Any]) -> None:
    word = _entry(house, trained)
    house.write("a.ckpt.sha256", "0" * 64 + "  a.ckpt\n")
    done = house("test", "-c", "small.yaml", word)
    assert done.code == 2
    assert "a.ckpt is damaged, or not what was written: its content is not what a.ckpt.sha256 promises" in done.err


def test_a_run_whose_checkpoints_were_altered_is_not_gone_on_with(house: House) -> None:
    run = house.fit("-c", "small.yaml")
    for path in run.glob("checkpoints/*.ckpt"):
        path.write_bytes(path.read_bytes()[:-1])
    done = house("fit", "-c", "small.yaml", f"--run.resume={run}")
    assert done.code == 2
    assert "has no checkpoint to resume from" in done.err
    assert "its content is not what last.ckpt.sha256 promises" in done.err
    done = house("test", "--run", str(run))
    assert done.code == 2
    assert "is not what was written: its digest differs" in done.err


# -- classes that only a checkpoint names ------------------------------------------------------------------------------


@pytest.fixture
def deep(house: House, trained: dict[str, Any]) -> str:
    """A checkpoint that names a class, a function and a layer of its own."""
    house.write("my_deep.py", MARKED)
    layer = {"class_path": "my_deep.Layer", "init_args": {"slope": 0.3}}
    named = {"_class_path": "my_deep.Deep", "_instantiator": "my_deep.make", "act": "my_deep.act", "layer": layer}
    return _entry(house, {**trained, "hyper_parameters": {**named, "hidden": 4, "text": "os.path"}})


def test_a_class_that_only_the_checkpoint_names_is_not_imported(deep: str, house: House) -> None:
    done = house("test", POINTS, "--trainer.accelerator=cpu", deep)
    assert done.code == 2
    assert "model: missing; a.ckpt names my_deep.Deep" in done.err
    assert "say --model=my_deep.Deep" in done.err
    assert not (house.folder / "imported").exists()


def test_the_users_class_leaves_the_checkpoints_alone(deep: str, house: House) -> None:
    done = house("test", POINTS, "--model=my_models.Net", "--trainer.accelerator=cpu", deep)
    assert done.code == 0, done.err
    assert not (house.folder / "imported").exists()


@pytest.mark.parametrize("command", ["test", "check"])
def test_what_stands_deeper_in_the_checkpoint_is_told_with_what_to_type(command: str, deep: str, house: House) -> None:
    words = ["test"] if command == "check" else []
    done = house(command, *words, POINTS, "--model=my_deep.Deep", "--trainer.accelerator=cpu", deep)
    assert done.code == 2
    assert "a.ckpt names my_deep.act for model.act, my_deep.Layer for model.layer, which no config" in done.err
    assert "say --model.act=my_deep.act --model.layer=my_deep.Layer" in done.err
    assert "model.text" not in done.err


def test_a_class_that_the_user_names_there_has_the_checkpoints_arguments(house: House, trained: dict[str, Any]) -> None:
    house.write("my_deep.py", MARKED)
    layer = {"class_path": "torch.nn.LeakyReLU", "init_args": {"negative_slope": 0.3}}
    named = {"_class_path": "my_deep.Deep", "act": "my_deep.act", "layer": layer}
    word = _entry(house, {**trained, "hyper_parameters": named})
    words = ["--model=my_deep.Deep", "--model.act=my_deep.act", "--model.layer=torch.nn.LeakyReLU"]
    done = house("test", POINTS, *words, "--trainer.accelerator=cpu", word)
    assert done.code == 0, done.err
    assert "negative_slope: 0.3" in (house.runs[-1] / "config.yaml").read_text(encoding="utf-8")


def _script(args: Any) -> Any:
    from pytorch_lightning import LightningDataModule, LightningModule

    from lightkit.cli.lightning import LightkitCLI

    chosen: dict[str, Any] = {"subclass_mode_model": True, "subclass_mode_data": True}
    return LightkitCLI(
        LightningModule, LightningDataModule, **chosen, args=args, parser_kwargs={"exit_on_error": False}
    )


def test_a_script_imports_no_class_that_only_the_checkpoint_names(
    deep: str, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["script.py"])
    monkeypatch.syspath_prepend(house.folder)
    with pytest.raises(ConfigError, match=r"a\.ckpt names my_deep\.Deep for model, .* say --model=my_deep\.Deep"):
        _script(["test", POINTS, deep])
    assert not (house.folder / "imported").exists()


def test_a_scripts_dict_leaves_another_class_of_the_checkpoint_alone(
    deep: str, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["script.py"])
    monkeypatch.syspath_prepend(house.folder)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    section: dict[str, Any] = {
        "seed_everything": False,
        "model": "my_models.Net",
        "data": "my_models.Points",
        "ckpt_path": "a.ckpt",
        "trainer": quiet,
    }
    assert type(_script({"subcommand": "test", "test": section}).model).__name__ == "Net"
    assert not (house.folder / "imported").exists()


def test_paths_are_read_as_they_were_written(house: House) -> None:
    """A fit that was interrupted goes on though its network keeps a path among its hyper-parameters."""
    source = "import pathlib\nfrom my_models import Net\n\n\nclass Kept(Net):\n    def __init__(self):\n"
    source += "        super().__init__()\n        self.save_hyperparameters({'where': pathlib.Path('a')})\n"
    house.write("my_kept.py", source)
    run = house.fit("-c", "small.yaml", "--model=my_kept.Kept")
    saved = torch.load(Path(run, "checkpoints", "last.ckpt"), weights_only=True)
    assert saved["hyper_parameters"]["where"] == "a"
    words = ["-c", "small.yaml", "--model=my_kept.Kept", f"--ckpt_path={run}/checkpoints/last.ckpt"]
    done = house("fit", *words, "--trainer.max_epochs=2")
    assert done.code == 0, done.err


@pytest.mark.parametrize(
    "words",
    [
        [
            "swa.swa_lrs=0.01",
            "swa.swa_epoch_start=1",
            "swa.device=null",
            "early_stopping.monitor=val/loss",
            "timer.duration=00:01:00:00",
        ],
        ["ema.decay=0.9", "lr_monitor={}"],
        ["pruning.pruning_fn=l1_unstructured", "pruning.amount=0.3"],
    ],
    ids=["swa, early stopping, timer", "ema", "pruning"],
)
def test_a_fit_goes_on_with_what_its_callbacks_keep(words: list[str], house: House) -> None:
    said = ["-c", "small.yaml", *(f"--callbacks.{word}" for word in words), "--run.name=kept"]
    run = house.fit(*said, "--trainer.max_epochs=2")
    assert torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["callbacks"]
    done = house("fit", *said, "--trainer.max_epochs=3", f"--run.resume={run}")
    assert done.code == 0, done.err
    assert torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["epoch"] == 2
