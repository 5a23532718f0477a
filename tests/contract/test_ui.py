"""`lightkit ui`: TensorBoard and MLflow on a run, which end together."""

from __future__ import annotations

import re
import signal
import socket

import requests

from tests.contract.workspace import Workspace, session_members


def port_of(address: str) -> int:
    """The port of an address."""
    return int(address.rpartition(":")[2])


def is_taken(port: int) -> bool:
    """Whether a process listens there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_ui_shows_the_runs_and_ends_both_programs_together(finished: Workspace) -> None:
    (finished.folder / "runs" / "mlflow.db").touch()
    process = finished.start("ui", "latest", cold=True)
    process.wait_for(lambda: "Ctrl-C" in process.out)
    links = dict(re.findall(r"^(\w+) +(\S+)$", process.out, re.MULTILINE))
    run = finished.only_run
    assert links["TensorBoard"].startswith("http://127.0.0.1:")
    assert links["MLflow"].startswith("http://127.0.0.1:")
    assert links["report"] == (run / "report.html").as_uri()
    logs = requests.get(f"{links['TensorBoard']}/data/environment", timeout=30).json()[
        "data_location"
    ]
    assert run.name in logs
    assert requests.get(f"{links['MLflow']}/health", timeout=30).text == "OK"
    assert len(session_members(process.pid)) >= 1
    process.signal_group(signal.SIGINT)  # as a terminal does
    process.result(timeout_s=60).ok()
    assert not [
        port for port in map(port_of, (links["TensorBoard"], links["MLflow"])) if is_taken(port)
    ]


def test_ui_ends_with_0_on_sigterm_and_says_where_no_database_is(finished: Workspace) -> None:
    process = finished.start("ui", cold=True)
    process.wait_for(lambda: "Ctrl-C" in process.out)
    assert "no mlflow.db in the run root" in process.out
    link = re.search(r"TensorBoard +(\S+)", process.out)
    assert link
    process.signal(signal.SIGTERM)
    process.result(timeout_s=60).ok()
    assert not is_taken(port_of(link[1]))


def test_ui_without_runs_is_an_error(workspace: Workspace) -> None:
    result = workspace.run("ui")
    assert result.code == 2
    assert "Traceback" not in result.err


def test_a_program_of_ui_that_ends_by_itself_ends_it_with_its_last_lines(
    finished: Workspace,
) -> None:
    broken = finished.folder / "broken" / "tensorboard"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("")
    (broken / "main.py").write_text("raise SystemExit('no free memory')\n")
    result = finished.run_cold("ui", environ={"PYTHONPATH": str(broken.parent)})
    assert result.code == 1
    assert "TensorBoard ended with 1. Its last lines:\nno free memory" in result.err
    assert "Traceback" not in result.err
