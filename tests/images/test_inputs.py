from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lightkit.errors import DataError
from lightkit.images.inputs import find_images, find_named_files


@pytest.fixture
def garden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with photos/ in it; the files are empty, for a listing opens none."""
    monkeypatch.chdir(tmp_path)
    for name in (
        "photos/roses/2.jpg",
        "photos/roses/10.JPG",
        "photos/roses/deep/1.png",
        "photos/daisy/1.jpeg",
        "photos/z.webp",
        "photos/README.txt",
        "photos/.hidden.jpg",
        "photos/.cache/1.jpg",
        "photos/odd.bin",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


ALL = ["daisy/1.jpeg", "roses/10.JPG", "roses/2.jpg", "roses/deep/1.png", "z.webp"]


def below(folder: str, names: list[str]) -> list[str]:
    return [f"{folder}/{name}" for name in names]


def test_a_folder_gives_its_images_by_suffix_in_the_order_of_names_without_hidden_ones(
    garden: Path,
) -> None:
    assert list(find_images(["photos"])) == below("photos", ALL)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("photos/*", ALL),
        ("photos/**", ALL),
        ("photos/**/*", ALL),
        ("photos/**/**/*", ALL),
        ("photos/**/*.jpg", ["roses/2.jpg"]),
        ("photos/**/1.*", ["daisy/1.jpeg", "roses/deep/1.png"]),
        ("photos/r*/**/*.png", ["roses/deep/1.png"]),
        ("photos/**/deep", []),
        ("photos/*/[12].jp*g", ["daisy/1.jpeg", "roses/2.jpg"]),
        ("photos/*.bin", ["odd.bin"]),
        ("photos/o*", []),
        ("photos/roses/?.jpg", ["roses/2.jpg"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_glob_gives_each_match_once_in_the_order_of_names(
    garden: Path, pattern: str, found: list[str]
) -> None:
    if found:
        assert list(find_images([pattern])) == below("photos", found)
        assert list(find_images([str(garden / pattern)])) == below(str(garden / "photos"), found)
    else:
        with pytest.raises(DataError, match="no image matches this"):
            find_images([pattern])


def test_words_are_taken_in_the_order_in_which_they_are_said(garden: Path) -> None:
    assert list(find_images(["photos/z.webp", "photos/daisy", "photos/z.webp"])) == [
        "photos/z.webp",
        "photos/daisy/1.jpeg",
        "photos/z.webp",
    ]


def test_a_file_whose_name_looks_like_a_glob_is_that_file(garden: Path) -> None:
    (garden / "photos" / "[1].jpg").touch()
    assert list(find_images(["photos/[1].jpg"])) == ["photos/[1].jpg"]


def test_folders_that_link_to_one_another_are_walked_once_each(garden: Path) -> None:
    (garden / "photos" / "daisy" / "again").symlink_to(garden / "photos")
    (garden / "photos" / "linked").symlink_to(garden / "photos" / "roses" / "deep")
    assert list(find_images(["photos"])) == below("photos", [*ALL[:1], "linked/1.png", *ALL[1:]])


def test_lines_of_standard_input_are_paths(garden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys, "stdin", io.TextIOWrapper(io.BytesIO(b"photos/z.webp\r\n\nodd \xff name.jpg\n"))
    )
    listing = find_images(["-"])
    assert listing.count() is None
    assert list(listing) == ["photos/z.webp", os.fsdecode(b"odd \xff name.jpg")]


def test_the_number_is_known_before_the_images_are_read(garden: Path) -> None:
    (garden / "list.csv").write_text("path\nphotos/z.webp\nmissing.jpg\n")
    assert find_images(["photos", "photos/*.webp", "list.csv"]).count() == len(ALL) + 3


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("phots", r"phots: there is no such file or folder; did you mean 'photos'\?"),
        (
            "nowhere/1.jpg",
            r"nowhere/1.jpg: there is no such file or folder: there is no folder nowhere",
        ),
        ("phots/*.jpg", r"phots/\*.jpg: no image matches this\."),
        ("empty", r"empty: there is no image in this folder, nor below it"),
        ("tables", r"no image in this folder.* tables .* are named themselves"),
        ("list.csv", r"list.csv: there is no such file or folder"),
        ("tables/list.csv", r"tables/list.csv: this table has no rows"),
    ],
)
def test_a_word_that_names_no_image_is_reported_at_once(garden: Path, word: str, says: str) -> None:
    (garden / "empty").mkdir()
    (garden / "tables").mkdir()
    (garden / "tables" / "list.csv").write_text("path\n")
    with pytest.raises(DataError, match=says):
        find_images([word])


def test_what_is_missing_inside_a_table_is_for_the_reader_to_report(garden: Path) -> None:
    (garden / "list.csv").write_text("path,n\nphotos/z.webp,1\nmissing.jpg,2\n,3\n")
    assert list(find_images(["list.csv"])) == ["photos/z.webp", "missing.jpg", ""]


_MEASURE = """
import sys
from pathlib import Path
from lightkit.images.inputs import find_images
num = sum(1 for _ in find_images(sys.argv[1:]))
print(num, Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to measure memory")
@pytest.mark.parametrize(
    "kind",
    [
        "folder",
        *(pytest.param(kind, marks=pytest.mark.long) for kind in ("csv", "parquet", "delta")),
    ],
)
def test_a_hundred_thousand_paths_take_no_more_memory_than_a_thousand(
    tmp_path: Path, kind: str
) -> None:
    few, many = (peak_of(tmp_path / str(num), kind, num) for num in (1_000, 100_000))
    assert many < 1.3 * few, (few, many)


def peak_of(place: Path, kind: str, num: int) -> int:
    """Peak memory of a process that lists paths, in kB."""
    place.mkdir()
    if kind == "folder":
        (place / "000").mkdir()
        for name in range(1_000):
            (place / "000" / f"{name:06}.jpg").touch()
        # as many names to read, in a second and not in a minute
        for folder in range(1, num // 1_000):
            (place / f"{folder:03}").symlink_to(place / "000")
        word = str(place)
    else:
        word = str(table_of(place, kind, num))
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, word], capture_output=True, text=True, check=True
    )
    found, peak = map(int, done.stdout.split())
    assert found == num
    return peak


def table_of(place: Path, kind: str, num: int) -> Path:
    names = [f"folder/of/images/{name:08}.jpg" for name in range(num)]
    if kind == "csv":
        (place / "list.csv").write_text("\n".join(["path", *names]))
        return place / "list.csv"
    import pyarrow as pa
    from pyarrow import parquet

    if kind == "delta":
        deltalake = pytest.importorskip("deltalake", reason="needs the extra lightkit-train[delta]")
        deltalake.write_deltalake(place / "delta", pa.table({"path": names}))
        return place / "delta"
    parquet.write_table(pa.table({"path": names}), place / "list.parquet", row_group_size=10_000)
    return place / "list.parquet"


def test_the_home_of_a_user_that_is_not_there_is_no_file() -> None:
    with pytest.raises(DataError, match="no such file"):
        find_images(["~nobody-of-this-name/photos"])
    assert list(find_named_files(["~nobody-of-this-name/photos"])) == []
