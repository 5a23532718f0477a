"""`lightkit tune`: measure which settings train the real model fastest here, and write them as a layer."""

from __future__ import annotations

import json
import logging
import math
import resource
import shlex
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkit.cli.command_line import Takes, parse_options
from lightkit.cli.console import configure_console, format_table, quiet_libraries
from lightkit.cli.parser_errors import explain_lightning_errors
from lightkit.cli.stage_runner import open_context
from lightkit.cli.validation import explain_unwritable
from lightkit.config import Origin, dump_yaml, shown_path
from lightkit.config.accelerator.computation import choose_settings, target_key
from lightkit.config.accelerator.setting import Setting
from lightkit.config.accelerator.vocabulary import PRECISIONS
from lightkit.config.tree import Leaf
from lightkit.errors import ConfigError
from lightkit.hardware import this_machine
from lightkit.hardware.cores import find_user_threads
from lightkit.hardware.processor import available_memory_bytes, keep_memory
from lightkit.runs.files import finite
from lightkit.runs.signals import SignalWatch

if TYPE_CHECKING:
    from lightkit.cli.context import RunContext
    from lightkit.tuning.benchmark import Benchmark

HELP = """\
usage: lightkit tune -c FILE... [--output FILE] [--batch-size] [--learning-rate] [--budget SECONDS] [--key=value]...

Measure how the config's model trains fastest on this machine, in short fits of the real model on real batches, and
write a layer with the settings that gain. Tried is what the config does not fix, or leaves to auto: precision,
memory_format, compile, fused, threads and num_workers, on CUDA tf32 too. A setting is taken only if the losses of the
first steps stay within a stated tolerance of float32's.

  -c FILE           a layer of the config
  --output FILE     the layer to write; default: tuned.yaml
  --batch-size      find the largest batch that fits into memory, by Lightning's Tuner; taken if it gains
  --learning-rate   find a learning rate, by the range test of Lightning's Tuner
  --budget SECONDS  try no other setting after so many seconds; default: as many as it takes
  --json            print one JSON object: all measurements, and what is chosen
  --quiet           print the layer only
  --trust           let checkpoints and weights run code as they load

Nothing is trained and no run is left. Use what was found with another -c.
Exit code 0: measured; 1: the model raises an error; 2: the config is wrong; 3: the data is wrong or missing.

lightkit tune -c configs/flowers.yaml
lightkit fit -c configs/flowers.yaml -c tuned.yaml
"""
_CONFIG: dict[str, Takes] = {"-c": "value", "--config": "value", "--quiet": "switch", "--trust": "switch"}
_HEAD = ("setting", "ms a step", "samples/s", "gain", "")
_LEAST_GAIN = 1.05
"""A larger batch is worth its memory where it gives more than this times as many samples a second."""


def tune(args: list[str]) -> int:
    """Measure, print what was found, write the layer, and return the exit code.

    Args:
        args: The command line after the command.

    Raises:
        LightkitError: If the arguments, the config or the data are wrong.
    """
    if "--run" in (word.partition("=")[0] for word in args):
        raise ConfigError("tune: --run is no option of it; -c RUN/config.yaml names the config of a run")
    line = parse_options(HELP, args, config=_CONFIG)
    budget_s = line.get_number("--budget", math.inf)
    output = Path(line.options.get("--output", "tuned.yaml"))
    if output.is_dir() or not output.parent.is_dir():
        raise ConfigError(f"tune: --output {output}: expected a file in a folder that exists")
    if (unwritable := explain_unwritable(output.parent, setting="tune: --output")) is not None:
        raise unwritable
    with SignalWatch() as watch:
        keep_memory()  # as fit does
        context = open_context("fit", line.config_args, watch)
        configure_console(context.mode, context.resolved.masked)
        for notice in context.hardware.notices:
            logging.getLogger("lightkit").warning(notice)
        context.rank_context = None
        keys = _list_open_keys(context)
        found = [option for option in ("--batch-size", "--learning-rate") if option in line.options]
        for option in found:  # an error if the config's classes have no such argument
            key = option.removeprefix("--").replace("-", "_")
            setting = Setting(("accelerator", key), Leaf("auto", Origin("flag", option)))
            target_key(key, setting, context.resolved)
        if not keys and not found:
            raise ConfigError("tune: the config fixes all settings for speed; set accelerator.precision: auto")
        quiet_libraries()
        explained = explain_lightning_errors(context.resolved)
        with context.stack, redirect_stdout(sys.stderr), explained:  # what the user's code prints is no measurement
            lines, benchmark = _measure(context, keys, found, budget_s=budget_s)
    rows = [f"  {dump_yaml({key: value}).strip()}  # {text}\n" for key, (value, text) in lines.items()]
    block = f"accelerator:\n{''.join(rows)}" if rows else "accelerator: {}  # nothing that was tried gains\n"
    head = f"# {shlex.join(['lightkit', 'tune', *args])}\n# measured on {this_machine().cpu}\n"
    layer = context.resolved.masked(f"{head}{block}")
    output.write_text(layer, encoding="utf-8")
    if "--json" in line.options:
        print(context.resolved.masked(json.dumps(_describe(lines, benchmark), indent=2)))
        return 0
    if context.mode != "quiet":
        _print_trials(benchmark)
        print(f"\n{shown_path(output)}:")
    print(layer, end="")
    return 0


def _list_open_keys(context: RunContext) -> list[str]:
    """List the settings for speed that the config does not fix: not set, or chosen by the rule for auto."""
    values, chosen = context.resolved.values, context.hardware.chosen
    homes = {key: ("accelerator", key) for key in ("memory_format", "compile", "fused", "tf32")}
    if not context.resolved.section("trainer").get("plugins"):  # one of them may decide it
        homes["precision"] = "trainer", "precision"
    if find_user_threads() is None:
        homes["threads"] = "launch", "threads"
    keys = [
        key
        for key, (section, name) in homes.items()
        if (values.get(section) or {}).get(name) is None or f"{section}.{name}" in chosen
    ]
    data = values.get("data") or {}
    num_workers = (data.get("init_args", data) or {}).get("num_workers")
    if data and (num_workers in ("auto", None) or "data.init_args.num_workers" in chosen):
        keys.append("num_workers")
    return keys


def _measure(
    context: RunContext, keys: list[str], options: Collection[str], *, budget_s: float
) -> tuple[dict[str, tuple[Any, str]], Benchmark]:
    """Measure what is open: memory format and precision together, since some gain only together; then one by one.

    Returns:
        By key of the section `accelerator`: the value that gained, and its number as text; and all trials.
    """
    import torch  # here, as all that loads torch: arguments and config are checked before

    from lightkit.callbacks.computation import missing_for_compiling
    from lightkit.cli.model_builder import TrialBuilder
    from lightkit.tuning.benchmark import Benchmark, Variant, find_batch_size, find_learning_rate

    warnings.simplefilter("ignore")  # the training warns of the same
    for name in ("pytorch_lightning", "lightning_fabric", "lightkit.data", "lightkit.models"):
        logging.getLogger(name).setLevel(logging.ERROR)
    builder = TrialBuilder(context=context)
    section = builder.config["fit"]
    precision = str(section["trainer"]["precision"] or "32-true")
    base = Variant(
        PRECISIONS.get(precision, precision),
        **section["accelerator"].as_dict(),
        threads=context.launch.threads or torch.get_num_threads(),
    )
    device = builder.build(base)[0].strategy.root_device.type
    machine = this_machine()
    cores = machine.cores or 1
    keys = [key for key in keys if key != "compile" or missing_for_compiling(device) is None]

    def measure(base: Variant) -> Benchmark:
        reference = replace(base, precision="32-true") if "precision" in keys else base
        seed = int(section["seed_everything"] or 0)
        return Benchmark(builder.build, base, reference=reference, seed=seed, budget_s=budget_s, report=context.tell)

    lines: dict[str, tuple[Any, str]] = {}
    if "--batch-size" in options:
        first = builder.data_arguments.get("batch_size")
        if not isinstance(first, int):
            raise ConfigError("tune: --batch-size: the config's data has no argument batch_size")
        with _limit_memory():
            size = find_batch_size(builder.build(base), first)
        trials = [measure(replace(base, batch_size=each)).best for each in (first, size)]
        rates = [(trial.batch_size or 0) / trial.step_s for trial in trials]
        if rates[1] > _LEAST_GAIN * rates[0]:
            size = trials[1].batch_size or size  # the data may have fewer samples
            text = f"{rates[1]:.4g} samples/s, with {first} {rates[0]:.4g}; the learning rate is not scaled"
            base, lines["batch_size"] = replace(base, batch_size=size), (size, text)
    benchmark = measure(base)
    lower = choose_settings({"cuda": "gpu"}.get(device, device), machine, processes=1)[1]["precision"]
    formats = ("channels_last", "contiguous") if "memory_format" in keys else (base.memory_format,)
    for precision in dict.fromkeys((lower or "32-true", "32-true")) if "precision" in keys else (base.precision,):
        for memory_format in formats:
            benchmark.consider(precision=precision, memory_format=memory_format)
    numbers = [number for number in (cores, cores - 1, cores // 2) if number > 0] if device == "cpu" else []
    changes: list[tuple[str, Any]] = [("fused", True), *[("tf32", True)] * (device == "cuda"), ("compile", True)]
    for key, value in (*changes, *(("threads", number) for number in numbers)):
        if key in keys:
            benchmark.consider(**{key: value})
    best = benchmark.best.variant
    if "num_workers" in keys and "num_workers" in builder.data_arguments:
        benchmark.start_loading(builder.data_arguments["num_workers"])
        for number in sorted({0, 1, cores // 2, cores - 1}):
            benchmark.consider(num_workers=number)
    # but for what was changed, and back again
    lines |= {key: gained for key, gained in benchmark.gained.items() if gained[0] != getattr(base, key)}
    if "--learning-rate" in options:
        rate, text = find_learning_rate(builder.build(best))
        if rate is None:
            logging.getLogger("lightkit").warning("tune: no learning rate was found: %s", text)
        else:
            lines["learning_rate"] = rate, f"a tenth of the rate of the least loss: {text}"
    return lines, benchmark


@contextmanager
def _limit_memory() -> Iterator[None]:
    """Let an allocation beyond nine tenths of the free memory fail, before the kernel ends the process."""
    import psutil  # here: it takes as long as reading a config

    before = resource.getrlimit(resource.RLIMIT_AS)
    most_bytes = psutil.Process().memory_info().vms + int(0.9 * available_memory_bytes())
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _describe(lines: Mapping[str, tuple[Any, str]], benchmark: Benchmark) -> dict[str, Any]:
    """Return all measurements, for JSON."""
    trials = [{**asdict(trial), "step_s": trial.step_s if trial.times else None} for trial in benchmark.trials.values()]
    chosen = {key: value for key, (value, _) in lines.items()}
    gain = benchmark.gain_of(benchmark.best)  # infinite where what fit does could not be measured
    described: dict[str, Any] = finite({"schema": 3, "chosen": chosen, "gain": round(gain, 3), "trials": trials})
    return described


def _print_trials(benchmark: Benchmark) -> None:
    rows = []
    for trial in benchmark.trials.values():
        numbers = ["-", "-", "-"]
        if trial.times:
            rate = "-" if trial.batch_size is None else f"{trial.batch_size / trial.step_s:.4g}"
            numbers = [f"{trial.step_s * 1e3:.1f}", rate, f"{benchmark.gain_of(trial):.2f}"]
        note = "" if trial.refused is None else f"refused: {trial.refused}"
        rows.append([str(trial.variant), *numbers, "chosen" if trial is benchmark.best else note])
    print(format_table(_HEAD, rows), flush=True)
