"""`lightkit fit --help`, on one screen, and what goes deeper: a section, a key, a class, an entry, everything.

Apart, because the screen loads neither torch nor what reads configs: a question for help is answered at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from lightkit.cli.help.screen import screen
from lightkit.runs.signals import SignalWatch

__all__ = ["show_help"]


def show_help(command: str, does: str, topics: Sequence[str], watch: SignalWatch) -> int:
    """Print the help of a stage, or of one topic in it, and return the exit code.

    Args:
        command: The stage.
        does: What it does.
        topics: What stands after `--help`.
        watch: Handler of SIGINT and SIGTERM.

    Raises:
        ConfigError: If there is no such topic.
    """
    if not topics:
        print(screen(command, does), end="")
        return 0
    if list(topics) == ["all"]:
        from lightkit.cli.stages import run  # here, because it loads torch and Lightning

        return run(command, ["--help"], watch)
    from lightkit.cli.help.topics import topic_text  # here, because it loads what reads configs, and the catalogue

    print(topic_text(command, topics), end="")
    return 0
