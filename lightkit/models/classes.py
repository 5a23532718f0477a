"""Class names: where they come from, and whether two lists of them mean the same."""

from __future__ import annotations

from collections.abc import Sequence

from lightkit.errors import ConfigError

__all__ = ["agree", "numbered", "of_data", "usable"]


def numbered(num_classes: int) -> list[str]:
    """Name classes by their labels, where nobody names them better."""
    return [str(label) for label in range(num_classes)]


def of_data(data: object) -> list[str] | None:
    """Take the class names of a data module, or number them where it has a count alone; None where it has neither."""
    if names := getattr(data, "class_names", None):
        return [str(name) for name in names]
    count = getattr(data, "num_classes", None)
    return numbered(count) if isinstance(count, int) and count > 0 else None


def usable(names: Sequence[str], num_classes: int | None) -> list[str]:
    """Refuse names that cannot be the classes of a classifier.

    Raises:
        ConfigError: If there are fewer than two, some are equal, or the model was told another count.
    """
    names = list(names)
    if len(names) < 2:
        raise ConfigError(f"A classifier needs at least two classes; found {len(names)}: {', '.join(names)}.")
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ConfigError(f"Class names must differ; found more than once: {', '.join(twice)}.")
    if num_classes not in (None, len(names)):
        raise ConfigError(
            f"model.init_args.num_classes is {num_classes}, and there are {len(names)} classes: {_shown(names)}. "
            f"Leave num_classes out to take the data's."
        )
    return names


def agree(names: Sequence[str], current: Sequence[str], *, by: str) -> list[str]:
    """Check that two lists name the same classes in the same order; numbers agree with any names of their count.

    Args:
        names: As stored or set.
        current: As the data or the model has them.
        by: Who says ``names``, for the error.

    Returns:
        The one of the two that has names.

    Raises:
        ConfigError: If they do not agree.
    """
    names, current = list(names), list(current)
    if len(names) == len(current) and numbered(len(names)) in (names, current):
        return current if names == numbered(len(names)) else names
    if names == current:
        return names
    same = sorted(names) == sorted(current)
    raise ConfigError(
        f"The classes of {by} are not those of the data{', but in another order' if same else ''}: "
        f"{by} has {len(names)} ({_shown(names)}), the data {len(current)} ({_shown(current)}). "
        f"Use the data that it was made for, or train a new model."
    )


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
