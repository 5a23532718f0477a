"""Parsing the command line by the table of commands."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightkit.cli.command_line import Command, Invocation, parse_command
from lightkit.cli.command_table import (
    COMMANDS,
    EXPORT_FORMATS,
    EXPORT_SUFFIXES,
    RANK,
    TEMPLATES,
    parse,
)
from lightkit.cli.help import _KEYS, _TOPICS, format_command_help
from lightkit.commands import completion, init
from lightkit.config import NAMED_CLASSES, Flag
from lightkit.config.schema import load_schema
from lightkit.errors import ConfigError
from lightkit.export.formats import FORMATS
from lightkit.export.options import OPSETS, ExportOptions
from lightkit.main import main

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("test", {}),
        ("test -c a --config b --config=c -c=d -ce", {"files": ("a", "b", "c", "d", "e")}),
        (
            "test --trainer.max_epochs=3 --trainer.x 3 trainer.y=z",
            {
                "overrides": (
                    Flag("trainer.max_epochs", "3", "--trainer.max_epochs=3"),
                    Flag("trainer.x", "3", "--trainer.x 3"),
                    Flag("trainer.y", "z", "trainer.y=z"),
                )
            },
        ),
        (
            "test --a+=1 a+=2 --a+ 3",
            {
                "overrides": (
                    Flag("a", "1", "--a+=1", append=True),
                    Flag("a", "2", "a+=2", append=True),
                    Flag("a", "3", "--a+ 3", append=True),
                )
            },
        ),
        ("test --x.y -3 --z -.5 --w -inf",
         {"overrides": (Flag("x.y", "-3", "--x.y -3"), Flag("z", "-.5", "--z -.5"),
                        Flag("w", "-inf", "--w -inf"))}),
        ("test --x - --y=--z", {"overrides": (Flag("x", "-", "--x -"),
                                              Flag("y", "--z", "--y=--z"))}),
        ("test --run latest --quiet --run other", {"options": {"run": "other", "quiet": True}}),
        ("test --print_config", {"options": {"print_config": True}}),
        ("test --print_config=skip_null", {"options": {"print_config": "skip_null"}}),
        ("test --print_config a=1",
         {"options": {"print_config": True}, "overrides": (Flag("a", "1", "a=1"),)}),
        ("test --model.help Net --data.help=Flowers --trainer.logger.help",
         {"passthrough": ("--model.help", "Net", "--data.help=Flowers", "--trainer.logger.help")}),
        ("test --model.help a=1",
         {"passthrough": ("--model.help",), "overrides": (Flag("a", "1", "a=1"),)}),
        ("test --root there", {"overrides": (Flag("run.root", "there", "--root there"),)}),
        ("-c a test --run.name=x",
         {"files": ("a",), "overrides": (Flag("run.name", "x", "--run.name=x"),)}),
        ("runs --run.root there -o csv", {"options": {"root": "there", "csv": True}}),
        ("report latest --output json", {"inputs": ("latest",), "options": {"output": "json"}}),
        ("runs --metric a,b --metric c --sort -val/loss",
         {"options": {"metric": ("a", "b", "c"), "sort": "-val/loss"}}),
        ("gc --keep-last 3", {"options": {"keep-last": 3}}),
        ("predict - a.jpg -- --odd.jpg", {"inputs": ("-", "a.jpg", "--odd.jpg")}),
        ("predict --model Net x.png",
         {"inputs": ("x.png",), "overrides": (Flag("model", "Net", "--model Net"),)}),
        ("predict --model=Net.ONNX x.png",
         {"inputs": ("x.png",), "options": {"model": "Net.ONNX"}}),
        ("check test --run latest --deep",
         {"inputs": ("test",), "options": {"run": "latest", "deep": True}}),
        ("completion words bash -- fit --qu", {"inputs": ("words", "bash", "fit", "--qu")}),
        ("devices --traceback", {"options": {"traceback": True}}),
    ],
    ids=[
        "nothing", "files", "overrides", "appends", "negative-numbers", "dashes", "the-last-wins",
        "optional-without", "optional-with", "optional-before-an-override", "class-help",
        "class-help-without", "alias-of-a-key", "file-before-the-command", "alias-of-an-option",
        "file-called-json",
        "lists", "counts", "inputs", "class", "file", "stage", "raw",
        "general",
    ],
)  # fmt: skip
def test_words_are_sorted(line: str, expected: dict[str, Any]) -> None:
    invocation = parse(line.split())
    empty = Invocation(
        invocation.command,
        invocation.words,
        usage=invocation.usage,
        defaults=COMMANDS[invocation.command].defaults,
    )
    assert invocation == empty._replace(**expected)


UNEXPECTED = "expected --OPTION, --KEY=VALUE or KEY=VALUE"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            "test configs/x.yaml",
            (
                f"unexpected argument 'configs/x.yaml': {UNEXPECTED}; a config file comes after -c:"
                " -c configs/x.yaml"
            ),
        ),
        (
            "fit lightkit:flowers",
            (
                f"unexpected argument 'lightkit:flowers': {UNEXPECTED}; a config file comes after"
                " -c: -c lightkit:flowers"
            ),
        ),
        (
            "serve latest",
            "serve: unexpected argument 'latest'; a run comes after --run: --run latest",
        ),
        ("test trianer", f"unexpected argument 'trianer': {UNEXPECTED}; did you mean 'trainer'?"),
        (
            "test latest",
            f"unexpected argument 'latest': {UNEXPECTED}; a run comes after --run: --run latest",
        ),
        ("test -q", f"unexpected argument '-q': {UNEXPECTED}"),
        (
            "test -config",
            (
                f"unexpected argument '-config': {UNEXPECTED}; did you mean 'config' or"
                " 'print_config'?"
            ),
        ),
        ("test --", f"unexpected argument '--': {UNEXPECTED}"),
        ("test -", f"unexpected argument '-': {UNEXPECTED}"),
        ("test =3", f"unexpected argument '=3': {UNEXPECTED}"),
        ("test --=3", f"unexpected argument '--=3': {UNEXPECTED}"),
        ("test --config=", "--config: expected a config file, got nothing"),
        ("test --a.b", "--a.b: expected a value after it, got the end of the command line"),
        (
            "test --ckpt",
            (
                "--ckpt: expected a value after it, got the end of the command line; did you mean"
                " 'ckpt_path'?"
            ),
        ),
        (
            "test --a.b --c=1",
            (
                "--a.b: expected a value after it, got '--c=1'; a value that starts with a dash is"
                " written --a.b=VALUE"
            ),
        ),
        (
            "test --run -c x",
            (
                "--run: expected a value after it, got '-c'; a value that starts with a dash is"
                " written --run=VALUE"
            ),
        ),
        ("test --quiet=1", "--quiet=1: --quiet takes no value"),
        ("test -c", "-c: expected a value after it, got the end of the command line"),
        ("test --ckpt=x", "unexpected argument '--ckpt=x'; did you mean 'ckpt_path'?"),
        ("gate latest --reson x", "unexpected argument '--reson'; did you mean 'json'?"),
        (
            "promote latest --reson x",
            "unexpected argument '--reson'; did you mean 'reason' or 'json'?",
        ),
        ("check other", f"unexpected argument 'other': {UNEXPECTED}"),
        ("runs a b", "runs: unexpected argument 'b'\nusage: lightkit runs"),
        ("gc --keep-last=-1", "--keep-last: expected a whole number, got '-1'"),
        ("runs --mode=least", "--mode: expected min or max, got 'least'"),
        (
            "convert a b --partitions=0",
            "--partitions: expected a whole number of at least 1, got '0'",
        ),
        ("tune --budget=soon", "--budget: expected a number, got 'soon'"),
        ("devices --output=xml", "--output: expected json, got 'xml'"),
        ("runs -o xml", "-o: expected csv or json, got 'xml'"),
        (
            "devices --outptu=json",
            "devices: unexpected argument '--outptu=json'; did you mean '--output'?",
        ),
        ("fit --outptu=json", "unexpected argument '--outptu=json'; did you mean 'output'?"),
        (
            "notify-test --kind=end,gates",
            "--kind: expected start, epoch, end, failure, gate, got 'gates'; did you mean 'gate'?",
        ),
    ],
    ids=lambda value: value if value.startswith(tuple(COMMANDS)) else "",
)
def test_a_wrong_word_is_reported(line: str, says: str) -> None:
    errors = parse(line.split()).errors
    assert str(errors[0]).startswith(says)


@pytest.mark.parametrize("option", ["gc --keep-last", "tune --budget"])
@pytest.mark.parametrize("digits", [400, 5000])  # Python reads at most 4300
def test_a_number_that_no_float_can_hold_is_reported(option: str, digits: int) -> None:
    (error,) = parse(f"{option}={'9' * digits}".split()).errors
    assert re.search(r": expected a (whole )?number, got '9{20,150} ... 9{20,60}'$", str(error))


def test_all_wrong_words_are_reported() -> None:
    assert len(parse(["fit", "-x", "--trainer.max_epochs", "--quiet=3"]).errors) == 3


@pytest.mark.parametrize(
    "command", [name for name in COMMANDS if COMMANDS[name].find_option("--json")]
)
def test_both_spellings_of_json_mean_the_same_in_every_command(command: str) -> None:
    for words in (["--json"], ["--output", "json"], ["--output=json"], ["-o", "json"]):
        invocation = parse([command, *words])
        assert (invocation.options, invocation.errors) == ({"json": True}, ())


def test_a_run_called_json_is_kept() -> None:
    invocation = parse(["gate", "json", "--output", "json"])
    assert (invocation.get_run(), invocation.options) == ("json", {"json": True})


def test_events_and_a_file_can_be_asked_for_together() -> None:
    assert parse(["predict", "a.png", "--output", "x.csv", "--output", "json"]).options == {
        "output": "x.csv",
        "json": True,
    }


def test_a_rank_gets_the_invocation_as_it_was_parsed() -> None:
    invocation = parse(["fit", "-c", "a", "--x.y", "1", "--trust", "--deadline=4h"])
    assert parse([RANK, invocation.dump()]) == invocation


@pytest.mark.parametrize(
    ("line", "topics"),
    [
        ("fit --help", ()),
        ("help fit", ()),
        ("fit -c a -h", ()),
        ("fit --help trainer max_epochs --quiet", ("trainer", "max_epochs")),
        ("fit --help=trainer", ("trainer",)),
        ("fit --trainer.help", ("trainer",)),
        ("fit --gate.help", ("gate",)),
        ("fit --callbacks.help", ("callbacks",)),
        ("fit --model.help", None),  # of a class, which jsonargparse writes
        ("devices --help", ()),
    ],
)
def test_topics_of_the_help_are_found(line: str, topics: tuple[str, ...] | None) -> None:
    assert parse(line.split()).topics == topics


def test_a_script_has_its_own_options_and_help() -> None:
    invocation = parse_command(COMMANDS["fit"], ["--help", "--deadlin", "x"], is_script=True)
    assert invocation.passthrough == ("--help",)
    assert [flag.key for flag in invocation.overrides] == ["deadlin"]


def test_a_run_folder_without_its_option_is_no_folder_of_images(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").touch()
    with pytest.raises(ConfigError) as caught:
        parse(["test", str(tmp_path)]).raise_errors()
    assert str(caught.value).endswith(f"; a run comes after --run: --run {tmp_path}")


@pytest.mark.parametrize("line", ["--version", "-V", "fit --version", "-c x.yaml fit -V"])
def test_the_version_can_be_asked_for_before_and_after_a_command(line: str) -> None:
    assert parse(line.split())[:2] == ("", tuple(line.split()))
    assert parse(line.split()).options == {"version": True}


@pytest.mark.parametrize(
    ("word", "meant"),
    [("train", "fit"), ("evaluate", "test"), ("version", "--version"), ("tset", "test")],
)
def test_a_word_of_another_tool_is_answered_with_the_command(word: str, meant: str) -> None:
    with pytest.raises(
        ConfigError, match=f"^{word!r} is not a command; did you mean {meant!r}\\?\nCommands: fit, "
    ):
        parse([word])


def test_an_unknown_command_is_an_error() -> None:
    with pytest.raises(ConfigError, match="'fitt' is not a command; did you mean 'fit'"):
        parse(["fitt"])


@pytest.mark.parametrize(
    ("line", "option", "value"),
    [
        ("promote latest", "alias", "champion"),
        ("promote latest --alias other", "alias", "other"),
        ("register --run latest", "alias", ("challenger",)),
        ("register --alias a --alias b,c", "alias", ("a", "b", "c")),
        ("convert a b", "val-fraction", 0.2),
        ("convert a b --val-fraction 0", "val-fraction", 0.0),
        ("serve --run latest", "port", 8000),
        ("runs", "sort", "age"),
        ("runs", "metric", None),
    ],
)
def test_an_option_that_is_not_given_has_the_default_of_the_table(
    line: str, option: str, value: object
) -> None:
    invocation = parse(line.split())
    assert invocation.get(option) == value
    assert invocation.all_options.get(option) == value
    assert invocation.has(option) == (f"--{option}" in line)


def test_the_help_shows_the_default_of_the_table() -> None:
    text = format_command_help(COMMANDS["serve"])
    assert re.search(r"^  --port N +default: 8000$", text, re.MULTILINE)
    assert re.search(r"^  --max-request SIZE +largest request; default: 20M$", text, re.MULTILINE)


def test_the_stage_of_another_command_has_none_of_its_defaults() -> None:
    fit = parse(["tune", "-c", "a.yaml", "--quiet"]).for_stage("fit", keep=("quiet",))
    assert fit.all_options == {"quiet": True}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_default_is_one_of_the_values_of_its_option(command: Command) -> None:
    for option in command.options:
        if option.default is None:
            continue
        words = option.default if isinstance(option.default, tuple) else (option.default,)
        assert option.read(",".join(map(str, words))) == option.default


def test_the_table_names_what_there_is() -> None:
    assert set(TEMPLATES) == {*init._TEMPLATES}
    assert set(COMMANDS["completion"].input_choices) == {*completion._SCRIPTS}
    of_export = {option.key: option.help for option in COMMANDS["export"].options}
    assert of_export["num-samples"].endswith(f"default {ExportOptions.num_samples}")
    assert of_export["opset"].startswith(f"of ONNX, {OPSETS.start} to {OPSETS.stop - 1};")
    assert set(EXPORT_FORMATS) == {*FORMATS, "all"}
    assert {f".{each.file.rpartition('.')[2]}" for each in FORMATS.values()} == set(EXPORT_SUFFIXES)


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_the_help_of_a_command_fits_its_columns(command: object) -> None:
    text = format_command_help(command)  # type: ignore[arg-type]
    assert max(map(len, text.splitlines())) <= 102


def list_scheduled_commands() -> dict[str, str]:
    """List the commands of lightkit in the workflows, crontabs and services that come with it.

    By file and number.
    """
    files = [
        *(ROOT / "configs" / "ci").glob("*.yml"),
        *(ROOT / "lightkit" / "templates" / "ci").rglob("*.yml"),
        *(ROOT / "lightkit" / "templates" / "cron").glob("crontab"),
        *(ROOT / "scripts").glob("crontab"),
        *(ROOT / "scripts" / "systemd").glob("*.service"),
    ]
    found: dict[str, str] = {}
    for file in sorted(files):
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".yml":
            jobs = yaml.safe_load(text)["jobs"].values()
            lines = [step.get("run", "") for job in jobs for step in job["steps"]]
        else:
            lines = [line for line in text.splitlines() if not line.startswith("#")]
        commands = [
            match[1]
            for line in lines
            if (match := re.search(r"(?:^|[/ =@])(?:lightkit|LIGHTKIT)@? (.+)", line))
        ]
        found |= {
            f"{file.relative_to(ROOT)} {number}": command for number, command in enumerate(commands)
        }
    return found


@pytest.mark.parametrize("line", list_scheduled_commands().values(), ids=list_scheduled_commands())
def test_a_scheduled_command_has_options_that_there_are(line: str) -> None:
    invocation = parse(shlex.split(line))
    assert invocation.errors == ()
    assert invocation.command in ("check", "fit", "gc", "retrain")


def test_a_check_refuses_a_file_for_a_stage_that_writes_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", "test", "--output", "x.csv"]) == 2
    assert "--output: expected json, got 'x.csv'" in capsys.readouterr().err
    assert main(["check", "test", "--top-k", "3"]) == 2
    assert "check: --top-k is no option of test; name the stage" in capsys.readouterr().err


@pytest.mark.parametrize("key", [key for key in _KEYS if "=" in key])
def test_the_screen_of_a_stage_has_the_defaults_of_the_schema(key: str) -> None:
    name, _, default = key.partition("=")
    *sections, argument = name.split(".")
    schema = load_schema()
    if not sections:
        arguments = schema.top
    elif len(sections) == 1:
        arguments = schema.sections[sections[0]].arguments
    else:
        described = schema.find(NAMED_CLASSES[sections[0]][sections[1]])
        assert described is not None
        arguments = described.arguments
    found = arguments[argument].default
    assert (found if isinstance(found, str) else json.dumps(found)) == default


def test_the_screen_of_a_stage_names_the_sections_of_the_schema() -> None:
    plain, of_classes = re.findall(
        r"^  --help SECTION \[\w+\] +(.+?): ", _TOPICS, re.MULTILINE | re.DOTALL
    )
    schema = load_schema()
    assert set(re.split(r",\s+", plain)) == {*schema.sections}
    assert set(re.split(r",\s+", of_classes)) == {*schema.bases}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_the_usage_of_a_command_names_options_that_there_are(command: Command) -> None:
    for name in re.findall(r"(?<!\w)--?\w[\w.-]*", command.usage):
        is_key = "." in name or name in ("--key", "--KEY")
        assert is_key or command.find_option(name) is not None, name


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_the_examples_of_a_command_have_no_wrong_word(command: Command) -> None:
    lines = command.ending.replace("\\\n", " ").splitlines()
    examples = [line.strip() for line in lines if line.strip().startswith("lightkit ")]
    for example in examples:
        if "`" not in example and not example.endswith(":"):
            assert parse(shlex.split(example)[1:]).errors == (), example
