"""A table of quick commands, each in a folder of its own, run once a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.contract import batch as batches
from tests.contract.conftest import Once
from tests.contract.examples import MY_PROJECT
from tests.contract.workspace import Result, Workspace


@dataclass(frozen=True)
class Command:
    """A command, and the files that it finds.

    Args:
        words: Arguments of `lightkit`.
        files: Contents by name, relative to the command's working directory.
        environ: Variables that are set.
        is_light: It imports none of the heavy packages, and runs where that would end it: in a
            third of the time.
    """

    words: Sequence[str]
    files: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    is_light: bool = False


@dataclass(frozen=True)
class Ended:
    """How a command ended, and its working directory.

    Args:
        result: Exit code, standard output and error.
        folder: Where it ran.
    """

    result: Result
    folder: Path


def run_commands(
    name: str, commands: Mapping[str, Command], made_once: Once, *, import_path: Path | None = None
) -> dict[str, Ended]:
    """Run all commands one after the other, each in a folder of its own with `my_project.py`.

    They are a batch (see `batch_runner.py`), or processes of their own where they import from a
    folder.

    Args:
        name: Name of this table in the session.
        commands: What to run, by any names.
        made_once: The fixture of that name.
        import_path: A folder from which they can import.
    """
    shared = made_once(
        name, lambda workspace: _run_all(workspace, list(commands.values()), import_path)
    )
    ended = {}
    for number, command in enumerate(commands):
        code, out, err = (
            (shared / f"{number}.{kind}").read_text(encoding="utf-8", errors="replace")
            for kind in ("code", "out", "err")
        )
        ended[command] = Ended(Result(int(code), out, err), shared / str(number))
    return ended


def _run_all(workspace: Workspace, commands: Sequence[Command], import_path: Path | None) -> None:
    folders = [workspace.folder / str(number) for number in range(len(commands))]
    for folder, command in zip(folders, commands, strict=True):
        for file, text in {"my_project.py": MY_PROJECT, **command.files}.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(text.encode("utf-8", "surrogateescape"))
    results: dict[str, Result] = {}
    if import_path is None:
        workspace.write("wrong.yaml", "model: Regressor\ntrainer: {max_epochs: ten}\n")
        warm_up = ("check", "-c", str(workspace.folder / "wrong.yaml"))
        for is_light in (True, False):
            batch = {
                str(number): batches.Command(
                    tuple(command.words), folders[number], {"PYTHONPATH": None, **command.environ}
                )
                for number, command in enumerate(commands)
                if command.is_light == is_light
            }
            if batch:
                results |= batches.run_batch(workspace, batch, cold=is_light, warm_up=warm_up)
    else:
        environ = {"PYTHONPATH": str(import_path)}
        for number, command in enumerate(commands):
            results[str(number)] = workspace.run(
                *command.words, folder=folders[number], environ={**environ, **command.environ}
            )
    for name, result in results.items():
        for kind, text in (("code", str(result.code)), ("out", result.out), ("err", result.err)):
            (workspace.folder / f"{name}.{kind}").write_text(text, encoding="utf-8")
