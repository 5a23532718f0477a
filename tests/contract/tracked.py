"""A run with secrets in every place of its config and with three trackers, for tests of both."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from tests.contract.examples import SMALL
from tests.contract.workspace import Workspace

SAID = 'can"ary/8d+41'
"""A secret that a file or a flag says under a key that tells, with characters that YAML, JSON and
addresses quote."""
NUMBER = 4815162342
REFERRED = "blackbird-5f2b9c"
"""A secret that the config refers to as `${oc.env:TOKEN}`."""
ENVIRON = {"TOKEN": REFERRED, "MLFLOW_TRACKING_PASSWORD": SAID}

SOURCE = '''\
"""A network, data and a callback that are given secrets."""

import warnings

import torch
from pytorch_lightning import Callback

from my_project import Net, Points


class Keyed(Net):
    """A network that can be exported.

    Args:
        api_key: A secret.
        name: Another.
        tags: Others.
        fails: Whether it fails in training, with its secrets in the message.
    """

    def __init__(
        self, api_key: str = "", name: str = "", tags: list[str] | None = None, fails: bool = False
    ):
        super().__init__()
        self.save_hyperparameters()
        self.example_input_array = torch.zeros(1, 3)

    def training_step(self, batch, index):
        if self.hparams.fails:
            raise RuntimeError(
                f"refused {self.hparams.name} and {self.hparams.api_key} {self.hparams.api_key!r}"
            )
        return super().training_step(batch, index)


class Guarded(Points):
    """Points behind a password.

    Args:
        token: A secret.
        password: A secret number.
        at: An address.
    """

    def __init__(self, token: str = "", password: int = 0, at: str = "", note: str = ""):
        super().__init__(note=note)
        self.save_hyperparameters()


class Warn(Callback):
    """Warns with secrets in its words."""

    def on_train_start(self, trainer, module):
        warnings.warn(f"odd {module.hparams.name} and {module.hparams.api_key}")
'''
CONFIG: dict[str, Any] = {
    **SMALL,
    "model": {
        "class_path": "my_secrets.Keyed",
        "init_args": {
            "api_key": SAID,
            "name": "${oc.env:TOKEN}",
            "tags": ["a-${oc.env:TOKEN}-z", "plain"],
        },
    },
    "data": {
        "class_path": "my_secrets.Guarded",
        "init_args": {
            "password": NUMBER,
            "at": f"https://me:{quote(SAID, safe='')}@data.example.org/x",
            "note": "${oc.env:TOKEN}",
        },
    },
    "callbacks": {"warn": {"class_path": "my_secrets.Warn"}},
    "logger": {
        "tensorboard": {},
        "csv": {},
        "mlflow": {
            "init_args": {"tags": {"api_key": SAID, "mine": "${oc.env:TOKEN}", "team": "plants"}}
        },
    },
    "trainer": {"accelerator": "cpu", "max_epochs": 2, "log_every_n_steps": 1},
}
TOKEN = f"--data.token={SAID}"
AGAIN = (TOKEN, f"--model.api_key={SAID}", f"--data.password={NUMBER}", "--data.at=none")
"""What a run does not keep, said again."""
UNTRACKED = ("--logger=null", "--trainer.logger=false")


def write_tracked(workspace: Workspace) -> None:
    """Write `my_secrets.py` and `tracked.yaml`."""
    workspace.write("my_secrets.py", SOURCE)
    workspace.write("tracked.yaml", CONFIG)


def fit_tracked(workspace: Workspace) -> None:
    """Train `tracked.yaml` with TensorBoard, CSV and MLflow in place."""
    write_tracked(workspace)
    workspace.run("fit", "-c", "tracked.yaml", TOKEN, environ=ENVIRON).ok()
