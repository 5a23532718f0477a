"""`lightkit check --deep`: build a config on one CPU, run one batch of each loop, and keep nothing. Needs torch."""

from __future__ import annotations

import linecache
import logging
import os
import pickle
import re
import shutil
import sys
import sysconfig
import tempfile
import time
import traceback
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from pathlib import Path
from pydoc import locate
from typing import Any, NoReturn
from unittest.mock import patch

import psutil
import torch
from jsonargparse import Namespace
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from pytorch_lightning import Callback, LightningDataModule, LightningModule, Trainer
from pytorch_lightning import callbacks as lightning_callbacks
from pytorch_lightning.callbacks.model_summary import ModelSummary
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from pytorch_lightning.loggers.logger import DummyLogger
from pytorch_lightning.utilities.model_helpers import is_overridden
from pytorch_lightning.utilities.parsing import lightning_hasattr
from pytorch_lightning.utilities.seed import isolate_rng
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

import lightkit
from lightkit import runs
from lightkit.callbacks import Checkpoint
from lightkit.callbacks.checkpoint_io import CheckpointReader
from lightkit.callbacks.notifiers import Notifier
from lightkit.cli.context import RunContext
from lightkit.cli.lightning_cli import TRAINER_ERRORS, LightkitCLI
from lightkit.cli.parser_errors import add_place, explain_lightning_errors, locate_lightning_error, unwrap_errors
from lightkit.cli.stage_runner import make_plan
from lightkit.config import KeyPath, Problems, dotted, error_at, near, shown_path
from lightkit.errors import CheckpointError, DataError, LightkitError
from lightkit.hardware.processor import available_memory_bytes
from lightkit.loggers import CSV, MLflow, TensorBoard
from lightkit.models import ImageClassifier
from lightkit.models.backbones import SMALL_CNN
from lightkit.runs.files import existing_folder, in_bytes

__all__ = ["format_smoke_report", "run_smoke_check"]

_LOOPS = {"train": "training", "val": "validation", "test": "test", "predict": "prediction"}
_TIGHT_MEMORY = 0.8  # of what is available
_TRAINER: dict[str, Any] = {
    "accelerator": "cpu", "devices": 1, "num_nodes": 1, "strategy": "auto", "sync_batchnorm": False,
    "fast_dev_run": False, "barebones": False, "min_epochs": None, "min_steps": None, "max_time": None,
    "num_sanity_val_steps": 0, "log_every_n_steps": 1, "profiler": None, "model_registry": None,
    "enable_progress_bar": False, "enable_model_summary": False,
}  # fmt: skip
"""Arguments of the trainer in place of the config's. Epochs, steps and training batches stay: schedules use them."""
_OFFLINE_LOGGERS = (CSV, CSVLogger, MLflow, TensorBoard, TensorBoardLogger)
"""Loggers that write nothing and ask no server until something is logged."""
_FINDERS = {
    lightning_callbacks.LearningRateFinder: "attr_name",
    lightning_callbacks.BatchSizeFinder: "batch_arg_name",
}
"""Callbacks that set an attribute of the model, and the argument that names it."""
_NOT_RUN: dict[Any, str] = {
    tuple(_FINDERS): "built, but it trains by itself",
    lightning_callbacks.BasePredictionWriter: "built, but it writes files",
    Notifier: "built, but it sends messages; lightkit notify-test tries them",
}
_INTERVALS = ("every_n_train_steps", "train_time_interval")
_MAX_FRAMES = 3
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_WORKER_ERROR = "Original Traceback"  # torch's loader repeats the traceback of its process as text
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
            checked = _SmokeCheckCLI(context, run, problems)
    problems.raise_any()
    report = checked.report
    for warning in report["warnings"]:
        logging.getLogger("lightkit").warning(warning)
    return report


def format_smoke_report(report: dict[str, Any]) -> list[str]:
    """Write a report as lines for people."""
    model, memory = report["model"], report["memory"]
    sizes, took = [report["data"]["class"]], []
    for name, loop in report["batches"].items():
        took.append(f"{_LOOPS[name]} {loop['seconds']:.2f} s")
        if loop["batches"] is not None:
            samples = "" if loop["samples"] is None else f"{loop['samples']:,} samples in "
            sizes.append(f"{_LOOPS[name]} {samples}{loop['batches']:,} batch{'es' * (loop['batches'] != 1)}")
    disks = [
        f"{disk['count']} x {in_bytes(disk['size_bytes'])}{'' if disk['is_bounded'] else ', and more without end'} "
        f"in {shown_path(Path(disk['folder']))}; {in_bytes(disk['free_bytes'])} free"
        for disk in report["checkpoints"]
    ]
    processes = f"{memory['num_processes']} process{'es' * (memory['num_processes'] != 1)}"
    parts = {
        "model": f"{model['class']}, {model['parameters']:,} parameters, {model['trained']:,} of them trained",
        "data": ", ".join(sizes),
        "batch": f"the first of the data, on one CPU: {', '.join(took)}" if took else "none: nothing is to be run",
        "metrics": ", ".join(report["metrics"]) or "none",
        "checkpoints": "; ".join(disks),
        "memory": f"{in_bytes(memory['needed_bytes'])} on the CPU in {processes} (an estimate); "
        f"{in_bytes(memory['available_bytes'])} available",
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
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message=".* available but not used")
        stack.enter_context(redirect_stdout(sys.stderr))  # standard output is the report's
        stack.enter_context(patch.object(urllib.request, "urlopen", refuse))
        stack.enter_context(patch.object(torch.hub, "urlopen", refuse))
        stack.enter_context(patch.dict(os.environ, HF_HUB_OFFLINE="1"))
        if (hub := sys.modules.get("huggingface_hub.constants")) is not None:  # it has read the variable already
            stack.enter_context(patch.object(hub, "HF_HUB_OFFLINE", True))
        yield Path(folder)


class _ScratchLogger(DummyLogger):
    """Accepts every record and keeps none; code that asks for its folder gets one that is removed at the end."""

    @property
    def save_dir(self) -> str:
        return tempfile.gettempdir() if (run := runs.current()) is None else str(run.folder)


class _ScratchCheckpoints(CheckpointReader):
    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        try:
            super().save_checkpoint(checkpoint, path, storage_options)
        except (pickle.PicklingError, AttributeError, TypeError) as error:  # which of them depends on Python's version
            raise CheckpointError(f"a checkpoint of this model cannot be written: {error}") from error


class _Probe(Callback):
    """Ends a training after its first batch, as its last: with the optimizer's step, validation and the hooks.

    Args:
        folder: Folder for checkpoints, removed at the end.
        weights: Checkpoint whose weights a training starts from.
    """

    def __init__(self, folder: Path, weights: str | None) -> None:
        self._folder, self._weights = folder, weights
        self.folders: dict[int, Path | None] = {}
        """Folder that each checkpoint callback is to write to, by its `id`."""
        self.phase = ""
        self.batches: dict[str, dict[str, Any]] = {}
        self.metrics: set[str] = set()
        self.monitors: list[tuple[Any, str]] = []
        """Each callback or scheduler that needs a metric, and the metric."""

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
            if isinstance(callback, lightning_callbacks.EarlyStopping) and callback.strict:
                self.monitors.append((callback, callback.monitor))
                callback.strict = False
            elif isinstance(callback, lightning_callbacks.ModelCheckpoint) and callback.monitor:
                self.monitors.append((callback, callback.monitor))
                callback.monitor = None
        for config in trainer.lr_scheduler_configs:
            if config.reduce_on_plateau and config.monitor is not None and config.strict:
                self.monitors.append((config.scheduler, config.monitor))
                config.strict = False
        for name in ("Early stopping", "ReduceLROnPlateau"):
            warnings.filterwarnings("ignore", message=f"{name} conditioned on metric")

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        """Make the batch the epoch's last, so that gradients are not accumulated over more."""
        trainer.fit_loop.epoch_loop.batch_progress.is_last_batch = True

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """End the training; Lightning validates first."""
        self._stop(trainer)
        trainer.should_stop = True

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the names of the epoch's metrics."""
        self.metrics |= set(trainer.callback_metrics)

    def _start(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        self.phase = trainer.state.stage.dataloader_prefix or "" if trainer.state.stage else ""
        self._started_s = time.perf_counter()

    def _stop(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        """Note the first batch's time and the loader's sizes; those of an iterable are None."""
        seconds = time.perf_counter() - self._started_s
        loaders: Any = getattr(trainer, "train_dataloader" if self.phase == "train" else f"{self.phase}_dataloaders")
        loaders = loaders if isinstance(loaders, (list, tuple)) else [loaders]
        batches = samples = None
        with suppress(TypeError):
            batches = sum(map(len, loaders))
            samples = sum(len(loader.dataset) for loader in loaders)
        if self.phase == "train" and isinstance(trainer.num_training_batches, int):
            batches = trainer.num_training_batches
        self.batches.setdefault(self.phase, {"seconds": seconds, "batches": batches, "samples": samples})

    on_train_epoch_start = on_validation_start = on_test_start = on_predict_start = _start
    on_validation_batch_end = on_test_batch_end = on_predict_batch_end = _stop


class _SmokeCheckCLI(LightkitCLI):
    """Parses as the command does, builds each part by itself, so that each error is found, and runs one batch.

    Args:
        context: The invocation.
        scratch: Run whose folder is removed at the end.
        problems: Receives the errors.
    """

    report: dict[str, Any]

    def __init__(self, context: RunContext, scratch: runs.Run, problems: Problems) -> None:
        self._problems, self._scratch, self._plan = problems, scratch, make_plan(context)
        self._available_bytes = available_memory_bytes() + int(psutil.Process().memory_info().rss)
        self._checkpoint = context.ckpt_path
        self._callbacks: list[Callback] = []
        self._built_from: dict[int, tuple[KeyPath, Any]] = {}
        """Key and arguments of each callback, by its `id`."""
        self._not_tried: dict[str, str] = {}
        if self._checkpoint in ("best", "last"):
            self._not_tried["ckpt_path"] = f"{self._checkpoint}: it is looked for when the command runs"
            self._checkpoint = None
        super().__init__(context=context)

    # -- the parts -----------------------------------------------------------------------------------------------------

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
        for name, add in (("callbacks", self._add_callback), ("logger", self._add_logger)):
            value = self._trainer_section.get(name)
            entries = {f".{n}": entry for n, entry in enumerate(value)} if isinstance(value, list) else {"": value}
            for index, entry in entries.items():
                if entry is not None and not isinstance(entry, bool):
                    add(f"trainer.{name}{index}", entry)

    def _build(self, key: str, value: Any) -> Any:
        """Build one part; None where that fails.

        One callback is built as a list, and one logger is not: jsonargparse 4.53 then keeps the constructor's error.
        """
        if value is None:
            return None
        place = f"{self.subcommand}.{key.rpartition('.')[0] if key[-1:].isdigit() else key}"
        is_callback = place.endswith(".callbacks")
        config = Namespace(subcommand=self.subcommand)  # type: ignore[no-untyped-call]
        built = None
        name = str(getattr(value, "class_path", value)).rpartition(".")[2]
        with self._collect(self._resolved.lightkit_path(key), f"{name} cannot be built"):
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
        argument = next((argument for kind, argument in _FINDERS.items() if isinstance(callback, kind)), None)
        if self.model is not None and argument is not None:
            names = [arguments[argument]] if arguments.get(argument) else ["lr", "learning_rate"]
            if not any(lightning_hasattr(self.model, name) or hasattr(self.datamodule, name) for name in names):
                says = f"neither the model, its hparams nor its data has {' or '.join(map(repr, names))}, which "
                self._add_error(path, f"{says}{type(callback).__name__} sets; {argument} names another")

    def _make_trainer(self, callbacks: list[Callback]) -> Trainer:
        """Build the config's trainer for one CPU and one batch of each loop."""
        values, folder = self._trainer_section, self._scratch.folder
        given = {**values, **_TRAINER, "callbacks": callbacks, "default_root_dir": str(folder)}
        given["plugins"] = [LightningEnvironment(), _ScratchCheckpoints()]  # also below srun or torchrun
        given["logger"] = False if values.get("logger") in (False, []) else [_ScratchLogger()]
        if not str(values.get("precision")).startswith(("None", "32", "64", "bf16")):
            self._not_tried["trainer.precision"] = f"{values['precision']} is not for a CPU; 32-true in its place"
            given["precision"] = "32-true"
        if values.get("check_val_every_n_epoch") is not None:
            given["check_val_every_n_epoch"] = 1
        self._not_tried |= {f"trainer.{key}": "left out" for key in ("plugins", "profiler") if values.get(key)}
        try:
            trainer = Trainer(**given)
        except TRAINER_ERRORS as error:
            raise locate_lightning_error(error, self._resolved) from error
        for limit in ("limit_val_batches", "limit_test_batches", "limit_predict_batches"):
            if getattr(trainer, limit):  # 0 means no such batch
                setattr(trainer, limit, 1)
        return trainer

    # -- errors --------------------------------------------------------------------------------------------------------

    def _add_error(self, path: KeyPath, says: str) -> None:
        self._problems.add(error_at(f"{dotted(path)}: {says}", self._resolved.origin_of(path)))

    @contextmanager
    def _collect(self, path: KeyPath, doing: str = "", probe: _Probe | None = None) -> Iterator[list[BaseException]]:
        """Keep an error of the block as one in the config and go on; signals pass.

        Args:
            path: The key, unless another part's method was running.
            doing: What fails, such as `cannot be built`.
            probe: Knows it, where a loop is run.

        Yields:
            List that holds the error after the block.
        """
        raised: list[BaseException] = []
        try:
            with explain_lightning_errors(self._resolved), unwrap_errors():
                yield raised
        except LightkitError as error:
            raised.append(error)
            self._problems.add(add_place(error, self._resolved))
        except (Exception, SystemExit) as error:  # noqa: BLE001 (any error of the user's code is reported)
            raised.append(error)
            frames = _list_user_frames(error)
            if isinstance(error, ValueError) and frames and "pytorch_lightning" in frames[0][0].parts:
                self._problems.add(locate_lightning_error(error, self._resolved))  # some arguments are checked late
                return
            if probe is not None:
                doing = f"one batch of {_LOOPS[probe.phase]} fails" if probe.phase else "cannot be set up"
            is_of_worker = _WORKER_ERROR in str(error)
            text = str(error).strip().splitlines()[-1] if is_of_worker else f"{type(error).__name__}: {error}"
            text = " ".join(self._resolved.masked(text).split()).removesuffix(":")
            path, doing = self._find_running_part(error, doing) or (path, doing)
            lines = [f"{doing}: {text}"]
            for file, line, function in frames:
                source = linecache.getline(str(file), line).strip()
                lines.append(f"  --> {shown_path(file)}:{line}, in {function}\n{line:>5} | {source}")
            self._add_error(path, "\n".join(lines))

    def _find_running_part(self, error: BaseException, doing: str) -> tuple[KeyPath, str] | None:
        """Find the part of the config, other than the model, whose code has raised an error."""
        for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
            running = frame.f_locals.get("self")
            if isinstance(running, LightningModule):  # which an optimizer's step calls
                return None
            if id(running) in self._built_from:
                return self._built_from[id(running)][0], "fails"
            is_loader = frame.f_globals.get("__name__", "").startswith("torch.utils.data.")
            if "data" in self._resolved.values and (is_loader or isinstance(running, LightningDataModule)):
                return ("data",), doing
            for key, kind in (("lr_scheduler", LRScheduler), ("optimizer", Optimizer)):
                if isinstance(running, kind) and key in self._resolved.values:
                    return (key,), f"{type(running).__name__} fails"
        return None

    # -- the batch -----------------------------------------------------------------------------------------------------

    def _run_subcommand(self, subcommand: str) -> None:
        """Run one batch of each loop and fill the report; errors are added to the problems."""
        if self.model is None or (self.datamodule is None and self.config[subcommand].get("data")):
            if self.datamodule is not None:
                with suppress(Exception), self._problems.noted():  # other errors may be for lack of a trainer
                    self.datamodule.prepare_data()
                    self.datamodule.setup(subcommand)
            return
        is_fit = subcommand == "fit"
        probe = _Probe(self._scratch.checkpoints, self._checkpoint if is_fit else None)
        with self._collect(("trainer",), "the trainer cannot be built") as raised:
            trainer = self._make_trainer([*self._callbacks, probe])
        if raised:
            return
        error = self._run_loop(trainer, probe, subcommand, ckpt_path=None if is_fit else self._checkpoint)
        if error is not None:
            if probe.phase == "train":
                self._run_further(self._make_trainer([probe]), probe, "validate", before=error)
            return
        metrics, checkpoints = probe.metrics | set(trainer.callback_metrics), list[dict[str, Any]]()
        if is_fit:
            self._check_monitors(probe, metrics)
            if "train" in probe.batches:
                checkpoints = self._check_disks(trainer, probe)
            sources = [source for source in (self.datamodule, self.model) if source is not None]
            has_loader = any(is_overridden("test_dataloader", source) for source in sources)
            if has_loader and is_overridden("test_step", self.model) and trainer.limit_test_batches != 0:
                error = self._run_further(trainer, probe, "test")
                metrics |= set(trainer.callback_metrics)
            gate = self._resolved.values.get("gate")
            if error is None and isinstance(gate, dict) and isinstance(gate.get("metric"), str):
                self._check_metric(("gate", "metric"), gate["metric"], metrics)
        sizes = [(parameter.numel(), parameter.requires_grad) for parameter in self.model.parameters()]
        num_parameters, num_trained = sum(size for size, _ in sizes), sum(size for size, trained in sizes if trained)
        data = self.model if self.datamodule is None else self.datamodule
        memory, warning = self._measure_memory()
        self.report = {
            "stage": subcommand,
            "mistakes": [],
            "model": {"class": type(self.model).__name__, "parameters": num_parameters, "trained": num_trained},
            "data": {"class": type(data).__name__},
            "batches": probe.batches,
            "metrics": sorted(metrics),
            "checkpoints": checkpoints,
            "memory": memory,
            "not_tried": self._not_tried,
            "warnings": [warning] if warning else [],
        }

    def _run_loop(self, trainer: Trainer, probe: _Probe, stage: str, **arguments: Any) -> BaseException | None:
        """Run one batch of a stage, and return its error, which is added to the problems."""
        probe.phase = ""
        if stage != "fit":
            arguments["return_predictions" if stage == "predict" else "verbose"] = False
        with self._collect(("model",), probe=probe) as raised:
            getattr(trainer, stage)(self.model, datamodule=self.datamodule, **arguments)
        return raised[0] if raised else None

    def _run_further(
        self, trainer: Trainer, probe: _Probe, stage: str, before: BaseException | None = None
    ) -> BaseException | None:
        """Run a stage after a training; missing data, and what fails as the training did, is no further error."""
        problems, self._problems = self._problems, Problems()
        error = self._run_loop(trainer, probe, stage)
        found, self._problems = self._problems, problems
        if isinstance(error, DataError):
            self._not_tried[stage] = str(error).partition("\n")[0]
        elif before is None or (probe.phase and str(error) != str(before)):
            for problem in found:
                problems.add(problem)
        return error

    def _check_monitors(self, probe: _Probe, metrics: set[str]) -> None:
        for reader, metric in probe.monitors:
            name = f"{type(reader).__name__}, which its code makes, monitors "
            if id(reader) in self._built_from:
                self._check_metric((*self._built_from[id(reader)][0], "init_args", "monitor"), metric, metrics)
            elif not isinstance(reader, Callback) and isinstance(self._resolved.values.get("lr_scheduler"), dict):
                self._check_metric(("lr_scheduler", "init_args", "monitor"), metric, metrics)
            else:
                self._check_metric(("model",), metric, metrics, name)

    def _check_metric(self, path: KeyPath, metric: str, logged: set[str], reader: str = "") -> None:
        if metric not in logged:
            hint = near(metric, sorted(logged)) or ";"
            names = ", ".join(sorted(logged)) or "no metrics"
            which = ", which" if reader else ""
            self._add_error(path, f"{reader}{metric!r}{which} is never logged{hint} logged are: {names}")

    def _measure_memory(self) -> tuple[dict[str, Any], str]:
        """Compare the memory of one batch in each process of this machine with what is available."""
        try:  # getrusage would count the process that started this one, too
            status = Path("/proc/self/status").read_text(encoding="utf-8")
            peak_bytes = int(status.partition("VmHWM:")[2].split()[0]) * 1024
        except (OSError, IndexError):  # not Linux
            peak_bytes = psutil.Process().memory_info().rss
        num_processes = 1 if self._plan is None else max(1, self._plan.local_processes)
        needed_bytes, available_bytes = peak_bytes * num_processes, self._available_bytes
        many = f" in each of {num_processes} processes" if num_processes > 1 else ""
        warning = (
            f"one batch on the CPU took {in_bytes(peak_bytes)}{many}, more than {_TIGHT_MEMORY:.0%} of the "
            f"{in_bytes(available_bytes)} of memory available; a smaller batch or fewer processes need less"
        )
        memory = {"peak_bytes": peak_bytes, "num_processes": num_processes}
        memory |= {"available_bytes": available_bytes, "needed_bytes": needed_bytes}
        return memory, warning if needed_bytes > _TIGHT_MEMORY * available_bytes else ""

    def _check_disks(self, trainer: Trainer, probe: _Probe) -> list[dict[str, Any]]:
        """Compare what checkpoints take with what is free on each disk."""
        found = []
        for callback in trainer.checkpoint_callbacks:
            if not isinstance(callback, lightning_callbacks.ModelCheckpoint):
                continue
            if callback.save_top_k == 0 and not callback.save_last:
                continue
            file = self._scratch.folder / "size.ckpt"
            with self._collect(("model",), "its state cannot be written to a checkpoint") as raised:
                trainer.save_checkpoint(file, weights_only=callback.save_weights_only)
            if raised:
                break
            path, arguments = self._built_from.get(id(callback), (("model",), {}))
            folder = probe.folders[id(callback)] or Path(self.config[self.subcommand]["run"]["root"])
            kept, size = _count_checkpoints(callback, arguments, trainer), file.stat().st_size
            count = (kept or 1) + 1  # and one that is being written
            free = shutil.disk_usage(existing_folder(folder)).free
            found.append({
                "folder": str(folder), "count": count, "is_bounded": kept is not None, "size_bytes": size,
                "needed_bytes": count * size, "free_bytes": free,
            })  # fmt: skip
            if count * size > free:
                says = f"{count} checkpoints of {in_bytes(size)}, one of them while it is written, need "
                says += f"{in_bytes(count * size)}, but {in_bytes(free)} are free in {shown_path(folder)}; make room, "
                self._add_error(path, f"{says}keep fewer, or set run.root to a folder on another disk")
        return found


def _list_user_frames(error: BaseException) -> list[tuple[Path, int, str]]:
    """List file, line and function of the user's code that led to an error, innermost first; else the last frame."""
    text = "".join(traceback.format_exception(error, chain=False))
    frames = [(Path(file), int(line), name) for file, line, name in _FRAME.findall(text) if Path(file).is_file()]
    own = [frame for frame in frames if _LIBRARIES.isdisjoint(frame[0].resolve().parents)]
    return own[: -_MAX_FRAMES - 1 : -1] or frames[-1:]


def _count_checkpoints(callback: Any, arguments: Any, trainer: Trainer) -> int | None:
    """Count the checkpoints that a callback keeps of a whole training; None where nothing bounds them.

    Args:
        callback: The callback.
        arguments: Its arguments in the config: the intervals are no public attributes in Lightning 2.6.
        trainer: After its batch.
    """
    if isinstance(callback, Checkpoint):
        return 3  # best.ckpt, last.ckpt and the one before it
    num_kept: int = callback.save_top_k
    if num_kept < 0:
        if trainer.max_epochs in (None, -1) or any(arguments.get(key) for key in _INTERVALS):
            return None
        num_kept = (trainer.max_epochs or 0) // (arguments.get("every_n_epochs") or 1)
    return num_kept + (callback.save_last is True)
