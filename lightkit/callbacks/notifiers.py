"""Notifiers: messages about a run, as JSON to a webhook or as blocks to Slack, from a background thread.

The fields of the JSON, all of them always there, null where nothing is known. A later version adds fields; where one
changes its meaning, ``schema`` gets another number.

==============  ========================================================================================
schema          ``lightkit.message/1``
kind            ``start``, ``epoch``, ``end``, ``failure`` or ``gate``
time            ISO 8601, UTC, seconds
job             the run's name; outside the command the model's class
run             the run's id
folder          the run's folder
host            name of the machine
stage           ``fit``, ``validate``, ``test``, ``predict``, ...
status          ``running``, ``done``, ``failed``, ``preempted`` (it can be resumed) or ``interrupted``; of a gate
                ``passed`` or ``failed``
exit_code       of the process, once it is known
epoch           number of the epoch, from 0, as in metrics.csv
max_epochs      number of epochs that are to be trained
step            number of optimizer steps
metrics         numbers by their names; one that is not finite is null
best            ``{monitor, value}`` of the best checkpoint
seconds         since the stage began
error           the last lines of what went wrong, without secrets
mlflow_url      page of the run on MLflow's server, without credentials
mlflow_command  what opens MLflow's local database
gate            the decision of a gate, as in ``gate.json``
==============  ========================================================================================
"""

from __future__ import annotations

import json
import logging
import math
import re
import socket
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import Any, Literal
from urllib.parse import quote

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.trainer.states import TrainerFn

from lightkit import runs
from lightkit.callbacks.recorder import EpochMeter, end_of
from lightkit.errors import ConfigError, LightkitError
from lightkit.runs.files import finite
from lightkit.runs.webhook import CLOSE_TIMEOUT_S, BackgroundSender, HttpMessage, check_address, send

Kind = Literal["start", "epoch", "end", "failure", "gate"]
KINDS: tuple[Kind, ...] = ("start", "epoch", "end", "failure", "gate")
SCHEMA = "lightkit.message/1"
_MOST_LINES = 15
_MOST_CHARACTERS = 2500


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


@dataclass(frozen=True)
class Message:
    """Something that has happened to a run; the module's text describes each field.

    Args:
        kind: What has happened.
        job: The run's name.
        status: How the run stands.
        run: The run's id.
        folder: The run's folder.
        stage: What the process does.
        exit_code: Of the process.
        epoch: Number of the epoch, from 0.
        max_epochs: Number of epochs that are to be trained.
        step: Number of optimizer steps.
        metrics: Numbers by their names.
        best: Monitor and value of the best checkpoint.
        seconds: Since the stage began.
        error: The last lines of what went wrong.
        mlflow_url: Page of the run on MLflow's server.
        mlflow_command: What opens MLflow's local database.
        gate: The decision of a gate.
        host: Name of the machine.
        time: When.
    """

    kind: Kind
    job: str
    status: str
    run: str | None = None
    folder: str | None = None
    stage: str | None = None
    exit_code: int | None = None
    epoch: int | None = None
    max_epochs: int | None = None
    step: int | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    best: Mapping[str, Any] | None = None
    seconds: float | None = None
    error: str | None = None
    mlflow_url: str | None = None
    mlflow_command: str | None = None
    gate: Mapping[str, Any] | None = None
    host: str = field(default_factory=socket.gethostname)
    time: str = field(default_factory=_now)


def as_json(message: Message) -> bytes:
    """Write a message as one JSON object."""
    fields = {"schema": SCHEMA, **finite(asdict(message))}
    return json.dumps(fields, ensure_ascii=False, allow_nan=False, default=str).encode("utf-8", errors="replace")


def last_lines(error: BaseException, mask: Callable[[str], str] = str) -> str:
    """Format an error for a message: the text of a `LightkitError`, else the end of the traceback.

    Args:
        error: The error.
        mask: Puts references in the place of secrets; before anything is cut off, which would hide them from it.
    """
    text = str(error) if isinstance(error, LightkitError) else "".join(traceback.format_exception(error))
    lines = mask(text).rstrip().splitlines()
    kept = lines[:_MOST_LINES] if isinstance(error, LightkitError) else lines[-_MOST_LINES:]
    text = "\n".join(kept)
    return text[:_MOST_CHARACTERS] if isinstance(error, LightkitError) else text[-_MOST_CHARACTERS:]


def is_told(trainer: Trainer) -> bool:
    """Tell whether this process is the one that tells, of a training that is more than a trial."""
    return bool(trainer.is_global_zero) and not getattr(trainer, "fast_dev_run", False)


def numbers_in(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Keep what is a number, or a tensor of one."""
    read = {str(name): _number(value) for name, value in metrics.items()}
    return {name: value for name, value in read.items() if value is not None}


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):  # a tensor of many, or a text
        return None


def best_of(trainer: Trainer) -> dict[str, Any] | None:
    """Give monitor and value of the best checkpoint so far; None where nothing is monitored."""
    keeper = trainer.checkpoint_callback
    if not isinstance(keeper, ModelCheckpoint) or keeper.monitor is None or keeper.best_model_score is None:
        return None
    return {"monitor": keeper.monitor, "value": float(keeper.best_model_score)}


def this_run() -> dict[str, str]:
    """Say which run it is, and where MLflow has it if its training was tracked on a server."""
    run = runs.current()
    if run is None:
        return {}
    kept = runs.read_json(run.folder / "mlflow.json") or {}
    about = {"job": run.name, "run": run.id, "folder": str(run.folder)}
    server = str(kept.get("tracking_uri") or "").replace("***@", "").rstrip("/")
    if not server.startswith(("http://", "https://")):
        return about
    return {**about, "mlflow_url": f"{server}/#/experiments/{kept.get('experiment_id')}/runs/{kept.get('run_id')}"}


def places_of(trainer: Trainer) -> dict[str, str]:
    """Say what opens MLflow's local database, if the run is in one."""
    commands = (getattr(logger, "view_command", None) for logger in trainer.loggers)
    found = (words for words in commands if isinstance(words, list) and words[:1] == ["mlflow"])
    command = next((" ".join(words) for words in found), None)
    return {} if command is None else {"mlflow_command": command}


def masked(value: Any, mask: Callable[[str], str]) -> Any:
    """Put references in the place of secrets in the texts of plain containers."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, Mapping):
        return {str(key): masked(child, mask) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [masked(child, mask) for child in value]
    return value


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
        events: Messages to send: start, epoch, end, failure, gate. By default all of them.
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
        """Queue a message, if its kind is among the events."""
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


_MOST_IN_BLOCK = 3000  # characters of a section's text: https://docs.slack.dev/reference/block-kit/blocks/section-block
_MOST_IN_ERROR = 2500
_MOST_IN_LINE = 200
_MOST_METRICS = 20
_MEMBER = re.compile(r"[UW][A-Z0-9]{5,20}")
_TO_ALL = ("channel", "here")


class SlackNotifier(Notifier):
    """Tell a Slack channel of start, epochs, end, failure and gate decisions of a run, through an incoming webhook.

    With metrics, the last lines of what failed, and the link to the run in MLflow. Sent from a thread: a server that
    is slow, away or fails never slows or ends training. The end of the process waits 5 s for what is unsent, and a
    warning tells once what did not arrive. Nothing shows the address.

    Args:
        webhook_url: Address of the incoming webhook, a secret: say `${oc.env:SLACK_WEBHOOK_URL}`. `null` sends nothing.
        events: Messages to send: start, epoch, end, failure, gate. By default all of them.
        every_n_epochs: Epochs between two messages of an epoch.
        mention: Whom a failure calls: `channel`, `here`, or the id of a member such as U012AB3CD. By default nobody.
        timeout_s: Seconds to wait for an answer.
        retries: How often a message is sent again if Slack is away, busy (429) or fails (5xx).
    """

    def __init__(
        self,
        webhook_url: str | None,
        events: list[Kind] | None = None,
        every_n_epochs: int = 10,
        mention: str | None = None,
        timeout_s: float = 10.0,
        retries: int = 3,
    ) -> None:
        super().__init__(webhook_url, events, every_n_epochs, timeout_s, retries)
        if mention is not None and mention not in _TO_ALL and not _MEMBER.fullmatch(mention):
            says = "expected channel, here or the id of a member such as U012AB3CD"
            raise ConfigError(f"mention of SlackNotifier: {says}, got {mention!r}.")
        self._mention = mention

    def post_of(self, message: Message, url: str) -> HttpMessage:
        """Write the message as Slack's blocks, with plain text for where they are not shown."""
        mention = ""
        if self._mention is not None and message.kind == "failure":
            mention = f"<!{self._mention}> " if self._mention in _TO_ALL else f"<@{self._mention}> "
        headline = mention + escaped(_headline(message))
        parts = [f"{mention}*{escaped(_headline(message))}*", *_details(message)]
        blocks: list[dict[str, Any]] = [
            {"type": "section", "text": {"type": "mrkdwn", "text": part[:_MOST_IN_BLOCK]}} for part in parts
        ]
        if context := _context(message):
            text = {"type": "mrkdwn", "text": context[:_MOST_IN_BLOCK]}
            blocks.append({"type": "context", "elements": [text]})
        body = json.dumps({"text": headline, "blocks": blocks}, ensure_ascii=False).encode("utf-8", errors="replace")
        headers = {"Content-Type": "application/json; charset=utf-8"}
        return HttpMessage(url, body, headers, is_superseded=message.kind in ("start", "epoch"))


def escaped(text: str) -> str:
    """Escape code fences, and what Slack reads as markup: https://docs.slack.dev/messaging/formatting-message-text."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("```", "'''")


def _headline(message: Message) -> str:
    job = message.job if len(message.job) <= _MOST_IN_LINE else f"{message.job[:_MOST_IN_LINE]}…"
    if message.kind == "gate":
        return f"{job}: the gate says {'yes' if message.status == 'passed' else 'no'}"
    stage = message.stage or "fit"
    if message.kind == "start":
        begins = "goes on" if message.epoch or message.step else "begins"
        return f"{job}: {stage} {begins}"
    if message.kind == "epoch":
        return f"{job}: {_epochs(message)}"
    if message.kind == "failure":
        code = "" if message.exit_code is None else f" with exit code {message.exit_code}"
        return f"{job}: {stage} has failed{code}"
    ended = {
        "done": "is done",
        "preempted": "was interrupted; the same command goes on with it",
        "interrupted": "was interrupted; there is nothing to resume",
    }
    return f"{job}: {stage} {ended.get(message.status, message.status)}"


def _epochs(message: Message) -> str:
    number = (message.epoch or 0) + 1
    of = f" of {message.max_epochs}" if message.max_epochs and message.max_epochs > 0 else ""
    return f"epoch {number}{of} is done"


def _details(message: Message) -> list[str]:
    details = []
    if message.kind == "gate":
        details += _gate(message.gate or {})
    elif message.metrics:
        details.append(_table(message.metrics))
    if message.best is not None and message.kind in ("epoch", "end"):
        details.append(f"best {escaped(str(message.best.get('monitor')))}: {_format_number(message.best.get('value'))}")
    if message.error and message.status != "preempted" and not (message.gate or {}).get("checks"):
        details.append(_code(message.error))
    return details


def _gate(gate: Mapping[str, Any]) -> list[str]:
    scores = gate.get("scores") or {}
    sides = [(side, scores[side]) for side in ("challenger", "baseline") if scores.get(side)]
    names = list(dict.fromkeys(name for _, numbers in sides for name in numbers))[:_MOST_METRICS]
    details = [f"against {escaped(str(gate['baseline'])[:_MOST_IN_LINE])}"] if gate.get("baseline") else []
    if names:
        width = max(map(len, names))
        lines = [" " * width + "".join(f"  {side:>10}" for side, _ in sides)]
        lines += [
            f"{name:<{width}}" + "".join(f"  {_format_number(of.get(name)):>10}" for _, of in sides) for name in names
        ]
        details.append(_code("\n".join(lines)))
    if checks := gate.get("checks"):  # those of slices and of drift too, what failed first
        details.append(_code("\n".join(map(_check, sorted(checks, key=lambda check: bool(check.get("passed")))))))
    return details


def _check(check: Mapping[str, Any]) -> str:
    word = "passed" if check.get("passed") else "FAILED"
    return f"{word}  {check.get('name')} {_format_number(check.get('challenger'))}, asked: {check.get('asks')}"


def _table(metrics: Mapping[str, float | None]) -> str:
    shown = list(metrics.items())[:_MOST_METRICS]
    width = max(len(name) for name, _ in shown)
    lines = [f"{name:<{width}}  {_format_number(value)}" for name, value in shown]
    rest = len(metrics) - len(shown)
    return _code("\n".join([*lines, f"and {rest} more"] if rest else lines))


def _code(text: str) -> str:
    """Show a text as it is; what is cut off counts its characters as Slack does, escaped."""
    kept = text
    while len(escaped(kept)) > _MOST_IN_ERROR:
        kept = kept[: max(len(kept) - max(len(escaped(kept)) - _MOST_IN_ERROR, 1), 0)]
    return f"```{escaped(kept)}{'…' if len(kept) < len(text) else ''}```"


def _context(message: Message) -> str:
    parts = [] if message.mlflow_url is None else [f"<{quote(message.mlflow_url, safe=_KEPT)}|run in MLflow>"]
    if message.mlflow_url is None and message.mlflow_command is not None and message.kind != "epoch":
        parts.append(f"`{escaped(message.mlflow_command[:_MOST_IN_LINE])}`")
    parts += [] if message.folder is None else [escaped(message.folder[-_MOST_IN_LINE:])]
    parts.append(escaped(message.host[:_MOST_IN_LINE]))
    parts += [_duration(message.seconds)] if message.seconds is not None else []
    return " · ".join(parts)


_KEPT = "/:#?=@%!$'()*+,;[]~-._"  # of an address; not & | < >, which Slack reads as its own


def _format_number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, (int, float)) else "-" if value is None else str(value)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


class WebhookNotifier(Notifier):
    """Send start, epochs, end, failure and gate decisions of a run to a server, each as one JSON object.

    The fields are those of `lightkit.callbacks.notifiers`. Sent by POST from a thread: a server that is slow, away or
    fails never slows or ends training. The end of the process waits 5 s for what is unsent, and a warning tells once
    what did not arrive. Nothing shows the address.

    Args:
        webhook_url: Address, a secret; `null` sends nothing.
        headers: Further HTTP headers, such as `Authorization`; their values are secrets: say `${oc.env:NAME}`.
        events: Messages to send: start, epoch, end, failure, gate. By default all of them.
        every_n_epochs: Epochs between two messages of an epoch.
        timeout_s: Seconds to wait for an answer.
        retries: How often a message is sent again if the server is away, busy (429) or fails (5xx).
    """

    def __init__(
        self,
        webhook_url: str | None,
        headers: dict[str, str] | None = None,
        events: list[Kind] | None = None,
        every_n_epochs: int = 1,
        timeout_s: float = 10.0,
        retries: int = 3,
    ) -> None:
        super().__init__(webhook_url, events, every_n_epochs, timeout_s, retries)
        self._headers = dict(headers or {})

    def post_of(self, message: Message, url: str) -> HttpMessage:
        """Write the message as JSON."""
        headers = {"Content-Type": "application/json; charset=utf-8", **self._headers}
        return HttpMessage(url, as_json(message), headers, is_superseded=message.kind in ("start", "epoch"))
