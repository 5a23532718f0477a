"""`lightkit notify-test`: whether the messages of a config arrive."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lightkit.cli.command_line import Invocation
from lightkit.cli.config_loader import load_config
from lightkit.cli.console import choose_output_mode, configure_console, print_line
from lightkit.cli.notifications import build_notifiers, create_heartbeat
from lightkit.config import Problems, Resolved
from lightkit.errors import ConfigError
from lightkit.runs.webhook import Deliver, DeliveryError, Sign

_METRICS = {"val/loss": 0.25, "val/accuracy": 0.9}
_GATE = {
    "metric": "test/accuracy",
    "passed": True,
    "scores": {"challenger": {"test/accuracy": 0.9}},
    "reasons": [],
}
_MESSAGES: dict[str, dict[str, Any]] = {
    "start": {"status": "running", "max_epochs": 10},
    "epoch": {"status": "running", "epoch": 4, "max_epochs": 10, "metrics": _METRICS},
    "end": {"status": "done", "exit_code": 0, "epoch": 9, "max_epochs": 10, "metrics": _METRICS},
    "failure": {"status": "failed", "exit_code": 1, "error": "nothing has failed: this is a test"},
    "gate": {"status": "passed", "exit_code": 0, "gate": _GATE},
}
"""A message of each kind."""
_SIGNS: Mapping[str, Sign] = {"start": "start", "failure": "fail", "end": "ok"}


def notify_test(invocation: Invocation) -> int:
    """Send the messages, print a line for each, and return the exit code.

    Args:
        invocation: The command line.

    Raises:
        ConfigError: If the arguments or the config are wrong, or there is no receiver.
    """
    invocation.raise_errors()
    kinds = invocation.options.get("kind", tuple(_MESSAGES))
    mode = choose_output_mode(invocation.options)
    problems = Problems()
    stage = "test" if invocation.has("run") else "fit"  # whose data need not exist
    loaded = load_config(invocation.for_stage(stage, keep=("run",)), problems)
    problems.raise_any(loaded.resolved.masked)
    configure_console(mode, loaded.resolved.masked)
    tests = list(
        _list_tests(loaded.resolved, kinds, f"{loaded.job_name} (test of lightkit notify-test)")
    )
    if not tests:
        raise ConfigError(
            "notify-test: the config has no receiver of such messages. Add -c"
            " lightkit:notify/slack, an entry callbacks.slack or callbacks.webhook with its"
            " webhook_url, or set run.heartbeat_url."
        )
    width = max(len(receiver) for receiver, _, _ in tests)
    num_failed = 0
    for receiver, kind, deliver in tests:
        head = f"{receiver:<{width}}  {kind:<7}"
        try:
            deliver()
        except DeliveryError as error:
            num_failed += 1
            print(f"{head}  not delivered: {error}", file=sys.stderr, flush=True)
        else:
            print_line(f"{head}  ok", mode)
    return 1 if num_failed else 0


def _list_tests(
    resolved: Resolved, kinds: Sequence[str], job: str
) -> Iterator[tuple[str, str, Deliver]]:
    """List each message: its receiver as the config calls it, its kind, and the call to send it."""
    for name, notifier in build_notifiers(resolved):
        from lightkit.callbacks.notifiers import create_message  # here: it loads torch

        for sent in (kind for kind in notifier.kinds if kind in kinds):
            message = create_message(
                sent, job=job, stage="gate" if sent == "gate" else "fit", **_MESSAGES[sent]
            )
            yield name, sent, notifier.compose(message)
    if (heartbeat := create_heartbeat(resolved)) is not None:
        for kind, sign in _SIGNS.items():
            if kind in kinds:
                ping = heartbeat.compose(sign, "lightkit notify-test: nothing has happened")
                yield "run.heartbeat_url", kind, ping
