from __future__ import annotations

import pyarrow as pa
import pytest

from lightkit.data.tables.columns import Target, find_columns
from lightkit.errors import ConfigError, DataError

SCHEMA = pa.schema([
    ("image", pa.binary()), ("photo",
                             pa.struct([("bytes", pa.large_binary()), ("path", pa.string())])),
    ("height", pa.float32()), ("counts", pa.list_(pa.int8(), 3)), ("waves", pa.list_(pa.float64())),
    ("tensor", pa.fixed_shape_tensor(pa.float32(), [2, 2])), ("words", pa.list_(pa.string())),
    ("label", pa.string()), ("kind", pa.dictionary(pa.int32(), pa.string())),
    ("number", pa.int16()),
    ("yes", pa.bool_()), ("price", pa.decimal128(9, 2)), ("weight", pa.float64()),
    ("when", pa.date32()),
])  # fmt: skip


@pytest.mark.parametrize(
    ("label", "target", "expected"),
    [
        ("label", "auto", "class"), ("kind", "auto", "class"), ("number", "auto", "class"),
        ("yes", "auto", "class"),
        ("height", "auto", "value"), ("price", "auto", "value"), ("number", "value", "value"),
        ("height", "class", "class"), (None, "auto", "class"),
    ],
)  # fmt: skip
def test_text_and_integers_are_classes_and_other_numbers_values(
    label: str | None, target: Target, expected: str
) -> None:
    assert find_columns(SCHEMA, label=label, target=target).target == expected


def test_a_column_of_the_name_image_is_taken_unless_another_is_named() -> None:
    assert find_columns(SCHEMA).of_a_sample == ["image", "label"]
    assert find_columns(SCHEMA, image="photo", weight="weight").of_a_sample == [
        "photo",
        "label",
        "weight",
    ]
    features = find_columns(SCHEMA, features=["height", "counts", "waves", "tensor", "yes"])
    assert (features.image, features.features) == (
        None,
        ("height", "counts", "waves", "tensor", "yes"),
    )
    assert find_columns(SCHEMA, features="height").features == ("height",)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            {"label": "lable"},
            r"data\.init_args\.label: the table has no column 'lable'; did you mean 'label'\?",
        ),
        (
            {"weight": "zzz"},
            (
                r"data\.init_args\.weight: .* 'zzz'; it has image, photo,"
                r" height, .*, yes, price, \.\.\."
            ),
        ),
        (
            {"features": ["height", "hight"]},
            r"data\.init_args\.features: .* 'hight'; did you mean 'height' or",
        ),
        (
            {"image": "label"},
            (
                r"data\.init_args\.image: column 'label' holds string,"
                r" expected encoded images as binary"
            ),
        ),
        (
            {"features": "words"},
            r"features: column 'words' holds list<.*string>, expected numbers, or lists",
        ),
        ({"features": "label"}, r"features: column 'label' holds string, expected numbers"),
        (
            {"label": "when"},
            r"label: column 'when' holds date32.*, expected text, integers or booleans for classes",
        ),
        (
            {"weight": "label"},
            r"weight: column 'label' holds string, expected numbers of 0 or more",
        ),
        ({"split": "number"}, r"split: column 'number' holds int16, expected the names train, val"),
        ({"key": "height"}, r"key: column 'height' holds float, expected text, integers or binary"),
        (
            {"target": "value"},
            (
                r"target: column 'label' holds string, which is not a"
                r" number to predict\. Set it to class"
            ),
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_a_column_that_is_missing_or_does_not_fit_is_reported(
    arguments: dict[str, object], says: str
) -> None:
    with pytest.raises(DataError, match=says):
        find_columns(SCHEMA, **arguments)  # type: ignore[arg-type]


def test_image_and_features_exclude_each_other() -> None:
    with pytest.raises(
        ConfigError,
        match=r"image \('image'\) and data\.init_args\.features \(height\) are both set",
    ):
        find_columns(SCHEMA, image="image", features=["height"])


def test_a_name_that_two_columns_have_is_refused() -> None:
    with pytest.raises(DataError, match="the table has 2 columns 'label'"):
        find_columns(
            pa.schema([("image", pa.binary()), ("label", pa.int8()), ("label", pa.int8())])
        )
