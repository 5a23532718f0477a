"""Small models and data for ranks that train together.

Also how each is trained in one process or in several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from torch import Tensor
from torch.nn import functional
from torch.optim import Optimizer
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torchmetrics import CosineSimilarity
from torchmetrics.classification import MulticlassAccuracy

from lightkit.distributed import HorovodStrategy

NUM_SAMPLES = 64
SHARE = 8  # samples a batch, of each of two ranks
QUIET: dict[str, Any] = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
}
Optimizers = Callable[[Iterable[Any]], Any]


def samples(num: int = NUM_SAMPLES, *, seed: int = 3) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num, 6, generator=generator)
    return TensorDataset(x, (x.sum(1) > 0).long() + (x[:, 0] > 1).long())


def sgd(parameters: Iterable[Any]) -> Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-3)


def adamw(parameters: Iterable[Any]) -> Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)


def scheduled(
    make: Optimizers, scheduler: Callable[[Any], Any], interval: str = "epoch"
) -> Optimizers:
    def both(parameters: Iterable[Any]) -> Any:
        optimizer = make(parameters)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler(optimizer), "interval": interval},
        }

    return both


class Net(LightningModule):
    """Classifies three classes; its head never gets a gradient unless it is set to use it."""

    def __init__(self, optimizers: Optimizers = sgd, *, init: int = 0) -> None:
        super().__init__()
        torch.manual_seed(init)
        self.body = torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8), torch.nn.Tanh()
        )
        self.head = torch.nn.Linear(8, 3)
        self.unused = torch.nn.Linear(2, 2)
        self.accuracy, self.cosine = (
            MulticlassAccuracy(3, average="micro"),
            CosineSimilarity("mean"),
        )
        self.register_buffer("is_first", torch.tensor(init == 0))  # a dtype that Horovod has not
        self.optimizers_of = optimizers
        self.losses: list[float] = []
        self.norms: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out

    def training_step(self, batch: Any, index: int) -> Any:
        return functional.cross_entropy(self(batch[0]), batch[1])

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        norms = [p.grad.float().norm() for p in self.parameters() if p.grad is not None]
        self.norms.append(float(torch.stack(norms).norm()))

    def validation_step(self, batch: Any, index: int) -> None:
        scores = self(batch[0])
        self.accuracy(scores, batch[1])
        self.cosine(scores.softmax(-1), functional.one_hot(batch[1], 3).float())
        self.log("val/loss", functional.cross_entropy(scores, batch[1]), sync_dist=True)
        self.log("val/max", scores.max(), sync_dist=True, reduce_fx="max")
        self.log("val/sum", scores.sum(), sync_dist=True, reduce_fx="sum")
        self.log("val/accuracy", self.accuracy)
        self.log("val/cosine", self.cosine)

    test_step = validation_step

    def predict_step(self, batch: Any, index: int) -> Tensor:
        out: Tensor = self(batch[0])
        return out

    def configure_optimizers(self) -> Any:
        return self.optimizers_of(self.parameters())


class TwoOptimizers(Net):
    """Manual optimisation as a GAN does it.

    Each optimizer has its own loss, the other's parameters get none.
    """

    def __init__(self, *, toggles: bool, init: int = 0) -> None:
        super().__init__(init=init)
        self.automatic_optimization, self.toggles = False, toggles

    def configure_optimizers(self) -> Any:
        return [adamw(self.body.parameters()), adamw(self.head.parameters())]

    def training_step(self, batch: Any, index: int) -> None:
        body, head = self.optimizers()  # type: ignore[attr-defined]
        for optimizer, loss in (
            (
                head,
                lambda: functional.cross_entropy(self.head(self.body(batch[0]).detach()), batch[1]),
            ),
            (body, lambda: self.body(batch[0]).pow(2).mean()),
        ):
            if self.toggles:
                self.toggle_optimizer(optimizer)
            optimizer.zero_grad()
            self.manual_backward(loss())
            if self.toggles:
                optimizer.step()
                self.untoggle_optimizer(optimizer)
            else:  # both step although one of them has no gradients yet
                body.step()
                head.step()


class ByHand(Net):
    """Manual optimisation that calls backward itself, before a `manual_backward` or not."""

    def __init__(self, order: str, *, init: int = 0) -> None:
        super().__init__(init=init)
        self.automatic_optimization, self.order = False, order

    def training_step(self, batch: Any, index: int) -> None:
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        for word in self.order.split():
            loss = functional.cross_entropy(self(batch[0]), batch[1])
            if word == "plain":
                loss.backward()  # type: ignore[no-untyped-call]
            elif word == "manual":
                self.manual_backward(loss)
            else:
                optimizer.zero_grad()
        optimizer.step()


class Contrast(Net):
    """Its loss needs the whole batch.

    So gradients must flow through the gathering of all ranks' parts.
    """

    def training_step(self, batch: Any, index: int) -> Tensor:
        gathered: Any = self.all_gather(self.body(batch[0]), sync_grads=True)
        features = gathered.reshape(-1, 8)
        near: Tensor = features @ features.mT
        return near.softmax(-1).diagonal().pow(2).mean()


class Unfreeze(Callback):
    """Gives the optimizer the body after an epoch, as BaseFinetuning does."""

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        pl_module.body.requires_grad_(False)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        if trainer.current_epoch == 1:
            pl_module.body.requires_grad_(True)
            trainer.optimizers[0].add_param_group(
                {"params": list(pl_module.body.parameters()), "lr": 0.05}
            )


def trainable(parameters: Iterable[Any]) -> Optimizer:
    return torch.optim.SGD(
        [parameter for parameter in parameters if parameter.requires_grad], lr=0.1, momentum=0.9
    )


@dataclass
class Fit:
    """A training.

    Args:
        net: Makes the model from the seed of its weights.
        trainer: Arguments of the trainer.
        callbacks: Made anew for each training.
        strategy: Arguments of the strategy.
    """

    net: Callable[[int], Net] = lambda init: Net(init=init)
    trainer: dict[str, Any] = field(default_factory=dict)
    callbacks: Callable[[], list[Callback]] = list
    strategy: dict[str, Any] = field(default_factory=dict)


def loader(
    ranks: int, rank: int, *, shuffle: bool, data: TensorDataset | None = None
) -> DataLoader[Any]:
    """Give this rank's part of the same global batches, whatever the number of ranks."""
    data = data or samples()
    sampler: Any = DistributedSampler(data, num_replicas=ranks, rank=rank, shuffle=shuffle, seed=5)
    return DataLoader(data, batch_size=2 * SHARE // ranks, sampler=sampler)


def trainer_of(*, ranks: int, fit: Fit | None = None, **more: Any) -> Trainer:
    fit = fit or Fit()
    strategy = HorovodStrategy(**fit.strategy) if ranks > 1 else "auto"
    settings = {
        **QUIET,
        "max_epochs": 2,
        "accelerator": "cpu",
        "devices": 1,
        "strategy": strategy,
        **fit.trainer,
    }
    return Trainer(**{**settings, "callbacks": fit.callbacks(), **more})


def train(fit: Fit, *, ranks: int, rank: int, **more: Any) -> tuple[Net, Trainer]:
    """Train on ranks that begin with unlike weights."""
    trainer, net = trainer_of(ranks=ranks, fit=fit, **more), fit.net(rank)
    trainer.fit(net, loader(ranks, rank, shuffle=True), loader(ranks, rank, shuffle=False))
    return net, trainer


def weights(net: torch.nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in net.state_dict().items()}
