"""What a script is warned of, as LightningCLI warns."""

from __future__ import annotations

import sys

import pytest

from lightkit.cli.lightning_cli import LightkitCLI


def test_arguments_beside_a_command_line_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--trainer.max_epochs=2"])
    with (
        pytest.warns(UserWarning, match="not recommended to provide both args and command line"),
        pytest.raises(SystemExit),
    ):
        LightkitCLI(args=["--help"])
