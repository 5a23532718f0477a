"""`lightkit retrain`: fit, test, export, gate and promote, one after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lightkit.cli.export_options import ExportOptions
from lightkit.config import near
from lightkit.errors import ConfigError
from lightkit.runs.ci_report import junit_on_failure
from lightkit.runs.deadlines import duration_s

__all__ = ["RetrainOptions", "retrain"]

_USAGE = "usage: lightkit retrain -c FILE... [--deadline WHEN] [--skip STAGE]... [--key=value]... [key=value]..."
_HELP = f"""\
{_USAGE}

Fit, test, export, gate and promote, as a schedule does at night. -c and keys are those of lightkit fit. Each stage is a
command of its own; the run's retrain.json says how far they have come. After a kill the same command goes on with the
stage that was not finished: nothing is trained or promoted twice. It holds the job's lock from the first stage to the
last. Without gate.metric nothing is judged, and nothing promoted.

  -c FILE              a layer of the config; later ones win over earlier ones
  --deadline WHEN      be done by then: 05:30 (the next), a duration such as 4h, 90m or 1h30m, or 2026-11-23T05:30.
                       Training stops in time for what follows; what does not fit any more is left to the next start
  --reserve DURATION   time to leave for what follows the training; default: one and a half times what it took in the
                       last retrains, and 10 s; the first time a quarter of the time there is, at most 15m
  --skip STAGE         leave out test, export, or promote; may be said again
  --export-format FORMAT  as for lightkit export; default: torch_export
  --if-changed         train only if config, data or code changed since the last run that ended well; else code 6
  --unchanged-ok       with --if-changed: code 0 in place of 6
  --reason TEXT        why, for the log of promotions
  --junit FILE         write a case for each stage, for CI systems
  --ckpt_path CKPT     start the training from a checkpoint: best, last or a file
  --trust              load a checkpoint that holds more than tensors and plain values, and so may run code
  --quiet              print warnings and errors only
  --output json        print the events of all stages, one JSON object a line

Exit code 0: done; 4: the gate said no, and the next start trains anew; 6: nothing has changed; 75: interrupted, out of
time, or another process runs the job: the same command goes on; another: that of the stage that failed, at which the
same command goes on until it has failed three times.

lightkit retrain -c configs/flowers.yaml --gate.metric test/accuracy --gate.min 0.8 --deadline 05:30
"""
_VALUES = ("--deadline", "--reserve", "--skip", "--export-format", "--reason", "--junit")
_SWITCHES = ("--if-changed", "--unchanged-ok")
_NOT_HERE = {
    "--run": "it trains; to go on in a run's folder, say --run.resume=RUN",
    "--print_config": "lightkit fit has it",
    "--format": "say --export-format",
    "--name": "say --gate.name",
    "--alias": "lightkit promote has it",
}
_CAN_SKIP = ("test", "export", "promote")
_DEFAULT_FORMAT = "torch_export"


@dataclass(frozen=True)
class RetrainOptions:
    """What is asked for beside the config.

    Args:
        deadline: As it was said.
        reserve_s: Seconds for what follows the training; None to take what it took before.
        skip: Stages that are left out.
        export_format: Formats, as `lightkit export` takes them.
        if_changed: Options of `lightkit fit` about trainings that would change nothing.
        reason: For the log of promotions.
        junit: File for CI systems.
    """

    deadline: str | None = None
    reserve_s: float | None = None
    skip: tuple[str, ...] = ()
    export_format: str = _DEFAULT_FORMAT
    if_changed: tuple[str, ...] = ()
    reason: str | None = None
    junit: Path | None = None


def retrain(words: list[str]) -> int:
    """Run the stages that are left, and return the exit code.

    Raises:
        ConfigError: If the arguments or the config are wrong.
        OutOfTime: If the deadline leaves no time for the next stage.
        RunLocked: If another process runs the job.
    """
    if {"-h", "--help"} & {*words}:
        print(_HELP, end="")
        return 0
    options, rest = _parted(words)
    from lightkit.cli.retraining import retrain_job  # here: help and mistakes need no config

    with junit_on_failure(options.junit, "lightkit retrain", "retrain"):
        return retrain_job(rest, options)


def _parted(words: Sequence[str]) -> tuple[RetrainOptions, list[str]]:
    """Take this command's own options out of the words; the others are those of `fit`.

    Raises:
        ConfigError: If one is wrong.
    """
    rest, others = list(words), []
    said: dict[str, list[str]] = {option: [] for option in (*_VALUES, *_SWITCHES)}
    while rest:
        word = rest.pop(0)
        option, equals, value = word.partition("=")
        if option in _NOT_HERE or (option in _SWITCHES and equals):
            instead = _NOT_HERE.get(option, f"{option} takes no value")
            raise ConfigError(f"retrain: unexpected argument {word!r}: {instead}\n{_USAGE}")
        if option in _SWITCHES:
            said[option].append("")
        elif option not in _VALUES:
            others.append(word)
        elif not equals and (not rest or rest[0].startswith("-")):
            raise ConfigError(f"retrain: {option}: expected a word after it\n{_USAGE}")
        else:
            said[option].append(value if equals else rest.pop(0))
    return _checked(said), others


def _checked(said: Mapping[str, list[str]]) -> RetrainOptions:
    for option in _VALUES:
        if len(said[option]) > 1 and option != "--skip":
            raise ConfigError(f"retrain: {option} is said twice: {' and '.join(map(repr, said[option]))}")
    if said["--unchanged-ok"] and not said["--if-changed"]:
        raise ConfigError("retrain: --unchanged-ok has no effect without --if-changed")
    last = {option: values[-1] for option, values in said.items() if values}
    format_ = last.get("--export-format", _DEFAULT_FORMAT)
    try:
        ExportOptions.parse({"format": format_})
    except ConfigError as error:
        raise error.reworded(lambda text: text.replace("--format", "--export-format")) from None
    return RetrainOptions(
        deadline=last.get("--deadline"),
        reserve_s=_reserve_s(last.get("--reserve")),
        skip=_skipped(said["--skip"]),
        export_format=format_,
        if_changed=tuple(option for option in _SWITCHES if said[option]),
        reason=last.get("--reason"),
        junit=Path(last["--junit"]).expanduser() if "--junit" in last else None,
    )


def _reserve_s(said: str | None) -> float | None:
    if said is None:
        return None
    if (seconds := duration_s(said)) is None:
        raise ConfigError(f"--reserve: expected a duration such as 10m, 90s or 1h30m, got {said!r}")
    return seconds


def _skipped(said: Sequence[str]) -> tuple[str, ...]:
    stages = [stage.strip() for each in said for stage in each.split(",")]
    for stage in stages:
        if stage == "gate":
            raise ConfigError(
                "--skip: nothing is promoted that was not judged: leave gate.metric out of the config, or skip promote"
            )
        if stage not in _CAN_SKIP:
            raise ConfigError(f"--skip: expected {', '.join(_CAN_SKIP)}, got {stage!r}{near(stage, _CAN_SKIP)}")
    return tuple(dict.fromkeys(stages))
