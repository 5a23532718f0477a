"""What is particular to ranks under Horovod; every case runs on two of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from lightning_utilities.core import rank_zero
from pytorch_lightning import Callback, Trainer
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.plugins import MixedPrecision
from pytorch_lightning.plugins.io import TorchCheckpointIO
from pytorch_lightning.utilities import rank_zero as lightning_rank_zero
from torch.nn import functional
from torch.optim.lr_scheduler import OneCycleLR, StepLR
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torchmetrics import Metric, SumMetric

from lightkit.distributed import HorovodStrategy
from lightkit.distributed.collectives import gather_states, hvd
from tests.distributed import nets
from tests.distributed.nets import Fit, Net, adamw, scheduled, sgd

Found = dict[str, Any]
Case = Callable[[int, int, Path], Found]


def collectives(ranks: int, rank: int, folder: Path) -> Found:
    """Objects of unlike types, tensors of unlike shapes and every dtype, inside inference mode."""
    ours = HorovodStrategy()
    with torch.inference_mode():
        states = {
            "float": torch.arange(rank + 2.0),
            "bfloat16": torch.full((2, rank + 1), 1.5, dtype=torch.bfloat16),
            "bool": torch.tensor([True, rank == 0]),
            "empty": torch.zeros(0) if rank == 0 else torch.ones(3, dtype=torch.int64),
            "scalar": torch.tensor(rank),
        }
        gathered = {name: gather_states(state) for name, state in states.items()}
        share = torch.tensor([rank + 1])
        reduced = {op: ours.reduce(share, reduce_op=op) for op in ("sum", "max", "min", "product")}
        means = {
            str(d): ours.reduce(share.to(d)) for d in (torch.int64, torch.bfloat16, torch.float64)
        }
        narrow = ours.reduce(torch.tensor([rank], dtype=torch.uint8), reduce_op="sum")
    return {
        "gathered": gathered,
        "reduced": reduced,
        "means": means,
        "narrow": narrow,
        "flags": ours.all_gather(torch.tensor([True, rank == 0])),
        "stacked": ours.all_gather(torch.full((2,), float(rank), dtype=torch.bfloat16)),
        # unlike types: unlike names in Horovod
        "broadcast": ours.broadcast("version_0" if rank == 0 else None),
        "broadcast_from_1": ours.broadcast({"rank": rank}, src=1),
        "all": ours.reduce_boolean_decision(rank == 0),
        "any": ours.reduce_boolean_decision(rank == 0, all=False),
        "torch_op": (
            int(ours.reduce(torch.tensor(1), reduce_op=torch.distributed.ReduceOp.SUM)) == ranks
        ),
        "is_zero": (
            rank_zero.rank_zero_only.rank,  # type: ignore[attr-defined]
            lightning_rank_zero.rank_zero_only.rank,  # type: ignore[attr-defined]
        ),
    }


class Sometimes(Net):
    """Its second head is used by rank 0 only."""

    def __init__(self, rank: int) -> None:
        super().__init__(adamw, init=rank)
        self.rank, self.second = rank, torch.nn.Linear(6, 3)

    def training_step(self, batch: Any, index: int) -> Any:
        scores = self(batch[0]) + (self.second(batch[0]) if self.rank == 0 else 0)
        return functional.cross_entropy(scores, batch[1])


def used_on_one_rank(ranks: int, rank: int, folder: Path) -> Found:
    fit = Fit(Sometimes)
    return {
        "weights": nets.weights(nets.train(fit, ranks=ranks, rank=rank)[0]),
        "before": nets.weights(Sometimes(0)),
    }


def accumulation(ranks: int, rank: int, folder: Path) -> Found:
    """Count what is sent for eight batches in two epochs, with and without accumulation."""
    sent = {}
    for batches in (1, 4):
        with mock.patch.object(
            hvd, "allreduce_async_", side_effect=hvd.allreduce_async_
        ) as counted:
            nets.train(Fit(trainer={"accumulate_grad_batches": batches}), ranks=ranks, rank=rank)
        sent[batches] = counted.call_count
    return {"sent": sent}


class Normed(Net):
    """Has buffers that follow each rank's own batches, one of them not in its state."""

    def __init__(self, *, init: int = 0) -> None:
        super().__init__(init=init)
        self.norm = torch.nn.BatchNorm1d(6)
        # not in one piece
        self.register_buffer("turned", torch.full((2, 3), float(init)).mT, persistent=False)
        self.register_buffer(
            "extra", torch.full((2,), float(init), dtype=torch.bfloat16), persistent=False
        )

    def forward(self, x: Any) -> Any:
        return super().forward(self.norm(x))


def buffers(ranks: int, rank: int, folder: Path) -> Found:
    found = {}
    for sync in (True, False):
        fit = Fit(lambda init: Normed(init=init), strategy={"sync_buffers": sync})
        net, _ = nets.train(fit, ranks=ranks, rank=rank)
        named = dict(net.named_buffers())
        found[sync] = [
            named[name].clone() for name in ("norm.running_mean", "extra", "is_first", "turned")
        ]
    return {"buffers": found}


class Stream(IterableDataset[Any]):
    """So many batches, of which nobody knows the number before."""

    def __init__(self, num_batches: int, *, first: int = 0) -> None:
        self.num_batches, self.first = num_batches, first

    def __iter__(self) -> Iterator[Any]:
        x, y = nets.samples(200).tensors
        rows = range(self.first, self.first + self.num_batches)
        return ((x[4 * row : 4 * row + 4], y[4 * row : 4 * row + 4]) for row in rows)


class Totals(Net):
    """Adds up in a metric that is part of the module, in one within a plain list.

    Also in one that stays to itself.
    """

    def __init__(self, rank: int) -> None:
        super().__init__(init=rank)
        self.share = rank + 1.0
        self.part = SumMetric()
        self.listed, self.own = [SumMetric()], [SumMetric(distributed_available_fn=lambda: False)]
        self.totals: dict[str, float] = {}

    def validation_step(self, batch: Any, index: int) -> None:
        for metric in (self.part, *self.listed, *self.own):
            metric.update(self.share)

    def on_validation_epoch_end(self) -> None:
        metrics = {"part": self.part, "listed": self.listed[0], "own": self.own[0]}
        self.totals = {name: float(metric.compute()) for name, metric in metrics.items()}


class Tallying(Callback):
    """Has a metric of its own."""

    def __init__(self) -> None:
        self.metric, self.total = SumMetric(), 0.0

    def on_validation_batch_end(self, trainer: Trainer, pl_module: Any, *more: Any) -> None:
        self.metric.update(pl_module.share)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        self.total = float(self.metric.compute())


def metrics(ranks: int, rank: int, folder: Path) -> Found:
    """Four batches on each rank, in metrics that stand in different places."""
    before, net, tallying = Metric.sync, Totals(rank), Tallying()
    nets.trainer_of(ranks=ranks, callbacks=[tallying]).validate(
        net, nets.loader(ranks, rank, shuffle=False)
    )
    after = SumMetric()
    after.update(net.share)
    totals = {**net.totals, "callback": tallying.total, "after": float(after.compute())}
    return {"totals": totals, "undone": Metric.sync is before}


def _stream(num_batches: int, *, first: int = 0) -> DataLoader[Any]:
    return DataLoader(Stream(num_batches, first=first), batch_size=None)


def _sized(num: int) -> DataLoader[Any]:
    return DataLoader(nets.samples(num), batch_size=4)


def uneven_evaluation(ranks: int, rank: int, folder: Path) -> Found:
    """Two batches against four: every sample counts."""
    trainer, net = nets.trainer_of(ranks=ranks), Net(init=0)
    found = trainer.validate(net, _stream((2, 4)[rank], first=(0, 2)[rank]), verbose=False)[0]
    x, y = (part[:24] for part in nets.samples(200).tensors)
    whole = DataLoader(TensorDataset(x, y), batch_size=4)
    alone = Trainer(**nets.QUIET, accelerator="cpu", devices=1)
    with mock.patch("lightkit.distributed.collectives.is_available", return_value=False):
        expected = alone.validate(Net(init=0), whole, verbose=False)[0]
    return {"found": found, "expected": expected}


def uneven_lengths(ranks: int, rank: int, folder: Path) -> Found:
    """Loaders of unlike lengths, in a training and in an evaluation."""
    first, second = (nets.trainer_of(ranks=ranks, use_distributed_sampler=False) for _ in range(2))
    return {
        "training": _refused(lambda: first.fit(Net(), _sized((20, 12)[rank]))),
        "evaluation": _refused(lambda: second.validate(Net(), _sized((8, 0)[rank]))),
    }


class Grumpy(Net):
    def training_step(self, batch: Any, index: int) -> Any:
        self.log(
            "local", float(self.current_epoch if self.global_rank == 1 else -self.current_epoch)
        )
        return super().training_step(batch, index)


def early_stopping(ranks: int, rank: int, folder: Path) -> Found:
    """Only rank 1's own value gets worse."""
    stop = Fit(
        lambda init: Grumpy(init=init), callbacks=lambda: [EarlyStopping("local", patience=1)]
    )
    _, trainer = nets.train(stop, ranks=ranks, rank=rank, max_epochs=6)
    return {"epoch": trainer.current_epoch, "step": trainer.global_step}


class CountedIO(TorchCheckpointIO):
    saved = 0

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        type(self).saved += 1
        super().save_checkpoint(*args, **kwargs)


def files(ranks: int, rank: int, folder: Path) -> Found:
    # where each rank would write, so that one's files are not taken for the other's
    place = folder / f"rank-{rank}"
    more: dict[str, Any] = {
        "logger": CSVLogger(str(place / "logs")),
        "plugins": [CountedIO()],
        "log_every_n_steps": 1,
    }
    keeper = ModelCheckpoint(place / "checkpoints", save_last=True)
    nets.train(Fit(), ranks=ranks, rank=rank, callbacks=[keeper], enable_checkpointing=True, **more)
    written = sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())
    return {"saved": CountedIO.saved, "written": written, "best": str(keeper.best_model_path)}


def resume(ranks: int, rank: int, folder: Path) -> Found:
    """Two and two epochs against four."""
    schedules = {
        "step": (lambda o: StepLR(o, 1, 0.5), "epoch"),
        "cycle": (lambda o: OneCycleLR(o, 0.05, 16), "step"),
    }
    found = {}
    for name, (scheduler, interval) in schedules.items():
        fit = Fit(lambda init, s=scheduler, i=interval: Net(scheduled(adamw, s, i), init=init))  # type: ignore[misc]
        straight, whole = nets.train(fit, ranks=ranks, rank=rank, max_epochs=4)
        path = folder / f"{name}.ckpt"
        nets.train(fit, ranks=ranks, rank=rank)[1].save_checkpoint(path)
        trainer, net = nets.trainer_of(ranks=ranks, fit=fit, max_epochs=4), fit.net(rank + 9)
        trainer.fit(net, nets.loader(ranks, rank, shuffle=True), ckpt_path=path)
        rates = [t.optimizers[0].param_groups[0]["lr"] for t in (whole, trainer)]
        found[name] = {
            "straight": nets.weights(straight),
            "resumed": nets.weights(net),
            "rates": rates,
        }
    return {"found": found}


def precisions(ranks: int, rank: int, folder: Path) -> Found:
    """What PL allows on a CPU; 16-mixed becomes bf16-mixed there."""
    found = {}
    for precision in ("bf16-mixed", "bf16-true", "16-mixed"):
        net, trainer = nets.train(Fit(trainer={"precision": precision}), ranks=ranks, rank=rank)
        found[precision] = {
            "weights": nets.weights(net),
            "loss": float(trainer.callback_metrics["val/loss"]),
        }
    return {"found": found}


class Exploding(Net):
    """Rank 1's loss is infinite in one batch."""

    def training_step(self, batch: Any, index: int) -> Any:
        loss = super().training_step(batch, index)
        return (
            loss * torch.inf
            if index == 2 and self.current_epoch == 0 and self.global_rank == 1
            else loss
        )


def loss_scaling(ranks: int, rank: int, folder: Path) -> Found:
    """float16 with a scaler: what is infinite on one rank is skipped on both."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    plugin = MixedPrecision("16-mixed", "cpu", scaler)
    net, _ = nets.train(
        Fit(lambda init: Exploding(init=init)), ranks=ranks, rank=rank, plugins=[plugin]
    )
    return {"weights": nets.weights(net), "scale": scaler.get_scale()}


class Steep(Net):
    """Its gradients fit into half precision, and their sum over two ranks does not."""

    def training_step(self, batch: Any, index: int) -> Any:
        return self.head.bias.sum() * 60000


def compression(ranks: int, rank: int, folder: Path) -> Found:
    sent: list[torch.dtype] = []

    def seen(tensor: Any, **more: Any) -> Any:
        sent.append(tensor.dtype)
        return real(tensor, **more)

    real, fit = hvd.allreduce_async_, Fit(strategy={"compression": "fp16"})
    with mock.patch.object(hvd, "allreduce_async_", side_effect=seen):
        small, _ = nets.train(fit, ranks=ranks, rank=rank)
    plain, _ = nets.train(Fit(), ranks=ranks, rank=rank)
    steep, _ = nets.train(
        Fit(lambda init: Steep(init=init), strategy=fit.strategy), ranks=ranks, rank=rank
    )
    return {
        "sent": set(sent),
        "weights": nets.weights(small),
        "plain": nets.weights(plain),
        "steep": nets.weights(steep)["head.bias"],
    }


class Indices(Callback):
    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        loader: Any = trainer.train_dataloader
        self.seen.append(list(loader.sampler))


def shards(ranks: int, rank: int, folder: Path) -> Found:
    indices = Indices()
    trainer = nets.trainer_of(ranks=ranks, callbacks=[indices])
    trainer.fit(Net(init=rank), DataLoader(nets.samples(), batch_size=8, shuffle=True))
    return {"seen": indices.seen}


def _refused(attempt: Callable[[], Any]) -> Found:
    try:
        with mock.patch("lightkit.distributed.HorovodStrategy.on_exception"):
            attempt()
    except Exception as error:  # noqa: BLE001 - the test looks at it
        return {"error": type(error).__name__, "says": str(error)}
    return {"error": "", "says": ""}


class Embedded(Net):
    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(4, 2, sparse=True)


def _with(**layers: torch.nn.Module) -> Net:
    net = Net()
    for name, layer in layers.items():
        net.add_module(name, layer)
    return net


class Stranger(Net):
    def configure_optimizers(self) -> Any:
        return sgd([*self.parameters(), torch.nn.Parameter(torch.zeros(2))])


def _seeded(rank: int, attempt: Callable[[], Any]) -> Found:
    with mock.patch.dict(os.environ, {"PL_GLOBAL_SEED": str(rank)}):
        return _refused(attempt)


def refusals(ranks: int, rank: int, folder: Path) -> Found:
    """Each on both ranks."""

    def fitting(net: Net, **more: Any) -> Callable[[], Any]:
        return lambda: nets.trainer_of(ranks=ranks, **more).fit(
            net, nets.loader(ranks, rank, shuffle=True)
        )

    lbfgs = Net(torch.optim.LBFGS)
    return {
        "lbfgs": _refused(fitting(lbfgs)),
        "sparse": _refused(fitting(Embedded())),
        "sync_batchnorm": _refused(fitting(Net(), sync_batchnorm=True)),
        "torch_sync": _refused(fitting(_with(norm=torch.nn.SyncBatchNorm(2)))),
        "horovod_sync": _refused(fitting(_with(norm=hvd.SyncBatchNorm(2)))),
        "lazy": _refused(fitting(_with(late=torch.nn.LazyLinear(2)))),
        "unlike": _refused(fitting(_with(more=torch.nn.Linear(2, 2 + rank)))),
        "stranger": _refused(fitting(Stranger())),
        "plain_backward": _refused(fitting(nets.ByHand("plain"))),
        "plain_after_manual": _refused(fitting(nets.ByHand("manual plain"))),
        "plain_thrown_away": _refused(fitting(nets.ByHand("plain zero manual"))),
        "devices": _refused(fitting(Net(), devices=2)),
        "seeds": _seeded(rank, fitting(Net())),
        "works_again": _refused(fitting(Net())),
    }


CASES: dict[str, Case] = {
    case.__name__: case
    for case in (
        collectives,
        used_on_one_rank,
        accumulation,
        buffers,
        uneven_evaluation,
        metrics,
        early_stopping,
        files,
        resume,
        precisions,
        loss_scaling,
        compression,
        shards,
        uneven_lengths,
        refusals,
    )
}
