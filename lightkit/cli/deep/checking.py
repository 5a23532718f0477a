"""One batch of a config on one CPU, and what it tells of the mistakes that only running shows."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning import LightningDataModule, Trainer
from pytorch_lightning.callbacks import BatchSizeFinder, LearningRateFinder
from pytorch_lightning.utilities.parsing import lightning_hasattr
from pytorch_lightning.utilities.seed import isolate_rng

from lightkit import runs
from lightkit.cli.context import RunContext
from lightkit.cli.deep import disk, memory
from lightkit.cli.deep.building import Parts, build_parts
from lightkit.cli.deep.crashes import crashes_told, is_same_crash
from lightkit.cli.deep.monitors import unlogged
from lightkit.cli.deep.offline import offline
from lightkit.cli.deep.one_cpu import trainer_of
from lightkit.cli.deep.probe import Probe
from lightkit.cli.deep.report import Loop, Report
from lightkit.cli.deep.stand_ins import MeasuredCheckpoints
from lightkit.cli.launching import plan_of
from lightkit.cli.refusals import refused
from lightkit.config import KeyPath, Problems, dotted, mistake
from lightkit.errors import LightkitError
from lightkit.runs.disk import in_bytes

__all__ = ["check_deeply"]

_NEEDS = {LearningRateFinder: ("_attr_name", "attr_name"), BatchSizeFinder: ("_batch_arg_name", "batch_arg_name")}
"""Finders with what they keep the name of the attribute in that they set, and the argument that says it."""


def check_deeply(session: RunContext) -> Report:
    """Build everything on the CPU, run one batch, and judge monitors, disk and memory.

    Args:
        session: The invocation, whose config has no mistakes that show without building.

    Raises:
        ConfigError: If anything is wrong.
        DataError: If nothing is but that data is missing.
    """
    problems = Problems()
    with _without_trace() as folder:
        to_take_bytes = memory.memory_to_take()
        report = _checked(session, folder, problems)
    problems.raise_any()
    if report.memory is not None:
        report.memory = replace(report.memory, available_bytes=to_take_bytes)
        _warn_of_memory(report)
    return report


@contextmanager
def _without_trace() -> Iterator[Path]:
    """Give a folder for what is written, and put back at the end what the process had; also after a signal."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="lightkit-check-", ignore_cleanup_errors=True))
        stack.enter_context(isolate_rng(include_cuda=False))
        stack.enter_context(patch.dict(os.environ))
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message=".* available but not used")
        stack.enter_context(redirect_stdout(sys.stderr))  # what the user's code prints is not the report
        stack.enter_context(offline())
        yield Path(folder)


def _checked(session: RunContext, folder: Path, problems: Problems) -> Report:
    run = runs.create(folder, _name_of_run(session))  # for code that asks where the run's folder is
    with session.stack, runs.activate(run):
        parts = build_parts(session, problems)
        report = Report(session.command, not_tried=parts.not_tried)
        if not parts.is_complete:
            _try_data_alone(parts.data, session, problems)
            return report
        batch = _Batch(session, parts, run, problems)
        if not batch.run():
            return report
        batch.describe(report)
        if session.command == "fit":
            batch.judge(report)
        return report


def _name_of_run(session: RunContext) -> str:
    section = session.resolved.values.get("run")
    return str((section or {}).get("name") or session.default_name)


def _try_data_alone(data: LightningDataModule | None, session: RunContext, problems: Problems) -> None:
    """Find out what is wrong with the data where there is no model to run it through."""
    if data is None:
        return
    found = Problems()
    with crashes_told(found, session.resolved, lambda: ("data",), lambda: "cannot be set up") as raised:
        data.prepare_data()
        data.setup(session.command)
    if any(isinstance(error, LightkitError) for error in raised):  # else the lack of a trainer may be the cause
        for problem in found:
            problems.add(problem)


@dataclass
class _Batch:
    """One batch of each of a stage's loops.

    Args:
        session: The invocation.
        parts: The model and what belongs to it.
        scratch: Has the folder for what is written.
        problems: Takes the mistakes.
    """

    session: RunContext
    parts: Parts
    scratch: runs.Run
    problems: Problems

    def __post_init__(self) -> None:
        named = self.session.ckpt_path
        self._checkpoint = None if named in ("best", "last") else named
        if named in ("best", "last"):
            self.parts.not_tried["ckpt_path"] = f"{named}: it is looked for when the command runs"
        weights = self._checkpoint if self.session.command == "fit" else None
        self.probe = Probe(self.session.resolved, self.parts.paths, self.scratch, weights)

    def run(self) -> bool:
        """Run the stage; False where it fails."""
        with self._told("the trainer cannot be built") as raised:
            self.trainer = self._trainer([*self.parts.callbacks, self.probe])
        if raised:
            return False
        with self._told() as raised:
            self._start(self.trainer)
        if raised and self.probe.phase == "train":
            self._validate_too(raised[0])
        return not raised

    def _start(self, trainer: Trainer) -> None:
        given = dict(self.parts.arguments)
        if self.session.command == "fit":
            given.pop("ckpt_path", None)
        else:
            given["ckpt_path"] = self._checkpoint
        getattr(trainer, self.session.command)(self.parts.model, datamodule=self.parts.data, **given)

    def _validate_too(self, told: BaseException) -> None:
        """Find out what is wrong with validation where training has failed, by a trainer of its own."""
        assert self.parts.model is not None
        found, probe = Problems(), Probe(self.session.resolved, {}, self.scratch)
        with crashes_told(found, self.session.resolved, probe.where, probe.doing, owners=self._owners) as raised:
            self._trainer([probe]).validate(self.parts.model, datamodule=self.parts.data, verbose=False)
        if raised and probe.phase and not is_same_crash(raised[0], told):
            for problem in found:
                self.problems.add(problem)

    def _trainer(self, callbacks: list[Any]) -> Trainer:
        try:
            return trainer_of(
                self.parts.trainer,
                callbacks,
                has_logger=self.parts.has_logger,
                folder=self.scratch.folder,
                notes=self.parts.not_tried,
            )
        except (MisconfigurationException, ValueError, TypeError, RuntimeError, ImportError) as error:
            raise refused(error, self.session.resolved) from error

    def _told(self, doing: str | None = None) -> Any:
        words = self.probe.doing if doing is None else lambda: doing
        return crashes_told(self.problems, self.session.resolved, self.probe.where, words, owners=self._owners)

    @property
    def _owners(self) -> list[tuple[KeyPath, object]]:
        callbacks = [(self.parts.paths[id(callback)], callback) for callback in self.parts.callbacks]
        return [(("model",), self.parts.model), (("data",), self.parts.data), *callbacks]

    # -- what was seen -------------------------------------------------------------------------------------------

    def describe(self, report: Report) -> None:
        """Write down what was built and what the batch took."""
        model, data = self.parts.model, self.parts.data
        assert model is not None
        sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
        report.model, report.num_parameters = type(model).__name__, sum(size for size, _ in sizes)
        report.num_trained = sum(size for size, is_trained in sizes if is_trained)
        report.data = type(model if data is None else data).__name__
        report.loops = {name: _loop(self.trainer, name, seconds) for name, seconds in self.probe.seconds.items()}
        report.metrics = tuple(sorted(self._metrics))
        plan = plan_of(self.session)
        report.memory = memory.Memory(
            memory.peak_bytes() + self.probe.workers_bytes,
            num_processes=1 if plan is None else max(1, plan.local_processes),
            available_bytes=0,
            state_bytes=self.probe.state_bytes or memory.state_bytes(self.trainer, model),
        )

    def judge(self, report: Report) -> None:
        """Find monitors that are never logged, finders without their attribute, and disks that are too small."""
        for problem in unlogged(self.probe.monitored, self._metrics, self.session.resolved):
            self.problems.add(problem)
        for callback in self.parts.finders:
            self._check_finder(callback)
        if not self.trainer.checkpoint_callbacks or "train" not in self.probe.seconds:
            return
        with self._told("its state cannot be written to a checkpoint") as raised:
            sizes = {weights_only: self._size(weights_only=weights_only) for weights_only in (False, True)}
        if raised:
            return
        root = Path((self.session.resolved.values.get("run") or {}).get("root") or "runs")
        folders = {key: folder or root for key, folder in self.probe.folders.items()}
        kept = disk.kept_by(self.trainer, self.parts.paths, folders, sizes=sizes)
        report.places = tuple(disk.places_of(kept))
        for problem in disk.misfits(report.places, self.session.resolved):
            self.problems.add(problem)

    @property
    def _metrics(self) -> set[str]:
        return self.probe.metrics | set(self.trainer.callback_metrics)

    def _size(self, *, weights_only: bool) -> int:
        self.trainer.save_checkpoint(self.scratch.folder / "size.ckpt", weights_only=weights_only)
        measured = self.trainer.strategy.checkpoint_io
        assert isinstance(measured, MeasuredCheckpoints)
        return measured.last_size_bytes

    def _check_finder(self, callback: Any) -> None:
        """Tell where a finder would not find the attribute that it is to set."""
        kind = next(kind for kind in _NEEDS if isinstance(callback, kind))
        attribute, argument = _NEEDS[kind]
        said = getattr(callback, attribute, "")
        names = [said] if said else ["lr", "learning_rate"]
        if self.parts.model is None or any(lightning_hasattr(self.parts.model, name) for name in names):
            return
        path = self.parts.paths[id(callback)]
        has = f"neither the model, its hparams nor its data has {' or '.join(map(repr, names))}"
        says = f"{dotted(path)}: {has}, which {kind.__name__} sets; {argument} names another"
        self.problems.add(mistake(says, self.session.resolved.origin_of(path)))


def _loop(trainer: Trainer, name: str, seconds: float) -> Loop:
    loaders: Mapping[str, Any] = {
        "train": trainer.train_dataloader,
        "val": trainer.val_dataloaders,
        "test": trainer.test_dataloaders,
        "predict": trainer.predict_dataloaders,
    }
    found = loaders[name]
    each = found if isinstance(found, (list, tuple)) else [found]
    batches = _added(each)
    if name == "train" and isinstance(trainer.num_training_batches, int):
        batches = trainer.num_training_batches
    return Loop(seconds, batches, _added([getattr(loader, "dataset", None) for loader in each]))


def _added(sized: Sequence[Any]) -> int | None:
    """Add up lengths; None where one has none."""
    try:
        return sum(len(item) for item in sized)
    except TypeError:
        return None


def _warn_of_memory(report: Report) -> None:
    assert report.memory is not None
    if not report.memory.is_tight:
        return
    many = f" in each of {report.memory.num_processes} processes" if report.memory.num_processes > 1 else ""
    says = (
        f"one batch on the CPU took {in_bytes(report.memory.peak_bytes)}{many}, more than four fifths of the "
        f"{in_bytes(report.memory.available_bytes)} of memory to be had; a smaller batch or fewer processes need "
        "less (an estimate)"
    )
    report.warnings.append(says)
    logging.getLogger("lightkit").warning(says)
