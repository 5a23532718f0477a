"""A run that is computed in another way: what changes, what does not, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from lightkit.callbacks import VerifiedCheckpointIO, computation
from lightkit.callbacks.computation import Computation
from lightkit.errors import ConfigError
from lightkit.models.classifier import ImageClassifier
from tests.trainers import quiet_trainer
from tests.tuning.examples import Pictures, Small


@pytest.fixture
def trainer_of(tmp_path: Path) -> Callable[..., Trainer]:
    """Quiet trainers on the CPU."""
    return partial(quiet_trainer, tmp_path)


class Looks(Callback):
    """Notes what the weights, the optimizers and the process look like in training."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        convolutions = [layer for layer in pl_module.modules() if isinstance(layer, nn.Conv2d)]
        states = [
            state["exp_avg"] for state in trainer.optimizers[0].state.values() if "exp_avg" in state
        ]
        self.seen = {
            "weights": all(
                layer.weight.is_contiguous(memory_format=torch.channels_last)
                for layer in convolutions
            ),
            "states": all(
                one.is_contiguous(memory_format=torch.channels_last)
                for one in states
                if one.dim() == 4
            ),
            "fused": [group.get("fused") for group in trainer.optimizers[0].param_groups],
            "steps": {
                str(state["step"].device)
                for state in trainer.optimizers[0].state.values()
                if "step" in state
            },
        }


def fit(
    trainer_of: Callable[..., Trainer], module: LightningModule, how: Computation, **values: Any
) -> Looks:
    looks = Looks()
    trainer = trainer_of(callbacks=[how, looks, *values.pop("callbacks", [])], **values)
    trainer.fit(module, datamodule=Pictures())
    return looks


def test_weights_are_channels_last_in_training_and_in_no_checkpoint(
    trainer_of: Callable[..., Trainer], tmp_path: Path
) -> None:
    model = ImageClassifier(num_classes=3, freeze="backbone")  # which is built late
    saving = ModelCheckpoint(tmp_path, save_last=True)
    looks = fit(
        trainer_of,
        model,
        Computation("channels_last"),
        callbacks=[saving],
        enable_checkpointing=True,
        plugins=[VerifiedCheckpointIO()],
    )
    assert looks.seen["weights"]
    assert looks.seen["states"]
    checkpoint = torch.load(tmp_path / "last.ckpt", weights_only=False)
    saved = [*checkpoint["state_dict"].values()]
    saved += [
        value
        for state in checkpoint["optimizer_states"][0]["state"].values()
        for value in state.values()
    ]
    assert len(saved) > len(checkpoint["state_dict"])
    assert all(value.is_contiguous() for value in saved)
    assert all(value.is_contiguous() for value in model.parameters())
    again = fit(trainer_of, ImageClassifier(num_classes=3), Computation("channels_last"))
    assert again.seen["weights"]


def test_a_checkpoint_of_weights_alone_is_contiguous_and_states_are_laid_out_on_resume(
    trainer_of: Callable[..., Trainer], tmp_path: Path
) -> None:
    class Saves(Callback):
        def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
            trainer.save_checkpoint(tmp_path / "weights.ckpt", weights_only=True)
            trainer.save_checkpoint(tmp_path / "all.ckpt")

    looks = fit(
        trainer_of,
        Small(),
        Computation("channels_last"),
        callbacks=[Saves()],
        plugins=[VerifiedCheckpointIO()],
    )
    assert looks.seen["states"]  # saving has left the optimizer's own as it was
    saved = torch.load(tmp_path / "weights.ckpt", weights_only=False)["state_dict"]
    assert all(value.is_contiguous() for value in saved.values())
    checkpoint = torch.load(tmp_path / "all.ckpt", weights_only=False)
    moment = checkpoint["optimizer_states"][0]["state"][0]["exp_avg"]
    checkpoint["optimizer_states"][0]["state"][0]["exp_avg"] = moment.contiguous(
        memory_format=torch.channels_last
    )
    torch.save(checkpoint, tmp_path / "old.ckpt")
    trainer = trainer_of(callbacks=[Computation()], max_epochs=2)
    trainer.fit(Small(), datamodule=Pictures(), ckpt_path=tmp_path / "old.ckpt")
    kept = [state["exp_avg"] for state in trainer.optimizers[0].state.values()]
    assert kept
    assert all(value.is_contiguous() for value in kept)


def test_an_optimizer_that_was_built_fused_and_is_not_to_be_lets_gradients_be_unscaled() -> None:
    optimizer = torch.optim.Adam([nn.Parameter(torch.ones(1))], fused=True)
    assert vars(optimizer)["_step_supports_amp_scaling"]
    computation._fuse(optimizer, fused=False)
    assert "_step_supports_amp_scaling" not in vars(optimizer)


def test_compiling_nothing_is_warned_of(
    trainer_of: Callable[..., Trainer],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Bare(Small):
        def __init__(self) -> None:
            LightningModule.__init__(self)
            self.weight = nn.Parameter(torch.ones(1))

        def training_step(self, batch: list[Tensor]) -> Tensor:
            return self.weight.square().sum()

        def validation_step(self, batch: list[Tensor]) -> None:
            pass

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    monkeypatch.setattr(computation, "missing_for_compiling", lambda _: None)
    trainer_of(callbacks=[Computation(compile=True)]).fit(Bare(), datamodule=Pictures())
    assert "no attribute of Bare is a layer with parameters" in caplog.text


def test_three_dimensional_nets_have_their_own_format(trainer_of: Callable[..., Trainer]) -> None:
    class Volumes(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = nn.Sequential(nn.Conv3d(2, 4, 3), nn.AdaptiveAvgPool3d(1), nn.Flatten())
            self.formats: list[bool] = []

        def training_step(self, batch: list[Tensor]) -> Tensor:
            weight = self.network.get_parameter("0.weight")
            self.formats.append(weight.is_contiguous(memory_format=torch.channels_last_3d))
            loss: Tensor = self.network(batch[0]).square().mean()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters())

    module = Volumes()
    loader = DataLoader(TensorDataset(torch.randn(4, 2, 5, 5, 5)), batch_size=2)
    trainer_of(callbacks=[Computation("channels_last")]).fit(module, loader)
    assert module.formats == [True, True]


@pytest.mark.parametrize("optimizer", ["Adam", "AdamW", "SGD", "Adagrad"])
def test_a_fused_optimizer_learns_the_same_and_resumes_either_way(
    optimizer: str, trainer_of: Callable[..., Trainer], tmp_path: Path
) -> None:
    def trained(*ways: bool) -> Tensor:
        torch.manual_seed(1)
        module, checkpoint = Small(optimizer=optimizer), None
        for number, fused in enumerate(ways):
            looks = Looks()
            trainer = trainer_of(
                callbacks=[Computation(fused=fused), looks],
                max_epochs=number + 1,
                gradient_clip_val=1.0,
            )
            trainer.fit(module, datamodule=Pictures(), ckpt_path=checkpoint)
            assert looks.seen["fused"] == [fused]
            checkpoint = tmp_path / f"{number}.ckpt"
            trainer.save_checkpoint(checkpoint)
        return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])

    plain = trained(False, False)
    torch.testing.assert_close(trained(True, False), plain)
    torch.testing.assert_close(trained(False, True), plain)


def test_an_optimizer_without_a_fused_kernel_is_refused_by_name(
    trainer_of: Callable[..., Trainer],
) -> None:
    with pytest.raises(
        ConfigError, match=r"accelerator.fused: true, but RMSprop has no fused kernel"
    ):
        fit(trainer_of, Small(optimizer="RMSprop"), Computation(fused=True))
    assert fit(trainer_of, Small(optimizer="RMSprop"), Computation(fused=False)).seen["fused"] == [
        None
    ]


class Adversaries(LightningModule):
    """Two networks, two optimizers, steps by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator, self.discriminator = (
            nn.Linear(4, 3 * 256),
            nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(1)),
        )

    def training_step(self, batch: list[Tensor]) -> None:
        first, second = cast("list[torch.optim.Optimizer]", self.optimizers())
        made = self.generator(torch.randn(len(batch[0]), 4)).view(-1, 3, 16, 16)
        for optimizer, loss in (
            (first, -self.discriminator(made).mean()),
            (second, self.discriminator(torch.cat([made.detach(), batch[0]])).square().mean()),
        ):
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

    def validation_step(self, batch: list[Tensor]) -> None:
        pass

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [
            torch.optim.Adam(self.generator.parameters()),
            torch.optim.SGD(self.discriminator.parameters()),
        ]


def test_several_optimizers_and_steps_by_hand_work(trainer_of: Callable[..., Trainer]) -> None:
    looks = fit(trainer_of, Adversaries(), Computation("channels_last", fused=True))
    assert looks.seen["weights"]
    assert looks.seen["fused"] == [True]


# 2026-11, torch 2.15: dynamo itself looks at the gradient of what a part is given
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_parts_are_compiled_for_training_on_full_batches_alone(
    trainer_of: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def count(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        def run(*args: Tensor) -> Any:
            sizes.append(len(args[-1]))
            return graph(*args)

        return run

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=count))
    module = Small()
    names = [*module.state_dict()]
    trainer_of(callbacks=[Computation(compile=True)], max_epochs=2).fit(
        module, Pictures().loader(), Pictures().loader()
    )
    assert len(sizes) == 8  # two parts, two epochs of 4, 4 and 2 images
    assert [*module.state_dict()] == names
    assert all(part._compiled_call_impl is None for part in module.modules())


@pytest.mark.long
# 2026-11, torch 2.15: dynamo itself looks at the gradient of what a part is given
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_compiled_model_learns_what_the_plain_one_learns(
    trainer_of: Callable[..., Trainer],
) -> None:
    losses = []
    for compiled in (False, True):
        torch.manual_seed(2)
        module = Small()
        fit(trainer_of, module, Computation(compile=compiled), max_epochs=2)
        losses.append(functional.cross_entropy(module(Pictures().images), Pictures().labels).item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_what_cannot_be_compiled_here_is_refused_before_the_first_step(
    trainer_of: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no-such-compiler" in (computation.missing_for_compiling("cpu") or "")
    with pytest.raises(
        ConfigError, match=r"torch.compile needs a C\+\+ compiler \(no-such-compiler is not"
    ):
        fit(trainer_of, Small(), Computation(compile=True))


def test_a_failed_stage_leaves_the_strategy_and_the_model_as_they_were(
    trainer_of: Callable[..., Trainer],
) -> None:
    class Fails(Small):
        def training_step(self, batch: list[Tensor]) -> Tensor:
            raise ValueError("planted")

    module = Fails()
    trainer = trainer_of(callbacks=[Computation("channels_last")])
    with pytest.raises(ValueError, match="planted"):
        trainer.fit(module, datamodule=Pictures())
    assert "setup" not in vars(trainer.strategy)
    assert all(parameter.is_contiguous() for parameter in module.parameters())
