"""No download that nobody asked for: libraries that would fetch weights or data are told that they cannot."""

from __future__ import annotations

import os
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn
from unittest.mock import patch

import torch

from lightkit.errors import DataError

__all__ = ["offline"]

_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


@contextmanager
def offline() -> Iterator[None]:
    """Refuse downloads by Python's own `urlopen`, which torch and torchvision use, and by Hugging Face's hub."""
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, _OFFLINE))
        stack.enter_context(patch.object(urllib.request, "urlopen", _refuse))
        stack.enter_context(patch.object(torch.hub, "urlopen", _refuse))
        if (hub := sys.modules.get("huggingface_hub.constants")) is not None:  # it has read the variable already
            stack.enter_context(patch.object(hub, "HF_HUB_OFFLINE", True))
        yield


def _refuse(url: Any, *_args: Any, **_kwargs: Any) -> NoReturn:
    """Raise in the place of a download.

    Raises:
        DataError: Always.
    """
    address = getattr(url, "full_url", url)
    raise DataError(
        f"{address} would be downloaded, which check --deep does not do. Fetch it first: data with `lightkit fetch` "
        f"and the same -c FILE, weights with a first fit or by hand."
    )
