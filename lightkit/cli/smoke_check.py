"""`lightkit check --deep`: build a config on one CPU, run one batch of each loop, and keep nothing. Needs torch."""

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from pydoc import locate
from typing import Any, NoReturn
from unittest.mock import patch

import psutil
import torch
from jsonargparse import Namespace
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning import callbacks as lightning_callbacks
from pytorch_lightning.callbacks.model_summary import ModelSummary
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from pytorch_lightning.loggers.logger import DummyLogger
from pytorch_lightning.utilities.model_helpers import is_overridden
from pytorch_lightning.utilities.parsing import lightning_hasattr
from pytorch_lightning.utilities.seed import isolate_rng
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

import lightkit
from lightkit import runs
from lightkit.callbacks import Checkpoint
from lightkit.callbacks.checkpoint_io import CheckpointReader
from lightkit.callbacks.notifiers import Notifier
from lightkit.cli.context import RunContext
from lightkit.cli.lightning_cli import LightkitCLI, restrict_loading
from lightkit.cli.parser_errors import add_place, explain_lightning_errors, locate_lightning_error, unwrap_errors
from lightkit.cli.stage_runner import make_plan
from lightkit.config import KeyPath, Problems, dotted, error_at, near, shown_path
from lightkit.errors import CheckpointError, DataError, LightkitError
from lightkit.hardware.processor import available_memory_bytes
from lightkit.loggers import CSV, MLflow, TensorBoard
from lightkit.models import ImageClassifier
from lightkit.models.backbones import SMALL_CNN
from lightkit.runs.deadline import format_duration
from lightkit.runs.files import existing_folder, in_bytes

__all__ = ["format_smoke_report", "run_smoke_check"]

_LOOPS = {"train": "training", "val": "validation", "test": "test", "predict": "prediction"}
_TIGHT_MEMORY = 0.8  # of what is available
_CPU_PRECISIONS = ("None", "32", "32-true", "64", "64-true", "bf16", "bf16-mixed", "bf16-true")
_TRAINER: dict[str, Any] = {
    "accelerator": "cpu", "devices": 1, "num_nodes": 1, "strategy": "auto", "sync_batchnorm": False,
    "fast_dev_run": False, "barebones": False, "min_epochs": None, "min_steps": None, "max_time": None,
    "num_sanity_val_steps": 0, "log_every_n_steps": 1, "profiler": None, "model_registry": None,
    "enable_progress_bar": False, "enable_model_summary": False,
}  # fmt: skip
"""Arguments of the trainer in place of the config's. Epochs, steps and training batches stay: schedules use them."""
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
_OFFLINE_LOGGERS = (CSV, CSVLogger, MLflow, TensorBoard, TensorBoardLogger)
"""Loggers that write nothing and ask no server until something is logged."""
_FINDERS = (lightning_callbacks.LearningRateFinder, lightning_callbacks.BatchSizeFinder)
_NOT_RUN: dict[Any, str] = {
    _FINDERS: "built, but it trains by itself",
    lightning_callbacks.BasePredictionWriter: "built, but it writes files",
    Notifier: "built, but it sends messages; lightkit notify-test tries them",
}
_MAX_WRITTEN_BYTES = 100_000_000
_MAX_FRAMES = 3
_MAX_CHARS = 600
_WORKER_ERROR = "Original Traceback"  # torch's loader repeats the traceback of its process as text
_WORKER_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_LIBRARIES = {
    Path(lightkit.__file__).resolve().parent,
    *(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")),
}


def run_smoke_check(context: RunContext) -> dict[str, Any]:
    """Build everything on the CPU, run one batch of each loop, and check monitors, disk and memory.

    Args:
        context: The invocation, whose config has no errors that show without building.

    Returns:
        What was seen, as plain values: the JSON that `check --deep --output json` prints.

    Raises:
        ConfigError: If anything is wrong.
        DataError: If only data is missing.
    """
    problems = Problems()
    name = (context.resolved.values.get("run") or {}).get("name") or context.default_name
    with _isolate_process() as folder:
        run = runs.create(folder, str(name))  # for code that asks for the run's folder
        with context.stack, runs.activate(run):
            report = _SmokeCheckCLI(context, run, problems).report
    problems.raise_any()
    for warning in report["warnings"]:
        logging.getLogger("lightkit").warning(warning)
    return report


def format_smoke_report(report: dict[str, Any]) -> list[str]:
    """Write a report as lines for people."""
    sizes, took = [report["data"]["class"]], []
    for name, loop in report["batches"].items():
        took.append(f"{_LOOPS[name]} {loop['seconds']:.2f} s")
        if loop["batches"] is not None:
            samples = "" if loop["samples"] is None else f"{loop['samples']:,} samples in "
            sizes.append(f"{_LOOPS[name]} {samples}{loop['batches']:,} batch{'es' * (loop['batches'] != 1)}")
    batch = f"the first of the data, on one CPU: {', '.join(took)}" if took else "none: nothing is to be run"
    if report["epoch_seconds"]:
        batch += f"; the first is the slowest, so an epoch takes less than {format_duration(report['epoch_seconds'])}"
    disks = [
        f"{disk['count']} x {in_bytes(disk['needed_bytes'] / disk['count'])}"
        f"{'' if disk['is_bounded'] else ', and more without end'} in {shown_path(Path(disk['folder']))}; "
        f"{in_bytes(disk['free_bytes'])} free"
        for disk in report["checkpoints"]
    ]
    memory, processes = report["memory"], report["memory"]["num_processes"]
    many = f", {in_bytes(memory['needed_bytes'])} in {processes} processes" if processes > 1 else ""
    model = report["model"]
    parts = {
        "model": f"{model['class']}, {model['parameters']:,} parameters, {model['trained']:,} of them trained",
        "data": ", ".join(sizes),
        "batch": batch,
        "metrics": ", ".join(report["metrics"]) or "none",
        "checkpoints": "; ".join(disks),
        "memory": f"{in_bytes(memory['peak_bytes'])} at most in this process on the CPU{many}; "
        f"{in_bytes(memory['available_bytes'])} available (an estimate; {in_bytes(memory['state_bytes'])} of it are "
        "the model and its optimizer's state)",
    }
    lines = [f"{name:12} {text}" for name, text in parts.items() if text]
    return lines + [f"{'not tried':12} {key}: {reason}" for key, reason in report["not_tried"].items()]


@contextmanager
def _isolate_process() -> Iterator[Path]:
    """Make a temporary folder, refuse downloads, and restore random numbers, variables and warnings at the end."""

    def refuse(url: Any, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise DataError(
            f"{getattr(url, 'full_url', url)} would be downloaded, which check --deep does not do. Fetch it first: "
            "data with `lightkit fetch` and the same -c FILE, weights with a first fit or by hand."
        )

    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="lightkit-check-", ignore_cleanup_errors=True))
        stack.enter_context(isolate_rng(include_cuda=False))
        stack.enter_context(patch.dict(os.environ, _OFFLINE))
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message=".* available but not used")
        stack.enter_context(redirect_stdout(sys.stderr))  # standard output is the report's
        stack.enter_context(patch.object(urllib.request, "urlopen", refuse))
        stack.enter_context(patch.object(torch.hub, "urlopen", refuse))
        if (hub := sys.modules.get("huggingface_hub.constants")) is not None:  # it has read the variable already
            stack.enter_context(patch.object(hub, "HF_HUB_OFFLINE", True))
        yield Path(folder)


class _ScratchLogger(DummyLogger):
    """Accepts every record and keeps none; code that asks for its folder gets one that is removed at the end."""

    @property
    def save_dir(self) -> str:
        return tempfile.gettempdir() if (run := runs.current()) is None else str(run.folder)


class _ScratchCheckpoints(CheckpointReader):
    """Measures checkpoints; writes small ones, for code that reads them again, into a folder that is removed."""

    last_size_bytes = 0

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        counter = _ByteCounter()
        try:
            torch.save(checkpoint, counter)  # type: ignore[arg-type]
        except (pickle.PicklingError, AttributeError, TypeError) as error:  # which of them depends on Python's version
            raise CheckpointError(f"a checkpoint of this model cannot be written: {error}") from error
        self.last_size_bytes = counter.num_bytes
        if self._is_scratch(path) and counter.num_bytes <= _MAX_WRITTEN_BYTES:
            super().save_checkpoint(checkpoint, path, storage_options)

    def remove_checkpoint(self, path: str | Path) -> None:
        if self._is_scratch(path):
            super().remove_checkpoint(path)

    def _is_scratch(self, path: str | Path) -> bool:
        return self._folder in Path(path).absolute().parents


class _ByteCounter(io.RawIOBase):
    num_bytes = 0

    def write(self, data: Any) -> int:
        self.num_bytes += (size := memoryview(data).nbytes)
        return size


class _Probe(Callback):
    """Ends a training after its first batch, as its last: with the optimizer's step, validation and the hooks.

    Args:
        path_of: Key of each callback, by its `id`.
        folder: Folder for checkpoints, removed at the end.
        weights: Checkpoint whose weights a training starts from.
        scheduler: Key that an unmet monitor of a scheduler is about.
    """

    def __init__(self, path_of: dict[int, KeyPath], folder: Path, weights: str | None, scheduler: KeyPath) -> None:
        self._path_of, self._folder, self._weights, self._scheduler = path_of, folder, weights, scheduler
        self.folders: dict[int, Path | None] = {}
        self.phase, self.has_batch = "", False
        self.seconds: dict[str, float] = {}
        self.metrics: set[str] = set()
        self.monitors: list[tuple[KeyPath, str, str]] = []
        """Each metric that is needed: the key that names it, the class that reads it, the metric."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Move checkpoint callbacks, the model's too, to the temporary folder."""
        for callback in trainer.checkpoint_callbacks:
            if isinstance(callback, lightning_callbacks.ModelCheckpoint) and id(callback) not in self.folders:
                self.folders[id(callback)] = None if callback.dirpath is None else Path(callback.dirpath)
                callback.dirpath = str(self._folder)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Load weights alone: a checkpoint's loops would be at their end."""
        if self._weights is not None:
            content = trainer.strategy.load_checkpoint(self._weights, weights_only=True)
            trainer.strategy.load_model_state_dict(content, strict=pl_module.strict_loading)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note all monitors, and let callbacks and schedulers do without, so that none ends the batch."""
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            is_stopping = isinstance(callback, lightning_callbacks.EarlyStopping)
            if not (is_stopping or isinstance(callback, lightning_callbacks.ModelCheckpoint)) or not callback.monitor:
                continue
            if not is_stopping or callback.strict:
                path = self._path_of.get(id(callback))
                key = ("model",) if path is None else (*path, "init_args", "monitor")
                self.monitors.append((key, type(callback).__name__, callback.monitor))
            if is_stopping:
                callback.strict = False
            else:
                callback.monitor = None
        for config in trainer.lr_scheduler_configs:
            if config.reduce_on_plateau and config.monitor is not None and config.strict:
                self.monitors.append((self._scheduler, type(config.scheduler).__name__, config.monitor))
                config.strict = False
        for name in ("Early stopping", "ReduceLROnPlateau"):
            warnings.filterwarnings("ignore", message=f"{name} conditioned on metric")

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        """Make the batch the epoch's last, so that gradients are not accumulated over more."""
        trainer.fit_loop.epoch_loop.batch_progress.is_last_batch = True
        self.has_batch = True

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """End the training; Lightning validates first."""
        self._stop()
        trainer.should_stop = True

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the names of the epoch's metrics."""
        self.metrics |= set(trainer.callback_metrics)

    def _start(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        self.phase = trainer.state.stage.dataloader_prefix or "" if trainer.state.stage else ""
        self._started_s, self.has_batch = time.perf_counter(), False

    def _note_batch(self, *_: Any, **__: Any) -> None:
        self.has_batch = True

    def _stop(self, *_: Any, **__: Any) -> None:
        self.seconds.setdefault(self.phase, time.perf_counter() - self._started_s)

    on_train_epoch_start = on_validation_start = on_test_start = on_predict_start = _start
    on_validation_batch_start = on_test_batch_start = on_predict_batch_start = _note_batch
    on_validation_batch_end = on_test_batch_end = on_predict_batch_end = _stop


class _SmokeCheckCLI(LightkitCLI):
    """Parses as the command does, builds each part by itself, so that each error is found, and runs one batch.

    Args:
        context: The invocation.
        scratch: Run whose folder is removed at the end.
        problems: Receives the errors.
    """

    def __init__(self, context: RunContext, scratch: runs.Run, problems: Problems) -> None:
        self._problems, self._scratch, self._resolved = problems, scratch, context.resolved
        self._available_bytes = available_memory_bytes() + int(psutil.Process().memory_info().rss)
        self._command, self._plan, self._checkpoint = context.command, make_plan(context), context.ckpt_path
        self._callbacks: list[Callback] = []
        self._built_from: dict[int, tuple[KeyPath, Any]] = {}
        """Key and arguments of each callback, by its `id`."""
        self._not_tried: dict[str, str] = {}
        self.report: dict[str, Any] = {
            "stage": context.command, "mistakes": [], "model": {}, "data": {}, "batches": {}, "epoch_seconds": None,
            "metrics": [], "checkpoints": [], "memory": {}, "not_tried": self._not_tried, "warnings": [],
        }  # fmt: skip
        if self._checkpoint in ("best", "last"):
            self._not_tried["ckpt_path"] = f"{self._checkpoint}: it is looked for when the command runs"
            self._checkpoint = None
        super().__init__(context=context)

    def instantiate_classes(self) -> None:
        """Build data, model, callbacks and loggers."""
        assert self.context is not None
        self._resolved = self.context.resolved  # without what the parser has left out
        section = self.config[self.subcommand]
        self.config_init, self._trainer_section = self.config, dict(vars(section["trainer"]))
        model = section.get("model")
        arguments = getattr(model, "init_args", {})
        is_classifier = locate(str(getattr(model, "class_path", ""))) is ImageClassifier
        if is_classifier and arguments.get("weights") == "default" and arguments.get("backbone") != SMALL_CNN:
            arguments["weights"] = None  # they change no shape, and training fetches them
            self._not_tried["model.init_args.weights"] = "default, which the first fit downloads unless it has them"
        self.datamodule = self._build("data", section.get("data"))
        self.model = self._build("model", model)
        if self.model is not None:
            self.defer_optimizers(self.model)
        for name in ("callbacks", "logger"):
            value = self._trainer_section.get(name)
            entries = {f".{n}": entry for n, entry in enumerate(value)} if isinstance(value, list) else {"": value}
            for index, entry in entries.items():
                if entry is not None and not isinstance(entry, bool):
                    add = self._add_callback if name == "callbacks" else self._add_logger
                    add(f"trainer.{name}{index}", entry)

    def _build(self, key: str, value: Any) -> Any:
        """Build one part; None where that fails.

        One callback is built as a list, and one logger is not: jsonargparse 4.53 then keeps the constructor's error.
        """
        if value is None:
            return None
        name, path = str(getattr(value, "class_path", value)).rpartition(".")[2], self._resolved.lightkit_path(key)
        place = f"{self.subcommand}.{key.rpartition('.')[0] if key[-1:].isdigit() else key}"
        is_callback = place.endswith(".callbacks")
        config = Namespace(subcommand=self.subcommand)  # type: ignore[no-untyped-call]
        built = None
        with self._collect(lambda: (path, f"{name} cannot be built")):
            config[place] = [value] if is_callback else value
            built = self.parser.instantiate_classes(config)[place]
        return built[0] if is_callback and built else built

    def _add_logger(self, key: str, value: Any) -> None:
        name = dotted(self._resolved.lightkit_path(key))
        if locate(value.class_path) not in _OFFLINE_LOGGERS:
            self._not_tried[name] = "not built: it may write, or ask a server"
        elif self._build(key, value) is not None:  # its constructor checks the arguments; a stand-in gets the records
            self._not_tried[name] = "built, but nothing is logged to it"

    def _add_callback(self, key: str, value: Any) -> None:
        callback, path = self._build(key, value), self._resolved.lightkit_path(key)
        is_off = isinstance(callback, Checkpoint) and self._trainer_section.get("enable_checkpointing") is False
        if callback is None or is_off or isinstance(callback, (lightning_callbacks.ProgressBar, ModelSummary)):
            return
        arguments = getattr(value, "init_args", {})
        self._built_from[id(callback)] = path, arguments
        reason = next((reason for kind, reason in _NOT_RUN.items() if isinstance(callback, kind)), None)
        if reason is None:
            self._callbacks.append(callback)
        else:
            self._not_tried[dotted(path)] = reason
        if self.model is not None and isinstance(callback, _FINDERS):  # which sets an attribute, unless there is none
            argument = "attr_name" if isinstance(callback, _FINDERS[0]) else "batch_arg_name"
            names = [arguments[argument]] if arguments.get(argument) else ["lr", "learning_rate"]
            if not any(lightning_hasattr(self.model, name) or hasattr(self.datamodule, name) for name in names):
                says = f"neither the model, its hparams nor its data has {' or '.join(map(repr, names))}, which "
                self._add_mistake(path, f"{says}{type(callback).__name__} sets; {argument} names another")

    # -- errors --------------------------------------------------------------------------------------------------------

    def _add_mistake(self, path: KeyPath, says: str, problems: Problems | None = None) -> None:
        origin = self._resolved.origin_of(path)
        (problems or self._problems).add(error_at(f"{dotted(path)}: {says}", origin))

    @contextmanager
    def _collect(
        self, find_key: Callable[[], tuple[KeyPath, str]], problems: Problems | None = None
    ) -> Iterator[list[BaseException]]:
        """Keep an error of the block as one in the config and go on; signals pass.

        Args:
            find_key: Gives the key and what fails, such as `cannot be built`, once the block has failed. A part whose
                method was running is named in place of the key.
            problems: Receives the error; by default those of the check.

        Yields:
            List that holds the error after the block.
        """
        problems = self._problems if problems is None else problems
        raised: list[BaseException] = []
        try:
            with explain_lightning_errors(self._resolved), unwrap_errors():
                yield raised
        except LightkitError as error:
            raised.append(error)
            problems.add(add_place(error, self._resolved))
        except (Exception, SystemExit) as error:  # noqa: BLE001 (any error of the user's code is reported)
            raised.append(error)
            frames = _list_user_frames(error)
            if isinstance(error, ValueError) and frames and "pytorch_lightning" in frames[0][0].parts:
                problems.add(locate_lightning_error(error, self._resolved))  # some arguments are checked late
                return
            path, doing = self._find_running_part(error) or find_key()
            is_of_worker = _WORKER_ERROR in str(error)
            text = str(error).strip().splitlines()[-1] if is_of_worker else f"{type(error).__name__}: {error}"
            text = " ".join(self._resolved.masked(text).split()).removesuffix(":")
            lines = [f"{doing}: {text if len(text) <= _MAX_CHARS else f'{text[:_MAX_CHARS]}...'}"]
            for file, line, function in frames:
                source = linecache.getline(str(file), line).strip()
                lines.append(f"  --> {shown_path(file)}:{line}, in {function}\n{line:>5} | {source}")
            problems.add(error_at(f"{dotted(path)}: " + "\n".join(lines), self._resolved.origin_of(path)))

    def _find_running_part(self, error: BaseException) -> tuple[KeyPath, str] | None:
        """Find the callback, the optimizer or the scheduler of the config whose method has raised an error."""
        for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
            running = frame.f_locals.get("self")
            if id(running) in self._built_from:
                return self._built_from[id(running)][0], "fails"
            for key, kind in (("lr_scheduler", LRScheduler), ("optimizer", Optimizer)):
                if isinstance(running, kind) and key in self._resolved.values:
                    return (key,), f"{type(running).__name__} fails"
        return None

    # -- the batch -----------------------------------------------------------------------------------------------------

    def _run_subcommand(self, subcommand: str) -> None:
        """Run one batch of each loop and fill the report; errors are added to the problems."""
        if self.model is None or (self.datamodule is None and self.config[subcommand].get("data")):
            self._set_up_data()
            return
        is_fit = subcommand == "fit"
        has_key = isinstance(self._resolved.values.get("lr_scheduler"), dict)
        scheduler: KeyPath = ("lr_scheduler", "init_args", "monitor") if has_key else ("model",)
        path_of = {number: path for number, (path, _) in self._built_from.items()}
        weights = self._checkpoint if is_fit else None
        probe = _Probe(path_of, self._scratch.checkpoints, weights, scheduler)
        with self._collect(lambda: (("trainer",), "the trainer cannot be built")) as raised:
            trainer = self._make_trainer([*self._callbacks, probe])
        if raised:
            return
        section = self.config[subcommand]
        arguments = {name: section[name] for name in self._subcommand_method_arguments[subcommand]}
        arguments |= {name: False for name in ("verbose", "return_predictions") if name in arguments}
        if "weights_only" in arguments:
            arguments["weights_only"] = restrict_loading(arguments["weights_only"])
        arguments["ckpt_path"] = None if is_fit else self._checkpoint
        with self._collect(lambda: self._locate_error(probe)) as raised:
            getattr(trainer, subcommand)(self.model, datamodule=self.datamodule, **arguments)
        if raised and probe.phase == "train":
            self._run_alone("validate", self._make_trainer([probe]), probe, but_not=raised[0])
        if raised:
            return
        metrics = probe.metrics | set(trainer.callback_metrics)
        if is_fit:
            for path, reader, metric in probe.monitors:
                self._check_metric(path, metric, metrics, "" if path[-1] == "monitor" else reader)
            if trainer.checkpoint_callbacks and "train" in probe.seconds:
                self._check_disks(trainer, probe)
            self._describe_loops(trainer, probe)  # their loaders are gone after the test
            metrics |= self._run_test(trainer, probe, metrics)
        self._describe(trainer, probe, metrics)

    def _run_test(self, trainer: Trainer, probe: _Probe, metrics: set[str]) -> set[str]:
        """Run a batch of the test that follows a training, and check the gate's metric by what it logs."""
        sources = [source for source in (self.datamodule, self.model) if source is not None]
        has_loader = any(is_overridden("test_dataloader", source) for source in sources)
        is_run = has_loader and is_overridden("test_step", self.model) and trainer.limit_test_batches != 0
        error = self._run_alone("test", trainer, probe) if is_run else None
        logged = set() if error is not None or not is_run else set(trainer.callback_metrics)
        if isinstance(error, DataError):
            self._not_tried["test"] = str(error).partition("\n")[0]
        gate = self._resolved.values.get("gate")
        if error is None and isinstance(gate, dict) and isinstance(gate.get("metric"), str):
            self._check_metric(("gate", "metric"), gate["metric"], metrics | logged)
        return logged

    def _run_alone(
        self, stage: str, trainer: Trainer, probe: _Probe, but_not: BaseException | None = None
    ) -> BaseException | None:
        """Run a second stage and return its error; missing data and an error that is known already give None."""
        found = Problems()
        probe.phase = ""
        with self._collect(lambda: self._locate_error(probe), found) as raised:
            getattr(trainer, stage)(self.model, datamodule=self.datamodule, verbose=False)
        is_new = raised and str(raised[0]) != str(but_not) and (but_not is None or probe.phase)
        for problem in found if is_new and not isinstance(raised[0], DataError) else ():
            self._problems.add(problem)
        return raised[0] if raised else None

    def _locate_error(self, probe: _Probe) -> tuple[KeyPath, str]:
        """Return the key that an error raised now is most likely about, and what fails."""
        is_data = probe.phase and not probe.has_batch and "data" in self._resolved.values
        doing = f"one batch of {_LOOPS[probe.phase]} fails" if probe.phase else "cannot be set up"
        return ("data",) if is_data else ("model",), doing

    def _make_trainer(self, callbacks: list[Callback]) -> Trainer:
        """Build the config's trainer for one CPU and one batch of each loop."""
        values, folder = self._trainer_section, self._scratch.folder
        given = {**values, **_TRAINER, "callbacks": callbacks, "default_root_dir": str(folder)}
        given["plugins"] = [LightningEnvironment(), _ScratchCheckpoints(folder)]  # also below srun or torchrun
        given["logger"] = False if values.get("logger") in (False, []) else [_ScratchLogger()]
        if str(values.get("precision")) not in _CPU_PRECISIONS:
            self._not_tried["trainer.precision"] = f"{values['precision']} is not for a CPU; 32-true in its place"
            given["precision"] = "32-true"
        if values.get("check_val_every_n_epoch") is not None:
            given["check_val_every_n_epoch"] = 1
        for key in ("plugins", "profiler"):
            if values.get(key):
                self._not_tried[f"trainer.{key}"] = "left out"
        try:
            trainer = Trainer(**given)
        except (MisconfigurationException, ValueError, TypeError, RuntimeError, ImportError) as error:
            raise locate_lightning_error(error, self._resolved) from error
        for limit in ("limit_val_batches", "limit_test_batches", "limit_predict_batches"):
            if getattr(trainer, limit):  # 0 means no such batch
                setattr(trainer, limit, 1)
        return trainer

    def _set_up_data(self) -> None:
        """Find errors of the data where the model cannot be built."""
        if self.datamodule is None:
            return
        found = Problems()
        with self._collect(lambda: (("data",), "cannot be set up"), found) as raised:
            self.datamodule.prepare_data()
            self.datamodule.setup(self._command)
        for problem in found if raised and isinstance(raised[0], LightkitError) else ():  # else for lack of a trainer
            self._problems.add(problem)

    def _check_metric(self, path: KeyPath, metric: str, logged: set[str], reader: str = "") -> None:
        if metric not in logged:
            made = f"{reader}, which its code makes, monitors {metric!r}, which" if reader else repr(metric)
            hint = near(metric, sorted(logged)) or ";"
            names = ", ".join(sorted(logged)) or "no metrics"
            self._add_mistake(path, f"{made} is never logged{hint} logged are: {names}")

    def _describe(self, trainer: Trainer, probe: _Probe, metrics: set[str]) -> None:
        self._describe_loops(trainer, probe)
        report, model, data = self.report, self.model, self.datamodule
        sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
        num_parameters, num_trained = sum(size for size, _ in sizes), sum(size for size, trained in sizes if trained)
        report["model"] = {"class": type(model).__name__, "parameters": num_parameters, "trained": num_trained}
        report["data"] = {"class": type(model if data is None else data).__name__}
        epoch = [loop for name, loop in report["batches"].items() if name in ("train", "val")]
        if "train" in report["batches"] and all(loop["batches"] is not None for loop in epoch):
            report["epoch_seconds"] = sum(loop["seconds"] * loop["batches"] for loop in epoch)
        report["metrics"] = sorted(metrics)
        num_processes = 1 if self._plan is None else max(1, self._plan.local_processes)
        peak_bytes = _read_peak_memory_bytes()
        needed_bytes = peak_bytes * num_processes
        report["memory"] = {
            "peak_bytes": peak_bytes,
            "num_processes": num_processes,
            "available_bytes": self._available_bytes,
            "state_bytes": _count_state_bytes(trainer, model),
            "needed_bytes": needed_bytes,
        }
        if needed_bytes > _TIGHT_MEMORY * self._available_bytes:
            many = f" in each of {num_processes} processes" if num_processes > 1 else ""
            report["warnings"].append(
                f"one batch on the CPU took {in_bytes(peak_bytes)}{many}, more than {_TIGHT_MEMORY:.0%} of the "
                f"{in_bytes(self._available_bytes)} of memory available; a smaller batch or fewer processes need less "
                "(an estimate)"
            )

    def _describe_loops(self, trainer: Trainer, probe: _Probe) -> None:
        for name in [name for name in probe.seconds if name not in self.report["batches"]]:
            loaders: Any = trainer.train_dataloader if name == "train" else getattr(trainer, f"{name}_dataloaders")
            loaders = loaders if isinstance(loaders, (list, tuple)) else [loaders]
            batches = _sum_lengths(loaders)
            if name == "train" and isinstance(trainer.num_training_batches, int):
                batches = trainer.num_training_batches
            samples = _sum_lengths([getattr(loader, "dataset", None) for loader in loaders])
            self.report["batches"][name] = {"seconds": probe.seconds[name], "batches": batches, "samples": samples}

    def _check_disks(self, trainer: Trainer, probe: _Probe) -> None:
        """Compare what checkpoints take with what is free on each disk."""
        sizes: dict[bool, int] = {}
        with self._collect(lambda: (("model",), "its state cannot be written to a checkpoint")) as raised:
            for weights_only in (False, True):
                trainer.save_checkpoint(self._scratch.folder / "size.ckpt", weights_only=weights_only)
                sizes[weights_only] = trainer.strategy.checkpoint_io.last_size_bytes  # type: ignore[attr-defined]
        if raised:
            return
        root = Path((self._resolved.values.get("run") or {}).get("root") or "runs")
        for callback in trainer.checkpoint_callbacks:
            if not isinstance(callback, lightning_callbacks.ModelCheckpoint):
                continue
            if callback.save_top_k == 0 and not callback.save_last:
                continue
            path, arguments = self._built_from.get(id(callback), (("model",), {}))
            folder = probe.folders[id(callback)] or root
            kept, size = _count_checkpoints(callback, arguments, trainer), sizes[bool(callback.save_weights_only)]
            count = (kept or 1) + 1  # and one that is being written
            free = shutil.disk_usage(existing_folder(folder)).free
            self.report["checkpoints"].append({
                "folder": str(folder), "count": count, "is_bounded": kept is not None, "size_bytes": size,
                "needed_bytes": count * size, "free_bytes": free,
            })  # fmt: skip
            if count * size > free:
                says = f"{count} checkpoints of {in_bytes(size)}, one of them while it is written, need "
                says += f"{in_bytes(count * size)}, but {in_bytes(free)} are free in {shown_path(folder)}; make room, "
                self._add_mistake(path, f"{says}keep fewer, or set run.root to a folder on another disk")


def _list_user_frames(error: BaseException) -> list[tuple[Path, int, str]]:
    """List file, line and function of the user's code that led to an error, innermost first; else the last frame."""
    found = [(Path(f.filename), f.lineno or 0, f.name) for f in traceback.extract_tb(error.__traceback__)]
    if _WORKER_ERROR in str(error):
        found += [(Path(file), int(line), name) for file, line, name in _WORKER_FRAME.findall(str(error))]
    found = [frame for frame in found if frame[0].is_file()]
    own = [frame for frame in found if _LIBRARIES.isdisjoint(frame[0].resolve().parents)]
    return own[: -_MAX_FRAMES - 1 : -1] if own else found[-1:]


def _count_state_bytes(trainer: Trainer, module: LightningModule) -> int:
    """Add up parameters, buffers, gradients and the optimizers' state."""
    tensors: list[Any] = [*module.parameters(), *module.buffers()]
    tensors += [parameter for parameter in module.parameters() if parameter.requires_grad]  # their gradients
    tensors += [value for each in trainer.optimizers for state in each.state.values() for value in state.values()]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if isinstance(tensor, Tensor))


def _read_peak_memory_bytes() -> int:
    """Read the most memory that this process has had; `getrusage` would count the process that started it, too."""
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    except (OSError, IndexError):  # not Linux
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _sum_lengths(sized: Sequence[Any]) -> int | None:
    """Add up lengths; None where one has none."""
    try:
        return sum(len(item) for item in sized)
    except TypeError:
        return None


def _count_checkpoints(callback: Any, arguments: Any, trainer: Trainer) -> int | None:
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
