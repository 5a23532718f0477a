"""What a trial of `lightkit sweep` costs.

Beside a fit of its own, beside Hydra's sweeper, and beside one process.

The small net and its data are lightkit's `Regressor` and `Temperatures`, on the CPU with one
thread. All contestants run in turn, so that what else the machine does falls on all alike.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benches.command_line import create_parser, parse_options, run_bench
from benches.environment import build_environment
from benches.photo_data import copy_split, find_photos, find_weights
from benches.rounds import BenchError, compare, mark_unmeasured, run_rounds

SWEEP, FIT, HYDRA, ONE_PROCESS = (
    "lightkit sweep",
    "lightkit fit",
    "Hydra's sweeper",
    "study.optimize",
)
TWO = "lightkit sweep, two trials at a time"
TRIAL_AT_MOST, COLD_AT_MOST, WARM_AT_MOST = 0.3, 0.15, 0.5
HYDRA_AT_LEAST, ONE_PROCESS_AT_LEAST = 3.0, 0.8
RATES = (1e-2, 1e-4, 3e-4, 1e-3, 3e-3, 3e-2, 1e-1, 2e-1)
"""The first is that of the config, which is trial 0 of each sweep."""
NUM_PHOTO_TRIALS = 20
PHOTO_RATE = 1e-3
FEATURES = Path("lightkit") / "features"
"""Folder of the features in a cache."""
TIMEOUT_S = 3600.0

SMALL = """\
seed_everything: 7
model: {class_path: Regressor, init_args: {learning_rate: 0.01}}
data: Temperatures
trainer:
  max_epochs: 2
  accelerator: cpu
  logger: false
  enable_progress_bar: false
  enable_model_summary: false
run: {report: false}
"""
PHOTOS = """\
seed_everything: 7
model:
  class_path: ImageClassifier
  init_args: {{backbone: mobilenet_v2, freeze: backbone, weights: {weights}, learning_rate: 0.001}}
data:
  class_path: ImageFolder
  init_args: {{root: {photos}, image_size: {size}, batch_size: 16, augment: false}}
trainer: {{max_epochs: 5, accelerator: cpu, logger: false, enable_progress_bar: false}}
run: {{report: false}}
"""
TRAIN = """\
import warnings

warnings.filterwarnings("ignore")
import pytorch_lightning as pl

from lightkit.data import Temperatures
from lightkit.models import Regressor


def train(rate):
    pl.seed_everything(7, verbose=False)
    checkpoint = pl.callbacks.ModelCheckpoint(monitor="val/loss", save_last=True)
    trainer = pl.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[checkpoint],
    )
    trainer.fit(Regressor(learning_rate=rate), Temperatures())
    return float(checkpoint.best_model_score)
"""
OPTIMIZE = """\
import sys

import optuna

from train import train

rates = [float(rate) for rate in sys.argv[1:]]
study = optuna.create_study(sampler=optuna.samplers.GridSampler({"rate": rates}))
study.optimize(lambda trial: train(trial.suggest_categorical("rate", rates)))
"""
HYDRA_SCRIPT = """\
import subprocess
import sys

import hydra


@hydra.main(version_base=None, config_path=None, config_name=None)
def main(config):
    program = (
        "from pytorch_lightning.cli import LightningCLI; "
        "LightningCLI(save_config_kwargs={'overwrite': True})"
    )
    words = [
        "fit",
        "--config",
        sys.argv[0].replace("sweep.py", "plain.yaml"),
        f"--model.learning_rate={config.rate}",
    ]
    subprocess.run([sys.executable, "-c", program, *words], check=True)


main()
"""
PLAIN = """\
seed_everything: 7
model: lightkit.models.Regressor
data: lightkit.data.Temperatures
trainer:
  max_epochs: 2
  accelerator: cpu
  logger: false
  enable_progress_bar: false
  enable_model_summary: false
"""


def run(words: Sequence[str]) -> int:
    """Measure, print a table or JSON, and return the exit code.

    Args:
        words: See `--help`.
    """
    parser = create_parser("sweep", __doc__, repeat=3)
    parser.add_argument("--photos", type=Path, metavar="FOLDER", help="photos, one folder a class")
    parser.add_argument("--weights", type=Path, metavar="FILE", help="MobileNetV2's state dict")
    parser.add_argument(
        "--without-photos", action="store_true", help="leave out the trials on photos"
    )
    parser.add_argument("--max-images", type=int, metavar="N", help="take N photos at most")
    options = parse_options(parser, words)
    num_trials = 3 if options.quick else len(RATES)
    return run_bench("sweep", options, lambda: measure(parser, options, num_trials), threads=1)


def measure(parser: ArgumentParser, options: Any, num_trials: int) -> dict[str, Any]:
    """Run all contestants in turn.

    Args:
        parser: For errors in the options.
        options: Those of the command line.
        num_trials: Configurations of the small net.

    Returns:
        Comparisons, and all rounds.
    """
    rates = RATES[:num_trials]
    repeat = 1 if options.quick else options.repeat
    with tempfile.TemporaryDirectory(prefix="bench-sweep-") as name:
        folder = Path(name)
        for file, text in {
            "small.yaml": SMALL,
            "plain.yaml": PLAIN,
            "train.py": TRAIN,
            "optimize.py": OPTIMIZE,
            "sweep.py": HYDRA_SCRIPT,
        }.items():
            (folder / file).write_text(text, encoding="utf-8")
        comparisons, rounds = _measure_small(folder, rates, repeat)
        if not (options.without_photos or options.quick):
            found = _measure_photos(parser, options, folder, repeat)
            comparisons += found[0]
            rounds |= found[1]
    notes = [
        (
            "The cost of a trial beyond its training is the difference of two sweeps by the"
            " difference of their trials, less the seconds that the trials'"
            " own summaries count as training."
        ),
        "Trials a minute include the start of each contestant.",
        (
            "Each contestant on photos begins with the verdicts on the files and the decoded images"
            " of an earlier fit."
        ),
    ]
    return {"comparisons": comparisons, "rounds": rounds, "notes": notes}


def _measure_small(
    folder: Path, rates: Sequence[float], repeat: int
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    has_hydra = find_spec("hydra") is not None
    contestants = {
        "trial": partial(_time_trial, folder, rates),
        FIT: partial(_time_fit, folder),
        SWEEP: partial(_rate_of_sweep, folder, rates),
        ONE_PROCESS: lambda _: _rate_of_one_process(folder, rates),
    }
    if has_hydra:
        contestants[HYDRA] = lambda _: _rate_of_hydra(folder, rates)
    rounds = run_rounds(contestants, repeat=repeat, title="sweep")
    title = f"trials a minute, {len(rates)} configurations, 2 epochs"
    lines = [
        compare(
            "a trial beyond its training",
            {SWEEP: rounds["trial"], FIT: rounds[FIT]},
            of=SWEEP,
            to=FIT,
            unit="s",
            at_most=TRIAL_AT_MOST,
        ),
        compare(
            title, rounds, of=SWEEP, to=ONE_PROCESS, unit="/min", at_least=ONE_PROCESS_AT_LEAST
        ),
    ]
    if has_hydra:
        lines.append(
            compare(title, rounds, of=SWEEP, to=HYDRA, unit="/min", at_least=HYDRA_AT_LEAST)
        )
    else:
        reason = "hydra-core is not installed"
        lines.append(
            mark_unmeasured(title, of=SWEEP, to=HYDRA, reason=reason, at_least=HYDRA_AT_LEAST)
        )
    return lines, dict(rounds)


def _run(folder: Path, *words: str, environment: Mapping[str, str] | None = None) -> float:
    """Run a program, and return its seconds.

    Raises:
        BenchError: If it fails.
    """
    began_s = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**build_environment(), **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    taken_s = time.perf_counter() - began_s
    if done.returncode:
        raise BenchError(
            f"{' '.join(words)} ended with"
            f" {done.returncode}:\n{(done.stderr or done.stdout)[-2000:]}"
        )
    return taken_s


def _time_fit(folder: Path, seed: int) -> float:
    return _run(folder, "-m", "lightkit", "fit", "-c", "small.yaml", f"--run.name=fit{seed}")


def _time_sweep(folder: Path, rates: Sequence[float], name: str) -> float:
    values = ",".join(map(str, rates))
    words = (
        "sweep",
        "-c",
        "small.yaml",
        "--space",
        f"model.learning_rate={values}",
        f"--run.name={name}",
    )
    taken_s = _run(folder, "-m", "lightkit", *words, "--sweep.metric=val/loss", "--quiet")
    _check_trials(folder, name, len(rates))
    return taken_s


def _check_trials(folder: Path, name: str, expected: int) -> None:
    """Check that a sweep has trained what is counted.

    Raises:
        BenchError: If it has more or fewer trials, or one has failed.
    """
    lines = (folder / "sweeps" / name / "trials.jsonl").read_text(encoding="utf-8").splitlines()
    states = [record["state"] for record in map(json.loads, lines) if record["event"] == "end"]
    if states != ["complete"] * expected:
        raise BenchError(
            f"the sweep {name} has the trials {', '.join(states)};"
            f" expected {expected} complete ones"
        )


def _time_trial(folder: Path, rates: Sequence[float], seed: int) -> float:
    """Return the seconds that a trial costs beyond its training.

    By the difference of a long and a short sweep.
    """
    short_s = _time_sweep(folder, rates[:1], f"short{seed}")
    long_s = _time_sweep(folder, rates, f"long{seed}")
    summaries = [
        json.loads(path.read_text()) for path in folder.glob(f"runs/long{seed}/2*/summary.json")
    ]
    training_s = statistics.median(each["durations"]["fit"] for each in summaries)
    return (long_s - short_s) / (len(rates) - 1) - training_s


def _rate_of_sweep(folder: Path, rates: Sequence[float], seed: int) -> float:
    return 60 * len(rates) / _time_sweep(folder, rates, f"rate{seed}")


def _rate_of_one_process(folder: Path, rates: Sequence[float]) -> float:
    return 60 * len(rates) / _run(folder, "optimize.py", *map(str, rates))


def _rate_of_hydra(folder: Path, rates: Sequence[float]) -> float:
    return (
        60
        * len(rates)
        / _run(folder, "sweep.py", "--multirun", f"+rate={','.join(map(str, rates))}")
    )


def _measure_photos(
    parser: ArgumentParser, options: Any, folder: Path, repeat: int
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Measure trials of a frozen MobileNetV2 beside as many fits.

    With and without features that are kept.
    """
    photos = find_photos(parser, options.photos)
    weights = find_weights(parser, options.weights)
    split = copy_split(photos, folder / "photos", max_images=options.max_images)
    text = PHOTOS.format(photos=split.root, weights=weights, size=160)
    (folder / "photos.yaml").write_text(text, encoding="utf-8")
    others = [
        round(10 ** (-4 + 2 * (number + 0.3) / NUM_PHOTO_TRIALS), 7)
        for number in range(NUM_PHOTO_TRIALS - 1)
    ]
    rates = [PHOTO_RATE, *others]
    contestants = {
        SWEEP: partial(_time_photo_sweep, folder, rates),
        TWO: partial(_time_photo_sweep, folder, rates, parallel=2),
        "fits, each without kept features": partial(_time_photo_fits, folder, rates, is_cold=True),
        "fits with a warm cache": partial(_time_photo_fits, folder, rates, is_cold=False),
    }
    rounds = run_rounds(contestants, repeat=repeat, title="sweep on photos")
    title = (
        f"{NUM_PHOTO_TRIALS} trials of frozen MobileNetV2 on"
        f" {split.num_train + split.num_val} photos"
    )
    cold, warm = list(contestants)[2:]
    lines = [
        compare(title, rounds, of=SWEEP, to=cold, unit="s", at_most=COLD_AT_MOST),
        compare(title, rounds, of=SWEEP, to=warm, unit="s", at_most=WARM_AT_MOST),
        compare(title, rounds, of=TWO, to=cold, unit="s"),
    ]
    return lines, {f"photos: {name}": values for name, values in rounds.items()}


def _time_photo_sweep(
    folder: Path, rates: Sequence[float], seed: int, *, parallel: int = 1
) -> float:
    name = f"photos{parallel}-{seed}"
    values = ",".join(map(str, rates))
    words = (
        "sweep",
        "-c",
        "photos.yaml",
        "--space",
        f"model.learning_rate={values}",
        "--sweep.metric=val/loss",
        f"--sweep.parallel={parallel}",
    )
    cache = _fill_cache(folder, f"sweep{parallel}-", seed)
    shutil.rmtree(cache / FEATURES)
    environment = {"XDG_CACHE_HOME": str(cache)}
    taken_s = _run(
        folder,
        "-m",
        "lightkit",
        *words,
        f"--run.name={name}",
        "--quiet",
        environment=environment,
    )
    _check_trials(folder, name, len(rates))
    return taken_s


def _fill_cache(folder: Path, name: str, seed: int) -> Path:
    """Return a cache that one fit has filled, which does not count.

    With features, verdicts and decoded images.
    """
    cache = folder / f"cache-{name}{seed}"
    words = (
        "fit",
        "-c",
        "photos.yaml",
        "--quiet",
        f"--run.name=warm-{name}{seed}",
        "--trainer.max_epochs=1",
    )
    _run(folder, "-m", "lightkit", *words, environment={"XDG_CACHE_HOME": str(cache)})
    return cache


def _time_photo_fits(folder: Path, rates: Sequence[float], seed: int, *, is_cold: bool) -> float:
    """Train each by a fit of its own.

    With the features of those before, or without them and all else that is kept.
    """
    kind = "cold" if is_cold else "warm"
    cache = _fill_cache(folder, kind, seed)
    words = ("fit", "-c", "photos.yaml", "--quiet")
    total_s = 0.0
    for number, rate in enumerate(rates):
        if is_cold:
            shutil.rmtree(cache / FEATURES)
        own = (f"--run.name={kind}{seed}-{number}", f"--model.learning_rate={rate}")
        total_s += _run(
            folder, "-m", "lightkit", *words, *own, environment={"XDG_CACHE_HOME": str(cache)}
        )
    return total_s
