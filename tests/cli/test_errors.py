"""What people read and what scripts get when something is wrong: the words, the place, the exit code, what is left."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lightkit import runs
from lightkit.cli.main import COMMANDS
from tests.cli.conftest import House, read_json

STOPPING = """\
callbacks:
  early_stopping:
    init_args:
      monitor: val/loss
      patiense: 3
"""


@dataclass
class Mistake:
    """A command line, and what it says.

    Args:
        name: What is wrong.
        words: Words after ``lightkit``.
        says: All of standard error, without the notices before ``error:``.
        code: Exit code.
        files: Further files by name.
    """

    name: str
    words: str
    says: str
    code: int = 2
    files: dict[str, str] = field(default_factory=dict)


SMALL = "fit -c small.yaml "
MISTAKES = [
    # -- the command line -----------------------------------------------------------------------------------------
    Mistake(
        "unknown command",
        "fitt -c small.yaml",
        "'fitt' is not a command; did you mean 'fit'?\nCommands: " + ", ".join(COMMANDS) + ".",
    ),
    Mistake(
        "no command",
        "-c small.yaml",
        "No command among '-c small.yaml'. Commands: " + ", ".join(COMMANDS) + ".",
    ),
    Mistake(
        "unknown option",
        SMALL + "--quite",
        "--quite: expected a value after it, got the end of the command line; did you mean 'quiet'?",
    ),
    Mistake("unknown form of output", SMALL + "--output xml", "--output: expected json, got 'xml'"),
    Mistake(
        "a file without -c",
        "fit small.yaml",
        "unexpected argument 'small.yaml': expected --OPTION, --KEY=VALUE or KEY=VALUE; "
        "a config file comes after -c: -c small.yaml",
    ),
    Mistake(
        "--run with fit",
        SMALL + "--run latest",
        "fit takes no --run; to go on in a run's folder, say --run.resume=RUN",
    ),
    # -- files ----------------------------------------------------------------------------------------------------
    Mistake("missing file", "fit -c smal.yaml", "smal.yaml: no such file; did you mean 'small.yaml'?"),
    Mistake(
        "no YAML",
        "fit -c bad.yaml",
        "bad.yaml: not valid YAML: the { is not closed here, and no comma follows\n"
        "  --> bad.yaml:1:10\n"
        "    1 | trainer: {max_epochs: 1\n"
        "      |          ^\n"
        "  --> bad.yaml:2:6\n"
        "    2 | model: x\n"
        "      |      ^",
        files={"bad.yaml": "trainer: {max_epochs: 1\nmodel: x\n"},
    ),
    Mistake(
        "duplicate key",
        "fit -c bad.yaml",
        "bad.yaml: the key 'max_epochs' stands twice in one mapping\n"
        "  --> bad.yaml:2:3\n"
        "    2 |   max_epochs: 1\n"
        "      |   ^^^^^^^^^^\n"
        "  --> bad.yaml:3:3\n"
        "    3 |   max_epochs: 2\n"
        "      |   ^^^^^^^^^^",
        files={"bad.yaml": "trainer:\n  max_epochs: 1\n  max_epochs: 2\nmodel: my_models.Net\n"},
    ),
    # -- keys and values --------------------------------------------------------------------------------------------
    Mistake(
        "wrong type in a file",
        SMALL + "-c ten.yaml",
        "trainer.max_epochs: expected an integer or null, got 'ten'\n"
        "  --> ten.yaml:2:15\n"
        "    2 |   max_epochs: ten\n"
        "      |               ^^^",
        files={"ten.yaml": "trainer:\n  max_epochs: ten\n"},
    ),
    Mistake(
        "wrong type in a flag",
        SMALL + "--trainer.max_epochs=ten",
        "trainer.max_epochs: expected an integer or null, got 'ten'\n  --> --trainer.max_epochs=ten",
    ),
    Mistake(
        "wrong type of an argument",
        SMALL + "--model.hidden=abc",
        "model.init_args.hidden: expected an integer, got 'abc'\n  --> --model.hidden=abc",
    ),
    Mistake(
        "an abbreviated key",
        SMALL + "--trainer.max_epoch=3",
        "trainer.max_epoch: the trainer has no such argument; did you mean 'max_epochs' or 'min_epochs' or "
        "'max_steps'?\n  --> --trainer.max_epoch=3",
    ),
    Mistake("unknown key", SMALL + "frobnicate=3", "frobnicate: no such key\n  --> frobnicate=3"),
    Mistake(
        "unknown argument of a class in a flag",
        SMALL + "--model.hiden=3",
        "model.init_args.hiden: Net has no such argument; did you mean 'hidden'?\n  --> --model.hiden=3",
    ),
    Mistake(
        "unknown argument of a named entry",
        SMALL + "-c es.yaml",
        "callbacks.early_stopping.init_args.patiense: EarlyStopping has no such argument; did you mean 'patience'?\n"
        "  --> es.yaml:5:7\n"
        "    5 |       patiense: 3\n"
        "      |       ^^^^^^^^",
        files={"es.yaml": STOPPING},
    ),
    Mistake(
        "arguments that are no mapping",
        SMALL + "model.init_args=3",
        "model.init_args: expected a mapping of Net's arguments, got '3'\n  --> model.init_args=3",
    ),
    Mistake(
        "missing model",
        "fit --data=my_models.Points",
        "model: missing; set it in a file given with -c, or with --model=VALUE",
    ),
    Mistake(
        "missing argument",
        SMALL + "--model=my_models.Needy",
        "model: Needy needs classes, an integer\n  --> --model=my_models.Needy",
    ),
    Mistake(
        "missing argument of a named entry",
        SMALL + "callbacks.early_stopping={}",
        "callbacks.early_stopping: EarlyStopping needs monitor, text: quantity to be monitored\n"
        "  --> callbacks.early_stopping={}",
    ),
    Mistake(
        "unknown named entry",
        SMALL + "callbacks.early_stoping={}",
        "callbacks.early_stoping: there is no class of that name; did you mean 'early_stopping'?\n"
        "names: checkpoint, device_stats, early_stopping, ema, gradient_accumulation, lr_finder, "
        "lr_monitor, pruning, scale_lr, slack, swa, timer, webhook; any other needs a class_path\n"
        "  --> callbacks.early_stoping={}",
    ),
    # -- classes ----------------------------------------------------------------------------------------------------
    Mistake(
        "unknown short name",
        SMALL + "--optimizer=Adamm",
        "optimizer.class_path: no class 'Adamm'; did you mean 'Adam' or 'RAdam' or 'NAdam'?; a class of your own is "
        "named with its module: my_models.Adamm\n  --> --optimizer=Adamm",
    ),
    Mistake(
        "unknown short name in a list",
        SMALL + "--trainer.callbacks=EarlyStoping",
        "trainer.callbacks: no class 'EarlyStoping'; did you mean 'EarlyStopping'?; a class of your own is "
        "named with its module: my_models.EarlyStoping\n  --> --trainer.callbacks=EarlyStoping",
    ),
    Mistake(
        "unknown name in a module",
        SMALL + "--model=my_models.Nett",
        "model.class_path: my_models.Nett cannot be imported: module 'my_models' has no attribute 'Nett'; "
        "did you mean 'Net'?\n  --> --model=my_models.Nett",
    ),
    Mistake(
        "missing module",
        SMALL + "--model=my_modelz.Net",
        "model.class_path: my_modelz.Net cannot be imported: No module named 'my_modelz'; did you mean 'my_models'?\n"
        "  --> --model=my_modelz.Net",
    ),
    Mistake(
        "missing module inside a module",
        SMALL + "--model=user_models.Net",
        "model.class_path: user_models.Net cannot be imported: ModuleNotFoundError: No module named 'nothing_here' "
        "(user_models.py:2)\n  --> --model=user_models.Net",
        files={"user_models.py": "import os\nimport nothing_here\n"},
    ),
    Mistake(
        "syntax error in a module",
        SMALL + "--model=user_models.Net",
        "model.class_path: user_models.Net cannot be imported: SyntaxError: invalid syntax (user_models.py, line 1)\n"
        "  --> --model=user_models.Net",
        files={"user_models.py": "class Net(:\n"},
    ),
    Mistake(
        "a module that raises",
        SMALL + "--model=user_models.Net",
        "model.class_path: user_models.Net cannot be imported: RuntimeError: no GPU today (user_models.py:1)\n"
        "  --> --model=user_models.Net",
        files={"user_models.py": "raise RuntimeError('no GPU today')\n"},
    ),
    Mistake(
        "wrong kind of class",
        SMALL + "--model=my_models.Points",
        "model.class_path: Points is no LightningModule; it goes under data\n  --> --model=my_models.Points",
    ),
    # -- what Lightning refuses ---------------------------------------------------------------------------------------
    Mistake(
        "devices",
        SMALL + "--trainer.devices=-5",
        "trainer.devices: expected a number of devices from 1, their numbers, or -1 for all of them, got '-5'\n"
        "  --> --trainer.devices=-5",
    ),
    Mistake(
        "negative epochs",
        SMALL + "--trainer.max_epochs=-7",
        "trainer.max_epochs: `max_epochs` must be a non-negative integer or -1. You passed in -7.\n"
        "  --> --trainer.max_epochs=-7",
    ),
    Mistake(
        "a callback's argument",
        SMALL + "callbacks.early_stopping.monitor=val/loss callbacks.early_stopping.mode=up",
        "callbacks.early_stopping.init_args.mode: `mode` can be min, max, got up\n"
        "  --> callbacks.early_stopping.mode=up",
    ),
    Mistake(
        "fewer batches than one",
        SMALL + "--trainer.limit_train_batches=0.3",
        "trainer.limit_train_batches: You requested to check 0.3 of the `train_dataloader` but 0.3 * 2 < 1. Please "
        "increase the `limit_train_batches` argument. Try at least `limit_train_batches=0.5`\n"
        "  --> --trainer.limit_train_batches=0.3",
    ),
    # -- runs and checkpoints ---------------------------------------------------------------------------------------
    Mistake(
        "missing checkpoint",
        SMALL + "--ckpt_path nothing.ckpt",
        "--ckpt_path: nothing.ckpt is not a file. Expected best, last or a checkpoint.",
    ),
    Mistake(
        "no last checkpoint",
        SMALL + "--ckpt_path last",
        "--ckpt_path last: no run of 'small' in runs has a checkpoint.",
    ),
    Mistake(
        "no run",
        "test --run latest",
        "There is no run 'latest': there are no runs in runs. `lightkit fit` makes the first.",
    ),
    Mistake(
        "run to resume is missing",
        SMALL + "--run.resume=nowhere",
        "run.resume: expected auto, never or a run's folder; nowhere is not a run: there is no such folder.\n"
        "  --> --run.resume=nowhere",
    ),
    Mistake(
        "name that is no folder's",
        SMALL + "--run.name=a/b",
        "run.name: 'a/b' has a slash, a backslash or a control character. A name is that of one folder, such as "
        "'flowers'.\n  --> --run.name=a/b",
    ),
    # -- data -------------------------------------------------------------------------------------------------------
    Mistake("nothing to fetch", "fetch -c small.yaml", "fetch: Points has nothing to download"),
    Mistake(
        "no data to fetch",
        "fetch",
        "fetch: the config names no data; give it a file, as in lightkit fetch -c configs/flowers.yaml",
    ),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name.replace(" ", "_"))
def test_a_mistake_is_told_in_words_and_leaves_no_run(mistake: Mistake, house: House) -> None:
    for name, text in mistake.files.items():
        house.write(name, text)
    done = house(*mistake.words.split())
    assert done.err == f"error: {mistake.says}\n"
    assert done.code == mistake.code
    assert house.runs == []
    assert not list(house.folder.glob("runs/*/latest"))


def test_a_gpu_that_is_not_there_is_told(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = house("fit", "-c", "small.yaml", "--trainer.accelerator=gpu")
    says = (
        "trainer.accelerator: gpu: this machine shows no GPU (CUDA_VISIBLE_DEVICES is ''); say trainer.accelerator: "
        "cpu, or trainer.accelerator: auto and trainer.devices: auto\n"
        "  --> --trainer.accelerator=gpu"
    )
    assert (done.code, done.err) == (2, f"error: {says}\n")
    assert house.runs == []


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("ImageFolder", "data.init_args.root: there is no folder nowhere; it is looked for in "),
        ("Flowers", "data.init_args.root: there is no folder nowhere; it is looked for in "),
    ],
)
def test_missing_data_is_code_3_and_shows_where_the_folder_was_set(data: str, says: str, house: House) -> None:
    done = house("fit", "-c", "small.yaml", f"--data={data}", "--data.root=nowhere")
    assert done.code == 3
    assert f"error: {says}" in done.err
    assert done.err.endswith("\n  --> --data.root=nowhere\n")
    assert house.runs == []


def test_a_run_root_that_cannot_be_written_is_told(house: House) -> None:
    house.write("file", "")
    done = house("fit", "-c", "small.yaml", "--run.root", "file")
    assert done.code == 2
    assert done.err.startswith("error: run.root: cannot write ")
    assert done.err.endswith("Not a directory. Set run.root to a folder that can be written.\n  --> --run.root file\n")


@pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`:UserWarning")
def test_fit_without_data_is_told(house: House) -> None:
    done = house("fit", "--model=my_models.Net", "--trainer.max_epochs=1", "--trainer.accelerator=cpu")
    assert done.code == 2
    assert "error: `train_dataloader` must be implemented to be used with the Lightning Trainer\n" in done.err
    assert house.runs == []


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["callbacks.early_stopping.monitor=val/los"], "callbacks.early_stopping.init_args.monitor: "),
        (["callbacks.checkpoint.monitor=val/los"], "callbacks.checkpoint"),
        (
            ["--optimizer=SGD", "--lr_scheduler=ReduceLROnPlateau", "--lr_scheduler.monitor=val/los"],
            "lr_scheduler.init_args.monitor: ",
        ),
    ],
    ids=["early stopping", "checkpoint", "schedule"],
)
def test_a_metric_that_is_not_logged_is_told_with_those_that_are(words: list[str], key: str, house: House) -> None:
    done = house("fit", "-c", "small.yaml", *words)
    assert done.code == 2
    assert f"error: {key}" in done.err
    assert "val/los" in done.err
    assert "train/loss" in done.err
    assert read_json(house.runs[0] / "summary.json")["status"] == "failed"


@pytest.mark.parametrize("command", ["fit", "test"])
def test_a_checkpoint_of_another_model_is_told(command: str, house: House) -> None:
    run = house.fit("-c", "small.yaml")
    done = house(command, "-c", "small.yaml", f"--ckpt_path={run}/checkpoints/last.ckpt", "--model.hidden=9")
    assert done.code == 2
    assert "error: the checkpoint does not fit the model: Error(s) in loading state_dict for Net: size mis" in done.err
    assert house.runs == [run]


def test_a_file_that_is_no_checkpoint_is_told(house: House) -> None:
    done = house("fit", "-c", "small.yaml", "--ckpt_path=my_models.py")
    assert done.code == 2
    assert "error: --ckpt_path: my_models.py is not a checkpoint" in done.err
    assert house.runs == []


def test_a_package_that_is_not_installed_is_told(house: House) -> None:
    if importlib.util.find_spec("wandb"):
        pytest.skip("wandb is installed")
    done = house("fit", "-c", "small.yaml", "--trainer.logger=WandbLogger")
    assert done.code == 2
    assert "Requirement 'wandb" in done.err
    assert house.runs == []


def test_a_defect_in_a_constructor_is_a_crash_and_is_recorded(house: House) -> None:
    with pytest.raises(ValueError, match=r"^hidden layers are out of stock$"):
        house("fit", "-c", "small.yaml", "--model=my_models.Broken")
    assert _end_of(house.runs[0]) == ("failed", 1, "ValueError: hidden layers are out of stock")
    assert not list(house.folder.glob("runs/*/latest"))


def test_a_defect_in_training_is_a_crash_and_is_recorded(house: House) -> None:
    with pytest.raises(ValueError, match=r"^batches are out of stock$"):
        house("fit", "-c", "small.yaml", "--model=my_models.Failing")
    assert _end_of(house.runs[0]) == ("failed", 1, "ValueError: batches are out of stock")


def _end_of(run: Path) -> tuple[str, int, str]:
    summary = read_json(run / "summary.json")
    last = list(runs.read_events(run / "events.jsonl"))[-1]
    assert {key: last[key] for key in ("event", "status", "exit_code", "error")} == {
        "event": "end",
        **{key: summary[key] for key in ("status", "exit_code", "error")},
    }
    return summary["status"], summary["exit_code"], summary["error"]
