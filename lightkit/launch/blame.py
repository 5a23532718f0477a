"""Which rank began a failure, and what is said of it."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from lightkit.launch.board import Board, Standing

__all__ = ["Verdict", "judge", "missing", "missing_ranks"]

# What a rank raises because another one is gone: Horovod 0.28, torch 2.9 to 2.15 over gloo and NCCL, their stores.
_CONSEQUENCES = (
    "HorovodInternalError",
    "DistBackendError",
    "DistNetworkError",
    "DistStoreError",
    "Interrupted",
    "LeftAlone",
)
_LOST_PEER = re.compile(
    r"connection (?:was )?(?:closed by|reset by) (?:remote )?peer|connectfullmesh failed|\bgloo\b.*(?:timed out|error)"
    r"|broken pipe|socket (?:timeout|closed)|recvvalue failed|peer .* (?:closed|lost)",
    re.IGNORECASE,
)
_TAIL_LINES = 20
_MISTAKES = (2, 3, 75)  # of the config, the data or the moment: the other ranks have nothing to add


@dataclass(frozen=True)
class Verdict:
    """How a launch ended.

    Args:
        code: Exit code.
        words: What to print, the failing rank's words first; None if all is well.
        summary: One line of it for the run's records.
        rank: The failing rank.
        kind: Name of the exception that ended it.
    """

    code: int
    words: str | None = None
    summary: str | None = None
    rank: int | None = None
    kind: str | None = None


def judge(
    standings: Sequence[Standing], board: Board, *, launcher_code: int, launcher_log: Path, size: int | None
) -> Verdict:
    """Say how a launch ended, once all of its processes have.

    Args:
        standings: How the ranks stand.
        board: Where their logs are.
        launcher_code: Exit code of what started the ranks.
        launcher_log: What that has written.
        size: Number of ranks, where it was known before.
    """
    done = [standing for standing in standings if standing.state == "ended" and standing.code == 0]
    if launcher_code == 0 and done and len(done) == max(len(standings), size or 0):
        return Verdict(0)
    failed = [standing for standing in standings if standing.state != "ended" or standing.code != 0]
    interrupted = [s for s in failed if s.kind == "Interrupted"]
    if failed and len(interrupted) == len(failed):
        first = min(interrupted, key=lambda standing: standing.rank)
        return Verdict(first.code or 130, first.words, None, first.rank)
    if not failed:
        if launcher_code == 2 and (said := _mistake_in(launcher_log)) is not None:
            return Verdict(2, said)
        told = _why_not(standings, size)
        said = _tail(launcher_log)
        return Verdict(1, f"error: {told}; the launcher ended with code {launcher_code}{said}", told)
    return _blamed(board, failed)


def _mistake_in(launcher_log: Path) -> str | None:
    """What a launcher of lightkit's own has said of a wrong config or a package that is missing."""
    lines = launcher_log.read_text(encoding="utf-8", errors="replace").splitlines() if launcher_log.is_file() else []
    found = [index for index, line in enumerate(lines) if line.startswith("error:")]
    return "\n".join(lines[found[-1] :]) if found else None


def missing(standings: Sequence[Standing], size: int, *, timeout_s: float, folder: Path, is_share: bool) -> Verdict:
    """Say which ranks have not arrived in time.

    Args:
        standings: Those that have.
        size: Number of ranks.
        timeout_s: Seconds that they had.
        folder: Folder that all of them must see.
        is_share: Whether they are the ranks of one machine of several, whose numbers nobody knows before.
    """
    late = missing_ranks(standings, size)
    who = f"{'rank' if len(late) == 1 else 'ranks'} {', '.join(map(str, late))} of {size}"
    if is_share:
        who, late = f"{size - len(standings)} of the {size} ranks of this machine", []
    told = f"{who} did not arrive within {timeout_s:g} s"
    there = ", ".join(standing.told for standing in standings) or "none"
    words = f"error: {told} (launch.timeout_s); arrived: {there}\nAll of them must see the folder {folder}"
    return Verdict(1, words, told, late[0] if late else None)


def missing_ranks(standings: Sequence[Standing], size: int | None) -> list[int]:
    """Numbers of the ranks that have not arrived."""
    return sorted(set(range(size or 0)) - {standing.rank for standing in standings})


def _why_not(standings: Sequence[Standing], size: int | None) -> str:
    """Say what is wrong though no rank has failed."""
    missing = missing_ranks(standings, size)
    if not standings:
        return "no rank has begun"
    return _never_arrived(missing, standings) if missing else "every rank has done its work and said so"


def _never_arrived(missing: Collection[int], standings: Sequence[Standing]) -> str:
    who = (
        f"rank {', '.join(map(str, missing))} has"
        if len(missing) == 1
        else f"ranks {', '.join(map(str, missing))} have"
    )
    return f"{who} not arrived; there {'is' if len(standings) == 1 else 'are'} {', '.join(s.told for s in standings)}"


def _blamed(board: Board, failed: Sequence[Standing]) -> Verdict:
    culprit = min(failed, key=_guilt)
    others = [standing for standing in failed if standing is not culprit]
    hung = next((other for other in others if other.state == "stalled"), None) if culprit.state == "began" else None
    lines = [
        _words_of(board, culprit) if hung is None else _unanswered(culprit, hung),
        *(
            f"{other.told} ended because of it{f': {other.kind}' if other.kind else ''}"
            for other in others
            if other.state == "ended" and other.words != culprit.words and culprit.code not in _MISTAKES
        ),
    ]
    if hung is not None:
        return Verdict(hung.code or 1, "\n".join(lines), f"rank {culprit.rank} hung", culprit.rank)
    return Verdict(culprit.code or 1, "\n".join(lines), _summary_of(culprit), culprit.rank, culprit.kind)


def _guilt(standing: Standing) -> tuple[int, float, int]:
    """Sort key, the likeliest culprit first: its own error, a hang, a death without a word, a consequence."""
    when = standing.at_s or 0.0
    if standing.state == "stalled":
        return (1 if standing.waits_for is None else 3, when, standing.rank)
    if standing.state == "began":
        return 2, when, standing.rank
    return (4 if _is_consequence(standing) else 0), when, standing.rank


def _is_consequence(standing: Standing) -> bool:
    if standing.kind in _CONSEQUENCES:
        return True
    return standing.kind == "RuntimeError" and _LOST_PEER.search(_last_line(standing.words)) is not None


def _unanswered(culprit: Standing, waiting: Standing) -> str:
    return (
        f"error: {culprit.told} did not answer: it was stopped, or hung where even its watchdog could not run; "
        f"{waiting.told} waited for it in {waiting.waits_for or 'its own code'}:\n{(waiting.words or '').rstrip()}"
    )


def _words_of(board: Board, standing: Standing) -> str:
    if standing.state == "stalled":
        where = "" if standing.waits_for is None else f"; it waits for the others in {standing.waits_for}"
        return f"error: {standing.told} hangs{where}. Where it stands:\n{(standing.words or '').rstrip()}"
    if standing.state == "ended":
        words = (standing.words or "").rstrip()
        return words if standing.rank == 0 and words.startswith("error:") else f"{standing.told}:\n{words}"
    return (
        f"error: {standing.told} is gone without a word: something has killed it (kill -9, or the kernel for want of "
        f"memory), or native code has crashed{_tail(board.log(standing.rank))}"
    )


def _summary_of(standing: Standing) -> str:
    if standing.state == "began":
        return f"rank {standing.rank} was killed or crashed"
    if standing.state == "stalled":
        return f"rank {standing.rank} hung{f' at {standing.at}' if standing.at else ''}"
    return f"rank {standing.rank}: {_last_line(standing.words)}"


def _last_line(words: str | None) -> str:
    lines = [line for line in (words or "").splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def _tail(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return ". The end of what it wrote:\n" + "\n".join(f"  {line}" for line in lines[-_TAIL_LINES:]) if lines else ""
