"""From photos to a table: what is looked at, written and told, in order."""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lightkit.cli.console import OutputMode, choose_output_mode, configure_console, print_line
from lightkit.commands.convert import ConvertOptions
from lightkit.config import shown_path
from lightkit.errors import LightkitError, visible
from lightkit.images.tables.layout import laid_out
from lightkit.images.tables.publishing import LEFT_OUT
from lightkit.images.tables.table import Place, WrittenTable, write_table
from lightkit.runs.bad_images import BadImage

if TYPE_CHECKING:
    from lightkit.data.photos import Catalogue

__all__ = ["Advance", "convert_images", "shown_progress"]

Advance = Callable[[int, int], None]
_EVERY_S = 10.0
_OPTIONS = {"root": "IMAGES", "on_bad_image": "--on-bad-image", "max_bad_fraction": "--max-bad-fraction",
            "val_fraction": "--val-fraction", "test_fraction": "--test-fraction"}  # fmt: skip
"""What the data module's arguments are called here."""
_KEY = re.compile(rf"(?<![\w/.-])(?:data\.init_args\.({'|'.join(_OPTIONS)})|((?:val|test)_fraction))(?![\w/])")


def convert_images(options: ConvertOptions) -> int:
    """Write a folder of photos as a table, and return the exit code.

    Raises:
        ConfigError: If the table cannot be written where it is to be.
        DataError: If the photos cannot be used, or the disk is full.
        RunLocked: If another process is writing the same table.
    """
    mode = choose_output_mode({"quiet": options.is_quiet}, sys.stdout)
    configure_console(mode, _in_own_words)
    place = Place(options.table, options.images, options.format == "delta", options.is_overwritten)
    place.check()
    from lightkit.data.tables.converting import image_rows  # here: it loads torch

    try:
        catalogue = _catalogue(options)
        rows = image_rows(catalogue, options.images)
    except LightkitError as error:
        raise error.reworded(_in_own_words) from error
    left_out = [BadImage(defect.name, defect.reason, "scan") for defect in catalogue.defects]
    files = laid_out(rows, num_files=options.partitions, row_group_bytes=options.row_group_bytes)
    print_line(_found(options, catalogue), mode)
    with shown_progress(len(rows), sum(row.num_bytes for row in rows), mode) as advance:
        written = write_table(place, files, advance=advance, left_out=left_out)
    if left_out:
        print_line(f"{shown_path(options.table / LEFT_OUT)}: lists what is left out", mode)
    print_line(_told(options, written), mode)
    return 0


def _catalogue(options: ConvertOptions) -> Catalogue:
    from lightkit.data.photos import catalogue_of  # here: torch, as above
    from lightkit.data.splits import check_fractions

    check_fractions(val_fraction=options.val_fraction, test_fraction=options.test_fraction)
    return catalogue_of(
        options.images,
        val_fraction=options.val_fraction,
        test_fraction=options.test_fraction,
        on_bad_image=options.on_bad_image,
        max_bad_fraction=options.max_bad_fraction,
    )


def _in_own_words(text: str) -> str:
    """Put this command's words in the place of the data module's arguments."""
    return _KEY.sub(lambda found: _OPTIONS[found[1] or found[2]], text)


def _found(options: ConvertOptions, catalogue: Catalogue) -> str:
    counts = ", ".join(f"{number} {split}" for split, number in catalogue.counts.items())
    num_images, num_classes = sum(catalogue.counts.values()), len(catalogue.class_names)
    return visible(f"{shown_path(options.images)}: {num_images} images, {num_classes} classes, {counts}", in_line=True)


def _told(options: ConvertOptions, written: WrittenTable) -> str:
    table = shown_path(options.table)
    version = "" if written.version is None else f", version {written.version}"
    files = f"{written.num_files} file{'s' if written.num_files > 1 else ''}"
    return (
        f"{table}: {written.num_rows} rows, {written.num_bytes / 1e6:.1f} MB, {files}{version}\n"
        f"lightkit fit -c configs/flowers.yaml --data=lightkit.data.Table --data.path={shlex.quote(table)}"
    )


@contextmanager
def shown_progress(num_rows: int, num_bytes: int, mode: OutputMode, *, every_s: float = _EVERY_S) -> Iterator[Advance]:
    """Show a bar on a terminal, and a line now and then in a pipe.

    Args:
        num_rows: How many rows there will be.
        num_bytes: How many bytes of images.
        mode: What the screen shows.
        every_s: Seconds between two lines.
    """
    if mode == "terminal":
        with _bar(num_bytes) as advance:
            yield advance
        return
    done, last = [0, 0], time.monotonic()

    def tell(more_rows: int, more_bytes: int) -> None:
        nonlocal last
        done[0] += more_rows
        done[1] += more_bytes
        if time.monotonic() - last >= every_s and done[0] < num_rows:
            last = time.monotonic()
            print_line(
                f"convert  {done[0]} of {num_rows} images  {done[1] / 1e6:.1f} of {num_bytes / 1e6:.1f} MB", mode
            )

    yield tell


@contextmanager
def _bar(num_bytes: int) -> Iterator[Advance]:
    from rich.console import Console  # 0.1 s, spared where nobody watches
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = TextColumn("convert"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(), transient=True) as bar:
        task = bar.add_task("convert", total=num_bytes)
        yield lambda _, more_bytes: bar.advance(task, more_bytes)
