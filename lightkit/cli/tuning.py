"""The work of `lightkit tune`: a config parsed as `fit` parses it, measured, and told."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from lightkit.cli.console import configure_console, quiet_libraries
from lightkit.cli.context import RunContext
from lightkit.cli.explaining import located
from lightkit.cli.full_validation import open_context
from lightkit.cli.tables import print_table
from lightkit.config import dump_yaml
from lightkit.errors import ConfigError, LightkitError
from lightkit.hardware import this_machine
from lightkit.hardware.allocator import keep_memory
from lightkit.launch.plan import THREADS
from lightkit.runs.files import finite
from lightkit.runs.signals import SignalWatch
from lightkit.tuning.settings import TuneSettings
from lightkit.tuning.variant import Findings, Measurement, rate_words

if TYPE_CHECKING:
    from lightkit.cli.answers import Found

__all__ = ["tuned_config"]

_HEAD = ("setting", "ms a step", "spread", "samples/s", "gain", "loss off by", "")
_STYLES = {"chosen": "bold green", "refused": "dim"}  # by the start of the note
_SPEED = ("precision", "memory_format", "compile", "fused", "threads", "num_workers")
_OF_CUDA = ("tf32",)


def tuned_config(words: Sequence[str], *, budget_s: float | None, is_json: bool) -> int:
    """Measure the settings of a config, print what was found, and return the exit code.

    Args:
        words: Those of the command line that are for the config.
        budget_s: Seconds after which nothing else is tried; None for as many as it takes.
        is_json: Print one JSON object.

    Raises:
        LightkitError: If config or data are wrong.
    """
    with SignalWatch() as watch:
        keep_memory()  # as fit does
        session = open_context("fit", words, watch)
        if session.passthrough:
            raise ConfigError("tune: --KEY.help is an option of lightkit fit")
        configure_console(session.mode, session.resolved.masked)
        for notice in session.hardware.notices:
            logging.getLogger("lightkit").warning(notice)
        session.seat = None
        if session.launch.threads is not None:  # as fit does, before torch is loaded
            os.environ[THREADS] = str(session.launch.threads)
        # Here, not above: from this import on torch and Lightning are loaded, which takes seconds.
        from lightkit.cli.measured import MeasuredConfig

        quiet_libraries()
        try:
            with session.stack, redirect_stdout(sys.stderr):  # what the user's code prints is no measurement
                cli = MeasuredConfig(session, budget_s=budget_s, settings_of=lambda said: _asked(said, session))
        except LightkitError as error:
            raise located(error, session.resolved) from error
        _tell(cli.found, session, is_json=is_json)
    return 0


def _asked(said: TuneSettings, session: RunContext) -> TuneSettings:
    """Give the settings with all that is to be measured as `auto`, and say so where that is more than the config has.

    Raises:
        ConfigError: If the config leaves nothing open.
    """
    if said.autos():
        return said
    values = session.resolved.values
    block, trainer, launch = (values.get(name) or {} for name in ("accelerator", "trainer", "launch"))
    data = values.get("data")
    arguments = (data.get("init_args", data) or {}) if isinstance(data, dict) else {}
    chosen = {key.rpartition(".")[2] for key in session.hardware.chosen}
    fixed = {key for key in (*_SPEED, *_OF_CUDA) if block.get(key) is not None}
    fixed |= {"precision"} if trainer.get("precision") is not None else set()
    fixed |= {"threads"} if launch.get("threads") is not None else set()
    fixed |= {"num_workers"} if arguments.get("num_workers", "auto") != "auto" or not data else set()
    keys = [*_SPEED, *(_OF_CUDA if session.hardware.kind in (None, "gpu") and this_machine().gpus else ())]
    open_keys = [key for key in keys if key not in fixed - chosen]
    if not open_keys:
        raise ConfigError(
            f"tune: the config fixes all of {', '.join(keys)}; say accelerator.precision: auto, or others"
        )
    session.tell(f"the config has no auto; measures what it does not fix: {', '.join(open_keys)}")
    autos: dict[str, Any] = dict.fromkeys(open_keys, "auto")
    return replace(said, **autos)


def _tell(found: Found, session: RunContext, *, is_json: bool) -> None:
    if is_json:
        print(session.resolved.masked(json.dumps(_described(found), indent=2)))
        return
    if session.mode != "quiet":
        if found.findings is not None:
            _print_measurements(found.findings)
        for line in found.lines:
            print(line)
        print("\nto fix it:")
    print(dump_yaml({"accelerator": _fixing(found)}), end="")


def _described(found: Found) -> dict[str, Any]:
    """Give all that was seen, as JSON can hold it."""
    parts = {"findings": found.findings, "batch_size": found.size, "learning_rate": found.rate}
    return {
        "schema": 1,
        "chosen": found.chosen,
        "gain": found.event()["gain"],
        "seconds": round(found.seconds, 3),
        **{name: None if part is None else finite(asdict(part)) for name, part in parts.items()},
    }


def _fixing(found: Found) -> dict[str, Any]:
    """Give the block that fixes what was chosen."""
    return {key: value for key, value in found.chosen.items() if value is not None}


def _print_measurements(findings: Findings) -> None:
    base = findings.measurements[0].step_s if findings.measurements else None
    rows = [_row(one, base, note=_note(one, findings)) for one in findings.measurements]
    print_table(_HEAD, rows, is_terminal=sys.stdout.isatty(), style=lambda row: _style(row[-1]))
    for words in findings.left_out:
        print(f"left out  {words}")


def _style(note: str) -> str | None:
    return next((style for start, style in _STYLES.items() if note.startswith(start)), None)


def _note(one: Measurement, findings: Findings) -> str:
    if one == findings.of_chosen:
        number = findings.chosen.threads
        return "chosen" if findings.are_threads_measured else f"chosen, with threads={number}, which was not measured"
    return "" if one.refused is None else f"refused: {one.refused}"


def _row(one: Measurement, base_s: float | None, *, note: str) -> list[str]:
    gain = None if one.step_s is None or base_s is None else base_s / one.step_s
    return [
        one.variant.words,
        _number(one.step_s, "{:.1f}", 1e3),
        _number(one.spread, "{:.0f} %", 100),
        "-" if one.samples_per_s is None else rate_words(one.samples_per_s),
        _number(gain, "{:.2f}"),
        _number(one.deviation, "{:.2g} %", 100),
        note,
    ]


def _number(value: float | None, form: str, times: float = 1) -> str:
    return "-" if value is None else form.format(value * times)
