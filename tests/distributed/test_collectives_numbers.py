"""Two ranks with batch b train and measure as one process with batch 2b does."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed.launching import case, needs_horovod
from tests.distributed.number_cases import CASES, FITS, SWEPT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), needs_horovod]
Results = list[dict[str, Any]]


def _one_process(folder: Path, *, is_swept: bool) -> Results:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = {name: run for name, run in CASES.items() if (name in SWEPT) == is_swept}
        return [{name: run(1, 0, folder / name) for name, run in cases.items()}]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return _one_process(tmp_path_factory.mktemp("alone"), is_swept=False)


@pytest.fixture(scope="module")
def swept_alone(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return _one_process(tmp_path_factory.mktemp("alone"), is_swept=True)


def named(*names: str) -> pytest.MarkDecorator:
    """Parametrize a test with cases, of which some are long."""
    marks = {name: [pytest.mark.long] if name in SWEPT else [] for name in names}
    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=marks[name]) for name in names]
    )


def found_in(name: str, request: pytest.FixtureRequest) -> tuple[dict[str, Any], Results]:
    """What one process and what two ranks found in a case."""
    prefix = "swept_" if name in SWEPT else ""
    (expected,) = case(request.getfixturevalue(f"{prefix}alone"), name)
    return expected, case(request.getfixturevalue(f"{prefix}ranks"), name)


@named(*FITS, "scaled")
def test_two_ranks_train_as_one_process_with_twice_the_batch(
    name: str, request: pytest.FixtureRequest
) -> None:
    expected, ranks = found_in(name, request)
    for found in ranks:
        torch.testing.assert_close(found["weights"], expected["weights"], atol=1e-6, rtol=0)
        assert found["norms"] == pytest.approx(expected["norms"], abs=1e-6)
        assert found["metrics"] == pytest.approx(expected["metrics"], rel=1e-6, abs=1e-6)
    moved = expected["weights"]["body.0.weight"] - expected["before"]["body.0.weight"]
    assert moved.abs().max() > 1e-3


@named("adamw", "step_lr", "one_cycle", "cosine", "everything", "unfreezing")
def test_schedules_give_the_same_rates(name: str, request: pytest.FixtureRequest) -> None:
    expected, ranks = found_in(name, request)
    assert ranks[1]["lrs"] == pytest.approx(expected["lrs"], rel=1e-12)


@pytest.mark.parametrize("name", ["adamw", "two_optimizers"])
def test_what_no_rank_uses_is_left_alone(name: str, ranks: Results) -> None:
    found = case(ranks, name)[0]
    assert torch.equal(found["weights"]["unused.weight"], found["before"]["unused.weight"])


def test_shares_of_unlike_size_are_weighed_by_their_samples(alone: Results, ranks: Results) -> None:
    (expected,), found = case(alone, "tested"), case(ranks, "tested")
    for rank in found:
        assert rank["metrics"] == pytest.approx(expected["metrics"], rel=1e-6)
    assert [rank["predictions"] for rank in found] == [14, 14]


def test_a_data_module_counts_each_of_27_images_once(alone: Results, ranks: Results) -> None:
    (expected,), found = case(alone, "counted"), case(ranks, "counted")
    assert {"val/loss", "val/accuracy", "val/own_epoch"} <= set(expected["metrics"])
    for rank in found:
        assert rank["metrics"] == pytest.approx(expected["metrics"], rel=1e-6)


def test_a_regressor_takes_its_scale_from_all_ranks(alone: Results, ranks: Results) -> None:
    (expected,), (first, second) = case(alone, "regressed"), case(ranks, "regressed")
    torch.testing.assert_close(first["weights"], second["weights"], atol=0, rtol=0)
    torch.testing.assert_close(first["weights"], expected["weights"], atol=1e-6, rtol=1e-6)
    assert expected["weights"]["input_std"][5] == 1  # constant
    assert expected["weights"]["input_std"][2] > 50
