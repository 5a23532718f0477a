"""`lightkit notify-test`: whether the messages of a config arrive."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from lightkit.cli.command_line import Takes, parse_command_line
from lightkit.cli.config_loader import load_config
from lightkit.cli.console import choose_output_mode, configure_console, print_line
from lightkit.cli.notifications import build_notifiers, create_heartbeat, find_job_name
from lightkit.config import Problems, Resolved, near
from lightkit.errors import ConfigError
from lightkit.runs.dead_man import Sign
from lightkit.runs.webhook import DeliveryError, send

__all__ = ["notify_test"]

_USAGE = "usage: lightkit notify-test -c FILE... [--kind KIND]... [--key=value]..."
_HELP = f"""\
{_USAGE}

Send one message of each kind through every notifier of a config, such as callbacks.slack and callbacks.webhook, and
each sign of its dead-man's switch (run.heartbeat_url), and wait for the answers. The messages say that they are tests.
Neither model nor data are built, and nothing is written. What the events of a notifier leave out is not sent.

  -c FILE      a layer of the config
  --run RUN    a run, in the place of files
  --kind KIND  start, epoch, end, failure or gate only; several with commas
  --quiet      print only what did not arrive

A switch is told start, failure and end, in this order, so that it ends well. Each message is tried once.
Exit code 0: all have arrived; 1: some have not; 2: the config is wrong, or has nobody to tell.

lightkit notify-test -c configs/flowers.yaml -c configs/notify/slack.yaml
"""
_KINDS = ("start", "epoch", "end", "failure", "gate")
_SIGNS: Mapping[str, Sign] = {"start": "start", "failure": "fail", "end": "ok"}
_OWN: dict[str, Takes] = {"--kind": "value", "--quiet": "switch"}
_CONFIG: dict[str, Takes] = {"-c": "value", "--config": "value", "--run": "value"}
_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class _Trial:
    """One message that is to be sent.

    Args:
        listener: Who sends it, in the words of the config.
        kind: What it tells.
        send: Sends it; raises `DeliveryError`.
    """

    listener: str
    kind: str
    send: Callable[[], None]


def notify_test(words: list[str]) -> int:
    """Send the messages, print a line for each, and return the exit code.

    Args:
        words: The command line after the command.

    Raises:
        ConfigError: If the arguments or the config are wrong, or nobody is to be told.
    """
    if {"-h", "--help"} & {*words}:
        print(_HELP, end="")
        return 0
    line = parse_command_line("notify-test", words, usage=_USAGE, own=_OWN, config=_CONFIG)
    if line.positionals:
        raise ConfigError(f"notify-test: unexpected argument {line.positionals[0]!r}\n{_USAGE}")
    kinds = _kinds(line.options.get("--kind"))
    mode = choose_output_mode({"quiet": "--quiet" in line.options}, sys.stdout)
    resolved = _resolved(line.config_words)
    configure_console(mode, resolved.masked)
    trials = list(_trials(resolved, kinds, find_job_name(resolved, "fit", line.config_words)))
    if not trials:
        raise ConfigError(
            "notify-test: nobody is told anything of this kind. Add configs/notify/slack.yaml, an entry "
            "callbacks.slack or callbacks.webhook with its webhook_url, or set run.heartbeat_url."
        )
    width = max(len(trial.listener) for trial in trials)
    num_failed = 0
    for trial in trials:
        head = f"{trial.listener:<{width}}  {trial.kind:<7}"
        try:
            trial.send()
        except DeliveryError as error:
            num_failed += 1
            print(f"{head}  not delivered: {error}", file=sys.stderr, flush=True)
        else:
            print_line(f"{head}  ok", mode)
    return 1 if num_failed else 0


def _kinds(said: str | None) -> tuple[str, ...]:
    kinds = _KINDS if said is None else tuple(said.split(","))
    for kind in kinds:
        if kind not in _KINDS:
            raise ConfigError(f"--kind: expected {', '.join(_KINDS)}, got {kind!r}{near(kind, _KINDS)}")
    return kinds


def _resolved(words: Sequence[str]) -> Resolved:
    """Lay the config; whether its data is there is not asked."""
    problems = Problems()
    is_of_run = any(word.partition("=")[0] == "--run" for word in words)
    laid = load_config("test" if is_of_run else "fit", words, problems)
    if (error := problems.error()) is not None:
        raise error.reworded(laid.resolved.masked)
    for key in ("callbacks", "run"):
        if (laid.resolved.values.get(key) is not None) and not isinstance(laid.resolved.values[key], dict):
            raise ConfigError(f"{key}: expected a mapping, got {laid.resolved.masked(repr(laid.resolved.values[key]))}")
    return laid.resolved


def _trials(resolved: Resolved, kinds: Sequence[str], job: str) -> Iterator[_Trial]:
    notifiers = build_notifiers(resolved)
    if notifiers:
        from lightkit.cli.lone_notifiers import send_test  # here: it loads torch

        for name, notifier in notifiers:
            for sent in notifier.kinds_sent(kinds):
                yield _Trial(name, sent, partial(send_test, notifier, sent, job=job))
    if (switch := create_heartbeat(resolved)) is not None:
        for kind, sign in _SIGNS.items():
            if kind in kinds:
                post = switch.post_of(sign, "lightkit notify-test: nothing has happened")
                yield _Trial("run.heartbeat_url", kind, partial(send, post, timeout_s=_TIMEOUT_S))
