"""Ranks under Horovod stay one training: the traps of Horovod, each with real processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.distributed.launching import case, needs_horovod

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), needs_horovod]
Results = list[dict[str, Any]]


def test_collectives_take_every_shape_and_dtype_inside_inference_mode(ranks: Results) -> None:
    for found in case(ranks, "collectives"):
        gathered = found["gathered"]
        assert [part.tolist() for part in gathered["float"]] == [[0, 1], [0, 1, 2]]
        assert [part.dtype for part in gathered["bfloat16"]] == [torch.bfloat16] * 2
        assert [tuple(part.shape) for part in gathered["bfloat16"]] == [(2, 1), (2, 2)]
        assert [part.tolist() for part in gathered["bool"]] == [[True, True], [True, False]]
        assert [part.tolist() for part in gathered["empty"]] == [[], [1, 1, 1]]
        assert [part.tolist() for part in gathered["scalar"]] == [0, 1]
        assert found["stacked"].tolist() == [[0, 0], [1, 1]]
        assert found["flags"].tolist() == [[True, True], [True, False]]


def test_reductions_lose_no_half(ranks: Results) -> None:
    for found in case(ranks, "collectives"):
        assert {op: int(value) for op, value in found["reduced"].items()} == {
            "sum": 3,
            "max": 2,
            "min": 1,
            "product": 2,
        }
        assert [float(value) for value in found["means"].values()] == [1.5, 1.5, 1.5]
        assert int(found["narrow"]) == 1
        assert found["torch_op"]


def test_ranks_agree_and_broadcast_objects_of_unlike_types(ranks: Results) -> None:
    for found in case(ranks, "collectives"):
        assert (found["broadcast"], found["broadcast_from_1"]) == ("version_0", {"rank": 1})
        assert (found["all"], found["any"]) == (False, True)


def test_both_places_know_that_only_rank_0_is_rank_0(ranks: Results) -> None:
    assert [found["is_zero"] for found in case(ranks, "collectives")] == [(0, 0), (1, 1)]


def test_a_parameter_that_only_one_rank_uses_moves_on_both(ranks: Results) -> None:
    first, second = case(ranks, "used_on_one_rank")
    torch.testing.assert_close(first["weights"], second["weights"], atol=0, rtol=0)
    assert not torch.allclose(
        first["weights"]["second.weight"], first["before"]["second.weight"], atol=1e-3
    )
    assert torch.equal(first["weights"]["unused.weight"], first["before"]["unused.weight"])


def test_accumulation_sends_nothing_until_its_last_batch(ranks: Results) -> None:
    for found in case(ranks, "accumulation"):
        assert found["sent"] == {1: 8 * 6, 4: 2 * 6}  # six tensors a step


def test_buffers_are_those_of_rank_0_unless_reported_otherwise(ranks: Results) -> None:
    first, second = (found["buffers"] for found in case(ranks, "buffers"))
    assert all(
        torch.equal(mine, other) for mine, other in zip(first[True], second[True], strict=True)
    )
    assert not torch.allclose(first[False][0], second[False][0])
    assert second[False][1].tolist() == [0, 0]  # the initial state is rank 0's in any case
    assert (second[False][2].tolist(), second[False][3].tolist()) == (True, [[0, 0]] * 3)


def test_metrics_are_those_of_all_ranks_wherever_they_stand(ranks: Results) -> None:
    for rank, found in enumerate(case(ranks, "metrics")):
        own = 4.0 * (rank + 1)  # four batches
        everywhere = {"part": 12.0, "listed": 12.0, "callback": 12.0}
        assert found["totals"] == {**everywhere, "own": own, "after": rank + 1.0}
        assert found["undone"]


def test_an_uneven_evaluation_counts_every_sample(ranks: Results) -> None:
    for found in case(ranks, "uneven_evaluation"):
        assert found["found"] == pytest.approx(found["expected"], rel=1e-6)


def test_unlike_numbers_of_batches_are_an_error_on_all_ranks(ranks: Results) -> None:
    for found in case(ranks, "uneven_lengths"):
        for stage, lengths in (("training", "[5, 3]"), ("evaluation", "[2, 0]")):
            assert found[stage]["error"] == "DataError", found[stage]["says"]
            assert (
                f"the ranks have {lengths} batches, and Horovod needs equally many"
                in found[stage]["says"]
            )


def test_all_ranks_stop_early_when_one_wants_to(ranks: Results) -> None:
    assert [(found["epoch"], found["step"]) for found in case(ranks, "early_stopping")] == [
        (2, 8)
    ] * 2


def test_only_rank_0_writes_checkpoints_and_logs(ranks: Results) -> None:
    first, second = case(ranks, "files")
    assert first["saved"] == 4  # the newest and last.ckpt, after each of two epochs
    assert {name.rpartition("/")[2] for name in first["written"]} == {
        "epoch=1-step=8.ckpt",
        "last.ckpt",
        "metrics.csv",
    }
    assert (second["saved"], second["written"]) == (0, [])
    assert first["best"] == second["best"]


@pytest.mark.parametrize("schedule", ["step", "cycle"])
def test_two_and_two_epochs_are_four(schedule: str, ranks: Results) -> None:
    for found in case(ranks, "resume"):
        result = found["found"][schedule]
        torch.testing.assert_close(result["resumed"], result["straight"], atol=0, rtol=0)
        assert result["rates"][0] == result["rates"][1]


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "16-mixed"])
def test_ranks_agree_in_every_precision(precision: str, ranks: Results) -> None:
    first, second = (found["found"][precision] for found in case(ranks, "precisions"))
    torch.testing.assert_close(first["weights"], second["weights"], atol=0, rtol=0)
    assert first["loss"] == second["loss"] == pytest.approx(0.864, abs=0.01)  # float32: 0.86465


def test_what_overflows_on_one_rank_is_skipped_on_both(ranks: Results) -> None:
    first, second = case(ranks, "loss_scaling")
    torch.testing.assert_close(first["weights"], second["weights"], atol=0, rtol=0)
    assert first["weights"]["head.bias"].isfinite().all()
    assert (first["scale"], second["scale"]) == (512, 512)


def test_compression_sends_half_and_stays_close(ranks: Results) -> None:
    first, second = case(ranks, "compression")
    assert first["sent"] == {torch.float16}
    torch.testing.assert_close(first["weights"], second["weights"], atol=0, rtol=0)
    torch.testing.assert_close(first["weights"], first["plain"], atol=1e-3, rtol=0)
    assert not torch.equal(first["weights"]["head.weight"], first["plain"]["head.weight"])


def test_compression_divides_before_it_adds(ranks: Results) -> None:
    assert case(ranks, "compression")[0]["steep"].isfinite().all()


def test_shares_of_the_data_are_disjoint_and_shuffled_alike(ranks: Results) -> None:
    first, second = (found["seen"] for found in case(ranks, "shards"))
    for mine, other in zip(first, second, strict=True):
        assert sorted([*mine, *other]) == list(range(64))
    assert first[0] != first[1]


@pytest.mark.parametrize(
    ("what", "error", "says"),
    [
        ("lbfgs", "ConfigError", "LBFGS decides"),
        ("sparse", "ConfigError", "words has sparse gradients"),
        ("sync_batchnorm", "ConfigError", "trainer.sync_batchnorm does not work"),
        ("torch_sync", "ConfigError", "norm: torch.nn"),
        ("horovod_sync", "ConfigError", "SyncBatchNorm does not work with this Horovod"),
        ("lazy", "LightkitError", "late.weight, late.bias"),
        ("unlike", "LightkitError", "more.bias (2,) torch.float32; more.bias (3,) torch.float32"),
        ("stranger", "LightkitError", "not part of the LightningModule"),
        (
            "plain_backward",
            "LightkitError",
            "SGD is about to use a gradient of body.0.weight that was not averaged",
        ),
        (
            "plain_after_manual",
            "LightkitError",
            "self.manual_backward(loss) instead of loss.backward()",
        ),
        ("plain_thrown_away", "", ""),
        ("devices", "ConfigError", "Set trainer.devices: 1"),
        ("seeds", "ConfigError", "the ranks have the seeds 0, 1"),
        ("works_again", "", ""),
    ],
)
def test_what_cannot_work_is_refused_by_all_ranks(
    what: str, error: str, says: str, ranks: Results
) -> None:
    for found in case(ranks, "refusals"):
        assert found[what]["error"] == error, found[what]["says"]
        assert says in found[what]["says"]
