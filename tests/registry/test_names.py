from __future__ import annotations

import pytest

from lightkit.errors import ConfigError
from lightkit.registry.store import check_alias, check_name


@pytest.mark.parametrize("name", ["flowers", "my flowers", "main.vision.flowers", "Blüten-2"])
def test_a_name_that_mlflow_takes_comes_back(name: str) -> None:
    from mlflow.utils.validation import _validate_model_name

    _validate_model_name(name)  # type: ignore[no-untyped-call, unused-ignore]
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", "a/b", "models:flowers", " flowers", "..", "f" * 300, "two\nlines"], ids=repr)
def test_a_name_that_mlflow_refuses_is_told_with_the_rule(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^--name: .* is no model's name: expected 1 to 256 printable"):
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
def test_an_alias_that_mlflow_refuses_is_told_with_the_rule(alias: str) -> None:
    with pytest.raises(ConfigError, match=r"^--alias: .* is no alias: expected 1 to 255 letters"):
        check_alias(alias)
