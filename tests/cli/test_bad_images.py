"""Bad images among those that a real training is given: what it does, says, lists and ends with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightkit.runs.bad_images import BadImageList
from tests.cli.commands import PICTURES, events, fit, only_run, workplace

pytestmark = pytest.mark.slow

LOSING = '''\
from pytorch_lightning import Callback


class Losing(Callback):
    """Deletes a training photo and a validation photo before the second epoch."""

    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch == 1 and trainer.is_global_zero:
            splits = trainer.datamodule.catalogue.splits
            for split in ("train", "val"):
                splits[split][3].path.unlink()
                print("deleted", splits[split][3].path)
        trainer.strategy.barrier()
'''


def a_workplace(folder: Path, *, num_bad: int, **init_args: Any) -> Path:
    data = {**PICTURES["data"]["init_args"], "cache": "none", "color_jitter": 0, "rand_augment": False, **init_args}
    config = {
        "seed_everything": 7,
        "model": PICTURES["model"],
        "data": {"class_path": "ImageFolder", "init_args": data},
        "callbacks": {"losing": {"class_path": "losing.Losing"}},
        "trainer": {"accelerator": "cpu", "max_epochs": 2, "log_every_n_steps": 1, "logger": False},
    }
    workplace(folder, pictures=60)
    (folder / "job.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    (folder / "losing.py").write_text(LOSING, encoding="utf-8")
    for number in range(num_bad):
        (folder / "pictures" / "reds" / f"bad {number}.JPG").write_text("no picture")
    return folder


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize(("num_processes", "num_workers"), [(1, 0), (2, 1)], ids=["one process", "two with workers"])
def test_bad_ones_and_those_that_vanish_are_left_out_and_listed(
    tmp_path: Path, num_processes: int, num_workers: int
) -> None:
    folder = a_workplace(tmp_path / "work", num_bad=3, num_workers=num_workers)
    processes = {1: [], 2: ["trainer.accelerator=null", "accelerator.num_processes=2", "accelerator.strategy=ddp"]}
    done = fit(folder, *processes[num_processes])
    assert done.code == 0, done.err
    assert "Traceback" not in done.err
    assert num_processes == 1 or "on    CPU on 2 devices" in done.out
    vanished = [line.split(" ", 1)[1] for line in done.out.splitlines() if line.startswith("deleted ")]
    assert len(vanished) == 2
    found = BadImageList(only_run(folder) / "bad_images.csv").rows()
    assert [(row.path, row.found) for row in found[:3]] == [
        (f"pictures/reds/bad {number}.JPG", "scan") for number in range(3)
    ]
    assert {(row.path, row.reason, row.found) for row in found[3:]} == {
        (path, "No such file or directory", "epoch 1") for path in vanished
    }
    told = [line for line in done.err.splitlines() if "left out" in line]
    place = f"listed in {only_run(folder).relative_to(folder)}/bad_images.csv"
    assert told == [
        "warning: 3 images cannot be used and will be left out (3 not an image in any format that Pillow knows); "
        + place,
        f"warning: 2 images could not be read any more and will be left out (2 No such file or directory); {place}",
    ]
    assert [(event["count"], event["found"]) for event in events(folder, "bad_images")] == [(3, "scan"), (2, "epoch 1")]
    manifest = json.loads((only_run(folder) / "manifest.json").read_text())
    assert manifest["data"]["bad_images"] == 3
    assert sum(manifest["data"]["counts"].values()) == 60


@pytest.mark.parametrize(
    ("num_bad", "words", "says"),
    [
        (
            1,
            ["--data.init_args.on_bad_image=error"],
            "1 of 61 images in pictures cannot be used; data.init_args.on_bad_im",
        ),
        (
            7,
            [],
            "7 of 67 images in pictures cannot be used; that is 10.4%, and data.init_args.max_bad_fraction allows 0",
        ),
    ],
    ids=["error", "too many"],
)
def test_bad_ones_that_are_refused_end_it_with_the_list(
    tmp_path: Path, num_bad: int, words: list[str], says: str
) -> None:
    folder = a_workplace(tmp_path / "work", num_bad=num_bad, num_workers=0)
    done = fit(folder, *words)
    assert done.code == 3
    assert done.err.startswith(f"error: {says}")
    assert "  pictures/reds/bad 0.JPG: not an image in any format that Pillow knows\n" in done.err
    assert "Traceback" not in done.err
    assert len(BadImageList(folder / "runs" / "job" / "bad_images.csv").rows()) == num_bad
    assert "all are listed in runs/job/bad_images.csv\n" in done.err
