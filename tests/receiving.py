"""A real HTTP server on loopback that keeps what it is sent, and answers as a test wants."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["CANARY", "Answer", "Receiver", "Request", "receiving"]

CANARY = "xoxb-canary-5aT4q"
"""Part of each address of a receiver, which is in no output and in no file."""


@dataclass(frozen=True)
class Request:
    """What has arrived.

    Args:
        path: Without the part that is secret.
        body: As it was sent.
        headers: Their names in lower case.
    """

    path: str
    body: bytes
    headers: Mapping[str, str]

    @property
    def json(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.body)
        return content


@dataclass(frozen=True)
class Answer:
    """What a receiver answers.

    Args:
        status: Of HTTP; 0 closes the connection without a word, -1 never answers, -2 answers what
            is no HTTP, -3 never comes to the end of a header, -4 never to that of the body.
        body: Of the answer.
        headers: Further headers.
    """

    status: int = 200
    body: bytes = b"ok"
    headers: Mapping[str, str] = field(default_factory=dict)


class Receiver:
    """What has arrived, and what is answered."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.answer: Callable[[int], Answer] = lambda _number: Answer()
        """Gives the answer to the request with that number, from 0."""
        self.arrived = threading.Condition()
        self.over = threading.Event()
        self.port = 0

    def url(self, name: str = "hook") -> str:
        return f"http://127.0.0.1:{self.port}/{name}/{CANARY}"

    def take(self, request: Request) -> Answer:
        with self.arrived:
            self.requests.append(request)
            self.arrived.notify_all()
            return self.answer(len(self.requests) - 1)

    def wait_for(self, count: int, timeout_s: float = 60) -> list[Request]:
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.requests) >= count, timeout_s), (
                self.requests
            )
            return list(self.requests)

    def of(self, name: str) -> list[Request]:
        """What was sent below one name, in the order of its arrival."""
        return [request for request in list(self.requests) if request.path.startswith(f"/{name}/")]


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Serve on a free port until the end of the block."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = receiver.take(Request(self.path.replace(f"/{CANARY}", "/*"), body, headers))
            if answer.status == -1:
                receiver.over.wait()
            elif answer.status == -2:
                self.wfile.write(b"220 this is a server of mail\r\n\r\n")
            elif answer.status in (-3, -4):
                self.wfile.write(
                    b"HTTP/1.1 200 OK\r\nX-Long: " + b"\r\n\r\n" * (answer.status == -4)
                )
                while not receiver.over.wait(0.02):
                    self.wfile.write(b"x")
            elif answer.status:
                self.send_response(answer.status)
                for name, value in {
                    "Content-Length": str(len(answer.body)),
                    **answer.headers,
                }.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer.body)
            self.close_connection = True

        def log_message(self, *_args: object) -> None: ...

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        # a client that has left is no news here
        def handle_error(self, *_args: object) -> None: ...

    with Server(("127.0.0.1", 0), Handler) as server:
        receiver.port = server.server_port
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        thread.start()
        try:
            yield receiver
        finally:
            receiver.over.set()
            server.shutdown()
            thread.join()
