"""Build the notifiers of a config without its model, data and trainer. Apart from `notifications`: this loads torch."""

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

__all__ = ["instantiate_notifiers"]


def instantiate_notifiers(resolved: Resolved, entries: Mapping[str, Any]) -> list[tuple[str, Notifier]]:
    """Instantiate the notifiers among some callbacks, each with the name of its entry.

    Args:
        resolved: The config.
        entries: Class and arguments of each callback, by its dotted key.

    Raises:
        ConfigError: If one cannot be instantiated.
    """
    notifiers = []
    for key, entry in entries.items():
        arguments = {"class_path": entry} if isinstance(entry, str) else dict(entry)
        name = str(arguments["class_path"])
        class_path = arguments["class_path"] = name if "." in name else f"lightkit.callbacks.{name}"
        module, _, class_name = class_path.rpartition(".")
        parser = ArgumentParser(exit_on_error=False)
        parser.add_subclass_arguments(Notifier, "notifier")
        try:
            cls = getattr(import_module(module), class_name)
            if not (isinstance(cls, type) and issubclass(cls, Notifier)):
                continue
            with unwrap_errors():
                notifier = parser.instantiate_classes(parser.parse_object({"notifier": arguments})).notifier
        except Exception as error:  # the class is anybody's  # noqa: BLE001
            reason = " ".join(str(error.message if isinstance(error, ArgumentError) else error).split())
            reason = f"{name} cannot be built: {type(error).__name__}: {reason}"
            reason = str(error) if isinstance(error, ConfigError) else reason
            raise mistake(f"{key}: {resolved.masked(reason)}", resolved.origin_of(key)) from None
        notifier.mask = resolved.masked
        notifiers.append((key.rpartition(".")[2] if key.startswith("callbacks.") else key, notifier))
    return notifiers
