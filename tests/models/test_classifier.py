from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import Trainer, seed_everything
from pytorch_lightning.cli import LightningCLI
from pytorch_lightning.loggers import TensorBoardLogger
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics.functional.classification import multiclass_f1_score

from lightkit.errors import ConfigError
from lightkit.models import ImageClassifier
from lightkit.models.backbones import build

MakeTrainer = Callable[..., Trainer]
MakeData = Callable[..., Any]


def without_learning(**settings: Any) -> ImageClassifier:
    """A model whose training batches can be counted afterwards, as nothing changes between."""
    model = ImageClassifier(learning_rate=0.0, **settings)
    model.configure_optimizers = lambda: torch.optim.SGD(model.parameters(), lr=0.0)  # type: ignore[method-assign]
    return model


def values_of(
    model: ImageClassifier, data: Any, *, label_smoothing: float = 0.0
) -> dict[str, float]:
    with torch.no_grad():
        logits = model.eval()(data.images)
    loss = functional.cross_entropy(logits, data.labels, label_smoothing=label_smoothing)
    accuracy = (logits.argmax(1) == data.labels).float().mean()
    return {
        "loss": float(loss),
        "accuracy": float(accuracy),
        "f1": float(multiclass_f1_score(logits, data.labels, 3)),
    }


def test_validation_and_test_values_are_those_of_all_images(
    make_trainer: MakeTrainer, small_images: MakeData
) -> None:
    data, model, trainer = small_images(), ImageClassifier(label_smoothing=0.3), make_trainer()
    for stage, evaluate in (("val", trainer.validate), ("test", trainer.test)):
        (logged,) = evaluate(model, datamodule=data, verbose=False)
        expected = values_of(model, data)
        assert set(logged) == {
            f"{stage}/{name}" for name in ("loss", "accuracy", "f1", "precision", "recall")
        }
        for name, value in expected.items():
            assert logged[f"{stage}/{name}"] == pytest.approx(value, abs=1e-6)


def test_training_values_are_those_of_all_images_with_smoothed_labels(
    make_trainer: MakeTrainer, small_images: MakeData
) -> None:
    data, model = small_images(), without_learning(label_smoothing=0.3, backbone="squeezenet1_1")
    model.on_train_start = model.eval  # type: ignore[assignment,method-assign]
    trainer = make_trainer(max_epochs=2)
    trainer.fit(model, datamodule=data)
    for name, value in values_of(model, data, label_smoothing=0.3).items():
        assert float(trainer.callback_metrics[f"train/{name}"]) == pytest.approx(value, abs=1e-6)
    assert float(trainer.callback_metrics["val/loss"]) == pytest.approx(
        values_of(model, data)["loss"], abs=1e-6
    )


def test_it_learns(make_trainer: MakeTrainer, small_images: MakeData) -> None:
    seed_everything(7)
    trainer = make_trainer(max_epochs=10)
    trainer.fit(ImageClassifier(learning_rate=5e-3), datamodule=small_images(num_images=60))
    assert trainer.callback_metrics["val/accuracy"] > 0.9


def test_the_same_seed_gives_the_same_model(
    make_trainer: MakeTrainer, small_images: MakeData
) -> None:
    states = []
    for _ in range(2):
        seed_everything(7)
        model = ImageClassifier()
        make_trainer().fit(model, datamodule=small_images())
        states.append(model.state_dict())
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


# Classes


def test_classes_come_from_the_data(make_trainer: MakeTrainer, small_images: MakeData) -> None:
    model = ImageClassifier()
    make_trainer().fit(model, datamodule=small_images())
    assert model.class_names == ["daisy", "rose", "tulip"]
    assert model.example_input_array is not None
    assert model.eval()(model.example_input_array).shape == (1, 3)


@pytest.mark.parametrize(
    ("settings", "names"),
    [({"class_names": ["a", "b", "c"]}, ["a", "b", "c"]), ({"num_classes": 3}, ["0", "1", "2"])],
    ids=["names", "count"],
)
def test_classes_can_be_reported_where_the_data_is_silent(
    make_trainer: MakeTrainer, small_images: MakeData, settings: dict[str, Any], names: list[str]
) -> None:
    model = ImageClassifier(**settings)
    make_trainer().fit(model, datamodule=small_images(class_names=None))
    assert model.class_names == names


@pytest.mark.parametrize(
    ("settings", "names", "says"),
    [
        (
            {},
            None,
            "the classes are unknown: the data module has neither class_names nor num_classes",
        ),
        ({"num_classes": 4}, ["a", "b", "c"], "num_classes is 4, and there are 3 classes"),
        ({"class_names": ["a", "c", "b"]}, ["a", "b", "c"], "but in another order"),
    ],
    ids=["unknown", "count", "order"],
)
def test_unknown_or_contradicting_classes_are_refused(
    make_trainer: MakeTrainer,
    small_images: MakeData,
    settings: dict[str, Any],
    names: list[str] | None,
    says: str,
) -> None:
    with pytest.raises(ConfigError, match=says):
        make_trainer().fit(ImageClassifier(**settings), datamodule=small_images(class_names=names))


@pytest.mark.parametrize("smoothing", [-0.1, 1.0, float("nan")])
def test_a_label_smoothing_out_of_range_is_refused(smoothing: float) -> None:
    with pytest.raises(ConfigError, match=r"label_smoothing: expected at least 0 and below 1, got"):
        ImageClassifier(label_smoothing=smoothing)


def test_an_unknown_backbone_is_refused_before_anything_is_built() -> None:
    with pytest.raises(ConfigError, match=r"did you mean .*resnet50"):
        ImageClassifier("resnet_50")


def test_a_transformer_reports_which_image_size_it_takes(
    make_trainer: MakeTrainer, small_images: MakeData
) -> None:
    with pytest.raises(
        ConfigError, match="vit_b_32 takes images of 224 x 224 pixels, and the data gives 32 x 32"
    ):
        make_trainer().fit(ImageClassifier("vit_b_32"), datamodule=small_images())


# Weights and freezing


@pytest.fixture
def pretrained_file(tmp_path: Path) -> Path:
    torch.manual_seed(3)
    path = tmp_path / "pretrained.pth"
    torch.save(build("mobilenet_v3_small", 9).state_dict(), path)
    return path


def is_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.BatchNorm2d | nn.Dropout)


def test_a_frozen_backbone_stays_as_it_was(
    make_trainer: MakeTrainer, small_images: MakeData, pretrained_file: Path
) -> None:
    model = ImageClassifier("mobilenet_v3_small", weights=str(pretrained_file), freeze="backbone")
    make_trainer(max_epochs=2).fit(model, datamodule=small_images())
    assert model.network is not None
    given, trained = torch.load(pretrained_file, weights_only=True), model.network.state_dict()
    changed = [name for name, tensor in given.items() if not torch.equal(tensor, trained[name])]
    assert changed == [] or {name.rpartition(".")[0] for name in changed} == {"classifier.3"}
    assert trained["classifier.3.weight"].shape == (3, 1024)
    assert [name for name, p in model.named_parameters() if p.requires_grad] == [
        "network.classifier.3.weight",
        "network.classifier.3.bias",
    ]


def test_a_frozen_backbone_stays_in_eval_mode_while_its_head_trains(
    make_trainer: MakeTrainer, small_images: MakeData
) -> None:
    modes = []

    class Watched(ImageClassifier):
        def training_step(self, batch: Sequence[Tensor]) -> Tensor:
            assert self.network is not None
            modes.append(
                (
                    any(m.training for m in self.network.modules() if is_norm(m)),
                    self._heads()[0].training,
                )
            )
            return super().training_step(batch)

    make_trainer(max_epochs=2).fit(
        Watched("mobilenet_v3_small", freeze="backbone"), datamodule=small_images()
    )
    assert modes == [(False, True)] * 6


def test_train_and_eval_leave_the_frozen_part_in_eval_mode() -> None:
    model = ImageClassifier("mobilenet_v3_small", freeze="backbone", num_classes=3)
    model.configure_model()
    for mode in (True, False, True):
        model.train(mode)
        assert model.network is not None
        assert not any(module.training for module in model.network.modules() if is_norm(module))
        assert model._heads()[0].training is mode
        assert model.training is mode


def test_an_unfrozen_backbone_trains(
    make_trainer: MakeTrainer, small_images: MakeData, pretrained_file: Path
) -> None:
    model = ImageClassifier("mobilenet_v3_small", weights=str(pretrained_file))
    make_trainer().fit(model, datamodule=small_images())
    assert model.network is not None
    assert any(module.training for module in model.network.modules() if is_norm(module))
    given = torch.load(pretrained_file, weights_only=True)
    assert not torch.equal(
        model.network.state_dict()["features.0.0.weight"], given["features.0.0.weight"]
    )


def test_weights_are_loaded_in_every_stage(
    make_trainer: MakeTrainer, small_images: MakeData, pretrained_file: Path
) -> None:
    first = torch.load(pretrained_file, weights_only=True)["features.0.0.weight"]
    for stage in ("validate", "test", "predict"):
        model = ImageClassifier("mobilenet_v3_small", weights=str(pretrained_file))
        getattr(make_trainer(), stage)(model, datamodule=small_images())
        assert torch.equal(model.state_dict()["network.features.0.0.weight"], first)


def test_weights_that_are_missing_are_named(
    make_trainer: MakeTrainer, small_images: MakeData
) -> None:
    with pytest.raises(
        ConfigError, match=r"model\.init_args\.weights: there is no file /nowhere/w\.pth"
    ):
        make_trainer().fit(ImageClassifier(weights="/nowhere/w.pth"), datamodule=small_images())


# Checkpoints


@pytest.fixture
def checkpoint(
    tmp_path: Path, make_trainer: MakeTrainer, small_images: MakeData, pretrained_file: Path
) -> Path:
    """A checkpoint of one epoch, whose pretrained weights are gone since."""
    trainer = make_trainer()
    model = ImageClassifier("mobilenet_v3_small", weights=str(pretrained_file), freeze="backbone")
    trainer.fit(model, datamodule=small_images())
    trainer.save_checkpoint(tmp_path / "last.ckpt", weights_only=False)
    pretrained_file.unlink()
    return tmp_path / "last.ckpt"


def test_a_checkpoint_loads_without_data_or_pretrained_weights(
    checkpoint: Path, small_images: MakeData
) -> None:
    content = torch.load(checkpoint, weights_only=True)
    model = ImageClassifier.load_from_checkpoint(checkpoint)
    assert model.class_names == content["class_names"] == ["daisy", "rose", "tulip"]
    assert model.hparams["freeze"] == "backbone"
    assert all(
        torch.equal(tensor, content["state_dict"][name])
        for name, tensor in model.state_dict().items()
    )
    assert model.eval()(small_images().images).shape == (22, 3)


@pytest.mark.parametrize("stage", ["fit", "validate", "test", "predict"])
def test_a_checkpoint_goes_on_without_its_pretrained_weights(
    checkpoint: Path, make_trainer: MakeTrainer, small_images: MakeData, stage: str
) -> None:
    model = ImageClassifier("mobilenet_v3_small", weights="/gone.pth", freeze="backbone")
    getattr(make_trainer(max_epochs=2), stage)(
        model, datamodule=small_images(), ckpt_path=checkpoint
    )
    frozen = torch.load(checkpoint, weights_only=True)["state_dict"]["network.features.0.0.weight"]
    assert torch.equal(model.state_dict()["network.features.0.0.weight"], frozen)


def test_a_checkpoint_reports_its_classes_where_the_data_cannot(
    checkpoint: Path, make_trainer: MakeTrainer, small_images: MakeData
) -> None:
    model = ImageClassifier("mobilenet_v3_small")
    batches = make_trainer().predict(
        model, datamodule=small_images(class_names=None), ckpt_path=checkpoint
    )
    assert batches is not None
    assert torch.cat([part for part in batches if isinstance(part, Tensor)]).sum(
        1
    ) == pytest.approx(torch.ones(22))
    with pytest.raises(ConfigError, match="the classes are unknown"):
        make_trainer().predict(ImageClassifier(), datamodule=small_images(class_names=None))


@pytest.mark.parametrize(
    ("settings", "names", "says"),
    [
        (
            {},
            ["daisy", "tulip", "rose"],
            "classes of the checkpoint are not those of the data, but in another order",
        ),
        (
            {},
            ["daisy", "rose"],
            r"the checkpoint has 3 \(daisy, rose, tulip\), the data 2 \(daisy, rose\)",
        ),
        (
            {"backbone": "small_cnn"},
            ["daisy", "rose", "tulip"],
            "checkpoint is not of backbone small_cnn .* Missing",
        ),
    ],
    ids=["order", "count", "backbone"],
)
def test_a_checkpoint_of_something_else_is_refused_before_anything_runs(
    checkpoint: Path,
    make_trainer: MakeTrainer,
    small_images: MakeData,
    settings: dict[str, Any],
    names: list[str],
    says: str,
) -> None:
    class Untouched(ImageClassifier):
        def forward(self, images: Tensor) -> Tensor:
            raise AssertionError("an image was looked at")

    model = Untouched(**{"backbone": "mobilenet_v3_small", **settings})
    with pytest.raises(ConfigError, match=says):
        make_trainer().test(model, datamodule=small_images(class_names=names), ckpt_path=checkpoint)


def test_a_loaded_model_refuses_data_of_other_classes(
    checkpoint: Path, make_trainer: MakeTrainer, small_images: MakeData
) -> None:
    model = ImageClassifier.load_from_checkpoint(checkpoint)
    with pytest.raises(ConfigError, match="not those of the data, but in another order"):
        make_trainer().test(model, datamodule=small_images(class_names=["tulip", "rose", "daisy"]))


def test_a_count_in_the_config_does_not_hide_the_names_of_a_checkpoint(
    tmp_path: Path, make_trainer: MakeTrainer, small_images: MakeData
) -> None:
    trainer = make_trainer()
    trainer.fit(ImageClassifier(num_classes=3), datamodule=small_images())
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    assert ImageClassifier.load_from_checkpoint(tmp_path / "last.ckpt").class_names == [
        "daisy",
        "rose",
        "tulip",
    ]


def test_a_checkpoint_of_another_kind_of_model_is_refused(
    tmp_path: Path, make_trainer: MakeTrainer, small_images: MakeData
) -> None:
    torch.save({"state_dict": {}, "pytorch-lightning_version": "2.6.6"}, tmp_path / "other.ckpt")
    with pytest.raises(ConfigError, match="the checkpoint names no classes"):
        make_trainer().test(
            ImageClassifier(), datamodule=small_images(), ckpt_path=tmp_path / "other.ckpt"
        )


def test_predictions_are_probabilities(make_trainer: MakeTrainer, small_images: MakeData) -> None:
    data, model = small_images(), ImageClassifier()
    batches = make_trainer().predict(model, datamodule=data)
    assert batches is not None
    found = torch.cat([part for part in batches if isinstance(part, Tensor)])
    torch.testing.assert_close(found, model.eval()(data.images).softmax(1))
    assert torch.equal(model.predict_step(data.images), model.predict_step((data.images,)))


# As LightningCLI and TensorBoard use it


def test_lightning_cli_builds_it_and_its_checkpoint_says_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_images: MakeData
) -> None:
    monkeypatch.setattr("sys.argv", ["lightkit"])
    # 2026-11: about Lightning 2.6's own calls
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    cli = LightningCLI(
        subclass_mode_model=True,
        run=False,
        save_config_callback=None,
        args={
            "seed_everything": 7,
            "model": {
                "class_path": "lightkit.models.ImageClassifier",
                "init_args": {"freeze": "backbone"},
            },
            "trainer": {
                **quiet,
                "accelerator": "cpu",
                "max_epochs": 1,
                "default_root_dir": str(tmp_path),
            },
        },
    )
    cli.trainer.fit(cli.model, datamodule=small_images())
    assert [type(optimizer) for optimizer in cli.trainer.optimizers] == [torch.optim.AdamW]
    cli.trainer.save_checkpoint(tmp_path / "cli.ckpt")
    assert (
        torch.load(tmp_path / "cli.ckpt", weights_only=True)["hyper_parameters"]["freeze"]
        == "backbone"
    )
    assert ImageClassifier.load_from_checkpoint(tmp_path / "cli.ckpt").frozen


# 2026-11: tensorboard 2.20 traces with TorchScript, which torch 2.15 calls deprecated
@pytest.mark.filterwarnings("ignore:`torch.jit.trace:FutureWarning")
# and tracing reads each property of torchmetrics 1.9, the deprecated ones too
@pytest.mark.filterwarnings("ignore:This property will be removed in 2.0.0:DeprecationWarning")
def test_tensorboard_draws_its_graph(
    tmp_path: Path, make_trainer: MakeTrainer, small_images: MakeData
) -> None:
    from tensorboard.backend.event_processing import event_accumulator  # type: ignore[import-untyped]  # slow

    logger = TensorBoardLogger(tmp_path, log_graph=True)
    trainer = make_trainer(logger=logger, log_every_n_steps=1)
    trainer.fit(ImageClassifier(freeze="backbone"), datamodule=small_images())
    events = event_accumulator.EventAccumulator(logger.log_dir).Reload()
    assert b"Conv2d" in events.Graph().SerializeToString()
    assert {"train/loss", "train/accuracy", "val/f1", "val/recall"} <= set(events.Tags()["scalars"])
    assert len(events.Scalars("train/loss")) == 1
