"""Models that configs name: of images, masks, texts and tables, a small regressor.

A schedule of rates.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lightkit.models.classifier import ImageClassifier
from lightkit.models.regressor import Regressor
from lightkit.models.schedules import WarmupCosineLR
from lightkit.models.segmenter import Segmenter

if TYPE_CHECKING:
    from lightkit.models.tabular import TabularModel
    from lightkit.models.text_classifier import TextClassifier

__all__ = [
    "ImageClassifier",
    "Regressor",
    "Segmenter",
    "TabularModel",
    "TextClassifier",
    "WarmupCosineLR",
]

_OF_ROWS = {"TabularModel": "tabular", "TextClassifier": "text_classifier"}

if not TYPE_CHECKING:  # or every misspelt name would have a type

    def __getattr__(name: str) -> Any:
        """Import a model of rows: it loads pyarrow, which no other needs."""
        if name not in _OF_ROWS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_OF_ROWS[name]}"), name)
        globals()[name] = value
        return value
