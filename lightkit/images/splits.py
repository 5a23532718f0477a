"""Which split a file belongs to, decided by nothing but its bytes."""

from __future__ import annotations

from typing import Literal

from lightkit.errors import ConfigError

Split = Literal["train", "val", "test"]


def split_of(digest: str, *, val_fraction: float, test_fraction: float) -> Split:
    """Choose the split of content with this SHA-256.

    The digest's first 52 bits are read as a fraction in [0, 1): test comes first, then val, then train. So the choice
    is the same on every machine, no other file has a say in it, equal bytes go the same way, and another
    ``val_fraction`` never moves a file into or out of the test split.
    """
    fraction = int(digest[:13], 16) / 16**13
    if fraction < test_fraction:
        return "test"
    return "val" if fraction < test_fraction + val_fraction else "train"


def check_fractions(*, val_fraction: float, test_fraction: float) -> None:
    """Refuse shares that leave nothing to train on.

    Raises:
        ConfigError: If one is outside [0, 1), or both add up to 1 or more.
    """
    for name, value in (("val_fraction", val_fraction), ("test_fraction", test_fraction)):
        if value is None or not 0 <= value < 1:  # jsonargparse lets any value be null
            raise ConfigError(f"data.init_args.{name}: expected a share from 0 up to but not including 1, got {value}")
    if val_fraction + test_fraction >= 1:
        raise ConfigError(
            f"data.init_args.val_fraction ({val_fraction}) and data.init_args.test_fraction ({test_fraction}) "
            f"add up to {val_fraction + test_fraction:g}: nothing is left to train on. Make one of them smaller."
        )
