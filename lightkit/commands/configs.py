"""`lightkit configs`: list, show and copy the configs that come with lightkit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lightkit.cli.command_line import parse_options
from lightkit.config.packaged import PREFIX, find_config, packaged_configs
from lightkit.errors import ConfigError
from lightkit.reports.text_table import format_table

HELP = """\
usage: lightkit configs
       lightkit configs show NAME
       lightkit configs copy NAME [--output FILE] [--force]

List the configs that come with lightkit, print one, or copy one to change it. A config names them in `extends`, a
command after `-c`.

  NAME           such as accelerator/ddp
  --output FILE  where the copy goes; default: the name in this folder, such as ddp.yaml
  --force        replace a file that exists

lightkit fit -c lightkit:flowers -c lightkit:accelerator/ddp
"""


def configs(arguments: Sequence[str]) -> int:
    """List, print or copy packaged configs, and return the exit code.

    Raises:
        ConfigError: If the arguments are wrong, or the copy's file exists.
    """
    line = parse_options(HELP, arguments, most=len(arguments))
    if not line.positionals:
        rows = [(f"{PREFIX}{name}", _first_comment(file)) for name, file in packaged_configs().items()]
        print(format_table(("config", "content"), rows))
        return 0
    action, *names = line.positionals
    if action not in ("show", "copy") or len(names) != 1:
        raise line.error(f"expected `show NAME` or `copy NAME`, got {' '.join(line.positionals)!r}")
    source = find_config(f"{PREFIX}{names[0].removeprefix(PREFIX)}")
    text = source.read_text(encoding="utf-8")
    if action == "show":
        print(text, end="")
        return 0
    target = Path(line.options.get("--output", source.name))
    try:
        with target.open("w" if "--force" in line.options else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{target} exists; --output FILE names another file, --force replaces it") from None
    except OSError as error:
        raise ConfigError(f"{target} cannot be written: {error.strerror}") from None
    print(f"wrote {target}")
    return 0


def _first_comment(file: Path) -> str:
    first = file.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("# ") if first.startswith("# ") else ""
