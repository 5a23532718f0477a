"""Models that configs name: an image classifier on any backbone, and a small regressor."""

from lightkit.models.classifier import ImageClassifier
from lightkit.models.regressor import Regressor

__all__ = ["ImageClassifier", "Regressor"]
