"""What Lightning does in each training step for nothing, left out: hooks that nobody has, copies that change nothing.

All of it is for Lightning 2.6, whose step of a two-layer net is mostly this; a later version keeps its own ways until
somebody has looked at it again.
"""

from __future__ import annotations

from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.__version__ import version

__all__ = ["LeanSteps"]

_KNOWN = "2.6."


class LeanSteps(Callback):
    """Let a step pass over hooks that do nothing, and over copies of what stays as it is.

    For each hook of each callback Lightning makes a name, a context and a call, whether or not somebody has written
    it. Here those of callbacks and of the model that are Lightning's own empty ones are passed over, which is looked at
    each time; callbacks and the model themselves are not touched. What `log` has counted is moved to the device of the
    value each time, with copies of all that describes it; here only when it is elsewhere. What is logged for a bar is
    read from the device with each batch, which waits for it; here when somebody asks for it. A batch of tensors that
    are on the CPU already stays as it is where the trainer uses the CPU and nobody does anything with it on its way.

    Without a profiler no contexts are made for one either; with one, or where Lightning's own log tells of each hook,
    all hooks are called. Nothing else changes: which written hooks run, in which order, and what they see. Another
    Lightning than 2.6 keeps its own ways.
    """

    def __init__(self) -> None:
        self._lean: Any = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Let this trainer take the short ways."""
        if not version.startswith(_KNOWN):
            return
        from lightkit.callbacks.lean_lightning import Lean  # private names, which another Lightning may not have

        self._restore()
        self._lean = Lean(trainer)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Put everything back."""
        self._restore()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Put everything back."""
        self._restore()

    def __getstate__(self) -> dict[str, Any]:
        """A copy has changed nothing."""
        return {**self.__dict__, "_lean": None}

    def _restore(self) -> None:
        if self._lean is not None:
            self._lean.restore()
            self._lean = None
