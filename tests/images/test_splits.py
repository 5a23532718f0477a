"""A file's split is decided by its content."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

import pytest

from lightkit import runs
from lightkit.errors import ConfigError
from lightkit.images.splits import check_fractions, split_of

DIGESTS = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(5000)]


def test_the_shares_are_those_that_were_asked_for() -> None:
    counts = Counter(split_of(digest, val_fraction=0.2, test_fraction=0.1) for digest in DIGESTS)
    assert counts["val"] / 5000 == pytest.approx(0.2, abs=0.02)
    assert counts["test"] / 5000 == pytest.approx(0.1, abs=0.02)


def test_another_validation_share_moves_nothing_into_or_out_of_the_test_split() -> None:
    tests = [
        {
            digest
            for digest in DIGESTS
            if split_of(digest, val_fraction=share, test_fraction=0.1) == "test"
        }
        for share in (0.0, 0.2, 0.5)
    ]
    assert tests[0] == tests[1] == tests[2] != set()


@pytest.mark.parametrize(
    ("digest", "split"),
    [
        ("0" * 64, "test"),
        ("199" + "0" * 61, "test"),
        ("19" + "f" * 62, "val"),
        ("4" + "c" * 63, "val"),
        ("4d" + "0" * 62, "train"),
        ("f" * 64, "train"),
    ],
)
def test_the_first_digits_decide(digest: str, split: str) -> None:
    assert split_of(digest, val_fraction=0.2, test_fraction=0.1) == split


def test_the_digest_is_sha256_of_the_bytes(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 3_000_000)
    assert runs.digest(tmp_path / "file") == hashlib.sha256(b"x" * 3_000_000).hexdigest()


@pytest.mark.parametrize(
    ("val", "test", "says"),
    [
        (1.5, 0.1, r"val_fraction: expected a share from 0 up to but not including 1, got 1\.5"),
        (0.1, -0.1, r"test_fraction: expected a share from 0 up to but not including 1, got -0\.1"),
        (float("nan"), 0.1, r"val_fraction: expected a share .* got nan"),
        (0.6, 0.4, "add up to 1: nothing is left to train on"),
    ],
)
def test_shares_that_leave_nothing_to_train_on_are_refused(
    val: float, test: float, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        check_fractions(val_fraction=val, test_fraction=test)
