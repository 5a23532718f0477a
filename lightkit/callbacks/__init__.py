"""Lightning callbacks that make a run resumable, recorded and watchable."""

from lightkit.callbacks.checkpoint import Checkpoint
from lightkit.callbacks.checkpoint_io import VerifiedCheckpointIO
from lightkit.callbacks.interruption import StopOnSignal
from lightkit.callbacks.predictions import PredictionTable
from lightkit.callbacks.progress import last_block, progress_for
from lightkit.callbacks.recorder import RunRecorder
from lightkit.callbacks.resume import ResumeState

__all__ = [
    "Checkpoint",
    "PredictionTable",
    "ResumeState",
    "RunRecorder",
    "StopOnSignal",
    "VerifiedCheckpointIO",
    "last_block",
    "progress_for",
]
