from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from lightkit import runs
from lightkit.errors import ConfigError
from lightkit.loggers import Comet

_OFFLINE = """
import socket, sys
from pathlib import Path
asked = []
def refuse(self, address):
    asked.append(address)
    raise OSError("no network here")
socket.socket.connect = socket.socket.connect_ex = refuse
def resolve(*args, **_): asked.append(args); raise socket.gaierror("no network here")
socket.getaddrinfo = resolve

sys.path.insert(0, sys.argv[2])
import conftest, torch
from lightkit import runs
from lightkit.loggers import Comet

folder = Path(sys.argv[1])
folder.mkdir(parents=True)
with runs.activate(runs.Run(folder=folder, name="daisies", id="20261120-101112-ab12", root=folder.parent)):
    logger = Comet(online=False)
    assert not list((folder / "comet").iterdir()), "opened before it was asked for"
    logger.log_hyperparams({"model": {"width": 3}})
    logger.add_picture("val/confusion", torch.zeros(3, 8, 9, dtype=torch.uint8), step=12)
    conftest.train(folder, logger)
assert not asked, asked
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("comet_ml") is None, reason="needs the extra comet")
def test_offline_all_is_in_an_archive_and_the_network_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COMET_API_KEY", raising=False)
    folder = tmp_path / "runs" / "daisies"
    command = [sys.executable, "-c", _OFFLINE, str(folder), str(Path(__file__).parent)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (archive,) = (folder / "comet").glob("*.zip")
    with zipfile.ZipFile(archive) as inside:
        said = [json.loads(line) for line in inside.read("messages.json").splitlines()]
        names = inside.namelist()
    params = {
        m["payload"]["param"]["paramName"]: m["payload"]["param"]["paramValue"] for m in _of(said, "parameter_msg")
    }
    assert {"model|width": 3, "lr": 0.01}.items() <= params.items()
    metrics = [m["payload"]["metric"] for m in _of(said, "metric_msg")]
    assert [metric["step"] for metric in metrics if metric["metricName"] == "val_loss"] == [3, 7, 11]
    assert any("confusion" in json.dumps(m) for m in said), names
    key = archive.name.split("-")[0]
    assert key.isalnum()
    assert len(key) == 40


def _of(said: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [message for message in said if message["type"] == kind]


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, run: runs.Run) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "comet_ml" else find_spec(name))
    with pytest.raises(ConfigError, match=r"pip install 'lightkit\[comet\]'"):
        Comet(online=False)
