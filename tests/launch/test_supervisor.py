"""How the process that starts all ranks reacts to signals, to late ranks and to its end.

Without training.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lightkit.launch.supervisor import _Moments

SUPERVISE = """
import json
import sys

from lightkit.launch import supervisor
from lightkit.launch.plan import LaunchSettings, plan_launch
from lightkit.launch.supervisor import Supervisor

launcher, settings = sys.argv[1], json.loads(sys.argv[2])
supervisor.launcher_command = lambda *_, **__: [sys.executable, "-c", launcher]
plan = plan_launch(LaunchSettings(**settings), strategy="horovod", processes=None)
launch = Supervisor(plan, [], root="runs", num_cores=1)
print(launch.folder, flush=True)
result = launch.run()
launch.remove()
print(json.dumps([result.code, result.message, launch.signum]), flush=True)
"""
RANK = """
import os
import pathlib
import signal
import sys
import time

from lightkit.launch.ranks import Rank
from lightkit.launch.worker import RankContext

rank = RankContext(Rank(0, 1), pathlib.Path(os.environ["_LIGHTKIT_LAUNCH"]), supervised=True)
got = []
for signum in (signal.SIGINT, signal.SIGTERM):
    signal.signal(signum, lambda signum, _: got.append(signum))
rank.record("began")
rank.watch_stop_requests()
"""
ASKED = """
pathlib.Path("begun").touch()
while not got:
    time.sleep(0.02)
time.sleep(0.5)  # it saves
pathlib.Path("got").write_text(repr([int(signum) for signum in got]))
rank.record("ended", code=75, kind="Interrupted", message="interrupted")
"""


@contextmanager
def supervised(folder: Path, launcher: str, **how: Any) -> Iterator[subprocess.Popen[str]]:
    command = [
        sys.executable,
        "-c",
        SUPERVISE,
        RANK + launcher,
        json.dumps({"processes": 1, "engine": "horovod"}),
    ]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True, **how) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_rank(folder: Path) -> None:
    """Wait until the rank has begun and is what its test makes of it."""
    deadline = time.monotonic() + 60
    while not (folder / "begun").exists():
        assert time.monotonic() < deadline, "it does not begin"
        time.sleep(0.02)


def verdict(process: subprocess.Popen[str]) -> Any:
    out, _ = process.communicate(timeout=60)
    return json.loads(out.splitlines()[-1])


@pytest.mark.parametrize(
    ("launcher", "signum", "got"),
    [
        pytest.param(ASKED, signal.SIGINT, [2], id="SIGINT"),
        pytest.param(ASKED, signal.SIGHUP, [15], id="SIGHUP, which ranks do not know"),
    ],
)
def test_a_signal_lets_ranks_save(
    tmp_path: Path, launcher: str, signum: int, got: list[int]
) -> None:
    with supervised(tmp_path, launcher) as process:
        wait_for_rank(tmp_path)
        process.send_signal(signum)
        assert verdict(process) == [75, "interrupted", signum]
    assert json.loads((tmp_path / "got").read_text(encoding="utf-8")) == got


def catches(pid: int, signum: signal.Signals) -> bool:
    """Say whether a process has a handler for a signal."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt"))
    return bool(caught >> (signum - 1) & 1)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells which signals a process catches")
def test_a_signal_before_any_rank_has_begun_ends_the_launcher_at_once(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-c",
        SUPERVISE,
        "import time; time.sleep(60)",
        '{"processes": 1, "engine": "horovod"}',
    ]
    began = time.monotonic()
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        while not catches(process.pid, signal.SIGTERM):
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert verdict(process)[0] == 1
    # that ranks would have; one second where nothing else runs
    assert time.monotonic() - began < 25


@pytest.mark.parametrize(
    "signum", [signal.SIGHUP, signal.SIGINT], ids=["nohup", "in_the_background_of_a_script"]
)
def test_a_signal_that_it_was_started_to_ignore_ends_no_launch(
    signum: signal.Signals, tmp_path: Path
) -> None:
    done = (
        "pathlib.Path('begun').touch()\nwhile not pathlib.Path('sent').exists(): time.sleep(0.02)\n"
        "time.sleep(1)\nrank.record('ended', code=0 if not got else 1)\n"
    )
    with supervised(
        tmp_path, done, preexec_fn=partial(signal.signal, signum, signal.SIG_IGN)
    ) as process:
        wait_for_rank(tmp_path)
        os.kill(process.pid, signum)
        (tmp_path / "sent").touch()
        assert verdict(process) == [0, None, None]


def test_a_full_disk_under_the_output_lets_ranks_save_and_is_reported_in_a_sentence(
    tmp_path: Path,
) -> None:
    launcher = (
        "pathlib.Path(os.environ['_LIGHTKIT_LAUNCH'], 'rank-0.out').write_text('epoch 0\\n')\n"
        + ASKED
    )
    script = SUPERVISE.replace(
        "print(launch.folder, flush=True)", "sys.stdout = open('/dev/full', 'w')"
    )
    command = [
        sys.executable,
        "-c",
        script,
        RANK + launcher,
        '{"processes": 1, "engine": "horovod"}',
    ]
    ended = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (
        "OutputLost: the output of the ranks cannot be written: No space left on device"
        in ended.stderr
    )
    assert (tmp_path / "got").read_text(encoding="utf-8") == "[15]"


@pytest.mark.parametrize("was_there", [True, False])
def test_the_folder_of_all_runs_stays_where_it_was_there_before(
    tmp_path: Path, was_there: bool
) -> None:
    if was_there:
        (tmp_path / "runs").mkdir()
    with supervised(tmp_path, "rank.record('ended', code=0)") as process:
        assert verdict(process)[0] == 0
    assert (tmp_path / "runs").exists() is was_there
    assert not (tmp_path / "runs" / ".launch").exists()


def test_a_condition_lasts_from_the_first_look_at_which_it_held() -> None:
    moments = _Moments(began_s=0, looked_s=0)
    looks = [(1, True), (4, True), (5, False), (6, True), (8, True)]
    assert [moments.lasts_s("failed", holds=holds, now_s=now_s) for now_s, holds in looks] == [
        0,
        3,
        0,
        0,
        2,
    ]
    assert moments.lasts_s("done", holds=True, now_s=9) == 0
