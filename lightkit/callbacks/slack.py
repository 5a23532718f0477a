"""Messages of a run for people in a Slack channel."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from lightkit.callbacks.messages import Kind, Message
from lightkit.callbacks.notifying import Notifier
from lightkit.errors import ConfigError
from lightkit.runs.webhook import HttpMessage

__all__ = ["SlackNotifier"]

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
        events: What is told: start, epoch, end, failure, gate. By default all of them.
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
        details.append(f"best {escaped(str(message.best.get('monitor')))}: {_number(message.best.get('value'))}")
    if message.error and message.status != "preempted" and not (message.gate or {}).get("checks"):
        details.append(_code(message.error))
    return details


def _gate(gate: Mapping[str, Any]) -> list[str]:
    scores = gate.get("scores") or {}
    sides = [(side, scores[side]) for side in ("challenger", "baseline") if scores.get(side)]
    names = list(dict.fromkeys(name for _, numbers in sides for name in numbers))[:_MOST_METRICS]
    told = [f"against {escaped(str(gate['baseline'])[:_MOST_IN_LINE])}"] if gate.get("baseline") else []
    if names:
        width = max(map(len, names))
        lines = [" " * width + "".join(f"  {side:>10}" for side, _ in sides)]
        lines += [f"{name:<{width}}" + "".join(f"  {_number(of.get(name)):>10}" for _, of in sides) for name in names]
        told.append(_code("\n".join(lines)))
    if checks := gate.get("checks"):  # those of slices and of drift too, what failed first
        told.append(_code("\n".join(map(_check, sorted(checks, key=lambda check: bool(check.get("passed")))))))
    return told


def _check(check: Mapping[str, Any]) -> str:
    word = "passed" if check.get("passed") else "FAILED"
    return f"{word}  {check.get('name')} {_number(check.get('challenger'))}, asked: {check.get('asks')}"


def _table(metrics: Mapping[str, float | None]) -> str:
    shown = list(metrics.items())[:_MOST_METRICS]
    width = max(len(name) for name, _ in shown)
    lines = [f"{name:<{width}}  {_number(value)}" for name, value in shown]
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


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, (int, float)) else "-" if value is None else str(value)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
