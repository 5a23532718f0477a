"""The same nets and batches for Lightning: what a plain LightningCLI and lightkit train alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytorch_lightning import LightningDataModule, LightningModule

from benches.stepping import Batch, Batches, NetName, loss_of, net_of, optimizer_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["HeldBatches", "Stepped"]


class Stepped(LightningModule):
    """A net that is trained on batches in memory, and logs its loss, for the bar too where there is one.

    Args:
        name: Of the net.
        seed: Of its weights.
    """

    def __init__(self, name: NetName = "two_layer", seed: int = 0) -> None:
        super().__init__()
        self.net = net_of(name, seed)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Give the loss."""
        loss = loss_of(self.net, batch)
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Give the optimizer of all contestants."""
        return optimizer_of(self.net)


class HeldBatches(LightningDataModule):
    """Batches in memory, as many as the bench wants.

    Args:
        name: Of the net that takes them.
        batch_size: Samples of a batch.
        image_size: Side of the images in pixels.
        seed: Of the numbers in them.
    """

    def __init__(self, name: NetName = "two_layer", batch_size: int = 32, image_size: int = 224, seed: int = 0) -> None:
        super().__init__()
        self.batches = Batches(name, batch_size, image_size, seed)

    def train_dataloader(self) -> Batches:
        """Give the batches."""
        return self.batches
