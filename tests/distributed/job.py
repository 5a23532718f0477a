"""What a rank runs: cases, one after the other; python -m tests.distributed.job FOLDER [swept]."""

from __future__ import annotations

import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

from lightkit.cli.heap import freezing_imports

with freezing_imports():
    import torch

    from lightkit.distributed import HorovodEnvironment
    from tests.distributed import horovod_cases, number_cases


def main(folder: Path, *, is_swept: bool) -> None:
    place = HorovodEnvironment()
    results: dict[str, Any] = {}
    place.start()
    warnings.simplefilter("ignore")
    numbers = {
        name: run
        for name, run in number_cases.CASES.items()
        if (name in number_cases.SWEPT) == is_swept
    }
    for name, case in {**numbers, **({} if is_swept else horovod_cases.CASES)}.items():
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
    main(Path(sys.argv[1]), is_swept=sys.argv[2:] == ["swept"])
