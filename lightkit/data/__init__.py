"""Data modules, and the sampler and loaders to build one's own that resumes within an epoch."""

from lightkit.data.drawn import DrawnFlowers
from lightkit.data.fashion_mnist import FashionMNIST
from lightkit.data.flowers import Flowers
from lightkit.data.image_folder import ImageFolder
from lightkit.data.loaders import Transformed, eval_loader, predict_loader, train_loader
from lightkit.data.sampling import ResumableSampler, SampleKey, sample_randomness
from lightkit.data.temperatures import TemperatureDataset, Temperatures

__all__ = [
    "DrawnFlowers",
    "FashionMNIST",
    "Flowers",
    "ImageFolder",
    "ResumableSampler",
    "SampleKey",
    "TemperatureDataset",
    "Temperatures",
    "Transformed",
    "eval_loader",
    "predict_loader",
    "sample_randomness",
    "train_loader",
]
