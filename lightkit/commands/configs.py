"""`lightkit configs`: list, show and copy the configs that come with lightkit."""

from __future__ import annotations

from pathlib import Path

from lightkit.cli.command_line import Invocation
from lightkit.config.packaged import PREFIX, find_config, packaged_configs
from lightkit.errors import ConfigError
from lightkit.reports.text_table import format_table


def configs(invocation: Invocation) -> int:
    """List, print or copy packaged configs, and return the exit code.

    Raises:
        ConfigError: If the arguments are wrong, or the copy's file exists.
    """
    if not invocation.inputs:
        rows = [
            (f"{PREFIX}{name}", _first_comment(file)) for name, file in packaged_configs().items()
        ]
        print(format_table(("config", "content"), rows))
        return 0
    action, *names = invocation.inputs
    if action not in ("show", "copy") or len(names) != 1:
        raise invocation.error(
            f"expected `show NAME` or `copy NAME`, got {' '.join(invocation.inputs)!r}"
        )
    source = find_config(f"{PREFIX}{names[0].removeprefix(PREFIX)}")
    text = source.read_text(encoding="utf-8")
    if action == "show":
        print(text, end="")
        return 0
    target = Path(invocation.options.get("output", source.name))
    try:
        with target.open("w" if invocation.has("force") else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(
            f"{target} exists; --output FILE names another file, --force replaces it"
        ) from None
    except OSError as error:
        raise ConfigError(f"{target} cannot be written: {error.strerror}") from None
    print(f"wrote {target}")
    return 0


def _first_comment(file: Path) -> str:
    first = file.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("# ") if first.startswith("# ") else ""
