"""Every exit code that is documented, each shown by a process that ends with it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from lightkit import runs
from tests.cli.commands import SMALL, fit, run, workplace

HERE = Path(__file__).parent
SHOWN: dict[int, tuple[str, str]] = {
    0: ("test_exit_codes.py", "test_a_fit_that_ends_well_is_0_and_the_same_again_is_6_or_0_as_asked"),
    1: ("test_processes.py", "test_a_defect_of_the_user_is_a_traceback_and_code_1"),
    2: ("test_processes.py", "test_a_mistake_is_told_without_a_traceback_and_leaves_no_run"),
    3: ("test_processes.py", "test_a_mistake_is_told_without_a_traceback_and_leaves_no_run"),
    4: ("test_exit_codes.py", "test_a_model_that_is_not_good_enough_is_4"),
    5: ("test_exit_codes.py", "test_an_export_that_does_not_match_its_model_is_5"),
    6: ("test_exit_codes.py", "test_a_fit_that_ends_well_is_0_and_the_same_again_is_6_or_0_as_asked"),
    70: ("test_stall.py", "test_a_fit_that_hangs_ends_with_70_and_names_the_line"),
    74: ("test_standard_output.py", "test_a_full_standard_output_is_told_in_one_line"),
    75: ("test_processes.py", "test_a_signal_in_training_is_75_and_the_same_command_ends_with_the_same_weights"),
    129: ("../runs/test_signals.py", "test_a_signal_outside_training_is_raised_at_once"),
    130: ("test_processes.py", "test_a_signal_with_nothing_to_resume_from_says_so"),
    138: ("test_signal_moments.py", "test_a_signal_while_libraries_load_ends_without_a_traceback_and_leaves_no_run"),
    141: ("test_main.py", "test_a_reader_that_leaves_the_pipe_is_no_mistake"),
    143: ("test_processes.py", "test_a_signal_with_nothing_to_resume_from_says_so"),
}
"""Exit code -> file and test in which a real process ends with it."""

UNSTEADY = '''\
"""A model that gives other numbers each time, so that no export can equal it."""

import torch

import mine


class Unsteady(mine.Net):
    def forward(self, x):
        return self.layers(x) + torch.rand(1)
'''


def test_every_documented_code_has_a_test_that_is_there() -> None:
    _, _, table = (HERE.parents[1] / "README.md").read_text(encoding="utf-8").partition("| code | meaning |")
    rows = re.findall(r"(?m)^\| (\d+(?:, \d+)*) \|", table.partition("\n\n")[0])
    documented = {int(code) for row in rows for code in row.split(",")}
    assert {0, 1, 2, 75} <= documented, "README.md has no table of exit codes"
    assert documented <= set(SHOWN)
    for code, (file, name) in SHOWN.items():
        tree = ast.parse((HERE / file).read_text(encoding="utf-8"))
        names = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        assert name in names, f"{code} is shown by no test: {file} has no {name}"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with a run that has ended well."""
    trainer = {**SMALL["trainer"], "max_epochs": 1}
    folder = workplace(tmp_path_factory.mktemp("trained"), {**SMALL, "trainer": trainer})
    done = fit(folder)
    assert done.code == 0, done.err
    return folder


@pytest.mark.slow
def test_a_fit_that_ends_well_is_0_and_the_same_again_is_6_or_0_as_asked(trained: Path) -> None:
    for words, code in ((["--if-changed"], 6), (["--if-changed", "--unchanged-ok"], 0)):
        again = fit(trained, *words)
        assert again.code == code, again.err
        assert "Traceback" not in again.err


@pytest.mark.slow
def test_a_job_that_another_process_holds_is_75(trained: Path) -> None:
    with runs.Lock(trained / "runs", "job"):
        refused = fit(trained)
    assert refused.code == 75
    assert refused.err.startswith("error: Job 'job' is being run by process ")


@pytest.mark.slow
def test_a_model_that_is_not_good_enough_is_4(trained: Path) -> None:
    gate = ["--gate.metric=val/loss", "--gate.mode=min", "--gate.max=-1", "--gate.baseline=null"]
    judged = run(trained, "gate", "job", *gate)
    assert judged.code == 4, judged.err
    assert judged.err.startswith("error: the gate says no: ")


@pytest.mark.slow
def test_an_export_that_does_not_match_its_model_is_5(trained: Path) -> None:
    (trained / "unsteady.py").write_text(UNSTEADY, encoding="utf-8")
    words = ["-c", "job.yaml", "--model=unsteady.Unsteady", "--format=torchscript", "--output=out"]
    exported = run(trained, "export", *words)
    assert exported.code == 5, exported.err
    assert "Traceback" not in exported.err
    assert not list(trained.glob("out/*"))
