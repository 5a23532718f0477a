"""What all notifiers share: when something is told, of what, and that sending it holds nobody up."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.trainer.states import TrainerFn

from lightkit.callbacks.epoch_meter import EpochMeter
from lightkit.callbacks.messages import KINDS, Kind, Message, last_lines
from lightkit.callbacks.outcome import end_of
from lightkit.callbacks.run_facts import best_of, is_told, masked, numbers_in, places_of, this_run
from lightkit.errors import ConfigError
from lightkit.runs.webhook import CLOSE_TIMEOUT_S, BackgroundSender, HttpMessage, check_address, send

__all__ = ["Notifier"]

_log = logging.getLogger(__name__)
_LATER = 75  # "try again later": the same command goes on


class Notifier(Callback):
    """Tells a server how a run goes. Subclasses say what is sent: they implement `post_of`.

    Messages are sent in order, from a thread of the process of rank zero, so that training never waits for the server
    and never fails because of it; the end of the process waits 5 s for what is unsent. A ``fast_dev_run`` tells
    nothing.

    Args:
        webhook_url: Address that messages are sent to, a secret: `${oc.env:NAME}` keeps it out of files. `null` sends
            nothing.
        events: What is told: start, epoch, end, failure, gate. By default all of them.
        every_n_epochs: Epochs between two messages of an epoch.
        timeout_s: Seconds to wait for an answer.
        retries: How often a message is sent again if the server is away, busy or fails.
    """

    def __init__(
        self,
        webhook_url: str | None,
        events: Sequence[Kind] | None = None,
        every_n_epochs: int = 1,
        timeout_s: float = 10.0,
        retries: int = 3,
    ) -> None:
        name = type(self).__name__
        self.mask: Callable[[str], str] = str
        """Puts references in the place of secrets; set by whoever knows them."""
        self.command_tells_end = False
        """Whether the command line tells the end: it knows the exit code, and what goes wrong after training."""
        self.events: tuple[Kind, ...] = KINDS if events is None else tuple(events)
        if unknown := [event for event in self.events if event not in KINDS]:
            raise ConfigError(f"events of {name}: expected some of {', '.join(KINDS)}, got {unknown[0]!r}.")
        if every_n_epochs < 1:
            raise ConfigError(f"every_n_epochs of {name}: expected 1 or more, got {every_n_epochs}.")
        if not (timeout_s > 0 and math.isfinite(timeout_s)) or retries < 0:
            says = f"expected timeout_s above 0 and retries of 0 or more, got {timeout_s:g} and {retries}."
            raise ConfigError(f"{name}: {says}")
        self._url = None if webhook_url is None else check_address(webhook_url, f"webhook_url of {name}")
        self._every_n_epochs = every_n_epochs
        self._timeout_s, self._retries = timeout_s, retries
        self._sender: BackgroundSender | None = None
        self._meter = EpochMeter()
        self._stage: str | None = None
        self._began_s: float | None = None
        self._known: dict[str, Any] = {}
        self._is_silent = False  # on other ranks, and in a trial

    def __getstate__(self) -> dict[str, Any]:
        """A copy in another process has no thread, and sends by one of its own."""
        return {**self.__dict__, "_sender": None}

    def post_of(self, message: Message, url: str) -> HttpMessage:
        """Give what is sent.

        Args:
            message: What there is to tell.
            url: The address.
        """
        raise NotImplementedError

    def kinds_sent(self, kinds: Sequence[str]) -> list[Kind]:
        """Give those of some kinds of messages that are sent."""
        return [] if self._url is None else [kind for kind in self.events if kind in kinds]

    # -- what others call --------------------------------------------------------------------------------------

    def tell(self, message: Message) -> None:
        """Queue a message, if its kind is one to be told."""
        if self._url is None or self._is_silent or message.kind not in self.events:
            return
        if self._sender is None:
            self._sender = BackgroundSender(type(self).__name__, timeout_s=self._timeout_s, retries=self._retries)
        try:
            post = self.post_of(message, self._url)
        except Exception as error:  # noqa: BLE001 (the class may be anybody's, and no message is worth a training)
            _log.warning("%s cannot write a message: %s", type(self).__name__, type(error).__name__)
        else:
            self._sender.put(post)

    def tell_now(self, message: Message) -> None:
        """Send a message once, and wait for the answer.

        Raises:
            DeliveryError: If it was not taken.
        """
        if self._url is not None:
            send(self.post_of(message, self._url), timeout_s=self._timeout_s)

    def tell_end(self, error: BaseException | None, **known: Any) -> None:
        """Tell how the process has ended.

        Args:
            error: What ended it, if anything did.
            known: Fields of the message that the trainer did not tell.
        """
        status, code, words = end_of(error)
        status = "preempted" if code == _LATER else status
        lines = last_lines(error, self.mask) if error is not None and status == "failed" else words
        fields = {"job": "unknown", "stage": self._stage, **known, **self._known}
        self.tell(
            Message(
                "failure" if status == "failed" else "end",
                status=status,
                exit_code=code,
                error=None if lines is None else self.mask(lines),
                **{**fields, "seconds": self._seconds()},
            )
        )

    def gate_decided(self, decision: Mapping[str, Any]) -> None:
        """Tell what the gate has decided.

        Args:
            decision: The gate's decision, as ``gate.json`` has it.
        """
        scores = (decision.get("scores") or {}).get("challenger") or {}
        reasons = "\n".join(str(reason) for reason in decision.get("reasons") or ())
        job, _, run_id = str(decision.get("run") or "unknown").rpartition("/")
        known = {"job": job or run_id, "run": run_id, **this_run(), **self._known, "stage": "gate"}
        passed = bool(decision.get("passed"))
        fields = {**known, "metrics": numbers_in(scores), "gate": masked(decision, self.mask)}
        fields |= {"error": self.mask(reasons) or None, "exit_code": 0 if passed else 4}
        self.tell(Message("gate", status="passed" if passed else "failed", **fields))

    def begin_close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Let the time begin to run within which what is unsent can be sent.

        Args:
            timeout_s: That time.
        """
        if self._sender is not None:
            self._sender.begin_close(timeout_s)

    def close(self) -> None:
        """Wait a few seconds for what is unsent."""
        if self._sender is not None:
            self._sender.close()

    # -- what Lightning calls ----------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Start the clock."""
        if self._url is None and is_told(trainer):
            _log.info("%s sends nothing: its webhook_url is null", type(self).__name__)
        self._is_silent = not is_told(trainer)
        self._stage = str(getattr(stage, "value", stage))
        self._began_s = time.monotonic()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell the start: data and model are there, and trackers have opened the run."""
        self._meter.start_epoch(trainer)
        self._begin(trainer, pl_module)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell the start of a validation by itself."""
        self._meter.pause()
        if trainer.state.fn == TrainerFn.VALIDATING:
            self._begin(trainer, pl_module)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell the start of a test."""
        self._begin(trainer, pl_module)

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell the start of a prediction."""
        self._begin(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell the epoch before, now that all of it is logged."""
        self._tell_epoch(trainer, pl_module)
        self._meter.start_epoch(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the samples."""
        self._meter.count(batch)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take what the epoch measured, on all ranks; without batches Lightning only resumes at its end."""
        if self._meter.batches:
            self._meter.end_epoch(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell the last epoch."""
        self._tell_epoch(trainer, pl_module)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell the end, unless the command does."""
        self._end(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell the end of a validation by itself."""
        self._meter.go_on()
        if trainer.state.fn == TrainerFn.VALIDATING:
            self._end_with_metrics(trainer)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell the end of a test with its metrics."""
        self._end_with_metrics(trainer)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell the end of a prediction."""
        self._end(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Tell what is known of the epoch before, and the failure, unless the command does."""
        self._send_epoch(trainer)
        if not self.command_tells_end:
            self.tell_end(exception)

    # -- the messages ------------------------------------------------------------------------------------------

    def _begin(self, trainer: Trainer, module: LightningModule) -> None:
        self._known = {"job": type(module).__name__, **this_run(), "stage": self._stage, **places_of(trainer)}
        if trainer.state.fn == TrainerFn.FITTING:
            self._known |= {"epoch": trainer.current_epoch, "step": trainer.global_step}
            self._known["max_epochs"] = trainer.max_epochs
        self.tell(Message("start", status="running", **self._known))

    def _tell_epoch(self, trainer: Trainer, module: LightningModule) -> None:
        self._meter.add_late_metrics(trainer)  # on all ranks
        self._send_epoch(trainer)

    def _send_epoch(self, trainer: Trainer) -> None:
        epoch = self._meter.take()
        if epoch is None:
            return
        numbers = {"epoch": epoch.epoch, "step": epoch.step, "metrics": numbers_in(epoch.row)}
        self._known |= {**numbers, "best": best_of(trainer)}
        if (epoch.epoch + 1) % self._every_n_epochs == 0:
            known = {"job": "unknown", **self._known, "seconds": self._seconds()}
            self.tell(Message("epoch", status="running", **known))

    def _end_with_metrics(self, trainer: Trainer) -> None:
        metrics = numbers_in(trainer.callback_metrics)  # on all ranks
        self._known["metrics"] = metrics
        self._end(trainer)

    def _end(self, trainer: Trainer) -> None:
        self._known |= {**this_run(), **places_of(trainer)}
        if not self.command_tells_end:
            self.tell_end(None)

    def _seconds(self) -> float | None:
        return None if self._began_s is None else round(time.monotonic() - self._began_s, 3)
