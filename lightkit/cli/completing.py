"""What can complete the last word of a command line. No torch."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from lightkit.cli.config_loader import OPTIONS, STAGES, options_of
from lightkit.cli.offered import FILES, FOLDERS, keys, topics, values
from lightkit.export.metadata import FILES as FORMATS

__all__ = ["answer"]

_AFTER = {
    "-c": [FILES],
    "--config": [FILES],
    "-o": [FILES],
    "--run": ["latest", FOLDERS],
    "--root": [FOLDERS],
    "--ckpt_path": ["last", "best", FILES],
    "--output": ["json"],
}
_AFTER_OF: dict[str, dict[str, list[str]]] = {
    "convert": {
        "--format": ["delta", "parquet"],
        "--on-bad-image": ["error", "skip"],
        "--partitions": [],
        "--row-group-mb": [],
        "--val-fraction": [],
        "--test-fraction": [],
        "--max-bad-fraction": [],
    },
    "export": {"--format": [*FORMATS, "all"], "--output": ["json", FOLDERS]},
    "retrain": {
        "--export-format": [*FORMATS, "all"],
        "--skip": ["export", "promote", "test"],
        "--deadline": [],
        "--reserve": [],
        "--reason": [],
    },
    "runs": {
        "--sort": ["age", "metric", "name", "size", "status"],
        "--filter": ["locked=true", "promoted=true", "status=done"],
        "--mode": ["max", "min"],
        "--metric": [],
    },
    "gc": {
        "--mode": ["max", "min"],
        "--keep-last": [],
        "--keep-best": [],
        "--max-size": [],
        "--older-than": [],
        "--metric": [],
        "--tracking-uri": [],
    },
    "tune": {"--budget": []},
    "notify-test": {"--kind": ["start", "epoch", "end", "failure", "gate"]},
    "register": {
        "--format": ["torch_export", "torchscript"],
        "--alias": ["challenger", "champion", "none"],
        "--name": [],
        "--tracking-uri": ["databricks"],
    },
}
"""What stands after an option of one command."""
_POSITIONAL = {"convert": [FOLDERS], "diff": ["latest", FILES], "upgrade": [FILES]}
"""What stands by itself after a command that takes no keys."""


def answer(words: Sequence[str], *, commands: Mapping[str, str | None], is_split: bool) -> list[str]:
    """List what the last word can become, whole words, those that go on after a dot or `=` with that at their end.

    A word that starts with a colon is none: the shell adds what is on the disk.

    Args:
        words: Words after the program's name, up to the one under the cursor, which may be empty.
        commands: The module of each command, which has its help; None for the stages.
        is_split: Whether the shell has parted words at each `=`, as bash does, and wants the part after it alone.
    """
    joined = _joined(words) if is_split else [*words]
    *before, current = joined or [""]
    found = {*_candidates(before, current, commands)}
    left_to_shell = sorted(found & {FILES, FOLDERS})
    matching = sorted(word for word in found - {FILES, FOLDERS} if word.startswith(current))
    was_parted = is_split and "=" in current and current != (words[-1] if words else "")
    return [*([word.rpartition("=")[2] for word in matching] if was_parted else matching), *left_to_shell]


def _joined(words: Sequence[str]) -> list[str]:
    """Put together again what stands around a ``=`` that is a word of its own."""
    joined: list[str] = []
    for at, word in enumerate(words):
        if joined and (word == "=" or (at and words[at - 1] == "=" and joined[-1].endswith("="))):
            joined[-1] += word
        else:
            joined.append(word)
    return joined


def _candidates(before: Sequence[str], current: str, commands: Mapping[str, str | None]) -> list[str]:
    command = next((word for word in before if word in commands), None)
    previous = before[-1] if before else ""
    if command is None:
        if previous in _AFTER:
            return _AFTER[previous]
        return [*commands, "help", "--help", "--version"] if not before or before == ["help"] else [*commands]
    if command == "completion":
        return ["bash", "zsh", "--help"]
    module = commands[command]
    is_stage = module is None
    if is_stage and "--help" in before:
        return topics(before[[*before].index("--help") + 1 :])
    said = [f"--{name}" for name in options_of(command) if name != "artefact"]  # which is written --model
    options = ["-c", "--help", *said] if module is None else _options_of(module)
    option, equals, value = current.partition("=")
    after = {**_AFTER, **_AFTER_OF.get(command, {})}
    if previous in after and (previous in options or "-c" in options):
        return _listed(after[previous], current)
    if is_stage and previous.startswith("--") and options_of(command).get(previous[2:]) == "value":
        return [FILES]  # what it takes cannot be listed
    if equals and option.startswith("-") and option in after:
        return _with(f"{option}=", _listed(after[option], value))
    if "-c" not in options:
        return options if current.startswith("-") else _POSITIONAL.get(command, options)
    return _beside_a_config(command, before, current, options)


def _beside_a_config(command: str, before: Sequence[str], current: str, options: Sequence[str]) -> list[str]:
    """List what stands after a command whose words set keys of a config."""
    previous = before[-1]
    is_option = previous in options or previous[2:] in OPTIONS
    images = [FILES] if command == "predict" else []
    if previous.startswith("--") and "=" not in previous and not is_option and current[:1] != "-":
        return [*values(previous[2:], before), *(images if previous == "--model" else ())]
    dashes = "--" if current.startswith("-") else ""
    key, equals, _ = current.removeprefix("--").partition("=")
    if equals:
        return _with(f"{dashes}{key}=", values(key, before))
    below = keys(key.rpartition(".")[0], before)
    if command == "explain" and not dashes:  # whose keys stand alone
        below = [word.removesuffix("=") for word in below]
    takes_stage = command in ("check", "explain") and previous == command
    stages = STAGES if takes_stage else ()
    return [*stages, *options, *(f"{dashes}{word}" for word in below), *([] if dashes else images)]


def _listed(choices: Sequence[str], current: str) -> list[str]:
    """Let one more value stand after a comma, where values can."""
    before, comma, _ = current.rpartition(",")
    said = {*before.split(",")} if comma else set()
    return [*choices] if not said or FILES in choices else [f"{before},{word}" for word in choices if word not in said]


def _with(prefix: str, choices: Sequence[str]) -> list[str]:
    """Put what is before the ``=`` in front of each value."""
    return [value if value in (FILES, FOLDERS) else f"{prefix}{value}" for value in choices]


def _options_of(module: str) -> list[str]:
    """List the options that the help of a command names, from its text: importing the command may take long."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return []
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    assigned = [statement for statement in tree.body if isinstance(statement, ast.Assign)]
    said = [statement for statement in assigned if ast.unparse(statement.targets[0]).endswith(("HELP", "USAGE"))]
    texts = [node.value for statement in said for node in ast.walk(statement) if isinstance(node, ast.Constant)]
    found = {option for text in texts for option in re.findall(r"(?<![\w-])--?[a-z][\w-]*(?![\w.-])", str(text))}
    return sorted({*found, "--help"} - {"--key"})
