"""Run many `lightkit` commands, each in a fork of this process, which has imported next to nothing.

Started cold, it shows which modules each command loads; started by the fork server, it runs each
command for less than a start of its own costs, for a fork ends here without taking the interpreter
down. What depends on how a process ends is for `Workspace.run`.

Its arguments are a JSON file with a list of commands, and the words of a command that this process
runs itself before it forks, if any, so that the imports of all are paid once. A command has
`words`, `folder`, `environ`, `at` (the path without ending of the files that it leaves: `.out`,
`.err`, `.modules`), `most_mb` and `refused`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import sys
from pathlib import Path
from typing import Any, NoReturn

MOST_CPU_S = 60
"""Ends a command that does not end, which gives the code -24."""
BEFORE = frozenset(sys.modules)
"""What Python, its site packages and this script have loaded."""
IMPORTED = 99
"""Exit code of a command that imports what it must not."""


class _Refusal:
    """Ends the process when it imports one of these modules."""

    def __init__(self, names: list[str]) -> None:
        self._names = names

    def find_spec(self, name: str, *_: object) -> None:
        if name in self._names:
            print(f"{name} is imported", file=sys.stderr, flush=True)
            os._exit(IMPORTED)


def main() -> None:
    """Run the commands one after another and print a JSON list of their exit codes."""
    commands: list[dict[str, Any]] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.path[0] = str(Path(sys.executable).parent)  # that of the installed script
    sys.dont_write_bytecode = True
    if sys.argv[2:]:
        _warm_up(sys.argv[2:])
    codes = []
    for command in commands:
        pid = os.fork()
        if pid == 0:
            _become_command(**command)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    print(json.dumps(codes))


def _warm_up(words: list[str]) -> None:
    from lightkit.main import main as run  # here, since cold commands are to load it themselves

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        run(words)


def _become_command(
    words: list[str],
    folder: str,
    environ: dict[str, str],
    at: str,
    most_mb: int | None,
    refused: list[str],
) -> NoReturn:
    for ending, number in ((".out", 1), (".err", 2)):
        file = os.open(at + ending, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    sys.argv[:] = ["lightkit", *words]
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_S, MOST_CPU_S))
    sys.meta_path.insert(0, _Refusal(refused))
    if most_mb:
        resource.setrlimit(resource.RLIMIT_DATA, (most_mb << 20, most_mb << 20))
    code: Any = 1
    try:
        from lightkit.main import main as run  # in the fork, so that what it loads counts

        code = run()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 (told as Python tells what nobody has caught)
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        Path(at + ".modules").write_text("\n".join(sys.modules.keys() - BEFORE), encoding="utf-8")
        os._exit(code or 0)


if __name__ == "__main__":
    main()
