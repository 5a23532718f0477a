"""Models that configs name: an image classifier, a small regressor, one of tables; a schedule with a warm-up."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lightkit.models.classifier import ImageClassifier
from lightkit.models.regressor import Regressor
from lightkit.models.schedules import WarmupCosineLR

if TYPE_CHECKING:
    from lightkit.models.tabular import TabularModel

__all__ = ["ImageClassifier", "Regressor", "TabularModel", "WarmupCosineLR"]

if not TYPE_CHECKING:  # or every misspelt name would have a type

    def __getattr__(name: str) -> Any:
        """Import the model of tables: it loads pyarrow, which no other needs."""
        if name != "TabularModel":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = import_module(f"{__name__}.tabular").TabularModel
        globals()[name] = value
        return value
