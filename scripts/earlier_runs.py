"""Make the runs of an earlier version that the contract suite goes on with.

Pack them into an archive.

Check the earlier version out beside this one, and run, as root::

    python scripts/earlier_runs.py ../lightkit-e78f42c tests/contract/earlier_runs.tar.xz

Checkpoints, MLflow's records and exported files hold absolute paths, so that all is made in
``/srv/lightkit/project`` by a program in ``/srv/lightkit``, on a host of the name ``night``.
Whoever unpacks the archive elsewhere replaces these paths in the text files and in the databases.

==============  ====================================================================================
job             state
==============  ====================================================================================
small           done, tested, with its report
killed          killed by SIGKILL in step 9 of 18; its lock is still there
preempted       ended by SIGTERM in step 9 of 18, code 75
failed          a loss that was NaN in the second epoch, code 1
tracked         as ``killed``, with the loggers MLflow and TensorBoard
table           done, on a folder of Parquet
net             three runs of accuracy 0.7, 0.8 and 0.9: the first two promoted, then rolled back to
                the first
night           a retrain that was killed in its test, with the lock of the job
nightly/train   a project of ``lightkit init --template cron``, with a root of its own: its crontab
                has run one night
==============  ====================================================================================
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import lightkit
from tests.contract.examples import MY_PROJECT, SMALL
from tests.contract.registry import SKILLED_JOB, fit_skilled, write_skilled
from tests.contract.workspace import ForkServer, Workspace, read_events, wait_until_gone

PLACE = Path("/srv/lightkit")
PROJECT = PLACE / "project"
PROGRAM = PLACE / "bin" / "lightkit"
MOST_BYTES = 500_000


def write_configs(workspace: Workspace) -> None:
    """Write the configs of all jobs and what they train on."""
    workspace.write("my_project.py", MY_PROJECT)
    workspace.write(
        "small.yaml", {**SMALL, "data": {**SMALL["data"], "init_args": {"note": "small.yaml"}}}
    )
    longer = {**SMALL, "trainer": {**SMALL["trainer"], "max_epochs": 3}}

    def sender(signum: int) -> dict[str, object]:
        arguments = {"hook": "on_train_batch_start", "step": 9, "signum": int(signum)}
        return {"sender": {"class_path": "my_project.SendSignal", "init_args": arguments}}

    workspace.write("killed.yaml", {**longer, "callbacks": sender(signal.SIGKILL)})
    workspace.write("preempted.yaml", {**longer, "callbacks": sender(signal.SIGTERM)})
    nan = {"class_path": "my_project.NaNInStep", "init_args": {"steps": [8]}}
    workspace.write("failed.yaml", {**longer, "model": nan})
    trainer = {name: value for name, value in longer["trainer"].items() if name != "logger"}
    loggers = {"mlflow": {"class_path": "MLflow"}, "tensorboard": {"class_path": "TensorBoard"}}
    workspace.write(
        "tracked.yaml",
        {**longer, "trainer": trainer, "logger": loggers, "callbacks": sender(signal.SIGKILL)},
    )

    rows = {"a": [x / 40 for x in range(40)], "b": [x % 7 / 7 for x in range(40)], "c": [1.0] * 40}
    rows["y"] = [2 * a + b for a, b in zip(rows["a"], rows["b"], strict=True)]
    (workspace.folder / "rows").mkdir()
    pq.write_table(pa.table(rows), workspace.folder / "rows" / "part-0.parquet")
    arguments = {
        "path": "rows",
        "features": ["a", "b", "c"],
        "label": "y",
        "target": "value",
        "num_workers": 0,
    }
    table = {"class_path": "Table", "init_args": {**arguments, "batch_size": 8}}
    workspace.write("table.yaml", {**SMALL, "data": table})

    gate = {"metric": "test/loss", "mode": "min", "max": 9.0, "max_drop": 5.0}
    workspace.write(
        "night.yaml",
        {**SMALL, "data": {**SMALL["data"], "init_args": {"note": "night.yaml"}}, "gate": gate},
    )
    write_skilled(workspace)
    workspace.write("net.yaml", SKILLED_JOB)


def make_runs(workspace: Workspace) -> None:
    """Run the commands; each ends as it should."""
    write_configs(workspace)

    workspace.run("fit", "-c", "small.yaml").ok()
    workspace.run("test", "--run", "small/latest").ok()
    workspace.run("report", "small/latest").ok()
    workspace.run("fit", "-c", "table.yaml").ok()

    # One file tells all these jobs that their signal was sent.
    for job, code in (("killed", -signal.SIGKILL), ("preempted", 75), ("tracked", -signal.SIGKILL)):
        (workspace.folder / "sent").unlink(missing_ok=True)
        assert workspace.run("fit", "-c", f"{job}.yaml").code == code, job
    assert workspace.run("fit", "-c", "failed.yaml").code == 1

    for skill in (70, 80, 90):
        fit_skilled(workspace, skill)
    for run in sorted(workspace.folder.glob("runs/net/2*"))[:2]:
        workspace.run("gate", str(run)).ok()
        workspace.run("promote", str(run), "--reason", "a promotion").ok()
    workspace.run("rollback", "net", "--reason", "it is worse").ok()

    killed = workspace.start("retrain", "-c", "night.yaml")

    def is_tested() -> bool:
        found = sorted(workspace.folder.glob("runs/night/2*"))
        return any(
            event["stage"] == "test" for event in (read_events(found[0], "stage") if found else [])
        )

    killed.wait_for(is_tested, timeout_s=300)
    killed.signal_group(signal.SIGKILL)
    killed.wait()
    wait_until_gone(killed.pid)

    nightly = workspace.folder / "nightly"
    nightly.mkdir()
    workspace.run("init", "--template", "cron", folder=nightly).ok()
    crontab = nightly / "crontab"
    (command,) = (
        line.split(maxsplit=5)[5]
        for line in crontab.read_text().splitlines()
        if line.startswith("15 2")
    )
    subprocess.run(["sh", "-c", command], check=True, env=workspace.environ())


def pack(archive: Path, foreign: Sequence[str]) -> None:
    """Pack the project.

    Args:
        archive: The file to write.
        foreign: Paths of this machine that no file may hold.
    """
    for cache in [*PROJECT.rglob("__pycache__")]:
        shutil.rmtree(cache)
    for file in PROJECT.rglob("*"):
        if file.is_file():
            found = [word for word in foreign if word.encode() in file.read_bytes()]
            assert not found, f"{file} holds {found}"
    with tarfile.open(archive, "w:xz", preset=9) as tar:
        tar.add(PROJECT, arcname=".", filter=_anonymous)
    assert archive.stat().st_size < MOST_BYTES, f"{archive} has {archive.stat().st_size} bytes"


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    return info


def make(archive: str, *foreign: str) -> None:
    """Make the runs and write the archive, on the host `night`."""
    print(f"made with {lightkit.__file__} on {os.uname().nodename}")
    server = ForkServer(PLACE)
    workspace = Workspace(PROJECT, server)
    try:
        make_runs(workspace)
    finally:
        workspace.close()
        server.stop()
    pack(Path(archive), foreign)


INSIDE = """\
hostname night
mount --bind "$1" /srv/lightkit/source
mount --bind "$2" /srv/lightkit/venv
exec env PATH=/srv/lightkit/bin:"$PATH" PYTHONPATH=/srv/lightkit/source \\
    /srv/lightkit/venv/bin/python "$3" --inside "$4" "$1" "$2"
"""


def main(source: str, archive: str) -> None:
    """Make the place, with another name and paths of its own for the source and the environment."""
    PROGRAM.parent.mkdir(parents=True)
    try:
        for name in ("source", "venv"):
            (PLACE / name).mkdir()
        PROGRAM.write_text(
            '#!/bin/sh\nexec /srv/lightkit/venv/bin/python -m lightkit "$@"\n', encoding="utf-8"
        )
        PROGRAM.chmod(0o755)
        words = [str(Path(word).absolute()) for word in (source, sys.prefix, __file__, archive)]
        subprocess.run(
            ["unshare", "--uts", "--mount", "sh", "-ec", INSIDE, "sh", *words], check=True
        )
    finally:
        shutil.rmtree(PLACE)


if __name__ == "__main__":
    if sys.argv[1] == "--inside":
        make(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
