from __future__ import annotations

import re

import numpy as np
import pytest

from lightkit.reports import figures


@pytest.mark.parametrize("num_classes", [2, 5, 30, 31, 1000])
def test_a_matrix_is_drawn_for_any_number_of_classes(num_classes: int) -> None:
    counts = np.eye(num_classes, dtype=int) * 9
    names = [f"class {index}" for index in range(num_classes)]
    pixels = figures.to_pixels(figures.draw_confusion_matrix(counts, names))
    assert pixels.dtype == np.uint8
    assert 300 < pixels.shape[0] == pixels.shape[1] <= 1600
    assert pixels.astype(float).std() > 10
    flipped = figures.to_pixels(figures.draw_confusion_matrix(counts[::-1], names))
    assert not np.array_equal(pixels, flipped)


def test_drawing_leaves_no_figure_open() -> None:
    from matplotlib import pyplot as plt  # heavy

    before = plt.get_fignums()
    figures.to_png(figures.draw_confusion_matrix(np.eye(2, dtype=int), ["a", "b"]))
    assert plt.get_fignums() == before


def test_a_figure_has_the_same_layout_in_the_page_and_as_a_picture() -> None:
    drawing = figures.draw_confusion_matrix(np.eye(5, dtype=int), [f"class {at}" for at in "abcde"])
    undrawn = [axes.get_position().bounds for axes in drawing.axes]
    figures.to_svg(drawing, name="matrix", label="")
    in_page = [axes.get_position().bounds for axes in drawing.axes]
    figures.to_png(drawing)
    assert undrawn != in_page
    assert in_page == [axes.get_position().bounds for axes in drawing.axes]


def test_text_in_a_figure_is_text_and_is_escaped() -> None:
    drawing = figures.draw_confusion_matrix(np.eye(2, dtype=int), ["$x$ <script>", "b & c"])
    svg = figures.to_svg(drawing, name="matrix", label='"quoted" <b>')
    assert ">$x$ &lt;script&gt;</text>" in svg
    assert "b &amp; c" in svg
    assert 'aria-label="&quot;quoted&quot; &lt;b&gt;"' in svg


def test_svg_has_classes_for_colours_and_no_style_attributes() -> None:
    rows = [{"epoch": epoch, "train/loss": 1 / (1 + epoch), "lr": 0.1} for epoch in range(5)]
    drawing = figures.draw_curves(
        rows, ["train/loss"], best_epoch=4, resumed_at=[2], with_learning_rate=True
    )
    svg = figures.to_svg(drawing, name="loss", label="loss")
    assert 'class="s-c0"' in svg
    assert not any(part in svg for part in ("style=", "#0868ac", "xmlns", "http"))
    assert svg.startswith("<svg ")
    assert svg.endswith("</svg>")


def test_ids_of_two_figures_differ() -> None:
    import re

    rows = [{"epoch": epoch, "loss": 0.5} for epoch in range(3)]
    first, second = (
        {
            *re.findall(
                r' id="([^"]*)"',
                figures.to_svg(figures.draw_curves(rows, ["loss"]), name=name, label=""),
            )
        }
        for name in ("one", "two")
    )
    assert first
    assert not first & second


def test_a_line_of_many_epochs_is_thinned() -> None:
    rows = [{"epoch": epoch, "loss": float(np.sin(epoch))} for epoch in range(20_000)]
    assert len(figures.to_svg(figures.draw_curves(rows, ["loss"]), name="a", label="")) < 30_000


def test_values_that_are_not_finite_are_gaps() -> None:
    rows = [
        {"epoch": 0, "loss": 1.0},
        {"epoch": 1, "loss": float("nan")},
        {"epoch": 2, "loss": float("inf")},
    ]
    assert (
        "nan" not in figures.to_svg(figures.draw_curves(rows, ["loss"]), name="a", label="").lower()
    )


@pytest.mark.parametrize(
    ("low", "shown"), [(-4, {"0.0001", "0.001", "0.01"}), (-2.5, {"0.005", "0.01"})]
)
def test_a_logarithmic_axis_has_numbers_and_no_formulas(low: float, shown: set[str]) -> None:
    values = np.logspace(low, -2, 9)
    rows = [{"epoch": epoch, "train/loss": value} for epoch, value in enumerate(values)]
    drawings = [
        figures.draw_slice(values.tolist(), values.tolist(), key="rate", name="loss", is_log=True),
        figures.draw_curves(rows, ["train/loss"], has_log_axis=True),
        figures.draw_scatter(values, values, has_log_axes=True),
        figures.draw_residuals(values, values, has_log_axis=True),
    ]
    for drawing in drawings:
        texts = re.findall(
            r"<text[^>]*>([^<]*)</text>", figures.to_svg(drawing, name="x", label="x")
        )
        assert shown <= {*texts}
        assert not [text for text in texts if "$" in text]
