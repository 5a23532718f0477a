"""Work in threads, in order."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice

import pytest

from lightkit.images.ahead import in_order


def test_results_come_in_the_order_of_the_things_and_few_are_begun_before_they_are_asked_for() -> None:
    begun: list[int] = []

    def square(number: int) -> int:
        begun.append(number)
        return number * number

    with ThreadPoolExecutor(3) as pool:
        results = in_order(pool, square, count(), ahead=4)
        assert list(islice(results, 10)) == [number * number for number in range(10)]
        results.close()  # type: ignore[attr-defined]  # it is a generator
    assert max(begun) <= 14


def test_what_the_work_raises_is_raised_where_its_result_is_taken() -> None:
    with ThreadPoolExecutor(2) as pool:
        results = in_order(pool, lambda number: 1 // number, [1, 0, 1], ahead=1)
        assert next(results) == 1
        with pytest.raises(ZeroDivisionError):
            next(results)
