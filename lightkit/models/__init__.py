"""Models that configs name: an image classifier, a small regressor, one of tables; a schedule with a warm-up."""

from lightkit.models.classifier import ImageClassifier
from lightkit.models.regressor import Regressor
from lightkit.models.schedules import WarmupCosineLR
from lightkit.models.tabular import TabularModel

__all__ = ["ImageClassifier", "Regressor", "TabularModel", "WarmupCosineLR"]
