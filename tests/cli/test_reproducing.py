"""A run is trained again where all is as it was, and refused with a list where it is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from lightkit import runs
from lightkit.cli import main
from lightkit.cli.inputs import record_inputs
from lightkit.cli.reproducing import order_of
from lightkit.cli.run_comparison import compared
from lightkit.cli.session import open_session
from lightkit.machine import describe_packages
from lightkit.runs.signals import SignalWatch
from tests.cli.commands import run as run_command
from tests.cli.commands import runs_in, workplace

JOB: dict[str, Any] = {
    "seed_everything": 7,
    "model": {"class_path": "own.Net"},
    "data": {"class_path": "own.Rows", "init_args": {"table": "rows.csv"}},
    "trainer": {"max_epochs": 2, "logger": False},
    "run": {"name": "job"},
}


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> runs.Run:
    """What a training leaves, without the training."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "source.py").write_text("lightkit\n")
    monkeypatch.setattr("lightkit.cli.inputs.sources_of", lambda: [tmp_path / "source.py"])
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    (folder / "own.py").write_text("class Net: ...\nclass Rows: ...\n")
    (folder / "rows.csv").write_text("1,2\n")
    (folder / "job.yaml").write_text(yaml.safe_dump(JOB))
    run = runs.create("runs", "job")
    runs.write_text(run.config_path, yaml.safe_dump(JOB))
    session = open_session("fit", ["-c", "job.yaml"], SignalWatch())
    manifest = runs.build_manifest(version="1", subcommand="fit", command=["lightkit"], run="job/1", seed=7)
    runs.write_json(run.manifest_path, {**manifest, "inputs": record_inputs(session, run, None)})
    runs.write_json(run.summary_path, {"status": "done", "exit_code": 0})
    return run


def change(path: Path, **values: Any) -> None:
    runs.write_json(path, {**(runs.read_json(path) or {}), **values})


def order(*, anyway: bool = False) -> Any:
    return order_of("job", "runs", SignalWatch(), anyway=anyway, options=[])


def test_a_run_of_which_all_is_as_it_was_is_trained_with_its_own_config_and_seed(finished: runs.Run) -> None:
    found = order()
    assert found.run.folder == finished.folder
    assert found.words == [
        "-c", str(finished.config_path), "--seed_everything=7", "--run.name=job-reproduced",
        f"--run.root={finished.root}", "--run.resume=auto",
    ]  # fmt: skip


def _touch(text: str, file: str) -> Any:
    return lambda _run: Path(file).write_text(text)


def _recorded(**values: Any) -> Any:
    def edit(run: runs.Run) -> None:
        manifest = runs.read_json(run.manifest_path) or {}
        change(run.manifest_path, **{key: {**(manifest[key] or {}), **value} for key, value in values.items()})

    return edit


@pytest.mark.parametrize(
    ("edit", "says", "code"),
    [
        (_touch("other\n", "rows.csv"), "data      data.init_args.table: 1 of 1 file differs (rows.csv)", 3),
        (_touch("class Net: x = 1\n", "own.py"), "code      1 of 1 file differs (own.py)", 2),
        (_touch("another\n", "../source.py"), "code      lightkit ", 2),
        (_recorded(git={"commit": "0123456789abcdef", "dirty": False}), "code      git commit 0123456789 -> ", 2),
        (_recorded(git={"dirty": True}), "that are not committed: only then", 2),
        (_recorded(packages={"torch": "2.9.0"}), "packages  torch 2.9.0 -> ", 2),
        (_recorded(packages={"timm-extra": "1"}), "packages  timm-extra 1 -> (none)", 2),
        (_recorded(hardware={"cpu": "an abacus"}), "hardware  cpu an abacus -> ", 2),
        (_recorded(hardware={"cores": 4096}), "hardware  cores 4096 -> ", 2),
        (_recorded(hardware={"gpus": ["H900"]}), "hardware  GPU H900 -> ", 2),
    ],
    ids=["data", "module", "lightkit", "commit", "dirty", "version", "package-gone", "cpu", "cores", "gpu"],
)
def test_what_differs_is_listed_and_refused(
    finished: runs.Run, capsys: pytest.CaptureFixture[str], edit: Any, says: str, code: int
) -> None:
    edit(finished)
    assert main(["reproduce", "job"]) == code
    told = capsys.readouterr().err
    assert "cannot be reproduced here, because this differs:" in told
    assert says in told
    assert "say --anyway to train all the same" in told
    assert order(anyway=True).run.folder == finished.folder
    assert says in capsys.readouterr().err
    assert [path.name for path in finished.root.iterdir()] == ["job"]


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda run: change(run.manifest_path, seed=None), "was trained without a seed"),
        (lambda run: change(run.manifest_path, subcommand="test"), "is a test; expected a fit"),
        (lambda run: change(run.manifest_path, fast_dev_run=True), "is a fast_dev_run"),
        (lambda run: change(run.manifest_path, ckpt_path="gone.ckpt"), "began from gone.ckpt, which is gone"),
        (lambda run: change(run.summary_path, status="preempted"), "has not ended well (status: preempted)"),
        (lambda run: run.config_path.unlink(), "or no config.yaml"),
    ],
    ids=["seed", "stage", "fast-dev-run", "checkpoint", "interrupted", "no-config"],
)
def test_some_runs_cannot_be_repeated(
    finished: runs.Run, capsys: pytest.CaptureFixture[str], edit: Any, says: str
) -> None:
    edit(finished)
    assert main(["reproduce", "job", "--anyway"]) == 2
    assert says in capsys.readouterr().err


def test_a_run_that_was_interrupted_in_between_is_told(finished: runs.Run, capsys: pytest.CaptureFixture[str]) -> None:
    change(finished.manifest_path, earlier=[{}, {}])
    order()
    assert "was interrupted 2 times and went on; it is trained again in one go" in capsys.readouterr().err


def test_variables_do_not_count(finished: runs.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTKIT_TRAINER__NO_SUCH", "3")
    assert order().manifest["packages"] == describe_packages()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "expected one run, such as latest, got none"),
        (["a", "b"], "expected one run"),
        (["job", "--any"], "did you mean '--anyway'?"),
        (["nobody"], "There is no run 'nobody'"),
    ],
    ids=["none", "two", "misspelt", "unknown"],
)
def test_wrong_words_are_told(
    finished: runs.Run, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert main(["reproduce", *words]) == 2
    assert says in capsys.readouterr().err


def made(root: Path, name: str, rows: list[dict[str, float]], weights: dict[str, Any], **manifest: Any) -> runs.Run:
    run = runs.create(root, name)
    table = runs.MetricsTable(run.metrics_path)
    for epoch, row in enumerate(rows):
        table.record(epoch, epoch + 1, row)
    run.checkpoints.mkdir()
    content = {"state_dict": weights, "epoch": 0, "global_step": 1, "pytorch-lightning_version": "2.6.6"}
    torch.save(content, run.checkpoints / "last.ckpt")
    runs.write_json(run.summary_path, {"status": "done", "best": {"epoch": 0}})
    runs.write_json(run.manifest_path, {"hardware": {"accelerator": "cpu"}, **manifest})
    return run


ROWS = [{"loss": 1.0, "samples_per_s": 5.0}, {"loss": float("nan"), "acc": 0.5, "samples_per_s": 6.0}]
WEIGHTS = {"a": torch.tensor([1.0, float("nan")]), "b": torch.tensor(3), "half": torch.ones(2, dtype=torch.bfloat16)}


def test_equal_runs_are_equal_whatever_they_took(tmp_path: Path) -> None:
    slower = [{**row, "samples_per_s": 1.0} for row in ROWS]
    found = compared(made(tmp_path, "one", ROWS, WEIGHTS), made(tmp_path, "again", slower, WEIGHTS))
    assert found.is_equal
    assert found.text().endswith("(2 epochs; 3 tensors of last.ckpt, bit for bit)\n")
    assert found.described()["equal"] is True


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        ({**WEIGHTS, "b": torch.tensor(5)}, "1 of 3 tensors differ, b by up to 2"),
        ({**WEIGHTS, "a": torch.tensor([1.0, 2.0])}, "1 of 3 tensors differ, a by up to nan"),
        ({**WEIGHTS, "b": torch.tensor(3.0)}, "1 of 3 tensors differ, b by up to 0"),
        ({**WEIGHTS, "b": torch.ones(2)}, "1 of 3 tensors differ, b has another form"),
        ({**WEIGHTS, "more": torch.ones(2)}, "1 of 3 tensors differ, more has another form"),
        ({**WEIGHTS, "half": torch.tensor([1.0, 1.0078125], dtype=torch.bfloat16)}, "half by up to 0.00781"),
    ],
    ids=["value", "nan", "dtype", "shape", "added", "bfloat16"],
)
def test_weights_that_differ_in_a_bit_are_told(tmp_path: Path, weights: dict[str, Any], says: str) -> None:
    found = compared(made(tmp_path, "one", ROWS, WEIGHTS), made(tmp_path, "again", ROWS, weights))
    assert not found.is_equal
    assert says in found.text()
    assert "metrics  equal" in found.text()


def test_metrics_that_differ_are_a_table_of_best_last_and_each_epoch(tmp_path: Path) -> None:
    other = [{"loss": 1.25}, {"loss": float("nan"), "acc": 0.75}, {"loss": 0.0}]
    found = compared(made(tmp_path, "one", ROWS, WEIGHTS), made(tmp_path, "again", other, WEIGHTS))
    lines = [line.split() for line in found.text().splitlines()]
    assert ["loss", "1", "(best)", "1", "1.25", "+0.25"] in lines
    assert ["acc", "2", "(last)", "0.5", "0.75", "+0.25"] in lines
    assert ["loss", "3", "-", "0"] in lines
    assert "weights  last.ckpt: 3 tensors are equal, bit for bit" in found.text()
    assert json.loads(json.dumps(found.described(), allow_nan=False))["equal"] is False


def test_other_data_is_a_difference_even_where_the_numbers_agree(tmp_path: Path) -> None:
    both = [made(tmp_path, name, ROWS, WEIGHTS, data={"fingerprint": name}) for name in ("one", "again")]
    assert "the fingerprint was one, is again" in compared(*both).text()


@pytest.mark.slow
def test_a_real_run_is_reproduced_bit_for_bit_and_another_is_not(tmp_path: Path) -> None:
    folder = workplace(tmp_path)
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert run_command(folder, "fit", "-c", "job.yaml", "--trainer.max_epochs=2", environ=environ).code == 0
    (first,) = runs_in(folder)
    ended = run_command(folder, "reproduce", "job", environ={**environ, "LIGHTKIT_TRAINER__MAX_EPOCHS": "1"})
    assert ended.code == 0, ended.err
    assert ended.out.splitlines()[-1].endswith(
        "(2 epochs; 4 tensors of last.ckpt, 4 tensors of best.ckpt, bit for bit)"
    )
    again = runs.open_run(folder / "runs" / "job-reproduced" / "latest")
    manifest = runs.read_json(again.manifest_path) or {}
    assert (manifest["parent"], manifest["reproduces"]) == (str(first), first.name)
    assert (folder / "runs" / "job" / "latest").resolve() == first

    last = first / "checkpoints" / "last.ckpt"
    content = torch.load(last, weights_only=True)
    content["state_dict"]["layers.0.bias"][0] += 0.5
    torch.save(content, last)
    other = run_command(folder, "reproduce", "job", "--json", "--anyway", environ=environ)
    assert other.code == 1, other.err
    found = json.loads(other.out)
    assert (found["equal"], found["metrics"]) == (False, [])
    assert found["weights"][0]["tensor"] == "layers.0.bias"
    assert found["weights"][0]["largest"] == pytest.approx(0.5)
