"""What a stage shows while it runs and when it ends."""

from __future__ import annotations

from pytorch_lightning import Callback

from lightkit.cli.screen import Mode


def callbacks_for(mode: Mode) -> list[Callback]:
    return []


def show_end(cli, session) -> None:
    print("DONE", cli.stage.start.run.folder, {k: float(v) for k, v in cli.trainer.callback_metrics.items()})
