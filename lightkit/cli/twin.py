"""The model and the data of a config built beside those that train, as often as measuring needs them."""

from __future__ import annotations

import copy
import importlib
from types import MethodType
from typing import TYPE_CHECKING, Any

from jsonargparse import Namespace
from pytorch_lightning import LightningDataModule, LightningModule

if TYPE_CHECKING:
    from lightkit.cli.lightning_cli import LightkitCLI

__all__ = ["Twin", "arguments_of", "class_of_section"]

_LOADING = ("persistent_workers", "prefetch_factor")


class Twin:
    """Builds a config's parts; what they are built from stays as it is.

    Args:
        cli: Has parsed the config.
    """

    def __init__(self, cli: LightkitCLI) -> None:
        self._cli = cli
        self.data_differs: dict[str, Any] = {}
        """Arguments of the data that have been chosen."""

    def model(self) -> LightningModule:
        """Build the model, with the optimizers of the config."""
        cli = copy.copy(self._cli)
        section = copy.deepcopy(cli.config[cli.subcommand])
        linked = ["data"] if _links_objects(cli._parser(cli.subcommand)) else []
        built = self._built(section, ["model", *linked])
        model: LightningModule = built["model"]
        cli.config = cli.config_init = Namespace(subcommand=cli.subcommand)  # type: ignore[no-untyped-call]
        cli.config[cli.subcommand] = section
        cli.model = model
        if any(cli._get(cli.config, key) for key in cli._automatic_optimizers()):
            model.configure_optimizers = MethodType(cli._late_optimizers, model)  # type: ignore[method-assign]
        return model

    def data(self) -> LightningDataModule | None:
        """Build the data module, if there is one; it loads in this process where it lets itself be told so."""
        section = copy.deepcopy(self._cli.config[self._cli.subcommand])
        if section.get("data") is None:
            return None
        said = arguments_of(section["data"])
        if "num_workers" in said and not any(said.get(key) for key in _LOADING if not _is_own(section["data"])):
            said["num_workers"] = 0
        for key, value in self.data_differs.items():
            said[key] = value
        data: LightningDataModule = self._built(section, ["data"])["data"]
        return data

    def _built(self, section: Namespace, names: list[str]) -> dict[str, Any]:
        command = str(self._cli.subcommand)
        config = Namespace(subcommand=command)  # type: ignore[no-untyped-call]
        for name in names:
            config[f"{command}.{name}"] = section.get(name)
        built = self._cli.parser.instantiate_classes(config)
        return {name: built[f"{command}.{name}"] for name in names}


def arguments_of(section: Any) -> Any:
    """Give the arguments of a section whose class the config or Python names, to be changed there."""
    if "class_path" not in section:
        return section
    if section.get("init_args") is None:  # the class takes none
        section["init_args"] = Namespace()  # type: ignore[no-untyped-call]
    return section["init_args"]


def class_of_section(section: Any) -> type | None:
    """Give the class that a section names; None where Python has fixed it, or there is none."""
    module, _, name = str(getattr(section, "class_path", "")).rpartition(".")
    found = getattr(importlib.import_module(module), name, None) if module else None
    return found if isinstance(found, type) else None


def _is_own(section: Any) -> bool:
    return str(section.get("class_path", "")).startswith("lightkit.")


def _links_objects(parser: Any) -> bool:
    """Tell whether a part takes something from another part that is built."""
    group = getattr(parser, "_links_group", None)
    return any(action.apply_on == "instantiate" for action in getattr(group, "_group_actions", ()))
