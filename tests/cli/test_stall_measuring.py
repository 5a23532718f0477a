"""A fit that hangs while it is measured for `auto`, as a process: ended as a training that hangs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import SMALL, ended, events, only_run, processes_of, started, summary, workplace

pytestmark = pytest.mark.long

HANGING = '''

class Hanging(Net):
    """A network whose third step never ends.

    Args:
        slow_to_build: Seconds that it takes to build it.
    """

    steps = 0

    def __init__(self, slow_to_build: float = 0.0):
        super().__init__()
        time.sleep(slow_to_build)

    def training_step(self, batch, index):
        Hanging.steps += 1
        if Hanging.steps == 3:
            time.sleep(3600)  # in a step
        return super().training_step(batch, index)


class Missing(torch.utils.data.Dataset):
    """Points, the sixth of which never comes."""

    def __len__(self):
        return 48

    def __getitem__(self, index):
        if index == 5:
            time.sleep(3600)  # in the loading
        return torch.ones(3), torch.ones(1)


class Hidden(Points):
    """Points, one of which never comes."""

    def train_dataloader(self):
        return DataLoader(Missing(), batch_size=4)
'''
FLOOR_S = 3
UNTIMED_S = 4 * FLOOR_S  # of the first two steps; a machine must stand still for longer to end them
CONFIG: dict[str, Any] = {
    **SMALL,
    "watchdog": {"floor_s": FLOOR_S, "factor": 0.001},  # no step takes a thousand floors
    "accelerator": {"kind": "cpu", "memory_format": "auto"},
}


@pytest.mark.parametrize(
    ("changes", "where", "limit_s"),
    [
        (
            {"model": {"class_path": "mine.Hanging", "init_args": {"slow_to_build": UNTIMED_S + 2}}},
            "in a step",
            FLOOR_S,
        ),
        ({"data": {"class_path": "mine.Hidden"}}, "in the loading", UNTIMED_S),
    ],
    ids=["step", "loading"],
)
def test_a_fit_that_hangs_while_it_is_measured_ends_with_70(
    tmp_path: Path, changes: Any, where: str, limit_s: float
) -> None:
    workplace(tmp_path, {**CONFIG, **changes})
    with (tmp_path / "mine.py").open("a", encoding="utf-8") as file:
        file.write(HANGING)
    with started(tmp_path, "fit", "-c", "job.yaml") as process:
        end = ended(process, 240)
        left = processes_of(process.pid)
    lines = (tmp_path / "mine.py").read_text(encoding="utf-8").splitlines()
    line = next(number for number, text in enumerate(lines, 1) if f"# {where}" in text)
    assert end.code == 70, end.err
    assert left == []
    (told,) = [said for said in end.err.splitlines() if said.startswith("error:")]
    assert f"in phase measure, which may take {limit_s} s" in told
    assert f"the main thread stands still at mine.py:{line}" in told
    assert "There is no checkpoint yet: the same command begins again." in told
    (stall,) = events(tmp_path, "stall")
    assert stall["phase"] == "measure"
    assert "mine.py" in (only_run(tmp_path) / stall["path"]).read_text(encoding="utf-8")
    found = summary(tmp_path)
    assert (found["status"], found["exit_code"]) == ("failed", 70)
