"""The model that a run is compared with: its own class and settings, on the other's data. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from lightkit.cli.full_validation import open_context
from lightkit.config import dump_yaml, read_file
from lightkit.config.interpolation import escaped
from lightkit.config.tree import plain
from lightkit.errors import ConfigError, LightkitError
from lightkit.registry.champion import Baseline
from lightkit.runs.signals import SignalWatch

if TYPE_CHECKING:
    from lightkit.cli.context import RunContext

__all__ = ["Opponent", "opponent_session"]

_SIZE = "image_size"


@dataclass(frozen=True)
class Opponent:
    """How another model is built.

    Args:
        session: Its session.
        prepares_differently: Whether it takes the same samples in another form, from data of its own.
        notices: What should be known of the comparison.
    """

    session: RunContext
    prepares_differently: bool
    notices: tuple[str, ...] = ()


def opponent_session(model: Baseline, judged: RunContext, *, trust: bool) -> Opponent:
    """Open a session with the config of a model, but with the data of the run that is judged.

    Images are resized as the model knows them: `image_size` is its own.

    Args:
        model: The model.
        judged: Session of the run that is judged.
        trust: Whether its checkpoint may bring code along.

    Raises:
        ConfigError: If its config cannot be used here.
    """
    config = plain(read_file(model.config))
    data, size = _with_own_size(judged.resolved.values.get("data"), config.get("data"))
    own_class, its_class = _class_of(judged.resolved.values.get("data")), _class_of(config.get("data"))
    notices = (
        (f"{model.name} was trained on {its_class}, and gets its inputs as {own_class} prepares them",)
        if own_class != its_class
        else ()
    )
    record = {"seed_everything": 0, "model": config.get("model"), "data": _escaped(data)}
    with TemporaryDirectory(prefix="lightkit-opponent-") as place:  # which nobody else can read
        file = Path(place) / "config.yaml"
        file.write_text(dump_yaml(record), encoding="utf-8")
        words = ["-c", str(file), "--ckpt_path", str(model.checkpoint), *(["--trust"] if trust else [])]
        try:
            session = open_context("export", words, SignalWatch())
        except LightkitError as error:
            first = str(error).split("\n", 1)[0]
            raise ConfigError(
                f"gate.baseline: {model.name} cannot be built from its config: {first}. Name another with "
                f"--gate.baseline, or say --gate.baseline=null to judge by the thresholds alone."
            ) from error
    session.seat, session.mode = None, judged.mode
    return Opponent(session, size is not None, notices)


def _with_own_size(data: Any, other: Any) -> tuple[Any, Any]:
    """Give the judged run's data with the other's image size, and that size where it differs."""
    mine, its = _arguments(data), _arguments(other)
    if _SIZE not in mine or _SIZE not in its or str(mine[_SIZE]) == str(its[_SIZE]):
        return data, None
    return {**data, "init_args": {**mine, _SIZE: its[_SIZE]}}, its[_SIZE]


def _arguments(section: Any) -> Mapping[str, Any]:
    found = section.get("init_args") if isinstance(section, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _class_of(section: Any) -> str:
    named = section.get("class_path") if isinstance(section, Mapping) else section
    return str(named).rpartition(".")[2]


def _escaped(value: Any) -> Any:
    """Write values that are resolved already so that reading the file gives them back."""
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, Mapping):
        return {key: _escaped(child) for key, child in value.items()}
    return [_escaped(child) for child in value] if isinstance(value, list) else value
