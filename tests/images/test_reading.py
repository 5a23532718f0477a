"""Any image that Pillow can decode comes out in RGB; any other is named in the first line of the error."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lightkit.data.image_folder import ImageFolder
from lightkit.images.reading import UnreadableImageError, defect_of, pillow_warnings, read_rgb

BROKEN = {
    "LICENSE", "badwidth.bmp", "broken_data_stream.png", "decompression_bomb.ico", "png_decompression_dos.png",
    "shortfile.bmp", "truncated_end_chunk.png", "truncated_jpeg.jpg", "ultrahdr.jpg",
}  # fmt: skip


def complaint_about(path: Path) -> str | None:
    try:
        read_rgb(path)
    except UnreadableImageError as error:
        return str(error)
    return None


def test_odd_images_are_decoded_or_named(odd_images: Path) -> None:
    complaints = {path: complaint_about(path) for path in sorted(odd_images.iterdir())}
    told = {path: complaint for path, complaint in complaints.items() if complaint}
    assert {path.name for path in told} == BROKEN
    assert all(text.startswith(f"{path}: this image cannot be decoded (") for path, text in told.items())


def test_the_orientation_tag_is_followed(odd_images: Path) -> None:
    upright = np.asarray(read_rgb(odd_images / "hopper.jpg"), dtype=float)
    for number in (3, 5, 8):
        turned = np.asarray(read_rgb(odd_images / f"hopper_orientation_{number}.jpg"), dtype=float)
        assert np.abs(turned - upright).mean() < 5


@pytest.mark.parametrize(
    ("mode", "background", "options"),
    [
        ("RGBA", (0, 0, 0, 0), {}),
        ("LA", (0, 0), {}),
        ("P", 0, {"transparency": 0}),
        ("RGB", 0, {"transparency": (0, 0, 0)}),
    ],
    ids=["RGBA", "LA", "P", "RGB"],
)
def test_transparency_becomes_white(tmp_path: Path, mode: str, background: Any, options: dict[str, Any]) -> None:
    Image.new(mode, (4, 4), background).save(tmp_path / "clear.png", **options)
    assert read_rgb(tmp_path / "clear.png").getpixel((1, 1)) == (255, 255, 255)


def test_sixteen_bits_keep_their_brightness(tmp_path: Path) -> None:
    Image.fromarray(np.full((4, 4), 0x8000, dtype=np.uint16)).save(tmp_path / "grey.png")
    assert read_rgb(tmp_path / "grey.png").getpixel((1, 1)) == (128, 128, 128)


def test_too_many_pixels_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("L", (40, 40)).save(tmp_path / "large.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(UnreadableImageError, match=r"large\.png: this image cannot be decoded .*decompression bomb"):
        read_rgb(tmp_path / "large.png")
    with pillow_warnings():
        assert "bomb" in str(defect_of(tmp_path / "large.png"))


def test_the_error_survives_pickling() -> None:
    assert str(pickle.loads(pickle.dumps(UnreadableImageError("a.jpg: bad")))) == "a.jpg: bad"


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_image_that_breaks_in_training_is_named_in_the_first_line(make_images: Any, num_workers: int) -> None:
    names = [f"{name}/{number}.png" for name in "ab" for number in range(8)]
    root = make_images(*names)
    for name in names:
        content = (root / name).read_bytes()
        (root / name).write_bytes(content[: len(content) // 2])
    data = ImageFolder(str(root), image_size=8, num_workers=num_workers, test_fraction=0, val_fraction=0)
    data.setup("fit")
    with pytest.raises(
        UnreadableImageError, match=r"^/[^\n]*\.png: this image cannot be decoded \([^\n]*\n?[^\n]*$"
    ) as e:
        list(data.train_dataloader())
    assert str(e.value).splitlines()[0].startswith(str(root))
    assert "Traceback" not in str(e.value)
