"""What two ranks under Horovod found: they run once for all tests that look at it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.launching import results_of


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return results_of(tmp_path_factory, ranks=2)


@pytest.fixture(scope="session")
def swept_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What they found in the cases of `make test-long`."""
    return results_of(tmp_path_factory, ranks=2, is_swept=True)
