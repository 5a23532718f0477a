"""`lightkit convert`: a folder of photos as a Delta or Parquet table."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from lightkit.cli.command_line import Invocation
from lightkit.cli.console import choose_output_mode, configure_console, print_line
from lightkit.config import shown_path
from lightkit.errors import ConfigError, DataError, LightkitError, format_count, visible
from lightkit.runs.bad_images import BadImage

_ARGUMENTS = {"root": "IMAGES", "on_bad_image": "--on-bad-image",
              "max_bad_fraction": "--max-bad-fraction",
              "val_fraction": "--val-fraction", "test_fraction": "--test-fraction"}  # fmt: skip
"""Names of the data module's arguments on this command line."""
_KEY = re.compile(
    rf"(?<![\w/.-])(?:data\.init_args\.({'|'.join(_ARGUMENTS)})|((?:val|test)_fraction))(?![\w/])"
)


def convert(invocation: Invocation) -> int:
    """Write a folder of photos as a table, and return the exit code.

    Raises:
        ConfigError: If an option is wrong, or the table cannot be written.
        DataError: If the photos cannot be used, or the disk is full.
        RunLocked: If another process is writing the same table.
    """
    options = invocation.options
    images, table = _read_inputs(invocation)
    row_group_bytes = _read_row_group_bytes(invocation)
    fractions = _read_fractions(invocation)
    mode = choose_output_mode(options)
    configure_console(mode, _rename_arguments)
    # here: they load pyarrow and Pillow, and help does without
    from lightkit.images.image_index import index_images
    from lightkit.images.splits import check_fractions
    from lightkit.images.table_writer import (
        BAD_IMAGES,
        ImageRow,
        TableTarget,
        plan_files,
        write_table,
    )

    target = TableTarget(
        table, images, _choose_format(invocation, table) == "delta", invocation.has("overwrite")
    )
    target.check()
    try:
        check_fractions(val_fraction=fractions["val"], test_fraction=fractions["test"])
        index = index_images(
            images,
            val_fraction=fractions["val"],
            test_fraction=fractions["test"],
            on_bad_image=invocation.get("on-bad-image"),
            max_bad_fraction=fractions["max-bad"],
        )
        rows = []
        for split, photos in index.splits.items():
            for photo in photos:
                path = photo.path.relative_to(images).as_posix()
                label = index.name_label(photo)
                path = _decode(path)
                label = _decode(label)
                num_bytes = photo.path.stat().st_size
                size = photo.width, photo.height
                rows.append(
                    ImageRow(photo.path, path, label, split, photo.digest, num_bytes, *size)
                )
    except LightkitError as error:
        raise error.reworded(_rename_arguments) from error
    except OSError as error:
        raise DataError(
            f"{error.filename}: {error.strerror or error}. Run the same command again."
        ) from error
    files = plan_files(
        rows, num_files=invocation.get("partitions"), row_group_bytes=row_group_bytes
    )
    counts = ", ".join(f"{number} {split}" for split, number in index.counts.items())
    num_images = format_count(sum(index.counts.values()), "image")
    num_classes = format_count(len(index.class_names), "class", "classes")
    summary = f"{shown_path(images)}: {num_images}, {num_classes}, {counts}"
    print_line(visible(summary, in_line=True), mode)
    bad_images = [BadImage(defect.name, defect.reason, "scan") for defect in index.defects]
    num_bytes, version = write_table(target, files, bad_images=bad_images)
    if bad_images:
        print_line(f"{shown_path(table / BAD_IMAGES)}: lists what is left out", mode)
    name = shown_path(table)
    num_files = format_count(len(files), "file")
    of_delta = "" if version is None else f", version {version}"
    print_line(
        f"{name}: {format_count(len(rows), 'row')}, {num_bytes / 1e6:.1f} MB,"
        f" {num_files}{of_delta}",
        mode,
    )
    print_line(f"lightkit init --data {shlex.quote(name)}", mode)
    return 0


def _choose_format(invocation: Invocation, table: Path) -> str:
    """Return `delta` or `parquet`: what `--format` asks for, else by the table's name."""
    by_name = "parquet" if table.suffix.lower() in (".parquet", ".pq") else "delta"
    return str(invocation.options.get("format", by_name))


def _read_inputs(invocation: Invocation) -> tuple[Path, Path]:
    """Return the folder of images and that of the table.

    Raises:
        ConfigError: If there are not two words, or the table is an address.
    """
    inputs = invocation.inputs
    if len(inputs) != 2:
        found = f"got {', '.join(map(repr, inputs)) or 'none'}"
        raise invocation.error(f"expected a folder of images and the table to write, {found}")
    if "://" in inputs[1]:
        raise ConfigError(
            f"convert: expected the name of a folder to write, got the address {inputs[1]}. Write"
            " the table to a folder, and copy that as a whole: nothing in it says where it is."
        )
    images, table = (Path(word).expanduser() for word in inputs)
    return images, table.resolve() if table.name in ("", "..") else table


def _read_row_group_bytes(invocation: Invocation) -> int:
    size_mb = invocation.get("row-group-mb")
    if size_mb * 1e6 < 1:
        raise invocation.error(f"--row-group-mb: expected a number of MB above 0, got {size_mb:g}")
    return int(size_mb * 1e6)


def _read_fractions(invocation: Invocation) -> dict[str, float]:
    """Return the shares of the splits, and the largest share of bad files.

    Raises:
        ConfigError: If the last is no share.
    """
    fractions: dict[str, float] = {
        name: invocation.get(f"{name}-fraction") for name in ("val", "test", "max-bad")
    }
    if not 0 <= fractions["max-bad"] <= 1:
        raise invocation.error(
            f"--max-bad-fraction: expected a number from 0 to 1, got {fractions['max-bad']:g}"
        )
    return fractions


def _decode(name: str) -> str:
    r"""Write bytes of a name that are no UTF-8 as ``\\xff``: a table holds text."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _rename_arguments(text: str) -> str:
    """Replace the data module's arguments in an error by this command's options."""
    return _KEY.sub(lambda found: _ARGUMENTS[found[1] or found[2]], text)
