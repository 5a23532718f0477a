"""One HTTP request that tells a server something, and why it was not taken, in words that never hold the address."""

from __future__ import annotations

import base64
import http.client
import io
import re
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from lightkit.errors import ConfigError

__all__ = ["NotTaken", "Post", "check_address", "deliver", "deliver_patiently"]

_MAY_PASS = (408, 425, 429)  # and 5xx: the same request may be taken later
_LONGEST_PAUSE_S = 60.0
_ANSWER_BYTES = 200
_WORD = re.compile(r"[a-z]+(_[a-z]+)*")  # how Slack says what it dislikes: invalid_payload, no_service


@dataclass(frozen=True)
class Post:
    """What is sent. Its address and its headers are secrets, so that it shows none of them.

    Args:
        url: Where to.
        body: What.
        headers: Further headers, such as the type of the content.
        is_superseded: Whether it need not arrive once the sender has come to its end, as the news of an epoch.
    """

    url: str = field(repr=False)
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    is_superseded: bool = False


class NotTaken(Exception):
    """The server did not take it.

    Args:
        why: In words, without the address.
        may_pass: Whether the same may be taken later.
        wait_s: Seconds after which the server wants to be asked again, if it says so.
    """

    def __init__(self, why: str, *, may_pass: bool, wait_s: float | None = None) -> None:
        super().__init__(why)
        self.may_pass = may_pass
        self.wait_s = wait_s


def check_address(url: str, name: str) -> str:
    """Give an address that messages can be sent to.

    Args:
        url: The address.
        name: What the user calls it, for the error, which does not show the address: it is a secret.

    Raises:
        ConfigError: If it is none.
    """
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:  # a port that is no number
        is_address = False
    if not is_address or re.search(r"[\s\x00-\x1f\x7f]", url):
        raise ConfigError(f"{name}: expected an address such as https://host/path, got one that cannot be asked.")
    return url


def deliver(post: Post, *, timeout_s: float) -> None:
    """Send it once.

    Redirects are not followed: what is sent is for the address that was configured, and for no other.

    Args:
        post: What is sent.
        timeout_s: Seconds to wait for the connection, and until the answer is complete.

    Raises:
        NotTaken: If it did not arrive.
    """
    handlers = _NoRedirects(), _TimedHTTP(timeout_s), _TimedHTTPS(timeout_s)
    opener = urllib.request.build_opener(*handlers)  # made anew: it reads the environment's proxies
    try:
        with opener.open(_request(post), timeout=timeout_s) as answer:
            answer.read(_ANSWER_BYTES)
    except urllib.error.HTTPError as error:
        with error:
            raise _refusal(error, post) from None
    except (OSError, http.client.HTTPException, ValueError) as error:  # their texts hold the host, or the headers
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise NotTaken(_words(reason, timeout_s), may_pass=_may_pass(reason)) from None


def deliver_patiently(
    post: Post, *, timeout_s: Callable[[], float], retries: int, pause: Callable[[float], bool], pause_s: float = 1.0
) -> None:
    """Send it, again after a pause where that may help.

    Args:
        post: What is sent.
        timeout_s: Gives the seconds to wait for an answer.
        retries: How often it is tried again.
        pause: Waits for that many seconds and tells whether to go on.
        pause_s: The first pause; each is twice as long as the one before. A server may ask for another one.

    Raises:
        NotTaken: If it did not arrive.
    """
    for number in range(retries + 1):
        try:
            return deliver(post, timeout_s=timeout_s())
        except NotTaken as error:  # noqa: PERF203 (trying again is what the loop is for)
            wait_s = pause_s * 2**number if error.wait_s is None else error.wait_s
            if number == retries or not error.may_pass or not pause(min(wait_s, _LONGEST_PAUSE_S)):
                raise
    return None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_args: object, **_kwargs: object) -> None:
        """Follow none, so that it is told as an answer."""


class _Timed(urllib.request.AbstractHTTPHandler):
    """Ends an answer that is not complete in time: urllib's own limit is for each piece of it."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__()
        self._until_s = time.monotonic() + timeout_s

    def do_open(self, http_class: Any, *args: Any, **kwargs: Any) -> Any:
        def connection(*of: Any, **how: Any) -> Any:
            made = http_class(*of, **how)
            made.response_class = partial(_TimedResponse, until_s=self._until_s)
            return made

        return super().do_open(connection, *args, **kwargs)


class _TimedHTTP(_Timed, urllib.request.HTTPHandler):
    """The same for http."""


class _TimedHTTPS(_Timed, urllib.request.HTTPSHandler):
    """The same for https."""


class _TimedResponse(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, until_s: float, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp.close()
        self.fp = io.BufferedReader(_TimedStream(sock, until_s))


class _TimedStream(io.RawIOBase):
    """What a socket receives until a moment of the monotonic clock, in seconds."""

    def __init__(self, sock: socket.socket, until_s: float) -> None:
        self._sock, self._until_s = sock, until_s
        self._stream = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._sock.settimeout(left_s)
        return self._stream.readinto(buffer)

    def close(self) -> None:
        self._stream.close()
        super().close()


def _request(post: Post) -> urllib.request.Request:
    parts = urlsplit(post.url)
    headers = {"User-Agent": "lightkit", **post.headers}
    url = post.url
    if parts.username is not None:  # urllib takes it for a part of the host
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers.setdefault("Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}")
        url = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    return urllib.request.Request(url, data=post.body, headers=headers, method="POST")  # noqa: S310 (checked: http)


def _refusal(error: urllib.error.HTTPError, post: Post) -> NotTaken:
    if 300 <= error.code < 400:
        return NotTaken(f"the server answers {error.code}, a redirect, which is not followed", may_pass=False)
    says = f"the server answers {error.code}"
    try:
        answer = error.read(_ANSWER_BYTES).decode("ascii", errors="replace").strip()
    except (OSError, http.client.HTTPException):
        answer = ""
    if _WORD.fullmatch(answer) and answer not in post.url:
        says += f" ({answer})"
    may_pass = error.code in _MAY_PASS or error.code >= 500
    return NotTaken(says, may_pass=may_pass, wait_s=_asked_pause(error.headers.get("Retry-After")))


def _asked_pause(said: str | None) -> float | None:
    """Read a ``Retry-After``: seconds, or a date."""
    if said is None:
        return None
    if said.isascii() and said.strip().isdecimal():
        return float(said)
    try:
        until = parsedate_to_datetime(said).astimezone(timezone.utc)
    except (ValueError, TypeError, OverflowError):  # no date, or one that no calendar has
        return None
    return max((until - datetime.now(timezone.utc)).total_seconds(), 0.0)


def _may_pass(reason: object) -> bool:
    return not isinstance(reason, (ssl.SSLCertVerificationError, ValueError, http.client.InvalidURL))


def _words(reason: object, timeout_s: float) -> str:
    """Say what went wrong: the errors' own texts name the host, the certificate's owner or the header."""
    if isinstance(reason, TimeoutError):
        return f"no answer within {timeout_s:g} s"
    if isinstance(reason, ConnectionRefusedError):
        return "the connection is refused"
    if isinstance(reason, socket.gaierror):
        return "the host's name is not known"
    if isinstance(reason, ssl.SSLCertVerificationError):
        return "the server's certificate is not valid"
    if isinstance(reason, ssl.SSLError):
        return "no secure connection can be made"
    if isinstance(reason, (ConnectionError, http.client.IncompleteRead)):
        return "the connection was closed"
    if isinstance(reason, http.client.HTTPException):
        return "the answer is no HTTP"
    if isinstance(reason, ValueError):
        return "the address or a header cannot be sent"
    return "the host cannot be reached"
