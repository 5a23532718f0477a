"""A stand-in for S3 on loopback, as a program.

Lists and serves the files of a folder, and checks no signature.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "bucket"


def files_of(folder: Path) -> dict[str, Path]:
    """The objects by key."""
    return {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def listing(files: Mapping[str, Path], asked: Mapping[str, list[str]]) -> bytes:
    """ListObjectsV2 in XML, with folders where a delimiter is given, in one page."""
    prefix, delimiter, after = (
        asked.get(name, [""])[0] for name in ("prefix", "delimiter", "start-after")
    )
    entries = ""
    folders: dict[str, None] = {}
    for key, path in files.items():
        rest = key.removeprefix(prefix)
        if not key.startswith(prefix) or key <= after:
            continue
        if delimiter and delimiter in rest:
            folders[prefix + rest.split(delimiter)[0] + delimiter] = None
            continue
        size = path.stat().st_size
        entries += (
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f'<ETag>"{size}"</ETag><Size>{size}</Size><StorageClass>STANDARD</StorageClass></Contents>'
        )
    common = "".join(
        f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in folders
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult'
        ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{entries.count('<Key>')}</KeyCount>"
        f"<MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>{entries}{common}</ListBucketResult>"
    ).encode()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder = Path()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        files = files_of(self.folder)
        parts = urlsplit(self.path)
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        if bucket != BUCKET:
            self.answer(
                404,
                b"<Error><Code>NoSuchBucket</Code><Message>no such bucket</Message></Error>",
                {},
            )
        elif not key:
            self.answer(
                200, listing(files, parse_qs(parts.query)), {"Content-Type": "application/xml"}
            )
        elif key not in files:
            self.answer(
                404, b"<Error><Code>NoSuchKey</Code><Message>no such key</Message></Error>", {}
            )
        else:
            self.give(files[key].read_bytes())

    def give(self, content: bytes) -> None:
        headers = {"ETag": f'"{len(content)}"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        asked = self.headers.get("Range")
        if not asked:
            self.answer(200, content, headers)
            return
        first, _, last = asked.removeprefix("bytes=").partition("-")
        start = int(first) if first else len(content) - int(last)
        stop = min(len(content), int(last) + 1) if first and last else len(content)
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
        self.answer(206, content[start:stop], headers)

    def answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


if __name__ == "__main__":
    Handler.folder = Path(sys.argv[1])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
