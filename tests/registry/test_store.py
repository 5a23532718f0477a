from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import mlflow
import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INTERNAL_ERROR, RESOURCE_DOES_NOT_EXIST
from sqlalchemy.exc import OperationalError

from lightkit.errors import ConfigError, LightkitError, ServerAway
from lightkit.loggers.mlflow_address import find_address
from lightkit.registry.store import (
    Registry,
    check_alias,
    check_name,
    list_models,
    open_registry,
)

pytestmark = [
    # 2026-11: mlflow 3.17 leaves connections to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred:UserWarning"),
]


@pytest.mark.slow
def test_within_a_store_mlflow_speaks_to_its_address_and_not_after_it(database: str) -> None:
    shutil.copyfile("runs/mlflow.db", "runs/other.db")  # whose tables take a second to make
    before = mlflow.get_tracking_uri(), os.environ.get("MLFLOW_TRACKING_URI")
    other = database.replace("mlflow.db", "other.db")
    with open_registry(find_address(other)) as registry:
        assert mlflow.get_tracking_uri() == registry.client.tracking_uri == other
        assert registry.uri == other
    assert (mlflow.get_tracking_uri(), os.environ.get("MLFLOW_TRACKING_URI")) == before


@pytest.mark.slow
def test_what_mlflow_refuses_is_reported_in_its_words_and_without_secrets(database: str) -> None:
    says = (
        r"^MLflow at sqlite:///.* cannot find it: Invalid model name 'http://\*\*\*@host'\. Names"
        r" cannot .*'\.$"
    )
    with (
        open_registry(find_address(database)) as registry,
        pytest.raises(ConfigError, match=says),
        registry.attempt("find it"),
    ):
        registry.client.get_registered_model("http://me:sesame@host")


@pytest.mark.slow
@pytest.mark.parametrize("read_only", ["mlflow.db", "."], ids=["file", "folder"])
def test_a_database_that_can_only_be_read_is_refused_where_it_would_be_written(
    read_only: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Path("runs", read_only).resolve()
    has_access = os.access
    monkeypatch.setattr(  # root may write everything
        os, "access", lambda path, mode: Path(path) != place and has_access(path, mode)
    )
    address = find_address(database)
    says = rf"mlflow\.db cannot be written: this user may only read {place}\..* --tracking-uri"
    with pytest.raises(ConfigError, match=says), open_registry(address):
        pass
    with open_registry(address, creates=False, writes=False) as registry:
        assert list_models(registry) == {}


def of_storage(name: str) -> Exception:
    """Make an error as botocore has them, which need not be installed."""
    error: Exception = type(name, (Exception,), {"__module__": "botocore.exceptions"})("s3")
    return error


@pytest.mark.parametrize(
    ("uri", "error", "kind", "says"),
    [
        ("http://me:sesame@host", OSError("refused"), ServerAway,
         r"^MLflow at http://\*\*\*@host cannot open: refused\. .* start the server, or name "
         r"another with THAT\.$"),
        ("http://host", MlflowException("down", INTERNAL_ERROR), ServerAway, "down"),
        ("http://host", MlflowException("no such model", RESOURCE_DOES_NOT_EXIST), ConfigError,
         r"no such model\.$"),
        ("sqlite:///runs/mlflow.db", OperationalError("x", {}, Exception("is locked")), ServerAway,
         "try again"),
        ("sqlite:///runs/mlflow.db", MlflowException("no database", INTERNAL_ERROR), ConfigError,
         r"no database\. The address comes from here; name another with THAT\.$"),
        ("sqlite:///runs/mlflow.db",
         MlflowException("(OperationalError) database or disk is full", INTERNAL_ERROR),
         ServerAway, r"cannot open: .*disk is full.* The address comes from here; try again"),
        ("sqlite:///runs/mlflow.db", OSError(errno.ENOSPC, "No space left"), ServerAway,
         "No space left.*try again"),
        ("http://host", ModuleNotFoundError("No module named 'boto3'"), ConfigError,
         r"No module named 'boto3'\.$"),
        ("http://host", of_storage("NoCredentialsError"), ConfigError,
         r"^MLflow at http://host cannot open: s3\.$"),
        ("http://host", of_storage("EndpointConnectionError"), ServerAway,
         r"^MLflow at http://host cannot open: s3\."),
    ],
    ids=["away", "failing", "refusing", "locked", "no database", "full disk", "full disk of files",
         "no boto3",
         "no credentials", "storage away"],
)  # fmt: skip
def test_a_server_that_is_away_is_reported_from_a_wrong_name(
    uri: str, error: Exception, kind: type[LightkitError], says: str
) -> None:
    registry = Registry(find_address(uri, origin="here"), option="THAT")
    with pytest.raises(kind, match=says) as raised, registry.attempt("open"):
        raise error
    assert raised.value.exit_code == (75 if kind is ServerAway else 2)


@pytest.mark.parametrize(
    ("uri", "answer"),
    [
        ("databricks-uc", True),
        ("databricks-uc://work", True),
        ("databricks", False),
        ("sqlite:///x.db", False),
    ],
)
def test_unity_catalog_is_reported_from_other_registries(uri: str, answer: bool) -> None:
    registry = Registry(find_address("http://host"))
    registry.uri = uri
    assert registry.in_catalog is answer


@pytest.mark.parametrize("name", ["flowers", "my flowers", "main.vision.flowers", "Blüten-2"])
def test_a_name_that_mlflow_takes_comes_back(name: str) -> None:
    from mlflow.utils.validation import _validate_model_name

    _validate_model_name(name)  # type: ignore[no-untyped-call, unused-ignore]
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "a/b", "models:flowers", " flowers", "..", "f" * 300, "two\nlines"], ids=repr
)
def test_a_name_that_mlflow_refuses_is_reported_with_the_rule(name: str) -> None:
    with pytest.raises(
        ConfigError, match=r"^--name: .* is not a valid model name: expected 1 to 256 printable"
    ):
        check_name(name)


@pytest.mark.parametrize("name", ["flowers", "vision.flowers", "a..b", "a.b.c.d"])
def test_unity_catalog_asks_for_three_levels(name: str) -> None:
    with pytest.raises(ConfigError, match="three levels"):
        check_name(name, in_catalog=True)
    assert check_name("main.vision.flowers", in_catalog=True) == "main.vision.flowers"


@pytest.mark.parametrize("alias", ["challenger", "champion", "in-test_2", "value1"])
def test_an_alias_that_mlflow_takes_comes_back(alias: str) -> None:
    assert check_alias(alias) == alias


@pytest.mark.parametrize("alias", ["", "two words", "latest", "Latest", "v3", "a" * 256])
def test_an_alias_that_mlflow_refuses_is_reported_with_the_rule(alias: str) -> None:
    with pytest.raises(
        ConfigError, match=r"^--alias: .* is not a valid alias: expected 1 to 255 letters"
    ):
        check_alias(alias)
