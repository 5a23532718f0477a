"""Trainings that come out the same in one process with batch 2b and in two ranks with batch b."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import Callback
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR, StepLR

from lightkit.distributed import ScaledLearningRate
from lightkit.models import Regressor
from tests.distributed import counting, nets
from tests.distributed.nets import Fit, Net, adamw, scheduled, sgd

FITS = {
    "sgd": Fit(),
    "adamw": Fit(lambda init: Net(adamw, init=init)),
    "accumulate": Fit(trainer={"accumulate_grad_batches": 2}),
    "accumulate_with_a_rest": Fit(trainer={"accumulate_grad_batches": 3}),
    "clip_norm": Fit(trainer={"gradient_clip_val": 0.05}),
    "clip_value": Fit(trainer={"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"}),
    "step_lr": Fit(lambda init: Net(scheduled(sgd, lambda o: StepLR(o, 1, 0.3)), init=init)),
    "one_cycle": Fit(
        lambda init: Net(scheduled(sgd, lambda o: OneCycleLR(o, 0.3, 8), "step"), init=init)
    ),
    "cosine": Fit(
        lambda init: Net(scheduled(adamw, lambda o: CosineAnnealingLR(o, 8), "step"), init=init)
    ),
    "everything": Fit(
        lambda init: Net(scheduled(adamw, lambda o: StepLR(o, 1, 0.5)), init=init),
        {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1},
    ),
    "unfreezing": Fit(
        lambda init: Net(nets.trainable, init=init), callbacks=lambda: [nets.Unfreeze()]
    ),
    "two_optimizers_toggled": Fit(lambda init: nets.TwoOptimizers(toggles=True, init=init)),
    "two_optimizers": Fit(lambda init: nets.TwoOptimizers(toggles=False, init=init)),
    "plain_before_manual_backward": Fit(lambda init: nets.ByHand("plain manual", init=init)),
    "gathered_loss": Fit(lambda init: nets.Contrast(init=init)),
    "float64": Fit(trainer={"precision": "64-true"}),
}

SWEPT = [name for name in FITS if name not in ("adamw", "everything", "two_optimizers")]
"""Those that `make test-long` runs."""


def _case(fit: Fit) -> Callable[[int, int, Path], dict[str, Any]]:
    def run(ranks: int, rank: int, folder: Path) -> dict[str, Any]:
        net, trainer = nets.train(fit, ranks=ranks, rank=rank)
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        lrs = [group["lr"] for optimizer in trainer.optimizers for group in optimizer.param_groups]
        before = nets.weights(fit.net(0))
        return {
            "weights": nets.weights(net),
            "before": before,
            "norms": net.norms,
            "metrics": metrics,
            "lrs": lrs,
        }

    return run


def _tested(ranks: int, rank: int, folder: Path) -> dict[str, Any]:
    """An odd number of samples: the last batches are not full, and unlike on the two ranks."""
    net, data = Net(init=rank), nets.samples(27)
    trainer = nets.trainer_of(ranks=ranks)
    share = torch.utils.data.Subset(
        data, range(27) if ranks == 1 else (range(17), range(17, 27))[rank]
    )
    loader: Any = torch.utils.data.DataLoader(share, batch_size=32)
    found = nets.trainer_of(ranks=ranks, use_distributed_sampler=False).test(
        net, loader, verbose=False
    )[0]
    predicted: Any = trainer.predict(net, nets.loader(ranks, rank, shuffle=False, data=data))
    return {"metrics": found, "predictions": len(torch.cat(predicted)) if predicted else 0}


def _counted(ranks: int, rank: int, folder: Path) -> dict[str, Any]:
    """A data module and a model of lightkit's.

    A rank with 13 images in batches of 13 must make two of them.
    """
    root = counting.images(folder / f"images-{rank}")
    return {"metrics": counting.counted(nets.trainer_of(ranks=ranks), root, batch_size=26 // ranks)}


def _regressed(ranks: int, rank: int, folder: Path) -> dict[str, Any]:
    """lightkit's own regressor.

    It takes its scale from the first batch and notes so in a buffer of truth values.
    """
    x = nets.samples().tensors[0] * torch.tensor([1, 10, 100, 1, 1, 0]) + 50
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True) ** 2)
    torch.manual_seed(rank)
    model = Regressor(6, 1, hidden=4)
    nets.trainer_of(ranks=ranks).fit(model, nets.loader(ranks, rank, shuffle=True, data=data))
    return {"weights": nets.weights(model)}


def _scaled(ranks: int, rank: int, folder: Path) -> dict[str, Any]:
    """Half the rate, scaled, against the rate itself; the warm-up lasts half of the training."""

    def rates(parameters: Any) -> Any:
        optimizer = torch.optim.SGD(parameters, lr=0.1 / ranks, momentum=0.9)
        rising = LambdaLR(optimizer, lambda step: 0.5 + 0.5 * min(step / 4, 1) if ranks == 1 else 1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rising, "interval": "step"}}

    callbacks: list[Callback] = [ScaledLearningRate(warmup_epochs=1)] if ranks > 1 else []
    return _case(Fit(lambda init: Net(rates, init=init), callbacks=lambda: callbacks))(
        ranks, rank, folder
    )


CASES: dict[str, Callable[[int, int, Path], dict[str, Any]]] = {
    **{name: _case(fit) for name, fit in FITS.items()},
    "scaled": _scaled,
    "tested": _tested,
    "counted": _counted,
    "regressed": _regressed,
}
