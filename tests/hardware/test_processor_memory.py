from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from lightkit.hardware.processor import keep_memory

FAULTS = """\
import resource, sys
from lightkit.hardware.processor import keep_memory
if sys.argv[1] == "kept":
    assert keep_memory({})
count = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
blocks = [bytearray(24 << 20) for _ in range(4)]
del blocks
before = count()
for _ in range(10):
    blocks = [bytearray(24 << 20) for _ in range(4)]
    del blocks
print(count() - before)
"""


def faults(how: str) -> int:
    """Pages that a process asks for while it takes and gives back 96 MB ten times."""
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MALLOC_", "GLIBC_"))
    }
    done = subprocess.run(
        [sys.executable, "-c", FAULTS, how], env=environ, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_memory_that_is_given_back_is_not_asked_for_again() -> None:
    assert faults("kept") < faults("as ever") / 4


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD"])
def test_what_the_user_says_of_it_is_left_alone(name: str) -> None:
    assert not keep_memory({name: "1"})
