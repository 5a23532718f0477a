"""Parts that the configs of `lightkit init --data` share, whatever kind of data they are for."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from PIL import Image

from lightkit.errors import format_count
from lightkit.images.image_file import walk_files
from lightkit.images.image_index import list_folders
from lightkit.images.splits import split_named
from lightkit.images.table_format import explain_other_format
from lightkit.reports.statistics import smallest_drop, suggest_margin
from lightkit.rows.reader import RowTable, is_text_file, open_rows
from lightkit.texts.text_files import TEXT_SUFFIX

# promoted models; a slide of less than a tenth of the margin at each promotion goes through
DRIFT_WINDOW = 10
_TRAIN_FRACTION = 0.7  # as the data modules divide without given splits
_TEST_FRACTION = 0.1
_NUM_SIZES = 200  # images whose size is looked at


class Starter(NamedTuple):
    """A config for data.

    Args:
        text: The config.
        notes: Columns that it uses, and those that it does not with the reason, each a line.
    """

    text: str
    notes: Sequence[str] = ()


class DataSummary(Protocol):
    """Summary of a folder or table, as far as its config depends on it."""

    def compose(self, name: str) -> Starter:
        """Write the config with this file name."""


@dataclass(frozen=True)
class Classes:
    """Classes or labels of the samples of a data set.

    Args:
        noun: Of a sample, such as image.
        counts: Number of samples of each class or label.
        num_samples: Number of samples.
        num_test: Number of those in the test split.
        is_multilabel: Whether a sample has any number of labels.
    """

    noun: str
    counts: Mapping[str, int]
    num_samples: int
    num_test: int
    is_multilabel: bool = False

    @property
    def number(self) -> str:
        """Number of classes or labels, with its noun."""
        if self.is_multilabel:
            return format_count(len(self.counts), "label")
        return format_count(len(self.counts), "class", "classes")

    def list_counts(self, most: int = 20) -> str:
        """List the first classes, each with its number of samples."""
        return ", ".join(f"{name} {count}" for name, count in list(self.counts.items())[:most])

    def format_gate(self) -> str:
        """Write the section `gate` below an empty line; nothing without test samples."""
        if not self.num_test:
            return ""
        if self.is_multilabel:
            metric = "test/map"
            share = sum(self.counts.values()) / self.num_samples / len(self.counts)
            chance = f"a random order gives {share:.2f}"
        else:
            metric = "test/accuracy"
            largest = max(self.counts, key=lambda name: self.counts[name])
            share = self.counts[largest] / self.num_samples
            chance = f"always answering {largest!r} gives {share:.2f}"
        least = round((1 + share) / 2, 2)
        return f"""
gate:   # for lightkit gate, promote and retrain
  metric: {metric}
  min: {least}   # {chance} on all {self.noun}s; halfway from there to 1
{_format_comparison(self.num_test, self.noun)}"""


def _format_comparison(num_test: int, noun: str) -> str:
    """Write the conditions on a comparison with the champion.

    Also write what so many test samples can show.

    A test of non-inferiority, and a bound on many small steps down; of few samples, whose interval
    says nothing, none more may be wrong than of the champion.
    """
    margin = suggest_margin(num_test)
    if margin is None:
        few = f"{format_count(num_test, f'test {noun}')} {'is' if num_test == 1 else 'are'}"
        return f"  max_drop: 0   # no worse than the champion: {few} too few to measure a drop\n"
    drop = smallest_drop(num_test)
    return (
        f"  margin: {margin:g}   # shown to be less than this worse than the champion, with 95 %"
        f" confidence\n  drift: {{window: {DRIFT_WINDOW}, max_drop: {margin:g}}}   # below the best"
        f" of the last {DRIFT_WINDOW} champions: no sinking step by step\n  # The smallest drop"
        f" that {num_test} {noun}s can show: {drop:.2g}. More test {noun}s show a smaller one.\n"
    )


def find_table(path: Path) -> RowTable | None:
    """Open the table that a path names; None where it names none.

    A list next to class folders is no table.

    Raises:
        DataError: If it cannot be read.
    """
    if not path.exists():
        return None
    if not path.is_dir():
        is_table = is_text_file(path.name) or explain_other_format(path) is None
    elif (path / "_delta_log").is_dir() or _has_parquet(path):
        is_table = True
    else:
        has_text = any(is_text_file(each.name) for each in path.iterdir())
        is_table = has_text and not has_sample_folders(path)
    return open_rows(str(path), setting="--data") if is_table else None


def _has_parquet(folder: Path) -> bool:
    """Return whether a folder has files of Parquet, also in folders such as ``country=de``."""
    partitions = [each for each in list_folders(folder) if "=" in each.name]
    return any(folder.glob("*.parquet")) or any(
        next(each.rglob("*.parquet"), None) is not None for each in partitions
    )


def has_sample_folders(path: Path) -> bool:
    """Return whether folders in a folder have files that are no tables.

    Such as images, or texts of a class.
    """
    if not path.is_dir():
        return False
    files = (file.lower() for each in list_folders(path) for file in walk_files(str(each)))
    return any(
        file.endswith(TEXT_SUFFIX) or not (is_text_file(file) or file.endswith(".parquet"))
        for file in files
    )


def count_splits(named: Mapping[Any, int], number: int) -> tuple[int, int]:
    """Return the number of samples for training, and of those for the test.

    Args:
        named: Number of samples by the name of their split; empty where the data module decides.
        number: Number of all samples.
    """
    if not named:
        return round(number * _TRAIN_FRACTION), round(number * _TEST_FRACTION)
    counts: Counter[str | None] = Counter()
    for name, count in named.items():
        counts[split_named(str(name))] += count
    return counts["train"], counts["test"]


def measure_images(files: Sequence[Path]) -> list[int]:
    """Return the shorter side of some images; `fit` lists those that cannot be read."""
    sizes = []
    for file in files[:: max(1, len(files) // _NUM_SIZES)]:
        with suppress(OSError, ValueError, Image.DecompressionBombError), Image.open(file) as image:
            sizes.append(min(image.size))
    return sizes


def describe_batches(num_train: int, batch_size: int) -> str:
    """Describe how many batches an epoch of training images has."""
    number = f"about {format_count(num_train, 'training image')}"
    if num_train < batch_size:
        return f"{number}, which are fewer than a batch"
    return f"{format_count(num_train // batch_size, 'batch', 'batches')} of {number}"


def format_arguments(arguments: Iterable[tuple[str, Any, str]]) -> str:
    """Write arguments as YAML, each on a line with its reason, which may be empty."""
    lines = []
    for key, value, reason in arguments:
        comment = f"   # {reason}" if reason else ""
        lines.append(f"    {key}: {value}{comment}\n")
    return "".join(lines)


def format_json(value: Any) -> str:
    """Write a value as JSON, which is YAML too."""
    return json.dumps(value, ensure_ascii=False)
