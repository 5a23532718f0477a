"""Data modules, and the sampler and loaders to build one's own that resumes within an epoch."""

from lightkit.data.image_folder import ImageFolder
from lightkit.data.loaders import Transformed, eval_loader, predict_loader, train_loader
from lightkit.data.sampling import ResumableSampler, SampleKey, sample_randomness

__all__ = [
    "ImageFolder",
    "ResumableSampler",
    "SampleKey",
    "Transformed",
    "eval_loader",
    "predict_loader",
    "sample_randomness",
    "train_loader",
]
