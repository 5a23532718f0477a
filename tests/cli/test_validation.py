"""Mistakes that only an import shows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pytorch_lightning import LightningModule
from torch import nn

from lightkit.cli.validation import lacks_forward
from tests.cli.conftest import House


class _Net(nn.Module):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows + 1


class _Empty(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)


class _OfSibling(LightningModule, _Net):
    """A module whose forward comes behind Lightning's, which calls the next one."""


class _Assigned(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = _Net()
        self.forward = self.net.forward  # type: ignore[method-assign]


class _Called(LightningModule):
    def __call__(self, rows: torch.Tensor) -> Any:
        return _Net()(rows)


class _OfAssigned(_Assigned):
    pass


class _TakenBack(_OfSibling):
    forward = LightningModule.forward


@pytest.mark.parametrize("cls", [_OfSibling, _Assigned, _Called, _OfAssigned, _TakenBack])
def test_a_module_that_computes_in_any_way_has_a_forward(cls: type[LightningModule]) -> None:
    assert cls().predict_step(torch.zeros(2), 0).tolist() == [1, 1]
    assert not lacks_forward(cls)


class _Plain(_Empty):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows


class _Again(_Plain):
    forward = LightningModule.forward


@pytest.mark.parametrize("cls", [_Empty, _Again])
def test_a_module_with_layers_alone_has_no_forward(cls: type[LightningModule]) -> None:
    with pytest.raises(NotImplementedError):
        cls().predict_step(torch.zeros(2), 0)
    assert lacks_forward(cls)


def test_a_config_with_an_error_is_not_printed(house: House) -> None:
    house.write("wrong.yaml", "trainer: {max_epoch: 3}\n")
    done = house("fit", "-c", "small.yaml", "-c", "wrong.yaml", "--print_config")
    assert (done.code, done.out) == (2, "")
    assert "trainer.max_epoch" in done.err
    assert "model" in house.resolved("-c", "small.yaml")


def test_a_check_prints_no_config(house: House) -> None:
    assert house("check", "-c", "small.yaml", "--print_config").out.startswith("no mistakes found")


@pytest.mark.parametrize("section", ["run", "trainer"])
def test_a_number_in_the_place_of_a_section_is_an_error(house: House, section: str) -> None:
    done = house("fit", "-c", "small.yaml", f"{section}=3")
    assert done.code == 2
    assert f"{section}: expected a mapping" in done.err


def test_text_that_is_neither_class_nor_file_is_repeated_in_the_error(house: House) -> None:
    done = house("check", "-c", "small.yaml", "--model=my_models/net.Net")
    assert done.code == 2
    assert "Unexpected import path format: my_models/net.Net" in done.err


def test_a_run_root_that_no_layer_sets_is_reported_without_a_place(house: House) -> None:
    house.write("quiet.yaml", "run: {report: false}\n")
    house.write("runs", "a file")
    done = house("check", "-c", "small.yaml", "-c", "quiet.yaml")
    assert done.code == 2
    assert "run.root: cannot write runs: Not a directory" in done.err
    assert "quiet.yaml" not in done.err
    named = house("check", "-c", "small.yaml", "-c", "quiet.yaml", "--run.root=runs")
    assert "--> --run.root=runs" in named.err
