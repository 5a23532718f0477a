"""Convolutions in bf16 whose input is narrower than their stride have the gradient of float32."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightkit.callbacks.strided_gradients import StridedGradients, find_unread_columns
from tests.trainers import quiet_trainer


@pytest.fixture
def trainer_of(tmp_path: Path) -> Callable[..., Trainer]:
    """Quiet trainers on the CPU."""
    return partial(quiet_trainer, tmp_path)


class Narrow(LightningModule):
    """A layer with a stride of 2 on inputs of one pixel, whose gradient begins with NaN."""

    def __init__(self, size: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.gradients: list[Tensor] = []
        self.images = torch.rand(6, 8, size, size)
        weight: Any = self.layer.weight
        weight.register_hook(self._poison)

    def _poison(self, gradient: Tensor) -> Tensor:
        """Write NaN where torch may leave what it finds in memory."""
        gradient = gradient.clone()
        gradient[..., sorted(find_unread_columns(self.layer, self.images.shape[-1]))] = torch.nan
        return gradient

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        outputs: Tensor = self.layer(batch[0])
        return outputs.square().mean()

    def on_after_backward(self) -> None:
        assert self.layer.weight.grad is not None
        self.gradients.append(self.layer.weight.grad.clone())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(self.images), batch_size=3)


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_a_column_that_reads_only_padding_has_no_gradient(
    trainer_of: Callable[..., Trainer], precision: str
) -> None:
    model = Narrow(1)
    trainer_of(max_epochs=2, precision=precision, callbacks=[StridedGradients()]).fit(model)
    assert len(model.gradients) == 4
    for gradient in model.gradients:
        assert torch.isfinite(gradient).all()
        assert not gradient[..., [0, 2]].any()
        assert gradient[..., 1, 1].all()
    assert not model.layer._forward_pre_hooks


class Scripted(Narrow):
    """A model that is compiled by TorchScript within its training, as for an export."""

    def on_train_batch_end(self, *_: Any) -> None:
        self.compiled = torch.jit.script(nn.Sequential(self.layer))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:FutureWarning")
def test_a_model_is_scripted_within_its_training(trainer_of: Callable[..., Trainer]) -> None:
    model = Scripted(1)
    trainer_of(max_epochs=1, precision="bf16-mixed", callbacks=[StridedGradients()]).fit(model)
    images = torch.rand(2, 8, 1, 1)
    with torch.no_grad():
        torch.testing.assert_close(model.compiled(images), model.layer(images))
    assert not any(gradient[..., [0, 2]].any() for gradient in model.gradients)


def test_other_trainings_are_left_as_they_are(trainer_of: Callable[..., Trainer]) -> None:
    in_float32 = Narrow(1)
    trainer_of(max_epochs=1, precision="32-true", callbacks=[StridedGradients()]).fit(in_float32)
    assert torch.isnan(in_float32.gradients[0]).any()
    wide = Narrow(4)
    trainer_of(max_epochs=1, precision="bf16-mixed", callbacks=[StridedGradients()]).fit(wide)
    plain = Narrow(4)
    trainer_of(max_epochs=1, precision="bf16-mixed").fit(plain)
    assert wide.gradients[0][..., 0].any()
    assert all(map(torch.equal, wide.gradients, plain.gradients))


@pytest.mark.parametrize("kernel", [2, 3, 5])
@pytest.mark.parametrize("stride", [1, 2, 3, 4])
@pytest.mark.parametrize("dilation", [1, 2])
def test_the_columns_are_those_without_gradient_in_float32(
    kernel: int, stride: int, dilation: int
) -> None:
    padding = dilation * (kernel - 1) // 2 + (kernel == 2)
    num_narrow = 0
    for width in range(1, 6):
        layer = nn.Conv2d(3, 4, kernel, stride=stride, padding=padding, dilation=dilation)
        layer(torch.rand(2, 3, width, width) + 0.5).square().sum().backward()
        assert layer.weight.grad is not None
        is_unread = ~layer.weight.grad.any(2).any(1).any(0)
        found = find_unread_columns(layer, width)
        if width < stride:
            num_narrow += 1
            assert found == set(is_unread.nonzero().flatten().tolist())
        else:
            assert found == set()
    assert num_narrow == stride - 1
