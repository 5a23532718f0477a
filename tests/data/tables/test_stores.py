from __future__ import annotations

import pickle

import pytest

from lightkit.data.tables.stores import Store, is_remote, parquet_store
from lightkit.errors import ConfigError


@pytest.mark.parametrize(
    ("place", "remote"),
    [("data/table", False), ("/data", False), ("file:///data", False), ("FILE:///data", False), ("s3://b/t", True)],
)
def test_an_address_of_another_machine_is_told_from_a_path(place: str, remote: bool) -> None:
    assert is_remote(place) is remote


def test_the_options_of_deltalake_reach_pyarrow_too() -> None:
    options = {
        "AWS_ACCESS_KEY_ID": "key", "aws_secret_access_key": "very secret", "AWS_REGION": "eu-west-1",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ALLOW_HTTP": "true",
    }  # fmt: skip
    store, path = parquet_store("s3://bucket/a/table/", options)
    assert path == "bucket/a/table"
    assert dict(store.options) == {
        "access_key": "key", "secret_key": "very secret", "region": "eu-west-1", "scheme": "http",
        "endpoint_override": "127.0.0.1:9",
    }  # fmt: skip
    assert "secret" not in repr(store)
    assert pickle.loads(pickle.dumps(store)) == store
    assert not store.is_local


def test_the_options_of_pyarrow_are_passed_on() -> None:
    store, _ = parquet_store("s3://bucket", {"anonymous": True, "region": "us-east-1"})
    assert dict(store.options) == {"anonymous": True, "region": "us-east-1"}
    assert store.opened() is store.opened()


@pytest.mark.parametrize(
    ("place", "options", "says"),
    [
        ("ftp://host/table", {}, r"no file system is known for ftp:// .* file:// or one of s3://"),
        ("s3://bucket", {"regoin": "x"}, r"storage_options: regoin are not what pyarrow\.fs\.S3FileSystem takes"),
    ],
    ids=["scheme", "option"],
)
def test_what_no_file_system_takes_is_told(place: str, options: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parquet_store(place, options)


def test_a_folder_of_this_machine_needs_no_address() -> None:
    assert Store().is_local
    assert Store().opened().type_name == "local"
