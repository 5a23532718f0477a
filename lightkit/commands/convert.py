"""`lightkit convert`: a folder of photos as a Delta or Parquet table."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from lightkit.cli.command_line import parse_options
from lightkit.cli.console import choose_output_mode, configure_console, print_line
from lightkit.config import shown_path
from lightkit.errors import ConfigError, DataError, LightkitError, format_count, visible
from lightkit.runs.bad_images import BadImage

HELP = """\
usage: lightkit convert IMAGES TABLE [--format delta|parquet] [--partitions N] [--row-group-mb MB]

Write a folder of photos as a table that lightkit.data.Table trains from. IMAGES has one folder a class, or train/, val/
and test/ with one folder a class each. Each row is a photo: image (the file's bytes as they are), label (the name of
its class), split (train, val or test), path (within IMAGES), width and height (of the upright image, in pixels). The
split is that of the folder, else decided by a hash of the content, just as lightkit.data.ImageFolder does.
The order is mixed, and decided by the photos alone. A row group holds rows of one split. Files, and the row groups of a
split, have equally many rows, within one.

  --format FORMAT           delta (default) or parquet
  --partitions N            write N files: the number of devices that train, or a multiple of it; default: 1
  --row-group-mb MB         most that a row group holds, in MB (1e6 bytes); a larger photo counts as none; default: 32
  --overwrite               replace a table of lightkit convert: Delta gets a new version, Parquet files are replaced
  --val-fraction SHARE      share of the photos for validation, where no validation folder is given; default: 0.2
  --test-fraction SHARE     share of the photos for testing, where no splits are given; default: 0.1
  --on-bad-image WORD       skip (default): leave out what cannot be decoded, and list it; error: end with the list
  --max-bad-fraction SHARE  share of bad files from which on it is an error in either case; default: 0.05
  --quiet                   print warnings and errors only

TABLE is a folder that appears when it is complete; one that exists stays as it is without --overwrite.
Exit code 0: written; 2: wrong arguments, or TABLE exists; 3: the photos are wrong, or the disk is full; 75: another
process is writing TABLE.

lightkit convert data/flower_photos data/flowers.delta --partitions 2
"""
_ARGUMENTS = {"root": "IMAGES", "on_bad_image": "--on-bad-image", "max_bad_fraction": "--max-bad-fraction",
              "val_fraction": "--val-fraction", "test_fraction": "--test-fraction"}  # fmt: skip
"""Names of the data module's arguments on this command line."""
_KEY = re.compile(rf"(?<![\w/.-])(?:data\.init_args\.({'|'.join(_ARGUMENTS)})|((?:val|test)_fraction))(?![\w/])")


def convert(args: list[str]) -> int:
    """Write a folder of photos as a table, and return the exit code.

    Raises:
        ConfigError: If an option is wrong, or the table cannot be written.
        DataError: If the photos cannot be used, or the disk is full.
        RunLocked: If another process is writing the same table.
    """
    line = parse_options(HELP, args, most=2)
    if len(line.positionals) != 2:
        found = f"got {', '.join(map(repr, line.positionals)) or 'none'}"
        raise line.error(f"expected a folder of images and the table to write, {found}")
    if "://" in line.positionals[1]:
        raise ConfigError(
            f"convert: expected the name of a folder to write, got the address {line.positionals[1]}. Write the table "
            "to a folder, and copy that as a whole: nothing in it says where it is."
        )
    images, table = (Path(word).expanduser() for word in line.positionals)
    table = table.resolve() if table.name in ("", "..") else table
    is_delta = line.get_choice("--format", ("delta", "parquet"), "delta") == "delta"
    on_bad_image = line.get_choice("--on-bad-image", ("skip", "error"), "skip")
    partitions = line.options.get("--partitions", "1")
    if not partitions.isdecimal() or int(partitions) < 1:
        raise line.error(f"--partitions: expected a whole number of at least 1, got {partitions!r}")
    row_group_bytes = int(line.get_number("--row-group-mb", 32) * 1e6)
    if row_group_bytes < 1:
        raise line.error(f"--row-group-mb: expected a number of MB above 0, got {line.options['--row-group-mb']!r}")
    defaults = {"val": 0.2, "test": 0.1, "max-bad": 0.05}
    fractions = {name: line.get_number(f"--{name}-fraction", share) for name, share in defaults.items()}
    if not 0 <= fractions["max-bad"] <= 1:
        raise line.error(f"--max-bad-fraction: expected a number from 0 to 1, got {fractions['max-bad']:g}")
    mode = choose_output_mode({"quiet": "--quiet" in line.options})
    configure_console(mode, _rename_arguments)
    # here: they load pyarrow and Pillow, and help does without
    from lightkit.images.image_index import index_images
    from lightkit.images.splits import check_fractions
    from lightkit.images.table_writer import BAD_IMAGES, ImageRow, TableTarget, plan_files, write_table

    target = TableTarget(table, images, is_delta, "--overwrite" in line.options)
    target.check()
    try:
        check_fractions(val_fraction=fractions["val"], test_fraction=fractions["test"])
        index = index_images(
            images,
            val_fraction=fractions["val"],
            test_fraction=fractions["test"],
            on_bad_image=on_bad_image,  # type: ignore[arg-type]  # one of the two words
            max_bad_fraction=fractions["max-bad"],
        )
        rows = []
        for split, photos in index.splits.items():
            for photo in photos:
                path, label = photo.path.relative_to(images).as_posix(), index.class_names[photo.label]
                path, label, num_bytes = _decode(path), _decode(label), photo.path.stat().st_size
                size = photo.width, photo.height
                rows.append(ImageRow(photo.path, path, label, split, photo.digest, num_bytes, *size))
    except LightkitError as error:
        raise error.reworded(_rename_arguments) from error
    except OSError as error:
        raise DataError(f"{error.filename}: {error.strerror or error}. Run the same command again.") from error
    files = plan_files(rows, num_files=int(partitions), row_group_bytes=row_group_bytes)
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
    print_line(f"{name}: {format_count(len(rows), 'row')}, {num_bytes / 1e6:.1f} MB, {num_files}{of_delta}", mode)
    print_line(f"lightkit fit -c configs/flowers.yaml --data=lightkit.data.Table --data.path={shlex.quote(name)}", mode)
    return 0


def _decode(name: str) -> str:
    r"""Write bytes of a name that are no UTF-8 as ``\\xff``: a table holds text."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _rename_arguments(text: str) -> str:
    """Replace the data module's arguments in an error by this command's options."""
    return _KEY.sub(lambda found: _ARGUMENTS[found[1] or found[2]], text)
