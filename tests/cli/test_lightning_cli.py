"""Arguments of a script: what it is warned of, as LightningCLI warns, and what models save."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml
from pytorch_lightning import LightningModule

from lightkit.cli.lightning_cli import LightkitCLI
from lightkit.errors import ConfigError


class Noted(LightningModule):
    """A model with a text."""

    def __init__(self, note: str = "") -> None:
        super().__init__()
        self.save_hyperparameters()


class Sized(LightningModule):
    """A model that needs a width."""

    def __init__(
        self,
        width: int,
        sizes: list[int] = [1, 2],  # noqa: B006 - the default that is appended to
    ) -> None:
        super().__init__()


def test_arguments_beside_a_command_line_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--trainer.max_epochs=2"])
    with (
        pytest.warns(UserWarning, match="not recommended to provide both args and command line"),
        pytest.raises(SystemExit),
    ):
        LightkitCLI(args=["--help"])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_text_like_a_date_stays_text_in_the_hyper_parameters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """LightningCLI reads its own dump as YAML 1.1, in which it is a date."""
    monkeypatch.setattr(sys, "argv", ["train.py", "--model.note=2026-11-29"])
    cli = LightkitCLI(Noted, run=False)
    assert cli.model.hparams["note"] == "2026-11-29"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("runs", [True, False], ids=["fit", "no_command"])
def test_a_missing_argument_is_named_with_its_section(
    runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error with words for it, in a script with commands and in one without."""
    monkeypatch.setattr(sys, "argv", ["train.py", "fit"] if runs else ["train.py"])
    with pytest.raises(ConfigError, match=r"^model\.width: missing; .*--model\.width=VALUE$"):
        LightkitCLI(Sized, run=runs, parser_kwargs={"exit_on_error": False})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_command_that_a_file_names_is_no_key_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("{subcommand: fit, model: {width: 3}}", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["train.py", "--config", str(file), "--print_config"])
    with pytest.raises(SystemExit) as ended:
        LightkitCLI(Sized, parser_kwargs={"exit_on_error": False})
    assert ended.value.code == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("command", ["fit", ""], ids=["fit", "no_command"])
def test_a_flag_appends_to_the_default_of_a_class_that_the_script_fixes(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*filter(None, [command]), "--model.width=3", "--model.sizes+=4", "--print_config"]
    monkeypatch.setattr(sys, "argv", ["train.py", *words])
    with pytest.raises(SystemExit) as ended:
        LightkitCLI(Sized, run=bool(command), parser_kwargs={"exit_on_error": False})
    assert ended.value.code == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed["model"] == {"width": 3, "sizes": [1, 2, 4]}
