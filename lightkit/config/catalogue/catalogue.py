"""The catalogue as it was written, and which of it counts with the versions that are installed."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["PACKAGES", "Catalogue", "MayMean", "load_catalogue"]

PACKAGES = {
    "lightkit": "pytorch-lightning",
    "lightning_fabric": "pytorch-lightning",
    "pytorch_lightning": "pytorch-lightning",
    "torch": "torch",
}
"""Packages whose classes are described, each with the distribution whose version decides whether that counts.

Lightkit's own come with the catalogue, but take arguments of Lightning's over.
"""
MayMean = Callable[[str, Collection[str]], bool]
"""Tells whether a short name may mean a class that derives from any of several bases, given by their paths."""
_FILE = Path(__file__).with_name("catalogue.json")


@dataclass(frozen=True)
class Catalogue:
    """What a config can name.

    Args:
        data: What ``scripts/catalogue.py`` wrote.
        versions: Installed version of each distribution, None where it is missing; asked for where not given.
        imported: Classes that have been imported and described in this process.
    """

    data: Mapping[str, Any] = field(repr=False)
    versions: Mapping[str, str | None] | None = None
    imported: frozenset[str] = frozenset()

    def with_imported(self, classes: Mapping[str, Any]) -> Catalogue:
        """Add classes that this process has imported, each described as in the file.

        Args:
            classes: What they are and take, by their paths.
        """
        data = {**self.data, "classes": {**self.classes, **classes}}
        return replace(self, data=data, imported=self.imported | {*classes})

    def with_apart(self) -> Catalogue:
        """Add the classes that are known by their paths only, because nothing loads them that does not name them."""
        return replace(self, data={**self.data, "classes": {**self.data["apart"], **self.classes}})

    def fits(self, versions: Mapping[str, str | None]) -> Catalogue:
        """Give the catalogue as it counts where these versions are installed."""
        return replace(self, versions=versions)

    @cached_property
    def trusted(self) -> Collection[str]:
        """Packages that were described as they are installed. None, where jsonargparse reads values by other rules."""
        recorded = self.data["versions"]
        same = {name for name in recorded if _public(self._version(name)) == recorded[name]}
        return {package for package, name in PACKAGES.items() if {name, "jsonargparse"} <= same}

    @property
    def classes(self) -> Mapping[str, Any]:
        """Every class that is described, by its path."""
        classes: Mapping[str, Any] = self.data["classes"]
        return classes

    def path_of(self, name: str, bases: Collection[str] = ()) -> str | None:
        """Give the path of a class that is described.

        Args:
            name: Any path that leads to it, or its short name.
            bases: Classes that it may derive from, for a short name.
        """
        if "." in name:
            path = self.data["aliases"].get(name, name)
            return path if path in self.classes else None
        found = [self.data["names"].get(base, {}).get(name) for base in bases]
        return next((path for path in found if isinstance(path, str) and path in self.classes), None)

    def is_name(self, name: str, bases: Collection[str]) -> bool:
        """Tell whether a short name stands for any class that derives from any of several bases, or may do so."""
        return any(name in self.data["names"].get(base, (name,)) for base in bases)

    def namesakes(self, name: str, bases: Collection[str]) -> list[str]:
        """List the classes that have one short name, where there are several."""
        found = [self.data["names"].get(base, {}).get(name) for base in bases]
        return next((paths for paths in found if isinstance(paths, list)), [])

    def names_below(self, bases: Collection[str]) -> set[str]:
        """List the short names of all described classes that derive from any of several bases and can be built."""
        pairs = [pair for base in bases for pair in self.data["names"].get(base, {}).items()]
        return {name for name, path in pairs if isinstance(path, list) or self._can_be_built(path)}

    def _can_be_built(self, path: str) -> bool:
        return path in self.classes and not self.classes[path].get("abstract")

    def counts(self, path: str) -> bool:
        """Tell whether what is said of a class, or of a module, holds for what is installed."""
        return path in self.imported or path.partition(".")[0] in self.trusted

    def section_of(self, path: str) -> str | None:
        """Give the top-level key under which a class goes."""
        bases = set(self.classes[path]["bases"])
        return next((section for section, known in self.data["bases"].items() if bases & {*known}), None)

    def _version(self, name: str) -> str | None:
        if self.versions is not None:
            return self.versions.get(name)
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return None


@cache
def load_catalogue() -> Catalogue:
    """Read the catalogue, once in a process."""
    return Catalogue(json.loads(_FILE.read_text(encoding="utf-8")))


def _public(version: str | None) -> str | None:
    """Leave out what names a build, as in ``2.9.0+cpu``."""
    return None if version is None else version.partition("+")[0]
