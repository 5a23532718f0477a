"""`lightkit fetch` from a server on 127.0.0.1, and the data sets that it brings."""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import struct
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.contract.data_cases import pictures_config, png
from tests.contract.loopback import FileServer, serving
from tests.contract.workspace import Result, Workspace, read_json

KINDS = ("daisy", "dandelion", "roses", "sunflowers", "tulips")
PHOTOS = {
    f"flower_photos/{kind}/{n}.png": png(100 * k + n)
    for k, kind in enumerate(KINDS)
    for n in range(8)
}
Serve = Callable[..., FileServer]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Start servers that run to the end of the test."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ExitStack() as running:
        yield lambda files, **options: running.enter_context(serving(FileServer(files, **options)))


def tgz(files: dict[str, bytes], *others: tarfile.TarInfo) -> bytes:
    """Pack files, and members without content."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for other in others:
            tar.addfile(other)
    return packed.getvalue()


ARCHIVE = tgz(PHOTOS)


def write_flowers(
    workspace: Workspace, url: str, archive: bytes = ARCHIVE, **init_args: Any
) -> None:
    """Write job.yaml, whose data are the flowers of an archive."""
    digest = {"sha256": hashlib.sha256(archive).hexdigest(), "size_bytes": len(archive)}
    given = {"image_size": 16, "batch_size": 8, "num_workers": 0, "cache": "none"}
    data = {"class_path": "Flowers", "init_args": {**given, "url": url, **digest, **init_args}}
    workspace.write("job.yaml", {**pictures_config(trainer={"max_epochs": 1}), "data": data})


def _data_of(workspace: Workspace, **environ: str | None) -> tuple[str, str]:
    workspace.run("fit", "-c", "job.yaml", environ=environ).ok()
    data = read_json(workspace.runs[-1] / "manifest.json")["data"]
    return data["source"], data["root"]


@pytest.mark.parametrize(
    ("init_args", "environ", "root"),
    [
        ({}, {}, "data/flower_photos"),
        ({"root": "my flowers"}, {"LIGHTKIT_DATA": "elsewhere"}, "my flowers"),
        ({}, {"LIGHTKIT_DATA": "mine"}, "mine/flower_photos"),
    ],
    ids=["default", "root", "LIGHTKIT_DATA"],
)
def test_fetch_puts_the_flowers_where_fit_looks_for_them(
    init_args: dict[str, Any],
    environ: dict[str, str],
    root: str,
    workspace: Workspace,
    serve: Serve,
) -> None:
    server = serve({"flowers.tgz": ARCHIVE})
    write_flowers(workspace, server.url("flowers.tgz"), **init_args)
    for _ in range(1 if init_args or environ else 2):
        workspace.run("fetch", "-c", "job.yaml", environ=environ).ok()
    assert [status for _, _, status in server.requests] == [200], (
        "what is there is not fetched again"
    )
    assert not list(workspace.folder.rglob("*.tgz*"))
    assert _data_of(workspace, **environ) == ("photos", root)


def test_a_broken_download_goes_on_where_it_stopped(workspace: Workspace, serve: Serve) -> None:
    server = serve({"flowers.tgz": ARCHIVE}, cut_after=[1000])
    write_flowers(workspace, server.url("flowers.tgz"))
    workspace.run("fetch", "-c", "job.yaml").ok()
    assert [(asked, status) for _, asked, status in server.requests] == [
        (None, 200),
        ("bytes=1000-", 206),
    ]
    assert (workspace.folder / "data/flower_photos/roses/0.png").read_bytes() == PHOTOS[
        "flower_photos/roses/0.png"
    ]


def test_the_same_command_goes_on_with_a_download_that_ended_with_3(
    workspace: Workspace, serve: Serve
) -> None:
    server = serve({"flowers.tgz": ARCHIVE}, cut_after=[1000], statuses=[200, 404])
    write_flowers(workspace, server.url("flowers.tgz"))
    result = workspace.run("fetch", "-c", "job.yaml")
    assert result.code == 3
    assert re.search(r"404.*data\.init_args\.url", result.err)
    workspace.run("fetch", "-c", "job.yaml").ok()
    assert server.requests[-1] == ("flowers.tgz", "bytes=1000-", 206)
    assert (workspace.folder / "data/flower_photos/roses").is_dir()


def _fetch(workspace: Workspace, server: FileServer, archive: bytes, **init_args: Any) -> Result:
    write_flowers(workspace, server.url("flowers.tgz"), archive, **init_args)
    result = workspace.run("fetch", "-c", "job.yaml")
    assert result.code == 3, result.err
    assert not (workspace.folder / "data/flower_photos").exists()
    return result


def test_a_wrong_digest_is_an_error_that_names_both_and_keeps_nothing(
    workspace: Workspace, serve: Serve
) -> None:
    result = _fetch(workspace, serve({"flowers.tgz": ARCHIVE}), ARCHIVE, sha256="0" * 64)
    assert hashlib.sha256(ARCHIVE).hexdigest() in result.err
    assert "0" * 64 in result.err
    assert sum(path.stat().st_size for path in (workspace.folder / "data").rglob("*")) == 0


def _member(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


@pytest.mark.parametrize(
    "member",
    [
        _member("../outside", tarfile.REGTYPE),
        _member("/tmp/lightkit-outside", tarfile.REGTYPE),
        _member("flower_photos/link", tarfile.SYMTYPE, "../../outside"),
        _member("flower_photos/link", tarfile.LNKTYPE, "flower_photos/roses/0.png"),
        _member("flower_photos/pipe", tarfile.FIFOTYPE),
    ],
    ids=["parent", "absolute", "symbolic link", "hard link", "pipe"],
)
def test_an_archive_with_a_member_that_could_reach_outside_is_refused(
    member: tarfile.TarInfo, workspace: Workspace, serve: Serve
) -> None:
    archive = tgz(PHOTOS, member)
    result = _fetch(workspace, serve({"flowers.tgz": archive}), archive)
    assert member.name in result.err
    assert not Path("/tmp/lightkit-outside").exists()
    assert not [
        path
        for path in workspace.folder.rglob("*")
        if path.name in ("outside", "roses", "link", "pipe")
    ]


@pytest.mark.parametrize(
    "archive", [ARCHIVE[: len(ARCHIVE) // 2], b"no archive"], ids=["cut", "no archive"]
)
def test_a_broken_archive_is_an_error_and_leaves_no_folder(
    archive: bytes, workspace: Workspace, serve: Serve
) -> None:
    result = _fetch(workspace, serve({"flowers.tgz": archive}), archive)
    assert re.search("archive is broken", result.err)


def test_an_address_that_is_not_of_the_web_ends_with_2(workspace: Workspace) -> None:
    write_flowers(workspace, "file:///etc/passwd")
    result = workspace.run("fetch", "-c", "job.yaml")
    assert result.code == 2
    assert re.search(r"data\.init_args\.url.*https?://.*file:///etc/passwd", result.err)


@pytest.mark.parametrize(
    ("data", "says"),
    [(None, "no data"), ({"class_path": "Temperatures"}, "Temperatures has nothing to download")],
    ids=["no data", "nothing to fetch"],
)
def test_fetch_of_nothing_ends_with_2(
    data: dict[str, str] | None, says: str, workspace: Workspace
) -> None:
    workspace.write(
        "job.yaml", {"model": {"class_path": "Regressor"}, **({"data": data} if data else {})}
    )
    result = workspace.run("fetch", "-c", "job.yaml")
    assert result.code == 2
    assert says in result.err


def test_a_named_folder_without_flowers_ends_with_3_and_what_to_do(workspace: Workspace) -> None:
    write_flowers(workspace, "http://127.0.0.1:9/flowers.tgz")
    result = workspace.run("fit", "-c", "job.yaml", environ={"LIGHTKIT_DATA": "nowhere"})
    assert result.code == 3
    assert re.search(r"LIGHTKIT_DATA[\s\S]*nowhere|nowhere[\s\S]*LIGHTKIT_DATA", result.err)


@pytest.mark.long  # draws 800 pictures
def test_without_flower_photos_there_are_drawn_flowers_with_a_notice(workspace: Workspace) -> None:
    write_flowers(workspace, "http://127.0.0.1:9/flowers.tgz")
    result = workspace.run("fit", "-c", "job.yaml", "--trainer.fast_dev_run=true").ok()
    assert re.search(
        r"data: drawn flowers .*`lightkit fetch`.*LIGHTKIT_DATA", result.out + result.err
    )


SMALL_FASHION = '''\
import hashlib

import torchvision

import lightkit.data

torchvision.datasets.FashionMNIST.resources = RESOURCES


class Small(lightkit.data.FashionMNIST):
    """FashionMNIST of other files."""
'''


@pytest.fixture
def idx_files() -> dict[str, bytes]:
    """Small files of FashionMNIST's format; every training picture is there twice."""
    random = np.random.default_rng(0)
    files = {}
    for name, num in (("train", 200), ("t10k", 20)):
        half = random.integers(0, 256, (num // 2, 28, 28), dtype=np.uint8)
        pixels, labels = np.concatenate([half, half]), np.arange(num, dtype=np.uint8) % 10
        files[f"{name}-images-idx3-ubyte"] = (
            struct.pack(">IIII", 0x803, num, 28, 28) + pixels.tobytes()
        )
        files[f"{name}-labels-idx1-ubyte"] = struct.pack(">II", 0x801, num) + labels.tobytes()
    return files


def _fashion(workspace: Workspace, class_path: str, mirrors: list[str]) -> None:
    init_args = {
        "root": "fashion",
        "image_size": 28,
        "batch_size": 16,
        "num_workers": 0,
        "mirrors": mirrors,
    }
    data = {"class_path": class_path, "init_args": {**init_args, "val_fraction": 0.2}}
    workspace.write("job.yaml", {**pictures_config(trainer={"max_epochs": 1}), "data": data})


def test_fashion_mnist_is_fetched_from_the_first_mirror_that_has_it(
    workspace: Workspace, serve: Serve, idx_files: dict[str, bytes]
) -> None:
    packed = {f"{name}.gz": gzip.compress(content) for name, content in idx_files.items()}
    resources = [
        (name, hashlib.md5(content, usedforsecurity=False).hexdigest())
        for name, content in packed.items()
    ]
    workspace.write("my_fashion.py", SMALL_FASHION.replace("RESOURCES", repr(resources)))
    empty, full = serve({}), serve(packed)
    _fashion(workspace, "my_fashion.Small", [empty.address, full.address + "/"])
    num_requests = []
    for _ in range(2):
        workspace.run("fetch", "-c", "job.yaml").ok()
        num_requests.append(len(full.requests))
    assert num_requests[0] == num_requests[1] >= 4, "what is there is not fetched again"
    workspace.run("fit", "-c", "job.yaml").ok()
    counts = read_json(workspace.only_run / "manifest.json")["data"]["counts"]
    assert (counts["train"] + counts["val"], counts["test"]) == (200, 20)
    assert counts["val"] % 2 == 0, "equal pictures are on the same side"


def test_fashion_mnist_of_another_content_is_refused(workspace: Workspace, serve: Serve) -> None:
    names = [
        f"{of}-{what}-ubyte.gz"
        for of in ("train", "t10k")
        for what in ("images-idx3", "labels-idx1")
    ]
    server = serve({name: gzip.compress(b"else") for name in names})
    _fashion(workspace, "FashionMNIST", [server.address])
    result = workspace.run("fetch", "-c", "job.yaml")
    assert result.code == 3
    assert "md5" in result.err
    assert not list(workspace.folder.rglob("*ubyte"))


def test_fashion_mnist_that_is_not_there_ends_with_3_and_what_to_run(workspace: Workspace) -> None:
    _fashion(workspace, "FashionMNIST", ["http://127.0.0.1:9"])
    result = workspace.run("fit", "-c", "job.yaml")
    assert result.code == 3
    assert "lightkit fetch" in result.err
