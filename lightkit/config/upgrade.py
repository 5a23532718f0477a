"""Upgrade configs of Lightning 1.x: a table of what changed, and the rewriting of a file's text by it.

Sources of the table: Lightning's changelog, its guides "Upgrade from 1.4 to the 2.0" to "from 1.9", and
`pytorch_lightning._graveyard`. What hardware keys mean is `resolve_hardware`'s to say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from lightkit.config.accelerator import resolve_hardware
from lightkit.config.accelerator.vocabulary import (
    COMPUTING_KEYS,
    GONE_DEVICES,
    GONE_STRATEGIES,
    HOROVOD,
    OLD_STRATEGIES,
    OLD_TRAINER_KEYS,
    STRATEGIES_AS_ACCELERATORS,
)
from lightkit.config.loader import CLASS_SECTIONS, WORDS, Resolved, layers_of
from lightkit.config.merge import MergeRules
from lightkit.config.origins import KeyPath, Origin, dotted, error_at, shown_path
from lightkit.config.schema import load_schema
from lightkit.config.tree import Items, Leaf, MappingNode, Node, plain
from lightkit.config.yaml_reader import YamlLoader, dump_yaml, read_file, read_scalar, read_text
from lightkit.errors import ConfigError, ConfigErrors


class Source(str):
    """YAML text that is written as it stands."""

    __slots__ = ()


KEEP = Source("")
"""The old value, as it is written."""
Keys = dict[str, Any]
Result = Keys | str | None
"""Keys that take an argument's place (``{}``: it is removed), advice with which it is refused, or None: it stays."""


class Rule(NamedTuple):
    """What became of one argument.

    Args:
        reason: What Lightning changed.
        convert: From its value and all arguments beside it. The trainer's rules give ``trainer.KEY``, and other paths
            for what stands beside the trainer today; those of classes give arguments.
    """

    reason: str
    convert: Callable[[Any, Mapping[str, Any]], Result]


def _rename(key: str) -> Callable[[Any, Mapping[str, Any]], Result]:
    return lambda *_: {key: KEEP}


def _rename_switch(key: str) -> Callable[[Any, Mapping[str, Any]], Result]:
    advice = f"say {key}: true or false, and name a class under callbacks"
    return lambda value, _: (
        advice if isinstance(value, (dict, list)) else {} if value is None else {f"trainer.{key}": KEEP}
    )


def _drop(*defaults: Any, otherwise: Result = None) -> Callable[[Any, Mapping[str, Any]], Result]:
    """Remove null and what was the default; without ``otherwise`` remove every value."""

    def convert(value: Any, _: Mapping[str, Any]) -> Result:
        is_default = value is None or any(type(value) is type(default) and value == default for default in defaults)
        return {} if is_default or otherwise is None else otherwise

    return convert


def _choose(*cases: tuple[Any, Result], otherwise: Result = None) -> Callable[[Any, Mapping[str, Any]], Result]:
    """Look a value up; ``True`` is not 1 here."""
    return lambda value, _: next((new for old, new in cases if type(old) is type(value) and old == value), otherwise)


def _progress_bar(argument: str, default: int) -> Callable[[Any, Mapping[str, Any]], Result]:
    bar = {"class_path": "pytorch_lightning.callbacks.TQDMProgressBar", "init_args": {argument: KEEP}}
    no_bar: Result = {"trainer.enable_progress_bar": False} if argument == "refresh_rate" else {}
    return _choose((None, {}), (default, {}), (0, no_bar), otherwise={"callbacks.progress_bar": bar})


def _accumulate(value: Any, _: Mapping[str, Any]) -> Result:
    entry = {"init_args": {"scheduling": value}}
    return {"callbacks.gradient_accumulation": entry} if isinstance(value, dict) else {} if value is None else None


def _stopping_mode(value: Any, arguments: Mapping[str, Any]) -> Result:
    monitor = str(arguments.get("monitor") or "")  # 1.x's auto went by the metric's name
    return {"mode": "max" if "acc" in monitor or monitor.startswith("fmeasure") else "min"} if value == "auto" else None


def _split_path(value: Any, _: Mapping[str, Any]) -> Result:
    if not isinstance(value, str):
        return {} if value is None else "say dirpath and filename"
    folder, slash, name = value.rpartition("/")
    parts = {"dirpath": folder or "/" if slash else "", "filename": name}
    return {key: part for key, part in parts.items() if part}


_APEX = "say precision: 16-mixed, which is torch's own, and leave it out"
_TUNER = "1.x heeded it in trainer.tune() only; leave it out, or "
_BAR = "Lightning 1.7 made it an argument of the bar; without the entry lightkit shows its own"
_SUMMARY = {"class_path": "pytorch_lightning.callbacks.ModelSummary", "init_args": {"max_depth": -1}}
_IN_MODEL, _IN_DATA = "{} = False in the model, and leave it out", "{} = False in the data module, and leave it out"
# fmt: off
REMOVED_ARGUMENTS = {
    "amp_backend": Rule("Lightning 2.0 dropped NVIDIA Apex", _drop("native", otherwise=_APEX)),
    "amp_level": Rule("Lightning 2.0 dropped NVIDIA Apex", _drop(otherwise=_APEX)),
    "auto_lr_find": Rule("Lightning 2.0 made it a callback", _drop(
        False, otherwise=f"{_TUNER}say callbacks: {{lr_finder: {{}}}} to search as each fit begins")),
    "auto_scale_batch_size": Rule("Lightning 2.0 made it a callback", _drop(
        False, otherwise=f"{_TUNER}add the callback BatchSizeFinder")),
    "auto_select_gpus": Rule("Lightning 2.0 dropped it", _drop(
        False, otherwise="name the GPUs, as in devices: [0, 3], or set CUDA_VISIBLE_DEVICES, and leave it out")),
    "automatic_optimization": Rule("Lightning 1.3 moved it into the model", _drop(
        True, otherwise=f"set {_IN_MODEL.format('self.automatic_optimization')}")),
    "checkpoint_callback": Rule("Lightning 1.7 renamed it", _rename_switch("enable_checkpointing")),
    "enable_pl_optimizer": Rule("Lightning 1.3 dropped it; it is always so", _drop()),
    "flush_logs_every_n_steps": Rule("Lightning 1.7 dropped it; loggers flush by themselves", _drop()),
    "log_gpu_memory": Rule("Lightning 1.7 made it a callback", _drop(False, otherwise={"callbacks.device_stats": {}})),
    "move_metrics_to_cpu": Rule("Lightning 2.0 dropped it", _drop(
        False, otherwise="move them in the model, as in self.log(name, value.cpu()), and leave it out")),
    "multiple_trainloader_mode": Rule("Lightning 2.0 dropped it", _drop(
        "max_size_cycle",
        otherwise="let train_dataloader return a CombinedLoader(loaders, mode=...), and leave it out")),
    "prepare_data_per_node": Rule("Lightning 1.7 moved it into the data module", _drop(
        True, otherwise=f"set {_IN_DATA.format('self.prepare_data_per_node')}")),
    "process_position": Rule(_BAR, _progress_bar("process_position", 0)),
    "progress_bar_refresh_rate": Rule(_BAR, _progress_bar("refresh_rate", 1)),
    "reload_dataloaders_every_epoch": Rule("Lightning 1.6 made it a number", _choose(
        (True, {"trainer.reload_dataloaders_every_n_epochs": 1}), otherwise={})),
    "replace_sampler_ddp": Rule("Lightning 2.0 renamed it", _rename_switch("use_distributed_sampler")),
    "resume_from_checkpoint": Rule("Lightning 2.0 made it an argument of fit", _drop(
        otherwise={"fit.ckpt_path": KEEP})),
    "stochastic_weight_avg": Rule("Lightning 1.7 made it a callback, whose learning rate must be said now", _drop(
        False, otherwise="say callbacks: {swa: {swa_lrs: RATE}}, and leave it out")),
    "terminate_on_nan": Rule("Lightning 1.7 dropped it for detect_anomaly", _choose(
        (True, {"trainer.detect_anomaly": True}), otherwise={})),
    "track_grad_norm": Rule("Lightning 2.0 dropped it", _drop(
        -1, otherwise="log it in the model: self.log_dict(grad_norm(self, norm_type=2)) in on_before_optimizer_step, "
                      "with grad_norm from pytorch_lightning.utilities")),
    "truncated_bptt_steps": Rule("Lightning 2.0 dropped it", _drop(
        0, otherwise="split the sequence in the model, with manual optimization")),
    "weights_save_path": Rule("Lightning 1.8 made it an argument of the checkpoint callback", _drop(
        otherwise={"callbacks.checkpoint": {"init_args": {"dirpath": KEEP}}})),
    "weights_summary": Rule("Lightning 1.7 renamed it; its depth is a callback's argument", _choose(
        (None, {"trainer.enable_model_summary": False}), ("top", {"trainer.enable_model_summary": True}),
        ("full", {"trainer.enable_model_summary": True, "callbacks.model_summary": _SUMMARY}),
        otherwise="expected top, full or null")),
}
"""Arguments that today's trainer has not."""
CHANGED_ARGUMENTS = {
    "accumulate_grad_batches": Rule("Lightning 2.0 takes a number; a schedule is a callback's", _accumulate),
    "logger": Rule("a logger is an entry with a name here; true was TensorBoard", _choose(
        (True, {"logger.tensorboard": {}}))),
    "max_steps": Rule("Lightning 1.7 takes -1 for no limit", _choose((None, {"trainer.max_steps": -1}))),
    "profiler": Rule("Lightning 1.4 takes the name of a profiler", _choose(
        (True, {"trainer.profiler": "simple"}), (False, {}))),
}
"""Arguments of today's trainer that no longer take every value."""
DEFAULTS = {
    "detect_anomaly": False, "enable_checkpointing": True, "enable_model_summary": True, "enable_progress_bar": True,
    "reload_dataloaders_every_n_epochs": 0, "use_distributed_sampler": True,
}
"""Defaults of the arguments that rules write: 1.5's `--print_config` prints them beside the older words, which won."""
_OLD = "Lightning 2.0 takes a kind of device and a number"
HARDWARE_REASONS = {
    **dict.fromkeys(OLD_TRAINER_KEYS, _OLD), "distributed_backend": "Lightning 1.5 renamed it",
    "accelerator": "Lightning 1.6 parts the kind of device from the strategy", "devices": "today's word for it",
    "strategy": "today's word for it", "precision": "Lightning 2.0 says what computes in it",
    "num_nodes": "today's word for it", "plugins": "Lightning 1.6 made it a strategy",
}
OLD_HARDWARE_KEYS = (*OLD_TRAINER_KEYS, "distributed_backend")
HARDWARE_DEFAULTS = {"accelerator": "auto", "devices": "auto", "strategy": "auto", "precision": None, "num_nodes": 1}
"""Today's keys for hardware, each with the value that says nothing."""
OLD_ARGUMENTS = {key: rule.reason for key, rule in REMOVED_ARGUMENTS.items()} | {
    key: HARDWARE_REASONS[key] for key in OLD_HARDWARE_KEYS
}
"""Arguments that today's trainer has not, each with what changed."""

_MODE = Rule("Lightning 1.3 dropped auto, which went by the metric's name", _stopping_mode)
_GONE_STATS = Rule("DeviceStatsMonitor records all there is", _drop())
_DDP = dict.fromkeys(("num_nodes", "sync_batchnorm"), Rule("the trainer's own counts", _drop()))
CLASS_ARGUMENTS: dict[str, dict[str, Rule]] = {
    "DDPPlugin": _DDP, "DDPSpawnPlugin": _DDP, "EarlyStopping": {"mode": _MODE},
    "GPUStatsMonitor": dict.fromkeys(
        ("memory_utilization", "gpu_utilization", "intra_step_time", "inter_step_time", "fan_speed", "temperature"),
        _GONE_STATS),
    "ModelCheckpoint": {
        "every_n_val_epochs": Rule("Lightning 1.6 renamed it", _rename("every_n_epochs")),
        "filepath": Rule("Lightning 1.2 takes dirpath and filename", _split_path),
        "mode": _MODE,
        "period": Rule("Lightning 1.5 renamed it", _rename("every_n_epochs")),
        "prefix": Rule("Lightning 1.3 dropped it", _drop("", otherwise="write it at the beginning of filename")),
    },
    "XLAStatsMonitor": {"verbose": _GONE_STATS},
}
"""Arguments of Lightning's classes that 1.x had in other words, by the class's name, old or new."""

_SPAWN, _BF16 = {"start_method": "spawn"}, {"precision": "bf16-true"}
ADDED_ARGUMENTS: dict[str, dict[str, Any]] = {
    "DDPSpawnPlugin": _SPAWN, "DDPSpawnStrategy": _SPAWN,
    "TPUBf16PrecisionPlugin": _BF16, "XLABf16PrecisionPlugin": _BF16,
}
"""Arguments that make today's class what the old one was."""
RENAMED_CLASSES: list[tuple[tuple[str, ...], str, dict[str, str]]] = [
    (("accelerators",), "Lightning 2.1 renamed it", {
        "GPUAccelerator": "accelerators.CUDAAccelerator", "TPUAccelerator": "accelerators.XLAAccelerator"}),
    (("callbacks",), "Lightning 1.7 replaced it", {
        "GPUStatsMonitor": "callbacks.DeviceStatsMonitor", "XLAStatsMonitor": "callbacks.DeviceStatsMonitor",
        "ProgressBar": "callbacks.TQDMProgressBar", "LearningRateLogger": "callbacks.LearningRateMonitor"}),
    (("loggers",), "Lightning 1.9 renamed it", {"LightningLoggerBase": "loggers.Logger"}),
    (("profiler",), "Lightning 1.9 renamed it", {"BaseProfiler": "profilers.Profiler"}),
    (("trainer",), "Lightning 2.0 moved it", {"CombinedLoader": "utilities.CombinedLoader"}),
    (("plugins", "strategies"), "Lightning 2.0 calls it so", {
        "DDPPlugin": "strategies.DDPStrategy", "DDPSpawnPlugin": "strategies.DDPStrategy",
        "DDPSpawnStrategy": "strategies.DDPStrategy", "DDPFullyShardedNativeStrategy": "strategies.FSDPStrategy",
        "DeepSpeedPlugin": "strategies.DeepSpeedStrategy", "SingleDevicePlugin": "strategies.SingleDeviceStrategy",
        **dict.fromkeys(("SingleTPUPlugin", "SingleTPUStrategy"), "strategies.single_xla.SingleDeviceXLAStrategy"),
        **dict.fromkeys(("TPUSpawnPlugin", "TPUSpawnStrategy"), "strategies.xla.XLAStrategy")}),
    (("plugins",), "Lightning 2.2 calls it so", {
        "FSDPMixedPrecisionPlugin": "plugins.FSDPPrecision",
        "FullyShardedNativeNativeMixedPrecisionPlugin": "plugins.FSDPPrecision",
        "TPUPrecisionPlugin": "plugins.XLAPrecision", "TPUBf16PrecisionPlugin": "plugins.XLAPrecision",
        "XLABf16PrecisionPlugin": "plugins.XLAPrecision",
        "NativeMixedPrecisionPlugin": "plugins.MixedPrecision"}),
]
"""Modules of Lightning's that an old class stood in or below, the reason, and its path today by its name."""
_GONE_BY_STRATEGY = {
    "Bagua": "bagua", "Collaborative": "collaborative", "ColossalAI": "colossalai", "DDP2": "ddp2",
    "DataParallel": "dp", "DDPFullySharded": "ddp_fully_sharded", "DDPSharded": "ddp_sharded",
    "DDPSpawnSharded": "ddp_sharded_spawn",
    "HPUParallel": "hpu_parallel", "Hivemind": "hivemind", "IPU": "ipu_strategy", "SingleHPU": "hpu_single",
}
_HPU, _IPU = GONE_DEVICES["hpu"], GONE_DEVICES["ipu"]
REMOVED_CLASSES = {
    **{f"{module}.{stem}{end}": GONE_STRATEGIES[word] for stem, word in _GONE_BY_STRATEGY.items()
       for module, end in (("plugins", "Plugin"), ("strategies", "Strategy"))},
    "accelerators.HPUAccelerator": _HPU, "plugins.HPUCheckpointIO": _HPU, "plugins.HPUPrecisionPlugin": _HPU,
    "accelerators.IPUAccelerator": _IPU, "plugins.IPUPrecisionPlugin": _IPU,
    "callbacks.QuantizationAwareTraining":
        "Lightning 2.0 dropped it; quantize the trained model with torch.ao.quantization",
    "loggers.LoggerCollection": "Lightning 1.8 dropped it; give trainer.logger a list",
    "loggers.NeptuneLogger": "Lightning 2.6 dropped it; use MLflow, TensorBoard or Comet",
    "loggers.TestTubeLogger": "Lightning 1.7 dropped it; use TensorBoard",
    "plugins.ApexMixedPrecisionPlugin":
        "Lightning 2.0 dropped NVIDIA Apex; say precision: 16-mixed, which is torch's own",
    "plugins.ShardedNativeMixedPrecisionPlugin":
        "Lightning 2.0 dropped FairScale; leave it out, and use the strategy fsdp or deepspeed_stage_2",
}
"""Classes that are gone, by module and name, with what to do instead."""
# fmt: on
LIGHTNING_CLASS = re.compile(r"(pytorch_lightning|lightning\.pytorch)((?:\.\w+)+)")
CLASS_MODULES = {"callbacks": "callbacks", "logger": "loggers", "strategy": "strategies", "plugins": "plugins"}
"""Module of Lightning's in which a class's name alone is looked up, by the trainer's key."""


def find_class(path: str, module: str | None = None) -> tuple[str | None, str] | None:
    """Find today's path of a class of Lightning's, and what changed.

    Args:
        path: Path of the class, or its name alone.
        module: Module of Lightning's in which a name alone is looked up.

    Returns:
        None where the path is today's, or of no class of Lightning's; a path of None where the class is gone.
    """
    if path.startswith("lightning.fabric."):
        return path.replace("lightning.fabric", "lightning_fabric", 1), "lightkit uses the package lightning-fabric"
    found = LIGHTNING_CLASS.fullmatch(path)
    if found is None and (module is None or "." in path):
        return None
    parts = found[2].strip(".").split(".") if found else [str(module), path]
    if f"{parts[0]}.{parts[-1]}" in REMOVED_CLASSES:
        return None, REMOVED_CLASSES[f"{parts[0]}.{parts[-1]}"]
    for modules, reason, names in RENAMED_CLASSES:
        if parts[0] in modules and parts[-1] in names:
            is_short = found is None and names[parts[-1]].startswith(f"{parts[0]}.")
            return names[parts[-1]].rpartition(".")[2] if is_short else f"pytorch_lightning.{names[parts[-1]]}", reason
    if parts[0] == "plugins" and parts[-1].endswith("PrecisionPlugin"):
        return f"pytorch_lightning.plugins.{parts[-1].removesuffix('Plugin')}", "Lightning 2.2 calls it so"
    if parts[0] in ("plugins", "strategies") and parts[-1] in ("HorovodPlugin", "HorovodStrategy"):
        return HOROVOD, "Lightning 2.0 dropped it; lightkit has its own"
    if found is None:
        return None
    if parts[0] == "profiler" and len(parts) > 1:
        return f"pytorch_lightning.profilers.{parts[-1]}", "Lightning 1.9 renamed the module"
    if parts[0] == "metrics" and len(parts) > 1:
        return ".".join(["torchmetrics", *parts[1:]]), "Lightning 1.5 moved it to torchmetrics"
    if parts[:2] == ["utilities", "cli"] and len(parts) > 2:
        return f"pytorch_lightning.cli.{parts[-1]}", "Lightning 2.0 moved it"
    today = f"pytorch_lightning{found[2]}"
    return None if path == today else (today, "lightkit uses the package pytorch-lightning")


# -- the rewriting -----------------------------------------------------------------------------------------------------

STAGES = ("fit", "validate", "test", "predict")


@dataclass(frozen=True)
class Upgraded:
    """An upgraded config.

    Args:
        text: Its text.
        changes: What was changed: the line of the old file, and what became of what, with the reason; in their order.
        extended: Files that it extends, of those that are there; they are not rewritten.
    """

    text: str
    changes: tuple[tuple[int, str], ...]
    extended: tuple[Path, ...] = ()


def upgrade_file(file: Path) -> Upgraded:
    """Rewrite a config of Lightning 1.x in today's words.

    Raises:
        ConfigError: If the file cannot be read as a config, or holds what has no equivalent; all of it at once.
    """
    if file.exists() and not (file.is_file() or file.is_dir()):  # it is read more than once
        raise ConfigError(
            f"{shown_path(file)}: expected a file, got a pipe or a device; save the config as a file first"
        )
    tree, name = read_file(file), shown_path(file)
    content = file.read_bytes().decode("utf-8")
    bom, text = ("\ufeff", content[1:]) if content.startswith("\ufeff") else ("", content)
    if not tree.entries:
        return Upgraded(content, ())
    try:
        below = [layer.entries.get("trainer") for layer in layers_of(file, seen=set())[:-1]]
    except ConfigError:  # reported when the config is used
        below = []
    upgrade = _Upgrade(YamlText(text, name), tree)
    upgrade.run({key: node for table in below if isinstance(table, MappingNode) for key, node in table.entries.items()})
    if upgrade.errors:
        raise ConfigErrors(sorted(upgrade.errors, key=_line_of))
    new_text = upgrade.text.result() if upgrade.changes else text
    try:
        read_text(new_text, name=name)
    except ConfigError as error:  # an anchor has gone with the value that it stood at, or a key is written as `? key`
        says = f"{name}: the upgraded file would not be valid ({str(error).splitlines()[0].removeprefix(f'{name}: ')})"
        advice = "write out the values of anchors such as &name, and mappings as `key: value` lines, and upgrade again"
        raise ConfigError(f"{says}; {advice}") from None
    extends = tree.entries.get("extends")
    names = [
        item.value for item in (extends.items if isinstance(extends, Items) else [extends]) if isinstance(item, Leaf)
    ]
    files = [[file.parent / str(name), file.parent / f"{name}.yaml"] for name in names]
    extended = tuple(next(path for path in paths if path.is_file()) for paths in files if any(map(Path.is_file, paths)))
    return Upgraded(bom + new_text, tuple(sorted(upgrade.changes, key=lambda change: change[0])), extended)


def _line_of(error: ConfigError) -> int:
    place = error.places[0]
    return (place.line or 0) if isinstance(place, Origin) else 0


def _is_interpolated(value: Any) -> bool:
    return isinstance(value, str) and "${" in value


def _is_strategy(word: Any) -> bool:
    return isinstance(word, str) and word.lower() in (*STRATEGIES_AS_ACCELERATORS, *GONE_STRATEGIES, *OLD_STRATEGIES)


@dataclass
class _Scope:
    """A ``trainer`` with what stands beside it, at the top or in one command's block."""

    path: KeyPath
    mapping: yaml.MappingNode
    table: MappingNode
    entries: dict[str, Entry]  # of the trainer, those that stand beside it included
    nodes: dict[str, Node]  # their meaning, values of merged anchors included
    flat: list[Entry]  # arguments of the trainer that stand beside it

    @property
    def stage(self) -> str:
        return str(self.path[0]) if self.path else ""


class _Upgrade:
    """Applies the rules to one config, and collects changes and errors."""

    def __init__(self, text: YamlText, tree: MappingNode) -> None:
        self.text, self.tree = text, tree
        assert isinstance(text.root, yaml.MappingNode)
        self.root = text.root
        self.changes: list[tuple[int, str]] = []
        self.errors: list[ConfigError] = []
        self.moved: set[int] = set()  # ids of the names of entries that move under `trainer`

    def run(self, below: Mapping[str, Node]) -> None:
        """Rewrite the text.

        Args:
            below: The trainer of the files that this one extends.
        """
        if plain(self.tree.entries.get("tune", Leaf(None, Origin("default")))) is not None:
            says = "tune: Lightning 2.0 dropped the command; say what it searched as callbacks of fit"
            self.refuse(self.tree.entries["tune"].origin.at_key(), f"{says}, such as lr_finder: {{}}")
        entries = entries_of(self.root)
        blocks = [(stage, entries[stage].value, self.tree.entries[stage]) for stage in STAGES if stage in entries]
        scopes = [self._scope((), self.root, self.tree)]
        scopes += [
            self._scope((stage,), value, table)
            for stage, value, table in blocks
            if isinstance(value, yaml.MappingNode) and isinstance(table, MappingNode)
        ]
        self._visit(self.root, ())
        for scope in scopes:
            self._upgrade_trainer(scope, below)
            if not scope.path:
                below = {**below, **scope.nodes}

    def note(self, origin: Origin, was: str, today: list[str], reason: str) -> None:
        """Record a change."""
        self.changes.append((origin.line or 0, f"{was} -> {', '.join(today) or 'nothing'} ({reason})"))

    def refuse(self, origin: Origin, says: str) -> None:
        """Record something that cannot be upgraded."""
        self.errors.append(error_at(says, origin))

    def _format(self, path: KeyPath, value: Any) -> str:
        text = value if isinstance(value, str) and value else self.text.write(value)
        return f"{dotted(path)}: {text if len(text) <= 110 else text[:110] + '...'}"

    # -- the trainer -------------------------------------------------------------------------------------------------

    def _scope(self, path: KeyPath, mapping: yaml.MappingNode, table: MappingNode) -> _Scope:
        own, trainer = entries_of(mapping).get("trainer"), table.entries.get("trainer")
        entries = entries_of(own.value) if own else {}
        nodes = dict(trainer.entries) if isinstance(trainer, MappingNode) else {}
        scope = _Scope(path, mapping, table, entries, nodes, [])
        for entry in entries_of(mapping).values():
            if entry.key not in table.entries or not _is_trainer_argument(entry.key, table.entries[entry.key]):
                continue
            node = table.entries[entry.key]
            origin, value = self.text.origin(entry.name), plain(node)
            was, why = self._format((*path, entry.key), value), "arguments of the trainer stand under trainer"
            if mapping.flow_style or (own and own.value.value and not _is_block(own.value)):
                self.refuse(origin, f"{was}: {why}; put it there, and upgrade again")
            elif self._is_referred_to((*path, entry.key)):
                self.refuse(origin, f"{was}: {why}, but ${{{entry.key}}} refers to it here; write its value out there")
            elif entry.key in entries:
                there = plain(nodes[entry.key])
                if there != value:
                    other = self._format((*path, "trainer", entry.key), there)
                    self.refuse(origin, f"{was}: contradicts {other}; say one")
                self.note(origin, was, [self._format((*path, "trainer", entry.key), there)], "it stands there already")
                self.text.removed.append(entry)
            else:
                scope.flat.append(entry)
                scope.entries[entry.key], scope.nodes[entry.key] = entry, node
                self.moved.add(id(entry.name))
        return scope

    def _is_referred_to(self, path: KeyPath) -> bool:
        """Tell whether an interpolation refers to a key or to what is below it."""
        return re.search(r"\$\{\s*" + re.escape(dotted(path)) + r"\s*[}.\[]", self.text.text) is not None

    def _upgrade_trainer(self, scope: _Scope, below: Mapping[str, Node]) -> None:
        beside: dict[str, Any] = {}
        trainer = entries_of(scope.mapping).get("trainer")
        values = {key: plain(node) for key, node in scope.nodes.items()}
        results: dict[str, tuple[str, Result]] = self._convert_hardware(scope, below)
        for key, rule in {**REMOVED_ARGUMENTS, **CHANGED_ARGUMENTS}.items():
            if key in values:
                results[key] = rule.reason, rule.convert(values[key], values)
        for key in [key for key in scope.nodes if key in results]:
            reason, result = results[key]
            where = self._format((*scope.path, "trainer", key), values[key])
            if result is not None and _is_interpolated(values[key]) and not _keeps(result):
                says = f"{where}: {reason}; what it is today depends on its value, write that out"
                self.refuse(scope.nodes[key].origin, says)
            elif isinstance(result, str):
                self.refuse(scope.nodes[key].origin, f"{where}: {reason}; {result}")
            elif result is not None:
                result = self._drop_doubles(result, scope)
                if key in scope.entries and scope.entries[key].value.tag != "alias":
                    beside = _merge(beside, self._replace_argument(scope, key, result, reason))
                else:
                    says = "it comes from an anchor, which may serve others too; write it out here, and upgrade again"
                    self.refuse(scope.nodes[key].origin, f"{where}: {says}")
        self._move(scope, trainer)
        self._put_beside(scope, trainer, beside)

    def _replace_argument(self, scope: _Scope, key: str, result: Keys, reason: str) -> Keys:
        """Write what became of one argument of the trainer; return what goes beside the trainer."""
        entry, path, value = scope.entries[key], (*scope.path, "trainer"), plain(scope.nodes[key])
        origin, was = self.text.origin(entry.name), self._format((*path, key), value)
        source = self.text.source(entry.value)
        is_line = (isinstance(entry.value, yaml.ScalarNode) or is_flow(entry.value)) and "\n" not in source
        written = Source(source) if is_line and source[:1] not in ("", "|", ">", "&", "!") else value
        today, keys, beside, overruled = [], {}, {}, {}
        for place, new in result.items():
            head, _, new_key = place.partition(".")
            wanted = _fill(new, written)
            if head != "trainer":
                home = new_key if head == "fit" and scope.stage else place
                beside[home] = wanted
                today.append(self._format((*scope.path, home), wanted))
                continue
            today.append(self._format((*path, new_key), value if new is KEEP else new))
            final = value if new is KEEP else new
            if new_key == key or new_key in HARDWARE_REASONS or new_key not in scope.nodes:
                keys[new_key] = new if new is KEEP else wanted
            elif plain(scope.nodes[new_key]) != final:
                if plain(scope.nodes[new_key]) != DEFAULTS.get(new_key, ...):
                    other = self._format((*path, new_key), plain(scope.nodes[new_key]))
                    self.refuse(origin, f"{was}: contradicts {other}; say one of them")
                    return {}
                overruled[new_key] = final
        if key not in keys and self._is_referred_to((*path, key)):
            says = f"{was}: {reason}, but ${{{dotted((*path, key))}}} refers to it; write its value out there"
            self.refuse(origin, says)
            return {}
        for new_key, final in overruled.items():
            self.text.set_value(scope.entries[new_key], self.text.write(final))
        if KEEP in keys.values() and not is_line:  # what stands on several lines stays there
            keys = dict(sorted(keys.items(), key=lambda pair: pair[1] is not KEEP))
        first, *others = keys or [""]
        self.text.replace(entry, {**{k: keys[k] for k in [first] if k}, **{k: _fill(keys[k], written) for k in others}})
        self.note(origin, was, today, reason)
        return beside

    def _drop_doubles(self, result: Keys, scope: _Scope) -> Keys:
        """Leave out a bar or summary where there is one, or none is wanted, and a logger where loggers are named."""
        listed = plain(scope.nodes["callbacks"]) if "callbacks" in scope.nodes else None
        callbacks = [
            str(each.get("class_path") if isinstance(each, dict) else each)
            for each in (listed if isinstance(listed, list) else [listed])
        ]
        no_bar = "enable_progress_bar" in scope.nodes and plain(scope.nodes["enable_progress_bar"]) is False
        loggers = scope.table.entries.get("logger")
        has_loggers = isinstance(loggers, MappingNode) and any(
            plain(child) is not None for child in loggers.entries.values()
        )
        dropped = {
            "callbacks.progress_bar": no_bar or any(name.endswith("ProgressBar") for name in callbacks),
            "callbacks.model_summary": any(name.endswith("ModelSummary") for name in callbacks),
            "logger.tensorboard": has_loggers,
            "fit.ckpt_path": scope.stage not in ("", "fit"),  # 1.x heeded it when it fitted
        }
        return {place: new for place, new in result.items() if not dropped.get(place)}

    def _move(self, scope: _Scope, trainer: Entry | None) -> None:
        """Move arguments of the trainer under ``trainer``, with the comments above them."""
        self.text.write_removals()
        moved: list[str] = []
        at = None
        for entry in scope.flat:
            margin, start = " " * self.text.column(entry), self.text.line_start(entry.start)
            low, high = start, self.text.next_line(self.text.end(entry))
            while low > 0 and self.text.text[(above := self.text.line_start(low - 1)) : low].startswith(f"{margin}#"):
                low = above
            low = low or start  # comments at the very top are the file's
            inner = list(entries_of(trainer.value).values())[:1] if trainer and _is_block(trainer.value) else []
            column = self.text.column(inner[0]) if inner else len(margin) + self.text.step
            own, lines = self.text.apply(start, high).splitlines(), self.text.text[low:start].splitlines()
            if not any(line.strip() and not line.lstrip().startswith("#") for line in own):
                self.text.edits.append((start, high, self.text.newline.join([*own, ""])))
                continue
            by = column - len(margin)
            moved += (
                [" " * by + line if line.strip() else line for line in [*lines, *own]] if by >= 0 else [*lines, *own]
            )
            at = low if at is None else at
            self.text.edits.append((low, high, ""))
            was = self._format((*scope.path, entry.key), plain(scope.nodes[entry.key]))
            if not any(line == self.text.origin(entry.name).line for line, _ in self.changes):
                today = [self._format((*scope.path, "trainer", entry.key), plain(scope.nodes[entry.key]))]
                self.note(self.text.origin(entry.name), was, today, "arguments of the trainer stand under trainer")
        if moved and at is not None:
            if trainer is None:
                moved.insert(0, " " * self.text.column(scope.flat[0]) + "trainer:")
            else:
                at = self.text.after(self.text.end(trainer), self.text.column(trainer) + 1)
                self.text.added.append(trainer.value)
            self.text.insert(at, moved)

    def _put_beside(self, scope: _Scope, trainer: Entry | None, beside: Keys) -> None:
        sections: dict[str, Any] = {}
        for place, value in beside.items():
            section, _, key = place.partition(".")
            sections[section] = {**sections.get(section, {}), key: value} if key else value
        for section, value in sections.items():
            held, node = entries_of(scope.mapping).get(section), scope.table.entries.get(section)
            taken = [(*scope.path, section)] if held else []
            if held is None or node is None:
                self.text.append(scope.mapping, section, value, after=trainer or scope.flat[-1])
                continue
            if plain(node) is None and isinstance(value, Mapping):
                taken = []
                self.text.set_value(held, self.text.write(value))
            elif (
                isinstance(held.value, yaml.MappingNode)
                and isinstance(node, MappingNode)
                and isinstance(value, Mapping)
            ):
                taken = [(*scope.path, section, key) for key in value if key in node.entries]
                for key in [key for key in value if key not in node.entries]:
                    self.text.append(held.value, key, value[key])
            for path in taken:
                trainer_path = dotted((*scope.path, "trainer"))
                says = f"{dotted(path)}: it stands here already, and {trainer_path} says something of it too"
                self.refuse(self.text.origin(held.name), f"{says}; say it here, and take it out there")

    # -- hardware ----------------------------------------------------------------------------------------------------

    def _convert_hardware(self, scope: _Scope, below: Mapping[str, Node]) -> dict[str, tuple[str, Result]]:
        """Convert the hardware keys of a trainer as `resolve_hardware` understands them.

        Args:
            scope: The trainer.
            below: Values of the files that it extends: ``num_processes: 1``, the default of 1.x, asks for a CPU only
                where nothing names another device.
        """
        given = {key: node for key, node in scope.nodes.items() if key in (*OLD_HARDWARE_KEYS, *HARDWARE_DEFAULTS)}
        if (word := self._find_strategy_plugin(scope)) is not None:
            given["plugins"] = word
        for key, node in list(given.items()):
            if _is_interpolated(plain(node)):
                del given[key]
                if key in OLD_HARDWARE_KEYS:
                    own = f", or keep it in lightkit's own block, as accelerator: {{{key}: ...}}"
                    says = f"trainer.{key}: {plain(node)}: what it is today depends on its value; write the value out"
                    self.refuse(node.origin, says + (own if key in OLD_TRAINER_KEYS else ""))
        trainer = {key: node for key, node in given.items() if key not in ("distributed_backend", "plugins")}
        for key, targets in (("distributed_backend", ("accelerator", "strategy")), ("plugins", ("strategy",))):
            if key not in given or plain(given[key]) is None:
                continue
            free = [target for target in targets if target not in trainer or plain(trainer[target]) is None]
            if free:
                trainer[free[0]] = given[key]
            else:
                was = self._format(("trainer", key), plain(given[key]))
                self.refuse(given[key].origin, f"{was}: contradicts trainer.{targets[-1]}; say one of them")
        before, block = len(self.errors), scope.table.entries.get("accelerator")
        alone = {key: node for key, node in trainer.items() if self._try({key: node}) is not None}
        if len(self.errors) > before:
            self._try(alone)  # report contradictions too
        if len(self.errors) > before or not trainer:
            return {}
        lower = {
            key: node
            for key, node in below.items()
            if key in (*OLD_TRAINER_KEYS, *HARDWARE_DEFAULTS) and not _is_interpolated(plain(node))
        }
        try:
            trainer = {**lower, **trainer}
            found, strategy = _resolve(trainer, block)
        except ConfigError:  # what is below contradicts it, or itself
            trainer = {key: node for key, node in trainer.items() if lower.get(key) is not node}
            resolved = self._try(trainer, block)
            if resolved is None:
                return {}
            found, strategy = resolved
        if strategy == "horovod" and "strategy" in found:
            by = found["strategy"].origin
            rest = {key: node for key, node in trainer.items() if node.origin != by}
            other = (self._try(rest) or ({}, None))[0] if rest else {}
            found = {
                **{key: node for key, node in other.items() if key != "strategy"},
                **{key: node for key, node in found.items() if key in ("strategy", "precision")},
            }
            if not any(node.origin == by and isinstance(node, MappingNode) for node in given.values()):
                found["strategy"] = Leaf("horovod", by)
        results = {key: _find_keys(key, node, found) for key, node in given.items()}
        return {
            key: (HARDWARE_REASONS[key], keys)
            for key, keys in results.items()
            if keys is not None and keys != {f"trainer.{key}": KEEP}
        }

    def _try(self, trainer: Mapping[str, Node], block: Node | None = None) -> tuple[dict[str, Node], str | None] | None:
        try:
            return _resolve(trainer, block)
        except ConfigError as error:
            self.errors += [error] if str(error) not in map(str, self.errors) else []
            return None

    def _find_strategy_plugin(self, scope: _Scope) -> Node | None:
        """Give the name of a strategy under ``plugins``; a strategy's class becomes ``strategy`` at once."""
        entry = scope.entries.get("plugins")
        if entry is None:
            return None
        items = entry.value.value if isinstance(entry.value, yaml.SequenceNode) else [entry.value]
        strategies = [item for item in items if _is_strategy_plugin(item)]
        path = (*scope.path, "trainer")
        if not strategies:
            return None
        if len(items) > 1:
            says = f"{HARDWARE_REASONS['plugins']}; say it under {dotted((*path, 'strategy'))}"
            self.refuse(self.text.origin(strategies[0]), f"{dotted((*path, 'plugins'))}: {says}")
        elif isinstance(strategies[0], yaml.ScalarNode) and "." not in strategies[0].value:
            return Leaf(scalar_value(strategies[0]), scope.nodes["plugins"].origin)
        elif "strategy" in scope.nodes and plain(scope.nodes["strategy"]) is not None:
            says = f"contradicts {dotted((*path, 'strategy'))}; say one of them"
            self.refuse(self.text.origin(strategies[0]), f"{dotted((*path, 'plugins'))}: {says}")
        else:
            self.text.removed += [scope.entries[key] for key in ["strategy"] if key in scope.entries]
            self.text.rename(entry, "strategy")
            start, end = entry.value.start_mark.index, self.text.end(entry.value)
            if isinstance(entry.value, yaml.SequenceNode) and entry.value.flow_style:
                self.text.edits += [(start, items[0].start_mark.index, ""), (self.text.end(items[0]), end, "")]
            elif isinstance(entry.value, yaml.SequenceNode):
                self.text.edits.append((start, start + 1, " "))  # the dash
            today = [dotted((*path, "strategy"))]
            self.note(self.text.origin(entry.name), dotted((*path, "plugins")), today, HARDWARE_REASONS["plugins"])
        return None

    # -- classes -----------------------------------------------------------------------------------------------------

    def _visit(self, node: yaml.Node, path: KeyPath) -> None:
        """Rewrite the paths and arguments of Lightning's classes, wherever they stand."""
        if isinstance(node, yaml.ScalarNode):
            self._rename_class(node, path, None)
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self._visit(item, (*path, index))
        elif isinstance(node, yaml.MappingNode):
            entries = entries_of(node)
            if "class_path" in entries and isinstance(entries["class_path"].value, yaml.ScalarNode):
                self._rename_class(entries["class_path"].value, (*path, "class_path"), node)
            for entry in entries.values():
                if entry.key != "class_path":
                    parent = ("trainer",) if id(entry.name) in self.moved else ()
                    self._visit(entry.value, (*path, *parent, entry.key))

    def _rename_class(self, node: yaml.ScalarNode, path: KeyPath, holder: yaml.MappingNode | None) -> None:
        """Rewrite a class's path.

        Args:
            node: The path.
            path: Where it stands.
            holder: The mapping with that ``class_path``; None for a class without arguments.
        """
        word = scalar_value(node)
        keys = [key for key in path if isinstance(key, str) and key != "class_path"]
        module = CLASS_MODULES.get(keys[-1].removesuffix("+")) if keys[-2:-1] == ["trainer"] else None
        if not isinstance(word, str):
            return None
        today, reason = find_class(word, module) or (word, "")
        added = ADDED_ARGUMENTS.get(word.rpartition(".")[2], {}) if reason else {}
        where = self._format(path, word)
        if today is None:
            return self.refuse(self.text.origin(node), f"{where}: {reason}")
        if holder is None and added:
            says = f"write it as class_path: {today}, with init_args {added}"
            return self.refuse(self.text.origin(node), f"{where}: {says}")
        if holder is not None and (LIGHTNING_CLASS.fullmatch(word) or (module and "." not in word)):
            self._upgrade_arguments(holder, path[:-1], CLASS_ARGUMENTS.get(word.rpartition(".")[2], {}))
        if today == word:
            return None
        self.text.edits.append((node.start_mark.index, self.text.end(node), self.text.write(today)))
        self.note(self.text.origin(node), where, [today], reason)
        arguments = entries_of(holder).get("init_args")
        for key, value in added.items():
            if arguments is None and holder is not None:
                self.text.append(holder, "init_args", {key: value})
            elif arguments is not None and isinstance(arguments.value, yaml.MappingNode):
                if key in entries_of(arguments.value):
                    continue
                self.text.append(arguments.value, key, value)
            place = (*path[:-1], "init_args", key)
            self.note(self.text.origin(node), dotted(path[:-1]), [self._format(place, value)], "what it was by itself")
        return None

    def _upgrade_arguments(self, holder: yaml.MappingNode, path: KeyPath, rules: Mapping[str, Rule]) -> None:
        given = entries_of(entries_of(holder)["init_args"].value) if "init_args" in entries_of(holder) else {}
        values = {key: scalar_value(entry.value) for key, entry in given.items()}
        for key in [key for key in given if key in rules]:
            reason, value = rules[key].reason, values[key]
            result = rules[key].convert(value, values)
            where = self._format((*path, "init_args", key), "..." if value is ... else value)
            if isinstance(result, dict):
                clash = [
                    new for new in result if new != key and new in values and values[new] != _fill(result[new], value)
                ]
                if clash:
                    result = f"contradicts {clash[0]}; say one of them"
                elif _is_interpolated(value) and not _keeps(result):
                    result = "what it is today depends on its value"
            if isinstance(result, str):
                self.refuse(self.text.origin(given[key].value), f"{where}: {reason}; {result}")
            elif result is not None:
                self.text.replace(given[key], {new: result[new] for new in result if new == key or new not in values})
                today = [self._format((*path, "init_args", new), _fill(result[new], value)) for new in result]
                self.note(self.text.origin(given[key].name), where, today, reason)


def _is_trainer_argument(key: str, node: Node) -> bool:
    """Tell whether a key beside ``trainer`` is an argument of the trainer, and nothing else that lightkit knows."""
    if key == "accelerator":
        return _is_strategy(plain(node))
    if key in ("callbacks", "logger"):
        is_class = isinstance(node, MappingNode) and "class_path" in node.entries
        return isinstance(node, Items) or is_class or isinstance(plain(node), bool)
    return key in OLD_ARGUMENTS or key in load_schema().data["sections"]["trainer"]["arguments"]


def _is_block(node: yaml.Node) -> bool:
    return isinstance(node, yaml.MappingNode) and not node.flow_style


def _is_strategy_plugin(item: yaml.Node) -> bool:
    named = entries_of(item)["class_path"].value if "class_path" in entries_of(item) else item
    word = scalar_value(named)
    if not isinstance(word, str):
        return False
    today, _ = find_class(word, "plugins") or ("", "")
    is_class = ".strategies." in f".{today}" or today == HOROVOD if today else today is None and "Precision" not in word
    return is_class or (named is item and word[:1].islower() and "." not in word)


def _resolve(trainer: Mapping[str, Node], block: Node | None) -> tuple[dict[str, Node], str | None]:
    """Resolve hardware keys to today's keys of the trainer and the strategy's name."""
    top: dict[str, Node] = {"trainer": MappingNode(dict(trainer), Origin("default"))}
    if block is not None:  # what goes to other sections is not looked at here
        kept = (
            {}
            if not isinstance(block, MappingNode)
            else {key: node for key, node in block.entries.items() if key not in COMPUTING_KEYS or key == "precision"}
        )
        top["accelerator"] = replace(block, entries=kept) if isinstance(block, MappingNode) else block
    rules = MergeRules(CLASS_SECTIONS, {"callbacks": {}, "logger": {}}, WORDS)
    tree = rules.merge(MappingNode({}, Origin("default")), MappingNode(top, Origin("default")))
    assert isinstance(tree, MappingNode)
    hardware = resolve_hardware(Resolved(tree, rules), None, environ={})
    found = hardware.resolved.tree.entries["trainer"]
    entries = found.entries if isinstance(found, MappingNode) else {}
    return {key: entries[key] for key in HARDWARE_DEFAULTS if key in entries}, hardware.strategy


def _find_keys(key: str, node: Node, found: Mapping[str, Node]) -> Keys | None:
    """List today's keys that a value became; None where it stays."""

    def is_same(new: Node) -> bool:
        if isinstance(new, MappingNode) and not isinstance(node, MappingNode):
            return bool(plain(new) == {"class_path": plain(node)})
        return type(plain(new)) is type(plain(node)) and bool(plain(new) == plain(node))

    own = {name: new for name, new in found.items() if new.origin == node.origin}
    if list(own) == [key] and (own[key] is node or is_same(own[key])):
        return None
    changed = {name: new for name, new in own.items() if plain(new) != HARDWARE_DEFAULTS[name]}
    if len(own) == 1 or (len(changed) == 0 and key in own):
        changed = {name: new for name, new in own.items() if name == key or name in changed}
    keys = {name: KEEP if is_same(new) and key != "plugins" else plain(new) for name, new in changed.items()}
    if key == "gpus" and keys == {"accelerator": "cpu"} and "devices" not in found:
        keys["devices"] = "auto"  # else the number of a layer below would count processes
    return {f"trainer.{name}": keys[name] for name in sorted(keys, key=lambda name: name != key)}


def _fill(value: Any, source: Any) -> Any:
    """Put the old value where `KEEP` stands."""
    if isinstance(value, Mapping):
        return {key: _fill(child, source) for key, child in value.items()}
    return source if value is KEEP else value


def _merge(one: Any, other: Any) -> Any:
    if not (isinstance(one, Mapping) and isinstance(other, Mapping)):
        return other
    return {**one, **{key: _merge(one.get(key), child) for key, child in other.items()}}


def _keeps(result: Result) -> bool:
    """Tell whether any value stays as it is written."""
    return isinstance(result, dict) and bool(result) and all(value is KEEP for value in result.values())


# -- the text --------------------------------------------------------------------------------------------------------
# Edited by the positions of PyYAML's nodes, so that all other bytes stay as they are. A round trip through
# ruamel.yaml keeps comments too, but joins wrapped lists, evens out spaces, and moves the comments of removed keys.


class _Composer(yaml.SafeLoader):
    """Composes nodes with the positions of their text, where aliases are nodes of their own."""

    yaml_implicit_resolvers = YamlLoader.yaml_implicit_resolvers

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node:
        if self.check_event(yaml.AliasEvent):
            event: Any = self.get_event()  # type: ignore[no-untyped-call]
            return yaml.ScalarNode("alias", event.anchor, event.start_mark, event.end_mark)
        node = super().compose_node(parent, index)
        assert node is not None
        return node


class Entry(NamedTuple):
    """A key of a mapping with its value, as nodes of the text."""

    mapping: yaml.MappingNode
    key: str
    name: yaml.Node
    value: yaml.Node

    @property
    def start(self) -> int:
        """Offset of the key."""
        return int(self.name.start_mark.index)


def entries_of(node: yaml.Node | None) -> dict[str, Entry]:
    """List the entries of a mapping by their keys; none where it is no mapping."""
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {str(name.value): Entry(node, str(name.value), name, value) for name, value in node.value}


def is_flow(node: yaml.Node) -> bool:
    """Tell whether a collection is written in braces or brackets."""
    return isinstance(node, yaml.CollectionNode) and bool(node.flow_style)


def scalar_value(node: yaml.Node) -> Any:
    """Read a scalar; other values are not looked at."""
    if not isinstance(node, yaml.ScalarNode) or node.tag == "alias":
        return ...
    return node.value if node.style else None if node.value == "" else read_scalar(node.value)


class YamlText:
    """YAML text, the positions of its nodes, and the changes to make."""

    def __init__(self, text: str, name: str) -> None:
        self.text, self.name = text, name
        self.root = yaml.compose(text, Loader=_Composer)
        found = re.search("\r\n|[\n\r]", text)
        self.newline = found[0] if found else "\n"
        self.is_json = _is_json(text)
        self.edits: list[tuple[int, int, str]] = []
        self.removed: list[Entry] = []
        self.added: list[yaml.Node] = []
        steps = [
            self.column(inner) - self.column(entry)
            for entry in self.walk()
            for inner in list(entries_of(entry.value).values())[:1]
            if not is_flow(entry.value)
        ]
        self.step = max(set(steps), key=lambda step: (steps.count(step), step == 2), default=2)

    def walk(self, node: yaml.Node | None = None) -> Iterator[Entry]:
        """List the entries of all mappings."""
        node = node or self.root
        for entry in entries_of(node).values():
            yield entry
            yield from self.walk(entry.value)
        if isinstance(node, yaml.SequenceNode):
            for item in node.value:
                yield from self.walk(item)

    def end(self, node: yaml.Node | Entry) -> int:
        """Give the offset after a node; PyYAML's own mark of a block is where the next token begins."""
        if isinstance(node, Entry):
            return max(node.name.end_mark.index, self.end(node.value))
        if isinstance(node, yaml.ScalarNode) and node.style in ("|", ">"):
            start = node.start_mark.index
            return int(start + len(self.text[start : node.end_mark.index].rstrip()))
        if isinstance(node, yaml.ScalarNode) or is_flow(node):
            return int(node.end_mark.index)
        children = node.value if isinstance(node, yaml.SequenceNode) else [each for pair in node.value for each in pair]
        return max(map(self.end, children))

    def source(self, node: yaml.Node) -> str:
        """Give a node as it is written."""
        return self.text[node.start_mark.index : self.end(node)]

    def column(self, entry: Entry) -> int:
        """Give the column of an entry's key, from 0."""
        return int(entry.name.start_mark.column)

    def line_start(self, offset: int) -> int:
        """Give the offset at which a line begins."""
        return max(self.text.rfind(letter, 0, offset) for letter in "\r\n") + 1

    def next_line(self, offset: int) -> int:
        """Give the offset after the end of a line."""
        found = re.compile("\r\n|[\n\r]").search(self.text, offset)
        return found.end() if found else len(self.text)

    def after(self, offset: int, indent: int) -> int:
        """Give the start of the line after a block, whose last comments are as far in as its keys."""
        at = self.next_line(offset)
        while comment := re.compile(rf" {{{max(indent, 1)},}}#.*(\r\n|[\r\n]|\Z)").match(self.text, at):
            at = comment.end()
        return at

    def origin(self, node: yaml.Node) -> Origin:
        """Give the place of a node for an error."""
        mark, first = node.start_mark, self.line_start(node.start_mark.index)
        source = self.text[first : self.next_line(mark.index)].rstrip("\r\n")
        end = min(self.end(node) - first, len(source)) + 1
        return Origin("file", self.name, None, mark.line + 1, mark.column + 1, end, source)

    def comments(self, entry: Entry) -> list[str]:
        """Give the comments behind an entry and within it, each as a line of its own."""
        start = self.line_start(entry.start)
        text = self.text[start : self.next_line(self.end(entry))]
        nodes = [entry.name, entry.value]
        for node in nodes:
            if isinstance(node, yaml.ScalarNode):
                low, high = node.start_mark.index - start, self.end(node) - start
                text = text[:low] + re.sub(r"[^\r\n]", " ", text[low:high]) + text[high:]
            else:
                nodes += [each for child in node.value for each in (child if isinstance(child, tuple) else [child])]
        found = [re.search(r"(?:^|\s)(#.*)$", line.rstrip()) for line in text.splitlines()]
        return [" " * self.column(entry) + match[1] for match in found if match]

    def write(self, value: Any) -> str:
        """Write a value on one line."""
        if isinstance(value, Source):
            return str(value)
        if isinstance(value, Mapping):
            return "{" + ", ".join(f"{self.write(key)}: {self.write(child)}" for key, child in value.items()) + "}"
        if isinstance(value, (list, tuple)):
            return "[" + ", ".join(map(self.write, value)) + "]"
        text = json.dumps(value, ensure_ascii=False)
        if not self.is_json:
            plain_text = dump_yaml({"key": value}).removeprefix("key:").strip()
            is_plain = "\n" not in plain_text and not (isinstance(value, str) and re.search(r"[,\[\]{}]", value))
            text = plain_text if is_plain else text
        return text

    def lines(self, key: str, value: Any, indent: int) -> list[str]:
        """Write an entry as lines, mappings in block style."""
        if not (isinstance(value, Mapping) and value):
            return [f"{' ' * indent}{self.write(key)}: {self.write(value)}"]
        inner = [line for each, child in value.items() for line in self.lines(each, child, indent + self.step)]
        return [f"{' ' * indent}{self.write(key)}:", *inner]

    # -- changes -----------------------------------------------------------------------------------------------------

    def insert(self, offset: int, lines: list[str]) -> None:
        """Insert lines where a line begins, or after the last one."""
        text = self.newline.join(lines)
        at_end = offset == len(self.text) and not self.text.endswith(("\n", "\r"))
        self.edits.append((offset, offset, self.newline + text if at_end else text + self.newline))

    def set_value(self, entry: Entry, text: str) -> None:
        """Give an entry another value, on one line."""
        start, end = entry.value.start_mark.index, self.end(entry.value)
        is_block = not isinstance(entry.value, yaml.ScalarNode) and not is_flow(entry.value)
        if is_block:  # the comment behind its last line stays there
            behind = self.text[end : self.next_line(end)].strip()
            if lost := [comment for comment in self.comments(entry) if comment.strip() != behind]:
                self.insert(self.line_start(entry.start), lost)
        if is_block or start == end:  # several lines, or nothing
            start = self.text.index(":", entry.name.end_mark.index) + 1
            text, end = f" {text}", max(start, end if is_block else start)
        self.edits.append((start, end, text))

    def rename(self, entry: Entry, key: str) -> None:
        """Give an entry another key."""
        self.edits.append((entry.start, entry.name.end_mark.index, self.write(key)))

    def replace(self, entry: Entry, keys: Mapping[str, Any]) -> None:
        """Put other keys in the place of an entry; the first takes its line with the comment on it."""
        if not keys:
            self.removed.append(entry)
            return
        (key, value), *more = keys.items()
        if key != entry.key:
            self.rename(entry, key)
        if value is not KEEP:
            self.set_value(entry, self.write(value))
        if more and entry.mapping.flow_style:
            text = "".join(f", {self.write(k)}: {self.write(v)}" for k, v in more)
            self.edits.append((self.end(entry), self.end(entry), text))
        elif more:
            lines = [line for k, v in more for line in self.lines(k, v, self.column(entry))]
            self.insert(self.next_line(self.end(entry)), lines)

    def append(self, mapping: yaml.MappingNode, key: str, value: Any, *, after: Entry | None = None) -> None:
        """Add an entry to a mapping: after its last entry, or in block style after another one."""
        self.added.append(mapping)
        kept = [entry for entry in entries_of(mapping).values() if entry not in self.removed]
        if mapping.flow_style:
            at = self.end(kept[-1]) if kept else self.text.index("{", mapping.start_mark.index) + 1
            text = f"{', ' if kept else ''}{self.write(key)}: {self.write(value)}"
            self.edits.append((at, at, text))
            return
        indent = int(mapping.value[0][0].start_mark.column)
        at = self.after(self.end(mapping), indent) if after is None else self.after(self.end(after), indent + 1)
        self.insert(at, self.lines(key, value, indent))

    def result(self) -> str:
        """Give the text with all changes."""
        self.write_removals()
        return self.apply(0, len(self.text))

    def apply(self, start: int, end: int) -> str:
        """Give a part of the text with the changes in it, which are made then."""
        inside = [edit for edit in self.edits if start <= edit[0] <= edit[1] <= end]
        self.edits = [edit for edit in self.edits if edit not in inside]
        parts, at = [], start
        for low, high, text in sorted(inside, key=lambda edit: edit[:2]):
            if low >= at or high > at:  # not within what has been removed
                parts += [self.text[at:low], text]
                at = max(at, high)
        return "".join([*parts, self.text[at:end]])

    def write_removals(self) -> None:
        """Turn removed entries into edits; their comments stay, and a mapping that loses all is ``{}``."""
        for entry in self.removed:
            siblings = list(entries_of(entry.mapping).values())
            later = siblings[siblings.index(entry) + 1 :]
            kept = [each for each in siblings[: siblings.index(entry)] if each not in self.removed]
            start, end = self.line_start(entry.start), self.end(entry)
            is_empty = all(each in self.removed for each in siblings) and entry.mapping not in self.added
            if entry.mapping.flow_style:
                low = entry.start if later or not kept else self.end(kept[-1])
                self.edits.append((low, later[0].start if later else end, ""))
            elif self.text[start : entry.start].strip():  # behind the dash of a list's item
                self.edits.append((entry.start, later[0].start if later else end, "{}" if is_empty else ""))
            else:
                lines = "".join(comment + self.newline for comment in self.comments(entry))
                self.edits.append((start, self.next_line(end), lines))
                holders = [each for each in self.walk() if each.value is entry.mapping]
                if is_empty and entry == siblings[0] and holders:
                    colon = self.text.index(":", holders[0].name.end_mark.index) + 1
                    self.edits.append((colon, colon, " {}"))
        self.removed = []


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
