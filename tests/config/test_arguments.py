"""Splitting the command line."""
# ruff: noqa: E501 - an error's words read best on one line

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import pytest

from lightkit.config import Arguments, Flag, split_arguments
from lightkit.errors import ConfigError

OPTIONS: Mapping[str, Literal["value", "switch", "optional"]] = {
    "run": "value", "ckpt_path": "value", "quiet": "switch", "output": "value", "print_config": "optional",
}  # fmt: skip


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", Arguments()),
        ("-c a --config b --config=c -c=d -ce", Arguments(files=["a", "b", "c", "d", "e"])),
        (
            "--trainer.max_epochs=3 --trainer.x 3 trainer.y=z",
            Arguments(
                flags=[
                    Flag("trainer.max_epochs", "3", "--trainer.max_epochs=3"),
                    Flag("trainer.x", "3", "--trainer.x 3"),
                    Flag("trainer.y", "z", "trainer.y=z"),
                ]
            ),
        ),
        (
            "--a+=1 a+=2 --a+ 3",
            Arguments(
                flags=[
                    Flag("a", "1", "--a+=1", append=True),
                    Flag("a", "2", "a+=2", append=True),
                    Flag("a", "3", "--a+ 3", append=True),
                ]
            ),
        ),
        ("--x.y -3 --z -.5 --w -inf", Arguments(flags=[
            Flag("x.y", "-3", "--x.y -3"), Flag("z", "-.5", "--z -.5"), Flag("w", "-inf", "--w -inf"),
        ])),
        ("--x - --y=--z", Arguments(flags=[Flag("x", "-", "--x -"), Flag("y", "--z", "--y=--z")])),
        ("--run latest --quiet --output=json --run other",
         Arguments(options={"run": "other", "quiet": True, "output": "json"})),
        ("--print_config", Arguments(options={"print_config": True})),
        ("--print_config=skip_null", Arguments(options={"print_config": "skip_null"})),
        ("--print_config a=1", Arguments(options={"print_config": True}, flags=[Flag("a", "1", "a=1")])),
        ("--help -h", Arguments(passthrough=["--help", "-h"])),
        ("--model.help Net --data.help=Flowers --trainer.logger.help",
         Arguments(passthrough=["--model.help", "Net", "--data.help=Flowers", "--trainer.logger.help"])),
        ("--model.help a=1", Arguments(passthrough=["--model.help"], flags=[Flag("a", "1", "a=1")])),
        ("--ckpt=x", Arguments(flags=[Flag("ckpt", "x", "--ckpt=x")])),
    ],
    ids=[
        "nothing", "files", "overrides", "appends", "negative-numbers", "dashes", "options", "optional-without",
        "optional-with", "optional-before-an-override", "help", "class-help", "class-help-without",
        "abbreviation-does-not-complete",
    ],
)  # fmt: skip
def test_arguments_are_split(line: str, expected: Arguments) -> None:
    assert split_arguments(line.split(), options=OPTIONS) == expected


UNEXPECTED = "expected --OPTION, --KEY=VALUE or KEY=VALUE"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("configs/x.yaml", f"unexpected argument 'configs/x.yaml': {UNEXPECTED}; a config file comes after -c: -c configs/x.yaml"),
        ("trianer", f"unexpected argument 'trianer': {UNEXPECTED}; did you mean 'trainer'?"),
        ("-q", f"unexpected argument '-q': {UNEXPECTED}"),
        ("-config", f"unexpected argument '-config': {UNEXPECTED}; did you mean 'config' or 'print_config'?"),
        ("--", f"unexpected argument '--': {UNEXPECTED}"),
        ("=3", f"unexpected argument '=3': {UNEXPECTED}"),
        ("--=3", f"unexpected argument '--=3': {UNEXPECTED}"),
        ("--config=", "--config: expected a config file, got nothing"),
        ("--a.b", "--a.b: expected a value after it, got the end of the command line"),
        ("--ckpt", "--ckpt: expected a value after it, got the end of the command line; did you mean 'ckpt_path'?"),
        ("--a.b --c=1", "--a.b: expected a value after it, got '--c=1'; a value that starts with a dash is written --a.b=VALUE"),
        ("--run -c x", "--run: expected a value after it, got '-c'; a value that starts with a dash is written --run=VALUE"),
        ("--quiet=1", "--quiet=1: --quiet takes no value"),
        ("-c", "-c: expected a value after it, got the end of the command line"),
    ],
    ids=[
        "file-without-c", "near", "unknown-letter", "one-dash-short", "two-dashes", "no-key", "no-flag", "no-file", "no-value",
        "near-option", "flag-for-value", "option-without-value", "switch-with-value", "file-missing",
    ],
)  # fmt: skip
def test_a_wrong_word_is_reported(line: str, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        split_arguments(line.split(), options=OPTIONS)
    assert str(error.value) == says


def test_a_dash_alone_is_an_input_where_there_are_inputs() -> None:
    assert split_arguments(["-", "a.jpg"], takes_inputs=True).inputs == ["-", "a.jpg"]
    with pytest.raises(ConfigError, match="unexpected argument '-'"):
        split_arguments(["-"])
