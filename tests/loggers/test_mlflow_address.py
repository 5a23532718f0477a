from __future__ import annotations

from pathlib import Path

import pytest

from lightkit import runs
from lightkit.errors import ConfigError
from lightkit.loggers import MLflow
from lightkit.loggers.mlflow_address import find_address


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)


def test_the_default_is_a_database_in_the_run_root(run: runs.Run) -> None:
    address = find_address(None)
    assert address.uri == f"sqlite:///{run.root}/mlflow.db"
    assert address.artifacts == run.root / "mlflow-artifacts"


def test_outside_a_run_the_database_is_in_the_working_directory(tmp_path: Path) -> None:
    assert find_address(None).uri == f"sqlite:///{tmp_path}/mlflow.db"


def test_the_argument_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracker:5000")
    assert find_address(None).uri == "http://tracker:5000"
    assert find_address(None).artifacts is None
    assert find_address("sqlite:////data/x.db").uri == "sqlite:////data/x.db"
    assert find_address("sqlite:////data/x.db").artifacts == Path("/data/mlflow-artifacts")


@pytest.mark.parametrize(
    "uri", ["mlruns", "./mlruns", "/data/mlruns", "file:./mlruns", "file:///data", r"C:\runs"]
)
def test_a_folder_is_refused_when_the_logger_is_made(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        ConfigError,
        match=r"^tracking_uri of the logger MLflow is .*, a folder\. MLflow 3.13 and later",
    ):
        MLflow(uri)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(ConfigError, match=r"^the environment variable MLFLOW_TRACKING_URI is "):
        MLflow()


@pytest.mark.parametrize("uri", ["databricks", "databricks://work"])
def test_databricks_is_no_folder(uri: str) -> None:
    assert find_address(uri).uri == uri
    assert find_address(uri).artifacts is None


def test_who_names_the_address_is_reported() -> None:
    assert find_address("http://tracker", origin="--tracking-uri").origin == "--tracking-uri"
    with pytest.raises(ConfigError, match=r"^--tracking-uri is 'mlruns', a folder"):
        find_address("mlruns", origin="--tracking-uri")
