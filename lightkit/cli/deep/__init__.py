"""`lightkit check --deep`: everything is built on the CPU and does one batch, and nothing of it is kept. Needs torch.

- `checking` goes through it all and gives a `Report`; `building` makes each part by itself, so that one that fails
  hides none of the others; `one_cpu` is the trainer in place of the config's hardware.
- `probe` watches the batch; `stand_ins` are what takes the place of loggers and of the file of a checkpoint;
  `offline` keeps libraries from downloading.
- `monitors`, `disk` and `memory` judge what was seen; `crashes` puts into words what the config's own code raised.
"""

from lightkit.cli.deep.checking import check_deeply
from lightkit.cli.deep.report import Report

__all__ = ["Report", "check_deeply"]
