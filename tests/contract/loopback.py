"""A file server on 127.0.0.1 that can be well-behaved or not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ETAG = '"one"'


@dataclass
class FileServer:
    """Serves ``files`` by path, and notes what was asked for.

    ``cut_after`` holds, for each coming request, after how many bytes its connection is cut;
    ``statuses`` errors that it answers first.
    """

    files: dict[str, bytes]
    knows_range: bool = True
    etag: str = ETAG
    cut_after: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    # path, range, status of the answer
    requests: list[tuple[str, str | None, int]] = field(default_factory=list)
    address: str = ""

    def url(self, path: str) -> str:
        return f"{self.address}/{path}"


@contextmanager
def serving(server: FileServer) -> Iterator[FileServer]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            content = server.files.get(self.path.lstrip("/"))
            status = server.statuses.pop(0) if server.statuses else 404 if content is None else 200
            start = 0
            is_same = self.headers.get("If-Range", server.etag) == server.etag
            if status == 200 and content is not None and asked and server.knows_range and is_same:
                start = int(asked.removeprefix("bytes=").rstrip("-"))
                status = 206 if start < len(content) else 416
            server.requests.append((self.path.lstrip("/"), asked, status))
            body = (content or b"")[start:] if status in (200, 206) else b""
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", server.etag)
            if status == 206:
                self.send_header(
                    "Content-Range", f"bytes {start}-{start + len(body) - 1}/{start + len(body)}"
                )
            self.end_headers()
            if server.cut_after and status in (200, 206):
                body = body[: server.cut_after.pop(0)]
                self.close_connection = True
            self.wfile.write(body)

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    server.address = f"http://127.0.0.1:{httpd.server_port}"
    try:
        yield server
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()
