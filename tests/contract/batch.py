"""Many commands in forks of one process: see `batch_runner.py` for what that can show."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.contract.workspace import Result, Workspace

RUNNER = Path(__file__).with_name("batch_runner.py")
HEAVY = (
    "torch",
    "pytorch_lightning",
    "lightning_fabric",
    "torchvision",
    "torchmetrics",
    "mlflow",
    "jsonargparse",
)
"""What a command that answers at once does not load; in a cold batch, a command that imports one
ends with 99."""


@dataclass(frozen=True)
class Command:
    """A command of a batch.

    Args:
        words: Words after `lightkit`.
        folder: Working directory, if not that of the workspace.
        environ: Changes to the environment; None unsets a variable.
        most_mb: Bound on its memory; beyond it, an allocation fails.
    """

    words: tuple[str, ...]
    folder: Path | None = None
    environ: Mapping[str, str | None] = field(default_factory=dict)
    most_mb: int | None = None


@dataclass(frozen=True)
class Answer(Result):
    """How a command of a batch ended, and the modules that it had loaded itself."""

    modules: frozenset[str]

    @property
    def third_party(self) -> set[str]:
        """Packages that neither Python nor lightkit comes with."""
        known = {*sys.stdlib_module_names, "lightkit", "__main__"}
        return {name for name in self.modules if "." not in name} - known


def run_batch(
    workspace: Workspace,
    commands: Mapping[str, Command],
    *,
    cold: bool = False,
    warm_up: tuple[str, ...] = (),
) -> dict[str, Answer]:
    """Run commands one after another, each in a fork of one process; give what each left, by name.

    Args:
        workspace: Whose folder and environment they have.
        commands: Commands by name.
        cold: Fork from a new Python process in place of one that has the heavy imports, and let
            commands have none.
        warm_up: Words of a command that the process runs before it forks, so that all share its
            imports.
    """
    listed: list[dict[str, Any]] = [
        {
            "words": command.words,
            "folder": str(command.folder or workspace.folder),
            "environ": workspace.environ(**command.environ),
            "at": str(workspace.home / f"batch-{number}"),
            "most_mb": command.most_mb,
            "refused": HEAVY if cold else (),
        }
        for number, command in enumerate(commands.values())
    ]
    file = workspace.home / "batch.json"
    file.write_text(json.dumps(listed), encoding="utf-8")
    run = workspace.run_cold if cold else workspace.run
    codes = json.loads(run(str(file), *warm_up, script=RUNNER, timeout_s=280).ok().out)
    return {
        name: Answer(code, *_left(Path(said["at"])))
        for name, code, said in zip(commands, codes, listed, strict=True)
    }


def _left(at: Path) -> tuple[str, str, frozenset[str]]:
    out, err = (
        at.with_suffix(ending).read_text(encoding="utf-8", errors="replace")
        for ending in (".out", ".err")
    )
    modules = at.with_suffix(".modules")  # not there if the process was ended
    return (
        out,
        err,
        frozenset(modules.read_text(encoding="utf-8").splitlines() if modules.exists() else ()),
    )
