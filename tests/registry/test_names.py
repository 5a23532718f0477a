from __future__ import annotations

import pytest

from lightkit.errors import ConfigError
from lightkit.registry.store import check_alias, check_name


@pytest.mark.parametrize("name", ["flowers", "my flowers", "main.vision.flowers", "Blüten-2"])
def test_a_name_that_mlflow_takes_comes_back(name: str) -> None:
    from mlflow.utils.validation import _validate_model_name

    _validate_model_name(name)  # type: ignore[no-untyped-call, unused-ignore]
    assert check_name(name) == name


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "is empty"),
        ("a/b", "has a slash"),
        ("models:flowers", "a colon"),
        (" flowers", "space around it"),
        ("..", "is a dot"),
        ("f" * 300, "has 300 characters"),
        ("two\nlines", "control character"),
    ],
    ids=["empty", "slash", "colon", "space", "dots", "long", "line break"],
)
def test_a_name_that_mlflow_refuses_is_told_with_its_rule(name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s)^--name: .*{says}.*--name flowers"):
        check_name(name)


@pytest.mark.parametrize("name", ["flowers", "vision.flowers", "a..b", "a.b.c.d"])
def test_unity_catalog_asks_for_three_levels(name: str) -> None:
    with pytest.raises(ConfigError, match="three levels"):
        check_name(name, in_catalog=True)
    assert check_name("main.vision.flowers", in_catalog=True) == "main.vision.flowers"


@pytest.mark.parametrize("alias", ["challenger", "champion", "in-test_2", "value1"])
def test_an_alias_that_mlflow_takes_comes_back(alias: str) -> None:
    assert check_alias(alias) == alias


@pytest.mark.parametrize(
    ("alias", "says"),
    [
        ("", "is empty"),
        ("two words", "more than letters"),
        ("latest", "reserved by MLflow"),
        ("Latest", "reserved by MLflow"),
        ("v3", "reserved by MLflow"),
        ("a" * 256, "has 256 characters"),
    ],
    ids=["empty", "space", "latest", "capital", "version", "long"],
)
def test_an_alias_that_mlflow_refuses_is_told_with_its_rule(alias: str, says: str) -> None:
    with pytest.raises(ConfigError, match=f"^--alias: .*{says}.*--alias challenger"):
        check_alias(alias)
