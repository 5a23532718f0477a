from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from lightkit.registry.logged_model import scriptable_graph


class Squares(nn.Module):
    """Cuts a square out of the middle, by sizes that are known only when it runs."""

    def forward(self, x: Tensor) -> Tensor:
        side = torch.sym_min(x.shape[1], x.shape[2])
        mean: Tensor = torch.arange(x.shape[1]).sum() + x.mean((1, 2)) * side + x.shape[0]
        return mean


class Pair(nn.Module):
    """Gives two tensors."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x + 1, x - 1


def exported(module: nn.Module, example: Tensor) -> torch.fx.GraphModule:
    shapes = ({axis: Dim(name, min=1) for axis, name in enumerate(["batch", "height", "width"][: example.ndim])},)
    return torch.export.export(module, (example,), dynamic_shapes=shapes).module()


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_plain_graph_is_scripted_and_exported_again_with_sizes_of_any_length() -> None:
    graph = scriptable_graph(exported(Squares(), torch.rand(2, 5, 7)))
    again = exported(graph, torch.rand(2, 5, 7))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 2026-11: torch 2.15 on TorchScript
        scripted = torch.jit.script(graph)
    for size in [(1, 9, 4), (7, 4, 9), (32, 6, 6)]:
        x = torch.rand(size)
        for form in (graph, again, scripted):
            assert torch.equal(form(x), Squares()(x))


def test_a_graph_of_several_outputs_stays_as_it_is() -> None:
    graph = exported(Pair(), torch.rand(2, 5))
    assert scriptable_graph(graph) is graph
