"""What Ray needs, before anything is started."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from lightkit.errors import ConfigError
from lightkit.launch import ray

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")


def test_a_missing_ray_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install 'lightkit\[ray\]'"):
        ray.check_installed()


@needs_ray
def test_the_package_lightning_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lightning.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="pip uninstall lightning"):
        ray.check_installed()
