"""A fit whose data set sleeps for ever at item 37, as a process: named, recorded, saved, ended with 70, resumed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import (
    SMALL,
    Ended,
    ended,
    events,
    fit,
    only_run,
    processes_of,
    started,
    summary,
    workplace,
)

pytestmark = pytest.mark.slow

SLEEPY = '''

from torch.utils.data import Dataset

from lightkit.data import train_loader


class Sleepy(Dataset):
    """Points near a plane, one of which never comes until there is a file ``awake``."""

    def __init__(self, holds_on=False):
        self.x = torch.randn(48, 3, generator=torch.Generator().manual_seed(3))
        self.holds_on = holds_on

    def __len__(self):
        return 48

    def __getitem__(self, key):
        index = getattr(key, "index", key)
        while index == 37 and not Path("awake").exists():
            try:
                time.sleep(3600)  # for ever
            except BaseException:
                if not self.holds_on:
                    raise
        return self.x[index], self.x[index].sum(0, keepdim=True)


class Sleeping(Points):
    """Points, one of which never comes.

    Args:
        num_workers: Processes that load.
        holds_on: Whether nothing wakes it.
    """

    def __init__(self, num_workers: int = 0, holds_on: bool = False):
        super().__init__()
        self.num_workers, self.holds_on = num_workers, holds_on

    def train_dataloader(self):
        return train_loader(
            Sleepy(self.holds_on), batch_size=4, seed=1, trainer=self.trainer, num_workers=self.num_workers
        )

    def val_dataloader(self):
        return DataLoader(Points.val_dataloader(self).dataset, batch_size=8)

    def test_dataloader(self):
        return DataLoader(Sleepy(), batch_size=4, num_workers=self.num_workers)


class Tested(Net):
    """A network that can be tested."""

    test_step = Net.validation_step
'''
CONFIG: dict[str, Any] = {
    **SMALL,
    "model": {"class_path": "mine.Tested"},
    "watchdog": {"floor_s": 2},
    "trainer": {**SMALL["trainer"], "max_epochs": 2},
}


def place(folder: Path, **arguments: Any) -> Path:
    data = {"class_path": "mine.Sleeping", "init_args": arguments}
    workplace(folder, {**CONFIG, "data": data})
    with (folder / "mine.py").open("a", encoding="utf-8") as file:
        file.write(SLEEPY)
    return folder


def line_that_sleeps(folder: Path) -> str:
    lines = (folder / "mine.py").read_text(encoding="utf-8").splitlines()
    return f"mine.py:{next(n for n, line in enumerate(lines, 1) if '# for ever' in line)} in __getitem__"


@dataclass(frozen=True)
class Nap:
    """A fit that was ended because it hung.

    Args:
        folder: Its working directory.
        end: What the process said.
        left: Processes that were still there.
        ended: When it was gone, in seconds since the epoch.
    """

    folder: Path
    end: Ended
    left: list[int]
    ended: float


def nap(folder: Path, *words: str) -> Nap:
    with started(folder, *words) as process:
        end = ended(process, 240)
        return Nap(folder, end, processes_of(process.pid), time.time())


@pytest.fixture(scope="module")
def naps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Nap]]]:
    """Fits that hang, at the same time, by what is particular to them."""
    kinds: dict[str, dict[str, Any]] = {
        "no_workers": {"num_workers": 0},
        "two_workers": {"num_workers": 2},
        "holds_on": {"num_workers": 0, "holds_on": True},
        "test": {"num_workers": 1},
    }
    with ThreadPoolExecutor(len(kinds)) as pool:
        yield {
            kind: pool.submit(
                nap,
                place(tmp_path_factory.mktemp(kind), **arguments),
                "test" if kind == "test" else "fit",
                "-c",
                "job.yaml",
            )
            for kind, arguments in kinds.items()
        }


KINDS = ["no_workers", "two_workers", "holds_on"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_fit_that_hangs_ends_with_70_and_names_the_line(naps: dict[str, Future[Nap]], kind: str) -> None:
    hung = naps[kind].result()
    at = line_that_sleeps(hung.folder)
    assert hung.end.code == 70, hung.end.err
    assert hung.left == []
    (told,) = [line for line in hung.end.err.splitlines() if line.startswith("error:")]
    who = "data loader worker" if kind == "two_workers" else "the main thread"
    assert f"{who} " in told
    assert f"stands still at {at}, loading sample 37" in told
    assert "Traceback" not in hung.end.err
    (stall,) = events(hung.folder, "stall")
    assert (stall["phase"], stall["at"], stall["sample"]) == ("train", at, 37)
    assert 37 in stall["batch"]
    stacks = (only_run(hung.folder) / stall["path"]).read_text(encoding="utf-8")
    assert stacks.count("mine.py") >= 2  # in its first lines, and on the stack
    assert ("_worker_loop" in stacks) is (kind == "two_workers")
    assert "thread MainThread (most recent call last):" in stacks


@pytest.mark.parametrize("kind", KINDS)
def test_the_records_tell_that_it_has_failed(naps: dict[str, Future[Nap]], kind: str) -> None:
    hung = naps[kind].result()
    (end,) = events(hung.folder, "end")
    assert (end["status"], end["exit_code"]) == ("failed", 70)
    found = summary(hung.folder)
    assert (found["status"], found["exit_code"]) == ("failed", 70)
    assert line_that_sleeps(hung.folder) in found["error"]


def test_the_batches_that_were_done_are_saved_and_the_same_command_goes_on_there(
    naps: dict[str, Future[Nap]],
) -> None:
    hung = naps["two_workers"].result()
    last = only_run(hung.folder) / "checkpoints" / "last.ckpt"
    assert last.is_file()
    assert f"The same command resumes from {last}" in hung.end.err
    assert [event["path"] for event in events(hung.folder, "checkpoint")] == ["checkpoints/last.ckpt"]
    (hung.folder / "awake").touch()
    resumed = fit(hung.folder)
    assert resumed.code == 0, resumed.err
    assert f"resumes {only_run(hung.folder)} from last.ckpt" in resumed.err
    (resume,) = events(hung.folder, "resume")
    assert resume["step"] == events(hung.folder, "checkpoint")[0]["step"] > 0
    assert [event["step"] for event in events(hung.folder, "epoch")][-1] == 24
    assert summary(hung.folder)["status"] == "done"


def test_what_does_not_give_way_is_ended_in_time(naps: dict[str, Future[Nap]]) -> None:
    hung = naps["holds_on"].result()
    (stall,) = events(hung.folder, "stall")
    assert hung.ended - datetime.fromisoformat(stall["time"]).timestamp() > 2  # woken three times, a second apart
    assert "There is no checkpoint yet: the same command begins again." in hung.end.err
    assert not list(only_run(hung.folder).glob("checkpoints/.*.aside"))


def test_a_test_that_hangs_ends_with_70_too(naps: dict[str, Future[Nap]]) -> None:
    hung = naps["test"].result()
    assert hung.end.code == 70, hung.end.err
    assert hung.left == []
    assert "in phase test" in hung.end.err
    assert line_that_sleeps(hung.folder) in hung.end.err
    assert "resumes" not in hung.end.err
    (stall,) = events(hung.folder, "stall")
    assert (stall["phase"], stall["batch"]) == ("test", [36, 37, 38, 39])
