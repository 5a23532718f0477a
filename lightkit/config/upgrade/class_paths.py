"""Lightning's classes of 1.x that have another name or place today, or are gone.

Sources: Lightning's changelog, its upgrade guides, and `pytorch_lightning._graveyard`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from lightkit.config.accelerator.words import GONE_STRATEGIES, HOROVOD, why_gone

__all__ = ["LIGHTNING_CLASS", "TodaysClass", "todays_class"]

LIGHTNING_CLASS = re.compile(r"(pytorch_lightning|lightning\.pytorch)((?:\.\w+)+)")
"""A class of Lightning's, under either of its packages' names; the second is not the one that lightkit builds on."""
_FABRIC = re.compile(r"lightning\.fabric((?:\.\w+)+)")


@dataclass(frozen=True)
class TodaysClass:
    """What a class is today.

    Args:
        path: Its path; None where it is gone.
        why: What became of it, or what to do instead.
        arguments: Arguments that it needs to be what it was.
    """

    path: str | None
    why: str
    arguments: dict[str, Any] = field(default_factory=dict)


_SPAWN = {"start_method": "spawn"}
_STRATEGIES: dict[str, tuple[str, dict[str, Any]]] = {
    "DDPPlugin": ("DDPStrategy", {}),
    "DDPSpawnPlugin": ("DDPStrategy", _SPAWN),
    "DDPSpawnStrategy": ("DDPStrategy", _SPAWN),
    "DDPFullyShardedNativeStrategy": ("FSDPStrategy", {}),
    "DeepSpeedPlugin": ("DeepSpeedStrategy", {}),
    "SingleDevicePlugin": ("SingleDeviceStrategy", {}),
    "SingleTPUPlugin": ("SingleDeviceXLAStrategy", {}),
    "SingleTPUStrategy": ("SingleDeviceXLAStrategy", {}),
    "TPUSpawnPlugin": ("XLAStrategy", {}),
    "TPUSpawnStrategy": ("XLAStrategy", {}),
}
_XLA_STRATEGIES = {"SingleDeviceXLAStrategy": "single_xla", "XLAStrategy": "xla"}
"""Those that stand in a module of their own and not among `pytorch_lightning.strategies`, with its name."""
_GONE_STRATEGIES = {
    "BaguaStrategy": "bagua",
    "CollaborativeStrategy": "collaborative",
    "ColossalAIStrategy": "colossalai",
    "DDP2Plugin": "ddp2",
    "DDP2Strategy": "ddp2",
    "DDPFullyShardedPlugin": "ddp_fully_sharded",
    "DDPFullyShardedStrategy": "ddp_fully_sharded",
    "DDPShardedPlugin": "ddp_sharded",
    "DDPShardedStrategy": "ddp_sharded",
    "DDPSpawnShardedPlugin": "ddp_sharded_spawn",
    "DDPSpawnShardedStrategy": "ddp_sharded_spawn",
    "DataParallelPlugin": "dp",
    "DataParallelStrategy": "dp",
    "HPUParallelPlugin": "hpu_parallel",
    "HPUParallelStrategy": "hpu_parallel",
    "HivemindStrategy": "hivemind",
    "IPUPlugin": "ipu_strategy",
    "IPUStrategy": "ipu_strategy",
    "SingleHPUPlugin": "hpu_single",
    "SingleHPUStrategy": "hpu_single",
}
_PRECISION = "Lightning 2.2 calls it {}"
_PLUGINS = {
    "BitsandbytesPrecisionPlugin": "BitsandbytesPrecision",
    "DeepSpeedPrecisionPlugin": "DeepSpeedPrecision",
    "DoublePrecisionPlugin": "DoublePrecision",
    "FSDPMixedPrecisionPlugin": "FSDPPrecision",
    "FSDPPrecisionPlugin": "FSDPPrecision",
    "FullyShardedNativeNativeMixedPrecisionPlugin": "FSDPPrecision",
    "HalfPrecisionPlugin": "HalfPrecision",
    "MixedPrecisionPlugin": "MixedPrecision",
    "NativeMixedPrecisionPlugin": "MixedPrecision",
    "PrecisionPlugin": "Precision",
    "TPUPrecisionPlugin": "XLAPrecision",
    "TransformerEnginePrecisionPlugin": "TransformerEnginePrecision",
    "XLAPrecisionPlugin": "XLAPrecision",
}
_BF16 = ("TPUBf16PrecisionPlugin", "XLABf16PrecisionPlugin")
_APEX = "Lightning 2.0 dropped NVIDIA Apex; say precision: 16-mixed, which is torch's own"
_FAIRSCALE = "Lightning 2.0 dropped FairScale; leave it out, and use the strategy fsdp or deepspeed_stage_2"
_QUANTIZED = "Lightning 2.0 dropped it; quantize the trained model with torch.ao.quantization"
_OTHERS: dict[tuple[str, str], TodaysClass] = {
    ("accelerators", "GPUAccelerator"): TodaysClass("accelerators.CUDAAccelerator", "Lightning 2.0 renamed it"),
    ("accelerators", "HPUAccelerator"): TodaysClass(None, why_gone("hpu")),
    ("accelerators", "IPUAccelerator"): TodaysClass(None, why_gone("ipu")),
    ("accelerators", "TPUAccelerator"): TodaysClass("accelerators.XLAAccelerator", "Lightning 2.1 renamed it"),
    ("callbacks", "GPUStatsMonitor"): TodaysClass("callbacks.DeviceStatsMonitor", "Lightning 1.7 replaced it"),
    ("callbacks", "LearningRateLogger"): TodaysClass("callbacks.LearningRateMonitor", "Lightning 1.0 renamed it"),
    ("callbacks", "ProgressBar"): TodaysClass("callbacks.TQDMProgressBar", "Lightning 1.7 renamed it"),
    ("callbacks", "QuantizationAwareTraining"): TodaysClass(None, _QUANTIZED),
    ("callbacks", "XLAStatsMonitor"): TodaysClass("callbacks.DeviceStatsMonitor", "Lightning 1.7 replaced it"),
    ("loggers", "LightningLoggerBase"): TodaysClass("loggers.Logger", "Lightning 1.9 renamed it"),
    ("loggers", "LoggerCollection"): TodaysClass(None, "Lightning 1.8 dropped it; give trainer.logger a list"),
    ("loggers", "NeptuneLogger"): TodaysClass(None, "Lightning 2.6 dropped it; use MLflow, TensorBoard or Comet"),
    ("loggers", "TestTubeLogger"): TodaysClass(None, "Lightning 1.7 dropped it; use TensorBoard"),
    ("plugins", "ApexMixedPrecisionPlugin"): TodaysClass(None, _APEX),
    ("plugins", "HPUCheckpointIO"): TodaysClass(None, why_gone("hpu")),
    ("plugins", "HPUPrecisionPlugin"): TodaysClass(None, why_gone("hpu")),
    ("plugins", "IPUPrecisionPlugin"): TodaysClass(None, why_gone("ipu")),
    ("plugins", "ShardedNativeMixedPrecisionPlugin"): TodaysClass(None, _FAIRSCALE),
    ("profiler", "BaseProfiler"): TodaysClass("profilers.Profiler", "Lightning 1.9 renamed it"),
    ("trainer", "CombinedLoader"): TodaysClass("utilities.CombinedLoader", "Lightning 2.0 moved it"),
}
_ROOMS = {"profiler": ("profilers", "Lightning 1.9 renamed the module")}


def todays_class(path: str, *, room: str | None = None) -> TodaysClass | None:
    """Say what a class is today; None where its path is today's, or it is none of Lightning's.

    Args:
        path: Path of the class, or its name alone.
        room: Module of Lightning's that a name alone is looked up in: ``callbacks``, ``loggers``.
    """
    if fabric := _FABRIC.fullmatch(path):
        return TodaysClass(f"lightning_fabric{fabric[1]}", "lightkit uses the package lightning-fabric")
    found = LIGHTNING_CLASS.fullmatch(path)
    if found is None:
        known = _renamed(room, path) if room is not None and "." not in path else None
        if known is None or known.path is None or known.path == HOROVOD:
            return known
        is_short = known.path.startswith(f"pytorch_lightning.{room}.")
        return TodaysClass(known.path.rpartition(".")[2] if is_short else known.path, known.why, known.arguments)
    parts = found[2].strip(".").split(".")
    todays = _renamed(parts[0], parts[-1]) or _moved(parts)
    if todays is not None:
        return todays
    if found[1] != "pytorch_lightning":
        return TodaysClass(f"pytorch_lightning{found[2]}", "lightkit uses the package pytorch-lightning")
    return None


def _renamed(room: str | None, name: str) -> TodaysClass | None:
    """Look a class up by its name and the first module of its path; its file within that has changed often."""
    other = _OTHERS.get((str(room), name))
    if other is not None:
        return TodaysClass(other.path and f"pytorch_lightning.{other.path}", other.why)
    if room not in ("plugins", "strategies"):
        return None
    if name in _GONE_STRATEGIES:
        return TodaysClass(None, GONE_STRATEGIES[_GONE_STRATEGIES[name]])
    if name in ("HorovodPlugin", "HorovodStrategy"):
        return TodaysClass(HOROVOD, "Lightning 2.0 dropped it; lightkit has its own")
    if name in _STRATEGIES:
        today, arguments = _STRATEGIES[name]
        module = f"{_XLA_STRATEGIES[today]}." if today in _XLA_STRATEGIES else ""
        return TodaysClass(f"pytorch_lightning.strategies.{module}{today}", "Lightning 2.0 calls it so", arguments)
    if name in _BF16:
        why = _PRECISION.format("XLAPrecision")
        return TodaysClass("pytorch_lightning.plugins.XLAPrecision", why, {"precision": "bf16-true"})
    if name in _PLUGINS:
        return TodaysClass(f"pytorch_lightning.plugins.{_PLUGINS[name]}", _PRECISION.format(_PLUGINS[name]))
    return None


def _moved(parts: list[str]) -> TodaysClass | None:
    """Give the path of a class whose module has moved."""
    if parts[0] in _ROOMS and len(parts) > 1:
        room, why = _ROOMS[parts[0]]
        return TodaysClass(f"pytorch_lightning.{room}.{parts[-1]}", why)
    if parts[0] == "metrics" and len(parts) > 1:
        return TodaysClass(".".join(["torchmetrics", *parts[1:]]), "Lightning 1.5 moved it to torchmetrics")
    if parts[:2] == ["utilities", "cli"] and len(parts) > 2:
        return TodaysClass(f"pytorch_lightning.cli.{parts[-1]}", "Lightning 2.0 moved it")
    return None
