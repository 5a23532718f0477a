"""A training whose images vanish in the middle of it ends with the code of bad data, and keeps its checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import fit, only_run
from tests.cli.test_bad_images import a_workplace

pytestmark = pytest.mark.slow

LOSING = '''\
from pytorch_lightning import Callback


class Losing(Callback):
    """Deletes all photos before the second epoch."""

    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch == 1:
            for photos in trainer.datamodule.catalogue.splits.values():
                for photo in photos:
                    photo.path.unlink()
'''


def test_it_ends_with_code_3_after_the_checkpoint_of_the_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = a_workplace(tmp_path / "work", num_bad=0, num_workers=0)
    (folder / "losing.py").write_text(LOSING, encoding="utf-8")
    done = fit(folder, "--trainer.max_epochs=3")
    assert done.code == 3, done.err
    assert "images of an epoch could not be read, more than data.init_args.max_bad_fraction (0.05) allows." in done.err
    assert "Traceback" not in done.err
    assert list(only_run(folder).rglob("*.ckpt"))
    assert (only_run(folder) / "bad_images.csv").is_file()
