"""Messages to webhooks and other services.

Sent once, or from a background thread, so that training never waits.

The dead-man's switch of a job is an address that is requested when the job begins and when it ends,
as healthchecks.io defines it: ``URL/start``, then ``URL`` where all went well, or ``URL/fail``. The
body is the end of the text.
"""

from __future__ import annotations

import atexit
import logging
import math
import queue
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

from lightkit.errors import ConfigError, exception_chain

_log = logging.getLogger(__name__)
# its lines print the path, a secret
logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
CLOSE_TIMEOUT_S = 5.0
"""Seconds that the end of a process waits for unsent messages."""
Sign = Literal["start", "ok", "fail"]
Deliver = Callable[[], object]
"""Delivers one message, or raises `DeliveryError`."""
_MAX_PAUSE_S = 2.0
_MAX_HEARTBEAT_BYTES = 10_000
_TEMPORARY_STATUS = (408, 425, 429)


class DeliveryError(Exception):
    """The server did not take a message. The text does not hold the address.

    Args:
        text: The reason.
        is_temporary: Whether the server may take the message later.
    """

    def __init__(self, text: str, *, is_temporary: bool = True) -> None:
        super().__init__(text)
        self.is_temporary = is_temporary


def post(url: str, body: bytes, headers: Mapping[str, str], *, timeout_s: float = 10.0) -> None:
    """Send the body of a POST request and wait for the answer.

    Redirects are not followed: the address was configured for this message.

    Args:
        url: Address, a secret.
        body: Content.
        headers: Further headers, such as the type of the content; they may be secrets too.
        timeout_s: Seconds to wait for the connection, and for each part of the answer.

    Raises:
        DeliveryError: If it was not taken.
    """
    import requests  # here, because commands that send nothing need not wait for it

    try:
        headers = {"User-Agent": "lightkit", **headers}
        response = requests.post(
            url, data=body, headers=headers, timeout=timeout_s, allow_redirects=False
        )
    except (requests.RequestException, ValueError) as error:
        # their texts hold the host, or the headers
        *_, cause = exception_chain(error)
        raise DeliveryError(f"it cannot be sent ({type(cause).__name__})") from None
    status = response.status_code
    if not 200 <= status < 300:
        is_temporary = status >= 500 or status in _TEMPORARY_STATUS
        raise DeliveryError(f"the server answers {status}", is_temporary=is_temporary)


def check_address(url: str, name: str) -> str:
    """Return ``url`` if messages can be sent to it.

    Args:
        url: The address.
        name: Its key in the config, for the error, which does not show the address: it is a secret.

    Raises:
        ConfigError: If it is not an http or https address.
    """
    try:
        parts = urlsplit(url)
        is_address = (
            parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        )
    except ValueError:  # a port that is no number
        is_address = False
    if not is_address or re.search(r"[\s\x00-\x1f\x7f]", url):
        raise ConfigError(
            f"{name}: expected an address such as https://host/path, got one that cannot be asked."
        )
    return url


class BackgroundSender:
    """Deliver messages in order from one daemon thread.

    Nothing it does raises or blocks, except `close`.

    Args:
        name: Receiver's name in warnings, without secrets.
        retries: Further attempts for a message whose `DeliveryError` is temporary, after pauses of
            0, 1, 2, 2, ... seconds; infinite to keep all messages until the server takes them.
    """

    def __init__(self, name: str, *, retries: float = 3) -> None:
        self._name = name
        self._retries = retries
        self._queue: queue.Queue[Deliver | None] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._num_lost = 0

    @property
    def num_unsent(self) -> int:
        """Number of messages that are lost or wait."""
        return self._num_lost + self._queue.unfinished_tasks

    def put(self, message: Deliver) -> None:
        """Queue a message and return at once."""
        self._queue.put(message)
        if self._thread is None:
            name = f"lightkit-send-{self._name}"
            self._thread = threading.Thread(
                target=self._work, args=(self._queue,), name=name, daemon=True
            )
            self._thread.start()
            atexit.register(self.close)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> int:
        """Wait until the queue is sent, at most ``timeout_s``.

        Return the number of undelivered messages.
        """
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(timeout_s)
            atexit.unregister(self.close)
            if self._thread.is_alive():  # the end of the queue is one of the tasks
                self._lose(
                    "the server was too slow at the end", num=self._queue.unfinished_tasks - 1
                )
            self._thread = None
            self._queue = queue.Queue()
        return self._num_lost

    def _work(self, messages: queue.Queue[Deliver | None]) -> None:
        while (message := messages.get()) is not None:
            attempt = 0
            while self._fails(message, messages, attempt):
                time.sleep(min(attempt, _MAX_PAUSE_S))
                attempt += 1
            messages.task_done()

    def _fails(self, message: Deliver, messages: queue.Queue[Deliver | None], attempt: int) -> bool:
        """Try to deliver a message; return whether it is to be tried again."""
        try:
            message()
        except Exception as error:  # noqa: BLE001 (a defect must not end the thread)
            if messages is not self._queue:  # given up by `close`
                return False
            text = str(error) if isinstance(error, DeliveryError) else type(error).__name__
            if isinstance(error, DeliveryError) and error.is_temporary and attempt < self._retries:
                if attempt == 0 and math.isinf(self._retries):
                    _log.warning("%s does not answer (%s); messages wait for it", self._name, text)
                return True
            self._lose(text)
        return False

    def _lose(self, reason: str, *, num: int = 1) -> None:
        if self._num_lost == 0:
            _log.warning(
                "%s: a message was not delivered: %s; further ones are only counted",
                self._name,
                reason,
            )
        self._num_lost += num


def close_all(senders: Iterable[BackgroundSender], timeout_s: float = CLOSE_TIMEOUT_S) -> None:
    """Wait until the queues of all senders are sent, at most ``timeout_s`` together."""
    deadline_s = time.monotonic() + timeout_s
    for sender in senders:
        # one with an empty queue ends at once
        sender.close(max(0.1, deadline_s - time.monotonic()))


def heartbeat_sign(code: int) -> Literal["ok", "fail"] | None:
    """Return the sign for an exit code.

    Done (0) and nothing to do (6) are well. "Try again later" (75) and the signals (129, 130, 143)
    are neither: if nothing comes after it, the switch finds out by itself. All others are failures.
    """
    return "ok" if code in (0, 6) else None if code in (75, 129, 130, 143) else "fail"


class DeadMansSwitch:
    """Reports one command to an address, from a thread.

    An address that does not answer holds nothing up.

    Args:
        url: The address, a secret.

    Raises:
        ConfigError: If it is none.
    """

    def __init__(self, url: str) -> None:
        self._url = check_address(url, "run.heartbeat_url")
        self.sender = BackgroundSender("run.heartbeat_url")

    def send(self, sign: Sign | None, text: str = "") -> None:
        """Queue a sign; none where the end of a command has none."""
        if sign is not None:
            self.sender.put(self.compose(sign, text))

    def compose(self, sign: Sign, text: str = "") -> Deliver:
        """Return the call that delivers a sign.

        Args:
            sign: The event.
            text: Its end is the body, without secrets.
        """
        parts = urlsplit(self._url)
        path = parts.path.rstrip("/") + f"/{sign}" if sign != "ok" else parts.path
        body = text.encode("utf-8", errors="replace")[-_MAX_HEARTBEAT_BYTES:]
        headers = {"Content-Type": "text/plain; charset=utf-8"}
        return partial(post, urlunsplit(parts._replace(path=path)), body, headers)
