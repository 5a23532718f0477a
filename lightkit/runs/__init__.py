"""Files that a run leaves behind.

Its folder, lock, manifest, event stream, metrics, summary and whole checkpoints.

A name is imported when it is first asked for: the entry point needs the signals alone, before
anything else.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_NAMES = {
    "checkpoints": (
        "choose_good digest find_class_names find_fault is_trusting last_good make_way_for_folder"
        " digest_checkpoint newest_written refusal refuse_folder sidecar trusting warn_of_trust"
        " write_aside write_digest write_folder_digests write_link"
    ),
    "events": "EventStream WarningWatch print_event read_events",
    "files": "find_value read_json remove_leftovers write_json write_text",
    "fingerprints": "INPUTS Inputs join_changes list_changes read_inputs",
    "folder": (
        "Run activate check_name create current find list_runs newest_interrupted open_run"
        " point_latest"
    ),
    "lock": "Lock lock_holder",
    "manifest": "build_manifest describe_git describe_hardware git_output",
    "metrics": "MetricsTable",
    "summary": "Summary new_summary read_summary relative write_summary",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

if TYPE_CHECKING:
    from lightkit.runs.checkpoints import *
    from lightkit.runs.events import *
    from lightkit.runs.files import *
    from lightkit.runs.fingerprints import *
    from lightkit.runs.folder import *
    from lightkit.runs.lock import *
    from lightkit.runs.manifest import *
    from lightkit.runs.metrics import *
    from lightkit.runs.summary import *
else:  # or every misspelt name would have a type

    def __getattr__(name: str) -> Any:
        """Import the module that has a name."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = value
        return value
