"""What forward is called with, found in batches, examples and shapes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightkit.errors import ConfigError
from lightkit.export.forward import (
    describe_value,
    example_from_module,
    example_from_shapes,
    find_inputs,
    name_inputs,
)

A, B, Y = torch.zeros(4, 3), torch.ones(4, 2), torch.arange(4)


class TakesOne(nn.Module):
    def forward(self, image: Tensor) -> Tensor:
        return image


class TakesTwo(nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return left + right


class TakesOneOrTwo(nn.Module):
    def forward(self, left: Tensor, right: Tensor | None = None) -> Tensor:
        return left


class TakesAny(nn.Module):
    def forward(self, *parts: Tensor) -> Tensor:
        return parts[0]


class SaysItself(TakesTwo):
    def forward_inputs(self, batch: Any) -> Any:
        return batch["pair"]


class TakesByName(nn.Module):
    def forward(self, left: Tensor, *, right: Tensor) -> Tensor:
        return left


@pytest.mark.parametrize(
    ("module", "batch", "expected"),
    [
        (TakesOne(), A, [A]),
        (TakesOne(), (A, Y), [A]),
        (TakesOne(), [A, Y], [A]),
        (TakesOne(), (A,), [A]),
        (TakesOne(), {"image": A, "label": Y}, [A]),
        (TakesOne(), ({"image": A}, Y), [A]),
        (TakesTwo(), (A, B, Y), [A, B]),
        (TakesTwo(), ((A, B), Y), [A, B]),
        (TakesTwo(), ([A, B], Y), [A, B]),
        (TakesTwo(), {"right": B, "y": Y, "left": A}, [A, B]),
        (TakesOneOrTwo(), (A, Y), [A]),
        (TakesOneOrTwo(), {"left": A, "right": B}, [A, B]),
        (TakesOneOrTwo(), {"left": A}, [A]),
        (TakesAny(), (A, Y), [A]),
        (SaysItself(), {"pair": (A, B)}, [A, B]),
        (SaysItself(), {"pair": {"right": B, "left": A}}, [A, B]),
    ],
    ids=[
        *("tensor", "with_target", "list", "alone", "by_key", "dict_and_target"),
        *("leading_items", "nested_tuple", "nested_list", "by_keys"),
        *(
            "no_optional_item",
            "optional_key",
            "without_optional_key",
            "any_number",
            "own_words",
            "own_mapping",
        ),
    ],
)
def test_inputs_are_found_in_a_batch(module: nn.Module, batch: Any, expected: list[Tensor]) -> None:
    found = find_inputs(module, batch)
    assert len(found) == len(expected)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("module", "batch", "says"),
    [
        (
            TakesTwo(),
            A,
            (
                r"TakesTwo: a batch of the data is float32 \(4, 3\), which forward\(left, right\)"
                r" does not take"
            ),
        ),
        (
            TakesTwo(),
            (A,),
            r"is a tuple of float32 \(4, 3\), which forward\(left, right\) does not take",
        ),
        (
            TakesOne(),
            {"picture": A},
            r"is a dict with picture: float32 \(4, 3\), which forward\(image\) does not take",
        ),
        (TakesOneOrTwo(), {"right": B}, r"which forward\(left, right\) does not take"),
        (TakesOne(), ["a.jpg", "b.jpg"], r"is a list of a str and a str, which"),
        (
            TakesOne(),
            torch.tensor(1.0),
            r"is float32 \(\), which .* each with the batch as its first dimension",
        ),
        (
            TakesTwo(),
            (A, B[:3]),
            r"is a tuple of float32 \(4, 3\) and float32 \(3, 2\), which .* of the same length",
        ),
        (
            SaysItself(),
            {"pair": A},
            r"forward_inputs\(batch\) gives float32 \(4, 3\), which forward\(left, right\)",
        ),
        (TakesByName(), (A, B), r"TakesByName: .* which forward\(left, right\) does not take"),
    ],
    ids=[
        *(
            "too_few",
            "too_short",
            "other_keys",
            "only_the_optional",
            "texts",
            "no_batch",
            "other_lengths",
        ),
        *("own_words", "by_name"),
    ],
)
def test_an_error_says_what_the_batch_is_and_what_forward_takes(
    module: nn.Module, batch: Any, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        find_inputs(module, batch)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (A, [A]),
        ((A,), [A]),
        ({"left": A}, [A]),
        ((A, B), [A, B]),
        ({"left": A, "right": B}, [A, B]),
    ],
    ids=["tensor", "tuple", "arguments", "two", "both_arguments"],
)
def test_an_example_of_the_module_is_taken_whole(said: Any, expected: list[Tensor]) -> None:
    module = TakesOneOrTwo()
    module.example_input_array = said
    found = example_from_module(module)
    assert found is not None
    assert [tensor.shape for tensor in found] == [tensor.shape for tensor in expected]


def test_a_module_without_an_example_has_none() -> None:
    assert example_from_module(TakesOne()) is None


def test_an_example_that_forward_does_not_take_is_an_error() -> None:
    module = TakesOne()
    module.example_input_array = (A, B)  # type: ignore[assignment]
    with pytest.raises(
        ConfigError,
        match=r"example_input_array is a tuple of .* which forward\(image\) does not take",
    ):
        example_from_module(module)


def test_shapes_make_the_same_float32_inputs_each_time() -> None:
    shapes = [((4, 3), "float32"), ((4, 5), "float32")]
    made, again = example_from_shapes(TakesTwo(), shapes), example_from_shapes(TakesTwo(), shapes)
    assert [tuple(tensor.shape) for tensor in made] == [(4, 3), (4, 5)]
    assert {tensor.dtype for tensor in made} == {torch.float32}
    assert all(torch.equal(one, other) for one, other in zip(made, again, strict=True))


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        (
            [((1, 3), "float32")],
            r"forward\(left, right\) of TakesTwo does not take 1 shape \(1x3\)",
        ),
        ([((1, 3), "float32")] * 3, r"does not take 3 shapes \(1x3; 1x3; 1x3\)"),
    ],
    ids=["too_few", "too_many"],
)
def test_shapes_that_forward_does_not_take_are_an_error(shapes: list[Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        example_from_shapes(TakesTwo(), shapes)


def test_inputs_are_named_after_the_arguments() -> None:
    assert name_inputs(TakesTwo(), 2) == ["left", "right"]
    assert name_inputs(TakesAny(), 2) == ["input_0", "input_1"]


def test_a_batch_is_described_in_a_few_words() -> None:
    assert (
        describe_value({"a": A, "b": [Y, "x"]})
        == "a dict with a: float32 (4, 3), b: a list of int64 (4,) and a str"
    )


class Embeds(nn.Module):
    """Takes whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(2, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        """Give (batch, length, 3)."""
        looked_up: Tensor = self.table(tokens)
        return looked_up


def test_inputs_have_the_dtype_that_is_said() -> None:
    (tokens,) = example_from_shapes(Embeds(), [((1, 50), "int64")])
    assert (tokens.dtype, tokens.shape) == (torch.int64, (1, 50))
    assert Embeds()(tokens).shape == (1, 50, 3)
    (pixels,) = example_from_shapes(Embeds(), [((4, 50), "uint8")])
    assert pixels.dtype == torch.uint8
    assert int(pixels.max()) > 200
    (flags,) = example_from_shapes(Embeds(), [((4, 50), "bool")])
    assert set(flags.flatten().tolist()) == {False, True}
