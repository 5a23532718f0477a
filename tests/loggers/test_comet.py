from __future__ import annotations

import importlib.util

import pytest

from lightkit import runs
from lightkit.errors import ConfigError
from lightkit.loggers import Comet


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, run: runs.Run) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "comet_ml" else find_spec(name))
    with pytest.raises(ConfigError, match=r"pip install 'lightkit\[comet\]'"):
        Comet(online=False)
