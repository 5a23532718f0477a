"""`lightkit gate`, `promote`, `rollback` and `history` on runs whose accuracy is planted, with a real registry."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.cli.commands import workplace
from tests.cli.conftest import House, Outcome, read_json

pytestmark = [
    pytest.mark.timeout(900),  # on a busy machine
    # 2026-11: mlflow 3.17 to itself while it is imported, and what it leaves to the garbage collector.
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred:UserWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

SKILLED = '''\
"""Models that are right on the samples below a number, and data of 100 samples of three classes."""

import json
from pathlib import Path

import torch
from pytorch_lightning import LightningDataModule, LightningModule
from torch.utils.data import DataLoader, TensorDataset

from lightkit.callbacks.notifying import Notifier


class Skilled(LightningModule):
    """Right on samples numbered below its skill.

    Args:
        skill: That number.
        classes: Its classes in its own order.
        value: What it logs besides.
    """

    def __init__(self, skill: int = 90, classes: list[str] | None = None, value: float | None = None):
        super().__init__()
        self.skill = torch.nn.Parameter(torch.tensor(float(skill)))
        self.class_names = classes
        self.value = value

    def on_save_checkpoint(self, checkpoint):
        checkpoint["class_names"] = self.class_names or list(self.trainer.datamodule.class_names)

    def forward(self, x):
        names = self.class_names or ["reds", "blues", "greens"]
        order = torch.tensor([names.index(name) if name in names else 0 for name in ("reds", "blues", "greens")])
        wrong = (x[:, 0] >= self.skill).long()
        answer = order[(x[:, 1].long() + wrong) % 3]
        return torch.nn.functional.one_hot(answer, len(names)).float()

    def training_step(self, batch, index):
        return 0 * self.skill

    def validation_step(self, batch, index):
        self._log("val", batch)

    def test_step(self, batch, index):
        self._log("test", batch)

    def _log(self, split, batch):
        right = (self(batch[0]).argmax(1) == batch[1]).float().mean()
        self.log(f"{split}/accuracy", right, batch_size=len(batch[0]))
        if self.value is not None:
            self.log(f"{split}/odd", self.value, batch_size=len(batch[0]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


class Numbered(LightningDataModule):
    """Samples (number, class); every sixth of the test split is green.

    Args:
        count: Number of samples.
        drop_last: Whether the test loader would leave samples out.
    """

    class_names = ["reds", "blues", "greens"]

    def __init__(self, count: int = 100, drop_last: bool = False):
        super().__init__()
        self.count, self.drop_last = count, drop_last

    def _loader(self, shuffle=False, drop_last=False):
        number = torch.arange(float(self.count))
        labels = torch.tensor([0, 1, 0, 1, 0, 2]).repeat(self.count)[: self.count]
        dataset = TensorDataset(torch.stack([number, labels], 1), labels)
        return DataLoader(dataset, batch_size=16, shuffle=shuffle, drop_last=drop_last)

    def train_dataloader(self):
        return self._loader()

    val_dataloader = train_dataloader

    def test_dataloader(self):
        return self._loader(shuffle=True, drop_last=self.drop_last)


class Listener(Notifier):
    """Keeps the decisions that it is told of."""

    def gate_decided(self, decision):
        Path("told.jsonl").open("a").write(json.dumps(decision) + chr(10))
'''
JOB = """\
seed_everything: 7
model: {class_path: my_skilled.Skilled}
data: {class_path: my_skilled.Numbered}
callbacks: {listener: {class_path: my_skilled.Listener}}
trainer: {accelerator: cpu, max_epochs: 1, logger: false, enable_progress_bar: false}
run: {name: net}
gate: {metric: test/accuracy, min: 0.5, max_drop: 0.02, slices: {greens: 0.4}}
"""


@pytest.fixture
def home(house: House, monkeypatch: pytest.MonkeyPatch) -> House:
    """A working directory with models of planted accuracy."""
    for name in ("MLFLOW_TRACKING_URI", "GITHUB_STEP_SUMMARY", "GITHUB_ACTOR"):
        monkeypatch.delenv(name, raising=False)
    house.write("my_skilled.py", SKILLED)
    house.write("job.yaml", JOB)
    return house


def fitted(home: House, skill: int, *words: str) -> Path:
    """A run of a model that is right on so many of 100 samples."""
    return home.fit("-c", "job.yaml", f"--model.init_args.skill={skill}", "--quiet", *words)


def alias(home: House, name: str = "champion") -> str | None:
    """The version that the alias points to."""
    from mlflow import MlflowClient  # late: 2 s

    aliases = MlflowClient(f"sqlite:///{home.folder}/runs/mlflow.db").get_registered_model("net").aliases
    return str(aliases[name]) if name in aliases else None


def log_of(home: House) -> list[dict[str, Any]]:
    """The promotion log as programs read it."""
    done = home("history", "net", "--json")
    assert done.code == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("gate",), "gate: expected one run, say latest"),
        (("gate", "a", "--run", "b"), "gate: expected one run, got 'a' and 'b'"),
        (("gate", "latest", "--jsonn"), "gate: unexpected argument '--jsonn'; did you mean '--json'?"),
        (("gate", "latest", "--json=1"), "gate: --json takes no value"),
        (("gate", "latest", "--baseline"), "gate: --baseline: expected a word after it"),
        (("gate", "latest", "--junit=a", "--junit=b"), "gate: --junit is said twice"),
        (("gate", "latest"), "There is no run 'latest'"),
        (("promote",), "promote: expected one run"),
        (("promote", "latest", "--alias=v1"), "--alias: 'v1' is a name that MLflow keeps for itself"),
        (("promote", "latest", "--name=a/b"), "--name: 'a/b' has a slash"),
        (("promote", "latest", "--forse"), "promote: unexpected argument '--forse'; did you mean '--force'?"),
        (("rollback",), "rollback: expected the name of a registered model, got none"),
        (("rollback", "net", "--tto=1"), "rollback: unexpected argument '--tto=1'; did you mean '--to'"),
        (("rollback", "net"), "There is no database of MLflow at"),
        (("history", "a", "b"), "history: expected the name of a registered model, got 'a', 'b'"),
        (("history", "net"), "There is no database of MLflow at"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_a_wrong_command_line_is_told_before_anything_is_built(home: House, words: tuple[str, ...], says: str) -> None:
    done = home(*words)
    assert done.code == 2
    assert says in done.err
    assert not (home.folder / "runs").exists()


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("gate", ("--baseline", "--json", "--junit", "--tracking-uri", "--ckpt_path", "--trust", "-c", "--quiet")),
        ("promote", ("--name", "--alias", "--reason", "--force", "--json", "--junit", "--tracking-uri", "--quiet")),
        ("rollback", ("--to", "--reason", "--alias", "--root", "--tracking-uri", "--json", "--quiet")),
        ("history", ("--root", "--tracking-uri", "--json")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_help_names_every_option(home: House, command: str, options: tuple[str, ...]) -> None:
    done = home(command, "--help")
    assert done.code == 0
    for option in options:
        assert f"\n  {option} " in done.out
    assert "Exit code 0" in done.out


def test_check_tells_of_a_gate_that_cannot_be_meant(home: House) -> None:
    done = home("check", "-c", "job.yaml", "--gate.min=0.9", "--gate.max=0.5", "--gate.drift.window=0")
    assert done.code == 2
    assert "gate.drift.window: expected a number of promoted models" in done.err
    assert "gate.min: 0.9 is above gate.max" in done.err


@pytest.mark.slow
def test_a_worse_model_is_not_promoted_and_a_better_one_can_be_rolled_back(
    home: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(home.folder / "step.md"))
    first = fitted(home, 90)
    done = home("gate", "latest")
    assert done.code == 0, done.err
    assert "net has no champion yet: the thresholds decide alone" in done.out
    assert "on    100 samples (test, fingerprint" in done.out
    record = read_json(first / "gate.json")
    assert record["scores"] == {"challenger": {"test/accuracy": pytest.approx(0.9)}, "baseline": None}
    assert record["slices"]["greens"]["challenger"] == pytest.approx(15 / 16)  # of 16, one is numbered above 90
    assert (record["passed"], record["num_samples"], record["data"]["split"]) == (True, 100, "test")
    promoted = home("promote", "latest", "--reason", "the first")
    assert promoted.code == 0, promoted.err
    assert "is asked" not in promoted.out  # the decision is of this checkpoint, and holds
    assert "moved net@champion is version 1 now" in promoted.out
    assert (alias(home), alias(home, "challenger")) == ("1", "1")
    mark = read_json(first / "promoted.json")
    assert mark["to"] == "1"
    assert mark["registries"] == [f"sqlite:///{home.folder.resolve() / 'runs' / 'mlflow.db'}"]
    (first / "promoted.json").unlink()  # as where the process was killed just after the alias had moved
    again = home("promote", "latest")
    assert again.code == 0, again.err
    assert read_json(first / "promoted.json") == mark

    worse = fitted(home, 80)
    done = home("gate", str(worse), "--junit=gate.xml", "--json")
    assert done.code == 4
    assert done.err.startswith("error: the gate says no: test/accuracy is 0.8, expected at most 0.02 worse than net ")
    printed = json.loads(done.out)
    assert printed["passed"] is False
    assert printed["scores"]["baseline"]["test/accuracy"] == pytest.approx(0.9)
    assert printed["slices"]["greens"] == {"challenger": pytest.approx(13 / 16), "baseline": pytest.approx(15 / 16)}
    assert printed == read_json(worse / "gate.json")
    suite = ET.parse(home.folder / "gate.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("3", "1")
    assert "not good enough" in (home.folder / "step.md").read_text(encoding="utf-8")
    told = [json.loads(line) for line in (home.folder / "told.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [decision["passed"] for decision in told] == [True, True, False]
    for said in (home("promote", str(worse)), home("promote", "latest", "--junit=promote.xml")):
        assert said.code == 4
        assert "Nothing was promoted" in said.err
    assert alias(home) == "1"
    assert len(log_of(home)) == 1
    kinds = [json.loads(line)["event"] for line in (worse / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    assert kinds.count("gate") == 1
    assert "promotion" not in kinds

    done = home("promote", str(worse), "--force", "--reason=a test")
    assert done.code == 0, done.err
    assert alias(home) == "2"
    again = home("promote", str(worse), "--force")
    assert again.code == 0
    assert "net@champion is version 2 already" in again.out
    done = home("rollback", "net", "--reason", "it is worse")
    assert done.code == 0, done.err
    assert done.out == "moved net@champion from version 2 back to version 1\n"
    assert alias(home) == "1"
    done = home("rollback", "net")
    assert done.code == 2
    assert "the promotion log of net has no version before 1. Name one with --to; there are 1, 2." in done.err
    entries = log_of(home)
    assert [(entry["kind"], entry["from"], entry["to"], entry["forced"]) for entry in entries] == [
        ("promote", None, "1", False), ("promote", "1", "2", True), ("rollback", "2", "1", False),
    ]  # fmt: skip
    assert entries[1]["scores"] == {"challenger": pytest.approx(0.8), "baseline": pytest.approx(0.9)}
    assert entries[2]["scores"] == {"challenger": pytest.approx(0.9)}  # as when it was promoted
    shown = home("history", "net")
    assert [line.split()[1] for line in shown.out.splitlines()] == ["what", "promote", "promote", "rollback"]
    assert "the first" in shown.out
    done = home("history", "nett")
    assert done.code == 2
    assert "did you mean 'net'?" in done.err


@pytest.fixture
def promoted(home: House) -> tuple[House, Path]:
    """A champion of accuracy 0.9, and its run."""
    run = fitted(home, 90)
    done = home("promote", str(run), "--quiet")
    assert done.code == 0, done.err
    return home, run


def scores(done: Outcome) -> Mapping[str, Any]:
    """The scores of both models."""
    found: Mapping[str, Any] = json.loads(done.out)["scores"]
    return found


@pytest.mark.slow
def test_a_champion_is_scored_on_the_data_of_now_wherever_its_run_is(promoted: tuple[House, Path]) -> None:
    home, first = promoted
    fitted(home, 45, "--data.init_args.count=50", "--data.init_args.drop_last=true")
    done = home("gate", "latest", "--json", "--gate.max_drop=1")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["num_samples"] == 50  # all, although the loader would drop two
    assert scores(done)["baseline"]["test/accuracy"] == 1.0
    assert scores(done)["challenger"]["test/accuracy"] == pytest.approx(0.9)

    shutil.rmtree(first)  # the champion was trained elsewhere
    done = home("gate", "latest", "--json", "--gate.max_drop=1")
    assert done.code == 0, done.err
    assert scores(done)["baseline"]["test/accuracy"] == 1.0
    kept = next(home.folder.glob("runs/mlflow-artifacts/**/best.ckpt"))
    kept.write_bytes(kept.read_bytes()[:-1])
    done = home("gate", "latest")
    assert done.code == 2
    assert "net version 1 (champion) cannot be scored: " in done.err
    assert "is not what was registered" in done.err
    done = home("gate", "latest", "--baseline=null", "--gate.max_drop=null")
    assert done.code == 0, done.err
    done = home("gate", "latest", "--baseline=champoin")
    assert done.code == 2
    assert "net has no alias 'champoin'; did you mean 'champion'?" in done.err
    done = home("gate", "latest", "--baseline=7")
    assert done.code == 2
    assert "net has no version 7. Its versions: 1" in done.err


@pytest.mark.slow
def test_classes_are_compared_by_name_and_unknown_ones_are_told(home: House) -> None:
    first = fitted(home, 90, "--model.init_args.classes=[greens, reds, violets, blues]", "--run.name=other")
    run = fitted(home, 90)
    against = f"--baseline=other/{first.name}"
    done = home("gate", "latest", "--json", against)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert scores(done)["baseline"]["test/accuracy"] == pytest.approx(0.9)
    assert found["slices"]["greens"]["baseline"] == pytest.approx(15 / 16)
    assert found["baseline"] == f"run other/{first.name}"

    fewer = fitted(home, 90, "--model.init_args.classes=[reds, greens]", "--run.name=fewer", "--data.init_args.count=5")
    done = home("gate", str(run), f"--baseline=fewer/{fewer.name}")
    assert done.code == 2
    assert "gate.baseline: it does not know blues, which the data has; it knows reds, greens" in done.err

    for words, says in {
        ("--gate.slices.grens=0.1",): "gate.slices.grens: there is no such class; did you mean 'greens' or 'reds'?",
        ("--gate.metric=test/acuracy",): "logs no 'test/acuracy' on the test split; did you mean 'test/accuracy'?",
    }.items():
        done = home("gate", str(run), *words)
        assert (done.code, says in done.err) == (2, True), done.err


@pytest.mark.slow
def test_a_score_that_is_nan_fails_and_without_a_metric_nothing_is_judged(home: House) -> None:
    odd = fitted(home, 99, "--model.init_args.value=.nan")
    done = home("gate", str(odd), "--gate.metric=test/odd", "--gate.min=null", "--gate.slices=null")
    assert done.code == 4
    assert "test/odd is nan, expected a finite number" in done.err
    assert read_json(odd / "gate.json")["scores"]["challenger"]["test/odd"] is None
    done = home("gate", str(odd), "--gate.metric=null", "--gate.min=null", "--gate.slices=null", "--gate.max_drop=null")
    assert done.code == 0, done.err
    assert "gate  nothing is judged" in done.out


@pytest.mark.slow
def test_a_slow_slide_is_caught_by_the_best_of_late(promoted: tuple[House, Path]) -> None:
    home, _ = promoted
    drift = ("--gate.drift={window: 3, max_drop: 0.03}",)
    codes = []
    for skill in (89, 88, 86):  # each within 0.02 of the one before
        run = fitted(home, skill, *drift)
        done = home("promote", str(run), "--quiet")
        codes.append(done.code)
    assert codes == [0, 0, 4]
    assert "test/accuracy of late is 0.86, expected at most 0.03 worse than the best of the last 3" in done.err
    assert "(version 1: 0.9)" in done.err
    assert alias(home) == "3"
    other = home("gate", str(run), "--data.init_args.count=99", "--json")  # scored again, on other data
    assert other.code == 4
    assert json.loads(other.out)["drift"]["best"] == pytest.approx(90 / 99)
    short = home("gate", str(run), "--gate.drift.window=1")
    assert short.code == 0, short.err

    done = home("rollback", "net", "--quiet")
    assert (done.code, alias(home)) == (0, "2")
    from mlflow import MlflowClient  # late: 2 s

    MlflowClient(f"sqlite:///{home.folder}/runs/mlflow.db").delete_model_version("net", "1")
    done = home("rollback", "net", "--to=3", "--quiet")
    assert (done.code, alias(home)) == (0, "3")
    done = home("rollback", "net", "--to=1")
    assert "net has no version 1. Its versions: 2, 3" in done.err


@pytest.mark.slow
def test_a_decision_that_is_out_of_date_is_made_again(promoted: tuple[House, Path]) -> None:
    home, _ = promoted
    run, rival = fitted(home, 95), fitted(home, 99)
    assert home("gate", str(run)).code == 0
    done = home("promote", str(rival))
    assert done.code == 0, done.err
    assert "gate  is asked: there is no gate.json yet" in done.out
    done = home("promote", str(run))
    assert done.code == 4
    assert "gate  is asked: the champion was version 1 then, and is version 2 now" in done.out
    assert alias(home) == "2"
    done = home("promote", str(run), "--gate.max_drop=0.05")
    assert done.code == 0, done.err
    assert "gate  is asked: gate.json is of other settings" in done.out
    assert alias(home) == "3"


PHOTOS = """\
seed_everything: 7
model: {class_path: ImageClassifier}
data: {class_path: ImageFolder, init_args: {root: pictures, image_size: 32, batch_size: 8, num_workers: 0}}
trainer: {accelerator: cpu, max_epochs: 1, logger: false, enable_progress_bar: false}
run: {name: photos}
gate: {metric: val/accuracy, max_drop: 1, slices: {reds: 0}}
"""


@pytest.mark.slow
def test_each_model_gets_photos_at_its_own_size(home: House) -> None:
    workplace(home.folder, pictures=24)
    home.write("photos.yaml", PHOTOS)
    small = home.fit("-c", "photos.yaml", "--quiet")
    home.fit("-c", "photos.yaml", "--quiet", "--data.init_args.image_size=48")
    done = home("gate", "latest", "--json", f"--baseline=photos/{small.name}")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    at_its_size = home("validate", "--run", str(small), "--output", "json")
    result = [json.loads(line) for line in at_its_size.out.splitlines() if '"result"' in line]
    assert scores(done)["baseline"]["val/loss"] == pytest.approx(result[-1]["metrics"]["val/loss"], rel=1e-5)
    assert found["num_samples"] == read_json(small / "manifest.json")["data"]["counts"]["val"]
