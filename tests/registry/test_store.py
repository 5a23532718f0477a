from __future__ import annotations

import os
import shutil

import mlflow
import pytest

from lightkit.errors import LightkitError
from lightkit.loggers.address import find_address
from lightkit.registry.store import is_catalog, open_store

pytestmark = [
    # 2026-11: mlflow 3.17 leaves connections to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred:UserWarning"),
]


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
        pytest.raises(LightkitError, match=says),
        store.busy("find it"),
    ):
        store.client.get_registered_model("http://me:sesame@host")


@pytest.mark.parametrize(
    ("uri", "answer"),
    [("databricks-uc", True), ("databricks-uc://work", True), ("databricks", False), ("sqlite:///x.db", False)],
)
def test_unity_catalog_is_told_from_other_registries(uri: str, answer: bool) -> None:
    assert is_catalog(uri) is answer
