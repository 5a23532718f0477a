"""The trained module as MLflow's model format: seen at its first batch, saved to a folder at the end."""

from __future__ import annotations

import copy
import logging
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn

__all__ = ["FirstBatch", "save_model"]

# Named rather than inferred: MLflow's inference loads the model in a second Python, which takes about 8 s.
_PACKAGES = ("pytorch-lightning", "torchvision", "torchmetrics", "timm", "numpy", "lightkit")

_HPARAMS = ("_hparams", "_hparams_initial")  # where Lightning 2.6 keeps them


class FirstBatch:
    """Remember one sample of the first tensor that goes through ``module``, and what came out.

    Args:
        module: Watched from now on, until a call with one tensor that returned one.
    """

    def __init__(self, module: nn.Module) -> None:
        self.seen: tuple[Tensor, Tensor] | None = None
        self._handle = module.register_forward_hook(self._look)

    def _look(self, _module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]
            return  # TensorBoard draws the graph; what is done here would stand in it
        if len(inputs) == 1 and isinstance(inputs[0], Tensor) and isinstance(output, Tensor) and output.ndim:
            self.seen = inputs[0][:1].detach().cpu().clone(), output[:1].detach().cpu().clone()
            self.forget()

    def forget(self) -> None:
        """Stop watching."""
        self._handle.remove()


def save_model(
    module: LightningModule, folder: Path, *, first_batch: FirstBatch, mask: Callable[[Any], Any] | None = None
) -> None:
    """Write ``module`` in MLflow's format, on the CPU, as ``mlflow.pytorch.load_model`` reads it.

    Pickled, as autolog does: MLflow's other format, pt2, records one traced path and fails for many modules.

    Args:
        module: Has its own hyper-parameters again when this returns.
        folder: Replaced.
        first_batch: What the signature is made from.
        mask: Gives hyper-parameters back without their secrets; those are what is written.
    """
    import mlflow.pytorch  # mlflow takes 2 s to import
    from mlflow.models import infer_signature

    first_batch.forget()
    signature = None
    if first_batch.seen is not None:
        example, output = first_batch.seen
        signature = infer_signature(example.float().numpy(), output.float().numpy())
    shutil.rmtree(folder, ignore_errors=True)
    warned = logging.getLogger("mlflow.pytorch")
    level = warned.level
    warned.setLevel(logging.ERROR)  # a paragraph about pickle, which is said in this docstring
    try:
        with torch.no_grad(), _masked(module, mask):
            mlflow.pytorch.save_model(
                module if module.device.type == "cpu" else copy.deepcopy(module).cpu(),
                str(folder),
                signature=signature,
                pip_requirements=_requirements(),
                serialization_format="pickle",
            )
    finally:
        warned.setLevel(level)


@contextmanager
def _masked(module: nn.Module, mask: Callable[[Any], Any] | None) -> Iterator[None]:
    """Within it the hyper-parameters of ``module`` and of all modules in it are masked."""
    own: list[tuple[dict[str, Any], str, Any]] = []
    for part in module.modules() if mask else ():
        attributes = vars(part)
        own += [(attributes, name, attributes[name]) for name in _HPARAMS if name in attributes]
    try:
        for attributes, name, value in own:
            assert mask is not None
            masked = mask(dict(value))
            attributes[name] = type(value)(masked) if isinstance(value, dict) else masked
        yield
    finally:
        for attributes, name, value in own:
            attributes[name] = value


def _requirements() -> list[str]:
    from mlflow.pytorch import get_default_pip_requirements  # mlflow takes 2 s to import

    used = [name for name in _PACKAGES if name.replace("-", "_") in sys.modules]
    defaults: list[str] = get_default_pip_requirements()  # type: ignore[no-untyped-call]
    return [*defaults, *(f"{name}=={version(name)}" for name in used)]
