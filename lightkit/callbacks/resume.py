"""State that an exact resume needs and Lightning leaves out of a checkpoint."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from lightning_fabric.utilities import move_data_to_device
from lightning_utilities.core.apply_func import apply_to_collection
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import EarlyStopping
from pytorch_lightning.callbacks.early_stopping import EarlyStoppingReason
from pytorch_lightning.utilities.combined_loader import CombinedLoader
from torch import distributed
from torch.utils.data import BatchSampler, DistributedSampler, SequentialSampler
from torchmetrics import Metric, MetricCollection

from lightkit.callbacks.checkpoint import is_validated_after, resumes_within_epoch
from lightkit.runs.files import find_value

_log = logging.getLogger("lightkit")
_KEY = "lightkit_resume"
_GOES_ON = EarlyStoppingReason.NOT_STOPPED.value
T = TypeVar("T")


@runtime_checkable
class _Stateful(Protocol):
    """A loader whose state Lightning keeps in checkpoints, and hands back."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


class ResumeState(Callback):
    """Save and restore random states, epoch metrics, pending plateau steps and a decision to stop.

    Lightning 2.6 restores none of these: random states are not in its checkpoints, nor are the sums
    behind what is logged once an epoch, `ReduceLROnPlateau` is stepped after the epoch's checkpoint
    is written and not again on resume, and a run that was killed after early stopping had decided
    to end trains another epoch. The patience of an `EarlyStopping` it does restore; here it is that
    of the config. A checkpoint that was written after a batch, before the validation
    that follows it, resumes in Lightning without that validation.
    """

    def __init__(self) -> None:
        self._restored: dict[str, Any] | None = None
        self._logged: dict[str, dict[str, Any]] = {}
        self._restored_metrics: list[Metric] = []  # until a batch is counted in them
        self._makes_iterator = False  # at the start of the next epoch
        # updates of the module's metrics before the validation under way
        self._counts: dict[str, int] = {}

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add this process's and, in a group, every rank's state."""
        checkpoint[_KEY] = {
            "random": gather(
                trainer, {**random_states(), "xla": xla_random_state(trainer.strategy.root_device)}
            ),
            "metrics": gather(
                trainer, epoch_metrics(trainer, pl_module, counts_before=self._counts)
            ),
            "should_stop": bool(trainer.should_stop),
            "plateau": _pending_plateau_steps(trainer),
            "callback_metrics": {} if _is_epoch_over(trainer) else _newest_metrics(trainer),
            "is_validated_next": (
                _is_within_batch(trainer)
                and is_validated_after(trainer, trainer.fit_loop.batch_idx)
            ),
        }

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep the saved state until training starts."""
        self._restored = checkpoint.get(_KEY)
        if _apply_patience(trainer, checkpoint) and self._restored is not None:
            self._restored["should_stop"] = False
        if trainer.max_steps != -1:
            _finish_counted_epoch(checkpoint)
        if find_value(self._restored, "is_validated_next"):
            _resume_before_validation(checkpoint["loops"]["fit_loop"])

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore the random states before people's own loaders draw their seed from them."""
        if (own := self._own_random_states(trainer)) is not None:
            restore_random_states(own)
        # A plateau scheduler of steps, or a callback, may ask for a value before it is logged
        # again.
        trainer.callback_metrics.update((self._restored or {}).get("callback_metrics", {}))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore the rest, and the random states again.

        A loader that exists by now has drawn from them.

        Not within an epoch of people's own loaders, which began at another sample.
        """
        own = self._own_random_states(trainer)
        seed_xla(trainer.strategy.root_device, None if own is None else own.get("xla"))
        if self._restored is None:
            return
        for index, value in self._restored["plateau"].items():
            # its type leaves plateau schedulers out
            scheduler: Any = trainer.lr_scheduler_configs[index].scheduler
            scheduler.step(value)
        if self._restored["should_stop"]:
            trainer.should_stop = True
        is_within_epoch = (
            trainer.fit_loop.restarted_mid_epoch or trainer.fit_loop.restarted_on_epoch_end
        )
        draws_nothing = resumes_within_epoch(trainer)
        _warn_of_loader(trainer)
        if own is not None and (draws_nothing or not is_within_epoch):
            restore_random_states(own)
            self._makes_iterator = not draws_nothing
        states = self._restored.get("metrics", [])
        self._logged, self._restored_metrics = restore_metrics(
            pl_module, states, rank=trainer.global_rank
        )
        self._restored = None

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin an epoch as if there had been no interruption.

        What is left of an epoch that was resumed behind its last batch is forgotten: no other epoch
        may count it. An iterator that was made before the random states were restored is made anew,
        as before every later epoch: `Trainer.estimated_stepping_batches`, in
        ``configure_optimizers``, makes one.
        """
        if self._makes_iterator:
            self._makes_iterator = False
            _make_iterator(trainer)
        self._logged = {}
        for metric in self._restored_metrics:
            metric.reset()
        self._restored_metrics = []

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the counts of the metrics: those that the validation updates begin anew after it."""
        self._counts = {name: metric.update_count for name, metric in _list_metrics(pl_module)}

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Step plateau schedulers after an epoch that was resumed within, after its checkpoint.

        Lightning 2.6 leaves them out after such an epoch; with max_steps it steps none at all.
        """
        if trainer.max_steps == -1:
            trainer.fit_loop.restarting = False

    def on_train_batch_start(self, trainer: Trainer, *_args: Any, **_kwargs: Any) -> None:
        """Combine each value logged for the first time with its part from before the resume.

        Also after a batch: what the module logs in its own hooks is combined before anything is
        added to it.
        """
        self._counts = {}
        self._restored_metrics = []
        results = trainer.fit_loop.epoch_loop._results if self._logged else {}
        for key in set(self._logged) & set(results):
            result: Any = results[key]
            before = move_data_to_device(self._logged.pop(key), result.value.device)
            if result.meta.is_max_reduction or result.meta.is_min_reduction:
                result.value = result.meta.reduce_fx(before["value"], result.value)
            else:
                result.value = before["value"] + result.value
            if result.meta.is_mean_reduction:
                result.cumulated_batch_size = (
                    before["cumulated_batch_size"] + result.cumulated_batch_size
                )
            result._computed = None

    on_train_batch_end = on_train_batch_start

    def _own_random_states(self, trainer: Trainer) -> dict[str, Any] | None:
        """Return what to restore on this rank; nothing where the number of ranks is another one."""
        states = [] if self._restored is None else self._restored["random"]
        return states[trainer.global_rank] if len(states) == trainer.world_size else None


def epoch_metrics(
    trainer: Trainer, module: LightningModule, *, counts_before: Mapping[str, int] | None = None
) -> dict[str, dict[str, Any]]:
    """Return what this rank has counted within the epoch.

    ``metrics`` of the module, and what it has ``logged``.

    Nothing at the end of an epoch, where both begin anew. Tensors are on the CPU.

    Args:
        trainer: The trainer.
        module: The module.
        counts_before: At the end of a validation within the epoch, how often each metric had been
            updated before it: metrics that the validation has updated are left out.
    """
    if _is_epoch_over(trainer):
        return {}
    for collection in module.modules():
        if isinstance(collection, MetricCollection):
            # lets the members of a compute group share its state
            dict(collection.items(copy_state=False))
    state = {
        "metrics": {
            name: {"": metric.update_count, **metric.metric_state}
            for name, metric in _list_metrics(module)
            if metric.update_called
            and metric.update_count == (counts_before or {}).get(name, metric.update_count)
        },
        "logged": {
            key: {name: vars(result)[name] for name in result.metric_state}
            for key, result in trainer.fit_loop.epoch_loop._results.items()
            if result.is_tensor and result.meta.on_epoch and result.update_called
        },
    }
    return move_data_to_device(apply_to_collection(state, torch.Tensor, torch.Tensor.detach), "cpu")  # type: ignore[no-any-return]


def restore_metrics(
    module: LightningModule, states: list[dict[str, Any]], *, rank: int
) -> tuple[dict[str, dict[str, Any]], list[Metric]]:
    """Restore the module's metrics from the `epoch_metrics` of all ranks.

    Nothing is restored where the number of ranks has changed: the metrics are those of the rest of
    the epoch then.

    Returns:
        What this rank had logged, and the metrics that are restored.
    """
    world_size = module.trainer.world_size
    own = states[rank] if len(states) == world_size else {}
    restored = []
    for name, metric in _list_metrics(module):
        if state := own.get("metrics", {}).get(name):
            for key, value in move_data_to_device(state, metric.device).items():
                setattr(metric, key or "_update_count", value)
            metric._computed = None
            restored.append(metric)
    return dict(own.get("logged", {})), restored


def _list_metrics(module: LightningModule) -> list[tuple[str, Metric]]:
    return [(name, metric) for name, metric in module.named_modules() if isinstance(metric, Metric)]


def _is_epoch_over(trainer: Trainer) -> bool:
    """Check whether the hooks of an epoch's end are running."""
    progress: Any = trainer.fit_loop.epoch_progress.current
    return bool(progress.processed > progress.completed)


def _is_within_batch(trainer: Trainer) -> bool:
    """Check whether the hooks of a batch's end are running.

    A batch that a hook has skipped is never completed.
    """
    progress: Any = trainer.fit_loop.epoch_loop.batch_progress.current
    return bool(progress.processed > progress.completed) and not _is_epoch_over(trainer)


def _warn_of_loader(trainer: Trainer) -> None:
    """Warn where a resume within an epoch does not take up the samples where they were left.

    Lightning 2.6 warns of that too, also where a loader does, so that its warning is not shown.
    """
    progress: Any = trainer.fit_loop.epoch_loop.batch_progress
    num_done = progress.current.processed
    is_over = progress.is_last_batch or num_done >= trainer.num_training_batches
    is_within = trainer.fit_loop.restarted_mid_epoch and num_done > 0 and not is_over
    if not is_within or resumes_within_epoch(trainer):
        return
    loaders = CombinedLoader(trainer.train_dataloader).flattened
    begins_anew = [type(each).__name__ for each in loaders if not isinstance(each, _Stateful)]
    if begins_anew and trainer.is_global_zero:
        _log.warning(
            "epoch %d goes on after %d of its batches, and its loader (%s) begins anew: the rest of"
            " the epoch is not of the samples that are left. lightkit.data.train_loader goes on"
            " where it was (docs/resume-and-faults.md)",
            trainer.current_epoch,
            num_done,
            begins_anew[0],
        )


def _make_iterator(trainer: Trainer) -> None:
    """Renew the iterator over the training data of a resumed epoch, after the hooks of its start.

    Lightning 2.6 makes it there for each later epoch, but not under `max_steps`, where it is made
    at once.
    """
    loop = trainer.fit_loop
    if trainer.max_steps == -1:
        loop._resuming_from_checkpoint = False
    elif loop._data_fetcher is not None:
        iter(loop._data_fetcher)


def _newest_metrics(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {
        name: torch.as_tensor(value).detach().cpu()
        for name, value in trainer.callback_metrics.items()
    }


def _resume_before_validation(loops: dict[str, Any]) -> None:
    """Set the counters of a checkpoint of the middle of an epoch: Lightning validates first.

    Lightning 2.6 goes on behind the validation. It validates where the batch is complete and a
    validation has begun.
    """
    batches = loops["epoch_loop.batch_progress"]
    validation = loops["epoch_loop.val_loop.batch_progress"]
    for counters in (batches["current"], batches["total"]):
        counters["completed"] = counters["processed"]
    num_before = validation["total"]["completed"]
    validation["current"] = dict.fromkeys(validation["current"], 0)
    validation["total"] |= {
        "ready": num_before + 1,
        "started": num_before + 1,
        "processed": num_before,
    }
    validation["is_last_batch"] = False


def random_states() -> dict[str, Any]:
    """Return the states of Python's, NumPy's and torch's global generators, as values and tensors.

    Only such values load with ``torch.load(weights_only=True)``.
    """
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    assert isinstance(keys, np.ndarray)
    return {
        "python": random.getstate(),
        "numpy": (
            str(kind),
            torch.from_numpy(keys.astype(np.int64)),
            int(position),
            int(has_gauss),
            float(cached),
        ),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore_random_states(states: dict[str, Any]) -> None:
    """Put back what `random_states` returned."""
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(states["torch"].cpu())
    if states["cuda"] and len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([state.cpu() for state in states["cuda"]])


def xla_random_state(device: torch.device) -> int | None:
    """Return the state of an XLA device's generator.

    None for other devices. torch knows nothing of it.
    """
    if device.type != "xla":
        return None
    from torch_xla.core import xla_model  # an extra

    return int(xla_model.get_rng_state(str(device)))


def seed_xla(device: torch.device, seed: int | None = None) -> None:
    """Seed the generator of an XLA device; nothing happens for other devices.

    torch-xla 2.9 starts at 101 in every run: ``torch.manual_seed``, and so ``seed_everything``,
    does not reach it.

    Args:
        device: The device.
        seed: From 0 to 2**64 - 1, or what `xla_random_state` returned. None: the seed of torch's
            generator on the CPU.
    """
    if device.type != "xla":
        return
    from torch_xla.core import xla_model  # an extra

    xla_model.set_rng_state(torch.initial_seed() % 2**64 if seed is None else seed, str(device))


def _apply_patience(trainer: Trainer, checkpoint: dict[str, Any]) -> bool:
    """Replace the patience in the checkpoint, which Lightning 2.6 restores, by this training's.

    Returns:
        Whether a patience had run out, and none has now.
    """
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    has_more: list[bool] = []
    for callback in callbacks:
        state = checkpoint.get("callbacks", {}).get(callback.state_key)
        if not isinstance(callback, EarlyStopping) or state is None:
            continue
        is_longer = state["patience"] < callback.patience
        state["patience"] = callback.patience
        if state.get("stopping_reason", _GOES_ON) == _GOES_ON:
            continue
        had_run_out = state["stopping_reason"] == EarlyStoppingReason.PATIENCE_EXHAUSTED.value
        has_more.append(had_run_out and is_longer and state["wait_count"] < callback.patience)
        if has_more[-1]:
            state["stopping_reason"] = _GOES_ON
            state["stopping_reason_message"] = None
            state["stopped_epoch"] = 0
    return bool(has_more) and all(has_more)


def _finish_counted_epoch(checkpoint: dict[str, Any]) -> None:
    """Count an epoch that ended before its checkpoint as finished in the loops' counters.

    Lightning 2.6 does so itself, but not under `max_steps`: there it would count the epoch a second
    time.
    """
    loops = checkpoint["loops"]["fit_loop"]
    epochs = loops["epoch_progress"]
    batches = loops["epoch_loop.batch_progress"]
    if epochs["current"]["processed"] == epochs["current"]["completed"]:
        return
    for counters in (epochs["current"], epochs["total"]):
        counters["completed"] = counters["processed"]
    batches["current"] = dict.fromkeys(batches["current"], 0)
    batches["is_last_batch"] = False


def gather(trainer: Trainer, value: T) -> list[T]:
    """Send the value of every rank to each; all must call it."""
    if hasattr(trainer.strategy, "gather_objects"):  # Horovod's
        return list(trainer.strategy.gather_objects(value))
    if not (distributed.is_available() and distributed.is_initialized()):
        return [value]
    gathered: list[T] = [value] * distributed.get_world_size()
    distributed.all_gather_object(gathered, value)
    return gathered


def list_indices(loader: Any, *, epoch: int, batch: int) -> list[int] | None:
    """List the indices of the samples in a batch.

    None where the loader's order is unknown, as of a shuffled one.

    Args:
        loader: One whose sampler has ``indices_of``, as those of lightkit.data, or one in the order
            of the data. It may return None.
        epoch: Number of the epoch, from 0.
        batch: Number of the batch of this rank, from 0.
    """
    sampler: Any = getattr(loader, "sampler", None)
    if hasattr(sampler, "indices_of"):
        found = sampler.indices_of(epoch=epoch, batch=batch)
        return None if found is None else list(found)
    # not a subclass: Lightning's gives places in the order of a sampler of one's own
    is_known = type(sampler) in (SequentialSampler, DistributedSampler) and not getattr(
        sampler, "shuffle", False
    )
    if not is_known or type(loader.batch_sampler) is not BatchSampler:
        return None
    rank = getattr(sampler, "rank", 0)
    num_ranks = getattr(sampler, "num_replicas", 1)
    size = loader.batch_sampler.batch_size
    num = len(loader.dataset)
    turns = range(batch * size, min((batch + 1) * size, len(sampler)))
    return [(rank + turn * num_ranks) % num for turn in turns]


def _pending_plateau_steps(trainer: Trainer) -> dict[int, float]:
    """Map the index of each plateau scheduler to the value of its metric.

    Of those that Lightning steps after this checkpoint.
    """
    epochs: Any = trainer.fit_loop.epoch_progress.current
    # within an epoch, or with max_steps
    if epochs.processed == epochs.completed or trainer.fit_loop.restarting:
        return {}
    return {
        index: float(trainer.callback_metrics[config.monitor])
        for index, config in enumerate(trainer.lr_scheduler_configs)
        if config.reduce_on_plateau
        and config.interval == "epoch"
        and epochs.processed % config.frequency == 0
        and config.monitor in trainer.callback_metrics
    }
