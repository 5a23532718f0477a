"""Types, splits and targets of a table, and findings about its columns."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from lightkit.errors import DataError
from lightkit.images.splits import SPLITS, split_of
from lightkit.rows.plan import RowSettings
from lightkit.rows.planned import PlannedRows
from lightkit.rows.reader import RowTable
from lightkit.rows.table_rules import TableRules

Cells = Sequence[Sequence[Any]]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def plan(
    folder: Path, names: str, rows: Cells, rules: TableRules | None = None, **settings: Any
) -> PlannedRows:
    path = folder / "t.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([names.split(), *rows])
    return PlannedRows(
        RowSettings({None: str(path)}, **{"target": "y", **settings}), rules or TableRules()
    )


def draw(num: int = 200) -> list[tuple[float, str, str, str]]:
    random = np.random.default_rng(0)
    return [
        (
            round(random.normal(), 4),
            str(random.choice(["r", "g"])),
            str(random.choice(["yes", "no"])),
            f"c{at % 50}",
        )
        for at in range(num)
    ]


def test_equal_rows_and_rows_of_a_key_are_in_one_split(tmp_path: Path) -> None:
    rows = draw()
    made = plan(tmp_path, "a c y k", [*rows, *rows], TableRules(ignore=("k",)))
    train, val, test = (set(made.find_numbers(split)) for split in ("train", "val", "test"))
    assert all(
        (at in part) == (at + 200 in part) for part in (train, val, test) for at in range(200)
    )
    assert made.plan.num_shared == {"val": 0, "test": 0}
    by_key = plan(tmp_path, "a c y k", rows, key="k")
    assert "k" not in by_key.plan.types
    for split in ("train", "val", "test"):
        keys = {rows[at][3] for at in by_key.find_numbers(split)}
        others = {rows[at][3] for at in set(range(200)) - set(by_key.find_numbers(split))}
        assert not keys & others


def test_rows_that_differ_in_the_sign_of_a_zero_are_in_one_split(tmp_path: Path) -> None:
    rows = [(zero, number, 1.5 * number) for zero in ("0.0", "-0.0") for number in range(200)]
    made = plan(tmp_path, "a b y", rows)
    parts = [set(made.find_numbers(split)) for split in SPLITS]
    assert all(parts)
    assert all((at in part) == (at + 200 in part) for part in parts for at in range(200))
    assert made.plan.num_shared == {"val": 0, "test": 0}


def test_the_split_of_a_row_is_that_of_the_digest_of_its_cells(tmp_path: Path) -> None:
    rows = draw()
    made = plan(tmp_path, "a c y k", rows, TableRules(ignore=("k",)))
    for at, (value, color, _, _) in enumerate(rows):
        digest = hashlib.sha256(f"{value:g}\x1f{color}".encode()).hexdigest()
        expected = split_of(digest, val_fraction=0.2, test_fraction=0.1)
        assert [split for split in SPLITS if at in made.find_numbers(split)] == [expected]


def test_a_table_is_read_twice_until_its_rows_are_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Any] = []
    original = RowTable.read

    def read(self: RowTable, *words: Any, **options: Any) -> Any:
        reads.append(words)
        return original(self, *words, **options)

    monkeypatch.setattr(RowTable, "read", read)
    rows = [(*row, 1 + at % 2) for at, row in enumerate(draw())]
    made = plan(tmp_path, "a c y k w", rows, weight="w", key="k")
    arrays = made.encode(made.preprocessing)
    assert len(reads) == 2
    assert arrays.weights is not None
    assert arrays.weights.tolist() == [row[-1] for row in rows]
    assert arrays.target.tolist() == [row[2] == "yes" for row in rows]
    assert not list(made.folder.glob("*.arrow"))
    assert made.encode(None).target.tolist() == arrays.target.tolist()


def test_the_latest_rows_are_tested(tmp_path: Path) -> None:
    rows = [
        (value, color, label, f"2026-01-{at % 20 + 1:02d}")
        for at, (value, color, label, _) in enumerate(draw())
    ]
    made = plan(tmp_path, "a c y day", rows, time="day", val_fraction=0.2, test_fraction=0.1)
    days = {
        split: {rows[at][3] for at in made.find_numbers(split)}
        for split in ("train", "val", "test")
    }
    assert days["test"] == {"2026-01-19", "2026-01-20"}
    assert days["val"] == {f"2026-01-{day}" for day in (15, 16, 17, 18)}
    assert max(days["train"]) == "2026-01-14"


def test_statistics_are_those_of_the_training_split_alone(tmp_path: Path) -> None:
    rows = [
        (value, label, "train" if at < 150 else "test")
        for at, (value, _, label, _) in enumerate(draw())
    ]
    rows = [(value + 100 * (split == "test"), label, split) for value, label, split in rows]
    made = plan(tmp_path, "a y split", rows, TableRules(scaling="standard"))
    arrays = made.encode(made.preprocessing)
    training = np.array([value for value, _, split in rows if split == "train"])
    expected = (np.array([value for value, _, _ in rows]) - training.mean()) / training.std()
    np.testing.assert_allclose(arrays.inputs[0][:, 0], expected, rtol=1e-5, atol=1e-6)
    assert made.plan.class_counts == [
        sum(label == each for _, label, _ in rows[:150]) for each in ("no", "yes")
    ]


LEAKS = {
    "copy": ("a b y", lambda x, z: (x, 3 * x - 2, x), "column 'a' is the target in another unit"),
    "sum": (
        "casual registered y",
        lambda x, z: (x, z, x + z),
        "the target is a sum of the columns 'casual', 'regis",
    ),
    "border": (
        "a b y",
        lambda x, z: (x, z, "high" if x > 0 else "low"),
        "column 'a' alone determines the class",
    ),
    "category": (
        "a b y",
        lambda x, z: (z, "p" if x > 0 else "q", "high" if x > 0 else "low"),
        "column 'b' alone",
    ),
}


@pytest.mark.parametrize(("names", "make", "says"), LEAKS.values(), ids=LEAKS)
def test_columns_that_say_the_target_are_found(
    tmp_path: Path, names: str, make: Any, says: str
) -> None:
    random = np.random.default_rng(1)
    rows = [make(x, z) for x, z in random.normal(size=(200, 2))]
    assert any(note.startswith(says) for note in plan(tmp_path, names, rows).plan.notes)


def test_rows_in_two_splits_are_found(tmp_path: Path) -> None:
    rows = [(value, label, "train") for value, _, label, _ in draw(50)]
    notes = plan(
        tmp_path, "a y split", [*rows, (rows[0][0], "no", "test"), (99, "no", "val")]
    ).plan.notes
    assert [note.partition(" equal")[0] for note in notes] == ["1 of the 1 rows of the test split"]


FAULTS = {
    "missing column": (
        {"target": "z"},
        None,
        r"data\.init_args\.target: the table has no column 'z'",
    ),
    "one value": ({"target": "one"}, None, "column 'one' has one value in all rows"),
    "no number": ({"target_type": "value"}, None, "is of the type category, which is no number"),
    "column": (
        {},
        TableRules(columns=("b",)),
        r"data\.init_args\.columns: the table has no column 'b'",
    ),
    "type": (
        {},
        TableRules(columns={"c": "number"}),
        r"t\.csv, line 2: column 'c' has 'r', expected a finite number",
    ),
    "weight": ({"weight": "a"}, None, r"t\.csv, line \d+: column 'a' has -\S+, expected 0 or more"),
    "split": ({"split": "c"}, None, "line 2: the column of splits has 'r'"),
}


@pytest.mark.parametrize(("settings", "rules", "says"), FAULTS.values(), ids=FAULTS)
def test_a_table_that_cannot_be_used_is_an_error(
    tmp_path: Path, settings: dict[str, Any], rules: TableRules | None, says: str
) -> None:
    rows = [
        (value, color if at else "r", label, 1)
        for at, (value, color, label, _) in enumerate(draw(40))
    ]
    with pytest.raises(DataError, match=says):
        _ = plan(tmp_path, "a c y one", rows, rules, **settings).plan


def test_a_class_that_the_training_split_has_not_is_an_error_with_its_line(tmp_path: Path) -> None:
    rows = [
        (value, label, "test" if at > 30 else "train")
        for at, (value, _, label, _) in enumerate(draw(40))
    ]
    rows[35] = (0.5, "maybe", "test")
    says = (
        r"t\.csv, line 37: column 'y' has maybe, and the classes of"
        r" the training split are no, yes\."
    )
    with pytest.raises(DataError, match=says):
        _ = plan(tmp_path, "a y split", rows).plan


def test_a_typo_in_a_column_of_numbers_is_named_and_in_the_target_an_error_with_its_line(
    tmp_path: Path,
) -> None:
    rows: list[tuple[Any, ...]] = [
        (20 + at % 50, value, 100 + at % 40) for at, (value, *_) in enumerate(draw(120))
    ]
    rows[60] = ("4o", 0.5, 110)
    made = plan(tmp_path, "age a y", rows)
    assert made.plan.types == {"age": "category", "a": "number"}
    assert made.plan.notes[0].startswith(
        "column 'age' has '4o', and numbers in nearly all other rows, so that it is"
    )
    rows[60] = (40, 0.5, "11o")
    with pytest.raises(
        DataError, match=r"t\.csv, line 62: column 'y' has '11o', and numbers in nearly all"
    ):
        _ = plan(tmp_path, "age a y", rows).plan
    assert plan(tmp_path, "age a y", rows, target_type="class").plan.target_type == "class"
    commas = [(value, f"{at},50") for at, (value, *_) in enumerate(draw(60))]
    with pytest.raises(
        DataError, match=r"t\.csv, line 2: column 'y' has '0,50', and numbers .*\(0\.5, not 0,5\)"
    ):
        _ = plan(tmp_path, "a y", commas).plan
    codes = [(value, str(at % 9) if at % 30 else "X") for at, (value, *_) in enumerate(draw(120))]
    assert len(plan(tmp_path, "a y", codes).plan.class_names) == 10


def test_a_column_of_lists_is_named_as_such(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    columns = {"a": list(range(40)), "l": [[1]] * 40, "e": pa.nulls(40), "y": ["no", "yes"] * 20}
    parquet.write_table(pa.table(columns), path)
    notes = PlannedRows(RowSettings({None: str(path)}, target="y"), TableRules()).plan.notes
    assert (
        "columns: auto leaves out column 'l': its cells are no single values, such as lists."
        in notes
    )
    assert "columns: auto leaves out column 'e': it is empty." in notes
    with pytest.raises(
        DataError, match=r"target: column 'l' has cells that are no single values, such as lists"
    ):
        _ = PlannedRows(RowSettings({None: str(path)}, target="l"), TableRules()).plan


def test_the_index_of_a_program_is_no_input(tmp_path: Path) -> None:
    """Of rows in the order of their classes it would tell the class."""
    path = tmp_path / "t.csv"
    rows = [f"{at},{at},{at},{value},{label}" for at, (value, _, label, _) in enumerate(draw(60))]
    path.write_text("\n".join([",Unnamed: 0,__index_level_0__,a,y", *rows]))
    made = PlannedRows(RowSettings({None: str(path)}, target="y"), TableRules())
    assert made.plan.types == {"a": "number"}
    assert "column 'Unnamed: 0': it has no name" in made.plan.notes[1]


def test_a_missing_target_is_an_error_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"t\.csv, line 4: there is no target in column 'y'"):
        _ = plan(tmp_path, "a y", [(1, "x"), (2, "y"), (3, "")]).plan


@pytest.mark.parametrize("target_type", ["auto", "class"])
@pytest.mark.parametrize(
    ("cell", "says"), [("NaN", "there is no target in column 'y'"), ("inf", "column 'y' has 'inf'")]
)
def test_neither_nan_nor_infinity_is_a_class(
    tmp_path: Path, cell: str, says: str, target_type: Any
) -> None:
    rows: list[tuple[Any, ...]] = [(value, at % 2) for at, (value, *_) in enumerate(draw(60))]
    rows[40] = (0.5, cell)
    with pytest.raises(DataError, match=rf"t\.csv, line 42: {says}"):
        _ = plan(tmp_path, "a y", rows, target_type=target_type).plan


SPELLED = {
    "numbers": (
        ("0", "1", "1.0"),
        r"column 'y' has the classes '1' and '1\.0', which are one value",
    ),
    "booleans": (
        ("True", "False", "true"),
        "column 'y' has the classes 'True' and 'true', which are one value",
    ),
    "codes": (("1.1", "1.10", "x"), None),
    "floats": (("0.0", "1.0", "2"), None),
}


@pytest.mark.parametrize(("cells", "says"), SPELLED.values(), ids=SPELLED)
def test_one_class_in_two_spellings_is_an_error(
    tmp_path: Path, cells: Sequence[str], says: str | None
) -> None:
    rows = [(value, cells[at % 3]) for at, (value, *_) in enumerate(draw(90))]
    made = plan(tmp_path, "a y", rows)
    if says is None:
        assert sorted(made.plan.class_names) == sorted(cells)
        return
    with pytest.raises(DataError, match=says):
        _ = made.plan


def test_columns_have_one_type_for_all_files_and_targets_too(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    for name, lines in {
        "1": ("1,5,2", "2,6,2.5"),
        "2": ("3,x,4", ",7,3"),
        "3": ("NA,8.0,1",),
    }.items():
        (folder / f"{name}.csv").write_text("\n".join(("a,b,y", *lines, "")), encoding="utf-8")
    made = PlannedRows(
        RowSettings({None: str(folder)}, target="y", val_fraction=0, test_fraction=0), TableRules()
    )
    assert made.plan.types == {"a": "number", "b": "category"}
    assert made.plan.target_type == "value"
    arrays = made.encode(made.preprocessing)
    assert arrays.target[:, 0].tolist() == [2, 2.5, 4, 3, 1]
    assert made.plan.target_mean == 2.5
    assert made.plan.target_std == pytest.approx(np.std([2, 2.5, 4, 3, 1]))
    assert arrays.inputs[0][:, 1].tolist() == [0, 0, 0, 1, 1]  # which are missing


def test_rows_of_weight_0_count_neither_as_a_class_nor_in_the_scale_of_the_target(
    tmp_path: Path,
) -> None:
    rows = [(value, 10 * value, "pq"[at % 2], at % 3) for at, (value, *_) in enumerate(draw(120))]
    options: dict[str, Any] = {"weight": "w", "val_fraction": 0, "test_fraction": 0}
    classes = plan(tmp_path, "a b y w", rows, **options).plan
    counted = [row for row in rows if row[3]]
    assert classes.class_counts == [sum(row[2] == name for row in counted) for name in "pq"]
    assert classes.mean_weight == pytest.approx(np.mean([row[3] for row in rows]))
    values = plan(tmp_path, "a y b w", rows, **options).plan
    assert values.target_mean == pytest.approx(np.mean([row[1] for row in counted]))
    assert values.target_std == pytest.approx(np.std([row[1] for row in counted]))


@pytest.mark.parametrize(
    ("offset", "says"),
    [(1.7e9, r"float32, in which a model predicts them, moves each by \d+"), (1000.0, "")],
    ids=["seconds since 1970", "small"],
)
def test_a_target_whose_differences_float32_loses_is_an_error(
    tmp_path: Path, offset: float, says: str
) -> None:
    """Each of these times would be 1.7e9, and the mean absolute error of any model 0."""
    rows = [(at % 7, value, offset + 10 * value) for at, (value, *_) in enumerate(draw())]
    made = plan(tmp_path, "a b y", rows, TableRules(ignore=("b",)))
    if not says:
        assert made.plan.target_mean == pytest.approx(offset, abs=2)
        return
    with pytest.raises(DataError, match=says):
        _ = made.plan


def test_a_corrected_label_in_a_file_of_the_same_size_is_trained_on(tmp_path: Path) -> None:
    settings = RowSettings(
        {None: str(tmp_path / "t.parquet")}, target="y", val_fraction=0, test_fraction=0
    )
    found = []
    for labels in (["p", "q", "p", "q"], ["q", "p", "p", "q"]):
        parquet.write_table(
            pa.table({"a": [1.0, 2.0, 3.0, 4.0], "y": labels}), tmp_path / "t.parquet"
        )
        made = PlannedRows(settings, TableRules())
        found.append(made.encode(made.preprocessing).target.tolist())
    assert found == [[0, 1, 0, 1], [1, 0, 0, 1]]


def test_columns_that_can_say_nothing_are_left_out_and_named(tmp_path: Path) -> None:
    rows = [(value, 1, f"name {at}", "", label) for at, (value, _, label, _) in enumerate(draw())]
    made = plan(tmp_path, "a one name none y", rows)
    assert list(made.plan.types) == ["a"]
    assert [
        note.partition(":  ")[0].split("column ")[1].split(":")[0] for note in made.plan.notes
    ] == ["'one'", "'name'", "'none'"]
