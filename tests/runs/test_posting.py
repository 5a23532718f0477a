"""One request and why it was not taken, asked of a real server; nothing that is said holds its address."""

from __future__ import annotations

import datetime as dt
import ssl
import threading
import traceback
from collections.abc import Iterator
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from lightkit.errors import ConfigError
from lightkit.runs.posting import NotTaken, Post, check_address, deliver, deliver_patiently
from tests.ports import free_port
from tests.receiving import CANARY, Answer, Receiver, receiving

pytestmark = pytest.mark.slow  # real servers


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


def refused(post: Post, *, timeout_s: float = 10.0) -> NotTaken:
    """The reason why a message is not taken; whatever is printed of it has no address."""
    with pytest.raises(NotTaken) as caught:
        deliver(post, timeout_s=timeout_s)
    shown = "".join(traceback.format_exception(caught.value))
    assert CANARY not in shown
    assert "127.0.0.1" not in shown
    return caught.value


def test_a_message_arrives_as_it_is(receiver: Receiver) -> None:
    deliver(Post(receiver.url(), "grüße".encode(), {"X-Team": "night"}), timeout_s=10)
    (request,) = receiver.requests
    assert (request.path, request.body.decode(), request.headers["x-team"]) == ("/hook/*", "grüße", "night")
    assert request.headers["user-agent"] == "lightkit"


@pytest.mark.parametrize(
    ("answer", "says", "may_pass"),
    [
        (Answer(404, b"no_service"), "the server answers 404 (no_service)", False),
        (Answer(403, b"Bad: http://elsewhere"), "the server answers 403", False),
        (Answer(410, b"hook"), "the server answers 410", False),
        (Answer(302, headers={"Location": "http://127.0.0.1:1/away"}), "a redirect, which is not followed", False),
        (Answer(307, headers={"Location": "/away"}), "a redirect, which is not followed", False),
        (Answer(429), "the server answers 429", True),
        (Answer(500), "the server answers 500", True),
        (Answer(0), "the connection was closed", True),
        (Answer(-2), "the answer is no HTTP", True),
    ],
    ids=["word", "address", "word-of-the-address", "redirect", "redirect-here", "busy", "failing", "closed", "no-http"],
)
def test_what_is_not_taken_is_told_without_the_address(
    receiver: Receiver, answer: Answer, says: str, may_pass: bool
) -> None:
    receiver.answer = lambda _number: answer
    error = refused(Post(receiver.url(), b"x"))
    assert says in str(error)
    assert error.may_pass is may_pass
    assert len(receiver.requests) == 1
    if answer.body in (b"hook", b"Bad: http://elsewhere"):
        assert answer.body.decode() not in str(error)


@pytest.mark.parametrize("status", [-1, -3, -4], ids=["silent", "dripping-head", "dripping-body"])
def test_a_server_that_never_answers_is_left_after_the_time(receiver: Receiver, status: int) -> None:
    receiver.answer = lambda _number: Answer(status)
    error = refused(Post(receiver.url(), b"x"), timeout_s=0.2)
    assert (str(error), error.may_pass) == ("no answer within 0.2 s", True)


def test_a_port_that_nobody_listens_on_is_told() -> None:
    error = refused(Post(f"http://127.0.0.1:{free_port()}/{CANARY}", b"x"))
    assert (str(error), error.may_pass) == ("the connection is refused", True)


def test_a_header_that_cannot_be_sent_is_not_shown(receiver: Receiver) -> None:
    error = refused(Post(receiver.url(), b"x", {"X-Key": f"{CANARY}\nX-Other: 1"}))
    assert (str(error), error.may_pass) == ("the address or a header cannot be sent", False)
    assert receiver.requests == []


def test_user_and_password_of_the_address_are_sent_as_such(receiver: Receiver) -> None:
    deliver(Post(f"http://me:p%40ss@127.0.0.1:{receiver.port}/hook", b"x"), timeout_s=10)
    assert receiver.requests[0].headers["authorization"] == "Basic bWU6cEBzcw=="
    assert "me" not in receiver.requests[0].headers["host"]


def test_the_proxy_of_the_environment_is_asked(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{receiver.port}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    deliver(Post("http://hooks.example.invalid/there", b"x"), timeout_s=10)
    assert receiver.requests[0].path == "http://hooks.example.invalid/there"


def test_a_certificate_that_nobody_vouches_for_is_refused(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(self_signed(tmp_path))
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.handle_request, daemon=True)
        thread.start()
        error = refused(Post(f"https://127.0.0.1:{server.server_port}/{CANARY}", b"x"))
        thread.join(10)
    assert (str(error), error.may_pass) == ("the server's certificate is not valid", False)


def self_signed(folder: Path) -> Path:
    """A key and a certificate that it has signed itself."""
    x509 = pytest.importorskip("cryptography.x509", reason="cryptography makes the certificate")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.timezone.utc)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now - dt.timedelta(days=1))
    certificate = builder.not_valid_after(now + dt.timedelta(days=1)).sign(key, hashes.SHA256())
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = folder / "server.pem"
    path.write_bytes(pem + certificate.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.mark.parametrize(
    "url",
    ["", "hooks.example.com/x", "ftp://host/x", "file:///etc/passwd", "http://", "http://host:port/", "http://h/a b",
     "https://host/\nx"],
    ids=["empty", "no-scheme", "ftp", "file", "no-host", "no-port", "space", "line"],
)  # fmt: skip
def test_what_is_no_address_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_address(url, "run.heartbeat_url")
    assert str(caught.value) == (
        "run.heartbeat_url: expected an address such as https://host/path, got one that cannot be asked."
    )


def test_a_message_shows_neither_address_nor_content() -> None:
    shown = repr(Post(f"http://host/{CANARY}", b"secret", {"Authorization": CANARY}))
    assert CANARY not in shown
    assert "secret" not in shown


class Pauses:
    """Waits for nothing, and keeps how long it would have been."""

    def __init__(self, *, most: int = 99) -> None:
        self.seconds: list[float] = []
        self._most = most

    def __call__(self, seconds: float) -> bool:
        self.seconds.append(seconds)
        return len(self.seconds) <= self._most


def patiently(receiver: Receiver, pauses: Pauses, retries: int = 3) -> str | None:
    try:
        deliver_patiently(Post(receiver.url(), b"x"), timeout_s=lambda: 10.0, retries=retries, pause=pauses)
    except NotTaken as error:
        return str(error)
    return None


def test_a_server_that_fails_is_asked_again_after_longer_and_longer_pauses(receiver: Receiver) -> None:
    receiver.answer = lambda number: Answer(503 if number < 3 else 200)
    pauses = Pauses()
    assert patiently(receiver, pauses) is None
    assert pauses.seconds == [1.0, 2.0, 4.0]
    receiver.answer = lambda _number: Answer(500)
    assert patiently(receiver, Pauses(), retries=1) == "the server answers 500"
    assert len(receiver.requests) == 4 + 2


def test_a_pause_that_the_server_asks_for_counts(receiver: Receiver) -> None:
    until = dt.datetime.now(dt.timezone.utc) + dt.timedelta(seconds=30)
    asked = ["7", format_datetime(until), "86400", "soon", "²", "Mon, 99999999999999999999 Jan 2026 00:00:00 GMT"]
    receiver.answer = lambda number: Answer(429, headers={"Retry-After": asked[number]} if number < 6 else {})
    pauses = Pauses()
    assert patiently(receiver, pauses, retries=6) == "the server answers 429"
    assert pauses.seconds[0] == 7.0
    assert 20 < pauses.seconds[1] <= 30
    assert pauses.seconds[2:] == [60.0, 8.0, 16.0, 32.0]


def test_what_is_wrong_for_good_is_not_sent_again(receiver: Receiver) -> None:
    receiver.answer = lambda _number: Answer(400)
    pauses = Pauses()
    assert patiently(receiver, pauses) == "the server answers 400"
    assert (len(receiver.requests), pauses.seconds) == (1, [])


def test_whoever_has_no_time_for_a_pause_gives_up(receiver: Receiver) -> None:
    receiver.answer = lambda _number: Answer(500)
    assert patiently(receiver, Pauses(most=1)) == "the server answers 500"
    assert len(receiver.requests) == 2
