from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch.utils.tensorboard import SummaryWriter

from lightkit import runs
from lightkit.loggers import TensorBoard


class Fails(pl.Callback):
    """Fails before anything is logged.

    Args:
        error: What it raises.
    """

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def on_train_batch_start(self, *_: Any) -> None:
        raise self._error


def _read(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

    events = EventAccumulator(str(folder))
    events.Reload()
    return events


def test_files_lie_flat_in_the_runs_folder(train: Any, net: Any, run: runs.Run) -> None:
    module = net()
    module.example_input_array = torch.zeros(2, 4)
    logger = TensorBoard()
    train(run.folder, logger, module=module, enable_checkpointing=False)
    logger.add_picture("val/confusion", torch.zeros(3, 8, 9, dtype=torch.uint8), step=12)
    logger.finalize("success")

    folder = run.folder / "tensorboard"
    assert Path(logger.log_dir) == folder
    assert {path.name.split(".")[0] for path in folder.iterdir()} == {"events", "hparams"}
    events = _read(folder)
    tags = events.Tags()
    assert {"train_loss_step", "val_loss"} <= set(tags["scalars"])
    assert [event.step for event in events.Scalars("val_loss")] == [3, 7, 11]
    assert tags["images"] == ["val/confusion"]
    assert tags["graph"] is True
    assert "lr: 0.01" in (folder / "hparams.yaml").read_text()


def test_a_model_without_example_input_has_no_graph_and_no_warning(net: Any, run: runs.Run) -> None:
    logger = TensorBoard()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        logger.log_graph(net())
    logger.log_metrics({"x": 1.0}, step=0)
    logger.finalize("success")
    assert _read(run.folder / "tensorboard").Tags()["graph"] is False


def test_a_model_that_cannot_be_traced_is_said_once_and_trains(
    net: Any, run: runs.Run, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    module = net()
    module.example_input_array = torch.zeros(2, 5)  # the layer takes four
    before = torch.get_rng_state()
    TensorBoard().log_graph(module)
    (said,) = caplog.messages
    assert said.startswith("TensorBoard shows no graph: the model cannot be traced (RuntimeError: ")
    assert "mat1 and mat2 shapes cannot be multiplied (2x5 and 4x2)" in said
    assert capsys.readouterr().out == ""
    assert torch.equal(torch.get_rng_state(), before)
    assert module.training


def test_a_training_makes_its_first_step_before_the_graph_is_drawn(
    net: Any, run: runs.Run, train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = net()
    module.example_input_array = torch.zeros(2, 4)
    steps: list[int] = []
    add_graph = SummaryWriter.add_graph

    def record_graph(self: SummaryWriter, *given: Any) -> None:
        steps.append(module.trainer.global_step)
        add_graph(self, *given)

    monkeypatch.setattr(SummaryWriter, "add_graph", record_graph)
    train(run.folder, TensorBoard(), module=module, enable_checkpointing=False)
    assert len(steps) == 1
    assert steps[0] > 0


def test_a_training_makes_its_first_step_before_hyperparameters_are_written(
    run: runs.Run, train: Any
) -> None:
    file = run.folder / "tensorboard" / "hparams.yaml"
    seen: list[bool] = []

    class Look(pl.Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            seen.append(file.exists())

    train(run.folder, TensorBoard(), Look(), enable_checkpointing=False)
    assert not seen[0]
    assert seen[-1]


def test_a_training_that_fails_before_its_first_metrics_has_its_hyperparameters(
    run: runs.Run, train: Any
) -> None:
    with pytest.raises(ZeroDivisionError):
        train(run.folder, TensorBoard(), Fails(ZeroDivisionError()), enable_checkpointing=False)
    events = _read(run.folder / "tensorboard")
    (summary,) = (
        events.SummaryMetadata(tag).plugin_data.content
        for tag in events.PluginTagToContent("hparams")
        if tag.endswith("session_start_info")
    )
    assert b"lr" in summary
    assert [event.value for event in events.Scalars("hp_metric")] == [-1.0]
    assert "lr: 0.01" in (run.folder / "tensorboard" / "hparams.yaml").read_text()


def test_log_graph_can_be_switched_off(net: Any, run: runs.Run) -> None:
    module = net()
    module.example_input_array = torch.zeros(2, 4)
    logger = TensorBoard(log_graph=False)
    logger.log_graph(module)
    logger.log_metrics({"x": 1.0}, step=0)
    logger.finalize("success")
    assert _read(run.folder / "tensorboard").Tags()["graph"] is False


def test_outside_a_run_versions_lie_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for version in ("version_0", "version_1"):
        logger = TensorBoard()
        logger.log_metrics({"x": 1.0}, step=0)
        logger.finalize("success")
        assert [path.name for path in (tmp_path / "tensorboard" / version).glob("events*")]
