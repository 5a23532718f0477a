"""From a built model to verified files."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytorch_lightning import LightningDataModule, LightningModule

from lightkit.callbacks.class_names import describe_other_classes, read_trained_classes
from lightkit.cli.console import print_step
from lightkit.cli.export_display import print_result, print_start, print_target
from lightkit.cli.model_loading import load_model
from lightkit.cli.validation import check_writable
from lightkit.export.exporter import export
from lightkit.export.module_export import export_by_module, require_hooks
from lightkit.export.options import ExportOptions
from lightkit.export.target import make_target
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
    folder = options.output or _find_default_folder(stage_config)
    check_writable(folder, setting="--output")
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
        print_target(target, folder, stage_config.mode)
        artefacts, failures = export(target, folder, options, on_step=on_step)
    else:
        proof = f"{type(module).__name__}.check_export"
        print_start(module, source, folder, stage_config.mode, proof=proof)
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
    print_result(artefacts, failures, folder, stage_config.mode)


def _find_default_folder(stage_config: StageConfig) -> Path:
    """Return the folder of the files where no option names one: in that of the run, if any."""
    parent = Path() if stage_config.base is None else stage_config.base.folder
    return parent / "export"
