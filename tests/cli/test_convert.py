"""`lightkit convert`: a folder of photos as a table, and what is told of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from lightkit.cli import converting, main
from lightkit.cli.converting import shown_progress
from lightkit.data import ImageFolder, Table
from lightkit.images.tables import table as writing
from lightkit.images.tables.writing import write_file

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
Screen = pytest.CaptureFixture[str]
FORMATS = pytest.mark.parametrize("form", ["delta", "parquet"])


@pytest.fixture(autouse=True)
def _there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def photos() -> Path:
    """Sixty small photos of three classes, some with names that are hard to write."""
    random = np.random.default_rng(0)
    for at in range(60):
        name = {3: "ä ö.PNG", 7: os.fsdecode(b"\xff.png"), 9: "deep/er.png"}.get(at, f"{at}.png")
        file = Path("photos", ["rose", "tulip", "lily"][at % 3], name)
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (6 + at % 5, 8, 3), dtype=np.uint8)).save(file, format="PNG")
    return Path("photos")


def _convert(*words: str) -> int:
    return main(["convert", *words])


def _read(path: str) -> pa.Table:
    if Path(path, "_delta_log").is_dir():
        from deltalake import DeltaTable

        return DeltaTable(path).to_pyarrow_dataset().to_table()
    return parquet.read_table(path)


def _rows_of(folder: Path, **arguments: Any) -> Counter[tuple[Any, ...]]:
    """What a data module of the folder has: path, split, class and bytes of each photo."""
    data = ImageFolder(str(folder), **arguments)
    data.setup()
    return Counter(
        (
            os.fsencode(photo.path.relative_to(folder)).decode("utf-8", "backslashreplace"),
            split,
            data.class_names[photo.label],
            photo.path.read_bytes(),
            (photo.width, photo.height),
        )
        for split, photos in data.catalogue.splits.items()
        for photo in photos
    )


def _rows_in(path: str) -> Counter[tuple[Any, ...]]:
    rows = _read(path).to_pylist()
    return Counter(
        (row["path"], row["split"], row["label"], row["image"], (row["width"], row["height"])) for row in rows
    )


def _groups(path: str) -> list[list[int]]:
    """Rows of each row group of each file."""
    files = [parquet.read_metadata(file) for file in sorted(Path(path).glob("*.parquet"))]
    return [[file.row_group(number).num_rows for number in range(file.num_row_groups)] for file in files]


@FORMATS
def test_the_table_has_the_photos_splits_and_classes_of_the_folder(form: str, photos: Path, capsys: Screen) -> None:
    if form == "delta":
        pytest.importorskip("deltalake", reason="needs deltalake")
    assert _convert("photos", "flowers", "--format", form, "--partitions=3") == 0

    assert _rows_in("flowers") == _rows_of(photos)
    assert [sum(groups) for groups in _groups("flowers")] == [20, 20, 20]
    said = capsys.readouterr()
    assert said.err == ""
    found, written, next_command = said.out.splitlines()
    counts = Counter(split for _, split, *_ in _rows_of(photos).elements())
    assert found == "photos: 60 images, 3 classes, " + ", ".join(f"{counts[s]} {s}" for s in ("train", "val", "test"))
    assert written == "flowers: 60 rows, 0.0 MB, 3 files" + (", version 0" if form == "delta" else "")
    assert next_command.startswith("lightkit fit ")
    assert next_command.endswith("--data.path=flowers")


@FORMATS
def test_the_data_module_of_tables_reads_what_was_written(form: str, photos: Path) -> None:
    if form == "delta":
        pytest.importorskip("deltalake", reason="needs deltalake")
    assert _convert("photos", "flowers", "--format", form, "--partitions=2", "--quiet") == 0
    table, folder = Table("flowers", image_size=8), ImageFolder("photos", image_size=8)
    for data in (table, folder):
        data.setup()
    assert table.class_names == folder.class_names
    assert table.describe()["counts"] == folder.describe()["counts"]
    for split in ("train", "val", "test"):
        assert _pixels(table.untransformed(split)) == _pixels(folder.untransformed(split))


def _pixels(source: Any) -> Counter[tuple[bytes, int]]:
    """All images of a split, decoded, with their labels."""
    return Counter((image.tobytes(), label) for image, label in (source[index] for index in range(len(source))))


def test_fractions_and_given_splits_mean_what_they_mean_for_the_folder(photos: Path, capsys: Screen) -> None:
    words = ["--format=parquet", "--val-fraction", "0.3", "--test-fraction=0"]
    assert _convert("photos", "hashed", *words) == 0
    assert _rows_in("hashed") == _rows_of(photos, val_fraction=0.3, test_fraction=0.0)

    Path("given").mkdir()
    photos.rename("given/train")
    Path("given/valid").symlink_to("train")
    assert _convert("given", "table", "--format=parquet") == 0
    assert _rows_in("table") == _rows_of(Path("given"))
    assert {row[1] for row in _rows_in("table")} == {"train", "val"}


def test_row_groups_are_no_larger_than_said_and_equal_within_a_row(photos: Path) -> None:
    assert _convert("photos", "flowers", "--format=parquet", "--row-group-mb=0.002", "--val-fraction=0.5", "-q") == 2
    assert _convert("photos", "flowers", "--format=parquet", "--row-group-mb=0.002", "--partitions", "2") == 0
    table = _read("flowers")
    sizes, at = [], 0
    for groups in _groups("flowers"):
        for number in groups:
            sizes.append(sum(len(row) for row in table["image"][at : at + number].to_pylist()))
            at += number
    assert max(sizes) <= 2000
    assert len(sizes) > 6


def test_the_same_photos_make_the_same_table_wherever_they_are(photos: Path, tmp_path: Path) -> None:
    assert _convert("photos", "one", "--format=parquet") == 0
    Path("elsewhere").mkdir()
    photos.rename("elsewhere/flowers")
    assert _convert(str(tmp_path / "elsewhere" / "flowers"), "two", "--format=parquet") == 0
    assert Path("one/part-00000.parquet").read_bytes() == Path("two/part-00000.parquet").read_bytes()


def test_what_cannot_be_decoded_is_left_out_and_listed(photos: Path, capsys: Screen) -> None:
    (photos / "rose" / "broken.png").write_bytes(b"no image")
    assert _convert("photos", "flowers", "--format=parquet") == 0

    said = capsys.readouterr()
    assert _rows_in("flowers") == _rows_of(photos)
    assert said.err.startswith("warning: 1 image cannot be used and will be left out (")
    assert "flowers/_bad_images.csv: lists what is left out" in said.out
    assert "photos/rose/broken.png" in Path("flowers/_bad_images.csv").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--on-bad-image=error"], r"1 of 61 images in photos cannot be used; --on-bad-image is error"),
        (["--max-bad-fraction=0.01"], r"and --max-bad-fraction allows 0\.01"),
    ],
    ids=["error", "too_many"],
)
def test_bad_photos_are_refused_where_it_is_said(words: list[str], says: str, photos: Path, capsys: Screen) -> None:
    (photos / "rose" / "broken.png").write_bytes(b"no image")
    assert _convert("photos", "flowers", "--format=parquet", *words) == 3
    assert not Path("flowers").exists()
    capsys.readouterr()
    with pytest.raises(Exception, match=says):
        converting.convert_images(_options(words))


def _options(words: list[str]) -> Any:
    from lightkit.cli.commands.convert import _options as options

    return options(["photos", "flowers", "--format=parquet", *words])


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ([], 2, "convert: expected a folder of images and the table to write, got none\nusage: lightkit convert "),
        (["photos"], 2, "got 'photos'\n"),
        (["photos", "a", "b"], 2, "got 'photos', 'a', 'b'\n"),
        (["photos", "a", "--partition=2"], 2, "unexpected argument '--partition=2'; did you mean '--partitions'"),
        (["photos", "a", "--val_fraction=0"], 2, "did you mean '--val-fraction'"),
        (["photos", "a", "--output=json"], 2, "unexpected argument '--output=json'"),
        (["photos", "a", "--format=parket"], 2, "expected delta or parquet, got 'parket'; did you mean 'parquet'?"),
        (["photos", "a", "--format"], 2, "convert: --format: expected a word after it\n"),
        (["photos", "a", "--format", "--quiet"], 2, "convert: --format: expected a word after it\n"),
        (["photos", "a", "--format=delta", "--format=delta"], 2, "convert: --format is said twice"),
        (["photos", "a", "--partitions=0"], 2, "--partitions: expected a whole number of at least 1, got '0'"),
        (["photos", "a", "--partitions", "-1"], 2, "--partitions: expected a whole number of at least 1, got '-1'"),
        (["photos", "a", "--row-group-mb=0"], 2, "--row-group-mb: expected a number of MB above 0, got '0'"),
        (["photos", "a", "--row-group-mb=x"], 2, "--row-group-mb: expected a number, got 'x'"),
        (["photos", "a", "--val-fraction=nan"], 2, "--val-fraction: expected a number, got 'nan'"),
        (["photos", "a", "--on-bad-image=ski"], 2, "expected skip or error, got 'ski'; did you mean 'skip'?"),
        (["photos", "s3://bucket/a"], 2, "expected the name of a folder to write, got the address s3://bucket/a. "),
        (["photos", os.fsdecode(b"a\xff")], 2, r"the name of the table, 'a\udcff', holds what is no text"),
        (["photos", "photos/a"], 2, "photos/a is in the folder of images photos. Say another place"),
        (["photos", "."], 2, "exists, and is no table that lightkit convert has written"),
        (["photos", "a", "--val-fraction=0.9", "--test-fraction=0.1"], 2, "--val-fraction (0.9) and --test-fraction"),
        (["photos", "a", "--max-bad-fraction=2"], 2, "--max-bad-fraction: expected a share from 0 to 1"),
        (["photos", "a", "--format=parquet", "--partitions=61"], 2, "there are only 60 images"),
        (["photo", "a", "--format=parquet"], 3, "this data folder does not exist (IMAGES, from "),
        (
            ["photos/lily", "a", "--format=parquet"],
            3,
            "photos/lily: no class folders here. Expected one folder a class",
        ),
    ],
    ids=lambda value: ascii(" ".join(value)) if isinstance(value, list) else None,
)
def test_what_is_wrong_is_one_error_and_nothing_is_written(
    words: list[str], code: int, says: str, photos: Path, capsys: Screen
) -> None:
    assert _convert(*words) == code
    said = capsys.readouterr()
    assert said.err.startswith("error: ")
    assert says in said.err
    assert "data.init_args" not in said.err
    assert not Path("a").exists()


def test_a_table_that_exists_is_replaced_when_that_is_said(photos: Path, capsys: Screen) -> None:
    assert _convert("photos", "flowers", "--format=parquet") == 0
    assert _convert("photos", "flowers", "--format=parquet") == 2
    assert "flowers exists, and nothing is added to a table. --overwrite replaces it" in capsys.readouterr().err
    next(photos.glob("rose/*.png")).unlink()
    assert _convert("photos", "flowers", "--format=parquet", "--overwrite") == 0
    assert sum(_rows_in("flowers").values()) == 59


def test_ctrl_c_in_the_middle_ends_with_130_and_leaves_nothing(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: Screen
) -> None:
    def interrupted(*arguments: Any, **options: Any) -> Any:
        written = write_file(*arguments, **options)
        os.kill(os.getpid(), signal.SIGINT)
        return written

    monkeypatch.setattr(writing, "write_file", interrupted)
    before = sorted(Path().iterdir())
    assert _convert("photos", "flowers", "--format=parquet", "--partitions=2") == 130
    assert "interrupted by SIGINT" in capsys.readouterr().err
    assert sorted({*Path().iterdir()} - {Path("cache")}) == before


@FORMATS
def test_folders_may_have_any_name(form: str, photos: Path, capsys: Screen) -> None:
    if form == "delta":
        pytest.importorskip("deltalake", reason="needs deltalake")
    images = photos.rename(os.fsdecode(b"ph\xff tos"))
    name = "ta #1?ä/b:c 100%" if form == "delta" else "ta #1%20?ä/b:c [1]"
    for words in ([], ["--overwrite"]):
        assert _convert(str(images), name, "--format", form, *words) == 0
    assert sum(_rows_in(name).values()) == 60
    assert r"ph\udcff tos: 60 images" in capsys.readouterr().out
    assert Table(name).class_names == ["lily", "rose", "tulip"]


def test_quiet_says_nothing(photos: Path, capsys: Screen) -> None:
    assert _convert("photos", "flowers", "--format=parquet", "--quiet") == 0
    assert capsys.readouterr() == ("", "")


def test_a_pipe_gets_a_line_now_and_then(capsys: Screen) -> None:
    with shown_progress(10, 4_000_000, "plain", every_s=0.0) as advance:
        advance(4, 1_500_000)
        advance(6, 2_500_000)
    assert capsys.readouterr() == ("convert  4 of 10 images  1.5 of 4.0 MB\n", "")
    with shown_progress(10, 4_000_000, "plain") as advance:
        advance(4, 1_500_000)
    assert capsys.readouterr().out == ""


def test_a_terminal_gets_a_bar(capsys: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with shown_progress(10, 4_000_000, "terminal") as advance:
        advance(10, 4_000_000)
    out = capsys.readouterr().out
    assert "convert" in out
    assert "4.0/4.0 MB" in out


@pytest.mark.slow
def test_wrong_words_are_told_without_torch(photos: Path) -> None:
    code = (
        "import sys; from lightkit.cli import main; "
        "assert main(['convert', 'photos', '.', '--format=parquet']) == 2; assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_odd_images_are_in_the_table_byte_for_byte_or_in_the_list(tmp_path: Path) -> None:
    odd = SHARED / "odd_images"
    if not odd.is_dir():
        pytest.skip(f"needs the odd images in {odd}")
    Path("odd").mkdir()
    Path("odd/all").symlink_to(odd)
    assert _convert("odd", "table", "--format=parquet", "--max-bad-fraction=1", "--test-fraction=0") == 0
    assert _rows_in("table") == _rows_of(Path("odd"), max_bad_fraction=1.0, test_fraction=0.0)


@pytest.mark.slow
def test_the_flower_photos_go_through_unchanged() -> None:
    flowers = SHARED / "flower_photos"
    if not flowers.is_dir():
        pytest.skip(f"needs the flower photos in {flowers}")
    pytest.importorskip("deltalake", reason="needs deltalake")
    assert _convert(str(flowers), "table", "--partitions=4", "--row-group-mb=2") == 0

    assert _rows_in("table") == _rows_of(flowers)
    groups = _groups("table")
    assert sorted(map(sum, groups)) == [161, 161, 162, 162]
    assert len({len(of_file) for of_file in groups}) == 1
