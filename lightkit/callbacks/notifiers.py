"""Notifiers: messages about a run, from a background thread.

To a webhook, to Slack and to the services of apprise.

The fields of the JSON, all of them always there, null where nothing is known. A later version adds
fields; where one changes its meaning, ``schema`` gets another number.

==============  ====================================================================================
schema          ``lightkit.message/1``
kind            ``start``, ``epoch``, ``end``, ``failure`` or ``gate``
time            ISO 8601, UTC, seconds
job             the run's name; outside the command the model's class
run             the run's id
folder          the run's folder; of a sweep that of the sweep
host            name of the machine
stage           ``fit``, ``validate``, ``test``, ``predict``, ``sweep``, ...
status          ``running``, ``done``, ``failed``, ``preempted`` (it can be resumed) or
                ``interrupted``; of a gate ``passed`` or ``failed``
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
==============  ====================================================================================
"""

from __future__ import annotations

import json
import logging
import math
import re
import socket
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.trainer.states import TrainerFn

from lightkit import runs
from lightkit.callbacks.recorder import Epoch, describe_end
from lightkit.config.bounds import NonNegativeInt, PositiveFloat, PositiveInt
from lightkit.errors import ConfigError, LightkitError
from lightkit.runs.deadline import format_duration
from lightkit.runs.files import finite
from lightkit.runs.webhook import BackgroundSender, Deliver, DeliveryError, check_address, post

Kind = Literal["start", "epoch", "end", "failure", "gate"]
KINDS: tuple[Kind, ...] = ("start", "epoch", "end", "failure", "gate")
Message = Mapping[str, Any]
_FIELDS = (
    *("run", "folder", "stage", "exit_code", "epoch", "max_epochs", "step", "best", "seconds"),
    *("error", "mlflow_url", "mlflow_command", "gate"),
)
_JSON = {"Content-Type": "application/json; charset=utf-8"}
_MAX_LINES = 15
_MAX_CHARACTERS = 2500
_MAX_NAME = 200
_MAX_METRICS = 20
_log = logging.getLogger(__name__)


def create_message(kind: Kind, *, job: str, status: str, **known: Any) -> Message:
    """Create a message with the fields that the module's text describes.

    Those that are not known are null.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    head = {"schema": "lightkit.message/1", "kind": kind, "time": now, "job": job, "status": status}
    return {**head, "host": socket.gethostname(), "metrics": {}, **dict.fromkeys(_FIELDS), **known}


def format_error_tail(error: BaseException, mask: Callable[[str], str]) -> str:
    """Format an error for a message: the text of a `LightkitError`, else the end of the traceback.

    Args:
        error: The error.
        mask: Puts references in the place of secrets; before anything is cut off, which would hide
            them from it.
    """
    if isinstance(error, LightkitError):
        return "\n".join(mask(str(error)).rstrip().splitlines()[:_MAX_LINES])[:_MAX_CHARACTERS]
    found = traceback.TracebackException.from_exception(error)
    vars(found)["__notes__"] = None  # where it was and how to resume, which a message has apart
    lines = mask("".join(found.format())).rstrip().splitlines()
    return "\n".join(lines[-_MAX_LINES:])[-_MAX_CHARACTERS:]


def _describe_run() -> dict[str, str]:
    """Return the fields that name the run, and its place in MLflow: a page or a command."""
    if (run := runs.current()) is None:
        return {}
    known = {"job": run.name, "run": run.id, "folder": str(run.folder)}
    kept = runs.read_json(run.folder / "mlflow.json") or {}
    uri = str(kept.get("tracking_uri") or "").replace("***@", "").rstrip("/")
    if uri.startswith(("http://", "https://")):
        known["mlflow_url"] = (
            f"{uri}/#/experiments/{kept.get('experiment_id')}/runs/{kept.get('run_id')}"
        )
    elif uri.startswith("sqlite:"):
        known["mlflow_command"] = f"mlflow ui --backend-store-uri {uri}"
    return known


class Notifier(Callback):
    """Sends messages about a run.

    Subclasses implement `compose`, which formats a message for its service.

    Messages are sent in order, from a thread of the process of rank zero, so that training never
    waits for the server and never fails because of it; the end of the process waits 5 s for what is
    unsent. A ``fast_dev_run``, and a Trainer of your own without a recorded run, send nothing.
    Epochs and metrics come from the trainer's `RunRecorder`, the end from the command, which knows
    the exit code and what goes wrong after training.

    Args:
        is_addressed: Whether there is an address; without one nothing is sent.
        events: Messages to send: start, epoch, end, failure, gate. By default all of them.
        every_n_epochs: Epochs between two messages of an epoch.
        timeout_s: Seconds to wait for an answer.
        retries: How often a message is sent again if the server is away, busy or fails.
    """

    address_argument = "webhook_url"

    def __init__(
        self,
        is_addressed: bool,
        events: list[Kind] | None = None,
        every_n_epochs: PositiveInt = 1,
        timeout_s: PositiveFloat = 10.0,
        retries: NonNegativeInt = 3,
    ) -> None:
        name = type(self).__name__
        if every_n_epochs < 1 or not 0 < timeout_s < math.inf or retries < 0:
            expected = "every_n_epochs of 1 or more, timeout_s above 0 and retries of 0 or more"
            raise ConfigError(
                f"{name}: expected {expected}, got {every_n_epochs}, {timeout_s:g} and {retries}."
            )
        self.mask: Callable[[str], str] = str
        """Puts references in the place of secrets; set by the command line."""
        self.sender = BackgroundSender(name, retries=retries)
        self._timeout_s = timeout_s
        self.kinds: tuple[Kind, ...] = (
            (KINDS if events is None else tuple(events)) if is_addressed else ()
        )
        """Kinds of the messages that are sent."""
        self._is_addressed = is_addressed
        self._every_n_epochs = every_n_epochs
        self._stage: str | None = None
        self._began_s: float | None = None
        self._known: dict[str, Any] = {}
        self._is_silent = False  # on other ranks, and in a fast_dev_run
        self._is_muted = False

    def compose(self, message: Message) -> Deliver:
        """Format a message for the service; return the call that delivers it.

        The call raises `DeliveryError`.
        """
        raise NotImplementedError

    def mute(self) -> None:
        """Send nothing from now on: the run is a trial of a sweep, which sends its own message."""
        self._is_muted = True

    def _send(self, kind: Kind, **fields: Any) -> None:
        """Queue a message, if its kind is among the events."""
        if not self._is_silent and not self._is_muted and kind in self.kinds:
            self.sender.put(self.compose(create_message(kind, **fields)))

    def send_end(self, error: BaseException | None, **known: Any) -> None:
        """Send how the process has ended.

        Args:
            error: The error that ended it, if there is one.
            known: Fields of the message that the trainer did not set.
        """
        status, code, text = describe_end(error)
        text = text and self.mask(text)
        if error is not None and status == "failed":
            text = format_error_tail(error, self.mask)
        fields = {"job": "unknown", "stage": self._stage, **known, **self._known, **_describe_run()}
        kind: Kind = "failure" if status == "failed" else "end"
        self._send(
            kind, status=status, exit_code=code, error=text, seconds=self._seconds(), **fields
        )

    def send_gate_decision(self, decision: Mapping[str, Any]) -> None:
        """Send the decision of the gate.

        Args:
            decision: As ``gate.json`` has it, without secrets.
        """
        scores = runs.find_value(decision, "scores", "challenger") or {}
        job, _, run_id = str(decision["run"]).rpartition("/")
        passed = bool(decision["passed"])
        fields: dict[str, Any] = {
            "job": job,
            "run": run_id,
            **_describe_run(),
            "stage": "gate",
            "exit_code": 0 if passed else 4,
            "metrics": {
                name: float(value)
                for name, value in scores.items()
                if isinstance(value, (int, float))
            },
            "error": "\n".join(decision["reasons"]) or None,
        }
        self._send("gate", status="passed" if passed else "failed", gate=decision, **fields)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Start the clock."""
        is_trial = bool(getattr(trainer, "fast_dev_run", False))
        self._is_silent = not trainer.is_global_zero or is_trial or runs.current() is None
        if not self._is_addressed and not self._is_silent:
            _log.info(
                "%s sends nothing: its %s is null", type(self).__name__, self.address_argument
            )
        self._stage = str(getattr(stage, "value", stage))
        self._began_s = time.monotonic()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Send the start: data and model are there, and trackers have opened the run."""
        self._send_start(
            epoch=trainer.current_epoch, step=trainer.global_step, max_epochs=trainer.max_epochs
        )

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Send the start of a validation by itself."""
        if trainer.state.fn == TrainerFn.VALIDATING:
            self._send_start()

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Send the start of a test or a prediction."""
        self._send_start()

    on_predict_start = on_test_start

    def _send_start(self, **known: Any) -> None:
        self._known = {"stage": self._stage, **_describe_run(), **known}
        self._send("start", status="running", **self._known)

    def on_epoch_recorded(self, trainer: Trainer, epoch: Epoch) -> None:
        """Send an epoch, if it is its turn."""
        keeper = trainer.checkpoint_callback
        best = None
        if (
            isinstance(keeper, ModelCheckpoint)
            and keeper.monitor
            and keeper.best_model_score is not None
        ):
            best = {"monitor": keeper.monitor, "value": float(keeper.best_model_score)}
        self._known |= {
            "epoch": epoch.epoch,
            "step": epoch.step,
            "metrics": epoch.row,
            "best": best,
        }
        if (epoch.epoch + 1) % self._every_n_epochs == 0:
            self._send("epoch", status="running", **self._known, seconds=self._seconds())

    def on_result_recorded(self, trainer: Trainer, stage: str, metrics: dict[str, float]) -> None:
        """Keep the metrics of a stage for the message of its end."""
        self._known["metrics"] = metrics

    def _seconds(self) -> float | None:
        return None if self._began_s is None else round(time.monotonic() - self._began_s, 3)


class WebhookNotifier(Notifier):
    """Send start, epochs, end, failure and gate decisions of a run to a server, as JSON objects.

    The fields are those of `lightkit.callbacks.notifiers`. Sent by POST from a thread: a server
    that is slow, away or fails never slows or ends training. The end of the process waits 5 s for
    what is unsent, and one warning says that messages did not arrive. Nothing shows the address.

    Args:
        webhook_url: Address, a secret; `null` sends nothing.
        headers: Further HTTP headers, such as `Authorization`; their values are secrets: write
            `${oc.env:NAME}`.
        settings: `events`, `every_n_epochs`, `timeout_s` and `retries` of `Notifier`.
    """

    def __init__(
        self, webhook_url: str | None, headers: dict[str, str] | None = None, **settings: Any
    ) -> None:
        super().__init__(webhook_url is not None, **settings)
        self._url = (
            ""
            if webhook_url is None
            else check_address(webhook_url, "webhook_url of WebhookNotifier")
        )
        self._headers = dict(headers or {})

    def compose(self, message: Message) -> Deliver:
        """Write the message as JSON."""
        return partial(
            post,
            self._url,
            _as_json(message),
            {**_JSON, **self._headers},
            timeout_s=self._timeout_s,
        )


def _as_json(content: Message) -> bytes:
    text = json.dumps(finite(content), ensure_ascii=False, allow_nan=False, default=str)
    return text.encode("utf-8", errors="replace")


class SlackNotifier(Notifier):
    """Send a Slack channel start, epochs, end, failure and gate decisions of a run.

    Through an incoming webhook.

    With metrics, the last lines of what failed, and the link to the run in MLflow. Sent from a
    thread: a server that is slow, away or fails never slows or ends training. The end of the
    process waits 5 s for what is unsent, and one warning says that messages did not arrive. Nothing
    shows the address.

    Args:
        webhook_url: Address of the incoming webhook, a secret: `${oc.env:SLACK_WEBHOOK_URL}`.
            `null` sends nothing.
        every_n_epochs: Epochs between two messages of an epoch.
        mention: Whom a failure calls: `channel`, `here`, or the id of a member such as U012AB3CD;
            by default no one.
        settings: `events`, `timeout_s` and `retries` of `Notifier`.
    """

    def __init__(
        self,
        webhook_url: str | None,
        every_n_epochs: PositiveInt = 10,
        mention: str | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(webhook_url is not None, every_n_epochs=every_n_epochs, **settings)
        self._url = (
            ""
            if webhook_url is None
            else check_address(webhook_url, "webhook_url of SlackNotifier")
        )
        if mention is not None and not re.fullmatch("channel|here|[UW][A-Z0-9]{5,20}", mention):
            text = "expected channel, here or the id of a member such as U012AB3CD"
            raise ConfigError(f"mention of SlackNotifier: {text}, got {mention!r}.")
        self._mention = (
            ""
            if mention is None
            else f"<{'!' if mention in ('channel', 'here') else '@'}{mention}> "
        )

    def compose(self, message: Message) -> Deliver:
        """Write the message as Slack's blocks, with plain text for where they are not shown."""
        mention = self._mention if message["kind"] == "failure" else ""
        headline = escape(_headline(message))
        parts = [f"{mention}*{headline}*"]
        for text, is_code in _details(message):
            part = re.sub(r"&\w*$", "", escape(text)[:_MAX_CHARACTERS])  # no half of an entity
            parts.append(f"```{part}```" if is_code else part)
        footer = [escape(text) for text in _origin(message)]
        if message["mlflow_url"] is not None:
            footer.insert(0, f"<{escape(message['mlflow_url']).replace('|', '%7C')}|run in MLflow>")
        elif message["mlflow_command"] is not None and message["kind"] != "epoch":
            footer.insert(0, f"`{escape(message['mlflow_command'][:_MAX_NAME])}`")
        sections = [{"type": "mrkdwn", "text": part} for part in (*parts, " · ".join(footer))]
        body = {
            "text": mention + headline,
            "blocks": [{"type": "section", "text": each} for each in sections],
        }
        return partial(post, self._url, _as_json(body), _JSON, timeout_s=self._timeout_s)


class AppriseNotifier(Notifier):
    """Send the hundred services of apprise (mail, Teams, Telegram, ntfy, ...) messages about a run.

    Needs ``pip install 'lightkit-train[apprise]'``. Sent from a thread, as by the other notifiers.
    Nothing shows the addresses.

    Args:
        urls: Addresses, each a secret: write `${oc.env:NAME}`. https://github.com/caronc/apprise
            lists their forms. `null` sends nothing.
        events: Messages to send: start, epoch, end, failure, gate. By default all of them.
        every_n_epochs: Epochs between two messages of an epoch.
        retries: How often a message is sent again if a service does not take it.
    """

    address_argument = "urls"

    def __init__(
        self,
        urls: list[str] | None,
        events: list[Kind] | None = None,
        every_n_epochs: PositiveInt = 10,
        retries: NonNegativeInt = 3,
    ) -> None:
        super().__init__(bool(urls), events, every_n_epochs, retries=retries)
        try:
            import apprise  # an extra, and 0.3 s to import
        except ImportError:
            text = (
                "AppriseNotifier needs the package apprise; install it with: pip install"
                " 'lightkit-train[apprise]'"
            )
            raise ConfigError(text) from None
        # its warnings may hold parts of an address
        logging.getLogger("apprise").setLevel(logging.CRITICAL)
        self._create = apprise.Apprise
        self._urls = list(urls or [])
        for number, url in enumerate(self._urls):
            if apprise.Apprise.instantiate(url, suppress_exceptions=True) is None:
                raise ConfigError(
                    f"urls of AppriseNotifier: entry {number} is not an address that apprise knows."
                )

    def compose(self, message: Message) -> Deliver:
        """Write the message as text with a headline, for each service until it takes it."""
        texts = [text for text, _ in _details(message)]
        texts += [text for text in (message["mlflow_url"], " · ".join(_origin(message))) if text]
        kind = {"failure": "failure", "end": "success"}.get(message["kind"], "info")
        settings: dict[str, Any] = {"title": _headline(message), "notify_type": kind}
        left = list(self._urls)

        def deliver() -> None:
            left[:] = [
                url for url in left if not self._create(url).notify("\n\n".join(texts), **settings)
            ]
            if left:
                raise DeliveryError(f"{len(left)} of {len(self._urls)} services did not take it")

        return deliver


def escape(text: str) -> str:
    """Escape code fences, and what Slack reads as markup.

    See https://docs.slack.dev/messaging/formatting-message-text.
    """
    return (
        text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("```", "'''")
    )


def _headline(message: Message) -> str:
    status = message["status"]
    stage = message["stage"] or "fit"
    number = message["epoch"] or 0
    of = f" ({number + 1} of {message['max_epochs']})" if (message["max_epochs"] or 0) > 0 else ""
    code = "" if message["exit_code"] is None else f" with exit code {message['exit_code']}"
    ended = {
        "done": "is done",
        "preempted": "was interrupted; the same command goes on with it",
        "interrupted": "was interrupted; there is nothing to resume",
    }
    headlines = {
        "gate": f"the gate says {'yes' if status == 'passed' else 'no'}",
        "start": f"{stage} {'goes on' if message['epoch'] or message['step'] else 'begins'}",
        "epoch": f"epoch {number}{of} is done",
        "failure": f"{stage} has failed{code}",
        "end": f"{stage} {ended.get(status, status)}",
    }
    return f"{message['job'][:_MAX_NAME]}: {headlines[message['kind']]}"


def _details(message: Message) -> list[tuple[str, bool]]:
    """Return the parts of a message below its headline, each with whether it is code."""
    gate = message["gate"] or {}
    metrics = message["metrics"]
    best = message["best"]
    parts: list[tuple[str, bool]] = []
    if metrics:
        width = max(map(len, metrics))
        lines = [f"{name:<{width}}  {_format_number(value)}" for name, value in metrics.items()]
        if len(lines) > _MAX_METRICS:
            lines[_MAX_METRICS:] = [f"and {len(lines) - _MAX_METRICS} more"]
        parts.append(("\n".join(lines), True))
    if gate.get("baseline"):
        parts.append((f"against {str(gate['baseline'])[:_MAX_NAME]}", False))
    # failures first
    checks = sorted(gate.get("checks") or [], key=lambda check: bool(check.get("passed")))
    if checks:
        parts.append(("\n".join(map(_format_check, checks)), True))
    if best is not None and message["kind"] in ("epoch", "end"):
        parts.append((f"best {best.get('monitor')}: {_format_number(best.get('value'))}", False))
    if message["error"] and message["status"] != "preempted" and not checks:
        parts.append((message["error"], True))
    return parts


def _format_check(check: Mapping[str, Any]) -> str:
    verdict = "passed" if check.get("passed") else "FAILED"
    return (
        f"{verdict}  {check.get('name')} {_format_number(check.get('challenger'))}, asked:"
        f" {check.get('asks')}"
    )


def _origin(message: Message) -> list[str]:
    """Return folder, host and duration of a message."""
    seconds = message["seconds"]
    folder = (message["folder"] or "")[-_MAX_NAME:]
    duration = "" if seconds is None else format_duration(seconds)
    return [text for text in (folder, message["host"], duration) if text]


def _format_number(value: Any) -> str:
    return (
        f"{value:.4g}" if isinstance(value, (int, float)) else "-" if value is None else str(value)
    )
