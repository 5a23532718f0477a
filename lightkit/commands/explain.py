"""`lightkit explain`: the value of a key, what set it, and what that replaced."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any, Literal

from lightkit.cli.config_loader import STAGES
from lightkit.cli.tellings import Telling, all_tellings, telling_of
from lightkit.cli.tracing import Traced, trace
from lightkit.config.display import format_annotated
from lightkit.config.origins import NESTED_FILES
from lightkit.errors import ConfigError, ConfigErrors

__all__ = ["explain"]

_HELP = """\
usage: lightkit explain [STAGE] -c FILE... [--key=value]... [KEY]... [--json]

Say where a value comes from: what set it, and what that replaced, lowest layer first. Without KEY, print the whole
config as YAML with the place of each value beside it.

  KEY         a dotted key: trainer.max_epochs, callbacks.early_stopping.patience, callbacks, model
  STAGE       the stage whose block in a file counts: fit (the default), validate, test, predict
  --run RUN   the config of a run, with the other layers over it
  --json      one JSON object

Exit code 0: told; 2: there is no such key, or the config cannot be read.

lightkit explain -c configs/flowers.yaml trainer.max_epochs
"""
_OPTIONS: dict[str, Literal["value", "switch", "optional"]] = {"run": "value", "json": "switch", "quiet": "switch"}


def explain(words: list[str]) -> int:
    """Explain the keys that the words name, or all, and return the exit code.

    Args:
        words: The command line after the command.

    Raises:
        ConfigError: If there is no such key, or the config cannot be laid.
    """
    if {"-h", "--help"} & {*words}:
        print(_HELP, end="")
        return 0
    stage, keys, rest = _parted(words)
    traced = trace(rest, stage=stage, options=_OPTIONS)
    is_json = any(word == "--json" for word in rest)
    tellings, errors = _told(traced, keys)
    if tellings or not errors:
        print(_as_json(traced, tellings) if is_json else _as_text(traced, tellings), end="")
        sys.stdout.flush()
    num_mistakes = len(list(traced.problems))
    if num_mistakes:
        count = "is a mistake" if num_mistakes == 1 else f"are {num_mistakes} mistakes"
        print(f"note: there {count} in this config, which `lightkit check` tells", file=sys.stderr)
    if errors:
        raise ConfigErrors(errors)
    return 0


def _told(traced: Traced, keys: Sequence[str]) -> tuple[list[Telling], list[ConfigError]]:
    """Give what can be told of the keys, and what is wrong with the others."""
    tellings: list[Telling] = []
    errors: list[ConfigError] = []
    for key in keys:
        try:
            tellings.append(telling_of(traced, key))
        except ConfigError as error:  # noqa: PERF203 (each key is told)
            errors.append(error.reworded(traced.after.masked))
    return tellings, errors


def _parted(words: Sequence[str]) -> tuple[str, list[str], list[str]]:
    """Part the stage and the keys from the words that name layers."""
    rest = list(words)
    has_run = any(word.partition("=")[0] == "--run" for word in rest)
    keys: list[str] = []
    stages: list[str] = []
    layers: list[str] = []
    while rest:
        word = rest.pop(0)
        takes_word = word in ("-c", "--config") or (word[:2] == "--" and "=" not in word and word[2:] not in _SWITCHES)
        if word[:1] == "-":
            layers += [word, *rest[:takes_word]]
            rest = rest[takes_word:]
        elif "=" in word or word.endswith(NESTED_FILES):  # a file without -c is told where words are read
            layers.append(word)
        else:
            (stages if word in STAGES else keys).append(word)
    if len({*stages}) > 1:
        raise ConfigError(f"explain: expected one stage, got {' and '.join(stages)}")
    return (stages or ["validate" if has_run else "fit"])[0], keys, layers


_SWITCHES = [name for name, takes in _OPTIONS.items() if takes == "switch"]


def _as_text(traced: Traced, tellings: Sequence[Telling]) -> str:
    if not tellings:
        return format_annotated(traced.after.tree, (), traced.presented(), replaced=traced.replaced)
    return "\n".join(telling.text() for telling in tellings)


def _as_json(traced: Traced, tellings: Sequence[Telling]) -> str:
    whole: dict[str, Any] = {} if tellings else {"config": traced.presented().value(traced.after.tree, ())}
    told = [telling.described() for telling in tellings or all_tellings(traced)]
    return json.dumps({"schema": 1, **whole, "keys": told}, indent=2) + "\n"
