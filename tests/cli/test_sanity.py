"""When a fit validates two batches before its first step, and when there is nothing to find."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pytorch_lightning import Callback, Trainer
from pytorch_lightning.callbacks import EarlyStopping, LambdaCallback
from torch import nn

from lightkit.cli.lightning import LightkitCLI
from lightkit.cli.sanity import needs_no_sanity_check
from lightkit.data import Temperatures
from lightkit.models import ImageClassifier, Regressor


class Own(Callback):
    """Somebody's callback."""


class OwnModel(Regressor):
    """Somebody's model."""


class OwnTrainer(Trainer):
    """Somebody's trainer."""


def _trainer(*callbacks: Callback, kind: type[Trainer] = Trainer) -> Trainer:
    return kind(
        accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=[*callbacks], enable_progress_bar=False
    )


def test_there_is_nothing_to_find_in_lightkits_own_parts() -> None:
    assert needs_no_sanity_check(_trainer(EarlyStopping("val/loss")), ImageClassifier(), Temperatures())


@pytest.mark.parametrize("callback", [Own(), LambdaCallback(on_validation_batch_end=lambda *_: None)])
def test_somebodys_callback_is_checked(callback: Callback) -> None:
    assert not needs_no_sanity_check(_trainer(callback), Regressor(), Temperatures())


@pytest.mark.parametrize("part", [Regressor, Temperatures], ids=["model", "data"])
def test_a_part_that_nobody_can_look_at_is_checked(part: type) -> None:
    assert needs_no_sanity_check(_trainer(), part())
    assert not needs_no_sanity_check(_trainer(), part(), None)


def test_somebodys_model_layer_data_or_trainer_is_checked() -> None:
    model = ImageClassifier()
    model.extra = type("Layer", (nn.Module,), {})()
    for parts in ((OwnModel(), Temperatures()), (Regressor(), None), (model, Temperatures())):
        assert not needs_no_sanity_check(_trainer(), *parts)
    assert not needs_no_sanity_check(_trainer(kind=OwnTrainer), Regressor(), Temperatures())


@pytest.mark.filterwarnings("ignore")  # of Lightning about loaders and intervals, and of jsonargparse about Lightning
@pytest.mark.parametrize(
    ("said", "given", "steps"),
    [
        ([], {}, 0),
        (["--trainer.num_sanity_val_steps=2"], {}, 2),
        (["--trainer.num_sanity_val_steps=0"], {}, 0),
        ([], {"trainer_defaults": {"callbacks": Own()}}, 2),
        ([], {"model_class": OwnModel}, 2),
        ([], {"trainer_class": OwnTrainer}, 2),
    ],
    ids=["nobody", "asked for", "not wanted", "callback of a script", "model of a script", "trainer of a script"],
)
def test_a_fit_is_checked_where_somebody_asks_or_has_written_a_part(
    said: list[str], given: dict[str, Any], steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    seen: list[float] = []

    class Fit(LightkitCLI):
        def before_fit(self) -> None:
            seen.append(self.trainer.num_sanity_val_steps)

    words = [
        "fit",
        "--seed_everything=1",
        "--trainer.max_epochs=1",
        "--trainer.limit_train_batches=1",
        "--trainer.accelerator=cpu",
        *said,
    ]
    Fit(**{"model_class": Regressor, "datamodule_class": Temperatures, "args": words, **given})
    assert seen == [steps]
