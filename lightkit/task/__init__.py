"""The task of a model.

What its outputs are, and how predictions, metrics, reports, gates and exports treat them.

`Task` is what a model has as its attribute ``task``. Each task is one module here, with the form of
its predictions; ``docs/add-a-task.md`` has a complete example. No torch: a report and the
prediction by an exported file ask it too.
"""

from lightkit.task.arrays import TOLERANCE, Array, as_floats, find_improbable, sigmoid
from lightkit.task.classification import CLASSIFICATION, ClassForm
from lightkit.task.interface import (
    Activation,
    Measure,
    OutputKind,
    PredictionForm,
    Recorded,
    ReportBlock,
    Task,
)
from lightkit.task.lookup import (
    UNDECLARED,
    find_class_names,
    list_main_metrics,
    task_of,
    task_of_kind,
    task_of_record,
)
from lightkit.task.multilabel import MULTILABEL, LabelForm
from lightkit.task.regression import REGRESSION, ValueForm
from lightkit.task.segmentation import SEGMENTATION, MaskForm

__all__ = [
    "CLASSIFICATION",
    "MULTILABEL",
    "REGRESSION",
    "SEGMENTATION",
    "TOLERANCE",
    "UNDECLARED",
    "Activation",
    "Array",
    "ClassForm",
    "LabelForm",
    "MaskForm",
    "Measure",
    "OutputKind",
    "PredictionForm",
    "Recorded",
    "ReportBlock",
    "Task",
    "ValueForm",
    "as_floats",
    "find_class_names",
    "find_improbable",
    "list_main_metrics",
    "sigmoid",
    "task_of",
    "task_of_kind",
    "task_of_record",
]
