"""Today's spelling of the arguments and classes of Lightning 1.x: one table for each.

Sources: Lightning's changelog, its guides "Upgrade from 1.4 to the 2.0" to "from 1.9", and
`pytorch_lightning._graveyard`. What hardware keys mean is in `lightkit.config.accelerator`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from lightkit.config.accelerator.vocabulary import (
    GONE_DEVICES,
    GONE_STRATEGIES,
    HOROVOD,
    OLD_TRAINER_KEYS,
    TRAINER_DEFAULTS,
)

KEEP = object()
"""The old value, as it is written."""
Keys = dict[str, Any]
Result = Keys | str | None
"""Keys that replace an argument (``{}``: it is removed), advice with which it is refused, or None:
it stays."""


class Rule(NamedTuple):
    """Today's spelling of one argument.

    Args:
        reason: What Lightning changed.
        convert: From its value and those of all arguments of the trainer or class. It returns
            arguments of the same trainer or class; a key with a dot is one in a section, such as
            ``callbacks.NAME``.
    """

    reason: str
    convert: Callable[[Any, Mapping[str, Any]], Result]


def _rename(key: str) -> Callable[[Any, Mapping[str, Any]], Result]:
    return lambda *_: {key: KEEP}


def _rename_switch(key: str) -> Callable[[Any, Mapping[str, Any]], Result]:
    advice = f"say {key}: true or false, and name a class under callbacks"
    return lambda value, _: (
        advice if isinstance(value, (dict, list)) else {} if value is None else {key: KEEP}
    )


def _drop(*defaults: Any, otherwise: Result = None) -> Callable[[Any, Mapping[str, Any]], Result]:
    """Remove null and what was the default; without ``otherwise`` remove every value."""
    return _choose(
        *((default, {}) for default in (None, *defaults)),
        otherwise={} if otherwise is None else otherwise,
    )


def _choose(
    *cases: tuple[Any, Result], otherwise: Result = None
) -> Callable[[Any, Mapping[str, Any]], Result]:
    """Look a value up; ``True`` is not 1 here."""
    return lambda value, _: next(
        (new for old, new in cases if type(old) is type(value) and old == value), otherwise
    )


def _callback(name: str, cls: str, argument: str, value: Any) -> Keys:
    entry = f"callbacks.{name}"
    return {
        f"{entry}.class_path": f"pytorch_lightning.callbacks.{cls}",
        f"{entry}.init_args.{argument}": value,
    }


def _progress_bar(argument: str, default: int) -> Callable[[Any, Mapping[str, Any]], Result]:
    no_bar: Result = {"enable_progress_bar": False} if argument == "refresh_rate" else {}
    bar = _callback("progress_bar", "TQDMProgressBar", argument, KEEP)
    return _choose((None, {}), (default, {}), (0, no_bar), otherwise=bar)


def _accumulate(value: Any, _: Mapping[str, Any]) -> Result:
    place = "callbacks.gradient_accumulation.init_args.scheduling"
    return {place: KEEP} if isinstance(value, dict) else {} if value is None else None


def _stopping_mode(value: Any, arguments: Mapping[str, Any]) -> Result:
    monitor = str(arguments.get("monitor") or "")  # 1.x's auto went by the metric's name
    return (
        {"mode": "max" if "acc" in monitor or monitor.startswith("fmeasure") else "min"}
        if value == "auto"
        else None
    )


def _split_path(value: Any, _: Mapping[str, Any]) -> Result:
    if not isinstance(value, str):
        return {} if value is None else "say dirpath and filename"
    folder, slash, name = value.rpartition("/")
    parts = {"dirpath": folder or "/" if slash else "", "filename": name}
    return {key: part for key, part in parts.items() if part}


_APEX = "say precision: 16-mixed, which is torch's own, and leave it out"
_TUNER = "1.x used it in trainer.tune() only; leave it out, or "
_BAR = "Lightning 1.7 made it an argument of the bar; without the entry lightkit shows its own"
_IN_MODEL = "{} = False in the model, and leave it out"
_IN_DATA = "{} = False in the data module, and leave it out"
# fmt: off
REMOVED_ARGUMENTS = {
    "amp_backend": Rule("Lightning 2.0 dropped NVIDIA Apex", _drop("native", otherwise=_APEX)),
    "amp_level": Rule("Lightning 2.0 dropped NVIDIA Apex", _drop(otherwise=_APEX)),
    "auto_lr_find": Rule("Lightning 2.0 made it a callback", _drop(
        False,
        otherwise=f"{_TUNER}say callbacks: {{lr_finder: {{}}}} to search as each fit begins")),
    "auto_scale_batch_size": Rule("Lightning 2.0 made it a callback", _drop(
        False, otherwise=f"{_TUNER}add the callback BatchSizeFinder")),
    "auto_select_gpus": Rule("Lightning 2.0 dropped it", _drop(
        False,
        otherwise="name the GPUs, as in devices: [0, 3], or set CUDA_VISIBLE_DEVICES, and leave it "
                  "out")),
    "automatic_optimization": Rule("Lightning 1.3 moved it into the model", _drop(
        True, otherwise=f"set {_IN_MODEL.format('self.automatic_optimization')}")),
    "checkpoint_callback": Rule("Lightning 1.7 renamed it", _rename_switch("enable_checkpointing")),
    "enable_pl_optimizer": Rule("Lightning 1.3 dropped it; it is always so", _drop()),
    "flush_logs_every_n_steps": Rule("Lightning 1.7 dropped it; loggers flush by themselves",
                                     _drop()),
    "log_gpu_memory": Rule("Lightning 1.7 made it a callback",
                           _drop(False, otherwise={"callbacks.device_stats": {}})),
    "move_metrics_to_cpu": Rule("Lightning 2.0 dropped it", _drop(
        False,
        otherwise="move them in the model, as in self.log(name, value.cpu()), and leave it out")),
    "multiple_trainloader_mode": Rule("Lightning 2.0 dropped it", _drop(
        "max_size_cycle",
        otherwise="let train_dataloader return a CombinedLoader(loaders, mode=...), and leave it "
                  "out")),
    "prepare_data_per_node": Rule("Lightning 1.7 moved it into the data module", _drop(
        True, otherwise=f"set {_IN_DATA.format('self.prepare_data_per_node')}")),
    "process_position": Rule(_BAR, _progress_bar("process_position", 0)),
    "progress_bar_refresh_rate": Rule(_BAR, _progress_bar("refresh_rate", 1)),
    "reload_dataloaders_every_epoch": Rule("Lightning 1.6 made it a number", _choose(
        (True, {"reload_dataloaders_every_n_epochs": 1}), otherwise={})),
    "replace_sampler_ddp": Rule("Lightning 2.0 renamed it",
                                _rename_switch("use_distributed_sampler")),
    "resume_from_checkpoint": Rule("Lightning 2.0 made it an argument of fit", _drop(
        otherwise={"fit.ckpt_path": KEEP})),
    "stochastic_weight_avg": Rule(
        "Lightning 1.7 made it a callback, whose learning rate must be said now",
        _drop(False, otherwise="say callbacks: {swa: {swa_lrs: RATE}}, and leave it out")),
    "terminate_on_nan": Rule("Lightning 1.7 dropped it for detect_anomaly", _choose(
        (True, {"detect_anomaly": True}), otherwise={})),
    "track_grad_norm": Rule("Lightning 2.0 dropped it", _drop(
        -1,
        otherwise="log it in the model: self.log_dict(grad_norm(self, norm_type=2)) in "
                  "on_before_optimizer_step, with grad_norm from pytorch_lightning.utilities")),
    "truncated_bptt_steps": Rule("Lightning 2.0 dropped it", _drop(
        0, otherwise="split the sequence in the model, with manual optimization")),
    "weights_save_path": Rule("Lightning 1.8 made it an argument of the checkpoint callback", _drop(
        otherwise={"callbacks.checkpoint.init_args.dirpath": KEEP})),
    "weights_summary": Rule("Lightning 1.7 renamed it; its depth is a callback's argument", _choose(
        (None, {"enable_model_summary": False}), ("top", {"enable_model_summary": True}),
        ("full", {
            "enable_model_summary": True,
            **_callback("model_summary", "ModelSummary", "max_depth", -1)}),
        otherwise="expected top, full or null")),
}
"""Arguments that today's trainer has not."""
CHANGED_ARGUMENTS = {
    "accumulate_grad_batches": Rule("Lightning 2.0 takes a number; a schedule is a callback's",
                                    _accumulate),
    "logger": Rule("a logger is an entry with a name here; true was TensorBoard", _choose(
        (True, {"logger.tensorboard": {}}))),
    "max_steps": Rule("Lightning 1.7 takes -1 for no limit", _choose((None, {"max_steps": -1}))),
    "profiler": Rule("Lightning 1.4 takes the name of a profiler", _choose(
        (True, {"profiler": "simple"}), (False, {}))),
}
"""Arguments of today's trainer that no longer take every value."""
ARGUMENTS = {**REMOVED_ARGUMENTS, **CHANGED_ARGUMENTS}
_OLD = "Lightning 2.0 takes a kind of device and a number"
HARDWARE_REASONS = {
    **dict.fromkeys(OLD_TRAINER_KEYS, _OLD), "distributed_backend": "Lightning 1.5 renamed it",
    "accelerator": "Lightning 1.6 parts the kind of device from the strategy",
    "devices": "today's word for it",
    "strategy": "today's word for it", "precision": "Lightning 2.0 says what computes in it",
    "num_nodes": "today's word for it", "plugins": "Lightning 1.6 made it a strategy",
}
OLD_HARDWARE_KEYS = (*OLD_TRAINER_KEYS, "distributed_backend")
HARDWARE_DEFAULTS = {**TRAINER_DEFAULTS, "precision": None}
"""Today's keys for hardware, each with the value that says nothing."""
OLD_ARGUMENTS = {key: rule.reason for key, rule in REMOVED_ARGUMENTS.items()} | {
    key: HARDWARE_REASONS[key] for key in OLD_HARDWARE_KEYS
}
"""Arguments that today's trainer has not, each with what changed."""

_MODE = Rule("Lightning 1.3 dropped auto, which went by the metric's name", _stopping_mode)
CLASS_ARGUMENTS: dict[str, dict[str, Rule]] = {
    "EarlyStopping": {"mode": _MODE},
    "ModelCheckpoint": {
        "every_n_val_epochs": Rule("Lightning 1.6 renamed it", _rename("every_n_epochs")),
        "filepath": Rule("Lightning 1.2 takes dirpath and filename", _split_path),
        "mode": _MODE,
        "period": Rule("Lightning 1.5 renamed it", _rename("every_n_epochs")),
        "prefix": Rule("Lightning 1.3 dropped it",
                       _drop("", otherwise="write it at the beginning of filename")),
    },
}
"""Arguments of Lightning's classes that 1.x had in other words, by the class's name, old or new."""

RENAMED_CLASSES: list[tuple[tuple[str, ...], str, dict[str, str]]] = [
    (("accelerators",), "Lightning 2.1 renamed it", {
        "GPUAccelerator": "accelerators.CUDAAccelerator",
        "TPUAccelerator": "accelerators.XLAAccelerator"}),
    (("callbacks",), "Lightning 1.7 replaced it", {
        "GPUStatsMonitor": "callbacks.DeviceStatsMonitor",
        "XLAStatsMonitor": "callbacks.DeviceStatsMonitor",
        "ProgressBar": "callbacks.TQDMProgressBar",
        "LearningRateLogger": "callbacks.LearningRateMonitor"}),
    (("plugins", "strategies"), "Lightning 2.0 calls it so", {
        "DDPPlugin": "strategies.DDPStrategy",
        "DDPFullyShardedNativeStrategy": "strategies.FSDPStrategy",
        "DeepSpeedPlugin": "strategies.DeepSpeedStrategy",
        "SingleDevicePlugin": "strategies.SingleDeviceStrategy",
        **dict.fromkeys(("SingleTPUPlugin", "SingleTPUStrategy"),
                        "strategies.single_xla.SingleDeviceXLAStrategy"),
        **dict.fromkeys(("TPUSpawnPlugin", "TPUSpawnStrategy"), "strategies.xla.XLAStrategy")}),
    (("plugins",), "Lightning 2.2 calls it so", {
        "FSDPMixedPrecisionPlugin": "plugins.FSDPPrecision",
        "FullyShardedNativeNativeMixedPrecisionPlugin": "plugins.FSDPPrecision",
        "TPUPrecisionPlugin": "plugins.XLAPrecision",
        "NativeMixedPrecisionPlugin": "plugins.MixedPrecision"}),
]
"""Modules of Lightning's that an old class stood in or below, the reason, and its path today by its
name."""
_GONE_BY_STRATEGY = {
    "Bagua": "bagua", "Collaborative": "collaborative", "ColossalAI": "colossalai", "DDP2": "ddp2",
    "DataParallel": "dp", "DDPFullySharded": "ddp_fully_sharded", "DDPSharded": "ddp_sharded",
    "DDPSpawnSharded": "ddp_sharded_spawn",
    "HPUParallel": "hpu_parallel", "Hivemind": "hivemind", "IPU": "ipu_strategy",
    "SingleHPU": "hpu_single",
}
_SPAWN = "Lightning 2.0 calls it ddp_spawn; say strategy: ddp_spawn"
_XLA_BF16 = "Lightning 2.1 made it a precision; say precision: bf16-true"
_HPU = GONE_DEVICES["hpu"]
_IPU = GONE_DEVICES["ipu"]
REMOVED_CLASSES = {
    **{f"{module}.{stem}{end}": GONE_STRATEGIES[word] for stem, word in _GONE_BY_STRATEGY.items()
       for module, end in (("plugins", "Plugin"), ("strategies", "Strategy"))},
    "plugins.DDPSpawnPlugin": _SPAWN, "strategies.DDPSpawnStrategy": _SPAWN,
    "plugins.TPUBf16PrecisionPlugin": _XLA_BF16, "plugins.XLABf16PrecisionPlugin": _XLA_BF16,
    "accelerators.HPUAccelerator": _HPU, "plugins.HPUCheckpointIO": _HPU,
    "plugins.HPUPrecisionPlugin": _HPU,
    "accelerators.IPUAccelerator": _IPU, "plugins.IPUPrecisionPlugin": _IPU,
    "callbacks.QuantizationAwareTraining":
        "Lightning 2.0 dropped it; quantize the trained model with torch.ao.quantization",
    "loggers.LoggerCollection": "Lightning 1.8 dropped it; give trainer.logger a list",
    "loggers.NeptuneLogger": "Lightning 2.6 dropped it; use MLflow, TensorBoard or Comet",
    "loggers.TestTubeLogger": "Lightning 1.7 dropped it; use TensorBoard",
    "plugins.ApexMixedPrecisionPlugin":
        "Lightning 2.0 dropped NVIDIA Apex; say precision: 16-mixed, which is torch's own",
    "plugins.ShardedNativeMixedPrecisionPlugin":
        "Lightning 2.0 dropped FairScale; leave it out, and use the strategy fsdp or "
        "deepspeed_stage_2",
}
"""Classes that are gone, by module and name, with what to do instead."""
# fmt: on
LIGHTNING_CLASS = re.compile(r"(pytorch_lightning|lightning\.pytorch)((?:\.\w+)+)")
CLASS_MODULES = {
    "callbacks": "callbacks",
    "logger": "loggers",
    "strategy": "strategies",
    "plugins": "plugins",
}
"""Module of Lightning's in which a class's name alone is looked up, by the trainer's key."""


def find_class(path: str, module: str | None = None) -> tuple[str | None, str] | None:
    """Find today's path of a class of Lightning's, and what changed.

    Args:
        path: Path of the class, or its name alone.
        module: Module of Lightning's in which a name alone is looked up.

    Returns:
        None where the path is today's, or of no class of Lightning's; a path of None where the
        class is gone.
    """
    found = LIGHTNING_CLASS.fullmatch(path)
    if found is None:
        if module is None or "." in path:
            return None
        return _find_listed(module, path, is_short=True)
    parts = found[2].strip(".").split(".")
    listed = _find_listed(parts[0], parts[-1], is_short=False)
    if listed is None and parts[0] == "profiler" and len(parts) > 1:
        return f"pytorch_lightning.profilers.{parts[-1]}", "Lightning 1.9 renamed the module"
    return listed


def _find_listed(module: str, name: str, *, is_short: bool) -> tuple[str | None, str] | None:
    """Find a class in the lists of those that were renamed or are gone.

    Args:
        module: Its module below Lightning's package.
        name: Its name.
        is_short: Whether its name alone is given, so that today's is returned alone where its
            module is the same.
    """
    if f"{module}.{name}" in REMOVED_CLASSES:
        return None, REMOVED_CLASSES[f"{module}.{name}"]
    for modules, reason, names in RENAMED_CLASSES:
        if module in modules and name in names:
            today = names[name]
            if is_short and today.startswith(f"{module}."):
                return today.rpartition(".")[2], reason
            return f"pytorch_lightning.{today}", reason
    if module == "plugins" and name.endswith("PrecisionPlugin"):
        return (
            f"pytorch_lightning.plugins.{name.removesuffix('Plugin')}",
            "Lightning 2.2 calls it so",
        )
    if module in ("plugins", "strategies") and name in ("HorovodPlugin", "HorovodStrategy"):
        return HOROVOD, "Lightning 2.0 dropped it; lightkit has its own"
    return None
