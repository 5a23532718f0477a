"""A TPU that is asked for where torch-xla is not: an error that says how to install, before anything is built."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.commands import fit, runs_in, workplace

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("torch_xla") is not None, reason="torch-xla is installed; tests/tpu is for that"),
]

JOB = {"model": {"class_path": "mine.Net"}, "data": {"class_path": "mine.Points"}}


def test_without_torch_xla_a_tpu_is_refused_with_the_way_to_install_it(tmp_path: Path) -> None:
    workplace(tmp_path, JOB)
    (tmp_path / "torch.py").write_text("raise SystemError('torch was loaded, which takes seconds')")
    end = fit(tmp_path, "accelerator.tpu_cores=1")
    assert end.code == 2, end.err
    assert "Traceback" not in end.err
    assert "accelerator.tpu_cores" in end.err
    assert "torch-xla" in end.err
    assert "pip install '.[tpu]' -c constraints-tpu.txt" in end.err
    assert end.out == ""
    assert runs_in(tmp_path) == []
