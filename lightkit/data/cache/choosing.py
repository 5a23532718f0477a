"""Whether decoded images are kept, where, and in how much room."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pytorch_lightning import Trainer
from pytorch_lightning.trainer.states import TrainerFn

from lightkit.data.cache.keeping import Kept, kept_file
from lightkit.data.cache.layout import Layout, layout_of
from lightkit.data.cache.places import lock_folder, places
from lightkit.data.cache.readings import why_not
from lightkit.data.cache.source import CachedSource, ResizedSource
from lightkit.data.photos import Photo
from lightkit.data.pixels import PixelSource
from lightkit.data.splits import Split
from lightkit.images.preprocessing import Preprocessing

__all__ = ["Choice", "cached_sources"]

log = logging.getLogger("lightkit.data")

_READ_ONCE = "each is needed once"
Cache = Literal["auto", "none", "memory", "disk"]


@dataclass(frozen=True)
class Choice:
    """Where the images of a fit come from.

    Args:
        sources: Of training, and of validation where that reads what is kept; another split is read from its files.
        kept: Where they are decoded.
        size: Their shorter side in training, in pixels; None where that reads the files as they are.
        is_final: False where another training with the same data may be worth keeping them.
    """

    sources: Mapping[Split, PixelSource]
    kept: Literal["memory", "disk", "nowhere"] = "nowhere"
    size: int | None = None
    is_final: bool = True

    @property
    def described(self) -> dict[str, Any]:
        """What a manifest says of it."""
        return {"kept": self.kept, "size": self.size}


def cached_sources(
    splits: Mapping[Split, Sequence[Photo]],
    files: Mapping[Split, PixelSource],
    *,
    cache: Cache,
    cache_size: int | None,
    cache_limit_gb: float | None,
    preprocessing: Preprocessing,
    batch_size: int,
    trainer: Trainer | None,
    is_read_once: bool = False,
) -> Choice:
    """Choose where the images of a fit come from.

    Call it once for a fit, in `setup`, in every process: the first on a machine decodes, the others wait for it.
    The pixels that are trained on follow from ``cache`` and ``cache_size`` alone: with `none` they are those of the
    files; else those of the images resized to ``cache_size``, which may be kept in memory, on disk or nowhere.

    Args:
        splits: The photos of training and validation.
        files: Their sources, in the same order; asked for what is not kept, and for labels and names.
        cache: What the config says.
        cache_size: Shorter side of what is kept, in pixels; ``preprocessing.resize`` if None. With another one, only
            training reads from the cache, so that evaluation stays equal to the last bit.
        cache_limit_gb: Most that it may take, in GB (1e9 bytes); on disk, together with other caches there, of which
            those go that were unused longest.
        preprocessing: Of evaluation.
        batch_size: Of one process.
        trainer: Tells whether it is a fit, and of how many epochs.
        is_read_once: Each image is asked for once only.
    """
    if trainer is not None and trainer.state.fn != TrainerFn.FITTING:
        return Choice({}, is_final=False)
    if cache == "none":
        _warn_idle(cache_size=cache_size, cache_limit_gb=cache_limit_gb)
        return Choice({})
    shorter = cache_size or preprocessing.resize
    kept = {split: photos for split, photos in splits.items() if split == "train" or shorter == preprocessing.resize}
    tell = log.info if trainer is not None and trainer.is_global_zero else log.debug  # no training, nothing to tell
    # validation's own resizing of a file gives the same pixels
    resized = Choice({"train": ResizedSource(splits["train"], files["train"], shorter=shorter)}, size=shorter)
    num_photos = len(splits["train"])
    why = _READ_ONCE if is_read_once else why_not(trainer, num_photos=num_photos, batch_size=batch_size)
    if cache == "auto" and why:
        tell("data: photos are decoded each time, as %s; data.init_args.cache: disk keeps them for later runs", why)
        return replace(resized, is_final=False)
    layout = layout_of((photo for photos in kept.values() for photo in photos), shorter)
    if not layout.photos:
        return resized
    found = _looked_for(layout, cache, cache_limit_gb, waiting=lambda: tell("data: another process decodes the photos"))
    if found.file is None:
        _tell_no_room(cache, found.says, tell)
        return resized
    file, say = found.file, log.info if found.is_new else tell
    say("data: %d photos %s", sum(map(len, kept.values())), found.says)
    sources = {split: CachedSource(photos, files[split], layout=layout, file=file) for split, photos in kept.items()}
    return Choice(sources, kept="memory" if file.is_temporary else "disk", size=shorter)


def _tell_no_room(cache: Cache, why: str, tell: Callable[..., None]) -> None:
    if cache == "auto":
        tell("data: photos are decoded in every epoch; %s", why)
        return
    log.warning(
        "data.init_args.cache: %s; photos are decoded and resized each time instead, which gives the same numbers "
        "slower. Make room, raise data.init_args.cache_limit_gb, or set data.init_args.cache to auto.", why
    )  # fmt: skip


def _warn_idle(**settings: float | None) -> None:
    idle = [f"data.init_args.{name}" for name, value in settings.items() if value is not None]
    if idle:
        log.warning("%s: no effect with data.init_args.cache: none", " and ".join(idle))


def _looked_for(
    layout: Layout, cache: Literal["auto", "memory", "disk"], limit_gb: float | None, *, waiting: Callable[[], None]
) -> Kept:
    candidates = places(cache)
    for place in dict.fromkeys([*candidates, *places("memory")]):
        place.clean(keep=layout.file_name)
    limit_bytes = None if limit_gb is None else limit_gb * 1e9
    return kept_file(layout, candidates, limit_bytes=limit_bytes, lock_folder=lock_folder(), waiting=waiting)
