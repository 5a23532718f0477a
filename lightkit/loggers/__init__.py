"""Where a run is recorded: TensorBoard, CSV, MLflow, Comet and W&B.

Each with a place in the run's folder by default.

Beside Lightning's own methods a logger may have these. The command line, models and callbacks call
each on every logger that has it, on every rank; only rank zero records.

=================================  ===================  ============================================
method                             when                 what
=================================  ===================  ============================================
add_picture(name, image, step)     any time             uint8 ``(3, height, width)``
log_manifest(manifest)             once it is written   ``git: {commit, dirty}``,
                                                        ``data: {fingerprint, source}``
record_fit_start(trainer, module)  on_fit_start         optimizer, early stopping, summary, first
                                                        batch
record_fit_end(trainer, module)    on_fit_end           how early stopping ended, checkpoint, model
record_result(is_of_other_run)     on_validation_end,   whether an evaluation is of other weights,
                                   on_test_end          data or settings than its run
=================================  ===================  ============================================

``view_command`` is the words to type to look at what was recorded, shown when a run ends; None
where there are none. A logger with ``log_changed`` gets the values that flags and variables changed
in the place of the whole config. A logger that can fall behind has ``unsent``, the number of
records that have not arrived, final after ``finalize``. Messages go to the standard logger
``lightkit.loggers``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightkit.loggers.comet import Comet
    from lightkit.loggers.csv_file import CSV
    from lightkit.loggers.mlflow import MLflow
    from lightkit.loggers.tensorboard import TensorBoard
    from lightkit.loggers.wandb import WandB

__all__ = ["CSV", "Comet", "MLflow", "TensorBoard", "WandB"]

_MODULES = {
    "CSV": "csv_file",
    "Comet": "comet",
    "MLflow": "mlflow",
    "TensorBoard": "tensorboard",
    "WandB": "wandb",
}

if not TYPE_CHECKING:  # or every misspelt name would have a type

    def __getattr__(name: str) -> Any:
        """Import the module that has a logger: who only asks where MLflow is needs no torch."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = value
        return value
