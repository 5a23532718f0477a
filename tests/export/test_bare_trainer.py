"""The trainer of an export is alone, wherever it runs."""

from __future__ import annotations

import pytest
from pytorch_lightning import Trainer

from lightkit.export.bare_trainer import bare_trainer

SLURM = {"SLURM_NTASKS": "2", "SLURM_JOB_NAME": "train", "SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_NODEID": "0"}
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "none"}


@pytest.mark.parametrize("variables", [SLURM, TORCHRUN], ids=["slurm", "torchrun"])
def test_a_launchers_variables_do_not_reach_it(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    trainer: Trainer = bare_trainer()
    assert (trainer.world_size, trainer.global_rank, trainer.num_sanity_val_steps) == (1, 0, 0)
    assert (trainer.loggers, trainer.checkpoint_callbacks, trainer.progress_bar_callback) == ([], [], None)
