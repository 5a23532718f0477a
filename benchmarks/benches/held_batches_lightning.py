"""The same nets and batches for Lightning: what a plain LightningCLI and lightkit train alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytorch_lightning import LightningDataModule, LightningModule

from benches.held_batches import Batch, Batches, NetName, build_net, build_optimizer, compute_loss

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class HeldModule(LightningModule):
    """A net that is trained on batches in memory, and logs its loss.

    For the bar too where there is one.

    Args:
        name: Of the net.
        seed: Of its weights.
    """

    def __init__(self, name: NetName = "two_layer", seed: int = 0) -> None:
        super().__init__()
        self.net = build_net(name, seed)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the loss."""
        loss = compute_loss(self.net, batch)
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer of all contestants."""
        return build_optimizer(self.net)


class HeldData(LightningDataModule):
    """Batches in memory, as many as the bench wants.

    Args:
        name: Of the net that takes them.
        batch_size: Samples of a batch.
        image_size: Side of the images in pixels.
        seed: Of the numbers in them.
    """

    def __init__(
        self,
        name: NetName = "two_layer",
        batch_size: int = 32,
        image_size: int = 224,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.batches = Batches(name, batch_size, image_size, seed)

    def train_dataloader(self) -> Batches:
        """Return the batches."""
        return self.batches
