"""Code 75: each cause that ends by itself, and the end of it.

Also the like that would come again, which is 2.
"""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from filelock import FileLock

from tests.contract import mlflow_process
from tests.contract.examples import SMALL
from tests.contract.workspace import Workspace

pytestmark = pytest.mark.timeout(900)  # on a busy machine


def run_of(workspace: Workspace) -> Path:
    return workspace.runs[0]


@pytest.mark.parametrize(
    ("words", "lock_of"),
    [
        (("export", "--run", "latest", "--format=safetensors", "--output=out"), "out/.export.lock"),
        (("promote", "latest", "--name=net", "--force"), "RUN/.promote.lock"),
    ],
    ids=["export", "promote"],
)
def test_a_lock_of_another_process_is_75_and_the_same_command_works_after_it(
    words: tuple[str, ...], lock_of: str, finished: Workspace
) -> None:
    path = finished.folder / lock_of.replace("RUN", str(run_of(finished)))
    path.parent.mkdir(exist_ok=True)
    with FileLock(path):
        refused = finished.run(*words)
        assert refused.code == 75, refused.err
        assert "Traceback" not in refused.err
    assert finished.run(*words).code != 75


def test_a_server_that_is_away_is_75_until_it_answers(workspace: Workspace) -> None:
    words = ("history", "net")
    with mlflow_process.started(
        workspace.folder, "server", "--workers", "1", healthy="/health"
    ) as address:
        at = f"--tracking-uri={address}"
        assert workspace.run(*words, at).code == 2, "it answers that there is no such model"
    away = workspace.run(*words, at)
    assert away.code == 75, away.err


def write_job(workspace: Workspace, uri: str) -> None:
    trainer = {**SMALL["trainer"], "max_epochs": 1}
    del trainer["logger"]
    logger = {"mlflow": {"class_path": "MLflow", "init_args": {"tracking_uri": uri}}}
    workspace.write("job.yaml", {**SMALL, "trainer": trainer, "logger": logger})


@contextmanager
def answering(status: int) -> Iterator[str]:
    """Serve one status to every request."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize("command", ["fit", "history"])
@pytest.mark.parametrize(
    ("status", "code"), [(503, 75), (429, 75), (401, 2), (403, 2), (404, 2)], ids=str
)
def test_a_server_that_fails_is_75_and_one_that_refuses_is_2(
    command: str, status: int, code: int, workspace: Workspace
) -> None:
    with answering(status) as address:
        write_job(workspace, address)
        words = (
            ("fit", "-c", "job.yaml")
            if command == "fit"
            else ("history", "net", f"--tracking-uri={address}")
        )
        result = workspace.run(*words)
    assert result.code == code, result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize("command", ["fit", "history"])
@pytest.mark.parametrize(
    "uri", ["http://", "http://host:port", "mysterysql://host/db"], ids=["none", "port", "kind"]
)
def test_an_address_that_can_never_answer_is_2(
    command: str, uri: str, workspace: Workspace
) -> None:
    write_job(workspace, uri)
    words = (
        ("fit", "-c", "job.yaml")
        if command == "fit"
        else ("history", "net", f"--tracking-uri={uri}")
    )
    result = workspace.run(*words)
    assert result.code == 2, result.err
    assert "Traceback" not in result.err


def test_a_local_database_that_is_none_is_2_for_a_fit(workspace: Workspace) -> None:
    workspace.write(
        "runs/mlflow.db", "no database, but a text that is long enough to be taken for one\n" * 20
    )
    write_job(workspace, f"sqlite:///{workspace.folder}/runs/mlflow.db")
    result = workspace.run("fit", "-c", "job.yaml")
    assert result.code == 2, result.err
    assert "Traceback" not in result.err


def test_a_time_of_day_that_is_too_near_is_75_since_a_later_start_has_a_day(
    workspace: Workspace,
) -> None:
    in_23_hours = f"{datetime.now() - timedelta(hours=1):%H:%M}"
    words = ("retrain", "-c", "small.yaml", f"--deadline={in_23_hours}", "--reserve=23h30m")
    result = workspace.run(*words)
    assert result.code == 75, result.err
    assert not workspace.runs
