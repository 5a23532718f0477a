"""One order of samples on all ranks, where a sampler of one's own draws it."""

from __future__ import annotations

from typing import Any

from lightning_fabric.utilities.distributed import DistributedSamplerWrapper
from pytorch_lightning import Trainer
from pytorch_lightning.overrides.distributed import UnrepeatedDistributedSamplerWrapper
from torch.utils.data import DistributedSampler

from lightkit.data.sampler import SampleKey, global_seed, sample_randomness

_WRAPPERS = (DistributedSamplerWrapper, UnrepeatedDistributedSamplerWrapper)


class SharedOrder:
    """Draw a sampler's order from the seed and the epoch alone, as Lightning's own sampler does.

    It stands in the place of the ``dataset`` of the sampler with which Lightning cuts one of the
    user's own. Lightning (2.6) has each rank draw such an order from its random state, and take
    every so many-th sample of it. As soon as one rank has drawn more random numbers than another,
    as for an augmentation in the process itself or in ``prepare_data``, the orders differ: samples
    are trained on or scored twice, and others never.

    Args:
        sampler: Lightning's, of one rank.
    """

    def __init__(self, sampler: DistributedSampler[Any]) -> None:
        self._cut = sampler
        self._order: Any = sampler.dataset

    @property
    def _sampler(self) -> Any:
        """The user's sampler, to which Lightning passes the epoch on under this name."""
        return self._order._sampler

    def reset(self) -> None:
        """Draw the order of the sampler's epoch, and leave the random states as they were."""
        with sample_randomness(global_seed(), SampleKey(-1, self._cut.epoch)):
            self._order.reset()

    def __getitem__(self, place: int) -> Any:
        return self._order[place]

    def __len__(self) -> int:
        return len(self._order)


def share_orders(trainer: Trainer) -> None:
    """Have all ranks draw one order from samplers of one's own, of every stage.

    Args:
        trainer: Before it asks for loaders.
    """
    process = trainer.strategy.process_dataloader

    def process_shared(dataloader: object) -> object:
        sampler = getattr(dataloader, "sampler", None)
        of_batches = getattr(getattr(dataloader, "batch_sampler", None), "sampler", None)
        for cut in (sampler, of_batches):
            if isinstance(cut, _WRAPPERS) and not isinstance(cut.dataset, SharedOrder):
                order: Any = SharedOrder(cut)  # for mypy: not a Dataset of torch's
                cut.dataset = order
        return process(dataloader)

    trainer.strategy.process_dataloader = process_shared  # type: ignore[method-assign]
