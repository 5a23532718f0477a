"""The scan before training: every image is decoded once, and what cannot be is left out, listed, or refused."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pytorch_lightning.utilities import rank_zero_only
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from lightkit import runs
from lightkit.config import shown_path
from lightkit.data.defects import Defect
from lightkit.errors import ConfigError, DataError, visible
from lightkit.images.verdicts import Verdict, judge_images
from lightkit.runs.bad_images import BadImage, BadImageList, most_frequent

__all__ = ["OnBadImage", "check_bad_fraction", "defects_among", "scanned"]

log = logging.getLogger("lightkit.data")

OnBadImage = Literal["skip", "error"]
_NUM_SHOWN = 5


def scanned(paths: Sequence[Path]) -> list[Verdict]:
    """Give the verdict on each file, with a bar on a terminal.

    The first scan decodes them; a later one, by another run or another rank, reads only those that were touched since,
    and decodes only content that is new.
    """
    found: list[Verdict] = []
    with _bar(len(paths)) as bar:
        for verdict in judge_images(paths):
            found.append(verdict)
            if bar is not None:
                bar.advance(bar.task_ids[0])
    return found


def defects_among(
    judged: Sequence[tuple[Path, Verdict]], *, root: Path, on_bad_image: OnBadImage, max_bad_fraction: float
) -> list[Defect]:
    """Give the files that cannot be used, where it is right to go on without them.

    Args:
        judged: All files.
        root: Folder that they are from.
        on_bad_image: `skip` leaves them out; with `error` there must be none.
        max_bad_fraction: Share of all files that may be left out.

    Raises:
        DataError: With the list, if there are any and none are allowed, or there are too many. Of a run, the whole list
            is in its job's folder.
    """
    defects = [Defect(str(path), verdict.defect) for path, verdict in judged if verdict.defect is not None]
    too_many = len(defects) > max_bad_fraction * len(judged)
    if not defects or (on_bad_image == "skip" and not too_many):
        _tell_nobody_elses(defects)
        return defects
    share = f"{len(defects)} of {len(judged)} images in {root} cannot be used"
    if on_bad_image == "error":
        what = "data.init_args.on_bad_image is error. Replace or remove them, or set it to skip"
    else:
        what = (
            f"that is {len(defects) / len(judged):.1%}, and data.init_args.max_bad_fraction allows "
            f"{max_bad_fraction:.4g}. Replace or remove them, or allow more"
        )
    raise DataError("\n".join([f"{share}; {what}:", *_listed(defects)]))


def check_bad_fraction(max_bad_fraction: float) -> None:
    """Refuse what is no share.

    Raises:
        ConfigError: If it is outside [0, 1].
    """
    if not 0 <= max_bad_fraction <= 1:
        raise ConfigError(
            f"data.init_args.max_bad_fraction: expected a share from 0 to 1 of all images, got {max_bad_fraction}"
        )


def _listed(defects: Sequence[Defect]) -> list[str]:
    """Name the first few, and where all are; outside of a run nowhere but here."""
    place = _written(defects)
    shown = defects if place is None else defects[:_NUM_SHOWN]
    lines = [f"  {visible(defect.name, in_line=True)}: {visible(defect.reason, in_line=True)}" for defect in shown]
    more = f"  and {len(defects) - len(shown)} more; " if len(defects) > len(shown) else "  "
    return lines if place is None else [*lines, f"{more}all are listed in {shown_path(place)}"]


def _written(defects: Sequence[Defect]) -> Path | None:
    """Write the whole list beside the run's folder, which is removed where training could not begin."""
    run = runs.current()
    if run is None:
        return None
    place = run.folder.parent / "bad_images.csv"
    if _is_first_rank():
        try:
            BadImageList(place).write(BadImage(defect.name, defect.reason, "scan") for defect in defects)
        except OSError:
            return None
    return place


def _tell_nobody_elses(defects: Sequence[Defect]) -> None:
    """Say what is left out where no run does, which lists them in its folder."""
    if defects and runs.current() is None and _is_first_rank():
        reasons = most_frequent(defect.reason for defect in defects)
        images = "image" if len(defects) == 1 else "images"
        log.warning("%d %s cannot be used and will be left out (%s)", len(defects), images, reasons)


def _is_first_rank() -> bool:
    return getattr(rank_zero_only, "rank", 0) == 0


@contextmanager
def _bar(total: int) -> Iterator[Any]:
    console = Console(stderr=True)
    if not (console.is_terminal and _is_first_rank() and log.isEnabledFor(logging.INFO)):
        yield None
        return
    columns = TextColumn("images"), BarColumn(), MofNCompleteColumn(), TextColumn("checked"), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        bar.add_task("images", total=total)
        yield bar
