"""`lightkit register`: a run's model into MLflow's registry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lightkit.cli.full_validation import open_context
from lightkit.config import near
from lightkit.errors import ConfigError
from lightkit.registry.names import check_alias, check_name
from lightkit.runs.signals import SignalWatch

__all__ = ["RegisterOptions", "register"]

_USAGE = "usage: lightkit register --run RUN|latest --name NAME [--alias ALIAS]... [--key=value]..."
_HELP = f"""\
{_USAGE}

Put a run's model into MLflow's registry as a new version, with its exports, and with tags that lead back to the run:
its folder, git commit, data and checkpoint. The model of an image classifier takes images as they are, uint8
(batch, height, width, 3) in RGB, and gives class probabilities; that of another module is its forward. It is loaded
with torch alone, and is compared with the trained module before it is sent.

  --run RUN            a run or latest
  --name NAME          of the registered model; in Unity Catalog CATALOG.SCHEMA.NAME
  --alias ALIAS        points to this version from now on; may be said again; default: challenger; none: no alias
  --ckpt_path CKPT     best, last or a file; default: best
  --format FORMAT      torch_export (default) or torchscript
  --tracking-uri URI   where MLflow is; default: where the training was tracked, else mlflow.db in the run root
  --input-shape SIZES  of the input, where neither data nor the module tell it, such as 1,3,224,224
  --trust              load a checkpoint that holds more than tensors and plain values, and so may run code
  -c FILE              a layer on top of the run's config
  --quiet              print warnings and errors only

Before its default, --tracking-uri is what the run's config or MLFLOW_TRACKING_URI says. A training that MLflow did not
record gets an MLflow run of its own, in the experiment MLFLOW_EXPERIMENT_NAME or one of the run's name.
Exit code 0: registered; 2: wrong arguments, or MLflow refuses; 5: the model cannot be written so that it answers as
before; 75: MLflow does not answer, try again later.

lightkit register --run latest --name flowers
"""
_NEXT = (
    "mlflow models serve -m models:/flowers@challenger --env-manager local\n"  # not lightkit's options: see completing
)
_FORMATS = ("torch_export", "torchscript")
_OWN = ("--name", "--alias", "--format", "--tracking-uri")
_SHARED = ("--run", "--ckpt_path", "--input-shape", "--trust", "--quiet", "-c", "--config")
_NOT_HERE = ("--output", "--print_config", "--with-preprocessing", "--opset", "--half", "--int8", "--num-samples",
             "--rtol", "--atol")  # fmt: skip
_DEFAULT_ALIAS, _NO_ALIAS = "challenger", "none"


@dataclass(frozen=True)
class RegisterOptions:
    """What is registered, and where.

    Args:
        name: Of the registered model.
        aliases: For the new version.
        format: How the model is written.
        tracking_uri: Where MLflow is, if said.
    """

    name: str
    aliases: tuple[str, ...]
    format: str
    tracking_uri: str | None


def register(words: list[str]) -> int:
    """Register the model of a run, and return the exit code.

    Raises:
        ConfigError: If the arguments are wrong, there is no such run or checkpoint, or MLflow refuses.
        ExportError: If the model cannot be written so that it gives the same answers.
        ServerAway: If MLflow does not answer.
    """
    if {"-h", "--help"} & {*words}:
        print(_HELP + _NEXT, end="")
        return 0
    options, rest = _parted(words)
    session = open_context("export", rest, SignalWatch())
    session.seat = None
    from lightkit.cli.registering import register_run  # here: it loads torch

    return register_run(session, options)


def _parted(words: Sequence[str]) -> tuple[RegisterOptions, list[str]]:
    """Take this command's own options out of the words.

    Raises:
        ConfigError: If one is wrong, or one that is needed is missing.
    """
    rest, others = list(words), []
    said: dict[str, list[str]] = {option: [] for option in _OWN}
    while rest:
        word = rest.pop(0)
        option, equals, value = word.partition("=")
        if option in _NOT_HERE:
            raise ConfigError(f"register: unexpected argument {word!r}{near(option, (*_OWN, *_SHARED))}\n{_USAGE}")
        if option not in _OWN:
            others.append(word)
            continue
        if not equals and (not rest or rest[0].startswith("-")):
            raise ConfigError(f"register: {option}: expected a word after it\n{_USAGE}")
        said[option].append(value if equals else rest.pop(0))
    if not any(word.partition("=")[0] == "--run" for word in others):
        raise ConfigError(f"register: which run? Say --run latest, or the folder of one.\n{_USAGE}")
    return _checked(said), others


def _checked(said: dict[str, list[str]]) -> RegisterOptions:
    for option in ("--name", "--format", "--tracking-uri"):
        if len(said[option]) > 1:
            raise ConfigError(f"register: {option} is said twice: {' and '.join(map(repr, said[option]))}")
    if not said["--name"]:
        raise ConfigError(f"register: under which name? Say --name, such as --name flowers.\n{_USAGE}")
    format_ = (said["--format"] or [_FORMATS[0]])[0]
    if format_ not in _FORMATS:
        raise ConfigError(f"--format: expected {' or '.join(_FORMATS)}, got {format_!r}{near(format_, _FORMATS)}")
    aliases = dict.fromkeys(said["--alias"] or [_DEFAULT_ALIAS])
    if _NO_ALIAS in aliases and len(aliases) > 1:
        raise ConfigError(f"--alias: {_NO_ALIAS} stands alone, got {', '.join(aliases)}")
    kept = tuple(check_alias(alias) for alias in aliases if alias != _NO_ALIAS)
    return RegisterOptions(check_name(said["--name"][0]), kept, format_, next(iter(said["--tracking-uri"]), None))
