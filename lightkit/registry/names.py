"""Names of registered models and of their aliases, checked before anything is built. No torch."""

from __future__ import annotations

import re

from lightkit.errors import ConfigError

__all__ = ["check_alias", "check_name"]

_LONGEST_NAME, _LONGEST_ALIAS = 256, 255  # mlflow.utils.validation of MLflow 3.17, and its tables


def check_name(name: str, *, in_catalog: bool = False) -> str:
    """Give the name of a registered model back, if MLflow takes it.

    Args:
        name: As the user said it.
        in_catalog: Whether the registry is Databricks' Unity Catalog, where a name has three levels.

    Raises:
        ConfigError: If it does not, with the rule that is broken.
    """
    fault = None
    if not name.strip():
        fault = "is empty"
    elif any(character in "/:" or not character.isprintable() for character in name):
        fault = "has a slash, a colon or a control character"
    elif name != name.strip() or name in (".", ".."):
        fault = "has space around it, or is a dot"
    elif len(name) > _LONGEST_NAME:
        fault = f"has {len(name)} characters; {_LONGEST_NAME} are the most"
    elif in_catalog and (name.count(".") != 2 or not all(name.split("."))):
        fault = "has not the three levels that Unity Catalog asks for, such as 'main.vision.flowers'"
    if fault:
        raise ConfigError(f"--name: {name!r} {fault}. Say a name such as --name flowers.")
    return name


def check_alias(alias: str) -> str:
    """Give an alias back, if MLflow takes it.

    Raises:
        ConfigError: If it does not, with the rule that is broken.
    """
    fault = None
    if not re.fullmatch(r"[A-Za-z0-9_-]+", alias):
        fault = "is more than letters, digits, hyphens and underscores" if alias else "is empty"
    elif alias.lower() == "latest" or re.fullmatch(r"[vV]\d+", alias):
        fault = "is a name that MLflow keeps for itself, as it does latest, v1, v2 and so on"
    elif len(alias) > _LONGEST_ALIAS:
        fault = f"has {len(alias)} characters; {_LONGEST_ALIAS} are the most"
    if fault:
        raise ConfigError(f"--alias: {alias!r} {fault}. Say one such as --alias challenger.")
    return alias
