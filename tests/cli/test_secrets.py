"""A secret said by a flag, in a file or in an address is in nothing that a run leaves behind or prints."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml

from tests.cli.conftest import House, Outcome, read_json

CANARY = 'can"ary/8d+41'
FORMS = (b'can"ary', b'can\\"ary', b"can%22ary", b"ary/8d", b"ary%2F8d", b"8d+41", b"8d%2B41", b"can&quot;ary")
OWN = """\
import torch
from my_models import Net, Points


class Guarded(Points):
    \"\"\"Points behind a password.\"\"\"

    def __init__(self, token: str = "", password: int = 0, at: str = "", fails: bool = False):
        super().__init__()
        self.save_hyperparameters()
        self.token, self.fails = token, fails

    def setup(self, stage):
        if self.fails:
            raise RuntimeError(f"the server refuses {self.token} and {self.token!r}")


class Labelled(Net):
    \"\"\"A network that can be exported.\"\"\"

    def __init__(self, api_key: str = "", hidden: int = 4):
        super().__init__(hidden)
        self.save_hyperparameters()
        self.example_input_array = torch.zeros(1, 3)
"""
CONFIG = f"""\
seed_everything: 7
model: {{class_path: my_guarded.Labelled, init_args: {{api_key: '{CANARY}'}}}}
data:
  class_path: my_guarded.Guarded
  init_args: {{password: 4815162342, at: 'https://me:{quote(CANARY, safe="")}@data.example.org/x'}}
trainer: {{accelerator: cpu, max_epochs: 1, log_every_n_steps: 1}}
logger: {{tensorboard: {{}}, csv: {{}}, mlflow: {{init_args: {{tags: {{api_key: '{CANARY}'}}}}}}}}
"""
TOKEN = f"--data.token={CANARY}"
AGAIN = [TOKEN, f"--model.api_key={CANARY}", "--data.password=4815162342", "--data.at=none"]


def leaks_in(folder: Path, but: Sequence[str] = ("guarded.yaml", "my_guarded.py")) -> list[str]:
    """Every file below a folder that holds a form of a secret, also inside archives such as checkpoints."""
    found = []
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.name in but or "__pycache__" in path.parts:
            continue
        contents = {path.name: path.read_bytes()}
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                contents |= {name: archive.read(name) for name in archive.namelist()}
        found += [f"{path.relative_to(folder)}: {name}" for name, data in contents.items() if holds(data)]
    return found


def holds(data: bytes) -> bool:
    return any(form in data for form in (*FORMS, b"4815162342"))


def leaks(done: Outcome) -> bool:
    return holds((done.out + done.err).encode())


@pytest.fixture
def guarded(house: House, monkeypatch: pytest.MonkeyPatch) -> House:
    house.write("my_guarded.py", OWN)
    house.write("guarded.yaml", CONFIG)
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", CANARY)
    return house


def test_the_search_finds_each_form(tmp_path: Path) -> None:
    for number, form in enumerate(FORMS):
        (tmp_path / f"{number}.bin").write_bytes(b"a" + form + b"b")
    assert len(leaks_in(tmp_path)) == len(FORMS)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_secrets_of_a_file_and_a_flag_are_in_nothing_that_a_fit_leaves(guarded: House) -> None:
    words = ["-c", "guarded.yaml", TOKEN]
    said = [guarded("fit", *words), guarded("fit", *words, "--print_config"), guarded("check", *words)]
    said += [guarded("explain", *words), guarded("explain", *words, "data.token")]
    said += [guarded("diff", "guarded.yaml", "latest"), guarded("runs"), guarded("gc", "--keep-last=1")]
    assert [said[at].code for at in (0, 1, 2, 3, 4, 6, 7)] == [0] * 7, said[0].err
    assert list(guarded.folder.rglob("mlflow.db"))
    assert list(guarded.folder.rglob("events.out.tfevents.*"))
    assert leaks_in(guarded.folder) == []
    assert [done for done in said if leaks(done)] == []
    run = guarded.folder / "runs/guarded/latest"
    saved = yaml.safe_load((run / "config.yaml").read_text())
    assert saved["data"]["init_args"]["token"] == "***"
    assert saved["data"]["init_args"]["at"] == "https://me:***@data.example.org/x"
    command = read_json(run / "manifest.json")["command"]
    assert command == ["lightkit", "fit", "-c", "guarded.yaml", "--data.token=***"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_secrets_are_in_nothing_that_later_stages_leave(guarded: House) -> None:
    quick = ["--logger=null", "--trainer.logger=false"]
    assert guarded("fit", "-c", "guarded.yaml", TOKEN, *quick).code == 0
    said = [guarded(stage, "--run", "latest", *AGAIN) for stage in ("test", "predict")]
    said += [guarded("export", "--run", "latest", "--format", "torch_export", *AGAIN)]
    said += [guarded("register", "--run", "latest", "--name", "guarded", *AGAIN)]
    assert [done.code for done in said] == [0] * 4, [done.err for done in said]
    assert list(guarded.folder.rglob("mlflow.db"))
    assert leaks_in(guarded.folder) == []
    assert [done for done in said if leaks(done)] == []


@pytest.mark.slow
def test_secrets_are_in_no_traceback(guarded: House) -> None:
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    words = ["fit", "-c", "guarded.yaml", f"--data.token={CANARY}", "--data.fails=true"]
    command = [sys.executable, "-m", "lightkit", *words]
    done = subprocess.run(command, capture_output=True, env=environ, check=False, timeout=200)
    assert done.returncode == 1
    assert b"Traceback" in done.stderr
    assert b"RuntimeError: the server refuses *** and " in done.stderr
    assert not holds(done.stdout + done.stderr)
    assert leaks_in(guarded.folder) == []


def test_a_run_without_its_secret_says_which(guarded: House) -> None:
    assert guarded("fit", "-c", "guarded.yaml", TOKEN, "--logger=null", "--trainer.logger=false").code == 0
    done = guarded("test", "--run", "latest", f"--model.api_key={CANARY}", "--data.at=none")
    assert done.code == 2
    assert "error: data.init_args.token: *** stands for a secret, of which a run keeps nothing" in done.err
    assert "data.init_args.password: ***" in done.err
    assert "model" not in done.err


def test_a_changed_secret_is_told_from_the_same_one(guarded: House) -> None:
    quick = ["-c", "guarded.yaml", "--logger=null", "--trainer.logger=false"]
    assert guarded("fit", *quick, TOKEN).code == 0
    summary = guarded.runs[0] / "summary.json"
    summary.write_text(summary.read_text().replace('"done"', '"preempted"'))
    same = guarded("fit", *quick, TOKEN)
    assert (same.code, len(guarded.runs)) == (0, 1), same.err
    summary.write_text(summary.read_text().replace('"done"', '"preempted"'))
    other = guarded("fit", *quick, "--data.token=another-token")
    assert (other.code, len(guarded.runs)) == (0, 2), other.err
    assert "begins a new run" in other.err
    assert "another-token" not in other.err


@pytest.mark.parametrize(
    "words",
    [
        ["--model.hidden=4", f"--data.tokn={CANARY}", TOKEN],
        [TOKEN, f"--trainer.max_epochs={CANARY}"],
        ["--data.password={broken", TOKEN, "--trainer.max_epochs=x"],
        [f"-token={CANARY}"],
        [f"--data={{class_path: my_guarded.Guarded, init_args: {{token: '{CANARY}', count: x}}}}"],
        [TOKEN, "-c", "broken.yaml"],
    ],
    ids=["misspelt", "elsewhere", "mapping", "no-option", "in-a-mapping", "broken-file"],
)
def test_a_mistake_is_told_without_the_secret(words: list[str], guarded: House) -> None:
    guarded.write("broken.yaml", f"data:\n  token: '{CANARY}\n")
    done = guarded("fit", "-c", "guarded.yaml", *words)
    assert done.code == 2
    if words != ["--model.hidden=4", f"--data.tokn={CANARY}", TOKEN]:
        assert not leaks(done)


def test_a_password_in_the_address_of_mlflow_is_nowhere(guarded: House, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = f"http://me:{quote(CANARY, safe='')}@127.0.0.1:9"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    said = [guarded("fit", "-c", "guarded.yaml", TOKEN)]
    said += [guarded("fit", "-c", "guarded.yaml", TOKEN, f"--logger.mlflow.init_args.tracking_uri={uri}")]
    assert [done for done in said if leaks(done)] == []
    assert "127.0.0.1:9" in said[0].out + said[0].err
    assert leaks_in(guarded.folder) == []
