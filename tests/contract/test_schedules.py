"""Schedules of the learning rate.

When they are stepped, how many steps they count, and what a model makes of them.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
import yaml
from pyarrow import parquet

from tests.contract.batch import Answer, Command, run_batch
from tests.contract.examples import MY_PROJECT
from tests.contract.workspace import ForkServer, Workspace

MY_SCHEDULES = '''\
"""Models and schedules of a user."""

import torch
from my_project import Net, Points
from pytorch_lightning import Callback, LightningModule
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR


class Own(Net):
    """Its code has an optimizer with a constant rate."""

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.25)


class Halves(StepLR):
    """It has an argument of the name of a key."""

    def __init__(self, optimizer, interval: int = 1):
        super().__init__(optimizer, step_size=interval, gamma=0.5)


class Plateau(ReduceLROnPlateau):
    """It takes no metric."""

    def __init__(self, optimizer, factor: float = 0.5):
        super().__init__(optimizer, factor=factor, patience=0, threshold=100.0)


class Lazy(Net):
    """The first batch gives its layer a size."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.LazyLinear(1)


class Described(Net):
    """Its attributes have the names of lightkit's, and other meanings."""

    class_names = 7
    backbone = 3


class Tells(Points):
    """Its methods and attributes have the names of lightkit's, and other meanings."""

    defects = ["a scratch"]

    def describe(self, verbose):
        return f"points, {verbose}"


class Several(Points):
    """It has two training loaders, one of them without a length."""

    def train_dataloader(self):
        return {"sized": super().train_dataloader(), "again": super().train_dataloader()}


class OfSeveral(Net):
    """It trains on several loaders."""

    def training_step(self, batch, index):
        return self._loss(batch["sized"]) + self._loss(batch["again"])


class Warms(Callback):
    """It has an attribute of the name of a method of lightkit's."""

    warmup_factor = 0.5

    def on_train_batch_start(self, trainer, module, batch, index):
        assert self.warmup_factor == 0.5


class NoRate(torch.optim.Optimizer):
    """Its groups of parameters have no rate."""

    def __init__(self, params):
        super().__init__(params, {})

    def step(self, closure=None):
        return closure()


class Logs(Net):
    """Writes the rate of each step; it leaves its optimizer to the config."""

    configure_optimizers = LightningModule.configure_optimizers

    def _loss(self, batch):
        return 1e-3 * super()._loss(batch)

    def on_train_batch_start(self, batch, index):
        with open(f"{self.hparams.name}.rates", "a") as file:
            print(self.trainer.optimizers[0].param_groups[0]["lr"], file=file)
'''
NUM_STEPS = 6
"""Of an epoch of `my_project.Points`."""
BASE: dict[str, Any] = {
    "seed_everything": 7,
    "model": {"class_path": "my_schedules.Logs"},
    "data": {"class_path": "my_project.Points"},
    "optimizer": {"class_path": "SGD", "init_args": {"lr": 1.0}},
    "trainer": {"accelerator": "cpu", "max_epochs": 2, "log_every_n_steps": 1, "logger": False},
    "run": {"report": False},
}
REGRESSOR: dict[str, Any] = {
    **BASE,
    "model": {"class_path": "Regressor", "init_args": {"learning_rate": 0.5}},
    "data": {"class_path": "Temperatures", "init_args": {"num_samples": 64}},
    "optimizer": None,
}
STEP = {"class_path": "StepLR", "init_args": {"step_size": 1, "gamma": 0.5}}


def cosine(part: float) -> float:
    return (1 + math.cos(math.pi * part)) / 2


RATES: dict[str, tuple[Any, list[float]]] = {
    "once an epoch": (STEP, [1.0] * 6 + [0.5] * 6),
    "each step": ({**STEP, "interval": "step"}, [0.5**k for k in range(12)]),
    "each third step": ({**STEP, "interval": "step", "frequency": 3},
                        [0.5 ** (k // 3) for k in range(12)]),
    "a number of steps that is counted": (
        {"class_path": "CosineAnnealingLR", "init_args": {"T_max": "auto"}, "interval": "step"},
        [cosine(k / 12) for k in range(12)],
    ),
    "a number of epochs that is counted": (
        {"class_path": "CosineAnnealingLR", "init_args": {"T_max": "auto"}},
        [1.0] * 6 + [0.5] * 6,
    ),
    "steps of several batches": (
        {"class_path": "LinearLR", "init_args": {"start_factor": 0.5, "total_iters": "auto"},
         "interval": "step",
         "frequency": 2},
        [0.5 + 0.5 * (k // 2) / 6 for k in range(12)],
    ),
    "a warm-up": (
        {"class_path": "WarmupCosineLR", "init_args": {"warmup_steps": 3, "total_steps": "auto"},
         "interval": "step"},
        [0.25, 0.5, 0.75, *(cosine(k / 9) for k in range(9))],
    ),
    "one cycle": (
        {"class_path": "OneCycleLR", "init_args": {"max_lr": 1.0, "total_steps": "auto"},
         "interval": "step"},
        [],
    ),
    "an argument of that name": ({"class_path": "my_schedules.Halves", "interval": 2}, [1.0] * 12),
}  # fmt: skip


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer) -> Iterator[Workspace]:
    """A working directory with schedules of a user."""
    workspace = Workspace(tmp_path_factory.mktemp("schedules") / "work", fork_server)
    workspace.write("my_project.py", MY_PROJECT)
    workspace.write("my_schedules.py", MY_SCHEDULES)
    for number, (schedule, _) in enumerate(RATES.values()):
        workspace.write(f"rates-{number}.yaml", {**BASE, "lr_scheduler": schedule})
    workspace.write("plain.yaml", BASE)
    workspace.write("regressor.yaml", REGRESSOR)
    workspace.write(
        "regressor-step.yaml", {**REGRESSOR, "lr_scheduler": {**STEP, "interval": "step"}}
    )
    workspace.write(
        "own.yaml", {**BASE, "model": {"class_path": "my_schedules.Own"}, "optimizer": None}
    )
    yield workspace
    workspace.close()


COMMANDS: dict[str, tuple[str, ...]] = {
    **{
        name: ("fit", "-c", f"rates-{number}.yaml", f"--model.name={number}",
               f"--run.name=rates-{number}")
        for number, name in enumerate(RATES)
    },
    "flags": (
        "fit", "-c", "plain.yaml", "--model.name=flags", "--lr_scheduler=StepLR",
        "--lr_scheduler.step_size=1", "--lr_scheduler.gamma=0.5", "--lr_scheduler.interval=step",
        "--lr_scheduler.frequency=3",
        "--run.name=flags",
    ),
    "plateau": (
        "fit", "-c", "plain.yaml", "--model.name=plateau", "--lr_scheduler=my_schedules.Plateau",
        "--lr_scheduler.monitor=val/loss", "--trainer.max_epochs=3", "--run.name=plateau",
    ),
    "own optimizer": ("fit", "-c", "own.yaml", "--lr_scheduler=StepLR",
                      "--lr_scheduler.step_size=1"),
    "own optimizer is replaced": ("fit", "-c", "own.yaml", "--optimizer=SGD",
                                  "--optimizer.lr=0.125"),
    "check own optimizer": ("check", "-c", "own.yaml", "--lr_scheduler=StepLR",
                            "--lr_scheduler.step_size=1"),
    "check own optimizer is replaced": ("check", "-c", "own.yaml", "--optimizer=SGD"),
    "deep": (
        "check", "-c", "own.yaml", "--lr_scheduler=StepLR", "--lr_scheduler.step_size=1", "--deep"
    ),
    "regressor": ("fit", "-c", "regressor-step.yaml"),
    "regressor replaced": ("fit", "-c", "regressor.yaml", "--optimizer=SGD", "--run.name=replaced"),
    "no end": (
        "fit", "-c", "regressor-step.yaml", "--lr_scheduler.class_path=CosineAnnealingLR",
        "--lr_scheduler.T_max=auto", "--lr_scheduler.interval=step", "--trainer.max_epochs=-1",
        "--run.name=no_end",
    ),
    "short cycle": (
        "fit", "-c", "regressor-step.yaml", "--lr_scheduler.class_path=OneCycleLR",
        "--lr_scheduler.max_lr=1", "--lr_scheduler.total_steps=3", "--lr_scheduler.interval=step",
        "--trainer.max_epochs=1",
        "--trainer.limit_train_batches=3", "--run.name=short",
    ),
    "torch refuses": (
        "fit", "-c", "plain.yaml", "--model=my_project.Net", "--optimizer=Adadelta",
        "--lr_scheduler=CyclicLR", "--lr_scheduler.base_lr=1", "--lr_scheduler.max_lr=2",
        "--run.name=refused",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def ended(room: Workspace) -> dict[str, Answer]:
    """What the commands have left."""
    return run_batch(room, {name: Command(words) for name, words in COMMANDS.items()})


def rates_of(room: Workspace, name: str) -> list[float]:
    return [float(line) for line in (room.folder / f"{name}.rates").read_text().split()]


def saved_config(room: Workspace, job: str) -> dict[str, Any]:
    (run,) = (room.folder / "runs" / job).glob("2*-*")
    config: dict[str, Any] = yaml.safe_load((run / "config.yaml").read_text())
    return config


@pytest.mark.parametrize("name", [name for name, (_, rates) in RATES.items() if rates])
def test_a_schedule_is_stepped_as_its_config_says(
    name: str, room: Workspace, ended: dict[str, Answer]
) -> None:
    assert (ended[name].ok().err, ended[name].code) == ("", 0)
    assert rates_of(room, str(list(RATES).index(name))) == pytest.approx(RATES[name][1])


def test_one_cycle_is_counted_and_ends_low(room: Workspace, ended: dict[str, Answer]) -> None:
    assert ended["one cycle"].ok().err == ""
    rates = rates_of(room, str(list(RATES).index("one cycle")))
    assert len(rates) == 2 * NUM_STEPS
    assert max(rates) == pytest.approx(1.0, rel=0.05)
    assert rates[0] == pytest.approx(1 / 25)
    assert rates[-1] < 0.001


def test_flags_say_when_a_schedule_is_stepped(room: Workspace, ended: dict[str, Answer]) -> None:
    ended["flags"].ok()
    assert rates_of(room, "flags") == pytest.approx([0.5 ** (k // 3) for k in range(12)])


def test_a_plateau_class_of_ones_own_gets_its_metric(
    room: Workspace, ended: dict[str, Answer]
) -> None:
    ended["plateau"].ok()
    assert rates_of(room, "plateau") == [1.0] * 6 + [0.5] * 6 + [0.25] * 6


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ("rates-2", {"interval": "step", "frequency": 3}),
        ("rates-6", {"interval": "step"}),
        ("flags", {"interval": "step", "frequency": 3}),
    ],
)
def test_the_saved_config_has_the_schedule_as_it_was_written(
    job: str, expected: dict[str, Any], room: Workspace, ended: dict[str, Answer]
) -> None:
    saved = saved_config(room, job)["lr_scheduler"]
    assert {key: saved.get(key) for key in expected} == expected
    assert "dict_kwargs" not in saved
    if job == "rates-6":
        assert (saved["init_args"]["total_steps"], saved["init_args"]["warmup_steps"]) == (
            "auto",
            3,
        )


def test_the_saved_config_trains_the_same(room: Workspace, ended: dict[str, Answer]) -> None:
    (run,) = (room.folder / "runs" / "rates-6").glob("2*-*")
    words = ("fit", "-c", str(run / "config.yaml"), "--model.name=again", "--run.name=again")
    run_batch(room, {"again": Command(words)})["again"].ok()
    assert rates_of(room, "again") == rates_of(room, "6")


def test_a_schedule_alone_is_that_of_lightkits_models(
    room: Workspace, ended: dict[str, Answer]
) -> None:
    assert ended["regressor"].ok().err == ""
    (run,) = (room.folder / "runs" / "regressor-step").glob("2*-*")
    rows = list(csv.DictReader((run / "metrics.csv").read_text().splitlines()))
    assert [float(row["lr"]) for row in rows] == [0.5, 0.125]  # at the start of epochs of two steps


def test_an_optimizer_of_the_config_takes_the_place_of_lightkits_without_a_word(
    ended: dict[str, Answer],
) -> None:
    assert ended["regressor replaced"].ok().err == ""


@pytest.mark.parametrize("name", ["own optimizer", "check own optimizer", "deep"])
def test_a_schedule_without_an_effect_is_a_warning_with_its_place(
    name: str, ended: dict[str, Answer]
) -> None:
    text = r"warning: lr_scheduler has no effect: Own builds its own in configure_optimizers.*"
    text += r"\n  --> --lr_scheduler=StepLR"
    assert len(re.findall(text, ended[name].ok().err)) == 1


@pytest.mark.parametrize("name", ["own optimizer is replaced", "check own optimizer is replaced"])
def test_an_optimizer_that_replaces_the_models_is_a_warning_with_its_place(
    name: str, ended: dict[str, Answer]
) -> None:
    text = (
        r"warning: optimizer replaces what Own builds in configure_optimizers.*\n  -->"
        r" --optimizer=SGD"
    )
    assert len(re.findall(text, ended[name].ok().err)) == 1


def test_steps_of_a_training_without_an_end_cannot_be_counted(ended: dict[str, Answer]) -> None:
    answer = ended["no end"]
    assert (answer.code, "Traceback" in answer.err) == (2, False)
    assert re.search(
        r"error: lr_scheduler\.init_args\.T_max: auto counts .*\n  --> --lr_scheduler\.T_max=auto",
        answer.err,
    )


def test_what_torch_refuses_is_an_error_with_its_place(ended: dict[str, Answer]) -> None:
    answer = ended["torch refuses"]
    assert (answer.code, "Traceback" in answer.err) == (2, False)
    assert re.search(
        r"error: lr_scheduler: .*momentum.*\n  --> --lr_scheduler=CyclicLR", answer.err
    )


def test_a_cycle_of_as_many_steps_as_the_training_is_right(ended: dict[str, Answer]) -> None:
    assert ended["short cycle"].ok().err == ""


SAID: dict[str, tuple[dict[str, Any], str]] = {
    "one cycle without a length": (
        {"class_path": "OneCycleLR", "init_args": {"max_lr": 0.1}},
        (
            r"error: lr_scheduler: OneCycleLR needs total_steps, or epochs and steps_per_epoch;"
            r" total_steps: auto counts"
        ),
    ),
    "another interval": (
        {**STEP, "interval": "batch"},
        r"error: lr_scheduler\.interval: expected 'epoch' or 'step', got 'batch'",
    ),
    "no frequency": (
        {**STEP, "frequency": 0},
        r"error: lr_scheduler\.frequency: expected 1 or more, got 0",
    ),
    "an interval below init_args": (
        {"class_path": "StepLR", "init_args": {"step_size": 1, "interval": "step"}},
        (
            r"error: lr_scheduler\.init_args\.interval: StepLR has no such argument; interval"
            r" stands next to class_path"
        ),
    ),
    "auto for what counts nothing": (
        {"class_path": "StepLR", "init_args": {"step_size": "auto"}},
        r"error: lr_scheduler\.init_args\.step_size: expected an integer, got 'auto'",
    ),
    "a plateau of torch without a metric": (
        {"class_path": "torch.optim.lr_scheduler.ReduceLROnPlateau"},
        r"error: lr_scheduler: ReduceLROnPlateau needs monitor",
    ),
    "steps that are counted as epochs": (
        {"class_path": "CosineAnnealingLR", "init_args": {"T_max": 4000}},
        (
            r"warning: lr_scheduler\.init_args\.T_max: 4000, but the schedule is stepped once an"
            r" epoch, 2 times in all"
        ),
    ),
    "one cycle of steps in epochs": (
        {"class_path": "OneCycleLR", "init_args": {"max_lr": 0.1, "total_steps": 4000}},
        (
            r"warning: lr_scheduler\.init_args\.total_steps: 4000, but the"
            r" schedule is stepped once an epoch"
        ),
    ),
}


@pytest.fixture(scope="module")
def checked(room: Workspace) -> dict[str, Answer]:
    """What checks without torch say."""
    for number, (schedule, _) in enumerate(SAID.values()):
        room.write(f"said-{number}.yaml", {**REGRESSOR, "lr_scheduler": schedule})
    commands = {
        name: Command(("check", "-c", f"said-{number}.yaml")) for number, name in enumerate(SAID)
    }
    return run_batch(room, commands, cold=True)


@pytest.mark.parametrize("name", SAID)
def test_a_check_without_torch_judges_a_schedule(name: str, checked: dict[str, Answer]) -> None:
    text = SAID[name][1]
    answer = checked[name]
    assert re.search(text + r".*\n  --> said-\d\.yaml:\d", answer.err), answer.err
    assert answer.code == (0 if text.startswith("warning") else 2)
    assert answer.err.count("error: ") == (answer.code == 2)


@pytest.mark.parametrize(
    "schedule",
    [
        {**STEP, "interval": "step", "frequency": 3},
        {"class_path": "CosineAnnealingLR", "init_args": {"T_max": "auto"}},
        {
            "class_path": "OneCycleLR",
            "init_args": {"max_lr": 0.1, "epochs": 2, "steps_per_epoch": 3},
        },
        {
            "class_path": "torch.optim.lr_scheduler.ReduceLROnPlateau",
            "init_args": {"monitor": "val/loss"},
        },
        {"class_path": "CosineAnnealingLR", "init_args": {"T_max": 4}},
        {"class_path": "CosineAnnealingLR", "init_args": {"T_max": 4000}, "interval": "step"},
    ],
    ids=lambda schedule: schedule["class_path"].rpartition(".")[2],
)
def test_a_right_schedule_is_taken(schedule: dict[str, Any], room: Workspace) -> None:
    room.write("right.yaml", {**REGRESSOR, "lr_scheduler": schedule})
    result = room.run("check", "-c", "right.yaml", "--full")
    assert (result.code, result.err) == (0, "")


RESUMED: dict[str, tuple[tuple[str, ...], str, list[float]]] = {
    "rate": (
        ("--optimizer.lr=0.5",),
        r"optimizer\.init_args\.lr 0\.5 in place of 1",
        [0.5 * 0.5**k for k in (2, 3)],
    ),
    "schedule": (
        ("--lr_scheduler.gamma=0.25",),
        r"lr_scheduler\.init_args\.gamma 0\.25 in place of 0\.5",
        [0.0625, 0.015625],
    ),
    "nothing": ((), "", [0.25, 0.125]),
}


@pytest.mark.parametrize("way", ["--run.resume", "--ckpt_path"])
@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_run_trains_with_the_rate_of_its_config(
    name: str, way: str, room: Workspace, ended: dict[str, Answer]
) -> None:
    flags, says, expected = RESUMED[name]
    job = f"resumed-{name}-{way.strip('-')}"
    first = ("fit", "-c", "rates-0.yaml", f"--model.name={job}", f"--run.name={job}")
    run_batch(room, {"first": Command(first)})["first"].ok()
    (run,) = (room.folder / "runs" / job).glob("2*-*")
    where = (
        f"--run.resume={run}"
        if way == "--run.resume"
        else f"--ckpt_path={run / 'checkpoints' / 'last.ckpt'}"
    )
    again = (*first, where, "--trainer.max_epochs=4", *flags)
    answer = run_batch(room, {"again": Command(again)})["again"].ok()
    assert rates_of(room, job)[2 * NUM_STEPS :] == pytest.approx(
        [rate for rate in expected for _ in range(NUM_STEPS)]
    )
    assert (re.search(f"warning: goes on with {says}", answer.err) is not None) == (says != "")


NUMBERS = {
    "--data.batch_size=-4": "expected 1 or more, got '-4'",
    "--data.image_size=0": "expected 1 or more, got '0'",
    "--data.num_workers=-1": "expected 0 or more or 'auto', got '-1'",
    "--data.val_fraction=1": "expected at least 0 and below 1, got '1'",
    "--model.learning_rate=-1": "expected 0 or more, got '-1'",
    "--trainer.max_epochs=-7": "expected -1 or more or null, got '-7'",
    "--trainer.limit_val_batches=-1": "expected 0 or more or null, got '-1'",
    "--run.wait_s=-1": "expected 0 or more, got '-1'",
    "--run.stale_s=0": "expected more than 0, got '0'",
    "--optimizer.lr=-1": "expected 0 or more or a Tensor, got '-1'",
}


def test_a_check_without_torch_finds_numbers_out_of_their_bounds(room: Workspace) -> None:
    (room.folder / "pictures").mkdir(exist_ok=True)
    words = (
        "check",
        "--model=ImageClassifier",
        "--data=ImageFolder",
        "--data.root=pictures",
        "--optimizer=SGD",
    )
    answers = run_batch(room, {word: Command((*words, word)) for word in NUMBERS}, cold=True)
    for word, answer in answers.items():
        assert answer.code == 2, word
        assert NUMBERS[word] in answer.err
        assert answer.err.count("error: ") == 1


def test_bounds_of_a_class_of_ones_own_are_checked(room: Workspace) -> None:
    text = (
        "from typing import Annotated\n\nfrom my_project import"
        " Net\n\n\nclass Ge:\n    ge = 1\n\n\n"
    )
    text += "class Bounded(Net):\n    def __init__(self, width: Annotated[int, Ge()] = 8):\n"
    text += "        super().__init__(hidden=width)\n"
    room.write("my_bounds.py", text)
    words = ("check", "-c", "plain.yaml", "--model=my_bounds.Bounded", "--model.width=0")
    answer = run_batch(room, {"own": Command(words)})["own"]
    assert answer.code == 2
    assert re.search(
        r"error: model\.init_args\.width: expected 1 or more, got 0\n  --> --model\.width=0",
        answer.err,
    )


DESCRIBED: dict[str, tuple[str, ...]] = {
    "lazy": ("--model=my_schedules.Lazy", "--trainer.num_sanity_val_steps=0"),
    "attributes of a model": ("--model=my_schedules.Described",),
    "attributes of data": ("--data=my_schedules.Tells",),
    "several loaders": ("--model=my_schedules.OfSeveral", "--data=my_schedules.Several"),
    "attributes of a callback": ("callbacks.warms=my_schedules.Warms",),
    "no rate": ("--optimizer=my_schedules.NoRate",),
    "barebones": ("--trainer.barebones=true", "--trainer.log_every_n_steps=null"),
}


@pytest.fixture(scope="module")
def described(room: Workspace) -> dict[str, Answer]:
    """What fits and deep checks of such parts say."""
    commands = {
        f"{command} {name}": Command(
            (
                command,
                "-c",
                "plain.yaml",
                "--model=my_project.Net",
                "--optimizer.lr=0.001",
                *words,
                *deep,
            )
        )
        for command, deep in (("fit", ()), ("check", ("--deep",)))
        for name, words in DESCRIBED.items()
    }
    return run_batch(room, commands)


@pytest.mark.parametrize("name", DESCRIBED)
def test_what_describes_a_model_or_a_loader_fails_no_fit(
    name: str, described: dict[str, Answer]
) -> None:
    assert described[f"fit {name}"].ok().code == 0
    assert described[f"check {name}"].ok().out.endswith("no mistakes found\n")


def test_a_deep_check_counts_samples_of_any_loader(
    room: Workspace, described: dict[str, Answer]
) -> None:
    assert "training 96 samples in 6 batches" in described["check several loaders"].out
    numbers = {
        "x": pa.array([float(k) for k in range(133)]),
        "label": pa.array([k / 2 for k in range(133)]),
    }
    numbers["split"] = pa.array(["train"] * 101 + ["val"] * 32)
    parquet.write_table(pa.table(numbers), room.folder / "numbers.parquet")
    table = {"path": "numbers.parquet", "features": "x", "batch_size": 8, "num_workers": 0}
    room.write("table.yaml", {**REGRESSOR, "data": {"class_path": "Table", "init_args": table}})
    answer = run_batch(room, {"table": Command(("check", "-c", "table.yaml", "--deep"))})[
        "table"
    ].ok()
    assert "training 101 samples in 13 batches, validation 32 samples in 4 batches" in answer.out


def test_a_metric_that_is_not_logged_is_reported_at_its_own_monitor(room: Workspace) -> None:
    words = (
        *("fit", "-c", "plain.yaml", "--run.name=monitors", "--lr_scheduler=ReduceLROnPlateau"),
        *("--lr_scheduler.monitor=val/loss", "callbacks.early_stopping.monitor=val/los"),
    )
    answer = run_batch(room, {"monitors": Command(words)})["monitors"]
    assert answer.code == 2
    assert answer.err.count("error: ") == 1
    assert (
        "error: callbacks.early_stopping.init_args.monitor: Early stopping conditioned on metric"
        in answer.err
    )
