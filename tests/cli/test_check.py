"""`lightkit check` and what the stages tell before they build anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lightkit.cli import main
from lightkit.config import read_file
from lightkit.config.tree import plain

NET = '''\
import torch
from pytorch_lightning import LightningModule


class Wide(LightningModule):
    """A network.

    Args:
        hidden: Width of the hidden layer.
        rate: Step.
        activation: Between the layers.
    """

    def __init__(self, hidden: int, rate: float = 0.1, activation: torch.nn.Module | None = None):
        super().__init__()
'''
BROKEN = """\
model:
  class_path: wide_models.Wide
  init_args:
    hiden: 3
    rate: fast
    activation: {class_path: torch.nn.ReLU, init_args: {inplac: true}}
"""


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    # 2026-11-20: LightningCLI 2.6.6 calls what jsonargparse 4.53 deprecates.
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
    (tmp_path / "wide_models.py").write_text(NET)
    return tmp_path


def told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """List the first line of each mistake on standard error."""
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]


@pytest.mark.parametrize("words", [["check"], ["check", "fit"], ["fit"]], ids=" ".join)
@pytest.mark.parametrize("below", ["", "trainer: {max_epochs: ten}\n"], ids=["alone", "with-another"])
def test_all_mistakes_in_a_class_of_the_users_own_are_told(
    workplace: Path, capsys: pytest.CaptureFixture[str], words: list[str], below: str
) -> None:
    (workplace / "c.yaml").write_text(BROKEN + below)
    assert main([*words, "-c", "c.yaml"]) == 2
    assert told(capsys) == [
        "error: model: Wide needs hidden, an integer: Width of the hidden layer",
        "error: model.init_args.hiden: Wide has no such argument; did you mean 'hidden'?",
        "error: model.init_args.rate: expected a number, got 'fast'",
        "error: model.init_args.activation.init_args.inplac: ReLU has no such argument; did you mean 'inplace'?",
        *(["error: trainer.max_epochs: expected an integer or null, got 'ten'"] if below else []),
    ]
    assert {path.name for path in workplace.iterdir()} <= {"c.yaml", "wide_models.py", "__pycache__"}


def test_a_config_without_mistakes_is_said_to_have_none(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (workplace / "c.yaml").write_text("model: {class_path: wide_models.Wide, init_args: {hidden: 3}}\n")
    assert main(["check", "-c", "c.yaml"]) == 0
    assert capsys.readouterr().out.startswith("no mistakes found")
    assert {path.name for path in workplace.iterdir()} <= {"c.yaml", "wide_models.py", "__pycache__"}


def test_a_config_for_a_stage_is_checked_for_that_stage(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (workplace / "c.yaml").write_text("model: {class_path: wide_models.Wide, init_args: {hidden: 3}}\nverbose: maybe\n")
    assert main(["check", "test", "-c", "c.yaml"]) == 2
    assert told(capsys) == ["error: verbose: expected true or false, got 'maybe'"]


def test_what_came_from_the_environment_is_not_shown_in_a_mistake(
    workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WIDTH", "hunter2secret")
    (workplace / "c.yaml").write_text("model: {class_path: wide_models.Wide, init_args: {hidden: '${oc.env:WIDTH}'}}\n")
    assert main(["check", "-c", "c.yaml"]) == 2
    said = capsys.readouterr().err
    assert "hunter2secret" not in said
    assert "model.init_args.hidden: expected an integer, got '${oc.env:WIDTH}'" in said


def test_a_module_that_ends_the_program_is_told(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (workplace / "ending_models.py").write_text("import sys\n\nsys.exit(3)\n")
    (workplace / "c.yaml").write_text("model: ending_models.Net\n")
    assert main(["check", "-c", "c.yaml"]) == 2
    assert told(capsys) == [
        "error: model.class_path: ending_models.Net cannot be imported: its module calls sys.exit(3)"
    ]


@pytest.mark.parametrize("text", ["7e2", "1e-3", "12e4", "0x1f", "1_000", "yes", "null", "1:30"])
def test_text_that_looks_like_a_number_is_printed_as_text(
    workplace: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    entries = f"logger: {{tensorboard: null, csv: {{prefix: '{text}'}}}}\n"
    (workplace / "c.yaml").write_text("model: {class_path: wide_models.Wide, init_args: {hidden: 3}}\n" + entries)
    assert main(["fit", "--print_config", "-c", "c.yaml"]) == 0
    (workplace / "printed.yaml").write_text(capsys.readouterr().out)
    printed = read_file(workplace / "printed.yaml")
    assert plain(printed)["logger"]["csv"]["init_args"]["prefix"] == text
    assert main(["fit", "--print_config", "-c", "printed.yaml"]) == 0
    assert capsys.readouterr().out == (workplace / "printed.yaml").read_text()


@pytest.mark.slow
def test_a_right_class_of_the_users_own_is_not_imported_to_tell_what_is_wrong_beside_it(workplace: Path) -> None:
    (workplace / "torch.py").write_text("raise SystemError('torch was loaded')")
    (workplace / "c.yaml").write_text(
        "model: {class_path: wide_models.Wide, init_args: {hidden: 3}}\nn: 3\naccelerator: {gpus: 1, tpu_cores: 1}\n"
    )
    ended = subprocess.run(
        [sys.executable, "-m", "lightkit", "check", "-c", "c.yaml"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2, ended.stderr
    assert [line for line in ended.stderr.splitlines() if line.startswith("error: ")] == [
        "error: n: no such key",
        "error: accelerator.gpus: 1 contradicts accelerator.tpu_cores: 1; a run is on one kind of device, not on gpu "
        "and tpu",
    ]
