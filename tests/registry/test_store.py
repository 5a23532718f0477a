from __future__ import annotations

import errno
import os
import shutil
from typing import Any

import mlflow
import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INTERNAL_ERROR, RESOURCE_DOES_NOT_EXIST
from sqlalchemy.exc import OperationalError

from lightkit.errors import ConfigError, LightkitError, ServerAway
from lightkit.loggers.mlflow_address import find_address
from lightkit.registry import store
from lightkit.registry.store import is_catalog, open_store, telling

pytestmark = [
    # 2026-11: mlflow 3.17 leaves connections to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred:UserWarning"),
]


def _half_made() -> OperationalError:
    return OperationalError("CREATE", {}, Exception("table trace_metrics already exists"))


class Database:
    """A connection to a database whose tables another process is making.

    Args:
        failures: What it says first.
    """

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)

    def search_experiments(self, max_results: int) -> list[str]:
        """Answer once the tables are there."""
        if self.failures:
            raise self.failures.pop(0)
        return ["Default"][:max_results]


def test_a_database_that_another_process_makes_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_PAUSE_S", 0.0)
    client: Any = Database(_half_made(), _half_made())
    assert store._answering(lambda: client) is client
    locked: Any = Database(OperationalError("x", {}, Exception("is locked")))
    with pytest.raises(OperationalError, match="is locked"):
        store._answering(lambda: locked)
    monkeypatch.setattr(store, "_MAKING_S", -1.0)
    for_ever: Any = Database(_half_made())
    with pytest.raises(OperationalError, match="already exists"):
        store._answering(lambda: for_ever)


@pytest.mark.slow
def test_within_a_store_mlflow_speaks_to_its_address_and_not_after_it(database: str) -> None:
    shutil.copyfile("runs/mlflow.db", "runs/other.db")  # whose tables take a second to make
    before, variables = mlflow.get_tracking_uri(), dict(os.environ)
    other = database.replace("mlflow.db", "other.db")
    with open_store(find_address(other)) as store:
        assert mlflow.get_tracking_uri() == store.client.tracking_uri == other
        assert store.registry_uri == other
    assert mlflow.get_tracking_uri() == before
    assert dict(os.environ) == variables


@pytest.mark.slow
def test_what_mlflow_refuses_is_told_in_its_words_and_without_secrets(database: str) -> None:
    says = r"^MLflow at sqlite:///.* cannot find it: Invalid model name 'http://\*\*\*@host'\. Names cannot .*'\.$"
    with (
        open_store(find_address(database)) as store,
        pytest.raises(ConfigError, match=says),
        store.busy("find it"),
    ):
        store.client.get_registered_model("http://me:sesame@host")


@pytest.mark.parametrize(
    ("uri", "error", "kind", "says"),
    [
        ("http://me:sesame@host", OSError("refused"), ServerAway,
         r"^MLflow at http://\*\*\*@host cannot open: refused\. .* start the server, or name another with THAT\.$"),
        ("http://host", MlflowException("down", INTERNAL_ERROR), ServerAway, "down"),
        ("http://host", MlflowException("no such model", RESOURCE_DOES_NOT_EXIST), ConfigError, r"no such model\.$"),
        ("sqlite:///runs/mlflow.db", OperationalError("x", {}, Exception("is locked")), ServerAway, "try again"),
        ("sqlite:///runs/mlflow.db", MlflowException("no database", INTERNAL_ERROR), ConfigError,
         r"no database\. Its place comes from here; name another with THAT\.$"),
        ("sqlite:///runs/mlflow.db", MlflowException("(OperationalError) database or disk is full", INTERNAL_ERROR),
         ServerAway, r"cannot open: the disk is full\. Free space, and try again; its place comes from here\.$"),
        ("sqlite:///runs/mlflow.db", OSError(errno.ENOSPC, "No space left"), ServerAway, "the disk is full"),
    ],
    ids=["away", "failing", "refusing", "locked", "no database", "full disk", "full disk of files"],
)  # fmt: skip
def test_a_server_that_is_away_is_told_from_a_wrong_name(
    uri: str, error: Exception, kind: type[LightkitError], says: str
) -> None:
    with pytest.raises(kind, match=says) as raised, telling(find_address(uri, origin="here"), "open", naming="THAT"):
        raise error
    assert raised.value.exit_code == (75 if kind is ServerAway else 2)


@pytest.mark.parametrize(
    ("uri", "answer"),
    [("databricks-uc", True), ("databricks-uc://work", True), ("databricks", False), ("sqlite:///x.db", False)],
)
def test_unity_catalog_is_told_from_other_registries(uri: str, answer: bool) -> None:
    assert is_catalog(uri) is answer
