"""Messages of a run as JSON, for any server."""

from __future__ import annotations

from lightkit.callbacks.messages import Kind, Message, as_json
from lightkit.callbacks.notifying import Notifier
from lightkit.runs.webhook import HttpMessage

__all__ = ["WebhookNotifier"]


class WebhookNotifier(Notifier):
    """Send start, epochs, end, failure and gate decisions of a run to a server, each as one JSON object.

    The fields are those of `lightkit.callbacks.messages`. Sent by POST from a thread: a server that is slow, away or
    fails never slows or ends training. The end of the process waits 5 s for what is unsent, and a warning tells once
    what did not arrive. Nothing shows the address.

    Args:
        webhook_url: Address, a secret; `null` sends nothing.
        headers: Further HTTP headers, such as `Authorization`; their values are secrets: say `${oc.env:NAME}`.
        events: What is told: start, epoch, end, failure, gate. By default all of them.
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
