from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator

import pytest

from lightkit import runs

Warned = list[tuple[str, str]]


@pytest.fixture
def warned() -> Iterator[Warned]:
    heard: Warned = []
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        watch = runs.WarningWatch(lambda message, source: heard.append((message, source)))
        watch.start()
        yield heard
        watch.stop()


def test_both_kinds_of_warning_are_reported_with_their_source(warned: Warned) -> None:
    warnings.warn("slow", RuntimeWarning, stacklevel=1)
    logging.getLogger("package").error("lost %s", "it")
    assert warned == [("slow", "RuntimeWarning"), ("lost it", "package")]


def test_the_same_warning_is_reported_once(warned: Warned) -> None:
    for _ in range(3):
        warnings.warn("slow", RuntimeWarning, stacklevel=1)
        logging.getLogger("package").warning("lost")
    assert warned == [("slow", "RuntimeWarning"), ("lost", "package")]


def test_a_warning_that_logging_captures_is_one_warning(warned: Warned) -> None:
    logging.captureWarnings(True)
    try:
        warnings.warn("slow", RuntimeWarning, stacklevel=1)
    finally:
        logging.captureWarnings(False)
    assert len(warned) == 1
    assert "slow" in warned[0][0]


def test_a_warning_that_logging_captured_before_is_one_warning() -> None:
    heard: Warned = []
    logging.captureWarnings(True)
    watch = runs.WarningWatch(lambda message, source: heard.append((message, source)))
    watch.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("slow", RuntimeWarning, stacklevel=1)
    finally:
        watch.stop()
        logging.captureWarnings(False)
    assert heard == [("slow", "RuntimeWarning")]


@pytest.mark.parametrize("category", [DeprecationWarning, PendingDeprecationWarning, FutureWarning])
def test_what_is_for_the_authors_of_a_package_is_not_reported(
    category: type[Warning], warned: Warned
) -> None:
    warnings.warn("old name", category, stacklevel=1)
    assert warned == []


def test_a_logger_that_stands_alone_is_heard_once_it_is_looked_for() -> None:
    heard: Warned = []
    watch = runs.WarningWatch(lambda message, source: heard.append((message, source)))
    watch.start()
    alone = logging.getLogger("stands.alone")
    alone.propagate = False
    watch.watch_loggers()
    alone.warning("hear me")
    watch.stop()
    assert heard == [("hear me", "stands.alone")]
    assert alone.handlers == []
