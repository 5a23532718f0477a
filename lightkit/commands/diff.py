"""`lightkit diff`: what differs between two runs, or two configs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from lightkit.cli.sides import Change, Side, changes_between, read_side
from lightkit.config import near
from lightkit.config.display import format_inline
from lightkit.errors import ConfigError

__all__ = ["diff"]

_USAGE = "usage: lightkit diff A B [--root DIR] [--json] [--exit-code]"
_HELP = f"""\
{_USAGE}

Print what differs between two configs: the keys that were changed, taken out (-) or added (+), each value with its
place. Of two runs also what differs in versions, commit, data, seed and hardware, and in the last metrics.

  A, B          a config file, with what it extends; or a run: its folder, its id, NAME, NAME/ID, latest
  --root DIR    folder of the runs; default: runs
  --json        one JSON object
  --exit-code   exit with 1 if anything differs

Beside a file, a run shows no value that is the default of its class. LIGHTKIT_ variables do not count.
Exit code 0: told; 1: something differs, with --exit-code; 2: wrong arguments, or a config that cannot be read.

lightkit diff runs/flowers/latest configs/flowers.yaml
"""
_SWITCHES = ("--json", "--exit-code")
_LONGEST = 160
_RED, _GREEN, _BOLD, _PLAIN = "\x1b[31m", "\x1b[32m", "\x1b[1m", "\x1b[0m"


def diff(words: list[str]) -> int:
    """Print what differs, and return the exit code.

    Args:
        words: The command line after the command.

    Raises:
        ConfigError: If the words are wrong, or name what is not there or cannot be read.
    """
    if {"-h", "--help"} & {*words}:
        print(_HELP, end="")
        return 0
    names, root = _parted(words)
    sides = [read_side(name, root) for name in names]
    changes = changes_between(*sides)
    if "--json" in words:
        described = {"schema": 1, "a": sides[0].title, "b": sides[1].title}
        print(json.dumps({**described, "changes": [change.described() for change in changes]}, indent=2))
    elif changes:
        print(_shown(sides, changes, coloured=sys.stdout.isatty()), end="")
    else:
        print(f"no difference between {sides[0].title} and {sides[1].title}")
    return 1 if changes and "--exit-code" in words else 0


def _parted(words: Sequence[str]) -> tuple[list[str], str]:
    rest, names, root = list(words), [], "runs"
    while rest:
        word = rest.pop(0)
        option, equals, value = word.partition("=")
        if option == "--root":
            if not equals and not rest:
                raise ConfigError(f"diff: --root: expected a folder after it\n{_USAGE}")
            root = value if equals else rest.pop(0)
        elif word.startswith("-") and word not in _SWITCHES:
            raise ConfigError(f"diff: unexpected argument {word!r}{near(word, (*_SWITCHES, '--root'))}\n{_USAGE}")
        elif word not in _SWITCHES:
            names.append(word)
    if len(names) != 2:
        raise ConfigError(f"diff: expected two configs or runs, got {len(names) or 'none'}\n{_USAGE}")
    return names, root


def _shown(sides: Sequence[Side], changes: Sequence[Change], *, coloured: bool) -> str:
    red, green, bold, plain = (_RED, _GREEN, _BOLD, _PLAIN) if coloured else ("", "", "", "")
    lines = [f"{red}- {sides[0].title}{plain}", f"{green}+ {sides[1].title}{plain}"]
    for change in changes:
        lines += ["", f"{bold}{change.key}{plain}"]
        both = [(red, "-", change.old), (green, "+", change.new)]
        values = [format_inline(side.value, longest=_LONGEST) if side is not None else "" for _, _, side in both]
        width = max(map(len, values)) if max(map(len, values)) <= _LONGEST // 2 else 0
        for (colour, sign, side), value in zip(both, values, strict=True):
            if side is not None:
                line = f"  {colour}{sign} {value:<{width}}{plain}  {side.place}"
                lines.append(line if side.place else f"  {colour}{sign} {value}{plain}")
    return "\n".join(lines) + "\n"
