from __future__ import annotations

import argparse
import datetime as dt
import decimal
import logging
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit import runs
from lightkit.callbacks import VerifiedCheckpointIO
from lightkit.callbacks.checkpoint_io import CheckpointReader, read_checkpoint
from lightkit.errors import ConfigError

LOOPS: dict[str, Any] = {
    name: {} for name in ("fit_loop", "validate_loop", "test_loop", "predict_loop")
}
CONTENT: dict[str, Any] = {
    "state_dict": {"weight": torch.arange(3.0)},
    "pytorch-lightning_version": "2.6.6",
    "loops": LOOPS,
    "optimizer_states": [],
    "lr_schedulers": [],
}


class Touches:
    """Runs a command when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("is_zip", [True, False], ids=["archive", "before torch 1.6"])
def test_a_file_that_runs_code_is_refused_and_does_not_run_it(is_zip: bool, tmp_path: Path) -> None:
    torch.save(
        {**CONTENT, "a": Touches(tmp_path / "ran")},
        tmp_path / "a.ckpt",
        _use_new_zipfile_serialization=is_zip,
    )
    with pytest.raises(
        ConfigError, match=r"a\.ckpt holds posix\.system besides tensors .* --trust"
    ):
        read_checkpoint(tmp_path / "a.ckpt")
    with pytest.raises(ConfigError, match="--trust"):
        CheckpointReader().load_checkpoint(tmp_path / "a.ckpt", weights_only=False)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_is_refused_and_does_not_run(protocol: int, tmp_path: Path) -> None:
    (tmp_path / "a.ckpt").write_bytes(pickle.dumps(Touches(tmp_path / "ran"), protocol))
    with pytest.raises(
        ConfigError, match=r"a\.ckpt (holds posix\.system|cannot be read as a checkpoint)"
    ):
        read_checkpoint(tmp_path / "a.ckpt")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("makes", ["torch.save", "pickle"])
def test_another_pickle_protocol_is_reported_with_the_reason_and_what_reads_it(
    makes: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.ckpt"
    if makes == "torch.save":
        torch.save(CONTENT, path, pickle_protocol=4)
    else:
        path.write_bytes(pickle.dumps(CONTENT, 4))
    with pytest.raises(ConfigError) as caught:
        read_checkpoint(path)
    assert (
        str(caught.value)
        == f"{path} cannot be read as a checkpoint: it is damaged, cut short, or something else"
        " (Unsupported operand 149). If you know who made it, --trust on"
        " the command line may read it."
    )
    with runs.trusting():
        if makes == "torch.save":
            assert read_checkpoint(path).keys() == CONTENT.keys()
        else:
            with pytest.raises(
                ConfigError, match=r"something else \(Invalid magic number; corrupt file\?\)\.$"
            ):
                read_checkpoint(path)


def test_no_variable_allows_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    torch.save({**CONTENT, "a": Touches(tmp_path / "ran")}, tmp_path / "a.ckpt")
    with pytest.raises(ConfigError, match="--trust"):
        read_checkpoint(tmp_path / "a.ckpt")
    assert not (tmp_path / "ran").exists()


def test_trust_loads_it_and_one_warning_says_what(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch.save({**CONTENT, "a": Touches(tmp_path / "ran")}, tmp_path / "a.ckpt")
    with caplog.at_level(logging.WARNING, "lightkit"), runs.trusting():
        for _ in range(2):
            assert read_checkpoint(tmp_path / "a.ckpt")["a"] == 0
    assert (tmp_path / "ran").exists()
    assert [record.getMessage() for record in caplog.records] == [
        f"--trust: {tmp_path / 'a.ckpt'} holds posix.system besides tensors and plain values;"
        " loading it may run code"
    ]


def test_trust_says_nothing_of_a_file_that_needs_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch.save(CONTENT, tmp_path / "a.ckpt")
    with runs.trusting():
        read_checkpoint(tmp_path / "a.ckpt")
    assert not caplog.records


def test_classes_that_only_hold_values_need_no_trust(tmp_path: Path) -> None:
    kept = {
        "a": Path("x"),
        "b": dt.timedelta(1),
        "c": decimal.Decimal("1.5"),
        "d": argparse.Namespace(e=range(3)),
    }
    allowed = set(torch.serialization.get_safe_globals())
    torch.save({**CONTENT, "callbacks": kept}, tmp_path / "a.ckpt")
    assert read_checkpoint(tmp_path / "a.ckpt")["callbacks"] == kept
    assert set(torch.serialization.get_safe_globals()) == allowed


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ([1, 2], "it lacks state_dict and pytorch-lightning_version; it has list"),
        ({"weight": torch.ones(1)}, "is a state dict, tensors alone"),
        ({"epoch": 3}, "it lacks state_dict and pytorch-lightning_version; it has epoch"),
        ({**CONTENT, "state_dict": [1]}, "it lacks state_dict; it has loops"),
    ],
    ids=["list", "state dict", "keys", "state_dict"],
)
def test_a_file_that_holds_something_else_is_reported(
    change: Any, says: str, tmp_path: Path
) -> None:
    torch.save(change, tmp_path / "a.ckpt")
    with pytest.raises(ConfigError, match=says):
        read_checkpoint(tmp_path / "a.ckpt")


def test_a_checkpoint_of_the_model_only_does_not_go_on(tmp_path: Path) -> None:
    content = {key: value for key, value in CONTENT.items() if key != "optimizer_states"}
    torch.save(content, tmp_path / "a.ckpt")
    read_checkpoint(tmp_path / "a.ckpt")
    with pytest.raises(
        ConfigError, match=r"a\.ckpt has the model only \(it lacks optimizer_states\)"
    ):
        read_checkpoint(tmp_path / "a.ckpt", goes_on=True)


@pytest.mark.parametrize("size", [100, 1000], ids=["start", "more"])
def test_a_file_that_is_cut_short_is_reported(size: int, tmp_path: Path) -> None:
    torch.save(CONTENT, tmp_path / "a.ckpt")
    (tmp_path / "a.ckpt").write_bytes((tmp_path / "a.ckpt").read_bytes()[:size])
    with pytest.raises(
        ConfigError, match="cannot be read as a checkpoint: it is damaged, cut short"
    ):
        read_checkpoint(tmp_path / "a.ckpt")


def test_what_is_written_reports_at_once_that_it_will_need_trust(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    io = VerifiedCheckpointIO()
    for name in ("a.ckpt", "b.ckpt"):
        io.save_checkpoint(
            {**CONTENT, "hyper_parameters": {"layer": torch.nn.ReLU()}}, tmp_path / name
        )
    (record,) = caplog.records
    assert "a.ckpt holds torch.nn.modules.activation.ReLU besides tensors" in record.getMessage()


def test_hyper_parameters_are_written_as_plain_values(tmp_path: Path) -> None:
    given = {"where": Path("a"), "layer": torch.nn.ReLU}
    VerifiedCheckpointIO().save_checkpoint(
        {**CONTENT, "hyper_parameters": given}, tmp_path / "a.ckpt"
    )
    content = torch.load(tmp_path / "a.ckpt", weights_only=True)
    assert content["hyper_parameters"] == {
        "where": "a",
        "layer": "torch.nn.modules.activation.ReLU",
    }
