"""Imports of the fork server of `lightkit retrain`, once for all of its stages.

Nothing else imports this module.
"""

from __future__ import annotations

from contextlib import suppress

from lightkit.cli.heap import freeze, freezing_imports

with freezing_imports():
    from lightkit.cli import gate_evaluation, model_export, preload, registration  # noqa: F401

    with suppress(ImportError):
        import mlflow.pytorch  # noqa: F401

# not onnxruntime: a fork waits forever for its threads
freeze()
