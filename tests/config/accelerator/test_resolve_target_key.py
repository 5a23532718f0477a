"""Where the data, the optimizer or the model takes a number of the block `accelerator`."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.config import resolve, resolve_hardware
from lightkit.config.overrides import Flag
from lightkit.errors import ConfigError

OWN = """
class Base: ...


class Rate(Base):
    def __init__(self, lr: float = 0.1) -> None: ...


class Both(Base):
    def __init__(self, lr: float = 0.1, learning_rate: float = 0.2) -> None: ...


class Neither(Base):
    def __init__(self, depth: int = 1) -> None: ...


class Anything(Base):
    def __init__(self, **arguments: float) -> None: ...
"""


@pytest.fixture
def own_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_rates.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)


def model_of(name: str, *, value: str = "0.5", said: str = "") -> dict[str, float]:
    """Give the model's arguments under a config with a learning rate in the block."""
    flag = Flag("accelerator.learning_rate", value, f"--accelerator.learning_rate={value}")
    below = {
        "LIGHTKIT_MODEL": f"own_rates.{name}",
        **({f"LIGHTKIT_MODEL__{said.upper()}": "0.3"} if said else {}),
    }
    resolved = resolve(flags=[flag], environ=below)
    return dict(
        resolve_hardware(resolved, None, environ={}).resolved.values["model"].get("init_args", {})
    )


@pytest.mark.usefixtures("own_models")
@pytest.mark.parametrize(
    ("name", "said", "becomes"),
    [
        ("Rate", "", {"lr": 0.5}),
        ("Both", "", {"learning_rate": 0.5}),
        ("Both", "lr", {"lr": 0.5}),
        ("Anything", "", {"learning_rate": 0.5}),
        ("Unread", "", {"learning_rate": 0.5}),
    ],
)
def test_the_models_signature_says_what_it_calls_its_learning_rate(
    name: str, said: str, becomes: dict[str, float]
) -> None:
    assert model_of(name, said=said) == becomes


@pytest.mark.usefixtures("own_models")
def test_a_model_without_a_learning_rate_is_reported() -> None:
    with pytest.raises(
        ConfigError, match=r"Neither has no argument learning_rate or lr, so that nothing takes it"
    ):
        model_of("Neither", value="0.5")


def test_a_class_that_is_fixed_in_python_takes_it_directly() -> None:
    flags = [Flag("accelerator.batch_size", "8", "--accelerator.batch_size=8")]
    resolved = resolve(flags=flags, environ={}, class_sections=("optimizer", "lr_scheduler"))
    assert resolve_hardware(resolved, None, environ={}).resolved.values["data"] == {"batch_size": 8}
