"""Lightning callbacks that make a run resumable, recorded and watchable."""

from lightkit.callbacks.bad_images import BadImages
from lightkit.callbacks.checkpoint import Checkpoint
from lightkit.callbacks.checkpoint_io import DiskSpaceMonitor, VerifiedCheckpointIO, VerifiedXLACheckpointIO
from lightkit.callbacks.computation import Computation
from lightkit.callbacks.interruption import StopOnSignal
from lightkit.callbacks.last_block import last_block
from lightkit.callbacks.nonfinite import FiniteLoss
from lightkit.callbacks.notifiers import AppriseNotifier, SlackNotifier, WebhookNotifier
from lightkit.callbacks.prediction_recorder import PredictionRecorder
from lightkit.callbacks.predictions import PredictionTable
from lightkit.callbacks.progress import progress_for
from lightkit.callbacks.recorder import RunRecorder
from lightkit.callbacks.resume import ResumeState
from lightkit.callbacks.watchdog import StallWatch

__all__ = [
    "AppriseNotifier",
    "BadImages",
    "Checkpoint",
    "Computation",
    "DiskSpaceMonitor",
    "FiniteLoss",
    "PredictionRecorder",
    "PredictionTable",
    "ResumeState",
    "RunRecorder",
    "SlackNotifier",
    "StallWatch",
    "StopOnSignal",
    "VerifiedCheckpointIO",
    "VerifiedXLACheckpointIO",
    "WebhookNotifier",
    "last_block",
    "progress_for",
]
