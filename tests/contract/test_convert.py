"""`lightkit convert`: a folder of photos as a Delta table or as a folder of Parquet."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from lightkit.data import ImageFolder, Table
from tests.contract.data_cases import SHARED, module_workspace, read_bad_images
from tests.contract.workspace import ForkServer, Process, Result, Workspace

FORMATS = ("parquet", "delta")
SETTINGS: dict[str, Any] = {"image_size": 8, "num_workers": 0, "batch_size": 8, "augment": False}


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def write_photos(folder: Path) -> Path:
    """Write sixty small photos of three classes, some with names that are hard to write."""
    random = np.random.default_rng(0)
    for number in range(60):
        name = {3: "ä ö.PNG", 7: os.fsdecode(b"\xff.png"), 9: "deep/er.png"}.get(
            number, f"{number}.png"
        )
        path = folder / ("rose", "tulip", "lily")[number % 3] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (6 + number % 5, 8, 3), dtype=np.uint8)).save(
            path, format="PNG"
        )
    return folder


def read_table(path: Path) -> pa.Table:
    """Read a Delta table's newest version, or a folder of Parquet."""
    if (path / "_delta_log").is_dir():
        deltalake = pytest.importorskip("deltalake", reason="needs the extra delta (deltalake)")
        return deltalake.DeltaTable(str(path)).to_pyarrow_table()
    return pq.read_table(path)


Converted = tuple[Workspace, dict[str, Result]]


@pytest.fixture(scope="module")
def converted(
    tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer
) -> Iterator[Converted]:
    """A folder of photos with one that is broken, converted to each format in three files."""
    with module_workspace(tmp_path_factory, fork_server) as workspace:
        write_photos(workspace.folder / "photos")
        workspace.write("photos/rose/broken.png", "no image")
        results = {
            form: workspace.run(
                "convert",
                "photos",
                form,
                "--format",
                form,
                "--partitions=3",
                "--row-group-mb=0.002",
            )
            for form in FORMATS
        }
        yield workspace, results


@pytest.mark.parametrize("form", FORMATS)
def test_a_row_is_a_photo_with_its_bytes_label_path_and_size(
    form: str, converted: Converted
) -> None:
    folder = converted[0].folder / "photos"
    expected = set()
    for path in folder.rglob("*.[pP][nN][gG]"):
        if path.name != "broken.png":
            name = os.fsencode(path.relative_to(folder)).decode("utf-8", "backslashreplace")
            with Image.open(path) as image:
                expected.add(
                    (name, name.partition("/")[0], path.read_bytes(), image.width, image.height)
                )
    rows = read_table(converted[0].folder / form).to_pylist()
    found = [(row["path"], row["label"], row["image"], row["width"], row["height"]) for row in rows]
    assert len(found) == len(expected) == 60
    assert set(found) == expected


def _images(data: Any) -> dict[str, Counter[tuple[bytes, int]]]:
    data.setup()
    loaders = {
        "train": data.train_dataloader(),
        "val": data.val_dataloader(),
        "test": data.test_dataloader(),
    }
    return {
        split: Counter(
            (image.numpy().tobytes(), int(label))
            for batch in loader
            for image, label in zip(batch[0], batch[1], strict=True)
        )
        for split, loader in loaders.items()
    }


@pytest.mark.parametrize("form", FORMATS)
def test_the_table_has_the_classes_splits_and_pixels_of_the_folder(
    form: str, converted: Converted
) -> None:
    table = Table(str(converted[0].folder / form), **SETTINGS)
    folder = ImageFolder(str(converted[0].folder / "photos"), cache="none", **SETTINGS)
    assert _images(table) == _images(folder)
    assert table.class_names == folder.class_names == ["lily", "rose", "tulip"]
    assert table.describe()["counts"] == folder.describe()["counts"]


@pytest.mark.parametrize("form", FORMATS)
def test_what_was_converted_is_reported_with_the_next_command(
    form: str, converted: Converted
) -> None:
    found, _, written, following = converted[1][form].ok().out.splitlines()
    assert re.match(r"photos: 60 images, 3 classes, \d+ train, \d+ val, \d+ test", found)
    assert re.match(
        rf"{form}: 60 rows, .* MB, 3 files{', version 0' if form == 'delta' else ''}$", written
    )
    assert following == f"lightkit init --data {form}"


def test_a_table_whose_name_ends_in_parquet_is_parquet_unless_the_option_says_delta(
    workspace: Workspace,
) -> None:
    write_photos(workspace.folder / "photos")
    workspace.run("convert", "photos", "named.parquet").ok()
    workspace.run("convert", "photos", "asked.parquet", "--format", "delta").ok()
    assert not (workspace.folder / "named.parquet" / "_delta_log").exists()
    assert pq.read_table(workspace.folder / "named.parquet").num_rows == 60
    assert (workspace.folder / "asked.parquet" / "_delta_log").is_dir()


@pytest.mark.parametrize("form", FORMATS)
def test_files_and_row_groups_are_equal_within_a_row_and_hold_one_split_each(
    form: str, converted: Converted
) -> None:
    files = sorted((converted[0].folder / form).glob("*.parquet"))
    assert [pq.read_metadata(file).num_rows for file in files] == [20, 20, 20]
    sizes: dict[str, list[int]] = {}
    for file in map(pq.ParquetFile, files):
        for number in range(file.num_row_groups):
            group = file.read_row_group(number)
            (split,) = set(group["split"].to_pylist())
            sizes.setdefault(split, []).append(group.num_rows)
            assert sum(map(len, group["image"].to_pylist())) <= 2000
    assert len(sizes["train"]) > 3, "more than one in a file, as a row group holds 2000 bytes"
    assert all(max(of_split) - min(of_split) <= 1 for of_split in sizes.values())


@pytest.mark.parametrize("form", FORMATS)
def test_a_photo_that_cannot_be_decoded_is_left_out_and_listed(
    form: str, converted: Converted
) -> None:
    (row,) = read_bad_images(converted[0].folder / form / "_bad_images.csv")
    assert row["path"] == "photos/rose/broken.png"
    assert re.match(r"warning: 1 image .*left out", converted[1][form].err)


def test_the_same_photos_make_the_same_file_wherever_they_are(workspace: Workspace) -> None:
    for name in ("photos", "elsewhere/flowers"):
        write_photos(workspace.folder / name)
        workspace.run("convert", name, f"{name}-table", "--format=parquet", "--quiet").ok()
    files = [
        path.read_bytes()
        for name in ("photos", "elsewhere/flowers")
        for path in (workspace.folder / f"{name}-table").glob("*.parquet")
    ]
    assert len(files) == 2
    assert files[0] == files[1]


def test_folders_may_have_any_name_and_quiet_prints_nothing(workspace: Workspace) -> None:
    write_photos(workspace.folder / os.fsdecode(b"ph\xff tos"))
    name = "ta #1%20?ä/b:c [1]"
    result = workspace.run(
        "convert", os.fsdecode(b"ph\xff tos"), name, "--format=parquet", "--quiet"
    ).ok()
    assert (result.out, result.err) == ("", "")
    assert read_table(workspace.folder / name).num_rows == 60


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--on-bad-image=error"], r"1 of 61 images .*--on-bad-image"),
        (["--max-bad-fraction=0.01"], r"1 of 61 images .*--max-bad-fraction.*0\.01"),
    ],
    ids=["on-bad-image", "max-bad-fraction"],
)
def test_refused_bad_photos_end_with_3_and_no_table(
    words: list[str], says: str, converted: Converted
) -> None:
    workspace, _ = converted
    result = workspace.run("convert", "photos", "refused", "--format=parquet", *words)
    assert result.code == 3
    assert re.search(says, result.err)
    assert "photos/rose/broken.png" in result.err
    assert not (workspace.folder / "refused").exists()


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ([], 2, "expected a folder of images and the table"),
        (["photos", "a", "--partition=2"], 2, "'--partition=2'.*'--partitions'"),
        (["photos", "a", "--format=parket"], 2, "'parket'.*'parquet'"),
        (["photos", "a", "--partitions=0"], 2, "--partitions.*at least 1.*'0'"),
        (
            ["photos", "a", "--val-fraction=0.9", "--test-fraction=0.1"],
            2,
            "--val-fraction.*--test-fraction",
        ),
        (["photos", "a", "--partitions=61"], 2, "only 60 images"),
        (["photos", "s3://bucket/a"], 2, "s3://bucket/a"),
        (["photos", "photos/a"], 2, "photos/a is in"),
        (["photos", "."], 2, "not a table that lightkit convert has written"),
        (["photo", "a"], 3, "photo: .*does not exist"),
        (["photos/lily", "a"], 3, "photos/lily: no class folders"),
    ],
    ids=lambda value: " ".join(value) or "nothing" if isinstance(value, list) else "",
)
def test_what_convert_cannot_do_is_one_error_and_nothing_is_written(
    words: list[str], code: int, says: str, converted: Converted
) -> None:
    result = converted[0].run("convert", *words)
    assert result.code == code
    assert re.search(rf"error: .*{says}", result.err)
    assert not (converted[0].folder / "a").exists()


@pytest.mark.parametrize("form", FORMATS)
def test_a_table_stays_as_it_is_without_overwrite(form: str, converted: Converted) -> None:
    before = read_table(converted[0].folder / form)
    result = converted[0].run("convert", "photos", form, "--format", form, "--val-fraction=0.4")
    assert result.code == 2
    assert re.search(rf"{form} exists.*--overwrite", result.err)
    assert read_table(converted[0].folder / form).equals(before)


@pytest.mark.parametrize("form", FORMATS)
def test_overwrite_adds_a_version_to_delta_and_exchanges_parquet(
    form: str, workspace: Workspace
) -> None:
    write_photos(workspace.folder / "photos")
    workspace.run("convert", "photos", "table", "--format", form).ok()
    shutil.rmtree(workspace.folder / "photos" / "rose" / "deep", ignore_errors=True)
    next((workspace.folder / "photos" / "rose").glob("*.png")).unlink()
    left = len([path for path in (workspace.folder / "photos").rglob("*") if path.is_file()])
    workspace.run("convert", "photos", "table", "--format", form, "--overwrite").ok()
    assert read_table(workspace.folder / "table").num_rows == left < 60
    if form == "delta":
        import deltalake

        table = deltalake.DeltaTable(str(workspace.folder / "table"), version=0)
        assert table.to_pyarrow_table().num_rows == 60
        assert deltalake.DeltaTable(str(workspace.folder / "table")).version() == 1
    else:
        assert len(list((workspace.folder / "table").glob("*.parquet"))) == 1


def test_a_folder_of_anything_else_is_not_touched_by_overwrite(converted: Converted) -> None:
    workspace, _ = converted
    workspace.write("mine/thesis.txt", "mine")
    result = workspace.run("convert", "photos", "mine", "--format=parquet", "--overwrite")
    assert result.code == 2
    assert [path.name for path in (workspace.folder / "mine").iterdir()] == ["thesis.txt"]


def _entries(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def _stopped_while_writing(workspace: Workspace, *words: str) -> Process:
    """Start to convert the folder `large`, and stop the process (SIGSTOP) while it writes."""
    before = _entries(workspace.folder)
    process = workspace.start(
        "convert", "large", "table", "--partitions=100", "--format=parquet", *words
    )

    def writes() -> bool:
        with contextlib.suppress(FileNotFoundError):
            for name in _entries(workspace.folder) - before:
                if len(list((workspace.folder / name).rglob("*.parquet"))) > 1:
                    process.signal(signal.SIGSTOP)
                    return True
        return False

    process.wait_for(writes)
    assert process.poll() is None, "it was too fast"
    return process


@pytest.fixture
def large(workspace: Workspace) -> Workspace:
    """A workspace with a folder of 100 photos that takes a while to write."""
    random = np.random.default_rng(0)
    for number in range(100):
        path = workspace.folder / "large" / "ab"[number % 2] / f"{number}.bmp"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (100, 200, 3), dtype=np.uint8)).save(path)
    return workspace


def test_a_second_convert_of_the_same_table_ends_with_75_and_ctrl_c_leaves_nothing(
    large: Workspace,
) -> None:
    before = _entries(large.folder)
    process = _stopped_while_writing(large)
    second = large.run("convert", "large", "table", "--format=parquet")
    assert not (large.folder / "table").exists(), "it appears when it is whole"
    process.signal(signal.SIGINT)
    process.signal(signal.SIGCONT)
    assert (process.wait(), second.code) == (130, 75), process.err + second.err
    assert _entries(large.folder) == before


def test_a_kill_in_the_middle_leaves_the_table_that_was_there_and_the_next_one_clears_up(
    large: Workspace,
) -> None:
    large.run("convert", "large", "table", "--format=parquet", "--val-fraction=0.4").ok()
    before, table = _entries(large.folder), read_table(large.folder / "table")
    process = _stopped_while_writing(large, "--overwrite")
    process.signal(signal.SIGKILL)
    process.wait()
    assert read_table(large.folder / "table").equals(table)
    large.run("convert", "large", "table", "--format=parquet", "--overwrite").ok()
    assert not read_table(large.folder / "table").equals(table)
    assert _entries(large.folder) == before


@pytest.mark.long
def test_real_photos_go_through_unchanged(workspace: Workspace) -> None:
    flowers = SHARED / "flower_photos"
    if not flowers.is_dir():
        pytest.skip(f"needs the flower photos in {flowers}")
    workspace.run("convert", str(flowers), "table", "--format=parquet", "--partitions=4").ok()
    rows = read_table(workspace.folder / "table").to_pylist()
    assert {row["path"]: row["image"] for row in rows} == {
        str(path.relative_to(flowers)): path.read_bytes() for path in flowers.glob("*/*.jpg")
    }
    files = sorted((workspace.folder / "table").glob("*.parquet"))
    assert sorted(pq.read_metadata(file).num_rows for file in files) == [161, 161, 162, 162]
