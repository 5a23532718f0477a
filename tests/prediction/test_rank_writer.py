from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lightkit.errors import DataError
from lightkit.prediction.table import Prediction
from lightkit.prediction.writer import RankWriter, join_ranks
from tests.prediction.conftest import environment


def write(folder: Path, rank: int, *predictions: Prediction) -> None:
    writer = RankWriter(folder, rank)
    for prediction in predictions:
        writer.add(prediction)
    writer.close()


def plain(index: int, rank: int = 0) -> Prediction:
    return Prediction(index, f"{index}.jpg", np.array([rank, index], dtype=np.float32), None)


def test_shares_are_joined_in_the_order_of_the_images(tmp_path: Path) -> None:
    for rank in range(3):
        write(tmp_path, rank, *(plain(index, rank) for index in range(rank, 11, 3)))
    found = list(join_ranks(tmp_path, 3))
    assert [prediction.index for prediction in found] == list(range(11))
    assert [prediction.path for prediction in found] == [f"{index}.jpg" for index in range(11)]
    assert [float(prediction.values[0]) for prediction in found if prediction.values is not None] == [
        index % 3 for index in range(11)
    ]


def test_an_image_that_two_processes_have_comes_once_from_the_lower_rank(tmp_path: Path) -> None:
    write(tmp_path, 0, plain(0, 0), plain(2, 0))
    write(tmp_path, 1, plain(0, 1), plain(1, 1), plain(2, 1))
    values = [prediction.values for prediction in join_ranks(tmp_path, 2)]
    assert [None if value is None else float(value[0]) for value in values] == [0, 1, 0]


def test_each_field_comes_back_exactly(tmp_path: Path) -> None:
    values = np.array([np.pi, 1e-45, np.nan, -np.inf], dtype=np.float32)
    write(tmp_path, 0, Prediction(0, "é\n\udcff.jpg", values, None), Prediction(7, "", None, "broken \udcff"))
    first, second = join_ranks(tmp_path, 1)
    assert first.values is not None
    assert first.values.dtype == np.float32
    assert first.values.tobytes() == values.tobytes()
    assert (first.path, first.defect) == ("é\n\udcff.jpg", None)
    assert second == Prediction(7, "", None, "broken \udcff")


def test_a_process_without_images_has_an_empty_share(tmp_path: Path) -> None:
    write(tmp_path, 0, plain(0))
    write(tmp_path, 1)
    assert len(list(join_ranks(tmp_path, 2))) == 1


def test_a_share_that_is_missing_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, 0, plain(0), plain(1))
    with pytest.raises(DataError, match=r"rank=1.pickle: this share of the predictions is missing"):
        list(join_ranks(tmp_path, 2))


_JOIN = """
import sys
from pathlib import Path
from lightkit.prediction.writer import join_ranks
num = sum(1 for _ in join_ranks(Path(sys.argv[1]), 4))
print(num, Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to measure memory")
def test_large_shares_are_joined_in_the_memory_of_small_ones(tmp_path: Path) -> None:
    peaks = []
    for num in (1_000, 100_000):
        for rank in range(4):
            write(tmp_path / str(num), rank, *map(plain, range(rank, num, 4)))
        words = [sys.executable, "-c", _JOIN, str(tmp_path / str(num))]
        done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment())
        found, peak = map(int, done.stdout.split())
        assert found == num
        peaks.append(peak)
    assert peaks[1] < 1.1 * peaks[0], peaks
