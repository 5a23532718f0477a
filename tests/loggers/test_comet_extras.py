from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lightkit.errors import ConfigError, LightkitError
from lightkit.loggers import Comet, WandB


@pytest.mark.parametrize(
    ("logger", "module", "extra"), [(Comet, "comet_ml", "comet"), (WandB, "wandb", "wandb")]
)
def test_without_the_extra_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, logger: type[Comet | WandB], module: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    with pytest.raises(ConfigError, match=rf"pip install 'lightkit-train\[{extra}\]'"):
        logger()


def test_without_an_api_key_wandb_says_what_to_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("wandb", reason="needs the extra wandb")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(LightkitError, match="WANDB_API_KEY"):
        _ = WandB(save_dir=str(tmp_path)).experiment
