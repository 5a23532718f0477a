"""Latency: the eager model is timed as the files are, with the threads that they get."""

from __future__ import annotations

import torch

from lightkit.export.latency import eager_latency
from lightkit.export.reference import Reference
from tests.export.planted import LineOfThree, samples_of, subject_of


class CountsThreads(LineOfThree):
    """It remembers with how many threads it was called, and for how many samples."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, int]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append((len(x), torch.get_num_threads()))
        return super().forward(x)


def test_both_batch_sizes_are_timed_after_a_warm_up_with_the_threads_asked_for() -> None:
    model, before = CountsThreads(), torch.get_num_threads()
    reference = Reference(subject_of(model), samples_of(LineOfThree()), in_graph=False)
    model.seen.clear()

    latency = eager_latency(reference, threads=before + 1)

    assert set(latency) == {1, 32}
    for size, figures in latency.items():
        assert 0 < figures["median_s"] <= figures["p95_s"]
        assert model.seen.count((size, before + 1)) - figures["repetitions"] in (1, 2)
    assert torch.get_num_threads() == before


class ClearsItsInput(LineOfThree):
    """It changes in place what it is given."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = super().forward(x)
        x.zero_()
        return logits


def test_what_is_timed_leaves_the_samples_as_they_are() -> None:
    samples = samples_of(LineOfThree())
    before = samples.inputs[0].clone()
    reference = Reference(subject_of(ClearsItsInput()), samples, in_graph=False)

    eager_latency(reference, threads=1)

    assert torch.equal(samples.inputs[0], before)
    for size in (1, 32):
        assert torch.equal(torch.from_numpy(reference.batches[size][0].inputs[0])[0], before[0])
