"""The configs that come with lightkit: `lightkit:NAME` after `-c` and in `extends`."""

from __future__ import annotations

from pathlib import Path

from lightkit.errors import ConfigError, near

PREFIX = "lightkit:"


def packaged_configs() -> dict[str, Path]:
    """Return the file of each packaged config by its name, such as ``accelerator/ddp``."""
    folder = Path(__file__).parents[1] / "configs"
    # an editable installation: the wheel's folder is the one of the checkout
    if not folder.is_dir():
        folder = Path(__file__).parents[2] / "configs"
    return {
        file.relative_to(folder).with_suffix("").as_posix(): file
        for file in sorted(folder.rglob("*.yaml"))
    }


def suggest_packaged(file: Path) -> str:
    """Return the hint at the packaged config that a missing file may mean.

    ``lightkit:flowers`` for ``flowers.yaml``.

    ``configs/flowers.yaml``, its path in a checkout, means it, too. Empty where none has this name.
    """
    name = file.with_suffix("").as_posix().removeprefix("configs/")
    if file.suffix != ".yaml" or name not in packaged_configs():
        return ""
    return f"; the packaged config of this name is {PREFIX}{name}"


def find_config(name: str) -> Path:
    """Return the path of a config file; ``lightkit:NAME`` is a packaged one.

    Raises:
        ConfigError: If no packaged config has this name.
    """
    if not name.startswith(PREFIX):
        return Path(name)
    configs = packaged_configs()
    wanted = name.removeprefix(PREFIX).removesuffix(".yaml")
    if wanted not in configs:
        raise ConfigError(
            f"{name}: no packaged"
            f" config{near(wanted, configs) or '; `lightkit configs` lists them'}"
        )
    return configs[wanted]
