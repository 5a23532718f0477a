"""`lightkit gate`: whether a run is good enough.

By thresholds, by the champion, by class and by the best of late.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.contract.registry import SKILLED, fit_skilled, tracking_uri
from tests.contract.workspace import Workspace, read_events, read_json

pytestmark = pytest.mark.timeout(900)  # on a busy machine


def gate(workspace: Workspace, *words: str, code: int = 0, run: int = 1) -> dict[str, Any]:
    """Judge one of the planted runs (0: accuracy 0.9, 1: 0.8); return the printed decision."""
    result = workspace.run("gate", str(workspace.runs[run]), "--json", *words)
    assert result.code == code, result.err
    decision: dict[str, Any] = json.loads(result.out)
    return decision


def refusal(workspace: Workspace, *words: str) -> str:
    """Judge the run of accuracy 0.8, and return what is said where the gate cannot judge."""
    result = workspace.run("gate", str(workspace.runs[1]), *words)
    assert result.code == 2, result.err
    assert "Traceback" not in result.err
    return result.err


def test_thresholds_decide_alone_where_nothing_is_promoted_yet(planted_original: Path) -> None:
    decision = read_json(planted_original / "gate.json")
    assert (decision["passed"], decision["num_samples"]) == (True, 100)
    assert decision["scores"]["challenger"]["test/accuracy"] == pytest.approx(0.9)
    assert decision["scores"]["baseline"] is None


def test_the_decision_of_a_gate_is_a_table_on_the_screen_and_in_the_step_summary(
    planted_original: Path,
) -> None:
    printed = (planted_original / "gate.out").read_text(encoding="utf-8")
    assert [line.split()[-1] for line in printed.splitlines() if line.startswith("test/")] == [
        "passed",
        "passed",
    ]
    assert "100 samples" in printed
    step = (planted_original / "step.md").read_text(encoding="utf-8")
    assert "| test/accuracy | 0.9000 |" in step
    assert "passed" in step


def test_junit_has_a_case_for_each_condition_of_the_gate(planted_original: Path) -> None:
    suite = ET.parse(planted_original / "gate.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "0")


def test_a_run_that_is_worse_than_the_champion_is_rejected_with_4(planted: Workspace) -> None:
    run = planted.runs[1]
    result = planted.run(
        "gate", str(run), "--json", "--junit=no.xml", environ={"GITHUB_STEP_SUMMARY": "no.md"}
    )
    assert result.code == 4
    assert "test/accuracy is 0.8, expected at most 0.02 worse" in result.err
    decision = json.loads(result.out)
    assert decision == read_json(run / "gate.json")
    scores = {which: score["test/accuracy"] for which, score in decision["scores"].items()}
    assert scores == {"challenger": pytest.approx(0.8), "baseline": pytest.approx(0.9)}
    assert [event["passed"] for event in read_events(run, "gate")] == [True, False]
    assert ET.parse(planted.folder / "no.xml").getroot().get("failures") == "1"
    assert "not good enough" in (planted.folder / "no.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--gate.metric=test/accuracy", "--gate.min=0.85"], 4),
        (["--gate.metric=test/error", "--gate.mode=min", "--gate.max=0.25"], 0),
        (["--gate.metric=test/error", "--gate.mode=min", "--gate.max=0.15"], 4),
        (["--gate.metric=test/accuracy", "--gate.mode=min", "--gate.max_drop=0.02"], 0),
        (["--gate.metric=test/error", "--gate.mode=min", "--gate.max_drop=0.02"], 4),
        (["--gate.metric=test/odd", "--gate.min=0"], 4),
        (["--gate.metric=test/accuracy", "--gate.slices={greens: 0.9}"], 4),
        (["--gate.metric=test/accuracy", "--gate.slices={greens: 0}", "--data.init_args.count=5"],
         4),
        (["--gate.metric=test/accuracy", "--gate.drift={window: 3, max_drop: 0.15}"], 0),
        (["--gate.metric=test/accuracy", "--gate.drift={window: 3, max_drop: 0.05}"], 4),
        (["--gate.metric=val/accuracy", "--gate.min=0.85"], 4),
    ],
    ids=["below min", "below max", "above max", "lower is better and it is lower",
         "lower is better and it is higher", "NaN", "class below its bound",
         "class without samples", "near the best of late", "slid from the best of late",
         "validation split"],
)  # fmt: skip
def test_a_gate_passes_by_its_conditions(planted: Workspace, words: list[str], code: int) -> None:
    of_file = [
        "--gate.min=null",
        "--gate.max_drop=null",
        "--gate.slices=null",
        "--gate.baseline=null",
    ]
    against = ["--gate.baseline=champion"] if "max_drop=" in " ".join(words) else []
    decision = gate(planted, *of_file, *against, *words, code=code)
    assert bool(decision["reasons"]) is (code == 4)


@pytest.mark.parametrize(
    ("before", "now", "best"),
    [
        (".float().mean()", ".float().mean() / 2", 0.45),
        ("+ wrong) % 3", "+ 2 + wrong) % 3", 0.1),
    ],
    ids=["another metric under its name", "another model of these weights"],
)
def test_the_best_of_late_is_scored_by_the_code_of_today(
    planted: Workspace, before: str, now: str, best: float
) -> None:
    """The champion was promoted with 0.9 by the code before, on the same samples."""
    source = (planted.folder / "my_skilled.py").read_text(encoding="utf-8")
    planted.write("my_skilled.py", source.replace(before, now))
    words = ["--gate.min=null", "--gate.max_drop=null", "--gate.slices=null"]
    drift = "--gate.drift={window: 3, max_drop: 1}"
    for alone in ([], ["--gate.baseline=null"]):
        decision = gate(planted, *words, drift, *alone)
        assert decision["drift"] == {
            "window": 3,
            "best": pytest.approx(best),
            "version": "1",
            "unknown": [],
        }


def test_a_former_champion_that_today_s_code_cannot_score_is_left_out_of_the_best_of_late(
    planted: Workspace,
) -> None:
    source = (planted.folder / "my_skilled.py").read_text(encoding="utf-8")
    fails = "        if self.skill == 90:\n            raise RuntimeError('no such skill')\n"
    step = "    def test_step(self, batch, index):\n"
    planted.write("my_skilled.py", source.replace(step, step + fails))
    words = ["--gate.min=null", "--gate.max_drop=null", "--gate.slices=null"]
    drift = "--gate.drift={window: 3, max_drop: 0.05}"
    decision = gate(planted, *words, drift, "--gate.baseline=null", "--allow-empty")
    assert decision["drift"]["best"] is None
    (unknown,) = decision["drift"]["unknown"]
    assert unknown == "version 1: RuntimeError: no such skill"


def test_a_drop_within_the_noise_of_the_samples_is_none_where_confidence_is_asked_for(
    planted: Workspace,
) -> None:
    close = fit_skilled(planted, 87)
    words = ("--baseline=champion", "--gate.max_drop=0.02", "--gate.slices=null")
    assert planted.run("gate", str(close), *words).code == 4
    decision = json.loads(
        planted.run("gate", str(close), *words, "--gate.confidence=0.95", "--json").ok().out
    )
    found = decision["significance"]
    assert (found["test"], found["counts"], found["num_samples"]) == (
        "McNemar's exact test",
        False,
        100,
    )
    assert found["p_value"] == pytest.approx(0.25)  # three samples: 2 / 2^3
    assert found["difference"] == pytest.approx(-0.03)
    assert any(
        "no difference beyond the noise of the samples" in notice for notice in decision["notices"]
    )
    assert [sample["index"] for sample in decision["samples"]] == [87, 88, 89]
    worse = gate(planted, *words, "--gate.confidence=0.95", code=4)  # ten samples
    assert worse["significance"]["p_value"] == pytest.approx(2 / 2**10)


def test_without_predictions_of_each_sample_every_drop_counts(planted: Workspace) -> None:
    words = (
        "--baseline=champion",
        "--gate.confidence=0.95",
        "--model.init_args.returns_outputs=false",
    )
    decision = gate(planted, *words, code=4)
    assert decision["significance"]["test"] is None
    assert any("gate.confidence has no effect" in notice for notice in decision["notices"])


def test_both_models_are_scored_on_all_samples_of_todays_data(planted: Workspace) -> None:
    decision = gate(
        planted, "--gate.max_drop=1", "--data.init_args.count=85", "--data.init_args.drop_last=true"
    )
    assert decision["num_samples"] == 85
    scores = {which: score["test/accuracy"] for which, score in decision["scores"].items()}
    assert scores == {"challenger": pytest.approx(80 / 85), "baseline": 1.0}
    assert decision["slices"]["greens"]["baseline"] == 1.0


def test_a_champion_is_scored_where_its_run_folder_is_not(planted: Workspace) -> None:
    planted.write(
        "move_away.py",
        "import sys\nfrom mlflow import"
        " MlflowClient\nMlflowClient(sys.argv[1]).set_model_version_tag('net', '1', 'run_folder',"
        " '/of/another/machine')\n",
    )
    planted.run(tracking_uri(planted), script="move_away.py").ok()
    decision = gate(planted, code=4)
    assert decision["scores"]["baseline"]["test/accuracy"] == pytest.approx(0.9)


def test_a_gate_fails_with_what_to_do_where_the_champion_cannot_be_scored(
    planted: Workspace,
) -> None:
    planted.write(
        "replace_champion.py",
        "import sys\nfrom mlflow import MlflowClient\n"
        "client = MlflowClient(sys.argv[1])\n"
        "version = client.create_model_version('net', '/of/somebody/else')\n"
        "client.set_registered_model_alias('net', 'champion', version.version)\n",
    )
    planted.run(tracking_uri(planted), script="replace_champion.py").ok()
    error = refusal(planted)
    assert "net version 2" in error
    assert "--gate.baseline=null" in error
    gate(planted, "--baseline=null", "--gate.max_drop=null")


def test_classes_in_another_order_are_matched_by_name(planted: Workspace) -> None:
    other = fit_skilled(
        planted, 90, "--run.name=other", "--model.init_args.classes=[greens, reds, blues]"
    )
    decision = gate(planted, f"--baseline=other/{other.name}", run=0)
    assert decision["scores"]["baseline"]["test/accuracy"] == pytest.approx(0.9)
    assert decision["slices"]["greens"]["baseline"] == pytest.approx(15 / 16)


NAMED = '''

class Named(Numbered):
    """Keeps names of its own, and numbers its labels by its classes once it is set up."""

    class_names = ()

    def setup(self, stage):
        self.num_samples, self.split, self._loaders, self.class_names = self.count, "mine", None, []
        for name in ("reds", "blues", "greens"):
            self.class_names.append(name)

    def test_dataloader(self):
        assert (self.num_samples, self.split, self._loaders) == (self.count, "mine", None)
        loader = super().test_dataloader()
        order = torch.tensor([self.class_names.index(name) for name in ("reds", "blues", "greens")])
        inputs, labels = loader.dataset.tensors
        return DataLoader(TensorDataset(inputs, order[labels]), batch_size=16)
'''


def test_a_data_module_keeps_its_own_names_in_a_gate(planted: Workspace) -> None:
    planted.write("my_skilled.py", SKILLED + NAMED)
    words = (
        "--data.class_path=my_skilled.Named",
        "--model.init_args.classes=[greens, reds, blues]",
    )
    other = fit_skilled(planted, 90, "--run.name=other", *words)
    decision = gate(
        planted, f"--baseline=other/{other.name}", "--data.class_path=my_skilled.Named", run=0
    )
    assert decision["num_samples"] == 100
    assert {which: score["test/accuracy"] for which, score in decision["scores"].items()} == {
        "challenger": pytest.approx(0.9),
        "baseline": pytest.approx(0.9),
    }


def test_images_are_resized_as_each_model_knows_them(classifier: Workspace) -> None:
    small = classifier.only_run
    validated = classifier.run("validate", "--run", str(small), "--output=json").ok()
    (result,) = [line for line in validated.json_lines if line["event"] == "result"]
    classifier.fit(
        "-c", "pictures.yaml", "--data.init_args.image_size=48", "--trainer.max_epochs=1"
    )
    words = (
        "--gate.metric=val/loss",
        "--gate.mode=min",
        "--gate.max_drop=9",
        f"--baseline=pictures/{small.name}",
    )
    decision = gate(classifier, *words)
    assert decision["scores"]["baseline"]["val/loss"] == pytest.approx(
        result["metrics"]["val/loss"], rel=1e-5
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], r"gate\.metric.*--gate\.min.*--allow-empty"),
        (["--gate.metric=val/loss"], r"--gate\.max=.*--allow-empty"),
    ],
    ids=["no metric", "no bound"],
)
def test_a_gate_without_a_rule_is_refused(finished: Workspace, words: list[str], says: str) -> None:
    refused = finished.run("gate", "latest", *words)
    assert refused.code == 2
    assert re.search(says, refused.err)
    allowed = finished.run("gate", "latest", *words, "--allow-empty").ok()
    assert ("nothing is judged" in allowed.out) == (not words)


def test_a_run_that_no_gate_judges_is_promoted_with_a_warning(finished: Workspace) -> None:
    promoted = finished.run("promote", "latest", "--quiet").ok()
    warning = "warning: promote: nothing judges the model, as gate.metric is not set"
    assert promoted.err.startswith(warning)
    judged = finished.run("promote", "latest", "--gate.metric=val/loss", "--gate.max=1e9").ok()
    assert "nothing judges" not in judged.err


def test_a_smallest_value_of_a_loss_warns(finished: Workspace) -> None:
    result = finished.run("gate", "latest", "--gate.metric=val/loss", "--gate.min=0.0")
    assert re.search(r"gate\.min.*val/loss.*small values are good.*gate\.max", result.err)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--gate.slices.grens=0.1"], r"gate\.slices\.grens.*did you mean 'greens'"),
        (["--gate.metric=test/acuracy"], r"'test/acuracy'.*did you mean 'test/accuracy'"),
        (["--baseline=champoin"], r"net has no alias 'champoin'.*did you mean 'champion'"),
        (["--baseline=7"], r"net has no version 7\b.*\b1\b"),
        (["--gate.confidence=95"], r"gate\.confidence.*between 0 and 1.*95"),
        (["--gate.metrik=test/accuracy"], r"gate\.metrik.*did you mean 'metric'"),
    ],
    ids=["class", "metric", "alias", "version", "confidence", "key"],
)
def test_an_error_in_the_gate_is_reported_with_what_there_is(
    planted: Workspace, words: list[str], says: str
) -> None:
    assert re.search(says, refusal(planted, *words))


MARGIN = ("--baseline=champion", "--gate.max_drop=null", "--gate.slices=null")


def test_a_margin_asks_for_a_proof_that_the_model_is_no_worse(planted: Workspace) -> None:
    """Of 100 samples it loses ten and wins none: Tango's interval ends at -0.16."""
    passed = gate(planted, *MARGIN, "--gate.margin=0.2")
    assert passed["non_inferiority"]["difference"] == pytest.approx(-0.1)
    assert passed["non_inferiority"]["low"] == pytest.approx(-0.1604, abs=1e-4)
    assert passed["smallest_drop"] == pytest.approx(0.05)
    refused = gate(planted, *MARGIN, "--gate.margin=0.16", code=4)
    (reason,) = refused["reasons"]
    assert (
        "expected less than 0.16 worse than net version 1 (champion), with 0.95 confidence"
        in reason
    )
    assert "it is worse by 0.1 (0.06" in reason
    assert "to 0.16)" in reason


def test_the_page_of_a_gate_says_the_smallest_drop_that_its_samples_can_show(
    planted: Workspace,
) -> None:
    gate(planted, *MARGIN, "--gate.margin=0.16", "--run.report=true", code=4)
    page = (planted.runs[1] / "gate.html").read_text(encoding="utf-8")
    assert "100 samples can show no drop below 0.05" in page
    assert re.search(
        r"test/accuracy is worse by 0\.1 \(0\.06\d* to 0\.16\), by the 90 % interval", page
    )
    assert "gate.margin asks that it is less than 0.16 worse, with 95 % confidence" in page


def test_a_model_is_no_worse_than_itself_whatever_the_margin(planted: Workspace) -> None:
    assert gate(planted, *MARGIN, "--gate.margin=0.001", run=0)["passed"] is True


def test_a_margin_without_predictions_of_each_sample_is_refused_with_what_to_return(
    planted: Workspace,
) -> None:
    error = refusal(
        planted, *MARGIN, "--gate.margin=0.2", "--model.init_args.returns_outputs=false"
    )
    assert re.search(
        r"gate\.margin: .* has no prediction of each sample.*test_step.*gate\.max_drop", error
    )


def test_a_deep_check_says_the_smallest_drop_and_warns_of_a_margin_that_no_model_meets(
    planted: Workspace,
) -> None:
    checked = planted.run("check", "-c", "net.yaml", "--deep", "--gate.margin=0.02").ok()
    says = r"^gate +the smallest drop of test/accuracy that 100 samples can show: 0\.05$"
    assert re.search(says, checked.out, re.MULTILINE)
    assert (
        "100 samples of the test split show no margin of 0.02 for any model, only one above 0.026"
        in checked.err
    )


EAGER = '''\
"""A model that says yes from a probability of 0.2 on, and its 100 samples."""

import torch
from pytorch_lightning import LightningDataModule, LightningModule
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import BinaryAccuracy, BinaryF1Score


class Eager(LightningModule):
    def __init__(self, threshold: float = 0.2):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.accuracy, self.f1 = BinaryAccuracy(threshold), BinaryF1Score(threshold)

    def forward(self, x):
        return torch.stack([torch.zeros(len(x)), self.scale * x[:, 0].logit()], dim=1)

    def training_step(self, batch, index):
        return 0 * self.scale.sum()

    def test_step(self, batch, index):
        logits = self(batch[0])
        for name, metric in (("accuracy", self.accuracy), ("f1", self.f1)):
            metric(logits.softmax(dim=1)[:, 1], batch[1])
            self.log(f"test/{name}", metric, on_epoch=True)
        return {"logits": logits, "target": batch[1]}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


class Hundred(LightningDataModule):
    class_names = ["no", "yes"]

    def train_dataloader(self):
        numbers = torch.arange(100)
        labels = ((numbers % 4 == 0) | (numbers >= 70)).long()
        return DataLoader(TensorDataset((numbers[:, None] + 0.5) / 100, labels), batch_size=16)

    test_dataloader = train_dataloader
'''


def test_a_model_that_decides_by_a_threshold_of_its_own_is_judged_and_reported_by_it(
    workspace: Workspace,
) -> None:
    workspace.write("my_eager.py", EAGER)
    job = {
        "model": {"class_path": "my_eager.Eager"},
        "data": {"class_path": "my_eager.Hundred"},
        "trainer": {"accelerator": "cpu", "max_epochs": 1, "logger": False},
        "gate": {"metric": "test/accuracy", "min": 0, "baseline": None},
        "run": {"name": "eager"},
    }
    workspace.write("eager.yaml", job)
    workspace.fit("-c", "eager.yaml", "--quiet")
    tested = workspace.run("test", "--run", "latest").ok()
    assert "predictions that give 0.72 for test/accuracy" in tested.out

    # from 20 on all are said to be yes: of the 48 that are 43, and of the 52 that are not 37
    slices = '--gate.slices={"yes": 0, "no": 0}'
    decision = json.loads(workspace.run("gate", "latest", slices, "--json").ok().out)
    labels = [at % 4 == 0 or at >= 70 for at in range(100)]
    decided = [at >= 20 for at in range(100)]
    right = [label == said for label, said in zip(labels, decided, strict=True)]
    assert decision["scores"]["challenger"]["test/accuracy"] == pytest.approx(sum(right) / 100)
    for name, is_yes in (("yes", True), ("no", False)):
        own = [each for each, label in zip(right, labels, strict=True) if label is is_yes]
        assert decision["slices"][name]["challenger"] == pytest.approx(sum(own) / len(own))

    refused = workspace.run("gate", "latest", "--gate.metric=test/f1", slices)
    assert refused.code == 2
    assert "no predictions give 0.6719" in refused.err

    workspace.run("report", "latest").ok()
    page = (workspace.only_run / "report.html").read_text(encoding="utf-8")
    assert f"test/accuracy is {sum(right) / 100:g}" in page
    assert "gives 0.72 for test/accuracy, and the model logged 0.58" in page
