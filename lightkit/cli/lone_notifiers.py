"""The notifiers of a config, built without its model, data and trainer. Apart, because this loads torch."""

from __future__ import annotations

from argparse import ArgumentError
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from jsonargparse import ArgumentParser

from lightkit.callbacks.notifiers import Notifier
from lightkit.cli.lightning_errors import unwrap_errors
from lightkit.config import Resolved, mistake
from lightkit.errors import ConfigError

__all__ = ["built_notifiers"]

_OWN = "lightkit.callbacks."


def built_notifiers(resolved: Resolved, entries: Mapping[str, Any]) -> list[tuple[str, Notifier]]:
    """Build those of some callbacks that are notifiers.

    Args:
        resolved: The config.
        entries: A callback's class and arguments, by its dotted key.

    Raises:
        ConfigError: If one cannot be built.
    """
    found = []
    for key, entry in entries.items():
        said = {"class_path": entry} if isinstance(entry, str) else dict(entry)
        path = str(said["class_path"])
        said["class_path"] = path if "." in path else _OWN + path
        try:
            if not _is_notifier(said["class_path"]):
                continue
            with unwrap_errors():
                notifier = _built(said)
        except Exception as error:  # the class is anybody's  # noqa: BLE001
            says = str(error) if isinstance(error, ConfigError) else f"{path} cannot be built: {_told(error)}"
            raise mistake(f"{key}: {resolved.masked(says)}", resolved.origin_of(key)) from None
        notifier.mask = resolved.masked
        found.append((key.rpartition(".")[2] if key.startswith("callbacks.") else key, notifier))
    return found


def _is_notifier(class_path: str) -> bool:
    module, _, name = class_path.rpartition(".")
    found = getattr(import_module(module), name)
    return isinstance(found, type) and issubclass(found, Notifier)


def _built(said: Mapping[str, Any]) -> Notifier:
    """Build one from what the config says, which is text where a flag said it."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(Notifier, "notifier")
    built = parser.instantiate_classes(parser.parse_object({"notifier": dict(said)})).notifier
    assert isinstance(built, Notifier)
    return built


def _told(error: Exception) -> str:
    words = str(error.message if isinstance(error, ArgumentError) else error)
    return f"{type(error).__name__}: {' '.join(words.split())}"
