"""The command lines of the crontab and of the systemd service, as cron and systemd run them."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scripts.project import SMALL, list_runs, write_project

SCRIPTS = Path(__file__).parents[2] / "scripts"
PLACE = "/srv/flowers"
CLOSES = "0530"


def cron_commands() -> list[str]:
    lines = (SCRIPTS / "crontab").read_text().splitlines()
    jobs = [line for line in lines if re.match(r"[\d*]", line)]
    return [re.split(r"\s+", line, maxsplit=5)[5] for line in jobs]


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(SCRIPTS / "systemd" / name)
    return parser


def place(folder: Path) -> Path:
    """A project as the scripts think of it."""
    model = {"class_path": "judged.Judged"}
    data = {"class_path": "judged.Tested", "init_args": {"file": "judged.py"}}
    write_project(folder, {**SMALL, "model": model, "data": data})
    (folder / "judged.py").write_text(
        "from mine import Net, Points\n\n\nclass Judged(Net):\n"
        "    def forward(self, x):\n        return self.layers(x)\n\n"
        "    def test_step(self, batch, index):\n        self.validation_step(batch, index)\n\n\n"
        "class Tested(Points):\n    def __init__(self, file: str):\n        super().__init__()\n\n"
        "    def test_dataloader(self):\n        return self._loader(False)\n"
    )
    (folder / "configs" / "gate").mkdir(parents=True)
    gate = {"metric": "val/loss", "mode": "min", "max": 1000.0}
    (folder / "configs" / "gate" / "accuracy.yaml").write_text(json.dumps({"gate": gate}))
    (folder / "job.yaml").rename(folder / "configs" / "flowers.yaml")
    program = folder / ".venv" / "bin" / "lightkit"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m lightkit "$@"\n')
    program.chmod(0o755)
    (folder / "secrets.env").write_text("OMP_NUM_THREADS=1\nCUDA_VISIBLE_DEVICES=\n")
    return folder


def run_as_cron(command: str, folder: Path, home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", "-c", command.replace(PLACE, str(folder))],
        cwd=home,
        env={"HOME": str(home), "PATH": "/usr/bin:/bin", "SHELL": "/bin/sh", "LOGNAME": "me"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def test_the_crontab_has_lines_that_cron_understands() -> None:
    for line in (SCRIPTS / "crontab").read_text().splitlines():
        assert line == "" or re.match(r"#|[A-Z]+=|(?:[\d*/,-]+\s+){5}\S", line), line
    for command in cron_commands():
        assert "%" not in command  # which cron takes for the end of the line
        assert "--quiet" in command  # for cron mails whatever is printed


def test_the_service_is_sound_and_says_what_the_crontab_says(tmp_path: Path) -> None:
    service, timer = (
        unit("lightkit-retrain.service")["Service"],
        unit("lightkit-retrain.timer")["Timer"],
    )
    program, words = service["ExecStart"].split(" ", 1)
    assert program == f"{PLACE}/.venv/bin/lightkit"
    assert f".venv/bin/lightkit {words}" in cron_commands()[0]
    assert timer["OnCalendar"] == "*-*-* 02:15:00"
    assert service["RestartForceExitStatus"] == "75"
    assert f"--deadline {CLOSES[:2]}:{CLOSES[2:]} " in words
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not there")
    (tmp_path / "flowers" / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / "flowers" / ".venv" / "bin" / "lightkit").symlink_to("/bin/true")
    for kind in ("service", "timer"):
        name = f"lightkit-retrain.{kind}"
        text = (SCRIPTS / "systemd" / name).read_text().replace(PLACE, str(tmp_path / "flowers"))
        (tmp_path / name).write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / "lightkit-retrain.timer")]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert "lightkit-retrain" not in answer.stdout + answer.stderr


@pytest.mark.parametrize(
    ("clock", "begins"),
    [
        ("0215", True),
        ("0409", True),
        ("0529", True),
        (CLOSES, False),
        ("0808", False),
        ("2359", False),
        ("0000", False),
    ],
)
def test_the_service_begins_nothing_by_day_whatever_restarts_it(
    tmp_path: Path, clock: str, begins: bool
) -> None:
    words = shlex.split(
        unit("lightkit-retrain.service")["Service"]["ExecCondition"].replace("$$", "$")
    )
    assert words[:2] == ["/bin/sh", "-c"]
    date = tmp_path / "date"
    date.write_text(f'#!/bin/sh\n[ "$*" = +%H%M ] && echo {clock}\n')
    date.chmod(0o755)
    words[2] = words[2].replace("%%", "%")
    assert (
        subprocess.run(words, env={"PATH": str(tmp_path)}, check=False).returncode == 0
    ) is begins


@pytest.mark.long
@pytest.mark.timeout(900)
def test_cron_retrains_and_the_service_finds_nothing_changed(tmp_path: Path) -> None:
    folder, home = place(tmp_path / "flowers"), tmp_path / "home"
    home.mkdir()
    retrain, collect = cron_commands()
    done = run_as_cron(retrain, folder, home)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (trained,) = list_runs(folder)
    assert (trained / "export").is_dir()
    assert (trained / "promoted.json").is_file()
    assert not (home / "runs").exists()
    done = run_as_cron(unit("lightkit-retrain.service")["Service"]["ExecStart"], folder, folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = run_as_cron(collect, folder, home)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list_runs(folder) == [trained]
