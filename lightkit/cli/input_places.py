"""The places from which a config's data comes, known without building the data module. No torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightkit.cli.own_code import base_names, declared_places, found_class
from lightkit.cli.own_defaults import UNKNOWN, default_arguments
from lightkit.config import Resolved
from lightkit.images.flower_photos import flower_photos

__all__ = ["Place", "Places", "places_of"]

_ADDRESS = re.compile(r"[A-Za-z][\w+.-]*://")
_NOT_READ = ("run", "launch", "logger", "gate", "watchdog", "accelerator")
_WALKED = ("model", "optimizer", "lr_scheduler", "callbacks")
_NOTIFIERS = ("SlackNotifier", "WebhookNotifier", "Notifier")
# Words in the name of an argument that says where something is written.
_WRITTEN = frozenset({"cache", "dirpath", "export", "log", "logs", "out", "output", "outputs", "save"})
_PRIVATE = "lightkit.data."
_FASHION_FILES = tuple(
    f"{split}-{kind}-ubyte" for split in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)


@dataclass(frozen=True)
class Place:
    """A file or folder that a training reads.

    Args:
        key: Dotted key that names it.
        path: Where it is.
        names: The files in it that count; all if None.
        version: State of a Delta table that is read; the newest if None.
    """

    key: str
    path: Path
    names: tuple[str, ...] | None = None
    version: int | None = None


@dataclass
class Places:
    """All that a training reads beside the config and the code.

    Args:
        found: Files and folders.
        unseen: Dotted keys of data that cannot be seen from here.
        unsure: Dotted keys of what may read something that nothing tells.
    """

    found: list[Place] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    unsure: list[str] = field(default_factory=list)


def places_of(resolved: Resolved, ckpt_path: str | None = None) -> Places:
    """Find the places that a config's data module reads, and the files that other sections name.

    Lightkit's own data modules are known. Of anybody else's each argument counts that names an existing file or
    folder, by its default too, and an address is data that cannot be seen; where no argument names any, or a default
    is not plain, nobody can be sure. A class may say ``input_places = ("root",)``, which of its arguments are read.
    The arguments of models, optimizers and callbacks count in the same way, but for those that are written to.

    Args:
        resolved: The config.
        ckpt_path: Checkpoint that the user names.

    Raises:
        DataError: If LIGHTKIT_DATA names a folder without the photos that it should hold.
    """
    values = resolved.values
    data, places = values.get("data"), Places()
    if isinstance(data, dict):
        section = data.get("init_args") if "class_path" in data else data
        given = dict(section) if isinstance(section, dict) else {}
        _add_data(str(data.get("class_path", "")), given, places)
    for key, others in values.items():
        if key in _WALKED:
            _add_others(key, others, _outputs(values), places)
        elif key not in (*_NOT_READ, "data"):
            places.found += [
                Place(name, path) for name, path in _existing(key, others)
                if path.is_file() and not name.startswith("trainer.default_root_dir")
            ]  # fmt: skip
    if ckpt_path is not None and Path(ckpt_path).is_file():
        places.found.append(Place("ckpt_path", Path(ckpt_path)))
    return places


def _outputs(values: Mapping[str, Any]) -> tuple[Path, ...]:
    """Give the folders that a training writes to."""
    run, trainer = values.get("run") or {}, values.get("trainer") or {}
    named = [str(run.get("root") or "runs"), trainer.get("default_root_dir")]
    return tuple(Path(str(name)).expanduser().resolve() for name in named if name)


def _add_others(key: str, value: Any, outputs: tuple[Path, ...], places: Places) -> None:
    """Add what the arguments of classes name that are not the data's."""
    for name, text in _said_texts(key, value):
        if _WRITTEN & {*re.split(r"[_\d]+", name.rpartition(".")[2])}:
            continue
        if _ADDRESS.match(text) and not text.startswith("file://"):
            places.unseen.append(name)
        places.found += [Place(name, path) for _, path in _existing(name, text) if _is_input(path, text, outputs)]


def _said_texts(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Give the texts of arguments, by their defaults too; not those of notifiers, nor what a class says is not read."""
    if isinstance(value, Mapping) and "class_path" in value:
        class_path, given = str(value["class_path"]), value.get("init_args")
        found, given = found_class(class_path), dict(given) if isinstance(given, Mapping) else {}
        bases = () if found is None else tuple(base_names(found))
        if any(name.rpartition(".")[2] in _NOTIFIERS for name in (class_path, *bases)):
            return
        if found is not None:
            given, declared = {**default_arguments(found), **given}, declared_places(found)
            given = given if declared is None else {name: given.get(name) for name in declared}
        yield from _said_texts(f"{key}.init_args", given)
    else:
        yield from _texts(key, value, inside=_said_texts)


def _is_input(path: Path, text: str, outputs: tuple[Path, ...]) -> bool:
    """Tell whether a text that is not the data's means a file, or a folder that the training does not write to."""
    if path.is_file():
        return True
    full = path.resolve()
    return re.search(r"\w", text) is not None and full not in outputs and not Path.cwd().is_relative_to(full)


def _add_data(class_path: str, given: dict[str, Any], places: Places) -> None:
    found = found_class(class_path)
    bases = () if found is None else tuple(base_names(found))
    if found is not None:
        given = {**default_arguments(found), **given}
        declared = declared_places(found)
        if declared is not None:
            _add_generic({name: given.get(name) for name in declared}, places)
            return
        places.unsure += [f"data.init_args.{name}" for name, value in given.items() if value is UNKNOWN]
        given = {name: value for name, value in given.items() if value is not UNKNOWN}
    own = next((rule for name in (class_path, *bases) if (rule := _own_rule(name)) is not None), None)
    if own is None:
        _add_generic(given, places)
        if not (places.found or places.unseen or places.unsure):
            places.unsure.append("data")
        return
    own(given, places)
    if found is not None:  # what it reads beside what it inherits
        known = {place.key for place in places.found} | {*places.unseen}
        more = Places()
        _add_generic(given, more)
        places.found += [place for place in more.found if place.key not in known]
        places.unseen += [key for key in more.unseen if key not in known]


def _own_rule(class_path: str) -> Callable[[dict[str, Any], Places], None] | None:
    is_own = class_path.startswith(_PRIVATE) or "." not in class_path
    return _OWN.get(class_path.rpartition(".")[2]) if is_own else None


def _add_generic(given: Mapping[str, Any], places: Places) -> None:
    places.unsure += [f"data.init_args.{name}" for name, value in given.items() if value is UNKNOWN]
    for name, value in _texts("data.init_args", given):
        if _ADDRESS.match(value) and not value.startswith("file://"):
            places.unseen.append(name)
    places.found += [Place(name, path) for name, path in _existing("data.init_args", given)]


def _image_folder(given: dict[str, Any], places: Places) -> None:
    if given.get("root"):
        places.found.append(Place("data.init_args.root", Path(str(given["root"])).expanduser()))


def _flowers(given: dict[str, Any], places: Places) -> None:
    if given.get("root") is not None:
        _image_folder(given, places)
    elif (folder := flower_photos()) is not None:
        places.found.append(Place("data.init_args.root", folder))


def _fashion(given: dict[str, Any], places: Places) -> None:
    folder = Path(str(given.get("root") or "data")).expanduser() / "FashionMNIST" / "raw"
    places.found.append(Place("data.init_args.root", folder, names=_FASHION_FILES))


def _table(given: dict[str, Any], places: Places) -> None:
    version = given.get("version")
    for name in ("path", "train", "val", "test"):
        if not (said := given.get(name)):
            continue
        key, text = f"data.init_args.{name}", str(said).removeprefix("file://")
        if _ADDRESS.match(text):
            places.unseen.append(key)
        else:
            number = int(str(version)) if str(version).isdigit() else None
            places.found.append(Place(key, Path(text).expanduser(), version=number))


def _nothing(_given: dict[str, Any], _places: Places) -> None:
    """They are made by the code, from the arguments."""


_OWN: Mapping[str, Callable[[dict[str, Any], Places], None]] = {
    "DrawnFlowers": _nothing,
    "FashionMNIST": _fashion,
    "Flowers": _flowers,
    "ImageFolder": _image_folder,
    "PetastormTable": _table,
    "Table": _table,
    "Temperatures": _nothing,
}


def _existing(key: str, value: Any) -> Iterator[tuple[str, Path]]:
    """Give the files and folders that texts name, each with its dotted key."""
    for name, text in _texts(key, value):
        path = Path(text.removeprefix("file://")).expanduser()
        try:
            is_there = bool(text.strip()) and path.exists()
        except (OSError, ValueError):  # too long for a name, or with a null in it
            is_there = False
        if is_there:
            yield name, path


def _texts(
    key: str, value: Any, *, inside: Callable[[str, Any], Iterator[tuple[str, str]]] | None = None
) -> Iterator[tuple[str, str]]:
    """Give the texts of a value with their dotted keys.

    Args:
        key: Of the value.
        value: Anything.
        inside: Gives those of what a container holds; this function if None.
    """
    inside = inside or _texts
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, (Mapping, list, tuple)):
        for name, child in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from inside(f"{key}.{name}", child)
