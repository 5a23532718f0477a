"""Models of rows and of texts in MLflow.

Raw rows in, classes or values out, with the preparation of their training.

MLflow's own form of a model of PyTorch takes tensors. What a row becomes is known to lightkit
alone, so that such a model has two flavours: `pytorch` with the graph, and `python_function` with
this module as its loader, which prepares rows by the code of `lightkit predict`. The second needs
lightkit where it is loaded.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from lightkit.errors import DataError, LightkitError, join_names
from lightkit.export.formats import METADATA_FILE, Runner, wrap_module
from lightkit.export.metadata import Metadata, is_recorded
from lightkit.hardware.packages import describe_packages
from lightkit.prediction.rows import run_rows
from lightkit.prediction.table import PredictionColumns
from lightkit.rows.frame import read_frame
from lightkit.rows.preprocessing import Array, RowPreprocessing
from lightkit.version import __version__

if TYPE_CHECKING:
    import pandas as pd
    from mlflow.models import ModelSignature

GRAPH = "model.pt2"
PROGRAM = "model.pth"
_PACKAGES = ("torch", "numpy", "pyarrow")
_TOKENS = ("tokenizers",)
_NUM_SHOWN = 5  # cells in an error


def write_row_model(metadata: Metadata, tensors: Path, folder: Path) -> None:
    """Write a model that takes raw rows from one that takes tensors.

    Args:
        metadata: Of the model, with its `row_preprocessing`.
        tensors: Folder of the model in MLflow's PyTorch flavour.
        folder: The new folder.
    """
    import mlflow.pyfunc  # 2 s
    from mlflow.models import Model

    preprocessing = metadata.row_preprocessing
    assert preprocessing is not None
    model = Model.load(str(tensors))
    own = dict(model.flavors["pytorch"])
    data = tensors / str(own["model_data"])
    (data / METADATA_FILE).write_text(metadata.dumps(), encoding="utf-8")
    model.flavors = {}
    model.saved_input_example_info = None  # type: ignore[assignment]  # as it was
    # where the next call puts it
    model.add_flavor("pytorch", **{**own, "model_data": f"data/{data.name}"})
    mlflow.pyfunc.save_model(
        str(folder),
        loader_module=__name__,
        data_path=str(data),
        mlflow_model=model,
        signature=_make_signature(preprocessing, metadata),
        input_example=preprocessing.make_example().to_pandas(),
        pip_requirements=_list_requirements(preprocessing),
    )


def _list_requirements(preprocessing: RowPreprocessing) -> list[str]:
    """List the packages that the model needs, each with its version here."""
    packages = describe_packages(
        (*_PACKAGES, *(_TOKENS if "tokenizer.json" in preprocessing.list_files() else ()))
    )
    plain = [f"{name}=={version.partition('+')[0]}" for name, version in packages.items()]
    return [f"lightkit-train=={__version__}", *plain]


def _make_signature(preprocessing: RowPreprocessing, metadata: Metadata) -> ModelSignature:
    """Make MLflow's signature, in the columns of the table.

    A column of a table may have cells of any type: MLflow's ``double`` refuses whole numbers of 64
    bits, and its ``string`` refuses a column of numbers, though pandas reads both from the table of
    the training.
    """
    from mlflow.models import ModelSignature  # 2 s
    from mlflow.types.schema import AnyType, ColSpec, Schema, TensorSpec

    any_type = AnyType()  # type: ignore[no-untyped-call]
    inputs: list[ColSpec | TensorSpec] = [
        ColSpec("string" if kind == "text" else any_type, name)
        for name, kind in preprocessing.columns.items()
    ]
    outputs: list[ColSpec | TensorSpec] = [
        ColSpec("string" if is_text else "double", name)
        for name, is_text in _name_answers(metadata).items()
    ]
    return ModelSignature(Schema(inputs), Schema(outputs))


def _choose_names(metadata: Metadata) -> tuple[str, ...] | None:
    return metadata.task.choose_names(metadata.outputs[0].shape, metadata.class_names)


def _make_columns(metadata: Metadata) -> PredictionColumns:
    num_values = math.prod(size or 1 for size in metadata.outputs[0].shape[1:])
    return PredictionColumns(_choose_names(metadata), 1, num_values, task=metadata.task)


def _name_answers(metadata: Metadata) -> dict[str, bool]:
    """Return the columns of an answer, and whether each is of texts.

    They are those of `lightkit predict` with the likeliest class, and the probability of each
    class.
    """
    columns = _make_columns(metadata)
    found = {name: name in ("label", "labels") for name in columns.names[1:-1]}
    names = _choose_names(metadata)
    if metadata.task.has_classes and names is not None:
        found |= dict.fromkeys((f"probability_{name}" for name in names), False)
    return found


def describe_interface(metadata: Metadata) -> tuple[str, str]:
    """Describe in a line each the columns that a model of rows takes, and those of its answers."""
    preprocessing = metadata.row_preprocessing
    assert preprocessing is not None
    taken = [f"{name} ({kind})" for name, kind in preprocessing.columns.items()]
    return join_names(taken, most=12), join_names(list(_name_answers(metadata)), most=12)


def load_program(data: Path) -> nn.Module | None:
    """Load a graph or program that lightkit wrote into a folder, in eval mode, on the CPU.

    Returns:
        The module. None if there is neither TorchScript nor a graph with the digest that
        `lightkit register` wrote next to it: loading anything else may run code that is in it.
    """
    graph = data / GRAPH
    if graph.exists():
        return (
            torch.export.load(graph).module(check_guards=False)
            if is_recorded(graph, data)
            else None
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch 2.15: "torch.jit.load is deprecated"
        program: nn.Module = torch.jit.load(data / PROGRAM, map_location="cpu")  # type: ignore[no-untyped-call]
    return program.eval()


def _load_pyfunc(path: str) -> RowModel:
    """Load the model, as MLflow calls it.

    Raises:
        DataError: If the file of the graph is not the one that was written.
    """
    data = Path(path)
    metadata = Metadata.from_dict(json.loads((data / METADATA_FILE).read_text(encoding="utf-8")))
    program = load_program(data)
    if program is None:
        raise DataError(
            f"{data / GRAPH}: this is not the graph that lightkit register"
            " wrote. Register the run again."
        )
    return RowModel(wrap_module(program), metadata, data)


class RowModel:
    """A model that takes raw rows.

    Args:
        run: The graph.
        metadata: Of it.
        folder: Of its files, for errors.
    """

    def __init__(self, run: Runner, metadata: Metadata, folder: Path) -> None:
        preprocessing = metadata.row_preprocessing
        assert preprocessing is not None
        self._run = run
        self._metadata = metadata
        self._preprocessing = preprocessing
        self._folder = folder
        self._columns = _make_columns(metadata)

    def predict(
        self, model_input: pd.DataFrame, params: Mapping[str, Any] | None = None
    ) -> pd.DataFrame:
        """Predict rows.

        Args:
            model_input: Columns of the table that the model was trained on, without the target;
                others are ignored.
            params: Of MLflow; the model has none.

        Returns:
            A row for each, with the same index: ``label``, ``probability`` and the probability of
            each class as ``probability_NAME``; of labels that are independent of each other
            ``probability_NAME``, after ``labels`` where thresholds say which are predicted;
            ``prediction_0`` of values, in the units of the target.

        Raises:
            MlflowException: If a column is not there, or a cell has no value of its column's type;
                with its row.
        """
        from mlflow.exceptions import MlflowException  # 2 s, but for MLflow, which calls this

        try:
            return self._predict(model_input)
        except LightkitError as error:
            raise MlflowException.invalid_parameter_value(str(error)) from error

    def _predict(self, frame: pd.DataFrame) -> pd.DataFrame:
        import pandas as pd  # here: a package of MLflow's, which other commands need not load

        if not isinstance(frame, pd.DataFrame):
            raise DataError(
                f"expected a DataFrame with the columns of the table, got {type(frame).__name__}."
            )
        rows, defects = self._preprocessing.read(
            read_frame(frame, list(self._preprocessing.columns))
        )
        if defects:
            shown = [f"row {each.row} (from 0): {each.reason}" for each in defects[:_NUM_SHOWN]]
            more = f"; and {len(defects) - _NUM_SHOWN} more" if len(defects) > _NUM_SHOWN else ""
            raise DataError(f"{'; '.join(shown)}{more}. Correct them, or leave the rows out.")
        size = self._preprocessing.batch_rows
        parts = []
        for first in range(0, rows.num_rows, size):
            inputs = self._preprocessing.encode(rows.slice(first, size))
            values = run_rows(self._run, self._metadata, inputs, file=self._folder)
            parts.append(self._list_answers(values, first))
        names = list(_name_answers(self._metadata))
        answers = [row for part in parts for row in part]
        return pd.DataFrame(answers, columns=names, index=frame.index)

    def _list_answers(self, values: Array, first: int) -> list[list[Any]]:
        """List the cells of the answers to a batch.

        Raises:
            DataError: If an output is no probability, though it is declared to be.
        """
        columns = self._columns
        found = []
        for at, row in enumerate(values, first):
            if defect := columns.find_defect(row):
                raise DataError(f"row {at} (from 0): {defect}")
            if columns.class_names is None:
                found.append(list(map(float, row)))
                continue
            clipped = row.clip(0, 1)
            cells = columns.task.form.list_cells(clipped, columns.class_names, top_k=1)
            if columns.task.has_classes:
                cells = [*cells, *clipped]
            found.append([float(cell) if isinstance(cell, np.floating) else cell for cell in cells])
        return found
