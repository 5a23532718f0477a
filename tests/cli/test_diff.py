"""`lightkit diff`: what differs between two configs or runs."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import House

OLD = """\
trainer: {max_epochs: 10, callbacks: [{class_path: Timer, init_args: {verbose: true}}]}
model: {class_path: my_models.Net, init_args: {tags: [a, b], name: "${oc.env:TOKEN}"}}
callbacks: {lr_monitor: {}}
"""
NEW = """\
trainer: {max_epochs: 20, callbacks: [{class_path: Timer, init_args: {verbose: false}}, {class_path: ModelSummary}]}
model: {class_path: my_models.Net, init_args: {tags: [a, c], name: "${oc.env:TOKEN}", hidden: 4}}
"""


@pytest.fixture
def two(house: House, monkeypatch: pytest.MonkeyPatch) -> House:
    """A working directory with two configs."""
    house.write("old.yaml", OLD)
    house.write("new.yaml", NEW)
    monkeypatch.setenv("TOKEN", "sesame-1234")
    return house


def test_only_what_differs_is_printed_with_both_places(two: House) -> None:
    told = two("diff", "old.yaml", "new.yaml")
    assert (told.code, told.err) == (0, "")
    assert told.out == (
        "- old.yaml\n"
        "+ new.yaml\n"
        "\n"
        "callbacks.lr_monitor.class_path\n"
        "  - pytorch_lightning.callbacks.LearningRateMonitor  the name callbacks.lr_monitor\n"
        "\n"
        "trainer.max_epochs\n"
        "  - 10  old.yaml:1:23\n"
        "  + 20  new.yaml:1:23\n"
        "\n"
        "trainer.callbacks.0.init_args.verbose\n"
        "  - true   old.yaml:1:80\n"
        "  + false  new.yaml:1:80\n"
        "\n"
        "trainer.callbacks.1.class_path\n"
        "  + ModelSummary  new.yaml:1:102\n"
        "\n"
        "model.init_args.tags\n"
        "  - [a, b]  old.yaml:2:54\n"
        "  + [a, c]  new.yaml:2:54\n"
        "\n"
        "model.init_args.hidden\n"
        "  + 4  new.yaml:2:95\n"
    )


def test_what_a_file_extends_counts(two: House) -> None:
    two.write("child.yaml", "extends: old\ntrainer: {max_epochs: 11}\n")
    assert two("diff", "old.yaml", "child.yaml").out.endswith(
        "trainer.max_epochs\n  - 10  old.yaml:1:23\n  + 11  child.yaml:2:23\n"
    )


def test_no_difference_is_said_so(two: House) -> None:
    two.write("same.yaml", OLD + "# with a comment\n")
    told = two("diff", "old.yaml", "same.yaml", "--exit-code")
    assert (told.code, told.out) == (0, "no difference between old.yaml and same.yaml\n")


def test_a_difference_is_an_exit_code_where_that_is_asked_for(two: House) -> None:
    assert two("diff", "old.yaml", "new.yaml", "--exit-code").code == 1


def test_another_value_of_a_variable_is_no_difference(two: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTKIT_TRAINER__MAX_EPOCHS", "3")
    assert "trainer.max_epochs\n  - 10 " in two("diff", "old.yaml", "new.yaml").out


def test_json_tells_the_same(two: House) -> None:
    told = json.loads(two("diff", "old.yaml", "new.yaml", "--json").out)
    changes = {change["key"]: change for change in told["changes"]}
    assert changes["trainer.max_epochs"] == {
        "key": "trainer.max_epochs",
        "in": "config",
        "change": "changed",
        "old": {"value": 10, "set_by": {"kind": "file", "name": "old.yaml", "line": 1, "column": 23}},
        "new": {"value": 20, "set_by": {"kind": "file", "name": "new.yaml", "line": 1, "column": 23}},
    }
    assert changes["model.init_args.hidden"]["change"] == "added"
    assert changes["callbacks.lr_monitor.class_path"]["change"] == "removed"


def test_a_secret_that_differs_is_told_as_references(two: House, monkeypatch: pytest.MonkeyPatch) -> None:
    two.write("other.yaml", OLD.replace("TOKEN", "OTHER"))
    monkeypatch.setenv("OTHER", "other-secret")
    told = two("diff", "old.yaml", "other.yaml").out
    assert "- ${oc.env:TOKEN}  old.yaml" in told
    assert "+ ${oc.env:OTHER}  other.yaml" in told
    assert "sesame" not in told
    assert "other-secret" not in told


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "diff: expected two configs or runs, got none\nusage: lightkit diff A B"),
        (["old.yaml"], "diff: expected two configs or runs, got 1"),
        (["old.yaml", "new.yaml", "old.yaml"], "got 3"),
        (["old.yaml", "new.yaml", "--jsn"], "diff: unexpected argument '--jsn'; did you mean '--json'?"),
        (["old.yaml", "none.yaml"], "none.yaml: no such file"),
        (["old.yaml", "latest"], "There is no run 'latest'"),
        (["old.yaml", "new.yaml", "--root"], "--root: expected a folder after it"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_arguments(words: list[str], says: str, two: House) -> None:
    told = two("diff", *words)
    assert (told.code, told.out) == (2, "")
    assert says in told.err


@pytest.mark.slow
def test_runs_differ_in_their_configs_and_in_what_they_measured(house: House) -> None:
    first = house.fit("-c", "small.yaml")
    second = house.fit("-c", "small.yaml", "--model.hidden=5", "--run.resume=never")
    told = house("diff", first.name, str(second))
    assert told.code == 0, told.err
    assert "model.init_args.hidden\n  - 4  runs/small/" in told.out
    assert "summary.metrics.last.train/loss\n  - " in told.out
    assert "trainer.max_epochs" not in told.out
    same = house("diff", "latest", str(second))
    assert same.out.startswith("no difference")


@pytest.mark.slow
def test_a_run_and_its_config_differ_in_nothing_but_what_was_changed(house: House) -> None:
    house.write("base.yaml", "callbacks: {early_stopping: {monitor: val/loss}}\noptimizer: {class_path: Adam}\n")
    house.write("job.yaml", "extends: [base, small]\nlogger: {csv: {}}\n")
    house.fit("-c", "job.yaml", "--optimizer.lr=0.5")
    told = house("diff", "latest", "job.yaml", "--json")
    keys = [change["key"] for change in json.loads(told.out)["changes"]]
    own = [key for key in keys if not key.startswith(("model.", "data."))]  # classes that nothing describes
    assert own == ["optimizer.init_args.lr"]
