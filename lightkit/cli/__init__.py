"""The command line: entry point, subcommands, help, and how errors look.

The only floor that knows LightningCLI. `lightkit --help` and `lightkit --version` load neither torch nor Lightning.
"""

from lightkit.cli.main import main

__all__ = ["main"]
