"""The trainer's arguments of Lightning 1.x that are gone or mean something else today: one rule each, with its reason.

Those for hardware are not here: `lightkit.config.accelerator` knows them.
Sources: Lightning's changelog, and its guides "Upgrade from 1.4 to the 2.0" to "from 1.9".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from lightkit.config.origins import KeyPath
from lightkit.config.upgrade.edits import SAME

__all__ = ["DEFAULTS", "GONE_ARGUMENTS", "OTHER_VALUES", "TRAINER_ARGUMENTS", "Refusal", "Rule", "Today", "rule_of"]

_CALLBACKS = "pytorch_lightning.callbacks."


@dataclass(frozen=True)
class Today:
    """What an argument is today.

    Args:
        keys: The trainer's keys that take its place; none where it goes away.
        beside: Values beside ``trainer``, by their paths there.
    """

    keys: tuple[tuple[str, Any], ...] = ()
    beside: tuple[tuple[KeyPath, Any], ...] = ()


class Refusal(str):
    """What to do instead, where there is no equivalent."""

    __slots__ = ()


class Rule(NamedTuple):
    """A rule for one argument.

    Args:
        why: What became of it.
        today: From its value, and from the command in whose block it stands (None at the top), to what it is today;
            None where nothing changes.
    """

    why: str
    today: Callable[[Any, str | None], Today | Refusal | None]


def rule_of(key: Any) -> Rule | None:
    """Give the rule of a trainer's argument, if it has one."""
    return GONE_ARGUMENTS.get(key) or OTHER_VALUES.get(key)


def _renamed(key: str) -> Callable[[Any, str | None], Today | Refusal]:
    def today(value: Any, _stage: str | None) -> Today | Refusal:
        if isinstance(value, (Mapping, list)):
            return Refusal(f"say {key}: true or false, and name a class under callbacks")
        return Today() if value is None else Today(((key, SAME),))

    return today


def _dropped(*defaults: Any, instead: str) -> Callable[[Any, str | None], Today | Refusal]:
    """Drop an argument whose value does nothing; refuse the others."""

    def today(value: Any, _stage: str | None) -> Today | Refusal:
        does_nothing = any(
            value is default or (type(value) is type(default) and value == default) for default in defaults
        )
        return Today() if does_nothing or value is None else Refusal(instead)

    return today


def _always_dropped(_value: Any, _stage: str | None) -> Today:
    return Today()


def _resume(value: Any, stage: str | None) -> Today:
    if value is None or stage not in (None, "fit"):  # 1.x heeded it when it fitted
        return Today()
    return Today(beside=((("ckpt_path",) if stage else ("fit", "ckpt_path"), SAME),))


def _progress_bar(argument: str, default: int) -> Callable[[Any, str | None], Today]:
    def today(value: Any, _stage: str | None) -> Today:
        if value in (None, default):
            return Today()
        if argument == "refresh_rate" and value == 0:
            return Today((("enable_progress_bar", False),))
        entry = {"class_path": f"{_CALLBACKS}TQDMProgressBar", "init_args": {argument: value}}
        return Today(beside=((("callbacks", "progress_bar"), entry),))

    return today


def _weights_summary(value: Any, _stage: str | None) -> Today | Refusal:
    if value is None:
        return Today((("enable_model_summary", False),))
    if value == "top":
        return Today((("enable_model_summary", True),))
    if value != "full":
        return Refusal("expected top, full or null")
    entry = {"class_path": f"{_CALLBACKS}ModelSummary", "init_args": {"max_depth": -1}}
    return Today((("enable_model_summary", True),), ((("callbacks", "model_summary"), entry),))


def _weights_save_path(value: Any, _stage: str | None) -> Today:
    if value is None:
        return Today()
    return Today(beside=((("callbacks", "checkpoint"), {"init_args": {"dirpath": SAME}}),))


def _device_stats(value: Any, _stage: str | None) -> Today:
    return Today() if value in (None, False) else Today(beside=((("callbacks", "device_stats"), {}),))


def _switch(**keys: Any) -> Callable[[Any, str | None], Today]:
    """Turn true into other keys, and drop false."""

    def today(value: Any, _stage: str | None) -> Today:
        return Today(tuple(keys.items())) if value is True else Today()

    return today


def _logger(value: Any, _stage: str | None) -> Today | None:
    return Today(beside=((("logger", "tensorboard"), {}),)) if value is True else None


def _accumulate(value: Any, _stage: str | None) -> Today | None:
    if value is None:
        return Today()
    if not isinstance(value, Mapping):
        return None
    return Today(beside=((("callbacks", "gradient_accumulation"), {"init_args": {"scheduling": dict(value)}}),))


def _max_steps(value: Any, _stage: str | None) -> Today | None:
    return Today((("max_steps", -1),)) if value is None else None


def _profiler(value: Any, _stage: str | None) -> Today | None:
    return Today((("profiler", "simple"),)) if value is True else Today() if value is False else None


_APEX = "say precision: 16-mixed, which is torch's own, and leave it out"
_TUNER = "1.x heeded it in trainer.tune() only; leave it out, or say callbacks: {name: {}} to search as each fit begins"

_BAR = "Lightning 1.7 made it an argument of the bar; without the entry lightkit shows its own"

GONE_ARGUMENTS: dict[str, Rule] = {
    "amp_backend": Rule("Lightning 2.0 dropped NVIDIA Apex", _dropped("native", instead=_APEX)),
    "amp_level": Rule("Lightning 2.0 dropped NVIDIA Apex", _dropped(instead=_APEX)),
    "auto_lr_find": Rule(
        "Lightning 2.0 made it a callback", _dropped(False, instead=_TUNER.replace("name", "lr_finder"))
    ),
    "auto_scale_batch_size": Rule(
        "Lightning 2.0 made it a callback",
        _dropped(
            False,
            instead="1.x heeded it in trainer.tune() only; leave it out, or add the callback BatchSizeFinder",
        ),
    ),
    "auto_select_gpus": Rule(
        "Lightning 2.0 dropped it",
        _dropped(False, instead="name the GPUs, as in devices: [0, 3], or set CUDA_VISIBLE_DEVICES, and leave it out"),
    ),
    "automatic_optimization": Rule(
        "Lightning 1.3 moved it into the model",
        _dropped(True, instead="set self.automatic_optimization = False in the model, and leave it out"),
    ),
    "checkpoint_callback": Rule("Lightning 1.7 renamed it", _renamed("enable_checkpointing")),
    "enable_pl_optimizer": Rule("Lightning 1.3 dropped it; it is always so", _always_dropped),
    "flush_logs_every_n_steps": Rule("Lightning 1.7 dropped it; loggers flush by themselves", _always_dropped),
    "log_gpu_memory": Rule("Lightning 1.7 made it a callback", _device_stats),
    "move_metrics_to_cpu": Rule(
        "Lightning 2.0 dropped it",
        _dropped(False, instead="move them in the model, as in self.log(name, value.cpu()), and leave it out"),
    ),
    "multiple_trainloader_mode": Rule(
        "Lightning 2.0 dropped it",
        _dropped(
            "max_size_cycle",
            instead="let train_dataloader return a CombinedLoader(loaders, mode=...), and leave it out",
        ),
    ),
    "prepare_data_per_node": Rule(
        "Lightning 1.7 moved it into the data module",
        _dropped(True, instead="set self.prepare_data_per_node = False in the data module, and leave it out"),
    ),
    "process_position": Rule(_BAR, _progress_bar("process_position", 0)),
    "progress_bar_refresh_rate": Rule(_BAR, _progress_bar("refresh_rate", 1)),
    "reload_dataloaders_every_epoch": Rule(
        "Lightning 1.6 made it a number", _switch(reload_dataloaders_every_n_epochs=1)
    ),
    "replace_sampler_ddp": Rule("Lightning 2.0 renamed it", _renamed("use_distributed_sampler")),
    "resume_from_checkpoint": Rule("Lightning 2.0 made it an argument of fit", _resume),
    "stochastic_weight_avg": Rule(
        "Lightning 1.7 made it a callback, whose learning rate must be said now",
        _dropped(False, instead="say callbacks: {swa: {swa_lrs: RATE}}, and leave it out"),
    ),
    "terminate_on_nan": Rule("Lightning 1.7 dropped it for detect_anomaly", _switch(detect_anomaly=True)),
    "track_grad_norm": Rule(
        "Lightning 2.0 dropped it",
        _dropped(
            -1,
            instead="log it in the model: self.log_dict(grad_norm(self, norm_type=2)) in on_before_optimizer_step, "
            "with grad_norm from pytorch_lightning.utilities",
        ),
    ),
    "truncated_bptt_steps": Rule(
        "Lightning 2.0 dropped it", _dropped(0, instead="split the sequence in the model, with manual optimization")
    ),
    "weights_save_path": Rule("Lightning 1.8 made it an argument of the checkpoint callback", _weights_save_path),
    "weights_summary": Rule("Lightning 1.7 renamed it; its depth is a callback's argument", _weights_summary),
}
"""Arguments that today's trainer has not."""

OTHER_VALUES: dict[str, Rule] = {
    "accumulate_grad_batches": Rule("Lightning 2.0 takes a number; a schedule is a callback's", _accumulate),
    "logger": Rule("a logger is an entry with a name here; true was TensorBoard", _logger),
    "max_steps": Rule("Lightning 1.7 takes -1 for no limit", _max_steps),
    "profiler": Rule("Lightning 1.4 takes the name of a profiler", _profiler),
}
"""Arguments that today's trainer has, of which it no longer takes every value."""

DEFAULTS = {
    "detect_anomaly": False,
    "enable_checkpointing": True,
    "enable_model_summary": True,
    "enable_progress_bar": True,
    "reload_dataloaders_every_n_epochs": 0,
    "use_distributed_sampler": True,
}
"""What 1.5 had by default in the arguments that rules write; its `--print_config` prints both words."""

TRAINER_ARGUMENTS = (
    *("accelerator", "strategy", "devices", "num_nodes", "precision", "logger", "callbacks", "fast_dev_run"),
    *("max_epochs", "min_epochs", "max_steps", "min_steps", "max_time", "limit_train_batches", "limit_val_batches"),
    *("limit_test_batches", "limit_predict_batches", "overfit_batches", "val_check_interval"),
    *("check_val_every_n_epoch", "num_sanity_val_steps", "log_every_n_steps", "enable_checkpointing"),
    *("enable_progress_bar", "enable_model_summary", "accumulate_grad_batches", "gradient_clip_val"),
    *("gradient_clip_algorithm", "deterministic", "benchmark", "inference_mode", "use_distributed_sampler"),
    *("profiler", "detect_anomaly", "barebones", "plugins", "sync_batchnorm", "reload_dataloaders_every_n_epochs"),
    *("default_root_dir", "enable_autolog_hparams", "model_registry"),
)
"""Arguments of today's trainer (2.6.6; a test compares them)."""
