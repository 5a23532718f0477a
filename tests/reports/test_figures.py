from __future__ import annotations

import numpy as np
import pytest

from lightkit.reports import figures


@pytest.mark.parametrize("num_classes", [2, 5, 30, 31, 1000])
def test_a_matrix_is_drawn_for_any_number_of_classes(num_classes: int) -> None:
    counts = np.eye(num_classes, dtype=int) * 9
    names = [f"class {index}" for index in range(num_classes)]
    pixels = np.array(figures.to_image(figures.draw_confusion_matrix(counts, names)))
    assert pixels.dtype == np.uint8
    assert 300 < pixels.shape[0] == pixels.shape[1] <= 1600
    assert pixels.astype(float).std() > 10
    flipped = np.array(figures.to_image(figures.draw_confusion_matrix(counts[::-1], names)))
    assert not np.array_equal(pixels, flipped)


def test_drawing_leaves_no_figure_open() -> None:
    from matplotlib import pyplot as plt  # heavy

    before = plt.get_fignums()
    figures.to_png(figures.draw_confusion_matrix(np.eye(2, dtype=int), ["a", "b"]))
    assert plt.get_fignums() == before


def test_a_name_with_dollars_is_no_formula() -> None:
    figures.to_png(figures.draw_confusion_matrix(np.eye(2, dtype=int), ["$x$ <script>", "$\\frac"]))


def test_values_that_are_not_finite_are_gaps() -> None:
    rows = [{"epoch": 0, "loss": 1.0}, {"epoch": 1, "loss": float("nan")}, {"epoch": 2, "loss": float("inf")}]
    (line,) = figures.draw_curves(rows, ["loss"]).axes[0].lines
    assert np.asarray(line.get_xydata()).tolist() == [[0, 1]]
