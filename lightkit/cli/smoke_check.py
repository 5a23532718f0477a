"""`lightkit check --deep`: build a config on one CPU, run one batch of each loop, and keep nothing. Needs torch.

First comes what replaces the config's hardware, loggers and checkpoint files, then the parts, built one by one, then
the batch and the report.
"""

from __future__ import annotations

import io
import linecache
import logging
import math
import os
import pickle
import re
import resource
import shutil
import sys
import sysconfig
import tempfile
import time
import traceback
import urllib.request
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from pydoc import locate
from typing import Any, NoReturn
from unittest.mock import patch

import lightning_fabric
import psutil
import pytorch_lightning
import torch
from jsonargparse import Namespace
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import (
    BasePredictionWriter,
    BatchSizeFinder,
    EarlyStopping,
    LearningRateFinder,
    ModelCheckpoint,
    ProgressBar,
)
from pytorch_lightning.callbacks.model_summary import ModelSummary
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from pytorch_lightning.loggers.logger import DummyLogger
from pytorch_lightning.utilities.parsing import lightning_hasattr
from pytorch_lightning.utilities.seed import isolate_rng
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

import lightkit
from lightkit import runs
from lightkit.callbacks import Checkpoint
from lightkit.callbacks.checkpoint_io import CheckpointReader
from lightkit.callbacks.notifiers import Notifier
from lightkit.cli.context import RunContext
from lightkit.cli.lightning_cli import LightkitCLI
from lightkit.cli.lightning_errors import explain_lightning_errors, locate_lightning_error, unwrap_errors
from lightkit.cli.parser_errors import add_place
from lightkit.cli.supervision import make_plan
from lightkit.cli.trust import restrict_loading
from lightkit.config import KeyPath, Problems, Resolved, dotted, mistake, near, shown_path
from lightkit.errors import CheckpointError, ConfigError, DataError, LightkitError
from lightkit.hardware.processor import available_memory_bytes
from lightkit.loggers import CSV, MLflow, TensorBoard
from lightkit.models import ImageClassifier
from lightkit.models.backbones import SMALL_CNN
from lightkit.runs.deadline import format_duration
from lightkit.runs.files import existing_folder, in_bytes

__all__ = ["SmokeReport", "run_smoke_check"]

_LOOPS = {"train": "training", "val": "validation", "test": "test", "predict": "prediction"}
_TIGHT_MEMORY = 0.8  # of what is available

# -- in place of hardware, loggers, checkpoint files and downloads -----------------------------------------------------

_CPU_PRECISIONS = ("None", "32", "32-true", "64", "64-true", "bf16", "bf16-mixed", "bf16-true")
_TRAINER: dict[str, Any] = {
    "accelerator": "cpu", "devices": 1, "num_nodes": 1, "strategy": "auto", "sync_batchnorm": False,
    "fast_dev_run": False, "barebones": False, "min_epochs": None, "min_steps": None, "max_time": None,
    "num_sanity_val_steps": 0, "log_every_n_steps": 1, "profiler": None, "model_registry": None,
    "enable_progress_bar": False, "enable_model_summary": False,
}  # fmt: skip
"""Arguments of the trainer in place of the config's. Epochs, steps and training batches stay: schedules use them."""
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
_MAX_WRITTEN_BYTES = 100_000_000


class _NoLogger(DummyLogger):
    """Accepts every record and keeps none; its folder is removed at the end."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    @property
    def save_dir(self) -> str:
        return str(self._folder)


class _ByteCounter(io.RawIOBase):
    num_bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self.num_bytes += size
        return size


class _MeasuredCheckpoints(CheckpointReader):
    """Measures checkpoints, and writes small ones, for code that reads them again, below a folder that is removed."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self.last_size_bytes = 0

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        counter = _ByteCounter()
        try:
            torch.save(checkpoint, counter)  # type: ignore[arg-type]
        except (pickle.PicklingError, AttributeError, TypeError) as error:  # which of them depends on Python's version
            raise CheckpointError(f"a checkpoint of this model cannot be written: {error}") from error
        self.last_size_bytes = counter.num_bytes
        if self._is_temporary(path) and counter.num_bytes <= _MAX_WRITTEN_BYTES:
            super().save_checkpoint(checkpoint, path, storage_options)

    def remove_checkpoint(self, path: str | Path) -> None:
        if self._is_temporary(path):
            super().remove_checkpoint(path)

    def _is_temporary(self, path: str | Path) -> bool:
        return self._folder in Path(path).absolute().parents


def _refuse_download(url: Any, *_args: Any, **_kwargs: Any) -> NoReturn:
    raise DataError(
        f"{getattr(url, 'full_url', url)} would be downloaded, which check --deep does not do. Fetch it first: data "
        "with `lightkit fetch` and the same -c FILE, weights with a first fit or by hand."
    )


@contextmanager
def _isolate_process() -> Iterator[Path]:
    """Give a temporary folder, refuse downloads, and restore random numbers, variables and warnings at the end."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="lightkit-check-", ignore_cleanup_errors=True))
        stack.enter_context(isolate_rng(include_cuda=False))
        stack.enter_context(patch.dict(os.environ, _OFFLINE))
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message=".* available but not used")
        stack.enter_context(redirect_stdout(sys.stderr))  # standard output is the report's
        stack.enter_context(patch.object(urllib.request, "urlopen", _refuse_download))
        stack.enter_context(patch.object(torch.hub, "urlopen", _refuse_download))
        if (hub := sys.modules.get("huggingface_hub.constants")) is not None:  # it has read the variable already
            stack.enter_context(patch.object(hub, "HF_HUB_OFFLINE", True))
        yield Path(folder)


# -- errors of the config's own code -----------------------------------------------------------------------------------

_MAX_FRAMES = 3
_MAX_CHARS = 600
_WORKER_ERROR = "Original Traceback"  # torch's loader repeats the traceback of its process as text
_WORKER_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_LIGHTNING = {Path(str(package.__file__)).resolve().parent for package in (pytorch_lightning, lightning_fabric)}
_LIBRARIES = {
    Path(lightkit.__file__).resolve().parent,
    *(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")),
}


@contextmanager
def _collect_error(
    problems: Problems,
    resolved: Resolved,
    find_key: Callable[[], tuple[KeyPath, str]],
    owners: Sequence[tuple[KeyPath, object]] = (),
) -> Iterator[list[BaseException]]:
    """Keep an error of the block as a mistake in the config and go on; signals pass.

    Args:
        problems: Receives the mistake.
        resolved: The config.
        find_key: Gives the key and what fails, such as `cannot be built`, once the block has failed.
        owners: Objects by the key that made them; the one whose method was running is named in place of the key.

    Yields:
        List that holds the error after the block.
    """
    raised: list[BaseException] = []
    try:
        with explain_lightning_errors(resolved), unwrap_errors():
            yield raised
    except LightkitError as error:
        raised.append(error)
        problems.add(add_place(error, resolved))
    except (Exception, SystemExit) as error:  # noqa: BLE001 (any error of the user's code is reported)
        raised.append(error)
        path, doing = find_key()
        running = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
        path = next((key for it in reversed(running) for key, owner in owners if it is owner), path)
        problems.add(_format_crash(error, resolved, path, doing))


def _format_crash(error: BaseException, resolved: Resolved, path: KeyPath, doing: str) -> ConfigError:
    frames = _user_frames(error)
    if isinstance(error, ValueError) and frames and not _LIGHTNING.isdisjoint(frames[0][0].resolve().parents):
        return locate_lightning_error(
            error, resolved
        )  # Lightning checks some arguments of the trainer late, by plain ValueErrors
    text = str(error).strip().splitlines()[-1] if _WORKER_ERROR in str(error) else f"{type(error).__name__}: {error}"
    text = " ".join(resolved.masked(text).split()).removesuffix(":")
    lines = [f"{dotted(path)}: {doing}: {text if len(text) <= _MAX_CHARS else f'{text[:_MAX_CHARS]}...'}"]
    for file, line, function in frames:
        source = linecache.getline(str(file), line).strip()
        lines.append(f"  --> {shown_path(file)}:{line}, in {function}\n{line:>5} | {source}")
    return mistake("\n".join(lines), resolved.origin_of(path))


def _user_frames(error: BaseException) -> list[tuple[Path, int, str]]:
    """List file, line and function of the user's code that led to an error, innermost first; else the last frame."""
    found = [(Path(f.filename), f.lineno or 0, f.name) for f in traceback.extract_tb(error.__traceback__)]
    if _WORKER_ERROR in str(error):
        found += [(Path(file), int(line), name) for file, line, name in _WORKER_FRAME.findall(str(error))]
    found = [frame for frame in found if frame[0].is_file()]
    own = [frame for frame in found if _LIBRARIES.isdisjoint(frame[0].resolve().parents)]
    return own[: -_MAX_FRAMES - 1 : -1] if own else found[-1:]


# -- the parts ---------------------------------------------------------------------------------------------------------

_OFFLINE_LOGGERS = (CSV, CSVLogger, MLflow, TensorBoard, TensorBoardLogger)
"""Loggers that write nothing and ask no server until something is logged."""
_TRAINS_ITSELF = "built, but it trains by itself"
_NOT_RUN: dict[type[Callback], str] = {
    LearningRateFinder: _TRAINS_ITSELF,
    BatchSizeFinder: _TRAINS_ITSELF,
    BasePredictionWriter: "built, but it writes files",
    Notifier: "built, but it sends messages; lightkit notify-test tries them",
}


class _PartsCLI(LightkitCLI):
    """Parses as the command does and builds each part by itself, so that one that fails hides none of the others."""

    def __init__(self, context: RunContext, problems: Problems) -> None:
        self._problems, self._resolved = problems, context.resolved
        self.callbacks: list[Callback] = []
        self.finders: list[Callback] = []
        self.built_from: dict[int, tuple[KeyPath, Any]] = {}
        """Key and arguments of each callback, by its `id`."""
        self.not_tried: dict[str, str] = {}
        super().__init__(context=context)

    def instantiate_classes(self) -> None:
        """Build data, model, callbacks and loggers."""
        section = self.config[self.subcommand]
        self.config_init = self.config
        self.trainer_section = dict(vars(section["trainer"]))
        self.method_arguments = self._prepare_subcommand_kwargs_of(section)
        self._skip_default_weights(section.get("model"))
        self.datamodule = self._build("data", section.get("data"))
        self.model = self._build("model", section.get("model"))
        self.is_complete = self.model is not None and (self.datamodule is not None or not section.get("data"))
        if self.model is not None:
            self.defer_optimizers(self.model)
        for name, add in (("callbacks", self._add_callback), ("logger", self._add_logger)):
            value = self.trainer_section.get(name)
            entries = {f".{n}": entry for n, entry in enumerate(value)} if isinstance(value, list) else {"": value}
            for index, entry in entries.items():
                if entry is not None and not isinstance(entry, bool):
                    add(f"trainer.{name}{index}", entry)

    def _run_subcommand(self, subcommand: str) -> None:
        """Run nothing."""

    def _prepare_subcommand_kwargs_of(self, section: Any) -> dict[str, Any]:
        given = {name: section[name] for name in self._subcommand_method_arguments[str(self.subcommand)]}
        given |= {name: False for name in ("verbose", "return_predictions") if name in given}
        return given | ({"weights_only": restrict_loading(given["weights_only"])} if "weights_only" in given else {})

    def _skip_default_weights(self, model: Any) -> None:
        """Do not download weights: they change no shape, and training fetches them."""
        arguments = getattr(model, "init_args", {})
        if locate(str(getattr(model, "class_path", ""))) is not ImageClassifier:
            return
        if arguments.get("weights") == "default" and arguments.get("backbone") != SMALL_CNN:
            arguments["weights"] = None
            self.not_tried["model.init_args.weights"] = "default, which the first fit downloads unless it has them"

    def _build(self, key: str, value: Any) -> Any:
        """Build one part; None where that fails.

        One callback is built as a list, and one logger is not: jsonargparse 4.53 then keeps the constructor's error.
        """
        if value is None:
            return None
        name = _class_name(value)
        path = self._resolved.lightkit_path(key)
        place = f"{self.subcommand}.{key.rpartition('.')[0] if key[-1:].isdigit() else key}"
        is_callback = place.endswith(".callbacks")
        config = Namespace(subcommand=self.subcommand)  # type: ignore[no-untyped-call]
        built = None
        with _collect_error(self._problems, self._resolved, lambda: (path, f"{name} cannot be built")):
            config[place] = [value] if is_callback else value
            built = self.parser.instantiate_classes(config)[place]
        return built[0] if is_callback and built else built

    def _add_logger(self, key: str, value: Any) -> None:
        name = dotted(self._resolved.lightkit_path(key))
        if locate(value.class_path) not in _OFFLINE_LOGGERS:
            self.not_tried[name] = "not built: it may write, or ask a server"
        elif self._build(key, value) is not None:  # its constructor checks the arguments; a stand-in gets the records
            self.not_tried[name] = "built, but nothing is logged to it"

    def _add_callback(self, key: str, value: Any) -> None:
        callback, path = self._build(key, value), self._resolved.lightkit_path(key)
        is_off = isinstance(callback, Checkpoint) and self.trainer_section.get("enable_checkpointing") is False
        if callback is None or is_off or isinstance(callback, (ProgressBar, ModelSummary)):
            return
        self.built_from[id(callback)] = path, getattr(value, "init_args", {})
        reason = next((reason for kind, reason in _NOT_RUN.items() if isinstance(callback, kind)), None)
        if reason is None:
            self.callbacks.append(callback)
            return
        self.not_tried[dotted(path)] = reason
        if reason is _TRAINS_ITSELF:
            self.finders.append(callback)

    def create_optimizers(self, module: LightningModule) -> Any:
        """Build the config's optimizers when the trainer asks for them, and name the key whose class raises.

        Raises:
            ConfigError: In place of what the class raises.
        """
        try:
            return super().create_optimizers(module)
        except LightkitError:
            raise
        except Exception as error:
            objects = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
            key = "lr_scheduler" if any(isinstance(it, LRScheduler) for it in objects) else "optimizer"
            reason = " ".join(self._resolved.masked(str(error)).split())
            name = _class_name(self._get(self.config, key))
            says = f"{key}: {name} cannot be built: {type(error).__name__}: {reason}"
            raise mistake(says, self._resolved.origin_of((key,))) from error


def _class_name(value: Any) -> str:
    return str(getattr(value, "class_path", value)).rpartition(".")[2]


# -- the batch ---------------------------------------------------------------------------------------------------------


class _Probe(Callback):
    """Ends a training after its first batch, as its last: with the optimizer's step, validation and the hooks.

    Args:
        resolved: The config.
        path_of: Key of each callback, by its `id`.
        scratch: Folder for checkpoints, removed at the end.
        weights: Checkpoint whose weights a training starts from.
    """

    def __init__(
        self, resolved: Resolved, path_of: Mapping[int, KeyPath], scratch: Path, weights: str | None = None
    ) -> None:
        self._resolved, self._path_of, self._scratch, self._weights = resolved, path_of, scratch, weights
        self.folders: dict[int, Path | None] = {}
        self.phase = ""
        self.seconds: dict[str, float] = {}
        self.metrics: set[str] = set()
        self.monitors: list[tuple[KeyPath, str, str]] = []
        """Each metric that is needed: the key that names it, the class that reads it, the metric."""
        self.workers_bytes = 0
        self.state_bytes = 0
        self._started_s = 0.0
        self._has_batch = False

    def locate_error(self) -> tuple[KeyPath, str]:
        """Give the key that an error raised now is most likely about, and what fails."""
        is_data = self.phase and not self._has_batch and "data" in self._resolved.values
        doing = f"one batch of {_LOOPS[self.phase]} fails" if self.phase else "cannot be set up"
        return ("data",) if is_data else ("model",), doing

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Move checkpoint callbacks, the model's too, to the temporary folder."""
        for callback in trainer.checkpoint_callbacks:
            if isinstance(callback, ModelCheckpoint):
                self.folders[id(callback)] = None if callback.dirpath is None else Path(callback.dirpath)
                callback.dirpath = str(self._scratch)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Load weights alone: a checkpoint's loops would be at their end."""
        if self._weights is not None:
            content = trainer.strategy.load_checkpoint(self._weights, weights_only=True)
            trainer.strategy.load_model_state_dict(content, strict=pl_module.strict_loading)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note all monitors, and let callbacks and schedulers do without, so that none ends the batch."""
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, (EarlyStopping, ModelCheckpoint)) and callback.monitor is not None:
                path = self._path_of.get(id(callback))
                key = ("model",) if path is None else (*path, "init_args", "monitor")
                if isinstance(callback, ModelCheckpoint) or callback.strict:
                    self.monitors.append((key, type(callback).__name__, callback.monitor))
                if isinstance(callback, EarlyStopping):
                    callback.strict = False
                else:
                    callback.monitor = None
        by_key = isinstance(self._resolved.values.get("lr_scheduler"), dict)
        key = ("lr_scheduler", "init_args", "monitor") if by_key else ("model",)
        for config in trainer.lr_scheduler_configs:
            if config.reduce_on_plateau and config.monitor is not None and config.strict:
                self.monitors.append((key, type(config.scheduler).__name__, config.monitor))
                config.strict = False
        for name in ("Early stopping", "ReduceLROnPlateau"):
            warnings.filterwarnings("ignore", message=f"{name} conditioned on metric")

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        """Make the batch the epoch's last, so that gradients are not accumulated over more."""
        trainer.fit_loop.epoch_loop.batch_progress.is_last_batch = True
        self._has_batch = True

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """End the training; Lightning validates first."""
        self._stop(trainer)
        self.state_bytes = _count_state_bytes(trainer, pl_module)
        trainer.should_stop = True

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the names of the epoch's metrics."""
        self.metrics |= set(trainer.callback_metrics)

    def _start(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        stage = trainer.state.stage
        self.phase = (stage.dataloader_prefix if stage else None) or ""
        self._started_s, self._has_batch = time.perf_counter(), False

    def _note_batch(self, *_: Any, **__: Any) -> None:
        self._has_batch = True

    def _stop(self, *_: Any, **__: Any) -> None:
        self.seconds.setdefault(self.phase, time.perf_counter() - self._started_s)
        workers_bytes = 0
        for worker in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):  # it has just ended
                workers_bytes += int(worker.memory_full_info().uss)  # without what it shares with this process
        self.workers_bytes = max(self.workers_bytes, workers_bytes)

    on_train_epoch_start = on_validation_start = on_test_start = on_predict_start = _start
    on_validation_batch_start = on_test_batch_start = on_predict_batch_start = _note_batch
    on_validation_batch_end = on_test_batch_end = on_predict_batch_end = _stop


def _count_state_bytes(trainer: Trainer, module: LightningModule) -> int:
    """Add up parameters, buffers, gradients and the optimizers' state."""
    tensors: list[Any] = [*module.parameters(), *module.buffers()]
    tensors += [parameter for parameter in module.parameters() if parameter.requires_grad]  # their gradients
    tensors += [value for each in trainer.optimizers for state in each.state.values() for value in state.values()]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if isinstance(tensor, Tensor))


def _peak_memory_bytes() -> int:
    """Read the most memory that this process has had; `getrusage` would count the process that started it, too."""
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    except (OSError, IndexError):  # not Linux
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


# -- the check ---------------------------------------------------------------------------------------------------------


@dataclass
class SmokeReport:
    """What was built and seen, as plain values; `asdict` of it is the JSON that `check --deep --output json` prints."""

    stage: str
    mistakes: list[str] = field(default_factory=list)
    model: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    batches: dict[str, dict[str, Any]] = field(default_factory=dict)
    epoch_seconds: float | None = None
    metrics: list[str] = field(default_factory=list)
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    memory: dict[str, int] = field(default_factory=dict)
    not_tried: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def fields(self) -> dict[str, Any]:
        """Give everything as plain values for JSON."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Write the report for people."""
        sizes = []
        for name, loop in self.batches.items():
            if loop["batches"] is not None:
                text = f"{loop['batches']:,} batch{'es' * (loop['batches'] != 1)}"
                samples = "" if loop["samples"] is None else f"{loop['samples']:,} samples in "
                sizes.append(f"{_LOOPS[name]} {samples}{text}")
        took = ", ".join(f"{_LOOPS[name]} {loop['seconds']:.2f} s" for name, loop in self.batches.items())
        if self.epoch_seconds:
            took += f"; the first is the slowest, so an epoch takes less than {format_duration(self.epoch_seconds)}"
        disks = []
        for disk in self.checkpoints:
            each = f"{disk['count']} x {in_bytes(disk['needed_bytes'] / disk['count'])}"
            more = "" if disk["is_bounded"] else ", and more without end"
            folder = shown_path(Path(disk["folder"]))
            disks.append(f"{each}{more} in {folder}; {in_bytes(disk['free_bytes'])} free")
        memory = {name: in_bytes(size) for name, size in self.memory.items()}
        processes = self.memory["num_processes"]
        many = f", {memory['needed_bytes']} in {processes} processes" if processes > 1 else ""
        parts = {
            "model": f"{self.model['class']}, {self.model['parameters']:,} parameters, {self.model['trained']:,} of "
            "them trained",
            "data": ", ".join([self.data["class"], *sizes]),
            "batch": f"the first of the data, on one CPU: {took}" if took else "none: nothing is to be run",
            "metrics": ", ".join(self.metrics) or "none",
            "checkpoints": "; ".join(disks),
            "memory": f"{memory['peak_bytes']} at most in this process on the CPU{many}; {memory['available_bytes']} "
            f"available (an estimate; {memory['state_bytes']} of it are the model and its optimizer's state)",
        }
        lines = [f"{name:12} {text}" for name, text in parts.items() if text]
        return lines + [f"{'not tried':12} {key}: {reason}" for key, reason in self.not_tried.items()]


def run_smoke_check(context: RunContext) -> SmokeReport:
    """Build everything on the CPU, run one batch of each loop, and check monitors, disk and memory.

    Args:
        context: The invocation, whose config has no mistakes that show without building.

    Raises:
        ConfigError: If anything is wrong.
        DataError: If only data is missing.
    """
    problems = Problems()
    available_bytes = available_memory_bytes() + int(psutil.Process().memory_info().rss)
    name = (context.resolved.values.get("run") or {}).get("name") or context.default_name
    with _isolate_process() as folder:
        run = runs.create(folder, str(name))  # for code that asks for the run's folder
        with context.stack, runs.activate(run):
            report = _SmokeCheck(context, run, problems).run(available_bytes)
    problems.raise_any()
    for warning in report.warnings:
        logging.getLogger("lightkit").warning(warning)
    return report


class _SmokeCheck:
    """One batch of each loop of a stage.

    Args:
        context: The invocation.
        scratch: Run whose folder is removed at the end.
        problems: Receives the mistakes.
    """

    def __init__(self, context: RunContext, scratch: runs.Run, problems: Problems) -> None:
        self._context, self._scratch, self._problems = context, scratch, problems
        self._resolved = context.resolved
        self._parts = parts = _PartsCLI(context, problems)
        self._path_of = {number: path for number, (path, _) in parts.built_from.items()}
        callbacks = [(self._path_of[id(callback)], callback) for callback in parts.callbacks]
        self._owners: list[tuple[KeyPath, object]] = [(("model",), parts.model), (("data",), parts.datamodule)]
        self._owners += callbacks
        self._checkpoint = context.ckpt_path
        if context.ckpt_path in ("best", "last"):
            self._checkpoint = None
            parts.not_tried["ckpt_path"] = f"{context.ckpt_path}: it is looked for when the command runs"

    def run(self, available_bytes: int) -> SmokeReport:
        """Run the stage and report it; mistakes are added to the problems.

        Args:
            available_bytes: Memory that all processes of a run can take.
        """
        context, parts = self._context, self._parts
        report = SmokeReport(context.command, not_tried=parts.not_tried)
        if not parts.is_complete:
            self._set_up_data()
            return report
        is_fit = context.command == "fit"
        probe = self._probe(weights=self._checkpoint if is_fit else None)
        with self._collect(lambda: (("trainer",), "the trainer cannot be built")) as raised:
            trainer = self._trainer([*parts.callbacks, probe])
        if raised:
            return report
        arguments = {**parts.method_arguments, "ckpt_path": None if is_fit else self._checkpoint}
        with self._collect(probe.locate_error) as raised:
            getattr(trainer, context.command)(parts.model, datamodule=parts.datamodule, **arguments)
        if raised and probe.phase == "train":
            self._validate_alone(raised[0])
        if raised:
            return report
        self._describe(report, trainer, probe, available_bytes)
        if is_fit:
            self._check_monitors(probe, report.metrics)
            for finder in parts.finders:
                self._check_finder(finder)
            if trainer.checkpoint_callbacks and "train" in probe.seconds:
                self._check_disks(report, trainer, probe)
        return report

    def _collect(self, find_key: Callable[[], tuple[KeyPath, str]], problems: Problems | None = None) -> Any:
        return _collect_error(self._problems if problems is None else problems, self._resolved, find_key, self._owners)

    def _probe(self, weights: str | None = None) -> _Probe:
        return _Probe(self._resolved, self._path_of, self._scratch.checkpoints, weights)

    def _trainer(self, callbacks: list[Callback]) -> Trainer:
        """Build the config's trainer for one CPU and one batch of each loop."""
        values, notes = self._parts.trainer_section, self._parts.not_tried
        folder = self._scratch.folder
        given = {**values, **_TRAINER, "callbacks": callbacks, "default_root_dir": str(folder)}
        given["plugins"] = [LightningEnvironment(), _MeasuredCheckpoints(folder)]  # also below srun or torchrun
        given["logger"] = False if values.get("logger") in (False, []) else [_NoLogger(folder)]
        if str(values.get("precision")) not in _CPU_PRECISIONS:
            notes["trainer.precision"] = f"{values['precision']} is not for a CPU; 32-true in its place"
            given["precision"] = "32-true"
        if values.get("check_val_every_n_epoch") is not None:
            given["check_val_every_n_epoch"] = 1
        for key in ("plugins", "profiler"):
            if values.get(key):
                notes[f"trainer.{key}"] = "left out"
        try:
            trainer = Trainer(**given)
        except (MisconfigurationException, ValueError, TypeError, RuntimeError, ImportError) as error:
            raise locate_lightning_error(error, self._resolved) from error
        for limit in ("limit_val_batches", "limit_test_batches", "limit_predict_batches"):
            if getattr(trainer, limit):  # 0 means no such batch
                setattr(trainer, limit, 1)
        return trainer

    def _set_up_data(self) -> None:
        """Find mistakes of the data where the model cannot be built."""
        if self._parts.datamodule is None:
            return
        found = Problems()
        with self._collect(lambda: (("data",), "cannot be set up"), found) as raised:
            self._parts.datamodule.prepare_data()
            self._parts.datamodule.setup(self._context.command)
        if any(isinstance(error, LightkitError) for error in raised):  # else the lack of a trainer may be the cause
            for problem in found:
                self._problems.add(problem)

    def _validate_alone(self, training_error: BaseException) -> None:
        """Find mistakes of the validation where training has failed, by another trainer."""
        found, probe = Problems(), self._probe()
        with self._collect(probe.locate_error, found) as raised:
            self._trainer([probe]).validate(self._parts.model, datamodule=self._parts.datamodule, verbose=False)
        if not raised or not probe.phase:
            return
        if str(raised[0]) != str(training_error) or _user_frames(raised[0])[:1] != _user_frames(training_error)[:1]:
            for problem in found:
                self._problems.add(problem)

    def _describe(self, report: SmokeReport, trainer: Trainer, probe: _Probe, available_bytes: int) -> None:
        model, data = self._parts.model, self._parts.datamodule
        sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
        report.model = {
            "class": type(model).__name__,
            "parameters": sum(size for size, _ in sizes),
            "trained": sum(size for size, is_trained in sizes if is_trained),
        }
        report.data = {"class": type(model if data is None else data).__name__}
        report.batches = {name: _describe_loop(trainer, name, took) for name, took in probe.seconds.items()}
        epoch = [loop for name, loop in report.batches.items() if name in ("train", "val")]
        if "train" in report.batches and all(loop["batches"] is not None for loop in epoch):
            report.epoch_seconds = sum(loop["seconds"] * loop["batches"] for loop in epoch)
        report.metrics = sorted(probe.metrics | set(trainer.callback_metrics))
        plan = make_plan(self._context)
        num_processes = 1 if plan is None else max(1, plan.local_processes)
        peak_bytes = _peak_memory_bytes() + probe.workers_bytes
        report.memory = {
            "peak_bytes": peak_bytes,
            "num_processes": num_processes,
            "available_bytes": available_bytes,
            "state_bytes": probe.state_bytes or _count_state_bytes(trainer, model),
            "needed_bytes": peak_bytes * num_processes,
        }
        if peak_bytes * num_processes > _TIGHT_MEMORY * available_bytes:
            many = f" in each of {num_processes} processes" if num_processes > 1 else ""
            report.warnings.append(
                f"one batch on the CPU took {in_bytes(peak_bytes)}{many}, more than {_TIGHT_MEMORY:.0%} of the "
                f"{in_bytes(available_bytes)} of memory available; a smaller batch or fewer processes need less (an "
                "estimate)"
            )

    def _check_monitors(self, probe: _Probe, logged: Sequence[str]) -> None:
        for path, reader, metric in probe.monitors:
            if metric not in logged:
                made = "" if path[-1] == "monitor" else f"{reader}, which its code makes, monitors "
                says = (
                    f"{dotted(path)}: {made}{metric!r}{', which' if made else ''} is never logged"
                    f"{near(metric, logged) or ';'} logged are: {', '.join(logged) or 'no metrics'}"
                )
                self._problems.add(mistake(says, self._resolved.origin_of(path)))

    def _check_finder(self, callback: Callback) -> None:
        """Find a tuning callback that would not find the attribute that it sets."""
        path, arguments = self._parts.built_from[id(callback)]
        argument = "attr_name" if isinstance(callback, LearningRateFinder) else "batch_arg_name"
        names = [arguments[argument]] if arguments.get(argument) else ["lr", "learning_rate"]
        if not any(lightning_hasattr(self._parts.model, name) for name in names):
            says = (
                f"{dotted(path)}: neither the model, its hparams nor its data has {' or '.join(map(repr, names))}, "
                f"which {type(callback).__name__} sets; {argument} names another"
            )
            self._problems.add(mistake(says, self._resolved.origin_of(path)))

    def _check_disks(self, report: SmokeReport, trainer: Trainer, probe: _Probe) -> None:
        """Compare what checkpoints take with what is free on each disk, and with the largest file allowed."""
        sizes: dict[bool, int] = {}
        with self._collect(lambda: (("model",), "its state cannot be written to a checkpoint")) as raised:
            for weights_only in (False, True):
                trainer.save_checkpoint(self._scratch.folder / "size.ckpt", weights_only=weights_only)
                writer = trainer.strategy.checkpoint_io
                assert isinstance(writer, _MeasuredCheckpoints)
                sizes[weights_only] = writer.last_size_bytes
        if raised:
            return
        root = Path((self._resolved.values.get("run") or {}).get("root") or "runs")
        by_disk: dict[int, list[tuple[KeyPath, Path, int | None, int]]] = {}
        for callback in trainer.checkpoint_callbacks:
            if isinstance(callback, ModelCheckpoint) and (callback.save_top_k != 0 or callback.save_last):
                path, arguments = self._parts.built_from.get(id(callback), (("model",), {}))
                folder = probe.folders[id(callback)] or root
                count = _count_checkpoints(callback, arguments, trainer)
                disk = existing_folder(folder).stat().st_dev
                size = sizes[bool(callback.save_weights_only)]
                by_disk.setdefault(disk, []).append((path, folder, count, size))
        for kept in by_disk.values():
            path, folder = kept[0][:2]
            largest = max(size for *_, size in kept)
            count = sum(count or 1 for *_, count, _ in kept) + 1  # and one that is being written
            needed = sum((count or 1) * size for *_, count, size in kept) + largest
            free = shutil.disk_usage(existing_folder(folder)).free
            report.checkpoints.append({
                "folder": str(folder),
                "count": count,
                "is_bounded": all(count is not None for *_, count, _ in kept),
                "size_bytes": largest,
                "needed_bytes": needed,
                "free_bytes": free,
            })  # fmt: skip
            origin = self._resolved.origin_of(path)
            origin = None if origin is None or origin.kind == "default" else origin
            if needed > free:
                says = (
                    f"{dotted(path)}: {count} checkpoints of {in_bytes(largest)}, one of them while it is written, "
                    f"need {in_bytes(needed)}, but {in_bytes(free)} are free in {shown_path(folder)}; make room, keep "
                    "fewer, or set run.root to a folder on another disk"
                )
                self._problems.add(mistake(says, origin))


def _describe_loop(trainer: Trainer, name: str, seconds: float) -> dict[str, Any]:
    loaders: Any = trainer.train_dataloader if name == "train" else getattr(trainer, f"{name}_dataloaders")
    loaders = loaders if isinstance(loaders, (list, tuple)) else [loaders]
    batches = _sum_lengths(loaders)
    if name == "train" and isinstance(trainer.num_training_batches, int):
        batches = trainer.num_training_batches
    samples = _sum_lengths([getattr(loader, "dataset", None) for loader in loaders])
    return {"seconds": seconds, "batches": batches, "samples": samples}


def _sum_lengths(sized: Sequence[Any]) -> int | None:
    """Add up lengths; None where one has none."""
    try:
        return sum(len(item) for item in sized)
    except TypeError:
        return None


def _count_checkpoints(callback: ModelCheckpoint, arguments: Mapping[str, Any], trainer: Trainer) -> int | None:
    """Count the checkpoints that a callback keeps of a whole training; None where nothing bounds them.

    Args:
        callback: The callback.
        arguments: Its arguments in the config: the intervals are no public attributes in Lightning 2.6.
        trainer: After its batch.
    """
    if isinstance(callback, Checkpoint):
        return 3  # best.ckpt, last.ckpt and the one before it
    per_epoch = max(1.0, trainer.num_training_batches / trainer.accumulate_grad_batches)
    steps = math.inf if trainer.max_epochs in (None, -1) else (trainer.max_epochs or 0) * per_epoch
    steps = min(steps, trainer.max_steps) if trainer.max_steps >= 0 else steps
    every = arguments.get("every_n_train_steps") or per_epoch * (arguments.get("every_n_epochs") or 1)
    is_known = math.isfinite(steps) and arguments.get("train_time_interval") is None
    num_saves = round(steps / every) if is_known else math.inf
    most = num_saves if callback.save_top_k < 0 else min(callback.save_top_k, num_saves)
    return None if math.isinf(most) else int(most) + (callback.save_last is True)
