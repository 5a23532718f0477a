"""Arguments of a script: what it is warned of, as LightningCLI warns, and what models save."""

from __future__ import annotations

import sys

import pytest
from pytorch_lightning import LightningModule

from lightkit.cli.lightning_cli import LightkitCLI


class Noted(LightningModule):
    """A model with a text."""

    def __init__(self, note: str = "") -> None:
        super().__init__()
        self.save_hyperparameters()


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
