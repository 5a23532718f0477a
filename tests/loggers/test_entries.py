from __future__ import annotations

import dataclasses
from argparse import Namespace
from typing import Any

import pytest

from lightkit.errors import Interrupted
from lightkit.loggers.entries import as_key, as_run_status, flatten, sort_params, tags_of


@dataclasses.dataclass
class Crop:
    size: int
    ratio: float


@pytest.mark.parametrize(
    ("nested", "flat"),
    [
        ({"a": {"b": {"c": 1}}, "d": 2}, {"a.b.c": 1, "d": 2}),
        ({"a": [1, 2]}, {"a": [1, 2]}),
        ({"a": [{"b": 1}, 2]}, {"a.0.b": 1, "a.1": 2}),
        (Namespace(a=Namespace(b=1)), {"a.b": 1}),
        ({"crop": Crop(224, 0.5), "kind": Crop}, {"crop.size": 224, "crop.ratio": 0.5, "kind": Crop}),
        ({"empty": {}, "none": None}, {"empty": {}, "none": None}),
        ({}, {}),
    ],
    ids=["mappings", "list", "list of mappings", "namespaces", "dataclass", "empty inside", "empty"],
)
def test_nested_names_are_joined_by_dots(nested: Any, flat: dict[str, Any]) -> None:
    assert flatten(nested) == flat


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("val/accuracy", "val/accuracy"),
        ("optimizer.init_args.lr", "optimizer.init_args.lr"),
        ("acc@1 (top)", "acc_1 _top_"),
        ("größe", "gr__e"),
        ("/val//loss/", "val/loss"),
        ("../../etc", "etc"),
        ("..", "_"),
        ("x" * 300, "x" * 250),
    ],
)
def test_names_become_such_as_mlflow_takes(name: str, key: str) -> None:
    validation = pytest.importorskip("mlflow.utils.validation")
    assert as_key(name) == key
    validation._validate_metric_name(as_key(name))
    validation._validate_param_name(as_key(name))


def test_a_parameter_is_new_known_or_changed(caplog: pytest.LogCaptureFixture) -> None:
    known = {"lr": "0.1", "depth": "3"}
    new, changed = sort_params({"lr": 0.1, "depth": 4, "width": 8, "text": "x" * 6001}, known=known)
    assert new == {"width": "8", "text": "x" * 6000}
    assert changed == {"changed.depth": "4"}
    assert known == {"lr": "0.1", "depth": "3", **new}
    assert "MLflow keeps 6000 of the 6001 characters of the parameter text" in caplog.text


@pytest.mark.parametrize("manifest", [{}, {"git": None, "data": None}, {"git": {"commit": None}, "data": {}}])
def test_a_manifest_without_git_and_data_gives_no_tags(manifest: dict[str, Any]) -> None:
    assert tags_of(manifest) == {}


@pytest.mark.parametrize(
    ("error", "status"),
    [(KeyboardInterrupt(), "KILLED"), (Interrupted(15), "KILLED"), (SystemExit(1), "KILLED"), (OSError(), "FAILED")],
    ids=["ctrl-c", "signal", "exit", "crash"],
)
def test_a_failed_run_was_stopped_or_crashed(error: BaseException, status: str) -> None:
    try:
        raise error  # noqa: TRY301 - the handler is what is tested
    except BaseException:  # noqa: BLE001 - as Lightning does
        assert as_run_status("failed") == status
        assert as_run_status("success") == "FINISHED"
