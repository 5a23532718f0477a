"""What a rank runs: the cases of a module, one after the other; python -m tests.distributed.job MODULE FOLDER."""

from __future__ import annotations

import importlib
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch


def main(module: str, folder: Path) -> None:
    from lightkit.distributed.environment import HorovodEnvironment

    place = HorovodEnvironment()
    results: dict[str, Any] = {}
    if place.detect():
        place.start()
    warnings.simplefilter("ignore")
    for name, case in importlib.import_module(module).CASES.items():
        began = time.monotonic()
        try:
            found = case(place.world_size(), place.global_rank(), folder / name)
        except Exception:  # noqa: BLE001 - the test shows it
            results[name] = {"failed": traceback.format_exc()}
            print(traceback.format_exc(), file=sys.stderr, flush=True)
            break  # the other ranks are no longer where this one is
        results[name] = {**found, "seconds": time.monotonic() - began}
        torch.save(results, folder / f"rank-{place.global_rank()}-of-{place.world_size()}.pt")
    torch.save(results, folder / f"rank-{place.global_rank()}-of-{place.world_size()}.pt")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
