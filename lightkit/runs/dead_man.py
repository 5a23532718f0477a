"""The dead-man's switch of a job: an address that is told when the job begins and how it ends, and misses it if not.

The convention is that of healthchecks.io and its like: ``URL/start``, then ``URL`` where all went well, or
``URL/fail``. What is sent is the last words, as plain text.
"""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit, urlunsplit

from lightkit.runs.webhook import CLOSE_TIMEOUT_S, BackgroundSender, HttpMessage, check_address

__all__ = ["HELD", "DeadMansSwitch", "sign_of"]

HELD = "_LIGHTKIT_HEARTBEAT"
"""Variable by which a process that tells the switch of a whole command keeps the processes that it starts silent."""
Sign = Literal["start", "ok", "fail"]
_WELL = (0, 6)
_NEITHER = (75, 129, 130, 143)
_MOST_BYTES = 10_000
_KEY = "run.heartbeat_url"


def sign_of(code: int) -> Literal["ok", "fail"] | None:
    """Give the sign for an exit code.

    Done (0) and nothing to do (6) are well. "Try again later" (75) and the signals (129, 130, 143) are neither: if
    nothing comes after it, the switch finds out by itself. All others are failures.
    """
    return "ok" if code in _WELL else None if code in _NEITHER else "fail"


class DeadMansSwitch:
    """Tells an address of one command, from a thread: an address that does not answer holds nobody up.

    Args:
        url: The address, a secret.

    Raises:
        ConfigError: If it is none.
    """

    def __init__(self, url: str) -> None:
        self._url = check_address(url, _KEY)
        self._sender = BackgroundSender(_KEY)

    def begin(self) -> None:
        """Tell that the command has begun."""
        self._sender.put(self.post_of("start"))

    def end(self, code: int, words: str = "") -> None:
        """Tell how the command has ended, where that is a success or a failure.

        Args:
            code: Its exit code.
            words: The last words, without secrets.
        """
        if (sign := sign_of(code)) is not None:
            self._sender.put(self.post_of(sign, words))

    def begin_close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Let the time begin to run within which what is unsent can be sent."""
        self._sender.begin_close(timeout_s)

    def close(self) -> None:
        """Wait until what is unsent has been sent, or the time is over."""
        self._sender.close()

    def post_of(self, sign: Sign, words: str = "") -> HttpMessage:
        """Give what is sent.

        Args:
            sign: What has happened.
            words: The last words, of which the end is sent if they are many.
        """
        parts = urlsplit(self._url)
        path = parts.path.rstrip("/") + f"/{sign}" if sign != "ok" else parts.path
        body = words.encode("utf-8", errors="replace")[-_MOST_BYTES:]
        headers = {"Content-Type": "text/plain; charset=utf-8"}
        return HttpMessage(urlunsplit(parts._replace(path=path)), body, headers, is_superseded=sign == "start")
