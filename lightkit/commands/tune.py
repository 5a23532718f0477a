"""`lightkit tune`: measure which settings train the real model fastest here.

Write them as a layer.
"""

from __future__ import annotations

import json
import logging
import math
import resource
import shlex
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkit.cli.command_line import Invocation
from lightkit.cli.console import quiet_libraries
from lightkit.cli.heap import freezing_imports
from lightkit.cli.parser_errors import explain_lightning_errors
from lightkit.cli.stage_runner import open_command_config
from lightkit.cli.validation import check_writable
from lightkit.config import Origin, Resolved, dump_yaml, shown_path
from lightkit.config.accelerator.computation import choose_settings, target_key
from lightkit.config.accelerator.setting import Setting
from lightkit.config.accelerator.vocabulary import PRECISIONS
from lightkit.config.tree import Leaf
from lightkit.errors import ConfigError
from lightkit.hardware import this_machine
from lightkit.hardware.cores import find_user_threads
from lightkit.hardware.processor import available_memory_bytes, keep_memory
from lightkit.reports.text_table import format_table
from lightkit.runs.files import find_value, finite
from lightkit.runs.signals import SignalWatch

if TYPE_CHECKING:
    from lightkit.cli.model_builder import TrialBuilder
    from lightkit.cli.stage_config import StageConfig
    from lightkit.tuning.benchmark import Benchmark, Variant

_HEAD = ("setting", "ms a step", "samples/s", "gain", "")
_LEAST_GAIN = 1.05
"""A larger batch is worth its memory where it gives more than this times as many samples a
second."""


def tune(invocation: Invocation) -> int:
    """Measure, print what was found, write the layer, and return the exit code.

    Args:
        invocation: The command line.

    Raises:
        LightkitError: If the arguments, the config or the data are wrong.
    """
    if invocation.has("run"):
        raise ConfigError(
            "tune: --run is no option of it; -c RUN/config.yaml names the config of a run"
        )
    output = Path(invocation.get("output"))
    _check_output(output)
    with SignalWatch():
        keep_memory()  # as fit does
        stage_config = open_command_config(invocation.for_stage("fit", keep=("quiet", "trust")))
        for notice in stage_config.hardware.notices:
            logging.getLogger("lightkit").warning(notice)
        keys = _list_open_keys(stage_config.resolved, stage_config.hardware.chosen)
        found = _list_searches(invocation, stage_config.resolved)
        if not keys and not found:
            raise ConfigError(
                "tune: the config fixes all settings for speed; set accelerator.precision: auto"
            )
        quiet_libraries()
        explained = explain_lightning_errors(stage_config.resolved)
        budget_s = invocation.options.get("budget", math.inf)
        # standard output has the result, and not what the user's code prints
        with ExitStack() as stack, redirect_stdout(sys.stderr), explained:
            lines, benchmark = _measure(stage_config, stack, keys, found, budget_s=budget_s)
    rows = [
        f"  {dump_yaml({key: value}).strip()}  # {text}\n" for key, (value, text) in lines.items()
    ]
    block = (
        f"accelerator:\n{''.join(rows)}"
        if rows
        else "accelerator: {}  # nothing that was tried gains\n"
    )
    head = (
        f"# {shlex.join(['lightkit', 'tune', *invocation.words])}\n# measured on"
        f" {this_machine().cpu}\n"
    )
    layer = stage_config.resolved.masked(f"{head}{block}")
    output.write_text(layer, encoding="utf-8")
    if invocation.has("json"):
        print(stage_config.resolved.masked(json.dumps(_describe(lines, benchmark), indent=2)))
        return 0
    if stage_config.mode != "quiet":
        _print_trials(benchmark)
        print(f"\n{shown_path(output)}:")
    print(layer, end="")
    return 0


def _check_output(output: Path) -> None:
    """Check that the layer can be written.

    Raises:
        ConfigError: If it cannot.
    """
    if output.is_dir() or not output.parent.is_dir():
        raise ConfigError(f"tune: --output {output}: expected a file in a folder that exists")
    check_writable(output.parent, setting="tune: --output")


def _list_searches(invocation: Invocation, resolved: Resolved) -> list[str]:
    """List what Lightning's Tuner is to find.

    Raises:
        ConfigError: If the config's classes have no such argument.
    """
    found = [option for option in ("batch-size", "learning-rate") if invocation.has(option)]
    for option in found:
        key = option.replace("-", "_")
        setting = Setting(("accelerator", key), Leaf("auto", Origin("flag", f"--{option}")))
        target_key(key, setting, resolved)
    return found


def _list_open_keys(resolved: Resolved, chosen: Collection[str]) -> list[str]:
    """List the settings for speed that the config does not fix.

    Args:
        resolved: The config.
        chosen: Keys that are set by the rule for auto.
    """
    values = resolved.values
    homes = {key: ("accelerator", key) for key in ("memory_format", "compile", "fused", "tf32")}
    if not resolved.section("trainer").get("plugins"):  # one of them may decide it
        homes["precision"] = "trainer", "precision"
    if find_user_threads() is None:
        homes["threads"] = "launch", "threads"
    keys = [
        key
        for key, home in homes.items()
        if find_value(values, *home) is None or ".".join(home) in chosen
    ]
    if _has_open_workers(values.get("data"), chosen):
        keys.append("num_workers")
    return keys


def _has_open_workers(data: Any, chosen: Collection[str]) -> bool:
    """Return whether the config has data, and does not fix its number of workers."""
    if not data:
        return False
    num_workers = find_value(data.get("init_args", data), "num_workers")
    is_chosen = "data.init_args.num_workers" in chosen
    return is_chosen or num_workers in ("auto", None)


def _measure(
    stage_config: StageConfig,
    stack: ExitStack,
    keys: list[str],
    options: Collection[str],
    *,
    budget_s: float,
) -> tuple[dict[str, tuple[Any, str]], Benchmark]:
    """Measure the open settings.

    Memory format and precision together, since some gain only together; then one by one.

    Returns:
        By key of the section `accelerator`: the value that gained, and its number as text; and all
        trials.
    """
    with freezing_imports():  # here: they load torch, and arguments and config are checked before
        import torch

        from lightkit.callbacks.computation import missing_for_compiling
        from lightkit.cli.model_builder import TrialBuilder
        from lightkit.cli.session import StageProcess
        from lightkit.tuning.benchmark import Benchmark, Variant

    _silence_trials()
    builder = TrialBuilder(stage_config=stage_config, process=StageProcess(stack=stack))
    section = builder.config["fit"]
    seed = int(section["seed_everything"] or 0)
    precision = str(section["trainer"]["precision"] or "32-true")
    base = Variant(
        PRECISIONS.get(precision, precision),
        **section["accelerator"].as_dict(),
        threads=stage_config.launch.threads or torch.get_num_threads(),
    )
    device = builder.build(base)[0].strategy.root_device.type
    keys = [key for key in keys if key != "compile" or missing_for_compiling(device) is None]

    def measure(base: Variant) -> Benchmark:
        reference = replace(base, precision="32-true") if "precision" in keys else base
        return Benchmark(
            builder.build,
            base,
            reference=reference,
            seed=seed,
            budget_s=budget_s,
            report=logging.getLogger("lightkit").info,
        )

    # The batch size comes first: the other settings are measured with it.
    lines: dict[str, tuple[Any, str]] = {}
    if "batch-size" in options:
        base, gained = _measure_batch_size(builder, base, measure)
        if gained is not None:
            lines["batch_size"] = gained

    benchmark = measure(base)
    _consider_formats(benchmark, base, keys, device)
    _consider_changes(benchmark, keys, device)
    best = benchmark.best.variant
    if "num_workers" in keys:
        _consider_workers(benchmark, builder)
    for key, found in benchmark.gained.items():
        if found[0] != getattr(base, key):  # a setting may have been changed, and back again
            lines[key] = found

    if "learning-rate" in options:
        lines |= _measure_learning_rate(builder, best)
    return lines, benchmark


def _measure_learning_rate(builder: TrialBuilder, best: Variant) -> dict[str, tuple[Any, str]]:
    """Measure the learning rate with the best settings; nothing, with a warning, without one."""
    from lightkit.tuning.benchmark import find_learning_rate  # here: it loads torch

    rate, text = find_learning_rate(builder.build(best))
    if rate is None:
        logging.getLogger("lightkit").warning("tune: no learning rate was found: %s", text)
        return {}
    return {"learning_rate": (rate, f"a tenth of the rate of the least loss: {text}")}


def _silence_trials() -> None:
    """Silence the warnings of the trials; the training has them too."""
    warnings.simplefilter("ignore")
    for name in ("pytorch_lightning", "lightning_fabric", "lightkit.data", "lightkit.models"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _measure_batch_size(
    builder: TrialBuilder, base: Variant, measure: Callable[[Variant], Benchmark]
) -> tuple[Variant, tuple[int, str] | None]:
    """Measure the largest batch size that fits into memory beside the config's.

    Args:
        builder: Builds the model and data of a trial.
        base: The settings of the config.
        measure: Measures variants of settings.

    Returns:
        The settings to go on with; and, if it is faster, the size with its number as text.

    Raises:
        ConfigError: If the data has no argument `batch_size`.
    """
    from lightkit.tuning.benchmark import find_batch_size  # here: it loads torch

    first = builder.data_arguments.get("batch_size")
    if not isinstance(first, int):
        raise ConfigError("tune: --batch-size: the config's data has no argument batch_size")
    with _limit_memory():
        size = find_batch_size(builder.build(base), first)
    trials = [measure(replace(base, batch_size=each)).best for each in (first, size)]
    first_rate, rate = [(trial.batch_size or 0) / trial.step_s for trial in trials]
    if rate <= _LEAST_GAIN * first_rate:
        return base, None
    size = trials[1].batch_size or size  # the data may have fewer samples
    text = f"{rate:.4g} samples/s, with {first} {first_rate:.4g}; the learning rate is not scaled"
    return replace(base, batch_size=size), (size, text)


def _consider_formats(
    benchmark: Benchmark, base: Variant, keys: Collection[str], device: str
) -> None:
    """Measure each precision with each memory format."""
    precisions: list[str] = [base.precision]
    if "precision" in keys:
        accelerator = {"cuda": "gpu"}.get(device, device)
        lower = choose_settings(accelerator, this_machine(), processes=1)[1]["precision"]
        precisions = list(dict.fromkeys((lower or "32-true", "32-true")))
    memory_formats: list[str | None] = [base.memory_format]
    if "memory_format" in keys:
        memory_formats = ["channels_last", "contiguous"]
    for precision in precisions:
        for memory_format in memory_formats:
            benchmark.consider(precision=precision, memory_format=memory_format)


def _consider_changes(benchmark: Benchmark, keys: Collection[str], device: str) -> None:
    """Measure the other settings of the computation one by one."""
    cores = this_machine().cores or 1
    changes: list[tuple[str, Any]] = [("fused", True)]
    if device == "cuda":
        changes.append(("tf32", True))
    changes.append(("compile", True))
    if device == "cpu":
        changes.extend(
            ("threads", number) for number in (cores, cores - 1, cores // 2) if number > 0
        )
    for key, value in changes:
        if key in keys:
            benchmark.consider(**{key: value})


def _consider_workers(benchmark: Benchmark, builder: TrialBuilder) -> None:
    """Measure numbers of workers, where the data has that argument."""
    if "num_workers" not in builder.data_arguments:
        return
    cores = this_machine().cores or 1
    benchmark.start_loading(builder.data_arguments["num_workers"])
    for number in sorted({0, 1, cores // 2, cores - 1}):
        benchmark.consider(num_workers=number)


@contextmanager
def _limit_memory() -> Iterator[None]:
    """Limit memory to nine tenths of what is free.

    So an allocation fails before the kernel ends the process.
    """
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
    trials = [
        {**asdict(trial), "step_s": trial.step_s if trial.times else None}
        for trial in benchmark.trials.values()
    ]
    chosen = {key: value for key, (value, _) in lines.items()}
    gain = benchmark.gain_of(benchmark.best)  # infinite where what fit does could not be measured
    described: dict[str, Any] = finite(
        {"schema": 3, "chosen": chosen, "gain": round(gain, 3), "trials": trials}
    )
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
