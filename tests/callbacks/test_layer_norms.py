"""Layer norms that are trained in bf16 on a CPU have the gradient of float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightkit.callbacks.layer_norms import LayerNorms
from tests.trainers import quiet_trainer

_NUM_ROWS = 4000


class Normalized(LightningModule):
    """A layer norm behind a linear layer, whose bias has the number of rows for its gradient."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(8, 16)
        self.norm = nn.LayerNorm(16)
        self.types: set[torch.dtype] = set()
        self.gradient: Tensor | None = None

    def forward(self, rows: Tensor) -> Tensor:
        outputs: Tensor = self.norm(self.first(rows))
        return outputs

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss: Tensor = self(batch[0]).sum()
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.types.add(self(batch[0]).dtype)

    def on_after_backward(self) -> None:
        assert self.norm.bias.grad is not None
        self.gradient = self.norm.bias.grad.clone()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-6)

    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(torch.rand(_NUM_ROWS, 8)), batch_size=_NUM_ROWS)

    val_dataloader = train_dataloader


@pytest.mark.parametrize("precision", ["bf16-mixed", "32-true"])
def test_the_gradient_of_a_bias_is_the_number_of_rows(tmp_path: Path, precision: str) -> None:
    model = Normalized()
    quiet_trainer(tmp_path, precision=precision, callbacks=[LayerNorms()]).fit(model)
    assert model.gradient is not None
    assert model.gradient.tolist() == [_NUM_ROWS] * 16
    assert not model.norm._forward_pre_hooks


def test_an_evaluation_computes_as_before(tmp_path: Path) -> None:
    model = Normalized()
    quiet_trainer(tmp_path, precision="bf16-mixed", callbacks=[LayerNorms()]).fit(model)
    assert model.types == {torch.bfloat16}


class Scripted(Normalized):
    """A model that is compiled by TorchScript within its training, as for an export."""

    def on_train_batch_end(self, *_: Any) -> None:
        self.compiled = torch.jit.script(nn.Sequential(self.first, self.norm))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:FutureWarning")
def test_a_model_is_scripted_within_its_training(tmp_path: Path) -> None:
    model = Scripted()
    quiet_trainer(tmp_path, precision="bf16-mixed", callbacks=[LayerNorms()]).fit(model)
    rows = torch.rand(3, 8)
    torch.testing.assert_close(model.compiled(rows), model(rows))


class Encoded(Normalized):
    """A transformer's encoder, whose padded rows torch evaluates by a kernel of its own."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, rows: Tensor) -> Tensor:
        texts = rows.view(-1, 10, 8)
        is_padding = torch.arange(10).expand(len(texts), -1) >= 7
        outputs: Tensor = self.norm(
            self.first(self.encoder(texts, src_key_padding_mask=is_padding))
        )
        return outputs

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val/loss", self(batch[0]).float().square().mean())

    def val_dataloader(self) -> Any:
        rows = torch.rand(_NUM_ROWS, 8, generator=torch.Generator().manual_seed(0))
        return DataLoader(TensorDataset(rows), batch_size=_NUM_ROWS)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_an_encoder_has_the_same_loss_while_it_is_trained_and_afterwards(tmp_path: Path) -> None:
    model = Encoded()
    trainer = quiet_trainer(tmp_path, precision="bf16-mixed", callbacks=[LayerNorms()])
    trainer.fit(model)
    trained = trainer.callback_metrics["val/loss"]
    trainer = quiet_trainer(tmp_path, precision="bf16-mixed", callbacks=[LayerNorms()])
    (found,) = trainer.validate(model, verbose=False)
    assert found["val/loss"] == float(trained)
    assert not model.norm._forward_pre_hooks


def test_torch_still_sums_in_the_type_of_the_input() -> None:
    """Where this fails, the callback can go."""
    norm = nn.LayerNorm(16)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = norm(torch.rand(_NUM_ROWS, 16).bfloat16())
    outputs.sum().backward()
    assert norm.bias.grad is not None
    assert (norm.bias.grad < _NUM_ROWS).all()
