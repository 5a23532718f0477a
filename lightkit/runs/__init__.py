"""What a run leaves behind: its folder, lock, manifest, event stream, metrics, summary and whole checkpoints.

A name is imported when it is first asked for: the entry point needs the signals alone, before anything else.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightkit.runs.checkpoint_files import fault_of_checkpoint
    from lightkit.runs.events import FIELDS, EventStream, event_line, read_events
    from lightkit.runs.files import read_json, write_json, write_text
    from lightkit.runs.fingerprints import INPUTS, Inputs, changes_between, joined, read_inputs
    from lightkit.runs.folder import check_name, create, find, list_runs, newest_interrupted, open_run, point_latest
    from lightkit.runs.integrity import (
        PassedOver,
        choose_good,
        digest,
        forget_cached,
        keep,
        last_good,
        newest_written,
        remove_leftovers,
        sidecar,
        verify,
        write_aside,
    )
    from lightkit.runs.lock import Lock, lock_holder
    from lightkit.runs.manifest import build_manifest, describe_git, describe_hardware, describe_packages, git_output
    from lightkit.runs.metrics import MetricsTable
    from lightkit.runs.run import Run, activate, current
    from lightkit.runs.summary import STATUSES, Summary, relative
    from lightkit.runs.trust import allowance, classes_named, is_first_trusted, is_trusting, refusal, trusting
    from lightkit.runs.warned import WarningWatch

__all__ = [
    "FIELDS",
    "INPUTS",
    "STATUSES",
    "EventStream",
    "Inputs",
    "Lock",
    "MetricsTable",
    "PassedOver",
    "Run",
    "Summary",
    "WarningWatch",
    "activate",
    "allowance",
    "build_manifest",
    "changes_between",
    "check_name",
    "choose_good",
    "classes_named",
    "create",
    "current",
    "describe_git",
    "describe_hardware",
    "describe_packages",
    "digest",
    "event_line",
    "fault_of_checkpoint",
    "find",
    "forget_cached",
    "git_output",
    "is_first_trusted",
    "is_trusting",
    "joined",
    "keep",
    "last_good",
    "list_runs",
    "lock_holder",
    "newest_interrupted",
    "newest_written",
    "open_run",
    "point_latest",
    "read_events",
    "read_inputs",
    "read_json",
    "refusal",
    "relative",
    "remove_leftovers",
    "sidecar",
    "trusting",
    "verify",
    "write_aside",
    "write_json",
    "write_text",
]

_NAMES = {
    "checkpoint_files": ("fault_of_checkpoint",),
    "events": ("FIELDS", "EventStream", "event_line", "read_events"),
    "files": ("read_json", "write_json", "write_text"),
    "fingerprints": ("INPUTS", "Inputs", "changes_between", "joined", "read_inputs"),
    "folder": ("check_name", "create", "find", "list_runs", "newest_interrupted", "open_run", "point_latest"),
    "integrity": (
        "PassedOver",
        "choose_good",
        "digest",
        "forget_cached",
        "keep",
        "last_good",
        "newest_written",
        "remove_leftovers",
        "sidecar",
        "verify",
        "write_aside",
    ),
    "lock": ("Lock", "lock_holder"),
    "manifest": ("build_manifest", "describe_git", "describe_hardware", "describe_packages", "git_output"),
    "metrics": ("MetricsTable",),
    "run": ("Run", "activate", "current"),
    "summary": ("STATUSES", "Summary", "relative"),
    "trust": ("allowance", "classes_named", "is_first_trusted", "is_trusting", "refusal", "trusting"),
    "warned": ("WarningWatch",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

if not TYPE_CHECKING:  # or every misspelt name would have a type

    def __getattr__(name: str) -> Any:
        """Import the module that has a name."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = value
        return value
