"""What Lightning does in each training step for nothing, left out: hooks that nobody has, copies that change nothing.

All of it is for Lightning 2.6, whose step of a two-layer net is mostly this; a later version keeps its own ways until
somebody has looked at it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.__version__ import version
from pytorch_lightning.profilers import PassThroughProfiler
from pytorch_lightning.trainer.connectors.logger_connector import result
from pytorch_lightning.trainer.connectors.logger_connector.logger_connector import _LoggerConnector
from pytorch_lightning.trainer.connectors.logger_connector.result import _ResultMetric
from pytorch_lightning.utilities.model_helpers import is_overridden
from torch import Tensor

__all__ = ["LeanSteps"]

_KNOWN = "2.6."
_OF_TRAINING = (
    "on_train_batch_start",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_train_batch_end",
)
_OF_OTHERS = tuple(f"on_{stage}_batch_{end}" for stage in ("validation", "test", "predict") for end in ("start", "end"))
_HOOKS = _OF_TRAINING + _OF_OTHERS
_NOTHING: AbstractContextManager[None] = nullcontext()


class _NoProfiler(PassThroughProfiler):
    """Measures nothing, without a generator for each of the actions of a step."""

    def profile(self, action_name: str) -> AbstractContextManager[Any]:  # type: ignore[override]
        """Give a context that does nothing."""
        return _NOTHING


class LeanSteps(Callback):
    """Let a step pass over hooks that do nothing, and over copies of what stays as it is.

    For each hook of each callback Lightning makes a name, a context and a call, whether or not the callback has the
    hook. It passes over an attribute that is no function: while a stage runs, those of callbacks and of the model that
    are Lightning's empty ones are None. What `log` has counted is moved to the device of the value each time, with
    copies of all that describes it; here only when it is elsewhere. What is logged for a bar is read from the device
    with each batch, which waits for it; here when somebody asks for it. A batch of tensors that are on the CPU already
    stays as it is where the trainer uses the CPU.

    Without a profiler no contexts are made for one either. Nothing else changes: which hooks run, in which order, and
    what they see.
    """

    def __init__(self) -> None:
        self._emptied: list[tuple[Any, str]] = []

    def setup(self, trainer: Any, pl_module: LightningModule, stage: str) -> None:
        """Empty what is to be passed over."""
        if not version.startswith(_KNOWN):
            return
        self._restore(trainer)
        for callback in trainer.callbacks:
            self._empty(callback, Callback)
        self._empty(pl_module, LightningModule, _OF_TRAINING)  # Lightning reads the others' signatures
        if type(trainer.profiler) is PassThroughProfiler:
            trainer.profiler = _NoProfiler()
        if _stays_on_cpu(trainer, pl_module):
            trainer.strategy.batch_to_device = _kept_if_on_cpu(trainer.strategy.batch_to_device)
        if type(trainer._logger_connector) is _LoggerConnector:
            trainer._logger_connector.__class__ = _LazyConnector
        _LazyMoves.begin()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Put everything back."""
        self._restore(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Put everything back."""
        self._restore(trainer)

    def __getstate__(self) -> dict[str, Any]:
        """A copy has emptied nothing."""
        return {**self.__dict__, "_emptied": []}

    def _empty(self, owner: Any, base: type[Any], hooks: Sequence[str] = _HOOKS) -> None:
        for hook in hooks:
            if hook not in vars(owner) and getattr(type(owner), hook, None) is getattr(base, hook):
                vars(owner)[hook] = None
                self._emptied.append((owner, hook))

    def _restore(self, trainer: Any) -> None:
        for owner, hook in self._emptied:
            if vars(owner).get(hook, hook) is None:  # unless somebody has given it one meanwhile
                del vars(owner)[hook]
        self._emptied.clear()
        vars(trainer.strategy).pop("batch_to_device", None)
        if type(trainer.profiler) is _NoProfiler:
            trainer.profiler = PassThroughProfiler()
        connector = trainer._logger_connector
        if type(connector) is _LazyConnector:
            connector.read_for_bars()
            trainer._logger_connector.__class__ = _LoggerConnector
        _LazyMoves.end()


class _LazyConnector(_LoggerConnector):
    """Reads the values for bars when they are asked for."""

    def on_batch_end(self) -> None:
        """Keep the tensors of this batch."""
        with _unread():
            super().on_batch_end()

    @property
    def progress_bar_metrics(self) -> dict[str, float]:
        """Give the values as numbers."""
        super().progress_bar_metrics  # noqa: B018 (takes what is new)
        return self.read_for_bars()

    def read_for_bars(self) -> dict[str, float]:
        """Let what is kept for bars be numbers."""
        kept: dict[str, Any] = self._progress_bar_metrics
        kept.update({name: value.item() for name, value in kept.items() if isinstance(value, Tensor)})
        return kept


class _LazyMoves:
    """What was logged moves to another device only, and is not copied where it is there."""

    _original: Callable[..., Any] | None = None

    @classmethod
    def begin(cls) -> None:
        """Take the place of Lightning's method."""
        if cls._original is not None:
            return
        cls._original = original = _ResultMetric.to

        def to(metric: Any, *args: Any, **kwargs: Any) -> Any:
            if len(args) == 1 and not kwargs and metric.is_tensor and metric.value.device == args[0]:
                return metric
            return original(metric, *args, **kwargs)

        _ResultMetric.to = to  # type: ignore[assignment, method-assign]

    @classmethod
    def end(cls) -> None:
        """Put Lightning's method back."""
        if cls._original is not None:
            _ResultMetric.to = cls._original  # type: ignore[method-assign]
            cls._original = None


@contextmanager
def _unread() -> Iterator[None]:
    module: Any = result
    module.convert_tensors_to_scalars, read = _as_it_is, module.convert_tensors_to_scalars
    try:
        yield
    finally:
        module.convert_tensors_to_scalars = read


def _as_it_is(value: Any) -> Any:
    return value


def _stays_on_cpu(trainer: Trainer, module: LightningModule) -> bool:
    """Whether nobody does anything with a batch on its way to the device, and the device is the CPU."""
    hooks = ("transfer_batch_to_device", "on_after_batch_transfer")
    owners = (module, trainer.datamodule)  # type: ignore[attr-defined]
    is_theirs = any(is_overridden(hook, owner) for hook in hooks for owner in owners)
    return trainer.strategy.root_device.type == "cpu" and not is_theirs


def _kept_if_on_cpu(move: Callable[..., Any]) -> Callable[..., Any]:
    def batch_to_device(batch: Any, *args: Any, **kwargs: Any) -> Any:
        if type(batch) in (list, tuple) and all(type(part) is Tensor and part.device.type == "cpu" for part in batch):
            return type(batch)(batch)  # a model may put something else into its list
        return move(batch, *args, **kwargs)

    return batch_to_device
