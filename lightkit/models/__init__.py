"""Models that configs name: classifiers of images and texts, a small regressor, one of tables; a schedule of rates."""

from lightkit.models.classifier import ImageClassifier
from lightkit.models.regressor import Regressor
from lightkit.models.schedules import WarmupCosineLR
from lightkit.models.tabular import TabularModel
from lightkit.models.text_classifier import TextClassifier

__all__ = ["ImageClassifier", "Regressor", "TabularModel", "TextClassifier", "WarmupCosineLR"]
