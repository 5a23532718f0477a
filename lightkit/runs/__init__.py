"""What a run leaves behind: its folder, lock, manifest, event stream, metrics, summary and whole checkpoints."""

from lightkit.runs.events import FIELDS, EventStream, read_events
from lightkit.runs.files import read_json, write_json, write_text
from lightkit.runs.folder import check_name, create, find, list_runs, newest_interrupted, open_run, point_latest
from lightkit.runs.integrity import digest, last_good, remove_leftovers, sidecar, verify, write_aside
from lightkit.runs.lock import Lock
from lightkit.runs.manifest import build_manifest, describe_git, describe_hardware, describe_packages
from lightkit.runs.metrics import MetricsTable
from lightkit.runs.run import Run, activate, current
from lightkit.runs.summary import STATUSES, Summary, relative
from lightkit.runs.warned import WarningWatch

__all__ = [
    "FIELDS",
    "STATUSES",
    "EventStream",
    "Lock",
    "MetricsTable",
    "Run",
    "Summary",
    "WarningWatch",
    "activate",
    "build_manifest",
    "check_name",
    "create",
    "current",
    "describe_git",
    "describe_hardware",
    "describe_packages",
    "digest",
    "find",
    "last_good",
    "list_runs",
    "newest_interrupted",
    "open_run",
    "point_latest",
    "read_events",
    "read_json",
    "relative",
    "remove_leftovers",
    "sidecar",
    "verify",
    "write_aside",
    "write_json",
    "write_text",
]
