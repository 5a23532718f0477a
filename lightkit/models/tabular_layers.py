"""Networks for rows of a table: MLP, ResNet and TabM, on embeddings of numbers and categories."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

NetworkName = Literal["mlp", "resnet", "tabm"]
_UNBOUNDED = 1e4  # of a share of a bin, in the place of infinity, which float16 has not


class PiecewiseLinear(nn.Module):
    """Embeddings of numbers by the bins that they are in.

    A number is the sum of a linear embedding and of one that is piecewise linear, whose weights
    begin at 0: Yu. Gorishniy et al., "On Embeddings for Numerical Features in Tabular Deep
    Learning" (arXiv:2203.05556), equation 1, in the form of TabM (arXiv:2410.24210, appendix on
    embeddings). The first and the last bin have no outer border.

    Args:
        edges: Borders of the bins of each number, ascending, at least two.
        width: Of an embedding.
    """

    low: Tensor
    scale: Tensor
    least: Tensor
    most: Tensor

    def __init__(self, edges: Sequence[Sequence[float]], width: int) -> None:
        super().__init__()
        num_bins = max(len(each) - 1 for each in edges)
        low, scale, least = torch.zeros(3, len(edges), num_bins)
        most = torch.ones(len(edges), num_bins)
        for at, borders in enumerate(edges):
            starts = torch.tensor(borders[:-1])
            num = len(starts)
            low[at, :num] = starts
            scale[at, :num] = 1 / (torch.tensor(borders[1:]) - starts)
            least[at, 0] = -_UNBOUNDED
            most[at, num - 1] = _UNBOUNDED
        for name, values in (("low", low), ("scale", scale), ("least", least), ("most", most)):
            # memory of its own, which safetensors asks for
            self.register_buffer(name, values.clone())
        self.linear = nn.Parameter(torch.empty(len(edges), width))
        self.bias = nn.Parameter(torch.empty(len(edges), width))
        self.steps = nn.Parameter(torch.zeros(len(edges), num_bins, width))
        nn.init.uniform_(self.linear, -1, 1)
        nn.init.uniform_(self.bias, -1, 1)

    def forward(self, numbers: Tensor) -> Tensor:
        """Return ``(batch, numbers, width)``."""
        shares = (numbers[:, :, None] - self.low) * self.scale
        shares = torch.minimum(torch.maximum(shares, self.least), self.most)
        stepped = torch.bmm(shares.transpose(0, 1), self.steps).transpose(0, 1)
        return numbers[:, :, None] * self.linear + self.bias + stepped


class RowEncoder(nn.Module):
    """The inputs of a row as one vector.

    Numbers as they are or embedded, then the embeddings of categories.

    Args:
        edges: Borders of the bins of each number; empty where there are none.
        sizes: Number of indices of each category.
        width: Of an embedding of a number; 0 leaves numbers as they are.
        category_width: Most numbers of an embedding of a category.
    """

    def __init__(
        self,
        edges: Sequence[Sequence[float]],
        sizes: Sequence[int],
        *,
        width: int,
        category_width: int,
    ) -> None:
        super().__init__()
        self.has_numbers = bool(edges)
        self.numbers = PiecewiseLinear(edges, width) if edges and width else None
        widths = [min(category_width, size) for size in sizes]
        tables = [nn.Embedding(size, each) for size, each in zip(sizes, widths, strict=True)]
        for table in tables:
            nn.init.normal_(table.weight, std=1 / math.sqrt(table.embedding_dim))
            with torch.no_grad():
                table.weight[0] = 0  # unknown in the training as well: it says nothing
        self.categories = nn.ModuleList(tables)
        self.chunks = [max(width, 1)] * len(edges) + widths
        """Numbers of each column in the vector."""

    def forward(self, numbers: Tensor | None, categories: Tensor | None) -> Tensor:
        """Return ``(batch, sum of the chunks)``."""
        parts = []
        if numbers is not None:
            parts.append(numbers if self.numbers is None else self.numbers(numbers).flatten(1))
        if categories is not None:
            parts += [table(categories[:, at]) for at, table in enumerate(self.categories)]
        return torch.cat(parts, dim=1)


class MLP(nn.Module):
    """Linear layers with ReLU and dropout (arXiv:2106.11959, section 3.1); one member."""

    def __init__(
        self, num_inputs: int, num_outputs: int, *, hidden: int, blocks: int, dropout: float
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for at in range(blocks):
            layers += [
                nn.Linear(hidden if at else num_inputs, hidden),
                nn.ReLU(),
                nn.Dropout(dropout),
            ]
        self.layers = nn.Sequential(
            *layers, nn.Linear(hidden if blocks else num_inputs, num_outputs)
        )

    def forward(self, rows: Tensor) -> Tensor:
        """Return ``(batch, 1, num_outputs)``."""
        outputs: Tensor = self.layers(rows)
        return outputs[:, None]


class ResNet(nn.Module):
    """Residual blocks of batch norm, two linear layers and dropout (arXiv:2106.11959, section 3.2).

    One member.
    """

    def __init__(
        self, num_inputs: int, num_outputs: int, *, hidden: int, blocks: int, dropout: float
    ) -> None:
        super().__init__()
        self.first = nn.Linear(num_inputs, hidden)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm1d(hidden),
                nn.Linear(hidden, 2 * hidden),
                nn.ReLU(),
                nn.Dropout(dropout),
                nn.Linear(2 * hidden, hidden),
            )
            for _ in range(blocks)
        )
        self.head = nn.Sequential(nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, num_outputs))

    def forward(self, rows: Tensor) -> Tensor:
        """Return ``(batch, 1, num_outputs)``."""
        rows = self.first(rows)
        for block in self.blocks:
            rows = rows + block(rows)
        outputs: Tensor = self.head(rows)
        return outputs[:, None]


class EnsembleLinear(nn.Module):
    """A linear layer of many members that share its weight.

    Each with scales of inputs and outputs and its own bias.

    Wen et al., "BatchEnsemble" (arXiv:2002.06715), as TabM has it: scales begin at 1, biases alike
    for all members.
    """

    def __init__(self, num_inputs: int, num_outputs: int, members: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_outputs, num_inputs))
        self.input_scale = nn.Parameter(torch.ones(members, num_inputs))
        self.output_scale = nn.Parameter(torch.ones(members, num_outputs))
        bound = 1 / math.sqrt(num_inputs)
        nn.init.uniform_(self.weight, -bound, bound)
        bias = torch.empty(num_outputs).uniform_(-bound, bound)
        self.bias = nn.Parameter(bias.repeat(members, 1))

    def forward(self, rows: Tensor) -> Tensor:
        """Return ``(batch, members, num_outputs)`` for ``(batch, members, num_inputs)``."""
        return (
            nn.functional.linear(rows * self.input_scale, self.weight) * self.output_scale
            + self.bias
        )


class TabM(nn.Module):
    """An ensemble of MLPs that share most weights (Gorishniy et al., arXiv:2410.24210, section 3).

    The first scales of the inputs are drawn at random, one number for all of a column, so that the
    members differ; each member has its own head.

    Args:
        chunks: Numbers of each column in a row.
        num_outputs: Of each member.
        hidden: Units of a layer.
        blocks: Layers before the heads.
        dropout: Share of units that are dropped.
        members: Number of members.
        draws_signs: Whether the first scales are 1 and -1, for numbers as they are; else they are
            normal.
    """

    def __init__(
        self,
        chunks: Sequence[int],
        num_outputs: int,
        *,
        hidden: int,
        blocks: int,
        dropout: float,
        members: int,
        draws_signs: bool,
    ) -> None:
        super().__init__()
        self.members = members
        num_inputs = sum(chunks)
        drawn = torch.randn(members, len(chunks))
        drawn = drawn.sign() if draws_signs else drawn
        layers: list[nn.Module] = []
        for at in range(blocks):
            layers += [
                EnsembleLinear(hidden if at else num_inputs, hidden, members),
                nn.ReLU(),
                nn.Dropout(dropout),
            ]
        first = layers[0]
        assert isinstance(first, EnsembleLinear)
        with torch.no_grad():
            first.input_scale.copy_(drawn.repeat_interleave(torch.tensor(chunks), dim=1))
        self.layers = nn.Sequential(*layers)
        bound = 1 / math.sqrt(hidden)
        self.head = nn.Parameter(torch.empty(members, hidden, num_outputs).uniform_(-bound, bound))
        self.head_bias = nn.Parameter(torch.empty(members, num_outputs).uniform_(-bound, bound))

    def forward(self, rows: Tensor) -> Tensor:
        """Return ``(batch, members, num_outputs)``."""
        hidden: Tensor = self.layers(rows[:, None].expand(-1, self.members, -1))
        outputs = torch.bmm(hidden.transpose(0, 1), self.head).transpose(0, 1)
        return outputs + self.head_bias


def build_network(
    name: NetworkName,
    chunks: Sequence[int],
    num_outputs: int,
    *,
    hidden: int,
    blocks: int,
    dropout: float,
    members: int,
    draws_signs: bool,
) -> nn.Module:
    """Build the network of a name; see its class."""
    sizes = {"hidden": hidden, "blocks": blocks}
    if name == "tabm":
        return TabM(
            chunks, num_outputs, **sizes, dropout=dropout, members=members, draws_signs=draws_signs
        )
    kind = MLP if name == "mlp" else ResNet
    return kind(sum(chunks), num_outputs, **sizes, dropout=dropout)
