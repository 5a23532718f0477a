"""Two ranks with batch b train and measure as one process with batch 2b does."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from tests.distributed import number_cases
from tests.distributed.launching import case, needs_horovod

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), needs_horovod]
Results = list[dict[str, Any]]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("alone")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [{name: run(1, 0, folder / name) for name, run in number_cases.CASES.items()}]


@pytest.mark.parametrize("name", [*number_cases.FITS, "scaled"])
def test_two_ranks_train_as_one_process_with_twice_the_batch(name: str, alone: Results, ranks: Results) -> None:
    (expected,) = case(alone, name)
    for found in case(ranks, name):
        torch.testing.assert_close(found["weights"], expected["weights"], atol=1e-6, rtol=0)
        assert found["norms"] == pytest.approx(expected["norms"], abs=1e-6)
        assert found["metrics"] == pytest.approx(expected["metrics"], rel=1e-6, abs=1e-6)
    moved = expected["weights"]["body.0.weight"] - expected["before"]["body.0.weight"]
    assert moved.abs().max() > 1e-3


@pytest.mark.parametrize("name", ["adamw", "step_lr", "one_cycle", "cosine", "everything", "unfreezing"])
def test_schedules_give_the_same_rates(name: str, alone: Results, ranks: Results) -> None:
    assert case(ranks, name)[1]["lrs"] == pytest.approx(case(alone, name)[0]["lrs"], rel=1e-12)


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
