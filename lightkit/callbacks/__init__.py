"""Lightning callbacks that make a run resumable, recorded and watchable."""

from lightkit.callbacks.checkpoint import Checkpoint
from lightkit.callbacks.checkpoint_io import VerifiedCheckpointIO, VerifiedXLACheckpointIO
from lightkit.callbacks.class_names import ClassNames
from lightkit.callbacks.computation import Computation
from lightkit.callbacks.ema import EMA
from lightkit.callbacks.interruption import StopOnSignal
from lightkit.callbacks.nonfinite import FiniteLoss
from lightkit.callbacks.notifiers import AppriseNotifier, SlackNotifier, WebhookNotifier
from lightkit.callbacks.predictions import PredictionTable
from lightkit.callbacks.progress import create_progress
from lightkit.callbacks.recorder import RunRecorder
from lightkit.callbacks.resume import ResumeState
from lightkit.callbacks.watchdog import StallWatch

__all__ = [
    "EMA",
    "AppriseNotifier",
    "Checkpoint",
    "ClassNames",
    "Computation",
    "FiniteLoss",
    "PredictionTable",
    "ResumeState",
    "RunRecorder",
    "SlackNotifier",
    "StallWatch",
    "StopOnSignal",
    "VerifiedCheckpointIO",
    "VerifiedXLACheckpointIO",
    "WebhookNotifier",
    "create_progress",
]
