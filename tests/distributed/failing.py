"""A rank that fails, or is killed, within a training; python -m tests.distributed.failing HOW RANK."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from lightkit.distributed.collectives import hvd
from tests.distributed import nets


class Failing(nets.Net):
    def training_step(self, batch: Any, index: int) -> Any:
        if index == 2 and self.global_rank == int(sys.argv[2]):
            print(f"failing at {time.time()}", flush=True)
            if sys.argv[1] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("batches are out of stock")
        return super().training_step(batch, index)


if __name__ == "__main__":
    hvd.init()
    nets.train(nets.Fit(lambda init: Failing(init=init)), ranks=2, rank=hvd.rank())
