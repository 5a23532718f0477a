"""`lightkit check --deep`: build a config on one CPU, run one batch of each loop, and keep nothing.

Needs torch.
"""

from __future__ import annotations

import logging
import math
import re
import resource
import shutil
import sys
import tempfile
import time
import traceback
import urllib.request
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from pydoc import locate
from typing import Any, NoReturn
from unittest.mock import patch

import psutil
import torch
from jsonargparse import Namespace
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning import callbacks as lightning_callbacks
from pytorch_lightning.callbacks.model_summary import ModelSummary
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from pytorch_lightning.loggers.logger import DummyLogger
from pytorch_lightning.utilities.combined_loader import CombinedLoader
from pytorch_lightning.utilities.model_helpers import is_overridden

from lightkit import runs
from lightkit.callbacks import Checkpoint
from lightkit.callbacks.checkpoint import list_checkpoint_callbacks
from lightkit.callbacks.checkpoint_io import CheckpointReader
from lightkit.callbacks.descriptions import count_batches, count_parameters, count_samples
from lightkit.callbacks.notifiers import Notifier
from lightkit.cli.console import is_library_file
from lightkit.cli.model_builder import ModelBuilder
from lightkit.cli.parser_errors import (
    explain_lightning_errors,
    locate_lightning_error,
    unwrap_errors,
)
from lightkit.cli.session import StageProcess, join_ranks
from lightkit.cli.stage_config import StageConfig
from lightkit.cli.stage_runner import make_plan
from lightkit.config import KeyPath, Problems, dotted, error_at, near, shown_path
from lightkit.errors import ConfigError, DataError, LightkitError
from lightkit.hardware.processor import available_memory_bytes
from lightkit.loggers import CSV, MLflow, TensorBoard
from lightkit.models.backbones import SMALL_CNN
from lightkit.registry.evaluation import evaluation_data
from lightkit.registry.gate import GateSettings, read_gate, split_of
from lightkit.reports.predictions import explain_class_metric
from lightkit.reports.smoke_report import LOOPS
from lightkit.reports.statistics import smallest_drop, smallest_margin
from lightkit.runs.files import existing_folder, in_bytes
from lightkit.task import task_of

_TIGHT_MEMORY = 0.8  # of what is available
_TRAINER: dict[str, Any] = {
    "accelerator": "cpu", "devices": 1, "num_nodes": 1, "strategy": "auto", "sync_batchnorm": False,
    "fast_dev_run": False, "barebones": False, "min_epochs": None, "min_steps": None,
    "max_time": None, "num_sanity_val_steps": 0, "log_every_n_steps": 1, "profiler": None,
    "model_registry": None,
    "enable_progress_bar": False, "enable_model_summary": False,
}  # fmt: skip
"""Arguments of the trainer in place of the config's. Epochs, steps and training batches stay:
schedules use them."""
_OFFLINE_LOGGERS = (CSV, CSVLogger, MLflow, TensorBoard, TensorBoardLogger)
"""Loggers that write nothing and ask no server until something is logged."""
_NOT_RUN = {
    lightning_callbacks.ProgressBar: "",
    ModelSummary: "",
    lightning_callbacks.LearningRateFinder: "built, but it trains by itself",
    lightning_callbacks.BatchSizeFinder: "built, but it trains by itself",
    Notifier: "built, but it sends messages; lightkit notify-test tries them",
}
"""Callbacks that are built and do not take part in the batch, and their remark in the report."""
_MAX_FRAMES = 3
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_WORKER_ERROR = "Original Traceback"  # torch's loader repeats the traceback of its process as text


def run_smoke_check(stage_config: StageConfig) -> dict[str, Any]:
    """Build everything on the CPU, run one batch of each loop, and check monitors, disk and memory.

    Args:
        stage_config: A config without errors that show before anything is built.

    Returns:
        Plain values: the JSON that `check --deep --output json` prints.

    Raises:
        ConfigError: If anything is wrong.
        DataError: If only data is missing.
    """

    def refuse(url: Any, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise DataError(
            f"{getattr(url, 'full_url', url)} would be downloaded, which check --deep does not do."
            " Fetch it first: data with `lightkit fetch` and the same -c FILE, weights with a"
            " first fit or by hand."
        )

    for message in (".* available but not used", ".* conditioned on metric"):
        warnings.filterwarnings("ignore", message=message)
    with (
        tempfile.TemporaryDirectory(prefix="lightkit-check-", ignore_cleanup_errors=True) as folder,
        redirect_stdout(sys.stderr),  # standard output is the report's
        patch.object(urllib.request, "urlopen", refuse),
        patch.object(torch.hub, "urlopen", refuse),
        ExitStack() as stack,
        # For code that asks for the run's folder.
        runs.activate(runs.create(Path(folder), stage_config.job_name)) as run,
    ):
        ranks = join_ranks(stage_config.command, stage_config.run_root)
        process = StageProcess(stack=stack, rank_context=ranks)
        check = _SmokeCheck(stage_config, process, run)
        report = check.run()
    check.problems.raise_any()
    for warning in report["warnings"]:
        logging.getLogger("lightkit").warning(warning)
    return report


class _ScratchLogger(DummyLogger):
    """Accepts every record and keeps none.

    Code that asks for its folder gets one that is removed at the end.
    """

    @property
    def save_dir(self) -> str:
        return str(run.folder) if (run := runs.current()) else tempfile.gettempdir()


@dataclass
class _CheckpointPlace:
    """Checkpoints of one callback.

    Args:
        path: The callback's key.
        folder: Where they are written.
        count: Number of those that are kept, and of one that is being written, if the largest on
            its disk is of here.
        is_bounded: Whether no more are kept, however long the training.
        size_bytes: Size of one.
        free_bytes: Free on the disk.
    """

    path: KeyPath
    folder: Path
    count: int
    is_bounded: bool
    size_bytes: int
    free_bytes: int = 0

    @property
    def needed_bytes(self) -> int:
        """Size of all."""
        return self.count * self.size_bytes

    def as_dict(self) -> dict[str, Any]:
        """Return the values of the report."""
        return {
            "folder": str(self.folder),
            "count": self.count,
            "is_bounded": self.is_bounded,
            "size_bytes": self.size_bytes,
            "needed_bytes": self.needed_bytes,
            "free_bytes": self.free_bytes,
        }


class _Probe(Callback):
    """Ends a training after its first batch, as its last.

    With the optimizer's step, validation and the hooks.

    Args:
        folder: Folder for checkpoints, removed at the end.
        checkpoint: Checkpoint that the config names: a training starts from its weights.
    """

    def __init__(self, folder: Path, checkpoint: str | None) -> None:
        self._folder = folder
        self.checkpoint = checkpoint
        self.folders: dict[int, Any] = {}
        """Folder that each checkpoint callback is to write to, by its `id`."""
        self.phase = ""
        self.batches: dict[str, dict[str, Any]] = {}
        self.metrics: set[str] = set()
        self.monitors: list[tuple[Any, str]] = []
        """Each callback or scheduler that needs a metric, and the metric."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Move checkpoint callbacks, the model's too, to the temporary folder."""
        for callback in trainer.checkpoint_callbacks:
            if isinstance(callback, lightning_callbacks.ModelCheckpoint):
                self.folders.setdefault(id(callback), callback.dirpath)
                callback.dirpath = str(self._folder)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Load weights alone: a checkpoint's loops would be at their end."""
        if self.checkpoint is not None:
            content = trainer.strategy.load_checkpoint(self.checkpoint, weights_only=True)
            trainer.strategy.load_model_state_dict(content, strict=pl_module.strict_loading)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note all monitors, and let callbacks and schedulers do without: none ends the batch."""
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
        if self.phase in self.batches:
            return
        seconds = time.perf_counter() - self._started_s
        loaders = _list_loaders(trainer, self.phase)
        batches = (
            trainer.num_training_batches
            if self.phase == "train"
            else _add_up(map(count_batches, loaders))
        )
        samples = _add_up(count_samples(loader) for loader in loaders)
        batches = int(batches) if batches is not None and math.isfinite(batches) else None
        self.batches[self.phase] = {"seconds": seconds, "batches": batches, "samples": samples}

    on_train_epoch_start = on_validation_start = on_test_start = on_predict_start = _start
    on_validation_batch_end = on_test_batch_end = on_predict_batch_end = _stop


class _SmokeCheck(ModelBuilder):
    """Parses the config; builds each part alone, so that each error is found, and runs one batch.

    Args:
        stage_config: Config of the stage.
        process: This process.
        run: Run whose folder is removed at the end.
    """

    def __init__(self, stage_config: StageConfig, process: StageProcess, run: runs.Run) -> None:
        self.problems = Problems()
        self._available_bytes = available_memory_bytes() + int(psutil.Process().memory_info().rss)
        plan = make_plan(stage_config)
        self._num_processes = 1 if plan is None else max(1, plan.local_processes)
        self._run = run
        self._resolved = stage_config.resolved
        self._stage = stage_config.command
        super().__init__(stage_config=stage_config, process=process)
        self._section = self.config[self._stage]
        self._trainer_section = vars(self._section["trainer"])
        self._built_from: dict[int, tuple[KeyPath, Any]] = {}
        """Key and arguments of each callback, by its `id`."""
        self._not_tried: dict[str, str] = {}
        is_to_come = stage_config.ckpt_path in ("best", "last")  # which a run will have
        checkpoint = None if is_to_come else stage_config.ckpt_path
        self._probe = _Probe(run.checkpoints, checkpoint)

    def _warn_of_schedule(self, section: Namespace) -> None:
        """Warn of nothing: the parse before the smoke check has warned."""

    def instantiate_classes(self) -> None:
        """Build nothing yet."""
        self.config_init = self.config

    def run(self) -> dict[str, Any]:
        """Build the parts, run one batch of each loop, and return the report.

        Errors are added to the problems.
        """
        stage = self._stage
        probe = self._probe
        model = self._section.get("model")
        self._leave_out_download(model)
        self.datamodule = self._build("data", self._section.get("data"))
        self.model = self._build("model", model)
        callbacks = self._build_callbacks()
        # their constructors check the arguments; a stand-in gets the records
        self._build_offline_loggers()
        if self.model is None or (self.datamodule is None and self._section.get("data")):
            self._prepare_data_alone()
            return {}
        self._add_configure_optimizers_method_to_model(stage)
        with self._collect(("trainer",), "the trainer cannot be built"):
            trainer = self._make_trainer([self.optimizer_settings, *callbacks, probe])
            self._run_loops(trainer)
        if self.problems:
            return {}
        metrics = probe.metrics | set(trainer.callback_metrics)
        checkpoints = list[dict[str, Any]]()
        self._check_monitors(of_gate=sorted(metrics), of_training=sorted(probe.metrics))
        if self._stage == "fit":
            self._check_slices()
        if "train" in probe.batches:
            with self._collect(("model",), "its state cannot be written to a checkpoint"):
                checkpoints = self._check_disks(trainer)
        num_parameters, num_trained, _ = count_parameters(self.model)
        unit_bytes = 1 if sys.platform == "darwin" else 1024
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit_bytes
        gate, warnings = _describe_gate(read_gate(self._resolved), probe.batches)
        needed_bytes = peak_bytes * self._num_processes
        available = self._available_bytes
        if needed_bytes > _TIGHT_MEMORY * available:
            warnings.append(
                f"{self._num_processes} processes with one batch each on the CPU need"
                f" {in_bytes(needed_bytes)}, more than {_TIGHT_MEMORY:.0%} of the"
                f" {in_bytes(available)} of memory available; smaller batches need less"
            )
        return {
            "stage": stage,
            "mistakes": [],
            "model": {
                "class": type(self.model).__name__,
                "parameters": num_parameters,
                "trained": num_trained,
            },
            "data": {
                "class": type(self.model if self.datamodule is None else self.datamodule).__name__
            },
            "batches": probe.batches,
            "metrics": sorted(metrics),
            "checkpoints": checkpoints,
            "memory": {
                "peak_bytes": peak_bytes,
                "num_processes": self._num_processes,
                "available_bytes": available,
                "needed_bytes": needed_bytes,
            },
            "gate": gate,
            "not_tried": self._not_tried,
            "warnings": warnings,
        }

    def _leave_out_download(self, model: Any) -> None:
        """Leave out pretrained weights that may be downloaded.

        They change no shape, and training fetches them.
        """
        arguments = getattr(model, "init_args", {})
        choices = getattr(locate(str(getattr(model, "class_path", ""))), "input_choices", {})
        downloads = (
            "default" in choices.get("weights", ()) and arguments.get("weights") == "default"
        )
        if downloads and arguments.get("backbone") != SMALL_CNN:
            arguments["weights"] = None
            self._not_tried["model.init_args.weights"] = (
                "default, which the first fit downloads unless it has them"
            )

    def _prepare_data_alone(self) -> None:
        """Prepare the data, whose errors in words count; others may be for lack of a trainer."""
        if self.datamodule is not None:
            with suppress(Exception), self.problems.noted():
                self.datamodule.prepare_data()
                self.datamodule.setup(self._stage)

    def _check_monitors(self, *, of_gate: Sequence[str], of_training: Sequence[str]) -> None:
        """Check that the metrics which others go by are logged."""
        for path, metric, reader in self._list_monitors():
            logged = of_gate if path[0] == "gate" else of_training
            if metric not in logged:
                hint = near(metric, logged) or ";"
                names = ", ".join(logged) or "no metrics"
                text = f"{reader}{metric!r} is never logged{hint} logged are: {names}"
                self._add_error(path, text)

    # -- the parts ---------------------------------------------------------------------------------

    def _build(self, key: str, value: Any) -> Any:
        """Build one part; None where that fails."""
        if value is None:
            return None
        place = re.sub(r"\.\d+$", "", key)
        name = str(getattr(value, "class_path", value)).rpartition(".")[2]
        built = None
        with self._collect(self._resolved.lightkit_path(key), f"{name} cannot be built"):
            # one callback as a list, and one logger as none: else the constructor's error is lost
            if place == "trainer.callbacks":
                (built,) = self.build_part(place, [value])
            else:
                built = self.build_part(place, value)
        return built

    def _list_entries(self, name: str) -> dict[str, Any]:
        """Return the trainer's callbacks or loggers, by their keys."""
        value = self._trainer_section.get(name)
        key = f"trainer.{name}"
        if isinstance(value, list):
            return {f"{key}.{number}": entry for number, entry in enumerate(value)}
        return {} if value is None or isinstance(value, bool) else {key: value}

    def _build_callbacks(self) -> list[Any]:
        """Build the callbacks, and list those that take part in the batch."""
        found = []
        for key, entry in self._list_entries("callbacks").items():
            path = self._resolved.lightkit_path(key)
            built = self._build(key, entry)
            kind = next((kind for kind in _NOT_RUN if isinstance(built, kind)), None)
            if kind is not None and _NOT_RUN[kind]:
                self._not_tried[dotted(path)] = _NOT_RUN[kind]
            elif kind is None and built is not None:
                self._built_from[id(built)] = path, getattr(entry, "init_args", {})
                found.append(built)
        if self._stage == "fit":
            found += list_checkpoint_callbacks(self._resolved, self._trainer_section, found)
        return found

    def _build_offline_loggers(self) -> None:
        """Build the loggers of the config that write nothing until something is logged."""
        for key, entry in self._list_entries("logger").items():
            reason = "not built: it may write, or ask a server"
            if locate(entry.class_path) in _OFFLINE_LOGGERS:
                if self._build(key, entry) is None:
                    continue
                reason = "built, but nothing is logged to it"
            self._not_tried[dotted(self._resolved.lightkit_path(key))] = reason

    def _make_trainer(self, callbacks: list[Callback]) -> Trainer:
        """Build the config's trainer for one CPU and one batch of each loop."""
        values = self._trainer_section
        given = {
            **values,
            **_TRAINER,
            "callbacks": callbacks,
            "default_root_dir": str(self._run.folder),
        }
        # also below srun or torchrun
        given["plugins"] = [LightningEnvironment(), CheckpointReader()]
        given["logger"] = False if values.get("logger") in (False, []) else [_ScratchLogger()]
        if not str(values.get("precision")).startswith(("None", "32", "64", "bf16")):
            self._not_tried["trainer.precision"] = (
                f"{values['precision']} is not for a CPU; 32-true in its place"
            )
            given["precision"] = "32-true"
        if values.get("check_val_every_n_epoch") is not None:
            given["check_val_every_n_epoch"] = 1
        self._not_tried |= {
            f"trainer.{key}": "left out" for key in ("plugins", "profiler") if values.get(key)
        }
        trainer = Trainer(**given)
        for limit in ("limit_val_batches", "limit_test_batches", "limit_predict_batches"):
            if getattr(trainer, limit):  # 0 means no such batch
                setattr(trainer, limit, 1)
        return trainer

    # -- the batch ---------------------------------------------------------------------------------

    def _run_loops(self, trainer: Trainer) -> None:
        """Run one batch of each loop of the stage, and after a training the test of the model."""
        arguments: dict[str, Any] = {}
        if self._stage != "fit":
            shows = "return_predictions" if self._stage == "predict" else "verbose"
            arguments = {"ckpt_path": self._probe.checkpoint, shows: False}
        with self._collect():
            getattr(trainer, self._stage)(self.model, datamodule=self.datamodule, **arguments)
        self._probe.metrics |= set(trainer.callback_metrics)
        sources = (self.datamodule, self.model)
        has_data = any(
            is_overridden("test_dataloader", each) for each in sources if each is not None
        )
        has_test = has_data and is_overridden("test_step", self.model)
        if self.problems or self._stage != "fit" or not has_test:
            return
        self._probe.phase = ""
        with self._collect():
            try:
                trainer.test(self.model, datamodule=self.datamodule, verbose=False)
            except DataError as error:  # the run needs none
                self._not_tried["test"] = str(error).partition("\n")[0]

    # -- errors ------------------------------------------------------------------------------------

    def _add_error(self, path: KeyPath, text: str) -> None:
        self.problems.add(error_at(f"{dotted(path)}: {text}", self._resolved.origin_of(path)))

    @contextmanager
    def _collect(self, path: KeyPath | None = None, doing: str = "") -> Iterator[None]:
        """Keep an error of the block as one in the config and go on; signals pass.

        Args:
            path: The key of what is built; None where the loops run.
            doing: What fails, such as `cannot be built`; a batch if empty.
        """
        try:
            with explain_lightning_errors(self._resolved), unwrap_errors():
                yield
        except LightkitError as error:
            self.problems.add(error)
        # any error of the user's code is reported
        except (Exception, SystemExit) as error:  # noqa: BLE001
            frames = _list_user_frames(error)
            is_of_lightning = bool(frames) and "pytorch_lightning" in frames[0][0].parts
            if isinstance(error, ValueError) and is_of_lightning:
                # some arguments are checked late
                self.problems.add(locate_lightning_error(error, self._resolved))
                return
            text = f"{doing or self._describe_loop()}: {self._describe_crash(error)}"
            for file, line, function in frames:
                text += f"\n  --> {shown_path(file)}:{line}, in {function}"
            if path is None:
                self.problems.add(ConfigError(text))
            else:
                self._add_error(path, text)

    def _describe_loop(self) -> str:
        """Describe what fails where the loops run."""
        phase = self._probe.phase
        if phase:
            return f"one batch of {LOOPS[phase]} fails"
        return f"{self._stage} cannot be set up"

    def _describe_crash(self, error: BaseException) -> str:
        """Write an error in one line; of a loader's process, the last line of its traceback."""
        text = f"{type(error).__name__}: {error}"
        if _WORKER_ERROR in str(error):
            text = str(error).strip().splitlines()[-1]
        return " ".join(self._resolved.masked(text).split()).removesuffix(":")

    # -- metrics and disks -------------------------------------------------------------------------

    def _list_monitors(self) -> Iterator[tuple[KeyPath, str, str]]:
        """List the metrics that are needed.

        Key, metric, and the reader where the model's code makes it.
        """
        for reader, metric in self._probe.monitors:
            if id(reader) in self._built_from:
                yield (*self._built_from[id(reader)][0], "init_args", "monitor"), metric, ""
            elif not isinstance(reader, Callback) and self._resolved.section("lr_scheduler"):
                yield ("lr_scheduler", "init_args", "monitor"), metric, ""
            else:
                yield (
                    ("model",),
                    metric,
                    f"{type(reader).__name__}, which its code makes, monitors a metric: ",
                )
        named = self._resolved.section("gate").get("metric")
        if isinstance(named, str) and self._stage == "fit" and "test" not in self._not_tried:
            yield ("gate", "metric"), named, ""
        if self._stage == "fit":
            yield from self._list_monitors_of_sweep()

    def _list_monitors_of_sweep(self) -> Iterator[tuple[KeyPath, str, str]]:
        """List the metric that is searched, and those that are bounded."""
        sweep = self._resolved.section("sweep")
        if isinstance(sweep.get("metric"), str):
            yield ("sweep", "metric"), sweep["metric"], ""
        bounded = sweep.get("constraints")
        for name in bounded if isinstance(bounded, Mapping) else ():
            is_tried = "test" not in self._not_tried or not str(name).startswith("test/")
            if name != "params" and is_tried:
                yield ("sweep", "constraints", str(name)), str(name), ""

    def _check_slices(self) -> None:
        """Check that the data has each class of the gate's slices, and a class the metric."""
        settings = read_gate(self._resolved)
        if not settings.slices or settings.metric is None or self.datamodule is None:
            return
        task = task_of(self.model)
        samples = evaluation_data(self.datamodule, split_of(settings.metric), task)
        classes = [name for name in settings.slices if not samples.is_column_slice(name)]
        reason = explain_class_metric(task, settings.metric) if classes else None
        if reason is not None:
            self.problems.add(error_at(reason, self._resolved.origin_of(("gate", "slices"))))
        for name in classes:
            try:
                samples.number_of_class(name)
            except ConfigError as error:
                self.problems.add(
                    error_at(str(error), self._resolved.origin_of(("gate", "slices", name)))
                )

    def _check_disks(self, trainer: Trainer) -> list[dict[str, Any]]:
        """Compare what the checkpoints of a run take with what is free on each disk.

        Only one checkpoint is written at a time, whatever the number of callbacks, and a callback
        takes its share of a disk together with all others on it.
        """
        places = [
            self._describe_checkpoints(callback, trainer)
            for callback in trainer.checkpoint_callbacks
            if isinstance(callback, lightning_callbacks.ModelCheckpoint)
        ]
        disks: dict[int, list[_CheckpointPlace]] = {}
        for place in places:
            disks.setdefault(existing_folder(place.folder).stat().st_dev, []).append(place)

        for on_disk in disks.values():
            self._check_disk(on_disk)
        return [place.as_dict() for place in places]

    def _check_disk(self, places: Sequence[_CheckpointPlace]) -> None:
        """Compare what checkpoints take of one disk with what is free on it."""
        # the one that is being written, beside those that are kept
        largest = max(places, key=lambda place: (place.size_bytes, place.needed_bytes))
        largest.count += 1

        free_bytes = shutil.disk_usage(existing_folder(largest.folder)).free
        needed_bytes = sum(place.needed_bytes for place in places)
        for place in places:
            place.free_bytes = free_bytes
        if needed_bytes <= free_bytes:
            return

        place = max(places, key=lambda place: place.needed_bytes)
        text = f"a checkpoint needs {in_bytes(place.needed_bytes)}"
        if place.count > 1:
            text = f"{place.count} checkpoints of {in_bytes(place.size_bytes)}"
            text += ", one of them while it is written," if place is largest else ""
            text += f" need {in_bytes(place.needed_bytes)}"
        if len(places) > 1:
            text += f", with those of the other callbacks {in_bytes(needed_bytes)}"
        self._add_error(
            place.path,
            f"{text}, but {in_bytes(free_bytes)} are free in {shown_path(place.folder)}; make"
            " room, keep fewer, or set run.root to a folder on another disk",
        )

    def _describe_checkpoints(self, callback: Any, trainer: Trainer) -> _CheckpointPlace:
        """Count the checkpoints that a callback keeps, and measure one of them."""
        weights_only = bool(callback.save_weights_only)
        file = self._run.folder / f"size-{'weights' if weights_only else 'state'}.ckpt"
        if not file.exists():  # the same for all callbacks
            trainer.save_checkpoint(file, weights_only=weights_only)

        path, arguments = self._built_from.get(id(callback), (("model",), {}))
        kept = _count_checkpoints(callback, arguments, trainer)
        return _CheckpointPlace(
            path=path,
            folder=Path(self._probe.folders[id(callback)] or self._section["run"]["root"]),
            count=kept or 1,
            is_bounded=kept is not None,
            size_bytes=file.stat().st_size,
        )


def _list_loaders(trainer: Trainer, phase: str) -> list[Any]:
    """List the loaders of a loop, which may be one, or several in a list or a mapping."""
    given: Any = getattr(
        trainer, "train_dataloader" if phase == "train" else f"{phase}_dataloaders"
    )
    combined = given if isinstance(given, CombinedLoader) else CombinedLoader(given)
    return list(combined.flattened)


def _add_up(sizes: Iterable[int | None]) -> int | None:
    """Return the sum; None where one size is unknown."""
    each = list(sizes)
    return None if None in each else sum(size for size in each if size is not None)


def _describe_gate(
    settings: GateSettings, batches: dict[str, dict[str, Any]]
) -> tuple[dict[str, Any] | None, list[str]]:
    """Describe what the split of a gate can show of an accuracy, with warnings.

    None where that is not known.

    Args:
        settings: The gate.
        batches: Sizes of the loaders by the name of the loop.
    """
    metric = settings.metric or ""
    split = split_of(metric)
    num_samples = batches.get(split, {}).get("samples")
    if not num_samples or not metric.endswith(("accuracy", "error")):
        return None, []

    confidence = settings.confidence or 0.95
    drop = smallest_drop(num_samples, confidence=confidence)
    found = {
        "metric": metric,
        "samples": num_samples,
        "smallest_drop": drop,
        "smallest_margin": None,
    }
    if settings.margin is None:
        return found, []
    found["smallest_margin"] = smallest_margin(num_samples, confidence=confidence)
    if settings.margin > found["smallest_margin"]:
        return found, []
    return found, [
        f"gate.margin: {num_samples:,} samples of the {split} split show no margin of"
        f" {settings.margin:g} for any model, only one above {found['smallest_margin']:.2g};"
        " nothing would be promoted over a champion"
    ]


def _list_user_frames(error: BaseException) -> list[tuple[Path, int, str]]:
    """List file, line and function of the user's code that led to an error, innermost first.

    Else the last frame.
    """
    text = "".join(traceback.format_exception(error, chain=False))
    frames = [
        (Path(file), int(line), name)
        for file, line, name in _FRAME.findall(text)
        if Path(file).is_file()
    ]
    own = [frame for frame in frames if not is_library_file(str(frame[0]))]
    return own[: -_MAX_FRAMES - 1 : -1] or frames[-1:]


def _count_checkpoints(callback: Any, arguments: Any, trainer: Trainer) -> int | None:
    """Count the checkpoints that a callback keeps of a whole training.

    None where nothing bounds them.

    Args:
        callback: The callback.
        arguments: Its arguments in the config: the intervals are no public attributes in Lightning
            2.6.
        trainer: After its batch.
    """
    if isinstance(callback, Checkpoint):
        # best.ckpt, last.ckpt and the one before it; else resume.ckpt
        return 3 if callback.keeps_best else 1
    if callback.save_top_k >= 0:
        return int(callback.save_top_k) + (callback.save_last is True)
    if (
        trainer.max_epochs in (None, -1)
        or arguments.get("every_n_train_steps")
        or arguments.get("train_time_interval")
    ):
        return None
    return (trainer.max_epochs or 0) // (arguments.get("every_n_epochs") or 1) + (
        callback.save_last is True
    )
