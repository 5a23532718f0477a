"""What the line of a search for speed says, and what `lightkit tune` marks in its table."""

from __future__ import annotations

from typing import Any

import pytest

from lightkit.cli.answers import SPEED, Found
from lightkit.cli.tuning import _print_measurements
from lightkit.tuning.variant import Findings, Measurement, Variant, rate_words


def _measured(step_s: float, **fields: Any) -> Measurement:
    return Measurement(Variant(**{"threads": 2, **fields}), step_s, step_s, samples_per_s=round(16 / step_s))


def _found(*measurements: Measurement, chosen: Variant | None = None, left_out: tuple[str, ...] = ()) -> Findings:
    return Findings(measurements, chosen or measurements[-1].variant, seconds=0.8, left_out=left_out)


def _line(findings: Findings, *autos: str, before: bool = False, num_workers: int | None = None) -> str:
    chosen = {**{key: getattr(findings.chosen, key) for key in autos}, "num_workers": num_workers}
    (line,) = Found(chosen, 4.0, before=frozenset({SPEED} if before else ()), findings=findings).lines
    return line.removeprefix("tuned  ")


@pytest.mark.parametrize(
    ("fields", "than", "flags"),
    [
        ({"threads": 1}, "2 threads", "--accelerator.threads=1"),
        ({"memory_format": "channels_last"}, "contiguous", "--accelerator.memory_format=channels_last"),
        ({"precision": "bf16-mixed"}, "32-true", "--accelerator.precision=bf16-mixed"),
        ({"compile": True}, "not compiled", "--accelerator.compile=true"),
        (
            {"precision": "bf16-mixed", "fused": True},
            "32-true, not fused",
            "--accelerator.precision=bf16-mixed --accelerator.fused=true",
        ),
    ],
    ids=["threads", "memory format", "precision", "compile", "two"],
)
def test_a_gain_is_told_by_what_differs_and_so_are_the_flags_that_fix_it(
    fields: dict[str, Any], than: str, flags: str
) -> None:
    found = _found(_measured(0.1), _measured(0.05, **fields))
    line = _line(found, "precision", "memory_format", "compile", "fused", "threads")
    assert line == f"{found.chosen.words}: 2 times as fast as {than} (320 samples/s, 0.8 s measured, {flags} fixes it)"


def test_a_number_of_threads_that_was_not_measured_is_told_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    measurements = (_measured(0.1), _measured(0.05, memory_format="channels_last"))
    found = _found(*measurements, chosen=measurements[1].variant.but(threads=1))
    line = _line(found, "memory_format", "threads", num_workers=1)
    assert line.startswith("32-true, channels_last, 1 thread, 1 worker: 2 times as fast as contiguous (")
    assert "(320 samples/s with 2 threads, 1 not measured, 0.8 s measured, --accelerator.memory_format=" in line
    _print_measurements(found)
    rows = capsys.readouterr().out.splitlines()[1:]
    assert [row.endswith("chosen, with threads=1, which was not measured") for row in rows] == [False, True]


def test_on_a_gpu_threads_are_no_part_of_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    measurements = (_measured(0.1, threads=None), _measured(0.05, threads=None, precision="bf16-mixed"))
    found = _found(*measurements, chosen=measurements[1].variant.but(threads=7))
    assert "not measured" not in _line(found, "precision", "threads")
    _print_measurements(found)
    assert capsys.readouterr().out.splitlines()[2].endswith("  chosen")


@pytest.mark.parametrize(
    ("left_out", "says"),
    [
        (
            ("32-true, contiguous, compiled: takes about 9 s, 1 s were left",),
            "nothing else was tried for lack of time "
            "(160 samples/s, 0.8 s measured, left out: 32-true, contiguous, compiled)",
        ),
        (
            ("one: 9 s", "two: 9 s"),
            "nothing else was tried for lack of time (160 samples/s, 0.8 s measured, left out: one and",
        ),
        ((), "there is nothing else to try (160 samples/s, 0.8 s measured)"),
    ],
    ids=["one", "two", "none"],
)
def test_where_nothing_was_tried_nothing_is_said_to_be_slower(left_out: tuple[str, ...], says: str) -> None:
    assert says in _line(_found(_measured(0.1), left_out=left_out), "compile")


def test_what_was_tried_and_is_not_faster_stands_beside_what_was_not() -> None:
    first, other = _measured(0.1), _measured(0.2, memory_format="channels_last")
    found = _found(first, other, chosen=first.variant, left_out=("bf16-mixed: takes about 9 s, 1 s were left",))
    assert _line(found, "memory_format", before=True).endswith(
        "nothing that was tried is faster (160 samples/s, measured before, 1 not tried for lack of time)"
    )


def test_the_event_tells_measuring_from_all_that_it_took() -> None:
    found = _found(_measured(0.1))
    event = Found({}, 4.0, findings=found).event()
    assert (event["seconds"], event["measured_s"]) == (4.0, 0.8)
    assert Found({}, 4.0, before=frozenset({SPEED}), findings=found).event()["measured_s"] is None


@pytest.mark.parametrize(
    ("rate", "words"), [(17123.4, "17123"), (1418.0, "1418"), (99.96, "100"), (35.13, "35.1"), (0.0123, "0.0123")]
)
def test_a_rate_is_written_as_people_do(rate: float, words: str) -> None:
    assert rate_words(rate) == words
