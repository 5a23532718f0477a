"""From a built model, or one that is logged in MLflow, to verified files.

With what is printed of them.
"""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pytorch_lightning import LightningDataModule, LightningModule
from pytorch_lightning.trainer.states import RunningStage, TrainerFn
from torch import nn

from lightkit import runs
from lightkit.callbacks import VerifiedCheckpointIO
from lightkit.callbacks.class_names import describe_other_classes, read_trained_classes
from lightkit.cli.command_line import Invocation, refuse_without_effect
from lightkit.cli.console import (
    OutputMode,
    choose_output_mode,
    configure_console,
    print_line,
    quiet_libraries,
)
from lightkit.cli.notifications import IN_RETRAIN
from lightkit.cli.validation import explain_unwritable
from lightkit.config import shown_path
from lightkit.config.run_root import find_run_root
from lightkit.errors import ConfigError, ExportError, format_count, visible
from lightkit.export.bare_trainer import build_bare_trainer
from lightkit.export.exporter import export
from lightkit.export.formats import FORMATS
from lightkit.export.module_export import export_by_module, require_hooks
from lightkit.export.options import MODULE_FORMAT, ExportOptions
from lightkit.export.target import ExportTarget, check_self_consistency, make_target
from lightkit.reports.text_table import format_table
from lightkit.runs.files import in_bytes
from lightkit.task import find_class_names

if TYPE_CHECKING:
    from lightkit.cli.stage_config import StageConfig

_log = logging.getLogger("lightkit")


def export_model(
    stage_config: StageConfig, module: LightningModule, data: LightningDataModule | None
) -> None:
    """Export the model of a config, a run or a script.

    Args:
        stage_config: The invocation.
        module: The model, without its weights.
        data: The data, if there is any.

    Raises:
        ConfigError: If the options do not fit the model, or its inputs cannot be found.
        DataError: If data is missing.
        ExportError: If a file cannot be made, or differs from its model.
    """
    options = ExportOptions.parse(stage_config.options)
    folder = _choose_folder(
        options,
        Path("export") if stage_config.base is None else stage_config.base.folder / "export",
    )
    source = load_model(
        module, data, Path(stage_config.ckpt_path) if stage_config.ckpt_path else None
    )
    if source and stage_config.base is not None:
        source["run"] = f"{stage_config.base.name}/{stage_config.base.id}"
    trained = read_trained_classes(stage_config.ckpt_path)
    other_classes = describe_other_classes(trained, data)
    if other_classes is not None:
        _log.warning("the export is not scored: %s", other_classes)
    require_hooks(module, options.module_formats)
    trainer = module.trainer  # which `make_target` takes away
    on_step = partial(print_step, stage_config.mode)
    artefacts: list[dict[str, Any]] = []
    failures: list[str] = []
    if options.own_formats:
        target = make_target(
            module,
            data,
            options,
            source=source,
            class_names=trained.outputs,
            not_scored=other_classes or "",
        )
        _print_target(target, folder, stage_config.mode)
        artefacts, failures = export(target, folder, options, on_step=on_step)
    else:
        _print_module(module, source, folder, stage_config.mode)
    if options.module_formats:
        module.trainer = trainer
        own, failed = export_by_module(
            module,
            folder,
            options.module_formats,
            source=source,
            class_names=trained.outputs or find_class_names(module, data),
            on_step=on_step,
        )
        artefacts += own
        failures += failed
    _print_result(artefacts, failures, folder, stage_config.mode)


def export_logged_model(invocation: Invocation) -> int:
    """Export a model that is logged in MLflow, and return the exit code.

    Args:
        invocation: The command line. Of keys, ``run.root`` alone has an effect: MLflow's default
            database is there.

    Raises:
        ConfigError: If an option is wrong or has no effect on such a model, or there is no such
            model.
        ServerAway: If MLflow does not answer.
        ExportError: If a file cannot be made, or differs from its model.
    """
    given = invocation.options
    options = ExportOptions.parse(given)
    uri = str(given["run"])
    refuse_without_effect(
        invocation,
        f"{uri}, a model that is exported as it was logged; the variable MLFLOW_TRACKING_URI says"
        " where MLflow is",
        options=("ckpt_path", "print_config", "with-preprocessing", "input-shape", "int8"),
        keys=("run.root",),
    )
    from lightkit.registry.logged_model import load_logged_model  # here: it loads MLflow

    if options.module_formats:
        raise ConfigError(
            f"--format {MODULE_FORMAT}{options.module_formats[0]}: {uri} is a model as it was"
            " logged, which does not export itself; expected one of "
            + ", ".join(FORMATS)
            + ". Export the run that it is of."
        )
    mode = choose_output_mode(given, is_path=True)
    configure_console(mode)
    quiet_libraries()
    folder = _choose_folder(options, Path("export"))
    root = find_run_root(invocation.overrides)
    target = load_logged_model(
        uri, trust=bool(given.get("trust")), root=root, num_samples=options.num_samples
    )
    check_self_consistency(target)
    _print_target(target, folder, mode)
    _print_result(*export(target, folder, options, on_step=partial(print_step, mode)), folder, mode)
    return 0


def _choose_folder(options: ExportOptions, default: Path) -> Path:
    """Return the folder of the files, which is checked before anything is built."""
    folder = options.output or default
    if (error := explain_unwritable(folder, setting="--output")) is not None:
        raise error
    return folder


def _print_target(target: ExportTarget, folder: Path, mode: OutputMode) -> None:
    """Print what is exported, from and to where, and on what it is proved."""
    samples = target.samples
    num_samples = len(samples.names)
    origin = _describe_origin(target.metadata.source)
    if mode == "json":
        runs.print_event(
            "start", origin=origin, folder=str(folder), samples=num_samples, source=samples.source
        )
    print_line(f"model {_describe_module(target.module)}", mode)
    print_line(f"from  {origin}", mode)
    print_line(f"proof {format_count(num_samples, 'sample')}: {samples.source}", mode)
    print_line(f"to    {shown_path(folder)}", mode)


def _print_module(
    module: LightningModule, source: Mapping[str, str], folder: Path, mode: OutputMode
) -> None:
    """Print what exports itself, from and to where."""
    origin = _describe_origin(source)
    proof = f"{type(module).__name__}.check_export"
    if mode == "json":
        runs.print_event("start", origin=origin, folder=str(folder), samples=None, source=proof)
    print_line(f"model {_describe_module(module)}", mode)
    print_line(f"from  {origin}", mode)
    print_line(f"proof {proof}", mode)
    print_line(f"to    {shown_path(folder)}", mode)


def _describe_origin(source: Mapping[str, str]) -> str:
    origin = source.get("checkpoint") or source.get("model") or "an untrained model"
    epoch = f" (epoch {source['epoch']})" if "epoch" in source else ""
    return f"{origin}{epoch}"


def _describe_module(module: nn.Module) -> str:
    backbone = getattr(module, "backbone", None)
    name = f"{type(module).__name__}{f' on {backbone}' if isinstance(backbone, str) else ''}"
    return f"{name}: {sum(each.numel() for each in module.parameters()):,} parameters"


def _print_result(
    artefacts: Sequence[Mapping[str, Any]], failures: Sequence[str], folder: Path, mode: OutputMode
) -> None:
    """Print the files, and what to type next.

    Raises:
        ExportError: If a file could not be made, or differs from its model.
    """
    if artefacts and mode == "json":
        runs.print_event("export", folder=str(folder), artefacts=artefacts)
    elif artefacts and mode != "quiet":
        print_report(artefacts)
        print_line(f"files {shown_path(folder)}", mode)
        usable = [entry for entry in artefacts if entry.get("preprocessing") or entry.get("rows")]
        if usable and IN_RETRAIN not in os.environ:
            first = min(usable, key=lambda entry: [*FORMATS].index(entry["format"]))
            file = shown_path(folder / first["file"])
            words = "FILE" if first.get("rows") else "IMAGES"
            print_line(
                f"next  {shlex.join(['lightkit', 'predict', '--model', file])} {words}", mode
            )
    if failures:
        raise ExportError("\nerror: ".join(failures))


def print_step(mode: OutputMode, text: str) -> None:
    """Print a step: an event for programs, else a line."""
    if mode == "json":
        runs.print_event("step", message=text)
    else:
        print_line(f"      {text}", mode)


def print_report(artefacts: Sequence[Mapping[str, Any]]) -> None:
    """Print each file and the eager model as a table on standard output.

    Print below it what the table cannot hold.

    Args:
        artefacts: Entries of export.json.
    """
    of_module = [entry for entry in artefacts if entry["format"].startswith(MODULE_FORMAT)]
    artefacts = [entry for entry in artefacts if entry not in of_module]
    if artefacts:
        _print_proofs(artefacts)
    if of_module:
        rows = [
            [entry["file"], in_bytes(entry["size_bytes"]), _list_figures(entry["checked"])]
            for entry in of_module
        ]
        print(format_table(("file", "size", "checked"), rows, right=("size",)))
        print(
            "Proved by the module's own test:"
            f" {of_module[0]['metrics']['reason'].partition(' ')[0]}."
        )


def _list_figures(figures: Mapping[str, Any]) -> str:
    texts = []
    for name, value in figures.items():
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        texts.append(f"{name} {visible(text, in_line=True)}")
    return ", ".join(texts)


def _print_proofs(artefacts: Sequence[Mapping[str, Any]]) -> None:
    """Print the files that lightkit has proved, with their latency."""
    names = [name for entry in artefacts for name in entry["metrics"].get("eager", ())]
    metric = next((name for name in names if "acc" in name), [*names, "metric"][0])

    def row(name: str, size: str, gap: str, entry: Mapping[str, Any], which: str) -> list[str]:
        value = entry["metrics"].get(which, {}).get(metric)
        latency = entry["latency"][which]
        cells = [
            f"{_format_ms(each['median_s'])} ({_format_ms(each['p95_s'])})"
            for each in latency.values()
        ]
        speed = f"{32 / latency['32']['median_s']:.0f}"
        return [name, size, gap, "" if value is None else f"{value:.4f}", *cells, speed]

    rows = [row("eager model", "", "", artefacts[0], "eager")]
    for entry in artefacts:
        gap = max(each["max_abs"] for each in entry["parity"].values())
        rows.append(
            row(entry["file"], in_bytes(entry["size_bytes"]), f"{gap:.1e}", entry, "exported")
        )
    numbers = ("size", "max gap", metric, "batch 1, ms", "batch 32, ms", "samples/s")
    num_samples = artefacts[0]["samples"]
    threads = artefacts[0]["threads"]
    print(format_table(("file", *numbers), rows, right=numbers))
    print(
        f"Verified in a fresh process on {format_count(num_samples, 'sample')} at batch 1, 7 and"
        f" 32. Latency: median (95th percentile), {format_count(threads, 'thread')}."
    )
    for reason in {
        entry["metrics"]["reason"]: None for entry in artefacts if not entry["metrics"]["scored"]
    }:
        print(f"Not scored: {reason}.")


def _format_ms(time_s: float) -> str:
    return f"{time_s * 1e3:.1f}" if time_s >= 1e-3 else f"{time_s * 1e3:.2g}"  # 0.038


def load_model(
    module: LightningModule, data: LightningDataModule | None, checkpoint: Path | None
) -> dict[str, str]:
    """Set a model and its data up as Lightning does before it validates, and load the weights.

    Afterwards the module is in eval mode and in float32 (or float64, where its class chose that).
    The data is set up as for `fit`, which by Lightning's contract is the training and the
    validation split.

    Args:
        module: The model, as its class makes it.
        data: The data, as its class makes it.
        checkpoint: File of the weights; None leaves the model untrained.

    Returns:
        Origin of the weights: ``checkpoint``, its ``epoch`` and ``sha256``; empty without one.

    Raises:
        LightkitError: If the checkpoint cannot be read or does not fit, or the data is missing.
    """
    trainer = build_bare_trainer(VerifiedCheckpointIO())
    trainer.strategy.connect(module)
    module.trainer = trainer
    trainer.state.fn = TrainerFn.VALIDATING
    trainer.state.stage = RunningStage.VALIDATING
    if data is not None:
        trainer._data_connector.attach_datamodule(module, data)
        data.prepare_data()
        data.setup("fit")
    module.prepare_data()
    module.setup("validate")
    module.configure_model()
    source: dict[str, str] = {}
    if checkpoint is None:
        _log.warning("the model is untrained: neither --run nor --ckpt_path names a checkpoint")
        # of our models: what training would start from
        load_weights = getattr(module, "load_weights", None)
        if callable(load_weights):
            load_weights()
    else:
        source = {
            "checkpoint": shown_path(checkpoint),
            "sha256": runs.digest_checkpoint(checkpoint),
        }
        connector = trainer._checkpoint_connector
        connector.resume_start(checkpoint, weights_only=not runs.is_trusting())
        if (epoch := connector._loaded_checkpoint.get("epoch")) is not None:
            source["epoch"] = str(epoch)
        connector.restore_model()
        connector.restore_datamodule()
    module.eval()
    if any(parameter.dtype in (torch.float16, torch.bfloat16) for parameter in module.parameters()):
        module.float()
    return source
