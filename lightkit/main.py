"""The table of commands, their dispatch, and the exit code of each exception.

It imports next to nothing: a command's own module is imported once the command is known.
"""

from __future__ import annotations

import difflib
import importlib
import itertools
import os
import sys
from collections.abc import Iterable, Sequence

from lightkit.cli.console import FULL_TRACEBACK, discard_output, guard_standard_output, print_error
from lightkit.errors import PIPE_CLOSED, ConfigError, Interrupted, LightkitError, OutputLost, format_interruption
from lightkit.runs.signals import SignalWatch
from lightkit.version import __version__

_SECTION_HELP = ("--trainer.help", "--run.help", "--launch.help", "--accelerator.help")
_TAKE_A_WORD = ("-c", "--config", "--run", "--ckpt_path", "--output")
COMMANDS = {  # each in `lightkit.commands`, in the module of its name
    "fit": "train a model, or resume the run that was interrupted",
    "validate": "score a run's best checkpoint on the validation split",
    "test": "score a run's best checkpoint on the test split",
    "predict": "label images, or write a run's predictions for the test split",
    "export": "write a model to files that are verified against it",
    "register": "put a run's model into MLflow's registry",
    "retrain": "fit, test, export, judge and promote, as a schedule does",
    "gate": "compare a run with its thresholds and the champion",
    "promote": "let the champion be a run that passes its gate",
    "rollback": "let the champion be the one before",
    "history": "print who promoted what, when and why",
    "runs": "print a table of the runs",
    "report": "write a run's report, one HTML file",
    "gc": "delete old runs",
    "reproduce": "train a run again and compare the two",
    "notify-test": "send one message of each kind",
    "tune": "measure which settings train fastest here",
    "check": "list all errors of a config",
    "explain": "print which layer set a value, and what it replaced",
    "diff": "print what differs between two runs or two configs",
    "fetch": "download the data that a config names",
    "convert": "write a folder of photos as a Delta or Parquet table",
    "devices": "print what this machine has to train on",
    "submit": "put a fit into the queue of a Slurm cluster",
    "configs": "list, print or copy the packaged configs",
    "init": "write a starter project, or a config for images",
    "schema": "print the JSON Schema of a config file, for editors",
    "upgrade": "list the keys of a Lightning 1.x config in today's words",
    "completion": "print the script that completes words in bash or zsh",
}
_STAGES = ("fit", "validate", "test", "predict", "export")  # which have a model, data and a trainer; in `fit`
_FUNCTIONS = {"runs": "show_runs", "gc": "collect", "submit": "submit_fit"}
"""Functions that do not have their command's name."""

HELP = """\
usage: lightkit COMMAND [-c FILE]... [--key=value]... [key=value]...

Train PyTorch Lightning models from layered YAML files.

commands:
{commands}

  -c FILE            a layer of the config; later ones win over earlier ones
  --key=value        one value, such as --trainer.max_epochs=3; wins over files
  --run RUN          validate, test, predict, export: a run; needs no -c
  --quiet            print warnings and errors only
  --output json      print the run's events, one JSON object a line
  --print_config     print the resolved config and stop
  --traceback        after an error in your code, show the libraries' frames too
  --version          print the version and stop
  --help             print this, or after a command the keys that it takes

lightkit fit -c configs/flowers.yaml
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        argv: Words after the program's name; those of this process if None.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is None:
        guard_standard_output()
    watch = SignalWatch(to_the_end=argv is None)
    watch.deferred = True  # until `_code_of` can report it
    with watch:
        watch.code = _code_of(words, watch)
        return watch.code


def _code_of(words: list[str], watch: SignalWatch) -> int:
    try:
        try:
            watch.stop_deferring()
            code = _dispatch(words, watch)
        finally:
            watch.deferred = True  # the work is done, and its end is still to be printed
        print(end="", flush=True)  # here, where a reader that has left is no news
    except Interrupted as interruption:
        return _report_interruption(interruption)
    except BrokenPipeError:  # the reader of a pipe has left, as `| head` does
        discard_output(sys.stdout)
        return PIPE_CLOSED
    except Exception as error:
        if watch.received is not None and watch.explains(error):
            return _report_interruption(Interrupted(watch.received))
        if not isinstance(error, LightkitError):
            raise
        if isinstance(error, OutputLost):
            discard_output(sys.stdout)  # which Python would try to write once more at its end
        print_error(f"error: {error}")
        return error.exit_code
    return code


def _report_interruption(interruption: Interrupted) -> int:
    print_error(format_interruption(interruption))
    return interruption.exit_code


def _dispatch(words: list[str], watch: SignalWatch) -> int:
    if words and words[0] in ("-h", "--help", "help") and words[1:] and not words[1].startswith("-"):
        words = [words[1], "--help", *words[2:]]
    if "--traceback" in words:
        os.environ[FULL_TRACEBACK] = "1"
        words = [word for word in words if word != "--traceback"]
    at = _command_at(words)
    if not words or words[0] in ("-h", "--help", "help") or (at == len(words) and {"-h", "--help"} & {*words}):
        text = HELP.format(commands="\n".join(f"  {name:13}{message}" for name, message in COMMANDS.items()))
        print(text, end="", file=sys.stdout if words else sys.stderr)
        return 0 if words else 2
    if words[0] in ("-V", "--version"):
        print(f"lightkit {__version__}")
        return 0
    name, rest = _command_of(words, at)
    is_stage = name in _STAGES
    sys.path.insert(0, str(os.getcwd()))  # noqa: PTH109 (a class_path of the user's own module is found here)
    if is_stage and (topics := _help_topics(rest)) is not None:
        if not topics:
            from lightkit.cli.help import show_help  # here, for other commands need none of its words

            return show_help(name, COMMANDS[name])
        if topics != ["all"]:
            from lightkit.cli.help_topics import format_topic  # here, because it loads what reads configs

            print(format_topic(name, topics), end="")
            return 0
        rest = ["--help"]  # of LightningCLI
    module = importlib.import_module(_module_of(name))
    target = getattr(module, "run" if is_stage else _FUNCTIONS.get(name, name.replace("-", "_")))
    help_text = getattr(module, "HELP", "")
    if {"-h", "--help"} & {*rest} and help_text and rest[:1] != ["words"]:  # of `completion`
        print(help_text, end="")
        return 0
    rest = _spell_options(rest, help_text)
    if is_stage:
        return int(target(name, rest, watch))
    if name == "completion":
        return int(target(rest, {each: None if each in _STAGES else _module_of(each) for each in COMMANDS}))
    return int(target(rest))


def _module_of(command: str) -> str:
    return f"lightkit.commands.{'fit' if command in _STAGES else command.replace('-', '_')}"


def _spell_options(words: list[str], help_text: str) -> list[str]:
    """Write an option that has two names with the one that the command's help has."""
    names = {"-o": "--output", **({"--run.root": "--root"} if "  --root " in help_text else {"--root": "--run.root"})}
    parts = [word.partition("=") for word in words]
    words = [f"{names.get(option, option)}{equals}{value}" for option, equals, value in parts]
    takes_json = "  --json " in help_text and "  --output " not in help_text
    if takes_json and ("--output=json" in words or "--output" in words):  # the form of other commands
        words = ["--json" if word in ("--output=json", "--output") else word for word in words if word != "json"]
    return words


def _help_topics(words: list[str]) -> list[str] | None:
    """Return the topics after `--help`, `[]` for the command as a whole; None without `--help`."""
    for at, word in enumerate(words):
        option, _, topic = word.partition("=")
        if option in _SECTION_HELP:  # where a class has `--model.help`, which jsonargparse reads
            return [option[2:].partition(".")[0]]
        if option in ("-h", "--help"):
            following = itertools.takewhile(lambda word: word[:1] != "-" and "=" not in word, words[at + 1 :])
            return [*([topic] if topic else []), *following]
    return None


def _command_at(words: list[str]) -> int:
    """Find the first word that is no option, nor the value of one."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        at += 1 + (words[at] in _TAKE_A_WORD)
    return min(at, len(words))


def _command_of(words: list[str], at: int) -> tuple[str, list[str]]:
    """Split off the command; `-c FILE` before it means the same as after it."""
    if at == len(words):
        text = f"No command among {' '.join(words)!r}{_near_option(words) or '.'}"
        raise ConfigError(f"{text} Commands: {', '.join(COMMANDS)}.")
    if words[at] not in COMMANDS:
        raise ConfigError(
            f"{words[at]!r} is not a command{_near(words[at], COMMANDS)}\nCommands: {', '.join(COMMANDS)}."
        )
    return words[at], [*words[:at], *words[at + 1 :]]


def _near_option(words: list[str]) -> str:
    """Return the hint for the first argument that looks like an option and is none."""
    options = ["--help", "--version", "--quiet", "--print_config", *_TAKE_A_WORD]
    given = (word.partition("=")[0] for word in words if word.startswith("--"))
    return next((_near(option, options, most=1) for option in given if option not in options), "")


def _near(word: str, known: Iterable[str], *, most: int = 3) -> str:
    # By hand: `lightkit.config.near`, which gives the same, comes with all that reads configs.
    close = " or ".join(map(repr, difflib.get_close_matches(word, list(known), n=most)))
    return f"; did you mean {close}?" if close else ""
