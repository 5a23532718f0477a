"""Result of a launch: which rank failed first, and the message about it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lightkit.launch.status import RankStatus, StatusStore

__all__ = ["LaunchResult", "collect_result", "describe_late_ranks"]

# Raised by a rank because another one is gone: Horovod 0.28, torch 2.9 to 2.15 over gloo and NCCL, their stores.
_CONSEQUENCES = (
    *("HorovodInternalError", "DistBackendError", "DistNetworkError", "DistStoreError"),
    *("Interrupted", "LeftAlone"),
)
_LOST_PEER = re.compile(
    r"connection (?:was )?(?:closed by|reset by) (?:remote )?peer|connectfullmesh failed|\bgloo\b.*(?:timed out|error)"
    r"|broken pipe|socket (?:timeout|closed)|recvvalue failed|peer .* (?:closed|lost)",
    re.IGNORECASE,
)
_TAIL_LINES = 20
_MISTAKES = (2, 3, 75)  # of the config, the data or the moment: the other ranks have nothing to add


@dataclass(frozen=True)
class LaunchResult:
    """How a launch ended.

    Args:
        code: Exit code.
        message: Text to print, that of the failing rank first; None if all is well.
        summary: One line of it for the run's records.
        rank: The failing rank.
        kind: Name of the exception that ended it.
    """

    code: int
    message: str | None = None
    summary: str | None = None
    rank: int | None = None
    kind: str | None = None


def collect_result(
    ranks: Sequence[RankStatus], store: StatusStore, *, launcher_code: int, launcher_log: Path, size: int | None
) -> LaunchResult:
    """Collect how a launch ended, once all of its processes have.

    Args:
        ranks: Status of the ranks.
        store: Where their logs are.
        launcher_code: Exit code of the launcher.
        launcher_log: Its output.
        size: Number of ranks, if it was known before.
    """
    failed = [status for status in ranks if not status.is_done]
    if launcher_code == 0 and ranks and not failed and len(ranks) >= (size or 0):
        return LaunchResult(0)
    if failed and all(status.kind == "Interrupted" for status in failed):
        first = min(failed, key=lambda status: status.rank)
        return LaunchResult(first.code or 130, first.message, None, first.rank)
    if failed:
        return _describe_failure(store, failed)
    log = launcher_log.read_text(encoding="utf-8", errors="replace") if launcher_log.is_file() else ""
    if launcher_code == 2 and (error := re.search(r"^error:(?!.*^error:).*", log, re.MULTILINE | re.DOTALL)):
        return LaunchResult(2, error[0].rstrip("\n"))  # a launcher of lightkit's own: a package is missing, ...
    missing = sorted(set(range(size or 0)) - {status.rank for status in ranks})
    summary = "every rank has reported success"
    if not ranks:
        summary = "no rank has begun"
    elif missing:
        names = f"rank{'s' if missing[1:] else ''} {', '.join(map(str, missing))} ha{'ve' if missing[1:] else 's'}"
        summary = f"{names} not arrived; arrived: {', '.join(map(str, ranks))}"
    message = f"error: {summary}; the launcher ended with code {launcher_code}{_format_tail(log)}"
    return LaunchResult(1, message, summary)


def describe_late_ranks(
    ranks: Sequence[RankStatus], size: int, *, timeout_s: float, folder: Path, is_share: bool
) -> LaunchResult:
    """Describe which ranks have not arrived in time.

    Args:
        ranks: Those that have.
        size: Number of ranks.
        timeout_s: Seconds that they had.
        folder: Folder that all of them must see.
        is_share: Whether they are the ranks of one machine of several, whose numbers are unknown before.
    """
    late = [] if is_share else sorted(set(range(size)) - {status.rank for status in ranks})
    names = (
        f"{size - len(ranks)} of the {size} ranks of this machine"
        if is_share
        else f"rank{'s' if late[1:] else ''} {', '.join(map(str, late))} of {size}"
    )
    summary = f"{names} did not arrive within {timeout_s:g} s"
    arrived = ", ".join(map(str, ranks)) or "none"
    message = f"error: {summary} (launch.timeout_s); arrived: {arrived}\nAll of them must see the folder {folder}"
    return LaunchResult(1, message, summary, late[0] if late else None)


def _describe_failure(store: StatusStore, failed: Sequence[RankStatus]) -> LaunchResult:
    first = first_failure(failed)
    others = [status for status in failed if status is not first]
    consequences = [
        f"{status} ended because of it{f': {status.kind}' if status.kind else ''}"
        for status in others
        if status.state == "ended" and status.message != first.message and first.code not in _MISTAKES
    ]
    text = (first.message or "").rstrip()
    code = first.code or 1
    if first.state == "stalled":
        waits = "" if first.waits_for is None else f"; it waits for the others in {first.waits_for}"
        message = f"error: {first} hangs{waits}. Its stacks:\n{text}"
        summary = f"rank {first.rank} hung{f' at {first.line}' if first.line else ''}"
    elif first.state == "ended":
        message = text if first.rank == 0 and text.startswith("error:") else f"{first}:\n{text}"
        summary = f"rank {first.rank}: {_last_line(text)}"
    elif waiting := next((status for status in others if status.state == "stalled"), None):
        message = (
            f"error: {first} did not answer: it was stopped, or hung where even its watchdog could not run; "
            f"{waiting} waited for it in {waiting.waits_for or 'its own code'}:\n{(waiting.message or '').rstrip()}"
        )
        summary, code = f"rank {first.rank} hung", waiting.code or 1
    else:
        path = store.log(first.rank)
        log = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        message = (
            f"error: {first} ended without a message: it was killed (kill -9, or by the kernel for want of memory), "
            f"or native code has crashed{_format_tail(log)}"
        )
        summary = f"rank {first.rank} was killed or crashed"
    return LaunchResult(code, "\n".join([message, *consequences]), summary, first.rank, first.kind)


def first_failure(failed: Sequence[RankStatus]) -> RankStatus:
    """Choose the rank that failed first: an error of its own, a hang, an end without a message, a consequence."""

    def order(status: RankStatus) -> tuple[int, float, int]:
        if status.state == "stalled":
            place = 1 if status.waits_for is None else 3
        elif status.state == "began":
            place = 2
        else:
            is_lost_peer = status.kind == "RuntimeError" and _LOST_PEER.search(_last_line(status.message or ""))
            place = 4 if status.kind in _CONSEQUENCES or is_lost_peer else 0
        return place, status.at_s or 0.0, status.rank

    return min(failed, key=order)


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def _format_tail(log: str) -> str:
    lines = log.splitlines()[-_TAIL_LINES:]
    return ". The end of its output:\n" + "\n".join(f"  {line}" for line in lines) if lines else ""
