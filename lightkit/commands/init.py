"""`lightkit init`: write a starter project, or a config for images, texts or a table of rows."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from lightkit.cli.command_line import Invocation
from lightkit.cli.starter_masks import DRIFT_WINDOW, format_mask_config, summarize_masks
from lightkit.cli.starter_texts import Starter, find_texts, format_text_config
from lightkit.config.origins import near_files, shown_path
from lightkit.errors import ConfigError, DataError, format_count
from lightkit.images.image_file import IMAGE_SUFFIXES
from lightkit.images.image_index import find_mask_folders, find_split_folders, refuse_masks
from lightkit.images.inputs import COLUMNS as PATH_COLUMNS
from lightkit.images.label_table import (
    CSV_SUFFIXES,
    LABEL_COLUMNS,
    LabelColumns,
    TableRow,
    collect_files,
    read_csv,
)
from lightkit.images.splits import split_named
from lightkit.images.table_format import RECIPES, explain_other_format

_TEMPLATES = {
    "module": ("module",),
    "image": ("image",),
    "ci": ("module", "gate", "ci"),
    "cron": ("module", "gate", "cron"),
}
"""Folders of files of each template."""
_JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
_SPREADSHEETS = (".ods", ".xls", ".xlsx")
_NUM_SIZES = 200  # images whose size is looked at
_SEPARATORS = "|;,"
_LABELS = ("label", "class", "target", "category", "y")
_FEW_IMAGES = 5000  # below it a frozen backbone generalises better than one trained as a whole


@dataclass(frozen=True)
class ImageData:
    """Images, splits and classes of a folder or table.

    Args:
        source: Class of the data module, and its arguments.
        classes: Number of images of each class, in all splits.
        splits: Number of images of each split.
        sizes: Shorter side of some of the images, in pixels.
        found: One line that says it.
        num_images: Number of images, where they may have several labels.
        is_multilabel: Whether an image has any number of labels.
    """

    source: tuple[str, Mapping[str, Any]]
    classes: Mapping[str, int]
    splits: Mapping[str, int]
    sizes: Sequence[int]
    found: str
    num_images: int = 0
    is_multilabel: bool = False


def init(invocation: Invocation) -> int:
    """Write the files and return the exit code.

    Raises:
        ConfigError: If the arguments are wrong, or a file exists.
        DataError: If the folder holds no images in classes.
    """
    files, notes = _compose_files(invocation)
    existing = [name for name in files if Path(name).exists()]
    if existing:
        listed = "\n".join(f"  {name}" for name in existing)
        remedy = (
            "Name another file with --output." if invocation.has("data") else "Try an empty folder."
        )
        raise ConfigError(
            f"init: it overwrites nothing, and this folder already has:\n{listed}\n{remedy}"
        )
    for name, text in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        with Path(name).open("x", encoding="utf-8") as file:
            file.write(text)
        print(f"wrote {name}")
    for note in notes:
        print(note)
    config = next(name for name in files if name.endswith(".yaml"))
    print(f"next  lightkit fit -c {shlex.quote(config)}")
    return 0


def _compose_files(invocation: Invocation) -> tuple[dict[str, str], Sequence[str]]:
    """Return the text of each file by its name, and lines on what they use.

    Raises:
        ConfigError: If the options do not go together, or there is no such template.
    """
    options = invocation.options
    if "template" in options and "data" in options:
        raise invocation.error("expected --template or --data, got both")
    if "output" in options and "data" not in options:
        raise invocation.error(
            "--output names the config of --data; the files of a template have names of their own"
        )
    if "text" in options and "data" not in options:
        raise invocation.error("--text names a column of the table that --data names")
    if "data" in options:
        name, starter = _compose_config(Path(options["data"]), options)
        return {name: starter.text}, starter.notes
    template = options.get("template", "module")
    if template not in _TEMPLATES:
        raise ConfigError(
            f"init: there is no template {template!r}; choose from {', '.join(_TEMPLATES)}"
        )
    return _read_templates(_TEMPLATES[template]), ()


def _compose_config(path: Path, options: Mapping[str, Any]) -> tuple[str, Starter]:
    """Return the name and the text of the config for a folder or a table.

    Raises:
        ConfigError: If it has no column of texts, and the options name one.
        DataError: If it holds nothing that a model learns from.
    """
    column = options.get("text")
    stem = path.absolute().stem if path.is_file() else path.absolute().name
    name = options.get("output", f"{stem}.yaml" if column is None else f"{stem}_texts.yaml")
    masks = find_mask_folders(path) if path.is_dir() else None
    texts = None if column is not None or masks is not None else find_texts(path)
    if texts is not None:
        comparison = _format_comparison(texts.splits.get("test", 0), "text")
        return name, Starter(format_text_config(texts, name, comparison=comparison))
    if masks is None and _is_table_of_rows(path):
        from lightkit.cli.starter_rows import compose_table_config  # here: it loads pyarrow

        return name, compose_table_config(path, name, column, format_comparison=_format_comparison)
    if column is not None:
        raise ConfigError(
            f"--text: {shown_path(path)} is no table of rows, of which it names a column"
        )
    if masks is not None:
        summary = summarize_masks(path, *masks)
        text = format_mask_config(summary, name, sizes=_measure_images(summary.images))
        return name, Starter(text)
    return name, Starter(starter_config(summarize_images(path), name))


def _is_table_of_rows(path: Path) -> bool:
    """Return whether a table has neither images nor the paths of images."""
    if path.is_file() and _is_text(path):
        is_csv = _suffix(path) in CSV_SUFFIXES and path.suffix.lower() in CSV_SUFFIXES
        return not is_csv or not any(name.lower() in PATH_COLUMNS for name in read_csv(path)[0])
    is_folder = path.is_dir() and not (path / "_delta_log").is_dir()
    if is_folder and _subfolders(path):
        return False
    if is_folder and not any(path.glob("*.parquet")):
        return any(map(_is_text, path.iterdir()))
    return path.exists() and explain_other_format(path) is None and not _has_image_columns(path)


def _has_image_columns(path: Path) -> bool:
    """Return whether a Parquet or Delta table has images, or the paths of images."""
    columns = {field.name: field.type for field in _open_table(path).schema}
    if _find_image_column(columns) is not None:
        return True
    texts = [name.lower() for name, kind in columns.items() if "string" in str(kind)]
    return any(name in PATH_COLUMNS for name in texts)


def _is_text(path: Path) -> bool:
    """Return whether a file is a table as text, by its suffix."""
    return _suffix(path) in (*CSV_SUFFIXES, *_JSON_SUFFIXES)


def _suffix(path: Path) -> str:
    """Return the suffix of a file's name, without that of a compression."""
    return (path.with_suffix("") if path.suffix.lower() == ".gz" else path).suffix.lower()


def _read_templates(folders: Sequence[str]) -> dict[str, str]:
    root = Path(__file__).parents[1] / "templates"
    program = shutil.which("lightkit") or f"{sys.executable} -m lightkit"
    files = {}
    for folder in folders:
        for file in sorted((root / folder).rglob("*")):
            if file.is_file() and file.suffix != ".pyc":
                name = file.relative_to(root / folder).as_posix().replace("gitignore", ".gitignore")
                text = file.read_text(encoding="utf-8")
                files[name] = text.replace("@FOLDER@", shlex.quote(str(Path.cwd()))).replace(
                    "@LIGHTKIT@", program
                )
    return files


def summarize_images(path: Path) -> ImageData:
    """Look at images in class folders, or at a Parquet or Delta table of images.

    Raises:
        DataError: If there is neither, or fewer than two classes.
    """
    if not path.exists():
        raise DataError(f"--data {path}: no such file or folder{near_files(path)}")
    if path.suffix.lower() in _SPREADSHEETS:
        raise DataError(
            f"--data {path}: spreadsheets are not read; save it as CSV, and name that file"
        )
    if path.is_file() and path.suffix.lower() in CSV_SUFFIXES:
        return _summarize_csv(path)
    # next to class folders a licence or a list is no table
    has_folders = path.is_dir() and bool(_subfolders(path))
    if not has_folders and (reason := explain_other_format(path)) is not None:
        raise DataError(f"--data: {reason}")
    is_table = path.is_file() or (path / "_delta_log").is_dir() or any(path.glob("*.parquet"))
    data = _summarize_table(path) if is_table else _summarize_folder(path)
    if len(data.classes) < 2:
        expected = (
            "expected one folder per class with images, or train/,"
            " val/ and test/ with class folders"
        )
        loose = (
            sum(each.suffix.lower() in IMAGE_SUFFIXES for each in path.iterdir())
            if path.is_dir()
            else 0
        )
        found = (
            f"{format_count(loose, 'image')}, not in the folder of a class" if loose else data.found
        )
        raise DataError(f"--data {shown_path(path)}: {found}; {expected}")
    return data


def _summarize_folder(path: Path) -> ImageData:
    splits = find_split_folders(path)
    images = {split: _list_images(root) for split, root in (splits or {"train": path}).items()}
    classes = {
        name: sum(len(of_split.get(name, ())) for of_split in images.values())
        for name, files in images["train"].items()
        if files
    }
    counts: dict[str, int] = {
        split: sum(map(len, found.values())) for split, found in images.items()
    }
    sizes = _measure_images([file for files in images["train"].values() for file in files])

    # One split is divided by the data module.
    num_train = counts["train"]
    if len(counts) > 1:
        numbers = ", ".join(f"{number} {split}" for split, number in counts.items())
        numbers = f"{numbers} images"
    else:
        numbers = f"{num_train} {'image' if num_train == 1 else 'images'}"
    found = f"{numbers} in {format_count(len(classes), 'class', 'classes')}"
    of_splits = counts if splits else _split(num_train)
    return ImageData(("ImageFolder", {"root": path.as_posix()}), classes, of_splits, sizes, found)


def _list_images(root: Path) -> dict[str, list[Path]]:
    """List the images below each class's folder.

    Raises:
        DataError: If the folders hold masks.
    """
    files = {
        folder: [
            file for file in sorted(folder.rglob("*")) if file.suffix.lower() in IMAGE_SUFFIXES
        ]
        for folder in _subfolders(root)
    }
    refuse_masks(files)
    return {folder.name: found for folder, found in files.items()}


def _measure_images(files: Sequence[Path]) -> list[int]:
    """Return the shorter side of some images; `fit` lists those that cannot be read."""
    from PIL import Image  # here, as few commands read images

    sizes = []
    for file in files[:: max(1, len(files) // _NUM_SIZES)]:
        with suppress(OSError, ValueError, Image.DecompressionBombError), Image.open(file) as image:
            sizes.append(min(image.size))
    return sizes


def _summarize_table(path: Path) -> ImageData:
    table = _open_table(path)
    columns = {field.name: field.type for field in table.schema}
    image = _find_image_column(columns)
    names_files = any(
        name.lower() in PATH_COLUMNS and "string" in str(kind) for name, kind in columns.items()
    )
    if image is None and names_files:
        every = (cells for batch in table.to_batches() for cells in batch.to_pylist())
        named = [TableRow(f"{path}, row {at}", cells) for at, cells in enumerate(every)]
        return _summarize_rows(path, list(columns), named)
    labels = [name for name in _LABELS if name in columns]
    if image is None or not labels:
        raise _explain_columns(path, {name: str(kind) for name, kind in columns.items()}, image)
    return _summarize_bytes(path, table, image=image, label=labels[0])


def _summarize_bytes(path: Path, table: Any, *, image: str, label: str) -> ImageData:
    """Count the classes and the splits of a table of image bytes.

    Read some sizes where it has them.
    """
    columns = table.schema.names
    read = [label, "split"] if "split" in columns else [label]
    rows = table.to_table(columns=read).to_pydict()
    classes = {str(name): number for name, number in sorted(Counter(rows[label]).items(), key=str)}
    splits = Counter(split_named(str(name)) or str(name) for name in rows.get("split", ()))
    sizes = []
    if {"width", "height"} <= {*columns}:
        sizes = [
            min(row.values())
            for row in table.head(_NUM_SIZES, columns=["width", "height"]).to_pylist()
        ]
    counts = (
        f"{format_count(sum(classes.values()), 'row')} in"
        f" {format_count(len(classes), 'class', 'classes')}"
    )
    found = f"{counts}, image column {image!r}, label column {label!r}"
    source = "Table", {"path": path.as_posix(), "image": image, "label": label}
    return ImageData(source, classes, splits or _split(sum(classes.values())), sizes, found)


def _open_table(path: Path) -> Any:
    """Open a folder of Parquet files or a Delta table.

    Raises:
        DataError: If it cannot be read, or the package for it is missing.
    """
    import pyarrow as pa  # here, as few commands read tables
    import pyarrow.dataset as ds

    try:
        if (path / "_delta_log").is_dir():
            from deltalake import DeltaTable  # an extra

            return DeltaTable(path).to_pyarrow_dataset()
        return ds.dataset(path, format="parquet", exclude_invalid_files=True)
    except (ImportError, pa.ArrowException, OSError) as error:
        raise DataError(f"--data {shown_path(path)}: {str(error).splitlines()[0]}") from None


def _find_image_column(columns: Mapping[str, Any]) -> str | None:
    """Return the first column of bytes; None where there is none."""
    import pyarrow as pa  # here, as few commands read tables

    for name, kind in columns.items():
        if kind in (pa.binary(), pa.large_binary()):
            return name
    return None


def _summarize_csv(path: Path) -> ImageData:
    """Look at a file of comma separated values that names images and their labels.

    Raises:
        DataError: If it names no images, or cannot be read.
    """
    names, rows = read_csv(path)
    if not any(name.lower() in PATH_COLUMNS for name in names):
        raise DataError(
            f"--data: {explain_other_format(path)}. Images are named by a column"
            f" {', '.join(PATH_COLUMNS)}, and their labels by one of {', '.join(LABEL_COLUMNS)}; it"
            f" has {', '.join(names)}."
        )
    return _summarize_rows(path, names, list(rows))


def _summarize_rows(path: Path, names: Sequence[str], rows: Sequence[TableRow]) -> ImageData:
    """Look at the images that the rows of a table name, and at their labels.

    Raises:
        DataError: If a file is missing, or there is no column of labels.
    """
    from PIL import Image  # here, as few commands read images

    label = _find_labels(names, rows)
    separator = (
        None if isinstance(label, list) else _find_separator([row.cells[label] for row in rows])
    )
    columns = LabelColumns(names, image="auto", label=label, separator=separator, split="auto")
    found = collect_files(rows, columns, table=path, root=path.parent)
    files = [each for of_split in found.files.values() for each in of_split]
    counts = dict.fromkeys(found.class_names, 0)
    for _, given in files:
        marks = (
            [int(number == given) for number in range(len(counts))]
            if isinstance(given, int)
            else given
        )
        for name, is_there in zip(counts, marks, strict=True):
            counts[name] += is_there
    sizes = []
    for file, _ in files[:: max(1, len(files) // _NUM_SIZES)]:
        # fit lists them
        with (
            suppress(OSError, ValueError, Image.DecompressionBombError),
            Image.open(file) as image,
        ):
            sizes.append(min(image.size))
    arguments: dict[str, Any] = {"path": path.as_posix(), "image": columns.image, "label": label}
    if separator is not None:
        arguments["separator"] = separator
    splits = {str(split): len(of_split) for split, of_split in found.files.items()}
    of_classes = format_count(len(counts), "class", "classes")
    if found.is_multilabel:
        of_classes = format_count(len(counts), "label")
    text = f"{format_count(len(files), 'image')} with {of_classes}"
    is_given = bool(found.splits)
    return ImageData(
        ("ImageTable", arguments),
        counts,
        splits if is_given else _split(len(files)),
        sizes,
        f"{text}, path column {columns.image!r}",
        num_images=len(files),
        is_multilabel=found.is_multilabel,
    )


def _find_labels(names: Sequence[str], rows: Sequence[TableRow]) -> str | list[str]:
    """Find the column of labels, or the columns of 0 and 1 where a table has no such column.

    Raises:
        DataError: If there are none.
    """
    by_name = {name.lower(): name for name in reversed(names)}
    for usual in LABEL_COLUMNS:
        if usual in by_name:
            return by_name[usual]
    marks = [
        name for name in names if all(str(row.cells[name]).strip() in ("0", "1") for row in rows)
    ]
    if len(marks) > 1:
        return marks
    raise DataError(
        f"--data: the table has no column of labels named {', '.join(LABEL_COLUMNS)}, and no"
        f" columns of 0 and 1; it has {', '.join(names)}. By hand, data.init_args.label of"
        " lightkit.data.ImageTable names a column of any name."
    )


def _find_separator(cells: Sequence[Any]) -> str | None:
    """Find the character between several labels in one cell: the one of | ; and , that occurs.

    None where none does.
    """
    texts = [cell for cell in cells if isinstance(cell, str)]
    found = [each for each in _SEPARATORS if any(each in text for text in texts)]
    return found[0] if len(found) == 1 else None


def _explain_columns(path: Path, columns: Mapping[str, str], image: str | None) -> DataError:
    """Explain which table a config is written for, and which recipe is for this one.

    Args:
        path: The table.
        columns: Its columns, each with its type.
        image: The column of image bytes, if there is one.
    """
    listed = ", ".join(f"{name} ({kind})" for name, kind in columns.items())
    expected = f"expected a column of image bytes and one of {', '.join(_LABELS)}; got {listed}"
    if image is not None:
        recipe = (
            "By hand, data.init_args.label of lightkit.data.Table names a label column of any name"
        )
    else:
        recipe = (
            f'Numbers are trained on with a net of your own: {RECIPES}, "Numbers in a table", has a'
            " complete one"
        )
    return DataError(f"--data {shown_path(path)}: {expected}. {recipe}.")


def _split(number: int) -> dict[str, int]:
    """Return how many images ImageFolder and Table train and test with without given splits."""
    return {"train": round(number * 0.7), "test": round(number * 0.1)}


def _subfolders(path: Path) -> list[Path]:
    return sorted(
        entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith(".")
    )


def starter_config(data: ImageData, name: str) -> str:
    """Write a config for images: each setting with its reason as a comment.

    Args:
        data: The images.
        name: File name of the config.
    """
    side = round(median(data.sizes)) if data.sizes else 224
    num_train = data.splits.get("train", 0)
    num_test = data.splits.get("test", 0)
    is_small = side < 64
    is_few = num_train < _FEW_IMAGES
    is_frozen = not is_small and is_few
    batch_size = 32 if num_train >= 20 * 32 else 16 if num_train >= 20 * 16 else 8
    largest = max(data.classes, key=lambda each: data.classes[each])
    share = data.classes[largest] / sum(data.classes.values())
    if data.is_multilabel:
        share = sum(data.classes.values()) / data.num_images / len(data.classes)
    number = f"about {format_count(num_train, 'training image')}"
    model = [
        ("backbone", "small_cnn", f"images of {side} pixels are too small for a pretrained network")
    ]
    if not is_small:
        few = f"{number} are few: train the head only; `none` trains all layers"
        model = [
            (
                "backbone",
                "mobilenet_v2",
                "small and fast on a CPU; any classification model of torchvision works",
            ),
            (
                "weights",
                "default",
                "ImageNet weights, 14 MB, downloaded once; or a file's path; null: random ones",
            ),
            (
                "freeze",
                *(
                    ("backbone", few)
                    if is_few
                    else ("none", f"{number} are enough to train all layers")
                ),
            ),
        ]
    if data.is_multilabel:
        model.append(("multilabel", "true", "an image has any number of labels"))
    class_name, arguments = data.source
    batches = f"{format_count(num_train // batch_size, 'batch', 'batches')} of {number}"
    if num_train < batch_size:
        batches = f"{number}, which are fewer than a batch: one batch an epoch"
    # a table is read as a stream, of which no features are kept
    keeps_features = is_frozen and class_name != "Table"
    settings = [
        # which is YAML too
        *((key, json.dumps(value, ensure_ascii=False), "") for key, value in arguments.items()),
        (
            "image_size",
            min(224, max(32, side // 32 * 32)),
            f"the shorter side of the images is {side} pixels (median)",
        ),
        ("batch_size", batch_size, batches),
        *[("augment", "false", "the features of a frozen backbone are then computed once")]
        * keeps_features,
    ]
    text = f"""\
# {data.found}.
#   lightkit fit -c {shlex.quote(name)}
# Classes: {", ".join(f"{each} {number}" for each, number in list(data.classes.items())[:20])}
extends:
  - lightkit:base
  - lightkit:accelerator/auto   # as fast as this machine computes: bf16 where it has \
the instructions, else float32
  - lightkit:logger/tensorboard

{_format_section("model", "ImageClassifier", model)}
{_format_section("data", class_name, settings)}
callbacks:
  early_stopping:
    init_args: {{monitor: val/loss, patience: 5}}   # stop when 5 epochs bring nothing

trainer:
  max_epochs: {20 if is_frozen else 50}   # at most; early_stopping usually ends before
"""
    if not num_test:
        return text
    metric = "test/map" if data.is_multilabel else "test/accuracy"
    chance = f"always answering {largest!r} gives {share:.2f} on all images"
    if data.is_multilabel:
        chance = f"a random order gives {share:.2f} on all images"
    return f"""{text}
gate:   # for lightkit gate, promote and retrain
  metric: {metric}
  min: {round((1 + share) / 2, 2)}   # {chance}; halfway from there to 1
{_format_comparison(num_test)}"""


def _format_comparison(num_test: int, noun: str = "image") -> str:
    """Write the conditions on a comparison with the champion.

    Also write what so many test images or texts can show.

    A test of non-inferiority, and a bound on many small steps down; of few images, whose interval
    says nothing, none more may be wrong than of the champion.
    """
    from lightkit.reports.statistics import smallest_drop, suggest_margin  # here: it loads numpy

    drop = smallest_drop(num_test)
    margin = suggest_margin(num_test)
    if margin is None:
        few = f"{format_count(num_test, f'test {noun}')} {'is' if num_test == 1 else 'are'}"
        return f"  max_drop: 0   # no worse than the champion: {few} too few to measure a drop\n"
    return (
        f"  margin: {margin:g}   # shown to be less than this worse than the champion, with 95 %"
        f" confidence\n  drift: {{window: {DRIFT_WINDOW}, max_drop: {margin:g}}}   # below the best"
        f" of the last {DRIFT_WINDOW} champions: no sinking step by step\n  # The smallest drop"
        f" that {num_test} {noun}s can show: {drop:.2g}. More test {noun}s show a smaller one.\n"
    )


def _format_section(name: str, class_path: str, arguments: Sequence[tuple[str, Any, str]]) -> str:
    lines = [
        f"    {key}: {value}{f'   # {reason}' if reason else ''}\n"
        for key, value, reason in arguments
    ]
    return f"{name}:\n  class_path: {class_path}\n  init_args:\n{''.join(lines)}"
