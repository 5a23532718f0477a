"""Train PyTorch Lightning models from layered YAML files.

Importing this package loads neither torch nor Lightning; `lightkit.models`, `lightkit.data`, `lightkit.loggers` and
`lightkit.callbacks` do.
"""

__version__ = "0.1.0"
