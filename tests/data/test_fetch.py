"""Downloads from real servers on loopback, well-behaved and not."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lightkit.data.fetch import Remote, download
from lightkit.errors import ConfigError, DataError

CONTENT = bytes(range(256)) * 2000
Serve = Callable[..., Any]


def remote(server: Any, **changes: Any) -> Remote:
    return Remote(
        server.url("file"),
        digest=changes.pop("digest", hashlib.sha256(CONTENT).hexdigest()),
        size_bytes=changes.pop("size_bytes", len(CONTENT)),
    )


def fetched(server: Any, target: Path, **changes: Any) -> bytes:
    return download(remote(server, **changes), target, backoff_s=0).read_bytes()


def test_a_file_is_fetched_once(serve: Serve, tmp_path: Path) -> None:
    server = serve({"file": CONTENT})
    for _ in range(2):
        assert fetched(server, tmp_path / "new" / "file") == CONTENT
    assert server.requests == [("file", None, 200)]
    assert list((tmp_path / "new").iterdir()) == [tmp_path / "new" / "file"]


def test_a_broken_connection_is_taken_up_where_it_broke(serve: Serve, tmp_path: Path) -> None:
    server = serve({"file": CONTENT}, cut_after=[100_000, 50_000])
    assert fetched(server, tmp_path / "file") == CONTENT
    assert server.requests == [("file", None, 200), ("file", "bytes=100000-", 206), ("file", "bytes=150000-", 206)]


def test_a_later_command_goes_on_where_an_earlier_one_gave_up(serve: Serve, tmp_path: Path) -> None:
    server = serve({"file": CONTENT}, cut_after=[100_000])
    with pytest.raises(DataError, match=r"cut off after 100000 of 512000 bytes.*kept in .*file\.part.*again to go on"):
        download(remote(server), tmp_path / "file", num_attempts=1)
    assert fetched(server, tmp_path / "file") == CONTENT
    assert server.requests[-1] == ("file", "bytes=100000-", 206)


@pytest.mark.parametrize("options", [{"knows_range": False}, {}], ids=["no Range", "changed ETag"])
def test_a_server_that_will_not_go_on_sends_all_again(serve: Serve, tmp_path: Path, options: dict[str, Any]) -> None:
    server = serve({"file": CONTENT}, cut_after=[100_000], **options)
    with pytest.raises(DataError):
        download(remote(server), tmp_path / "file", num_attempts=1)
    server.etag = '"two"'
    assert fetched(server, tmp_path / "file") == CONTENT
    assert server.requests[-1] == ("file", "bytes=100000-", 200)


def test_a_part_that_is_already_whole_is_kept(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT)
    server = serve({"file": CONTENT})
    assert fetched(server, tmp_path / "file") == CONTENT
    assert server.requests == [("file", "bytes=512000-", 416)]


@pytest.mark.parametrize("length", [1000, len(CONTENT), len(CONTENT) + 1], ids=["short", "as long", "longer"])
def test_a_part_of_something_else_is_thrown_away(serve: Serve, tmp_path: Path, length: int) -> None:
    (tmp_path / "file.part").write_bytes(b"x" * length)
    assert fetched(serve({"file": CONTENT}), tmp_path / "file") == CONTENT


def test_a_damaged_file_is_fetched_again(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * len(CONTENT))
    assert fetched(serve({"file": CONTENT}), tmp_path / "file") == CONTENT


def test_a_wrong_digest_is_told_and_nothing_is_kept(serve: Serve, tmp_path: Path) -> None:
    wrong = "0" * 64
    with pytest.raises(DataError, match=f"its sha256 is {hashlib.sha256(CONTENT).hexdigest()}, {wrong} was expected"):
        fetched(serve({"file": CONTENT}), tmp_path / "file", digest=wrong)
    assert not (tmp_path / "file").exists()
    assert (tmp_path / "file.part").stat().st_size == 0


def test_a_file_that_ends_early_is_told(serve: Serve, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="were expected; gave up after 5 attempts"):
        fetched(serve({"file": CONTENT[:-1]}), tmp_path / "file")
    assert not (tmp_path / "file").exists()


def test_a_file_that_is_too_long_is_told(serve: Serve, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="512001 bytes came, 512000 were expected"):
        fetched(serve({"file": CONTENT + b"x"}), tmp_path / "file")


def test_a_missing_file_is_told_at_once(serve: Serve, tmp_path: Path) -> None:
    server = serve({})
    with pytest.raises(DataError, match=r"the server answers 404 Not Found\. Is the address right\?"):
        fetched(server, tmp_path / "file")
    assert len(server.requests) == 1


def test_a_busy_server_is_asked_again(serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = serve({"file": CONTENT}, statuses=[503, 429])
    with caplog.at_level(logging.INFO, logger="lightkit.data"):
        assert fetched(server, tmp_path / "file") == CONTENT
    assert "the server answers 503 Service Unavailable; trying again in" in caplog.text
    assert [status for _, _, status in server.requests] == [503, 429, 200]


def test_nobody_listening_is_told_with_what_to_do(serve: Serve, tmp_path: Path) -> None:
    server = serve({"file": CONTENT})
    server.address = "http://127.0.0.1:9"  # the discard port, where nothing listens
    with pytest.raises(DataError, match=r"Connection refused.*gave up after 5 attempts.*check the network"):
        fetched(server, tmp_path / "file")


def test_progress_is_lines_without_carriage_returns_in_a_pipe(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.INFO, logger="lightkit.data"):
        fetched(serve({"file": CONTENT}), tmp_path / "file")
    assert "file: 50 % of 0.5 MB" in caplog.text
    assert not set("\r━") & set("".join(capfd.readouterr()))  # a log handler of another test may have written lines


def test_progress_is_a_bar_on_a_terminal(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes the stream for a terminal
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    fetched(serve({"file": CONTENT}), tmp_path / "file")
    assert "━" in capfd.readouterr().err


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_too_little_room_is_told_before_anything_comes(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10, 10, 0))
    with pytest.raises(DataError, match=r"the disk is full: .* needs 1 MB, 0 MB are free\. Make room"):
        fetched(serve({"file": CONTENT}), tmp_path / "file")
    assert (tmp_path / "file.part").stat().st_size == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_disk_that_fills_up_is_told(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "file.part").symlink_to("/dev/full")
    with pytest.raises(DataError, match="the disk is full"):
        fetched(serve({"file": CONTENT}), tmp_path / "file")


def test_a_folder_that_cannot_be_written_is_told(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "occupied").write_text("")
    with pytest.raises(DataError, match=r"occupied/file: cannot write here \(.*\); wanted for http"):
        fetched(serve({"file": CONTENT}), tmp_path / "occupied" / "file")


def test_two_downloads_of_one_file_do_not_mix(serve: Serve, tmp_path: Path) -> None:
    with (tmp_path / "file.part").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="another process is fetching this file"):
            fetched(serve({"file": CONTENT}), tmp_path / "file")


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://host/file", "flowers.tgz"])
def test_other_kinds_of_addresses_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"data\.init_args\.url: expected an http:// or https:// address"):
        Remote(url, digest="")
