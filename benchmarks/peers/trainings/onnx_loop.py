"""Inference by hand: two threads decode a folder of photos for ONNX Runtime."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image

from lightkit.images.preprocessing import preprocessing_of


def main(model: Path, folder: Path, size: int) -> None:
    """Write the class and the largest value of each photo."""
    session = onnxruntime.InferenceSession(model)
    name = session.get_inputs()[0].name
    prepare = preprocessing_of(size)
    # the folders of the classes are links, which rglob of this Python does not follow
    paths = sorted(path for kind in folder.iterdir() for path in kind.glob("*.jpg"))
    if not paths:
        raise FileNotFoundError(f"{folder}: there is no CLASS/NAME.jpg in it.")

    def read(path: Path) -> np.ndarray:
        with Image.open(path) as image:
            return prepare(image.convert("RGB"))

    with ThreadPoolExecutor(2) as pool, Path("loop.csv").open("w", encoding="utf-8") as table:
        images = pool.map(read, paths)
        for start in range(0, len(paths), 32):
            batch = np.stack([next(images) for _ in paths[start : start + 32]])
            values = session.run(None, {name: batch})[0]
            for path, row in zip(paths[start : start + 32], values, strict=True):
                print(path, row.argmax(), f"{row.max():.6f}", sep=",", file=table)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
