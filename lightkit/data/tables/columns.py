"""Which columns of a table are image, features, label, weight and split, checked against what the table has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

import pyarrow as pa
from pyarrow import types

from lightkit.errors import ConfigError, DataError

__all__ = ["Columns", "Target", "columns_of", "missing_column", "plain_type"]

Target = Literal["auto", "class", "value"]

_NUM_SHOWN = 12


@dataclass(frozen=True)
class Columns:
    """The columns that make up a sample, each of a type that fits.

    Args:
        image: Encoded images: binary, or a struct with a binary field ``bytes`` as Hugging Face's data sets have it.
        features: Numbers, lists or tensors of numbers; those of several columns are joined into one vector.
        label: What is to be predicted; None where the table has nothing of the kind.
        weight: Numbers of 0 or more by which a sample's loss is multiplied.
        split: Names of splits.
        key: What the split of a row is decided by, in place of its content.
        target: Whether the label is a class or a number.
    """

    image: str | None
    features: tuple[str, ...]
    label: str | None
    weight: str | None = None
    split: str | None = None
    key: str | None = None
    target: Literal["class", "value"] = "class"

    @property
    def of_a_sample(self) -> list[str]:
        """Those that are read for each batch."""
        image = [self.image] if self.image else []
        return list(dict.fromkeys([*image, *self.features, *filter(None, (self.label, self.weight))]))


def columns_of(
    schema: pa.Schema,
    *,
    image: str | None = None,
    features: str | Sequence[str] | None = None,
    label: str | None = "label",
    weight: str | None = None,
    split: str | None = None,
    key: str | None = None,
    target: Target = "auto",
) -> Columns:
    """Find the columns in a table's schema.

    Args:
        schema: The table's.
        image: As in `Columns`. Where neither it nor ``features`` is given, a column ``image`` is taken.
        features: As in `Columns`.
        label: As in `Columns`.
        weight: As in `Columns`.
        split: As in `Columns`.
        key: As in `Columns`.
        target: `auto` takes text, integers and booleans for classes, and other numbers for values.

    Raises:
        ConfigError: If both image and features are given.
        DataError: If a column is missing, or of a type that does not fit.
    """
    names = (features,) if isinstance(features, str) else tuple(features or ())
    if image is not None and names:
        raise ConfigError(
            f"data.init_args.image ({image!r}) and data.init_args.features ({', '.join(names)}) are both set. A model "
            "gets one of them: leave out the other."
        )
    if image is None and not names:
        if "image" not in schema.names:
            raise DataError(
                f"the table has no column 'image'. Set data.init_args.image to its column of encoded images, or "
                f"data.init_args.features to its columns of numbers; it has {_listed(schema)}."
            )
        image = "image"
    wanted = {"image": image, "label": label, "weight": weight, "split": split, "key": key}
    for argument, name in [*wanted.items(), *(("features", name) for name in names)]:
        if name is not None:
            _check(schema, argument, name)
    resolved = "class" if label is None else _target_of(plain_type(schema.field(label).type), target, label)
    return Columns(image, names, label, weight, split, key, resolved)


def missing_column(schema: pa.Schema, argument: str, name: str) -> DataError:
    """Say that a table lacks a column, with the near names."""
    near = get_close_matches(name, schema.names, n=3)
    by_case = [column for column in schema.names if column.lower() == name.lower()]
    shown = list(dict.fromkeys([*by_case, *near]))
    hint = f"did you mean {' or '.join(map(repr, shown))}?" if shown else f"it has {_listed(schema)}."
    return DataError(f"data.init_args.{argument}: the table has no column {name!r}; {hint}")


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Give the type of the values themselves, without a dictionary or an extension around them."""
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    return plain_type(kind.value_type) if types.is_dictionary(kind) else kind


def _listed(schema: pa.Schema) -> str:
    return ", ".join(schema.names[:_NUM_SHOWN]) + (", ..." if len(schema.names) > _NUM_SHOWN else "")


def _check(schema: pa.Schema, argument: str, name: str) -> None:
    places = schema.get_all_field_indices(name)
    if not places:
        raise missing_column(schema, argument, name)
    if len(places) > 1:
        raise DataError(f"data.init_args.{argument}: the table has {len(places)} columns {name!r}. Rename all but one.")
    found = schema.field(places[0]).type
    fits, expected = _EXPECTED[argument]
    if not fits(plain_type(found)):
        raise DataError(f"data.init_args.{argument}: column {name!r} holds {found}, expected {expected}.")


def _target_of(kind: pa.DataType, target: Target, label: str) -> Literal["class", "value"]:
    if target == "value" and not (_is_number(kind) or types.is_boolean(kind)):
        raise DataError(
            f"data.init_args.target: column {label!r} holds {kind}, which is no number to predict. Set it to class, "
            "or data.init_args.label to a column of numbers."
        )
    if target == "auto":
        return "value" if types.is_floating(kind) or types.is_decimal(kind) else "class"
    return target


def _is_number(kind: pa.DataType) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind) or kind in _views("string_view"))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or kind in _views("binary_view"))


def _views(name: str) -> list[pa.DataType]:
    """The type where pyarrow has it (since 16)."""
    return [getattr(pa, name)()] if hasattr(pa, name) else []


def _is_image(kind: pa.DataType) -> bool:
    if types.is_struct(kind):
        place = kind.get_field_index("bytes")
        return place >= 0 and _is_bytes(kind.field(place).type)
    return _is_bytes(kind)


def _is_feature(kind: pa.DataType) -> bool:
    if types.is_list(kind) or types.is_large_list(kind):
        return _is_number(kind.value_type)
    if types.is_fixed_size_list(kind):
        return _is_feature(kind.value_type)
    return _is_number(kind) or bool(types.is_boolean(kind))


def _is_label(kind: pa.DataType) -> bool:
    return _is_text(kind) or _is_number(kind) or bool(types.is_boolean(kind))


def _is_key(kind: pa.DataType) -> bool:
    return _is_text(kind) or _is_bytes(kind) or bool(types.is_integer(kind))


_EXPECTED = {
    "image": (_is_image, "encoded images as binary, or a struct with a binary field 'bytes'"),
    "features": (_is_feature, "numbers, or lists or tensors of numbers"),
    "label": (_is_label, "text, integers or booleans for classes, or numbers to predict"),
    "weight": (_is_number, "numbers of 0 or more"),
    "split": (_is_text, "the names train, val (or valid, validation) and test"),
    "key": (_is_key, "text, integers or binary"),
}
