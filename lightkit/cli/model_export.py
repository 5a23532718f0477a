"""From a built model, or one that is logged in MLflow, to verified files, with what is printed of them."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import LightningDataModule, LightningModule
from pytorch_lightning.trainer.states import RunningStage, TrainerFn
from torch import Tensor

from lightkit import runs
from lightkit.callbacks import VerifiedCheckpointIO
from lightkit.cli.command_line import refuse_without_effect
from lightkit.cli.console import (
    OutputMode,
    choose_output_mode,
    configure_console,
    format_table,
    print_line,
    quiet_libraries,
)
from lightkit.cli.context import RunContext
from lightkit.cli.notifications import IN_RETRAIN
from lightkit.cli.validation import explain_unwritable
from lightkit.config import Arguments, shown_path
from lightkit.errors import ConfigError, ExportError
from lightkit.export.bare_trainer import build_bare_trainer
from lightkit.export.exporter import export
from lightkit.export.formats import FORMATS
from lightkit.export.options import ExportOptions
from lightkit.export.samples import (
    EvaluationSamples,
    check_preprocessing,
    check_self_consistency,
    draw_samples,
    make_random_samples,
    read_calibration,
)
from lightkit.export.target import (
    ExportTarget,
    describe_value,
    example_from_module,
    example_from_shapes,
    include_preprocessing,
    make_target,
)
from lightkit.runs.files import in_bytes

_log = logging.getLogger("lightkit")


def export_model(context: RunContext, module: LightningModule, data: LightningDataModule | None) -> None:
    """Export the model of a config, a run or a script.

    Args:
        context: The invocation.
        module: The model, without its weights.
        data: The data, if there is any.

    Raises:
        ConfigError: If the options do not fit the model, or its inputs cannot be found.
        DataError: If data is missing.
        ExportError: If a file cannot be made, or differs from its model.
    """
    options = ExportOptions.parse(context.options)
    folder = options.output or (Path("export") if context.base is None else context.base.folder / "export")
    _check_before_build(options, folder)
    target, samples, origin = build_target(context, module, data, options)
    _write_files(target, samples, origin, folder, options, context.mode)


def export_logged_model(arguments: Arguments) -> int:
    """Export a model that is logged in MLflow, and return the exit code.

    Args:
        arguments: The command line. Of keys, ``run.root`` alone has an effect: MLflow's default database is there.

    Raises:
        ConfigError: If an option is wrong or has no effect on such a model, or there is no such model.
        ServerAway: If MLflow does not answer.
        ExportError: If a file cannot be made, or differs from its model.
    """
    given = arguments.options
    options, uri = ExportOptions.parse(given), str(given["run"])
    refuse_without_effect(
        arguments,
        f"{uri}, a model that is exported as it was logged; the variable MLFLOW_TRACKING_URI says where MLflow is",
        options=("ckpt_path", "print_config", "with-preprocessing", "input-shape", "int8"),
        keys=("run.root",),
    )
    from lightkit.registry.logged_model import load_logged_model  # here: it loads MLflow

    mode = choose_output_mode(given, is_path=True)
    configure_console(mode)
    quiet_libraries()
    folder = options.output or Path("export")
    _check_before_build(options, folder)
    root = next((flag.value for flag in reversed(arguments.flags) if flag.key == "run.root"), "runs")
    trust = bool(given.get("trust"))
    target, samples = load_logged_model(uri, trust=trust, root=Path(root), num_samples=options.num_samples)
    if "torchscript" in options.formats and isinstance(target.plain, torch.fx.GraphModule):
        raise ConfigError(
            f"--format torchscript: {uri} is a graph of torch.export, which has no TorchScript form. Export its run, "
            "or register it with --format torchscript."
        )
    check_self_consistency(target, samples)
    _write_files(target, samples, uri, folder, options, mode)
    return 0


def build_target(
    context: RunContext, module: LightningModule, data: LightningDataModule | None, options: ExportOptions
) -> tuple[ExportTarget, EvaluationSamples, str]:
    """Load the weights, find ``forward``'s inputs, and draw the samples of the proof.

    Args:
        context: The invocation: its checkpoint and its run.
        module: The model, without its weights.
        data: The data, if there is any.
        options: Of the export.

    Returns:
        The model, its samples, and the origin of its weights.

    Raises:
        ConfigError: If the inputs cannot be found, or the preprocessing cannot go into the graph.
        ExportError: If ``forward`` fails, returns NaN, or something else each time.
    """
    checkpoint = Path(context.ckpt_path) if context.ckpt_path else None
    if checkpoint is None:
        _log.warning("the model is untrained: neither --run nor --ckpt_path names a checkpoint")
    epoch, sha256 = load_model(module, data, checkpoint)
    example, samples = _find_example(module, data, options)
    names = getattr(module, "class_names", None) or getattr(data, "class_names", None)
    module.trainer = None  # it is no part of the model, and would be pickled with it
    source, origin = {}, "an untrained model"
    if checkpoint is not None:
        source = {"checkpoint": shown_path(checkpoint), "sha256": str(sha256)}
        source |= {"run": f"{context.base.name}/{context.base.id}"} if context.base else {}
        origin = shown_path(checkpoint) + ("" if epoch is None else f" (epoch {epoch})")
    plain = make_target(
        module,
        example,
        class_names=names if isinstance(names, (list, tuple)) else None,
        preprocessing=getattr(data, "preprocessing", None),
        source=source,
    )
    calibration = partial(read_calibration, module, data, in_graph=options.with_preprocessing)
    plain = replace(plain, calibration=calibration)
    preprocessing = plain.metadata.preprocessing
    if preprocessing is not None:
        check_preprocessing(samples, preprocessing)
    check_self_consistency(plain, samples)
    if not options.with_preprocessing:
        return plain, samples, origin
    target = include_preprocessing(plain)
    if samples.load_image is None:
        raise ConfigError(
            f"--with-preprocessing: the export is verified on images, and {type(data).__name__} gives none. Expected a "
            "method `untransformed(split)` that returns the `(PIL image, label)` of each sample by its index."
        )
    return target, samples, origin


def _find_example(
    module: LightningModule, data: LightningDataModule | None, options: ExportOptions
) -> tuple[tuple[Tensor, ...], EvaluationSamples]:
    """Find an example of ``forward``'s inputs, and samples of them: real ones if there is data."""
    example, origin = example_from_module(module), "example_input_array"
    if options.input_shapes:
        example, origin = example_from_shapes(module, options.input_shapes), "--input-shape"
    reason = "there are no data"
    samples = draw_samples(module, data, options.num_samples)
    if samples is not None:
        if example is None:
            return tuple(tensor[:2] for tensor in samples.inputs), samples
        one, wanted = (" and ".join(describe_value(t[0]) for t in inputs) for inputs in (samples.inputs, example))
        if one == wanted:
            return example, samples
        reason = f"a sample of the {samples.source} is {one}, and the export is for {wanted}"
    if example is None:
        raise ConfigError(
            f"{type(module).__name__}: what forward takes is unknown: there are no data, and no example_input_array. "
            "Say --input-shape, such as --input-shape 1,3,224,224."
        )
    samples = make_random_samples(example, options.num_samples, source=origin)
    _log.warning("the proof is weaker: %s, so that it is made on %s", reason, samples.source)
    return example, samples


def _check_before_build(options: ExportOptions, folder: Path) -> None:
    options.check()
    if (error := explain_unwritable(folder, setting="--output")) is not None:
        raise error


def _write_files(
    target: ExportTarget,
    samples: EvaluationSamples,
    origin: str,
    folder: Path,
    options: ExportOptions,
    mode: OutputMode,
) -> None:
    """Write and verify the files, and print the result.

    Raises:
        ExportError: If a file cannot be made, or differs from its model.
    """
    num_samples, backbone = len(samples.names), getattr(target.plain, "backbone", None)
    name = f"{type(target.plain).__name__}{f' on {backbone}' if isinstance(backbone, str) else ''}"
    if mode == "json":
        runs.print_event("start", origin=origin, folder=str(folder), samples=num_samples, source=samples.source)
    print_line(f"model {name}: {sum(each.numel() for each in target.plain.parameters()):,} parameters", mode)
    print_line(f"from  {origin}", mode)
    print_line(f"proof {num_samples} samples: {samples.source}", mode)
    print_line(f"to    {shown_path(folder)}", mode)
    artefacts, failures = export(target, samples, folder, options, on_step=partial(print_step, mode))
    if artefacts and mode == "json":
        runs.print_event("export", folder=str(folder), artefacts=artefacts)
    elif artefacts and mode != "quiet":
        print_report(artefacts)
        print_line(f"files {shown_path(folder)}", mode)
        for_images = [entry for entry in artefacts if entry["preprocessing"]]
        if for_images and IN_RETRAIN not in os.environ:
            first = min(for_images, key=lambda entry: [*FORMATS].index(entry["format"]))
            file = shown_path(folder / first["file"])
            print_line(f"next  {shlex.join(['lightkit', 'predict', '--model', file])} IMAGES", mode)
    if failures:
        raise ExportError("\nerror: ".join(failures))


def print_step(mode: OutputMode, text: str) -> None:
    """Print a step: an event for programs, else a line."""
    if mode == "json":
        runs.print_event("step", message=text)
    else:
        print_line(f"      {text}", mode)


def print_report(artefacts: Sequence[Mapping[str, Any]]) -> None:
    """Print each file and the eager model as a table on standard output, and below it what the table cannot hold.

    Args:
        artefacts: Entries of export.json.
    """
    names = [name for entry in artefacts for name in entry["metrics"].get("eager", ())]
    metric = next((name for name in names if "acc" in name), names[0] if names else "metric")

    def row(name: str, size: str, gap: str, entry: Mapping[str, Any], which: str) -> list[str]:
        value, latency = entry["metrics"].get(which, {}).get(metric), entry["latency"][which]
        cells = [f"{_format_ms(each['median_s'])} ({_format_ms(each['p95_s'])})" for each in latency.values()]
        speed = f"{32 / latency['32']['median_s']:.0f}"
        return [name, size, gap, "" if value is None else f"{value:.4f}", *cells, speed]

    rows = []
    eager = {entry["in_graph"]: entry for entry in reversed(artefacts)}  # by its inputs
    for in_graph in sorted(eager, reverse=True):
        name = f"eager, from {'images' if in_graph else 'tensors'}" if len(eager) > 1 else "eager model"
        rows.append(row(name, "", "", eager[in_graph], "eager"))
    for entry in artefacts:
        gap = max(each["max_abs"] for each in entry["parity"].values())
        rows.append(row(entry["file"], in_bytes(entry["size_bytes"]), f"{gap:.1e}", entry, "exported"))
    numbers = ("size", "max gap", metric, "batch 1, ms", "batch 32, ms", "samples/s")
    first, notes = artefacts[0], [f"{entry['file']}: by {entry['how']}" for entry in artefacts if entry["how"]]
    reasons = {entry["metrics"]["reason"] for entry in artefacts if not entry["metrics"]["scored"]}
    for text in (
        format_table(("file", *numbers), rows, right=numbers),
        f"Verified in a fresh process on {first['samples']} samples at batch 1, 7 and 32. "
        f"Latency: median (95th percentile), {first['threads']} thread{'s'[: first['threads'] > 1]}.",
        *(f"Not scored: {reason}." for reason in sorted(reasons)),
        *notes,
    ):
        print(text)


def _format_ms(time_s: float) -> str:
    return f"{time_s * 1e3:.1f}" if time_s >= 1e-3 else f"{time_s * 1e3:.2g}"  # 0.038


def load_model(
    module: LightningModule, data: LightningDataModule | None, checkpoint: Path | None
) -> tuple[int | None, str | None]:
    """Set a model and its data up as Lightning does before it validates, and load the weights.

    Afterwards the module is in eval mode and in float32 (or float64, where its class chose that). The data is set up
    as for `fit`, which by Lightning's contract is the training and the validation split.

    Args:
        module: The model, as its class makes it.
        data: The data, as its class makes it.
        checkpoint: File of the weights; None leaves the model untrained.

    Returns:
        The epoch and the SHA-256 of the checkpoint; None where there is none.

    Raises:
        LightkitError: If the checkpoint cannot be read or does not fit, or the data is missing.
    """
    trainer = build_bare_trainer(VerifiedCheckpointIO())
    trainer.strategy.connect(module)
    module.trainer = trainer
    trainer.state.fn, trainer.state.stage = TrainerFn.VALIDATING, RunningStage.VALIDATING
    if data is not None:
        trainer._data_connector.attach_datamodule(module, data)
        data.prepare_data()
        data.setup("fit")
    module.prepare_data()
    module.setup("validate")
    module.configure_model()
    if checkpoint is None:
        load_weights = getattr(module, "load_weights", None)  # of our models: what training would start from
        if callable(load_weights):
            load_weights()
        epoch = sha256 = None
    else:
        sha256 = runs.digest(checkpoint)
        connector = trainer._checkpoint_connector
        connector.resume_start(checkpoint, weights_only=not runs.is_trusting())
        epoch = connector._loaded_checkpoint.get("epoch")
        connector.restore_model()
        connector.restore_datamodule()
        connector._loaded_checkpoint = {}
    module.eval()
    if any(parameter.dtype in (torch.float16, torch.bfloat16) for parameter in module.parameters()):
        module.float()
    return epoch, sha256
