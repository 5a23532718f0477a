"""Times one exported file, or the eager model, in a process of its own: `export.py` starts it.

Its argument is JSON: ``file`` (exported, or a checkpoint), ``sizes`` of batches, ``threads``
(numbers of them), ``image_size``, ``seed``. It answers with JSON: for each number of threads and
each size what `measure_latency` returns.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from lightkit.export.formats import Runner, measure_latency, open_model, wrap_module

Figures = dict[str, dict[str, dict[str, float]]]
"""By number of threads and by size of a batch."""


def time_calls(
    file: Path, *, sizes: list[int], threads: list[int], image_size: int, seed: int
) -> Figures:
    """Time calls with random images.

    Args:
        file: Exported, or a checkpoint of an ImageClassifier.
        sizes: Of the batches.
        threads: Numbers of them.
        image_size: Side of the images, in pixels.
        seed: Of the images.
    """
    numbers = np.random.default_rng(seed)
    images = {
        size: numbers.standard_normal((size, 3, image_size, image_size), dtype=np.float32)
        for size in sizes
    }
    result: Figures = {}
    for number in threads:
        call = (
            _load_eager(file, number)
            if file.suffix == ".ckpt"
            else open_model(file, threads=number)
        )
        result[str(number)] = {
            str(size): measure_latency(lambda: call([images[size]]))  # noqa: B023
            for size in sizes
        }
    return result


def _load_eager(checkpoint: Path, threads: int) -> Runner:
    import torch  # here, as a file of ONNX is run without it

    from lightkit.models import ImageClassifier

    torch.set_num_threads(threads)
    return wrap_module(ImageClassifier.load_from_checkpoint(checkpoint, map_location="cpu").eval())


if __name__ == "__main__":
    request = json.loads(sys.argv[1])
    print(json.dumps(time_calls(Path(request.pop("file")), **request)))
