"""Data modules, and the parts to build one's own from that resumes within an epoch.

A data module of one's own resumes exactly, also in the middle of an epoch, with this loader and
this dataset::

    def train_dataloader(self):
        return train_loader(self.dataset, batch_size=32, seed=0, trainer=self.trainer)

    # and in the dataset, which train_loader gives a SampleKey in place of an index:
    def __getitem__(self, key):
        with sample_randomness(seed, key):  # whatever is drawn here comes from (seed, epoch, index)
            return self.augment(self.images[key.index]), self.labels[key.index]

`Transformed` is such a dataset. Whatever else it draws random numbers from, it must not be a state
that lives from sample to sample. Data modules with loaders of another kind resume at the start of
the last epoch.

A data module or a model may say what its arguments can be, and has that checked before anything is
built; ``lightkit check`` shows a wrong one with its line. ``input_folders = ("root",)`` names
arguments that are folders which exist, ``input_files`` files, ``input_paths`` either,
``input_tables`` tables (Delta or Parquet), ``class_folders`` those of the folders that hold images
in one folder a class, or splits with such folders, and
``input_choices = {"kind": ("cube", "ball_*")}`` gives the values of an argument (``*`` stands for
any text; an argument that ``input_files`` names too may be a file instead).
``excluded_inputs = (("weight", "mixup", "augment"),)`` names pairs of arguments that exclude each
other, unless the third one is false. Files of a model are needed where training starts without a
checkpoint. Likewise a data module's class method ``check_installed()``, which raises a
`lightkit.errors.ConfigError` where a package that it needs is not there or of the wrong version, is
called before anything is built.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lightkit.data.fashion_mnist import FashionMNIST
from lightkit.data.flowers import DrawnBouquets, DrawnFlowers, DrawnMasks, Flowers
from lightkit.data.image_folder import ImageFolder
from lightkit.data.image_table import ImageTable
from lightkit.data.loader import Transformed, eval_loader, predict_loader, train_loader
from lightkit.data.mask_folder import MaskFolder
from lightkit.data.sampler import ResumableSampler, SampleKey, sample_randomness
from lightkit.data.temperatures import TemperatureDataset, Temperatures

if TYPE_CHECKING:
    from lightkit.data.table_data import TableData
    from lightkit.data.tables.module import Table
    from lightkit.data.tables.petastorm import PetastormTable
    from lightkit.data.text_data import TextData

__all__ = [
    "DrawnBouquets",
    "DrawnFlowers",
    "DrawnMasks",
    "FashionMNIST",
    "Flowers",
    "ImageFolder",
    "ImageTable",
    "MaskFolder",
    "PetastormTable",
    "ResumableSampler",
    "SampleKey",
    "Table",
    "TableData",
    "TemperatureDataset",
    "Temperatures",
    "TextData",
    "Transformed",
    "eval_loader",
    "predict_loader",
    "sample_randomness",
    "train_loader",
]

_TABLES = {
    "PetastormTable": "tables.petastorm",
    "Table": "tables.module",
    "TableData": "table_data",
    "TextData": "text_data",
}

if not TYPE_CHECKING:  # or every misspelt name would have a type

    def __getattr__(name: str) -> Any:
        """Import a data module for tables: it loads pyarrow, which no other needs."""
        if name not in _TABLES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_TABLES[name]}"), name)
        globals()[name] = value
        return value
