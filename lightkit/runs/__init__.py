"""What a run leaves behind: its folder, lock, manifest, event stream, metrics, summary and whole checkpoints."""

from lightkit.runs.events import FIELDS, EventStream, read_events
from lightkit.runs.integrity import digest, last_good, remove_leftovers, sidecar, verify, write_aside
from lightkit.runs.run import Run, activate, current

__all__ = [
    "FIELDS",
    "EventStream",
    "Run",
    "activate",
    "current",
    "digest",
    "last_good",
    "read_events",
    "remove_leftovers",
    "sidecar",
    "verify",
    "write_aside",
]
