"""Lightning callbacks that make a run resumable, recorded and watchable."""

from lightkit.callbacks.checkpoint import Checkpoint
from lightkit.callbacks.checkpoint_io import VerifiedCheckpointIO, VerifiedXLACheckpointIO
from lightkit.callbacks.interruption import StopOnSignal
from lightkit.callbacks.predictions import PredictionTable
from lightkit.callbacks.progress import last_block, progress_for
from lightkit.callbacks.recorder import RunRecorder
from lightkit.callbacks.resume import ResumeState
from lightkit.callbacks.watching import StallWatch

__all__ = [
    "Checkpoint",
    "PredictionTable",
    "ResumeState",
    "RunRecorder",
    "StallWatch",
    "StopOnSignal",
    "VerifiedCheckpointIO",
    "VerifiedXLACheckpointIO",
    "last_block",
    "progress_for",
]
