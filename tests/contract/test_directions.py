"""Which value of a metric is best is decided once.

For the checkpoint, the gate, the report, `runs --sort` and `gc`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.contract.conftest import Once, copy_of
from tests.contract.workspace import Workspace, read_events, read_json

pytestmark = pytest.mark.timeout(900)  # on a busy machine

_MODULE = """
import pytorch_lightning as pl
import torch
import torchmetrics
from torch.utils.data import DataLoader, TensorDataset


class Score(torchmetrics.Metric):
    '''The last value. A large one is good.'''

    higher_is_better = True

    def __init__(self):
        super().__init__()
        self.add_state("value", torch.tensor(0.0), dist_reduce_fx="mean")

    def update(self, value):
        self.value = torch.tensor(float(value))

    def compute(self):
        return self.value


class Cost(Score):
    '''A small one is good.'''

    higher_is_better = False


class Data(pl.LightningDataModule):
    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.zeros(4, 1)), batch_size=4)

    test_dataloader = val_dataloader = train_dataloader


class Measured(pl.LightningModule):
    '''Logs a value an epoch, as a number or by an object.'''

    def __init__(self, metric: str, values: list[float], measure: str = "number"):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(1.0))
        self.register_buffer("at", torch.tensor(0))
        self.metric, self.values = metric, values
        self.measure = {"number": None, "score": Score(), "cost": Cost()}[measure]

    def training_step(self, batch, index):
        return 0 * self.weight

    def on_validation_start(self):
        if self.trainer.state.fn == "fit" and not self.trainer.sanity_checking:
            self.at.fill_(self.current_epoch)

    def _log(self, split):
        value = self.values[int(self.at)]
        if self.measure is not None:
            self.measure(value)
        logged = value if self.measure is None else self.measure
        self.log(f"{split}/{self.metric}", logged, on_epoch=True, on_step=False)

    def validation_step(self, batch, index):
        self._log("val")

    def test_step(self, batch, index):
        self._log("test")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


class Ranked(Measured):
    '''Logs val/rank too, of which the first epoch is the smallest.'''

    def _log(self, split):
        super()._log(split)
        self.log(f"{split}/rank", float(self.at))
"""
_SOURCES = {
    "its name, max": ("accuracy", "number", None, "max"),
    "its name, min": ("loss", "number", None, "min"),
    "its object, max": ("energy", "score", None, "max"),
    "its object, min": ("energy", "cost", None, "min"),
    "its object against its name": ("accuracy", "cost", None, "min"),
    "the config, max": ("energy", "number", "max", "max"),
    "the config, min": ("energy", "number", "min", "min"),
    "the config against its object": ("energy", "cost", "max", "max"),
    "nothing, so that it is Lightning's": ("energy", "number", None, "min"),
}
"""By what decides: name of the metric, what logs it, the mode that the config sets, and the right
mode."""
_BETTER, _WORSE, _NAN = 2, 1, 3
"""Days of the runs: of the better finite value, of the worse one, and of the one that is never
finite."""
_VALUES = {
    "max": {_BETTER: [0.1, 0.9, 0.2], _WORSE: [0.1, 0.5, 0.2]},
    "min": {_BETTER: [0.9, 0.1, 0.8], _WORSE: [0.9, 0.5, 0.8]},
}
"""Values by epoch; the best is of epoch 1."""


def run_id(day: int) -> str:
    return f"202601{day:02}-030000-00{day:02}"


def _fill(source: str) -> Any:
    metric, measure, mode, best = _SOURCES[source]

    def fill(workspace: Workspace) -> None:
        workspace.write("measured.py", _MODULE)
        for day in (_WORSE, _BETTER, _NAN):
            values = (
                [float("nan"), float("inf"), float("-inf")] if day == _NAN else _VALUES[best][day]
            )
            monitored = {"monitor": f"val/{metric}"} | ({} if mode is None else {"mode": mode})
            config = {
                "seed_everything": 1,
                "model": {
                    "class_path": "measured.Measured",
                    "init_args": {"metric": metric, "values": values, "measure": measure},
                },
                "data": {"class_path": "measured.Data"},
                # of a run whose metric is never finite, the newest epoch is kept
                "callbacks": {"checkpoint": {"monitor": None} if day == _NAN else monitored},
                "trainer": {"accelerator": "cpu", "devices": 1, "max_epochs": 3, "logger": False},
                "gate": {"metric": f"test/{metric}"} | ({} if mode is None else {"mode": mode}),
                "run": {"name": "job", "report": False},
            }
            workspace.write("measured.yaml", config)
            workspace.run("fit", "-c", "measured.yaml").ok()
            (made,) = (run for run in workspace.runs if not run.name.startswith("202601"))
            made.rename(made.with_name(run_id(day)))

    return fill


@pytest.fixture(params=_SOURCES)
def measured(
    request: pytest.FixtureRequest, made_once: Once, workspace: Workspace
) -> tuple[Workspace, str, str, str | None]:
    """Three runs, the name of their metric, the right mode, and the mode that the config sets."""
    metric, _, mode, best = _SOURCES[request.param]
    name = f"measured-{[*_SOURCES].index(request.param)}"
    return copy_of(made_once(name, _fill(request.param)), workspace), metric, best, mode


def find(workspace: Workspace, day: int) -> Path:
    return workspace.folder / "runs" / "job" / run_id(day)


def test_every_user_of_the_direction_takes_the_same(
    measured: tuple[Workspace, str, str, str | None],
) -> None:
    workspace, metric, best, mode = measured
    is_known = (
        mode is not None or metric != "energy" or "measure: number" not in _read_config(workspace)
    )

    # the checkpoint
    for day in (_BETTER, _WORSE):
        chosen = read_json(find(workspace, day) / "summary.json")["best"]
        assert (chosen["epoch"], chosen["mode"]) == (1, best)
        assert chosen["value"] == pytest.approx(_VALUES[best][day][1])

    # the table, in which what is not finite is worst, and not missing
    words = ("runs", "job", f"--metric=val/{metric}", f"--sort=val/{metric}", "--json")
    assert _days(workspace.run(*words).ok().out) == [_BETTER, _WORSE, _NAN]
    turned = ("runs", "job", f"--metric=val/{metric}", f"--sort=-val/{metric}", "--json")
    assert _days(workspace.run(*turned).ok().out) == [_NAN, _WORSE, _BETTER]

    # retention; the newest is always kept
    kept = json.loads(
        workspace.run("gc", "job", "--keep-best=1", f"--metric=val/{metric}", "--dry-run", "--json")
        .ok()
        .out
    )
    assert [each["id"] for each in kept["deleted"]] == [run_id(_WORSE)]
    assert kept["kept"][f"job/{run_id(_BETTER)}"] == "one of the best"

    # the gate, and the report on it
    gate = ["--gate.max_drop=0.01"]
    better, worse, never = (find(workspace, day) for day in (_BETTER, _WORSE, _NAN))
    result = workspace.run("gate", str(better), *gate, f"--gate.baseline={worse}")
    if not is_known:
        assert result.code == 2
        assert (
            "gate.mode: not set, and nothing tells whether a small or a large test/energy is good"
            in result.err
        )
        gate.append(f"--gate.mode={best}")
        result = workspace.run("gate", str(better), *gate, f"--gate.baseline={worse}")
    assert result.code == 0, result.err
    workspace.run("report", str(better)).ok()
    assert "it is better than run job/" in (better / "report.html").read_text(encoding="utf-8")
    for candidate in (worse, never):
        assert workspace.run("gate", str(candidate), *gate, f"--gate.baseline={better}").code == 4
        workspace.run("report", str(candidate)).ok()
        assert "it is worse than run job/" in (candidate / "report.html").read_text(
            encoding="utf-8"
        )


def _read_config(workspace: Workspace) -> str:
    return (find(workspace, _BETTER) / "config.yaml").read_text(encoding="utf-8")


def _days(text: str) -> list[int]:
    return [int(each["id"][6:8]) for each in json.loads(text)]


def test_gc_keeps_the_best_run_where_another_has_no_finite_value_in_its_best_epoch(
    workspace: Workspace,
) -> None:
    workspace.write("measured.py", _MODULE)
    for day, values in ((1, [0.7, 0.6]), (2, [float("nan"), 0.94]), (3, [0.1, 0.1])):
        arguments = {"metric": "auc", "values": values}
        config = {
            "model": {"class_path": "measured.Ranked", "init_args": arguments},
            "data": {"class_path": "measured.Data"},
            "callbacks": {"checkpoint": {"monitor": "val/rank", "mode": "min"}},
            "trainer": {"accelerator": "cpu", "devices": 1, "max_epochs": 2, "logger": False},
            "run": {"name": "job", "report": False},
        }
        workspace.write("measured.yaml", config)
        workspace.run("fit", "-c", "measured.yaml").ok()
        (made,) = (run for run in workspace.runs if not run.name.startswith("202601"))
        made.rename(made.with_name(run_id(day)))
    printed = (
        workspace.run("gc", "job", "--keep-best=1", "--metric=val/auc", "--dry-run", "--json")
        .ok()
        .out
    )
    assert [each["id"] for each in json.loads(printed)["deleted"]] == [run_id(2)]


def test_a_mode_that_no_metric_was_named_for_cannot_turn_a_known_one_round(
    workspace: Workspace, made_once: Once
) -> None:
    workspace = copy_of(made_once("measured-1", _fill("its name, min")), workspace)
    result = workspace.run("gc", "job", "--keep-best=1", "--mode=max", "--dry-run")
    assert result.code == 2
    assert "of val/loss, by which runs of job were chosen, small values are good" in result.err
    named = workspace.run(
        "gc", "job", "--keep-best=1", "--metric=val/loss", "--mode=max", "--dry-run", "--json"
    ).ok()
    assert [each["id"] for each in json.loads(named.out)["deleted"]] == [run_id(_BETTER)]


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (
            {"class_path": "EarlyStopping", "init_args": {"monitor": "val/accuracy"}},
            (
                "mode: min, which is its default: EarlyStopping takes the smallest val/accuracy for"
                " the best, but the largest is; set mode: max"
            ),
        ),
        (
            {"class_path": "ModelCheckpoint", "init_args": {"monitor": "val/loss", "mode": "max"}},
            (
                "mode: max: ModelCheckpoint takes the largest val/loss for the best, but the"
                " smallest is; set mode: min"
            ),
        ),
        (
            {
                "class_path": "EarlyStopping",
                "init_args": {"monitor": "val/accuracy", "mode": "max"},
            },
            None,
        ),
        ({"class_path": "EarlyStopping", "init_args": {"monitor": "val/energy"}}, None),
    ],
    ids=["a default", "a mode that is set", "a right mode", "a name that says nothing"],
)
@pytest.mark.parametrize("place", ["callbacks", "trainer.callbacks"])
def test_a_callback_whose_mode_contradicts_its_metric_is_warned_about(
    workspace: Workspace, place: str, entry: dict[str, Any], says: str | None
) -> None:
    arguments = {"metric": entry["init_args"]["monitor"].removeprefix("val/"), "values": [0.5, 0.9]}
    config: dict[str, Any] = {
        "model": {"class_path": "measured.Measured", "init_args": arguments},
        "data": {"class_path": "measured.Data"},
        "trainer": {"accelerator": "cpu", "devices": 1, "max_epochs": 2, "logger": False},
        "run": {"report": False},
    }
    if place == "callbacks":
        config["callbacks"] = {"own": entry}
    else:
        config["trainer"]["callbacks"] = [entry]
    workspace.write("measured.py", _MODULE)
    workspace.write("own.yaml", config)
    for command in ("check", "fit"):
        printed = workspace.run(command, "-c", "own.yaml").ok().err
        assert (says in printed) if says else ("mode:" not in printed)
        assert says is None or "  --> own.yaml:" in printed
    recorded = [each["message"] for each in read_events(workspace.runs[0], "warning")]
    assert (
        any(says in each for each in recorded)
        if says
        else not any("mode:" in each for each in recorded)
    )


@pytest.mark.parametrize(
    ("measure", "is_warned"), [("score", True), ("cost", False), ("number", False)]
)
def test_a_callback_whose_mode_contradicts_the_metric_object_is_warned_about(
    workspace: Workspace, measure: str, is_warned: bool
) -> None:
    arguments = {"metric": "energy", "values": [0.5, 0.9], "measure": measure}
    config = {
        "model": {"class_path": "measured.Measured", "init_args": arguments},
        "data": {"class_path": "measured.Data"},
        "callbacks": {
            "stop": {"class_path": "EarlyStopping", "init_args": {"monitor": "val/energy"}}
        },
        "trainer": {"accelerator": "cpu", "devices": 1, "max_epochs": 2, "logger": False},
        "run": {"report": False},
    }
    workspace.write("measured.py", _MODULE)
    workspace.write("own.yaml", config)
    printed = workspace.run("fit", "-c", "own.yaml").ok().err
    text = (
        "EarlyStopping monitors val/energy with mode: min, but its metric object says that large"
        " values are good"
    )
    assert printed.count(text) == is_warned


def test_a_gate_that_compares_by_a_metric_of_unknown_direction_is_said_before_a_training(
    workspace: Workspace,
) -> None:
    workspace.write("gate.yaml", {"gate": {"metric": "test/energy", "max_drop": 0.1}})
    printed = workspace.run("check", "-c", "small.yaml", "-c", "gate.yaml").ok().err
    assert "gate.mode: not set, and neither the name of test/energy" in printed
    assert "  --> gate.yaml:" in printed
    for words in (["--gate.mode=min"], ["--gate.metric=test/accuracy"]):
        assert (
            "gate.mode"
            not in workspace.run("check", "-c", "small.yaml", "-c", "gate.yaml", *words).ok().err
        )
