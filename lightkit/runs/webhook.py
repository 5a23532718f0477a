"""Messages to webhooks and other services: sent once, or from a background thread, so that training never waits.

The dead-man's switch of a job is an address that is told when the job begins and how it ends, by the convention of
healthchecks.io: ``URL/start``, then ``URL`` where all went well, or ``URL/fail``. The body is the end of the text.
"""

from __future__ import annotations

import atexit
import logging
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
logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # its warnings on retries print the path, a secret
CLOSE_TIMEOUT_S = 5.0
"""Seconds that the end of a process waits for unsent messages."""
HELD = "_LIGHTKIT_HEARTBEAT"
"""Variable by which a process that reports a whole command keeps the processes that it starts silent."""
Sign = Literal["start", "ok", "fail"]
Deliver = Callable[..., None]
"""Delivers one message within ``timeout_s``, trying it ``retries`` times more, or raises `DeliveryError`."""
_MAX_QUEUED = 100
_MAX_PAUSE_S = 60
_MAX_HEARTBEAT_BYTES = 10_000
_TEMPORARY_STATUS = (408, 425, 429, 500, 502, 503, 504)
_ERROR_CODE = re.compile(r"[a-z]+(_[a-z]+)*")  # Slack's answers: invalid_payload, no_service


class DeliveryError(Exception):
    """The server did not take a message. The text does not hold the address."""


def post(url: str, body: bytes, headers: Mapping[str, str], *, timeout_s: float, retries: int = 0) -> None:
    """Send the body of a POST request and wait for the answer.

    Redirects are not followed: the address was configured for this message.

    Args:
        url: Address, a secret.
        body: Content.
        headers: Further headers, such as the type of the content; they may be secrets too.
        timeout_s: Seconds to wait for the connection, and for each part of the answer.
        retries: Further attempts after a connection error, a timeout or a status of 408, 425, 429 or 5xx, after
            pauses of 0, 1, 2, ... seconds, or as long as the server asks, 60 s at most.

    Raises:
        DeliveryError: If it was not taken.
    """
    import requests  # here, because commands that send nothing need not wait for it
    from requests.adapters import HTTPAdapter
    from urllib3.util import Retry

    retry = Retry(
        retries,
        backoff_factor=0.5,
        backoff_max=_MAX_PAUSE_S,
        retry_after_max=_MAX_PAUSE_S,
        status_forcelist=_TEMPORARY_STATUS,
        allowed_methods=None,
        redirect=0,
        raise_on_status=False,
    )
    headers = {"User-Agent": "lightkit", **headers}
    with requests.Session() as session:
        session.mount("http://", HTTPAdapter(max_retries=retry))
        session.mount("https://", HTTPAdapter(max_retries=retry))
        try:
            response = session.post(url, data=body, headers=headers, timeout=timeout_s, allow_redirects=False)
        except (requests.RequestException, ValueError) as error:  # their texts hold the host, or the headers
            causes = tuple(exception_chain(error))
            if any(isinstance(each, ConnectionRefusedError) for each in causes):
                reason = "the connection is refused"
            elif any(isinstance(each, (requests.Timeout, TimeoutError)) for each in causes):
                reason = f"no answer within {timeout_s:g} s"
            else:
                reason = f"it cannot be sent ({type(error).__name__})"
            raise DeliveryError(reason) from None
    if 300 <= response.status_code < 400:
        raise DeliveryError(f"the server answers {response.status_code}, a redirect, which is not followed")
    if not response.ok:
        answer = response.content[:200].decode("ascii", errors="replace").strip()
        is_code = _ERROR_CODE.fullmatch(answer) and answer not in url
        raise DeliveryError(f"the server answers {response.status_code}{f' ({answer})' if is_code else ''}")


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
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:  # a port that is no number
        is_address = False
    if not is_address or re.search(r"[\s\x00-\x1f\x7f]", url):
        raise ConfigError(f"{name}: expected an address such as https://host/path, got one that cannot be asked.")
    return url


class BackgroundSender:
    """Deliver messages in order from one daemon thread. Nothing it does raises or blocks, except `close`.

    Args:
        name: Sender's name in warnings; the address is a secret and is never logged.
        timeout_s: Seconds to wait for an answer.
        retries: Further attempts for a message.
    """

    def __init__(self, name: str, *, timeout_s: float = 10.0, retries: int = 3) -> None:
        self._name, self._timeout_s, self._retries = name, timeout_s, retries
        self._queue: queue.SimpleQueue[Deliver | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._num_lost = 0

    def put(self, message: Deliver) -> None:
        """Queue a message and return at once; beyond 100 waiting messages further ones are dropped."""
        if self._queue.qsize() >= _MAX_QUEUED:
            self._lose("too many messages wait")
            return
        self._queue.put(message)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=f"lightkit-send-{self._name}", daemon=True)
            self._thread.start()
            atexit.register(self.close)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> int:
        """Wait until the queue is sent, at most ``timeout_s``; return the number of undelivered messages."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(timeout_s)
            atexit.unregister(self.close)
            if self._thread.is_alive():  # with the message that it sends in the place of the queue's end
                self._lose("the server was too slow at the end", num=self._queue.qsize())
            self._thread, self._queue = None, queue.SimpleQueue()
        return self._num_lost

    def _work(self) -> None:
        messages = self._queue
        while (message := messages.get()) is not None:
            try:
                message(timeout_s=self._timeout_s, retries=self._retries)
            except Exception as error:  # noqa: BLE001, PERF203 (a defect must not end the thread)
                if messages is self._queue:
                    self._lose(str(error) if isinstance(error, DeliveryError) else type(error).__name__)

    def _lose(self, reason: str, *, num: int = 1) -> None:
        if self._num_lost == 0 and num:
            _log.warning("%s: a message was not delivered: %s; further ones are only counted", self._name, reason)
        self._num_lost += num


def close_all(senders: Iterable[BackgroundSender], timeout_s: float = CLOSE_TIMEOUT_S) -> None:
    """Wait until the queues of all senders are sent, at most ``timeout_s`` together."""
    deadline_s = time.monotonic() + timeout_s
    for sender in senders:
        sender.close(max(0.1, deadline_s - time.monotonic()))  # one with an empty queue ends at once


def heartbeat_sign(code: int) -> Literal["ok", "fail"] | None:
    """Return the sign for an exit code.

    Done (0) and nothing to do (6) are well. "Try again later" (75) and the signals (129, 130, 143) are neither: if
    nothing comes after it, the switch finds out by itself. All others are failures.
    """
    return "ok" if code in (0, 6) else None if code in (75, 129, 130, 143) else "fail"


class DeadMansSwitch:
    """Reports one command to an address, from a thread: an address that does not answer holds nothing up.

    Args:
        url: The address, a secret.

    Raises:
        ConfigError: If it is none.
    """

    def __init__(self, url: str) -> None:
        self._url = check_address(url, "run.heartbeat_url")
        self.sender = BackgroundSender("run.heartbeat_url")

    def begin(self) -> None:
        """Report that the command has begun."""
        self.sender.put(self.compose("start"))

    def end(self, code: int, text: str = "") -> None:
        """Report how the command has ended, where that is a success or a failure.

        Args:
            code: Its exit code.
            text: The error, without secrets.
        """
        if (sign := heartbeat_sign(code)) is not None:
            self.sender.put(self.compose(sign, text))

    def compose(self, sign: Sign, text: str = "") -> Deliver:
        """Return the call that delivers a sign.

        Args:
            sign: The event.
            text: Its end is the body.
        """
        parts = urlsplit(self._url)
        path = parts.path.rstrip("/") + f"/{sign}" if sign != "ok" else parts.path
        body = text.encode("utf-8", errors="replace")[-_MAX_HEARTBEAT_BYTES:]
        headers = {"Content-Type": "text/plain; charset=utf-8"}
        return partial(post, urlunsplit(parts._replace(path=path)), body, headers)
