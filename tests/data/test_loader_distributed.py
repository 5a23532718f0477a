"""Two real processes train together, are stopped within an epoch, and go on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, sys, warnings
from pathlib import Path
import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from lightkit.data import Temperatures

folder, stop, checkpoint = Path(sys.argv[1]), sys.argv[2] == "stop", sys.argv[3] or None

class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(1, 1), []
    def training_step(self, batch, batch_idx):
        self.seen.append([self.current_epoch, batch[0].flatten().tolist()])
        return torch.nn.functional.mse_loss(self.layer(batch[0] / 100), batch[1] / 100)
    def validation_step(self, batch, batch_idx):
        pass
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

class Stop(Callback):
    def on_train_batch_end(self, trainer, module, *args):
        if stop and trainer.current_epoch == 1 and len(module.seen) == 8:
            trainer.save_checkpoint(folder / "last.ckpt")
            trainer.should_stop = True

warnings.simplefilter("ignore")
torch.manual_seed(0)
net = Net()
trainer = Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp_fork",
    max_epochs=2,
    logger=False,
    callbacks=[Stop()],
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
class Data(Temperatures):
    def teardown(self, stage):
        (folder / f"rank{self.trainer.global_rank}.json").write_text(
            json.dumps({"seen": net.seen, "weights": [p.item() for p in net.parameters()],
                        "sampler": type(self.trainer.train_dataloader.sampler).__name__}))
trainer.fit(net, Data(num_samples=45, batch_size=4, seed=0), ckpt_path=checkpoint)
"""


def fit(
    folder: Path, *, stop: bool = False, checkpoint: Path | None = None
) -> list[dict[str, object]]:
    folder.mkdir(exist_ok=True)
    command = [
        sys.executable,
        "-c",
        PROGRAM,
        str(folder),
        "stop" if stop else "",
        str(checkpoint or ""),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert ended.returncode == 0, ended.stderr
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.long
def test_each_process_goes_on_in_its_own_share(tmp_path: Path) -> None:
    straight = fit(tmp_path / "straight")
    fit(tmp_path / "first", stop=True)
    rest = fit(tmp_path / "rest", checkpoint=tmp_path / "first" / "last.ckpt")
    shares = [{value for _, values in rank["seen"][:6] for value in values} for rank in straight]  # type: ignore[index]
    assert [len(share) for share in shares] == [23, 23]
    assert len(shares[0] | shares[1]) == 45
    assert len(shares[0] & shares[1]) == 1  # 45 do not share evenly: one is repeated
    for before, after in zip(straight, rest, strict=True):
        assert after["sampler"] == "ResumableSampler"
        assert after["seen"] == before["seen"][8:]  # type: ignore[index]
        assert after["weights"] == before["weights"]
