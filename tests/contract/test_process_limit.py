"""Where no process or thread can be started, the run ends at once and says so.

No later error hides the first.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.batch import Answer, Command, run_batch
from tests.contract.workspace import ForkServer, Workspace

PARTS = '''
import errno
import threading
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

ERRORS = {
    "fork": BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
    "thread": RuntimeError("can't start new thread"),
    "value": ValueError("rows are out of stock"),
    "disk": OSError(errno.EIO, "Input/output error"),
}


class Refuses(DataLoader):
    """Raises as the start of its worker processes does."""

    how = ""

    def __iter__(self):
        raise ERRORS[self.how]


def take_threads(_worker):
    def start(self):
        raise ERRORS["thread"]

    threading.Thread.start = start


def take_second_thread(worker):
    """Leave one thread, which sends the batches; the second one hands over their memory."""
    first = threading.Thread.start

    def start(self):
        take_threads(worker)
        first(self)

    threading.Thread.start = start


def collate_unsendable(rows):
    return torch.stack([row for row, in rows]), lambda: rows


WORKERS = {
    "worker": {"worker_init_fn": take_threads},
    "second": {"worker_init_fn": take_second_thread},
    "batch": {"collate_fn": collate_unsendable},
}


class Data(pl.LightningDataModule):
    def __init__(self, train: str = "", val: str = ""):
        super().__init__()
        self.how = {"train": train, "val": val}

    def _loader(self, split):
        data = TensorDataset(torch.randn(16, 3))
        if self.how[split] in WORKERS:
            return DataLoader(data, batch_size=4, num_workers=1, **WORKERS[self.how[split]])
        loader = (Refuses if self.how[split] else DataLoader)(data, batch_size=4)
        loader.how = self.how[split]
        return loader

    def train_dataloader(self):
        return self._loader("train")

    def val_dataloader(self):
        return self._loader("val")


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def training_step(self, batch, index):
        return self.layer(batch[0]).square().mean()

    def validation_step(self, batch, index):
        self.log("val/loss", self.layer(batch[0]).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)
'''
FIRST = {
    "fork": (
        "no more processes or threads can be started ([Errno 11] Resource temporarily unavailable)"
    ),
    "thread": "no more processes or threads can be started (can't start new thread)",
    "value": "ValueError: rows are out of stock",
    "disk": "OSError: [Errno 5] Input/output error",
}
WORKERS = {
    "worker": "can't start new thread",
    "second": "can't start new thread",
    "batch": "Can't pickle local object",
}
SPLITS = ("train", "val")


@pytest.fixture(scope="module")
def answers(
    tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer
) -> Iterator[dict[str, Answer]]:
    """What trainings print whose loaders cannot begin."""
    workspace = Workspace(tmp_path_factory.mktemp("limit") / "work", fork_server)
    workspace.write("parts.py", PARTS)
    trainer = {
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": 1,
        "logger": False,
        "num_sanity_val_steps": 0,
    }
    job = {
        "model": {"class_path": "parts.Net"},
        "data": {"class_path": "parts.Data"},
        "trainer": trainer,
    }
    workspace.write("job.yaml", job)
    ways = [f"{split}={how}" for split in SPLITS for how in (*FIRST, *WORKERS)]
    commands = {
        way: Command(("fit", "-c", "job.yaml", "--run.resume=never", f"--data.{way}"))
        for way in ways
    }
    yield run_batch(workspace, commands)
    workspace.close()


@pytest.mark.parametrize("how", FIRST)
@pytest.mark.parametrize("split", SPLITS)
def test_the_first_error_of_a_loader_is_shown(
    split: str, how: str, answers: dict[str, Answer]
) -> None:
    answer = answers[f"{split}={how}"]
    assert answer.code == 1
    assert FIRST[how] in answer.err
    assert "iter(combined_loader)" not in answer.err


@pytest.mark.parametrize("how", ["fork", "thread"])
@pytest.mark.parametrize("split", SPLITS)
def test_a_limit_of_processes_is_an_error_in_words(
    split: str, how: str, answers: dict[str, Answer]
) -> None:
    answer = answers[f"{split}={how}"]
    assert "Traceback" not in answer.err
    for advice in ("`ulimit -u`", "data.init_args.num_workers", "OMP_NUM_THREADS=1"):
        assert advice in answer.err


# else a training that waits for a lost batch is ended by its watchdog after 20 minutes
@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", WORKERS)
@pytest.mark.parametrize("split", SPLITS)
def test_a_loading_process_that_cannot_send_a_batch_ends_the_run(
    split: str, how: str, answers: dict[str, Answer]
) -> None:
    answer = answers[f"{split}={how}"]
    assert answer.code == 1
    assert WORKERS[how] in answer.err
    assert "exited unexpectedly" in answer.err
