"""Models that configs name: an image classifier on any backbone, and a small regressor; a schedule with a warm-up."""

from lightkit.models.classifier import ImageClassifier
from lightkit.models.regressor import Regressor
from lightkit.models.schedules import WarmupCosineLR

__all__ = ["ImageClassifier", "Regressor", "WarmupCosineLR"]
