"""Each file is judged by decoding it once, and read again only if it may have changed."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import time
import warnings
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import PIL
import pytest
from PIL import Image, ImageFile

from lightkit.images import image_file
from lightkit.images import verdicts as module
from lightkit.images.image_file import MachineLimitError, UnreadableImageError, read_rgb
from lightkit.images.verdicts import UNREADABLE, Verdict, compute_file_digests, judge_images

# torchvision 0.29: its decoders, which are used as long as there are any
pytestmark = pytest.mark.filterwarnings(
    "ignore:The image decoding and encoding capabilities:DeprecationWarning"
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "lightkit" / "image-verdicts.sqlite"


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were read, an hour after they were made."""
    found: list[str] = []
    hash_file, clock = module._hash_file, time.time_ns

    def counted(file: Any) -> str:
        found.append(Path(f"/proc/self/fd/{file.fileno()}").readlink().name)
        return hash_file(file)

    monkeypatch.setattr(module, "_hash_file", counted)
    monkeypatch.setattr(time, "time_ns", lambda: clock() + 3600 * 10**9)
    return found


def one(path: Path) -> Verdict:
    (verdict,) = judge_images([path])
    return verdict


def test_verdicts_come_in_the_order_of_the_paths(make_images: Any) -> None:
    root = make_images("a.png", "b.png", "c.png")
    (root / "b.png").write_bytes(b"no image")
    found = list(judge_images(sorted(root.iterdir())))
    assert [verdict.defect for verdict in found] == [
        None,
        "not an image in any format that Pillow knows",
        None,
    ]
    assert [(verdict.height, verdict.width) for verdict in found] == [(10, 12), (0, 0), (10, 12)]
    assert found[0].digest == hashlib.sha256((root / "a.png").read_bytes()).hexdigest()


def test_files_that_are_as_they_were_are_not_read_again(
    make_images: Any, readings: list[str]
) -> None:
    paths = sorted(make_images("a.png", "b.png").iterdir())
    first = list(judge_images(paths))
    assert list(judge_images(paths)) == first
    digests = list(compute_file_digests(map(str, paths)))
    assert [each.digest for each in digests] == [verdict.digest for verdict in first]
    assert sorted(readings) == ["a.png", "b.png"]


def _put_back(path: Path, content: bytes, *, aside: bool) -> None:
    """Give a file other content with its size and time, in place or by a new file of the name."""
    before = path.stat()
    target = path.with_suffix(".new") if aside else path
    target.write_bytes(content)
    os.utime(target, ns=(before.st_atime_ns, before.st_mtime_ns))
    target.replace(path)
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


@pytest.mark.parametrize(
    "change",
    [
        lambda path, content: _put_back(path, content, aside=False),
        lambda path, content: _put_back(path, content, aside=True),
        lambda path, content: path.write_bytes(content),
        lambda path, content: path.write_bytes(content + b"more"),
    ],
    ids=["in place with its time", "replaced with its time", "rewritten", "longer"],
)
def test_a_file_that_was_changed_is_read_again(
    make_images: Any, readings: list[str], change: Callable[[Path, bytes], object]
) -> None:
    path = make_images("a.png") / "a.png"
    assert one(path).defect is None
    change(path, bytes(path.stat().st_size))
    assert one(path).defect is not None
    assert readings == ["a.png", "a.png"]


def test_a_file_that_was_changed_just_before_is_read_again(
    make_images: Any, readings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_images("a.png") / "a.png"
    changed_ns = path.stat().st_ctime_ns
    for later_ns, num_read in [
        (1_999_999_999, 1),
        (-(10**10), 2),
        (2_000_000_000, 3),
        (2_000_000_000, 3),
    ]:
        monkeypatch.setattr(time, "time_ns", lambda ns=changed_ns + later_ns: ns)
        one(path)
        assert len(readings) == num_read


@pytest.mark.parametrize(
    "setting", ["MAX_IMAGE_PIXELS", "LOAD_TRUNCATED_IMAGES", "_VERSION", "version"]
)
def test_other_rules_judge_again(
    make_images: Any, readings: list[str], monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    path = make_images("a.png") / "a.png"
    one(path)
    place: Any = {
        "MAX_IMAGE_PIXELS": Image,
        "LOAD_TRUNCATED_IMAGES": ImageFile,
        "_VERSION": module,
    }.get(setting)
    monkeypatch.setattr(place or PIL, setting if place else "__version__", 1000)
    one(path)
    assert len(readings) == 2


def _unreadable(path: Path) -> None:
    path.unlink()


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_unreadable, "No such file or directory"),
        (_directory, "Is a directory"),
        (_pipe, "neither a file nor a folder"),
        (_loop, "Too many levels of symbolic links"),
    ],
    ids=["vanished", "folder", "pipe", "loop"],
)
def test_what_is_no_content_is_reported_and_not_kept(
    make_images: Any, spoil: Callable[[Path], None], reason: str
) -> None:
    path = make_images("a.png") / "a.png"
    content = path.read_bytes()
    spoil(path)
    assert one(path) == Verdict(UNREADABLE, reason)
    path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
    path.write_bytes(content)
    assert one(path).defect is None


@pytest.mark.usefixtures("readings")
@pytest.mark.parametrize(
    "error", [MemoryError(), OSError(5, "Input/output error")], ids=["memory", "disk"]
)
def test_a_mishap_is_not_kept(
    make_images: Any, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    path = make_images("a.png") / "a.png"

    def fail(image: Image.Image) -> Image.Image:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(module, "load_frame", fail)
        if isinstance(error, MemoryError):
            with pytest.raises(
                MachineLimitError, match=r"a\.png: .*Cannot allocate memory.*ulimit -v"
            ):
                one(path)
        else:
            assert one(path).defect is not None
    assert one(path).defect is None


@pytest.mark.usefixtures("readings")
def test_a_file_that_changes_while_it_is_judged_is_judged_again(
    make_images: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_images("a.png") / "a.png"
    load_frame = image_file.load_frame

    def change(image: Image.Image) -> Image.Image:
        frame = load_frame(image)
        path.write_bytes(b"another")
        return frame

    with monkeypatch.context() as patched:
        patched.setattr(module, "load_frame", change)
        assert one(path).defect is None
    assert one(path).defect is not None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: file.write_bytes(b"no database, but longer than the head of one" * 100),
        lambda file: file.write_bytes(file.read_bytes()[:5000]),
        lambda file: file.write_bytes(b""),
        lambda file: (file.unlink(), file.mkdir()),
    ],
    ids=["other", "cut short", "empty", "folder"],
)
def test_a_broken_cache_only_costs_time(
    make_images: Any, cache: Path, spoil: Callable[[Path], object], readings: list[str]
) -> None:
    paths = sorted(make_images(*(f"{number}.png" for number in range(5))).iterdir())
    first = list(judge_images(paths))
    spoil(cache)
    assert list(judge_images(paths)) == first
    assert len(readings) == 10
    for _ in range(2):  # a damaged one goes, and the next is made anew
        assert list(judge_images(paths)) == first
    assert len(readings) <= (20 if cache.is_dir() else 15)


class CountWaits(sqlite3.Connection):
    """A connection that notes which statements waited in vain for another process."""

    statements: ClassVar[list[str]] = []

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        try:
            return super().execute(sql, *values)
        except sqlite3.OperationalError:
            self.statements.append(sql.split(maxsplit=1)[0])
            raise


def test_a_cache_that_another_process_holds_is_waited_for_once(
    make_images: Any, cache: Path, readings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = sorted(make_images(*(f"{number}.png" for number in range(5))).iterdir())
    first = list(judge_images(paths))
    monkeypatch.setattr(module, "_LOCK_TIMEOUT_S", 0.05)
    with closing(sqlite3.connect(cache, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=CountWaits))
        assert list(judge_images(paths)) == first
    assert CountWaits.statements == ["CREATE", "SELECT"]  # of five images
    assert len(readings) == 10


def test_without_any_folder_for_the_cache_files_are_judged(
    make_images: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_images("a.png") / "a.png"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    assert one(path).defect is None


def test_a_verdict_is_kept_for_half_a_year(
    make_images: Any, readings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = sorted(make_images("a.png", "b.png").iterdir())
    list(judge_images(paths))
    now = time.time()
    for days, used in [(100, paths[:1]), (190, paths)]:
        monkeypatch.setattr(time, "time", lambda days=days: now + days * 86400)
        list(judge_images(used))
    assert sorted(readings) == ["a.png", "a.png", "b.png", "b.png"]


def test_a_large_image_is_judged_like_a_small_one(
    make_images: Any, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    root = make_images(*(f"{number}.png" for number in range(6)))
    (root / "0.png").write_bytes((root / "0.png").read_bytes()[:200])
    small = list(judge_images(sorted(root.iterdir())))
    cache.unlink()
    monkeypatch.setattr(module, "_LARGE_PIXELS", 100)
    assert list(judge_images(sorted(root.iterdir()))) == small


def test_no_more_files_are_begun_than_some_ahead(make_images: Any) -> None:
    path = make_images("a.png") / "a.png"
    asked = 0

    def paths() -> Any:
        nonlocal asked
        while True:
            asked += 1
            yield path

    found = judge_images(paths())
    for _ in range(3):
        next(found)
    found.close()  # type: ignore[attr-defined]
    assert asked < 300


def test_the_filters_of_warnings_are_as_before(make_images: Any) -> None:
    before = list(warnings.filters)
    one(make_images("a.png") / "a.png")
    assert list(warnings.filters) == before


def test_digests_are_those_of_the_content_and_are_kept(tmp_path: Path, readings: list[str]) -> None:
    paths = [tmp_path / "a.bin", tmp_path / "gone.bin", tmp_path]
    paths[0].write_bytes(b"abc" * 1000)
    for _ in range(2):
        found = list(compute_file_digests(map(str, paths)))
        assert [each.digest for each in found[1:]] == [UNREADABLE, UNREADABLE]
        assert found[0].size_bytes == 3000
        assert found[0].digest == hashlib.sha256(paths[0].read_bytes()).hexdigest()
    assert readings == ["a.bin"]
    assert one(paths[0]).defect == "not an image in any format that Pillow knows"


def jpeg(folder: Path, kind: str) -> Path:
    path = folder / f"{kind}.jpg"
    pixels = np.random.default_rng(0).integers(0, 256, (24, 40, 3), dtype=np.uint8)
    image = Image.fromarray(pixels).resize((80, 48))
    options: dict[str, Any] = {}
    if kind in ("L", "CMYK"):
        image = image.convert(kind)
    elif kind.startswith("turned"):
        options["exif"] = image.getexif()
        options["exif"][0x0112] = int(kind[-1])
    elif kind == "xmp":
        options["xmp"] = (
            b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:D tiff:Orientation="6"/></x:xmpmeta>'
        )
    else:
        by_kind: dict[str, dict[str, Any]] = {
            "progressive": {"progressive": True},
            "rgb": {"keep_rgb": True},
            "444": {"subsampling": 0},
        }
        options = by_kind.get(kind, {})
    image.save(path, **options)
    return path


@pytest.mark.parametrize(
    "kind", ["RGB", "L", "CMYK", "progressive", "rgb", "444", "turned 3", "turned 6", "xmp"]
)
def test_a_jpeg_has_its_upright_size(tmp_path: Path, kind: str) -> None:
    path = jpeg(tmp_path, kind)
    verdict = one(path)
    assert (verdict.height, verdict.width) == np.asarray(read_rgb(path)).shape[:2]


@pytest.mark.parametrize("kind", ["JPEG", "progressive JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP"])
@pytest.mark.parametrize("share", [0, 0.02, 0.5, 0.97])
def test_what_is_cut_short_is_judged_as_decoding_does(
    tmp_path: Path, kind: str, share: float
) -> None:
    path = tmp_path / "cut"
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    options: dict[str, Any] = {"progressive": True} if kind.startswith("p") else {}
    Image.fromarray(pixels).save(path, format=kind.rpartition(" ")[2], **options)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    try:
        read_rgb(path)
        decodes = True
    except UnreadableImageError:
        decodes = False
    assert (one(path).defect is None) == decodes
    assert not decodes or share == 0.97


def test_copies_in_one_scan_have_one_verdict(make_images: Any) -> None:
    root = make_images("a.png")
    shutil.copyfile(root / "a.png", root / "b.PNG")
    first, second = judge_images([root / "a.png", root / "b.PNG"])
    assert first == second
